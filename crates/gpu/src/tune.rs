//! Measurement of tiles on the device (ADR-0155).

use std::collections::BTreeMap;
use std::path::Path;

use crate::cache::CacheError;
use crate::dispatch::Dispatch;
use crate::error::Result;
use crate::gpu::Gpu;
use crate::kernel::{CooperativeTile, Kernel, Tile};
use crate::matrix::{Activations, Matrix};
use crate::memory::Buffer;
use crate::repack::Format;
use crate::rows::Quantized;
use crate::tuning::{ProductShape, Tuning};

/// Activation rows of the measured products of few rows.
const FEW: [u32; 4] = [1, 2, 4, 8];

/// Activation rows of the measured products of many rows.
const MANY: [u32; 6] = [16, 32, 64, 128, 256, 512];

/// Weight rows above which many activation rows are not measured: those of output matrices.
const MOST_ROWS: u32 = 1 << 16;

/// Bytes of matrices of one shape that are read in turn, more than caches hold.
const BYTES: u64 = 512 << 20;

/// Runs of each tile.
const RUNS: usize = 7;

/// Share of the time of the table's tile below which another one takes its place.
const GAIN: f64 = 0.98;

/// Result of [`Gpu::tune`] for a product.
#[derive(Debug, Clone, PartialEq)]
pub struct Tuned {
    /// The product.
    pub shape: ProductShape,
    /// True for [`Matrix::gemm`] with cooperative matrices, false for [`Matrix::product`].
    pub is_gemm: bool,
    /// Seconds with the tile of the table, the median.
    pub usual: f64,
    /// Seconds with the fastest tile, the median.
    pub fastest: f64,
    /// Number of tiles that were measured.
    pub tiles: usize,
    /// True if the fastest tile takes the place of the table's.
    pub is_changed: bool,
}

/// A tile of either kind of product.
#[derive(Debug, Clone, Copy, PartialEq)]
enum AnyTile {
    Few(Tile),
    Many(CooperativeTile),
}

impl Gpu {
    /// Measures tiles of the products with these matrices, and uses the fastest from now on, for
    /// launches that are prepared later. Matrices of one shape, such as those of all layers, are
    /// read in turn. `progress` is told the number of measured products, and of all.
    ///
    /// No tile changes a bit of a result.
    ///
    /// # Errors
    /// [`Error::MissingFeature`](crate::Error::MissingFeature) without timestamps, too little
    /// memory for activations, and those of [`Gpu::run`].
    pub fn tune(&self, matrices: &[&Matrix], progress: &mut dyn FnMut(usize, usize)) -> Result<Vec<Tuned>> {
        let mut shapes = BTreeMap::<(Format, u32, u32), Vec<&Matrix>>::new();
        for matrix in matrices {
            let same = shapes.entry((matrix.format(), matrix.rows(), matrix.cols())).or_default();
            if same.iter().map(|matrix| matrix.bytes()).sum::<u64>() < BYTES {
                same.push(matrix);
            }
        }
        let has_many =
            |rows: u32| rows <= MOST_ROWS && CooperativeTile::choose(rows, 64, self.target()).is_some();
        let batches = |rows: u32| {
            let many = MANY.iter().filter(move |_| has_many(rows)).map(|&batch| (batch, true));
            FEW.iter().map(|&batch| (batch, false)).chain(many)
        };
        let all = shapes.keys().map(|&(_, rows, _)| batches(rows).count()).sum();
        let (mut results, mut found) = (Vec::new(), self.tiles.get());
        for ((format, rows, cols), matrices) in shapes {
            for (batch, is_gemm) in batches(rows) {
                let shape = ProductShape { format, rows, cols, batch };
                results.push(self.tune_product(shape, is_gemm, &matrices, &mut found)?);
                progress(results.len(), all);
            }
        }
        self.tiles.set(found);
        Ok(results)
    }

    /// File of the tiles that [`Gpu::tune`] has found; `None` without a folder for it.
    pub fn tiles_file(&self) -> Option<&Path> {
        self.tiles.file()
    }

