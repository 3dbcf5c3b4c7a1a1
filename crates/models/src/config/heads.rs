//! Heads of attention: their number and widths, which may differ between layers.

use super::keys::Keys;
use super::{MAX_WIDTH, ModelConfig};
use crate::error::Result;

const MAX_HEAD_DIM: usize = 1 << 12;

/// Heads of one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Heads {
    /// Number of query heads.
    pub n_heads: usize,
    /// Number of key and value heads; divides `n_heads`.
    pub n_kv_heads: usize,
    /// Width of one head; even.
    pub head_dim: usize,
}

impl Heads {
    /// Width of all query heads together.
    pub fn query_dim(self) -> usize {
        self.n_heads * self.head_dim
    }

    /// Width of all key (or value) heads together.
    pub fn kv_dim(self) -> usize {
        self.n_kv_heads * self.head_dim
    }
}

impl ModelConfig {
    /// Heads of a layer.
    pub fn heads(&self, layer: usize) -> Heads {
        let n_heads = self.n_heads;
        match self.decoder.layers.local_heads_of(layer) {
            Some(local) => Heads { n_heads, n_kv_heads: local.n_kv_heads, head_dim: local.head_dim },
            None => Heads { n_heads, n_kv_heads: self.n_kv_heads, head_dim: self.head_dim },
        }
    }

    /// Largest widths of all query heads and of all key heads together.
    pub(crate) fn widest_heads(&self) -> (usize, usize) {
        let local = self.decoder.layers.local_heads.as_ref();
        let query = local.map_or(0, |local| self.n_heads * local.head_dim);
        let kv = local.map_or(0, |local| local.n_kv_heads * local.head_dim);
        (query.max(self.query_dim()), kv.max(self.kv_dim()))
    }
}

/// Heads of keys and values, `[n_layers]`; 0 for a layer without.
pub(super) fn read_kv_heads(keys: &Keys<'_>, n_layers: usize, n_heads: usize) -> Result<Vec<usize>> {
    const KEY: &str = "attention.head_count_kv";
    match keys.counts(KEY, n_layers)? {
        Some(listed) => {
            Ok(listed.into_iter().map(|heads| usize::try_from(heads).unwrap_or(usize::MAX)).collect())
        }
        None => Ok(vec![keys.count(KEY, 1..=MAX_WIDTH)?.unwrap_or(n_heads); n_layers]),
    }
}

/// Width of the heads of most layers.
pub(crate) fn read_head_dim(keys: &Keys<'_>, model_dim: usize, n_heads: usize) -> Result<usize> {
    let head_dim = match keys.count("attention.key_length", 1..=MAX_HEAD_DIM)? {
        Some(head_dim) => head_dim,
        None if model_dim.is_multiple_of(n_heads) && (2..=MAX_HEAD_DIM).contains(&(model_dim / n_heads)) => {
            model_dim / n_heads
        }
        None => {
            let expected = format!("a divisor of the model width {model_dim}");
            return Err(keys.invalid("attention.head_count", n_heads, expected));
        }
    };
    if head_dim % 2 != 0 {
        return Err(keys.invalid("attention.key_length", head_dim, "an even number"));
    }
    if n_heads.saturating_mul(head_dim) > MAX_WIDTH {
        let expected = format!("at most {} for {n_heads} heads", MAX_WIDTH / n_heads);
        return Err(keys.invalid("attention.key_length", head_dim, expected));
    }
    // Latent attention: values are the part of keys that is not rotated.
    let values = keys.count("attention.kv_lora_rank", 1..=head_dim)?.unwrap_or(head_dim);
    match keys.count("attention.value_length", 1..=MAX_HEAD_DIM)? {
        Some(value_dim) if value_dim != values => {
            let expected = format!("{values}, that of the keys");
            Err(keys.invalid("attention.value_length", value_dim, expected))
        }
        _ => Ok(head_dim),
    }
}
