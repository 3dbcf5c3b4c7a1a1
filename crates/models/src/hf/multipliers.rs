//! Factors of Falcon-H1 (`*_multiplier`), which GGUF files have in their weights: products are
//! linear.

use std::ops::Range;

use super::family::{Part, Shape};
use super::fields::Fields;
use super::sizes::{Multipliers, Sizes};
use crate::config::keys::Limits;
use crate::error::Result;

/// Factors that a file may name; published models have 0.01 to 40.
const FACTORS: Limits = Limits { least: 1e-6, most: 1e6 };

impl Multipliers {
    /// Reads them; 1 where they are absent.
    pub(super) fn read(config: &Fields<'_>) -> Result<Self> {
        let factor = |key: &str| -> Result<f32> { Ok(config.within(key, FACTORS)?.unwrap_or(1.0) as f32) };
        let [gate, down] = read_list(config, "mlp_multipliers")?;
        Ok(Self {
            embedding: factor("embedding_multiplier")?,
            logits: factor("lm_head_multiplier")?,
            tied_logits: None,
            attention_input: factor("attention_in_multiplier")?,
            attention_output: factor("attention_out_multiplier")?,
            keys: factor("key_multiplier")?,
            gate,
            down,
            mamba_input: factor("ssm_in_multiplier")?,
            mamba_output: factor("ssm_out_multiplier")?,
            mamba_parts: read_list(config, "ssm_multipliers")?,
        })
    }

    /// Sets the factor of the logits that the embedding makes, if it does.
    pub(super) fn tie(&mut self, is_tied: Option<bool>) {
        self.tied_logits = (is_tied == Some(true)).then_some(self.logits);
    }

    /// Rows of a part, and their factor.
    pub(super) fn of_rows(&self, part: &Part, sizes: &Sizes) -> Vec<(Range<usize>, f32)> {
        let factor = match part.shape {
            Shape::MambaInput => return self.of_mamba(sizes),
            Shape::Embedding => self.embedding,
            Shape::Query | Shape::Value => self.attention_input,
            Shape::Key => self.keys * self.attention_input,
            Shape::AttentionOutput => self.attention_output,
            Shape::StateOutput => self.mamba_output,
            Shape::Up if part.gguf == "ffn_gate" => self.gate,
            Shape::Down => self.down,
            _ => 1.0,
        };
        vec![(0..usize::MAX, factor)]
    }

    fn of_mamba(&self, sizes: &Sizes) -> Vec<(Range<usize>, f32)> {
        let state = &sizes.recurrent;
        let rows = [state.values(), state.values(), state.keys(), state.keys(), state.value_heads];
        let mut first = 0;
        let ranges = rows.map(|rows| {
            first += rows;
            first - rows..first
        });
        let factors = self.mamba_parts.map(|factor| factor * self.mamba_input);
        ranges.into_iter().zip(factors).collect()
    }
}

/// A list of factors; all 1 where it is absent.
fn read_list<const N: usize>(config: &Fields<'_>, key: &str) -> Result<[f32; N]> {
    let Some(listed) = config.list(key)? else { return Ok([1.0; N]) };
    let factors: Option<Vec<f32>> = listed
        .iter()
        .map(|value| Some(value.as_f64()? as f32).filter(|&factor| FACTORS.allows(factor)))
        .collect();
    let factors = factors.and_then(|factors| <[f32; N]>::try_from(factors).ok());
    factors.ok_or_else(|| config.invalid(key, format!("{N} numbers, each {}", FACTORS.describe())))
}
