//! Gated `DeltaNet`, as data.

use crate::config::keys::Keys;
use crate::error::Result;

/// Largest width and number of heads that a file may name.
const MAX_WIDTH: usize = 1 << 20;

/// Largest width of a query or key of a layer with a state.
pub(crate) const MAX_KEY_DIM: usize = 1 << 10;

/// Gated `DeltaNet`. Source: arXiv 2412.06464, as Qwen 3.5 and Qwen3-Next have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeltaNet {
    /// Heads of queries and keys.
    pub key_heads: usize,
    /// Heads of values, each with a state; a multiple of `key_heads`.
    pub value_heads: usize,
    /// Width of a query or key.
    pub key_dim: usize,
    /// Width of a value.
    pub value_dim: usize,
    /// Tokens that the convolution of queries, keys and values sees.
    pub taps: usize,
    /// True if the value heads of one key head are neighbours, in projections that files have
    /// interleaved by key head; false if the first value head of each key head comes before the
    /// second of any.
    pub is_grouped: bool,
}

impl DeltaNet {
    /// Width of all queries, or all keys, of a token.
    pub fn keys_dim(&self) -> usize {
        self.key_heads * self.key_dim
    }

    /// Width of all values of a token.
    pub fn values_dim(&self) -> usize {
        self.value_heads * self.value_dim
    }

    /// Channels of the convolution: queries, keys and values.
    pub fn channels(&self) -> usize {
        2 * self.keys_dim() + self.values_dim()
    }

    /// Values of the state behind the inputs of the convolution, `[value_heads, key_dim,
    /// value_dim]`.
    pub fn matrix_values(&self) -> usize {
        self.values_dim() * self.key_dim
    }

    /// The key head that a value head reads.
    pub(crate) fn key_head(&self, value_head: usize) -> usize {
        if self.is_grouped {
            value_head / (self.value_heads / self.key_heads)
        } else {
            value_head % self.key_heads
        }
    }

    /// Reads the sizes, but for the number of taps.
    pub(super) fn read(keys: &Keys<'_>, taps: usize, is_grouped: bool) -> Result<Self> {
        const VALUE_HEADS: &str = "ssm.time_step_rank";
        const VALUES: &str = "ssm.inner_size";
        let key_heads = keys.require_count("ssm.group_count", 1..=MAX_WIDTH)?;
        let value_heads = keys.require_count(VALUE_HEADS, 1..=MAX_WIDTH)?;
        if !value_heads.is_multiple_of(key_heads) {
            let expected = format!("a multiple of the {key_heads} heads of keys");
            return Err(keys.invalid(VALUE_HEADS, value_heads, expected));
        }
        let values_dim = keys.require_count(VALUES, 1..=MAX_WIDTH)?;
        if !values_dim.is_multiple_of(value_heads) {
            return Err(keys.invalid(VALUES, values_dim, format!("a multiple of the {value_heads} heads")));
        }
        let key_dim = keys.require_count("ssm.state_size", 1..=MAX_KEY_DIM)?;
        let value_dim = values_dim / value_heads;
        Ok(Self { key_heads, value_heads, key_dim, value_dim, taps, is_grouped })
    }
}