    /// Writes the tiles to their file, which later openings with that folder read.
    ///
    /// # Errors
    /// [`CacheError`] if the folder cannot be used or the file not be written.
    pub fn save_tiles(&self) -> std::result::Result<(), CacheError> {
        self.tiles.save()
    }

    fn tune_product(
        &self,
        shape: ProductShape,
        is_gemm: bool,
        matrices: &[&Matrix],
        found: &mut Tuning,
    ) -> Result<Tuned> {
        let tiles = self.candidates(shape, is_gemm);
        let x = self.activations(shape)?;
        let y = self.zeroed(u64::from(shape.batch) * u64::from(shape.rows) * 4)?;
        let launches = tiles
            .iter()
            .map(|&tile| {
                matrices.iter().map(|matrix| self.launch(matrix, tile, &x, &y, shape.batch)).collect()
            })
            .collect::<Result<Vec<Vec<Dispatch>>>>()?;
        let lists: Vec<Vec<&Dispatch>> = launches.iter().map(|list| list.iter().collect()).collect();
        // Compiles, and raises clocks.
        lists.iter().try_for_each(|list| self.run(list))?;
        let mut seconds = vec![Vec::new(); tiles.len()];
        for _ in 0..RUNS {
            for (list, seconds) in lists.iter().zip(&mut seconds) {
                seconds.push(self.time(list)? / matrices.len() as f64);
            }
        }
        let medians: Vec<f64> = seconds.into_iter().map(median).collect();
        let (mut best, usual) = (0, medians[0]);
        for (index, &median) in medians.iter().enumerate() {
            if median < medians[best] {
                best = index;
            }
        }
        let is_changed = medians[best] < GAIN * usual;
        match tiles[if is_changed { best } else { 0 }] {
            AnyTile::Few(tile) => drop(found.products.insert(shape, tile)),
            AnyTile::Many(tile) => drop(found.gemms.insert(shape, tile)),
        }
        Ok(Tuned { shape, is_gemm, usual, fastest: medians[best], tiles: tiles.len(), is_changed })
    }

    /// Tiles that the device can run, first that of the table.
    fn candidates(&self, shape: ProductShape, is_gemm: bool) -> Vec<AnyTile> {
        if is_gemm {
            let usual = shape.usual_gemm_tile(self.target());
            let others = CooperativeTile::MEASURED.into_iter().filter(|&tile| Some(tile) != usual);
            return usual.into_iter().chain(others).map(AnyTile::Many).collect();
        }
        let usual = shape.usual_tile(self.target());
        let mut tiles = vec![AnyTile::Few(usual)];
        for (rows, teams, unroll) in divisions() {
            let tile = Tile { rows, teams, unroll, ..usual };
            let threads = usual.lanes * teams;
            let runs = (32..=256).contains(&threads)
                && Kernel::Product(shape.product(tile)).check(self.info()).is_ok();
            if runs && tile != usual {
                tiles.push(AnyTile::Few(tile));
            }
        }
        tiles
    }

    fn activations(&self, ProductShape { format, cols, batch, .. }: ProductShape) -> Result<Activations> {
        Ok(match format.takes_quantized() {
            true => Quantized::new(self, batch, cols)?.into(),
            false => self.zeroed(u64::from(batch) * u64::from(cols) * 4)?.into(),
        })
    }

    fn launch(
        &self,
        matrix: &Matrix,
        tile: AnyTile,
        x: &Activations,
        y: &Buffer,
        batch: u32,
    ) -> Result<Dispatch> {
        match tile {
            AnyTile::Few(tile) => matrix.product_with(self, x, y, batch, tile),
            AnyTile::Many(tile) => matrix.gemm_cooperative(self, x, y, batch, tile),
        }
    }
}

/// Weight rows of a team, teams of a workgroup and steps whose loads are issued together.
fn divisions() -> impl Iterator<Item = (u32, u32, u32)> {
    [1, 2, 4].into_iter().flat_map(|rows| {
        [1, 2, 4].into_iter().flat_map(move |teams| [1, 2, 4].map(|unroll| (rows, teams, unroll)))
    })
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
