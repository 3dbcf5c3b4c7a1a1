//! Tiles that were measured on a device, and their text form (ADR-0155).

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::adapter::AdapterInfo;
use crate::kernel::{CooperativeKernel, CooperativeTile, Kernel, Product, Target, Tile};
use crate::repack::Format;
use crate::split_key::ColumnSplits;

/// First line of the text.
const TITLE: &str = "ruvllm-gpu tiles, version 2";
/// Activation rows of the largest tile whose splits are in turn.
const MOST_IN_TURN: u32 = 512;

/// Product of a weight matrix and a number of activation rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProductShape {
    /// Weight format.
    pub format: Format,
    /// Weight rows.
    pub rows: u32,
    /// Weight columns.
    pub cols: u32,
    /// Activation rows.
    pub batch: u32,
}

/// Tiles by product, in place of those of the table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Tuning {
    /// Of [`Matrix::product`](crate::Matrix::product).
    pub(crate) products: BTreeMap<ProductShape, Tile>,
    /// Of [`Matrix::gemm`](crate::Matrix::gemm) with cooperative matrices.
    pub(crate) gemms: BTreeMap<ProductShape, CooperativeTile>,
}

impl ProductShape {
    /// Key of the product kernel with a tile.
    pub(crate) fn product(self, tile: Tile) -> Product {
        let Self { format, rows, cols, batch } = self;
        Product { format, rows, cols, batch, width: rows, first: 0, tile }
    }

    /// Key of the kernel of many rows with a tile.
    pub(crate) fn cooperative(self, tile: CooperativeTile) -> CooperativeKernel {
        let Self { format, rows, cols, .. } = self;
        CooperativeKernel { format, rows, cols, width: rows, first: 0, tile, splits: self.splits() }
    }

    /// Splits of the columns of a product of many rows.
    pub(crate) fn splits(self) -> ColumnSplits {
        ColumnSplits::choose(self.rows, self.cols, self.batch)
    }

    /// The tile of the table for a product of few rows.
    pub(crate) fn usual_tile(self, target: Target) -> Tile {
        Tile::choose(self.format, self.cols, self.batch, target)
    }

    /// The tile of the table for a product of many rows; `None` without cooperative matrices.
    pub(crate) fn usual_gemm_tile(self, target: Target) -> Option<CooperativeTile> {
        let Self { rows, cols, batch, .. } = self;
        match self.splits() {
            ColumnSplits::Whole => CooperativeTile::choose(rows, batch, target),
            // Two sums per output: the tile of most outputs per thread has no registers for them.
            ColumnSplits::InTurn(_) => CooperativeTile::choose(rows, batch.min(MOST_IN_TURN), target),
            splits @ ColumnSplits::Apart(_) => {
                CooperativeTile::choose(rows * splits.apart(cols), batch, target)
            }
        }
    }
}

impl Tuning {
    /// Tile for a product; passes of more than 8 rows have that of 8.
    pub(crate) fn product(&self, shape: ProductShape, target: Target) -> Tile {
        let measured = ProductShape { batch: shape.batch.min(8).next_power_of_two(), ..shape };
        self.products.get(&measured).copied().unwrap_or_else(|| shape.usual_tile(target))
    }

    /// Tile for a product of many rows; `None` without cooperative matrices. Numbers of rows
    /// between two measured ones have that of the larger.
    pub(crate) fn gemm(&self, shape: ProductShape, target: Target) -> Option<CooperativeTile> {
        let usual = shape.usual_gemm_tile(target)?;
        let measured = ProductShape { batch: shape.batch.max(16).next_power_of_two(), ..shape };
        Some(self.gemms.get(&measured).copied().unwrap_or(usual))
    }

    /// Text of all tiles, a line for each.
    pub(crate) fn to_text(&self) -> String {
        let mut text = format!("{TITLE}\n");
        for (shape, Tile { rows, lanes, teams, unroll }) in &self.products {
            let _ = writeln!(text, "product {} {rows} {lanes} {teams} {unroll}", words(shape));
        }
        for (shape, CooperativeTile { batch, rows, depth, across, down, stages }) in &self.gemms {
            let tile = format!("{batch} {rows} {depth} {across} {down} {stages}");
            let _ = writeln!(text, "gemm {} {tile}", words(shape));
        }
        text
    }

    /// Reads a text of [`to_text`](Self::to_text).
    ///
    /// # Errors
    /// The fault of a text of another form, or with tiles that the device cannot run or that would
    /// change the bits of rows.
    pub(crate) fn from_text(text: &str, info: &AdapterInfo, target: Target) -> Result<Self, &'static str> {
        let mut lines = text.lines();
        if lines.next() != Some(TITLE) {
            return Err("its first line is another");
        }
        let mut tuning = Self::default();
        for line in lines {
            let words: Vec<&str> = line.split(' ').collect();
            let [kind, format, numbers @ ..] = &words[..] else { return Err("a line has too few words") };
            let numbers: Vec<u32> =
                numbers.iter().map(|word| word.parse()).collect::<Result<_, _>>().or(Err("no number"))?;
            let format = Format::ALL.into_iter().find(|known| known.name() == *format);
            let format = format.ok_or("an unknown format")?;
            let fits = |kernel: Kernel| kernel.check(info).or(Err("a tile that the device cannot run"));
            match (*kind, &numbers[..]) {
                ("product", &[rows, cols, batch, tile_rows, lanes, teams, unroll]) => {
                    let shape = ProductShape { format, rows, cols, batch };
                    let tile = Tile { rows: tile_rows, lanes, teams, unroll };
                    fits(Kernel::Product(shape.product(tile)))?;
                    if lanes != shape.usual_tile(target).lanes {
                        return Err("a tile with another order of sums");
                    }
                    tuning.products.insert(shape, tile);
                }
                ("gemm", &[rows, cols, batch, tile_batch, tile_rows, depth, across, down, stages]) => {
                    let shape = ProductShape { format, rows, cols, batch };
                    let tile =
                        CooperativeTile { batch: tile_batch, rows: tile_rows, depth, across, down, stages };
                    fits(Kernel::Cooperative(shape.cooperative(tile)))?;
                    tuning.gemms.insert(shape, tile);
                }
                _ => return Err("a line of another form"),
            }
        }
        Ok(tuning)
    }
}

fn words(shape: &ProductShape) -> String {
    let ProductShape { format, rows, cols, batch } = shape;
    format!("{} {rows} {cols} {batch}", format.name())
}
