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
                Format::Q4_0 | Format::IQ4NL | Format::Q5K => (1, if long { 1 } else { 2 }),
                Format::Q4K => (1, 1),
                Format::Q6K => (2, if long { 4 } else { 1 }),
            }
        } else {
            match format {
                Format::F16 => (4, 2),
                Format::Q8_0 => (2, 2),
                Format::Q4_0 | Format::IQ4NL => (if long { 4 } else { 2 }, 2),
                Format::Q4K | Format::Q5K | Format::Q6K => (4, 1),
            }
        };
        Self { rows, lanes, teams: (128 / lanes).max(1), unroll }
    }
}

impl CooperativeTile {
    /// The measured choice for a product of many rows; `None` where products without cooperative
    /// matrices are to be used.
    ///
    /// Whether there is a tile depends on the matrix and the target only, so that a row's bits do not
    /// depend on the rows beside it. Squares of 8 were measured nowhere and are not chosen.
    pub fn choose(format: Format, rows: u32, cols: u32, batch: u32, target: Target) -> Option<Self> {
        let _ = (format, rows, cols);
        if target.cooperative != Some(16) || !target.f16 {
            return None;
        }
        let (batch, rows, across, down) = match batch {
            0..=16 => (16, 64, 1, 4),
            17..=32 => (32, 64, 1, 4),
            33..=64 => (64, 64, 2, 2),
            _ => (128, 128, 2, 4),
        };
        Some(Self { batch, rows, depth: 32, across, down, stages: 2 })
    }
}
