//! Codebooks: `nuq3` calibration of one layer.

use super::super::three_bits::LEVELS;
use crate::{Error, Result};

/// Number of levels of a codebook.
pub const NUQ_LEVELS: usize = LEVELS;

/// Calibration of one layer: levels of keys and values, and key ranges per dimension before RoPE.
///
/// Computed by [`NuqTraining`](super::NuqTraining).
#[derive(Debug, Clone, PartialEq)]
pub struct NuqCodebooks {
    key_levels: [f32; NUQ_LEVELS],
    value_levels: [f32; NUQ_LEVELS],
    key_ranges: Vec<[f32; 2]>, // [n_kv_heads, head_dim], low and high
}

impl NuqCodebooks {
    /// Creates codebooks from stored values.
    ///
    /// # Shapes
    /// `key_ranges`: `[n_kv_heads, head_dim]`, low and high.
    ///
    /// # Errors
    /// [`Error::NuqCodebooks`] if levels do not ascend within [-1, 1], or a range is not finite or
    /// has low above high.
    pub fn new(
        key_levels: [f32; NUQ_LEVELS],
        value_levels: [f32; NUQ_LEVELS],
        key_ranges: Vec<[f32; 2]>,
    ) -> Result<Self> {
        for (what, levels) in [("levels of keys", key_levels), ("levels of values", value_levels)] {
            let within = levels.iter().all(|level| (-1.0..=1.0).contains(level));
            if !within || !levels.is_sorted() {
                return Err(Error::NuqCodebooks { what, expected: "ascending numbers within -1 and 1" });
            }
        }
        let is_range = |[low, high]: &[f32; 2]| low.is_finite() && high.is_finite() && low <= high;
        if !key_ranges.iter().all(is_range) {
            let expected = "finite, the lower end first";
            return Err(Error::NuqCodebooks { what: "ranges of keys", expected });
        }
        Ok(Self { key_levels, value_levels, key_ranges })
    }

    /// Ascending levels of keys.
    pub fn key_levels(&self) -> &[f32; NUQ_LEVELS] {
        &self.key_levels
    }

    /// Ascending levels of values.
    pub fn value_levels(&self) -> &[f32; NUQ_LEVELS] {
        &self.value_levels
    }

    /// Low and high end of each key dimension, `[n_kv_heads, head_dim]`. Values outside are
    /// outliers.
    pub fn key_ranges(&self) -> &[[f32; 2]] {
        &self.key_ranges
    }
}
