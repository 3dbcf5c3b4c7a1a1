//! Cosines and sines per position.

use std::ops::Range;

use super::{RopeConfig, RopeFrequencies};
use crate::Result;

/// Cosines and sines of the angles of a range of positions, already multiplied by the scaling's
/// magnitude.
///
/// Angles are computed in f64, so the f32 entries are correctly rounded (to 1e-7) at any position.
#[derive(Debug, Clone)]
pub struct RopeTable {
    positions: Range<usize>,
    /// `rotary_dim / 2`
    pairs: usize,
    cos: Vec<f32>, // [positions, pairs]
    sin: Vec<f32>, // [positions, pairs]
}

impl RopeTable {
    /// The table of positions `0..max_positions`, for sequences of up to that length.
    ///
    /// Takes `max_positions * rotary_dim` f32 values of memory.
    ///
    /// # Errors
    /// The errors of [`RopeConfig::frequencies`].
    pub fn new(config: &RopeConfig, max_positions: usize) -> Result<Self> {
        Ok(Self::from_frequencies(&config.frequencies(max_positions)?, 0..max_positions))
    }

    /// The table of any range of positions.
    pub fn from_frequencies(frequencies: &RopeFrequencies, positions: Range<usize>) -> Self {
        let pairs = frequencies.inverse.len();
        let mut cos = Vec::with_capacity(positions.len() * pairs);
        let mut sin = Vec::with_capacity(positions.len() * pairs);
        for position in positions.clone() {
            for f in &frequencies.inverse {
                let (s, c) = (position as f64 * f).sin_cos();
                cos.push((c * frequencies.magnitude) as f32);
                sin.push((s * frequencies.magnitude) as f32);
            }
        }
        Self { positions, pairs, cos, sin }
    }

    /// The positions that the table holds.
    pub fn positions(&self) -> Range<usize> {
        self.positions.clone()
    }

    /// Number of dimensions of a head that RoPE applies to.
    pub fn rotary_dim(&self) -> usize {
        2 * self.pairs
    }

    /// Cosines and sines of one position, `[pairs]` each.
    pub(super) fn at(&self, position: usize) -> (&[f32], &[f32]) {
        let start = (position - self.positions.start) * self.pairs;
        (&self.cos[start..start + self.pairs], &self.sin[start..start + self.pairs])
    }
}
