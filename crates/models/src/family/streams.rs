//! Several residual streams, and gates that few values pass.

use crate::config::keys::{Keys, Real};
use crate::error::Result;

/// Most residual streams of a model; published ones have four.
pub(crate) const MAX_STREAMS: usize = 8;

/// Several residual streams. A layer predicts all of them from themselves, computes one, and
/// corrects all by the difference (`AltUp`, arXiv 2301.13310). Beside the mixer stands a low-rank
/// projection of its input (`LAuReL`, arXiv 2411.07501). Source: Gemma 3n.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ResidualStreams {
    /// Number of streams, 2 to 8.
    pub count: usize,
    /// The stream that layers compute.
    pub active: usize,
}

impl ResidualStreams {
    /// Reads their number and the active one.
    pub(super) fn read(keys: &Keys<'_>) -> Result<Self> {
        let count = keys.count("altup.num_inputs", 2..=MAX_STREAMS)?.unwrap_or(4);
        let active = keys.count("altup.active_idx", 0..=count - 1)?.unwrap_or(0);
        Ok(Self { count, active })
    }
}

/// Reads how many standard deviations above the mean of its row a gate must be to pass,
/// `[n_layers]`; minus infinity in layers where all pass. Readers that know no key have a cutoff in
/// the first layers, at 95 % of a normal distribution.
pub(super) fn read_gate_cutoffs(keys: &Keys<'_>, n_layers: usize) -> Result<Vec<f32>> {
    const KEY: &str = "activation_sparsity_scale";
    const USUAL: (usize, f32) = (10, 1.644_853_6);
    let Some(cutoffs) = keys.reals(KEY, n_layers)? else {
        let n_sparse = if n_layers > USUAL.0 { USUAL.0 } else { 0 };
        let cutoff = |layer| if layer < n_sparse { USUAL.1 } else { f32::NEG_INFINITY };
        return Ok((0..n_layers).map(cutoff).collect());
    };
    match cutoffs.iter().find(|&&cutoff| !(Real::Finite.allows(cutoff) || cutoff == f32::NEG_INFINITY)) {
        None => Ok(cutoffs),
        Some(cutoff) => Err(keys.invalid(KEY, cutoff, "finite numbers, or -inf for layers without a cutoff")),
    }
}
