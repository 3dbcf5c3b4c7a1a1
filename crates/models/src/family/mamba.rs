//! Mamba-2, as data.

use crate::config::keys::Keys;
use crate::error::Result;

/// Largest number of heads, and width of all together, that a file may name.
const MAX_WIDTH: usize = 1 << 20;

/// Largest number of rows of a head's state that a file may name; published models have 128 or 256.
const MAX_STATE_DIM: usize = 1 << 10;

/// Mamba-2: a selective state space behind a short convolution. Source: arXiv 2405.21060.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Mamba2 {
    /// Heads, each with a state.
    pub heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Groups of neighbouring heads with the same `B` and `C`, and one norm of their outputs;
    /// divides `heads`.
    pub groups: usize,
    /// Rows of a head's state, the width of a group's `B` or `C`.
    pub state_dim: usize,
    /// Tokens that the convolution of the heads' inputs, `B` and `C` sees.
    pub taps: usize,
    /// True if the norms of outputs may be absent: files that lack them are models without.
    pub optional_norm: bool,
}

impl Mamba2 {
    /// Width of all heads of a token.
    pub fn inner_dim(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Width of `B`, or `C`, of all groups.
    pub fn weights_dim(&self) -> usize {
        self.groups * self.state_dim
    }

    /// Channels of the convolution: inputs of all heads, `B` and `C` of all groups.
    pub fn channels(&self) -> usize {
        self.inner_dim() + 2 * self.weights_dim()
    }

    /// Values of the state behind the inputs of the convolution, `[heads, state_dim, head_dim]`.
    pub fn matrix_values(&self) -> usize {
        self.inner_dim() * self.state_dim
    }

    /// Reads the sizes, but for the number of taps.
    pub(super) fn read(keys: &Keys<'_>, taps: usize) -> Result<Self> {
        const INNER: &str = "ssm.inner_size";
        const GROUPS: &str = "ssm.group_count";
        let heads = keys.require_count("ssm.time_step_rank", 1..=MAX_WIDTH)?;
        let inner_dim = keys.require_count(INNER, 1..=MAX_WIDTH)?;
        if !inner_dim.is_multiple_of(heads) {
            return Err(keys.invalid(INNER, inner_dim, format!("a multiple of the {heads} heads")));
        }
        let groups = keys.require_count(GROUPS, 1..=MAX_WIDTH)?;
        if !heads.is_multiple_of(groups) {
            return Err(keys.invalid(GROUPS, groups, format!("a divisor of the {heads} heads")));
        }
        let state_dim = keys.require_count("ssm.state_size", 1..=MAX_STATE_DIM)?;
        Ok(Self { heads, head_dim: inner_dim / heads, groups, state_dim, taps, optional_norm: false })
    }
}
