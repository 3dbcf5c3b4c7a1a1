//! Cosine and sine tables per position.

use std::ops::Range;

use super::{RopeConfig, RopeFrequencies};
use crate::{Error, Result};

/// Cosines and sines of a range of positions, multiplied by the scaling's magnitude.
///
/// Angles are computed in f64, so the f32 entries are accurate (to 1e-7) at any position.
#[derive(Debug, Clone)]
pub struct RopeTable {
    positions: Range<usize>,
    /// Number of rotated pairs, `rotary_dim / 2`.
    pairs: usize,
    cos: Vec<f32>, // [positions, pairs]
    sin: Vec<f32>, // [positions, pairs]
}

impl RopeTable {
    /// Computes the table of positions `0..max_positions`, for sequences of up to that length.
    ///
    /// Takes `max_positions * rotary_dim` f32 values of memory.
    ///
    /// # Errors
    /// Errors of [`RopeConfig::frequencies`]; [`Error::RopeParameter`] if memory for the table
    /// cannot be allocated.
    pub fn new(config: &RopeConfig, max_positions: usize) -> Result<Self> {
        Self::build(&config.frequencies(max_positions)?, 0..max_positions).ok_or(Error::RopeParameter {
            name: "max_positions",
            value: max_positions as f64,
            expected: "few enough for a table in memory",
        })
    }

    /// Computes the table of any range of positions.
    ///
    /// # Panics
    /// If memory for the table cannot be allocated.
    pub fn from_frequencies(frequencies: &RopeFrequencies, positions: Range<usize>) -> Self {
        let n_positions = positions.len();
        let Some(table) = Self::build(frequencies, positions) else {
            panic!("rope: no memory for a table of {n_positions} positions")
        };
        table
    }

    /// Computes the table; `None` if memory cannot be allocated.
    fn build(frequencies: &RopeFrequencies, positions: Range<usize>) -> Option<Self> {
        let pairs = frequencies.inverse.len();
        let len = positions.len().checked_mul(pairs)?;
        let (mut cos, mut sin) = (Vec::new(), Vec::new());
        cos.try_reserve_exact(len).ok()?;
        sin.try_reserve_exact(len).ok()?;
        for position in positions.clone() {
            for f in &frequencies.inverse {
                let (s, c) = (position as f64 * f).sin_cos();
                cos.push((c * frequencies.magnitude) as f32);
                sin.push((s * frequencies.magnitude) as f32);
            }
        }
        Some(Self { positions, pairs, cos, sin })
    }

    /// Range of positions in the table.
    pub fn positions(&self) -> Range<usize> {
        self.positions.clone()
    }

    /// Number of dimensions per head that RoPE rotates.
    pub fn rotary_dim(&self) -> usize {
        2 * self.pairs
    }

    /// Cosines and sines of one position, `[rotary_dim / 2]` each.
    ///
    /// # Panics
    /// If the table lacks the position.
    pub fn at(&self, position: usize) -> (&[f32], &[f32]) {
        let start = (position - self.positions.start) * self.pairs;
        (&self.cos[start..start + self.pairs], &self.sin[start..start + self.pairs])
    }
}
