//! Choice of tiles, measured on an H100 (`docs/performance-gpu.md`).

use crate::kernel::{CooperativeTile, Target, Tile};
use crate::repack::Format;

impl Tile {
    /// The measured choice for a product on a device (`docs/performance-gpu.md`).
    ///
    /// `lanes` depends on the columns, the format and the target only, so that a row's bits do not
    /// depend on the rows beside it.
    pub fn choose(format: Format, cols: u32, batch: u32, target: Target) -> Self {
        let steps = cols / format.step_values();
        let measured = match (format, steps) {
            (Format::F16, 65..) | (_, 257..) => 128,
            (_, 33..) => 64,
            _ => 32,
        };
        let lanes = target.subgroup.unwrap_or(1).max(measured);
        let long = measured == 128;
        let (rows, unroll) = if batch <= 2 {
            match format {
                Format::F16 => (1, 4),
                Format::Q8_0 => (1, 2),
                Format::Q4_0 | Format::IQ4NL | Format::MXFP4 | Format::Q5K => (1, if long { 1 } else { 2 }),
                Format::Q4K => (1, 1),
                Format::Q6K => (2, if long { 4 } else { 1 }),
            }
        } else {
            match format {
                Format::F16 => (4, 2),
                Format::Q8_0 => (2, 2),
                Format::Q4_0 | Format::IQ4NL | Format::MXFP4 => (if long { 4 } else { 2 }, 2),
                Format::Q4K | Format::Q5K | Format::Q6K => (4, 1),
            }
        };
        Self { rows, lanes, teams: (128 / lanes).max(1), unroll }
    }
}

impl CooperativeTile {
    /// Subgroups of the largest chosen tile.
    pub(crate) const MOST_SUBGROUPS: u32 = 8;
    /// All chosen tiles.
    pub(crate) const MEASURED: [Self; 8] = [
        Self { batch: 16, rows: 32, depth: 64, across: 1, down: 2, stages: 2 },
        Self { batch: 16, rows: 64, depth: 64, across: 1, down: 4, stages: 1 },
        Self { batch: 32, rows: 32, depth: 64, across: 1, down: 2, stages: 2 },
        Self { batch: 32, rows: 128, depth: 64, across: 1, down: 4, stages: 1 },
        Self { batch: 64, rows: 64, depth: 64, across: 2, down: 2, stages: 1 },
        Self { batch: 64, rows: 64, depth: 64, across: 2, down: 2, stages: 2 },
        Self { batch: 128, rows: 128, depth: 32, across: 2, down: 2, stages: 1 },
        Self { batch: 128, rows: 128, depth: 64, across: 2, down: 4, stages: 1 },
    ];
    /// Bytes of workgroup memory that every chosen tile fits into, with every format.
    pub(crate) const MEMORY: u32 = 48 << 10;

    /// The measured choice for a product of many rows; `None` where products without cooperative
    /// matrices are to be used.
    ///
    /// The existence of a tile depends on the target only, so that a row's bits do not depend on
    /// the rows beside it. The largest tile is taken whose workgroups fill the 132 multiprocessors
    /// of an H100 about once; with two or more on each, shallow stages and fewer threads are
    /// faster. Squares of 8 were measured nowhere and are not chosen.
    pub fn choose(rows: u32, batch: u32, target: Target) -> Option<Self> {
        if target.cooperative != Some(16) || !target.f16 {
            return None;
        }
        let groups = |batch_tile: u32, row_tile: u32| {
            u64::from(batch.div_ceil(batch_tile)) * u64::from(rows.div_ceil(row_tile))
        };
        let tile = |(batch, rows), depth, (across, down), stages| {
            Some(Self { batch, rows, depth, across, down, stages })
        };
        match batch {
            0..=16 if groups(16, 64) >= 200 => tile((16, 64), 64, (1, 4), 1),
            0..=16 => tile((16, 32), 64, (1, 2), 2),
            17..=32 if groups(32, 128) >= 100 => tile((32, 128), 64, (1, 4), 1),
            65.. if groups(128, 128) >= 384 => tile((128, 128), 32, (2, 2), 1),
            65.. if groups(128, 128) >= 100 => tile((128, 128), 64, (2, 4), 1),
            33.. if groups(64, 64) >= 200 => tile((64, 64), 64, (2, 2), 1),
            33.. if groups(64, 64) >= 100 => tile((64, 64), 64, (2, 2), 2),
            _ => tile((32, 32), 64, (1, 2), 2),
        }
    }
}
