//! Latent attention as data.

use super::Sizes;
use crate::config::keys::{Keys, Limits, Real};
use crate::error::Result;

/// Largest width, and number of heads, that a file may name.
const MAX_WIDTH: usize = 1 << 20;

/// Key of the `m` of scores that long contexts multiply by `(0.1 m ln(factor) + 1)^2`, as a tenth
/// of it.
const SCORE_MULTIPLIER: &str = "rope.scaling.yarn_log_multiplier";

/// Values of that key; published models have 0.0707 to 0.1.
const SCORE_MULTIPLIERS: Limits = Limits { least: 0.0, most: 10.0 };

/// Latent attention (MLA): a token's keys and values in all heads are projections of one latent and
/// one rotated key, and only these two are cached, as one head. Queries are projected into the
/// space of the latent, and what attention finds there to the values of each head, so that keys and
/// values are never made (*absorbed*). Source: DeepSeek-V2, arXiv 2405.04434.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LatentAttention {
    /// Width of the latent that queries are projected from; `None`: from the residual stream.
    pub query_rank: Option<usize>,
    /// Width of the latent of keys and values.
    pub rank: usize,
    /// Dimensions of a head's query that are not rotated.
    pub still_dim: usize,
    /// Dimensions of a head's query that are rotated; those of the key are one for all heads.
    pub rotary_dim: usize,
    /// Width of a head's value.
    pub value_dim: usize,
}

impl LatentAttention {
    /// Width of a head's query before it is projected into the space of the latent.
    pub fn query_dim(&self) -> usize {
        self.still_dim + self.rotary_dim
    }

    /// Reads the widths.
    pub(super) fn read(keys: &Keys<'_>, sizes: &Sizes) -> Result<Self> {
        const HEADS: &str = "attention.head_count_kv";
        const QUERY: &str = "attention.key_length_mla";
        const CACHED: &str = "attention.key_length";
        if let Some(heads) = keys.count(HEADS, 0..=MAX_WIDTH)?.filter(|&heads| heads != 1) {
            let expected = "1: in older files the keys and values of each head are one tensor; convert the \
                            model again";
            return Err(keys.invalid(HEADS, heads, expected));
        }
        let rank = keys.require_count("attention.kv_lora_rank", 1..=MAX_WIDTH)?;
        let rotary_dim = keys.require_count("rope.dimension_count", 2..=MAX_WIDTH)?;
        if sizes.head_dim != rank + rotary_dim {
            let expected = format!("{}, the latent and the rotated key", rank + rotary_dim);
            return Err(keys.invalid(CACHED, sizes.head_dim, expected));
        }
        let query_dim = keys.require_count(QUERY, 1..=MAX_WIDTH / sizes.n_heads.max(1))?;
        if query_dim <= rotary_dim {
            let expected = format!("more than the {rotary_dim} rotated dimensions");
            return Err(keys.invalid(QUERY, query_dim, expected));
        }
        let most = MAX_WIDTH / sizes.n_heads.max(1);
        Ok(Self {
            query_rank: keys.count("attention.q_lora_rank", 0..=MAX_WIDTH)?.filter(|&rank| rank > 0),
            rank,
            still_dim: query_dim - rotary_dim,
            rotary_dim,
            value_dim: keys.require_count("attention.value_length_mla", 1..=most)?,
        })
    }

    /// Factor of query-key products. Long contexts make it larger, where other families multiply
    /// cosines and sines.
    pub(super) fn scale(&self, keys: &Keys<'_>) -> Result<f32> {
        let multiplier = keys.real(SCORE_MULTIPLIER, Real::Within(SCORE_MULTIPLIERS))?.unwrap_or(0.0);
        let is_yarn = keys.text("rope.scaling.type")? == Some("yarn");
        let factor = match is_yarn {
            true => keys.real("rope.scaling.factor", Real::NotNegative)?.unwrap_or(1.0).max(1.0),
            false => 1.0,
        };
        let growth = f64::from(multiplier) * f64::from(factor).ln() + 1.0;
        Ok((growth * growth / (self.query_dim() as f64).sqrt()) as f32)
    }
}
