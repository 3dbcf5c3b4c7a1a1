//! Sampling parameters and their validation.

use std::collections::BTreeMap;

use ruvllm_text::TokenId;

use crate::error::{Error, Result};
use crate::setters::setters;

/// Sampling parameters.
///
/// Every field has a value that disables its step; [`SamplingParams::greedy`] disables all. For the
/// order of the steps see [`Sampler`](crate::Sampler).
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct SamplingParams {
    /// Sampling temperature; 0 = greedy. Default 0.8.
    pub temperature: f32,
    /// Keeps the `top_k` most likely tokens; 0 = off. Default 40.
    pub top_k: usize,
    /// Keeps the smallest set of most likely tokens whose probabilities sum to `top_p` (nucleus
    /// sampling); 1 = off. Default 0.95.
    pub top_p: f32,
    /// Drops tokens less likely than `min_p` times the most likely one; 0 = off. Default 0.05.
    pub min_p: f32,
    /// Locally typical sampling: keeps the tokens whose information is nearest to the entropy,
    /// until their probabilities sum to `typical_p`; 1 = off. Default 1.
    pub typical_p: f32,
    /// Repetition penalty: divides positive and multiplies negative logits of recent tokens; 1 =
    /// off. Default 1.
    pub repeat_penalty: f32,
    /// Window of the three penalties: last tokens of prompt and output; 0 = none, `usize::MAX` =
    /// all. Default 64.
    pub repeat_last_n: usize,
    /// Presence penalty: subtracted once from the logit of every recent token; 0 = off. Default 0.
    pub presence_penalty: f32,
    /// Frequency penalty: subtracted from the logit of a recent token once per occurrence; 0 = off.
    /// Default 0.
    pub frequency_penalty: f32,
    /// Logit bias of single tokens, added; `-inf` forbids a token. Default empty.
    pub logit_bias: BTreeMap<TokenId, f32>,
    /// Sampling seed; `None` = a fresh one per request, reported in the completion.
    pub seed: Option<u64>,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self { temperature: 0.8, top_k: 40, top_p: 0.95, min_p: 0.05, ..Self::greedy() }
    }
}

impl SamplingParams {
    /// Greedy sampling: the most likely token, ties to the lowest id, without filters, penalties
    /// and bias.
    pub fn greedy() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            typical_p: 1.0,
            repeat_penalty: 1.0,
            repeat_last_n: 64,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: BTreeMap::new(),
            seed: None,
        }
    }

    /// Checks every field against its range.
    ///
    /// # Errors
    /// [`Error::SamplingParameter`] names the first field that is NaN or out of range, its value
    /// and the range.
    pub fn validate(&self) -> Result<()> {
        let check = |name, value: f32, valid: bool, expected| {
            if valid { Ok(()) } else { Err(Error::SamplingParameter { name, value, expected }) }
        };
        let unit = |value: f32| (0.0..=1.0).contains(&value);
        let finite = "a finite number";
        let share = "a number from 0 to 1";
        check(
            "temperature",
            self.temperature,
            self.temperature.is_finite() && self.temperature >= 0.0,
            "a finite number of at least 0",
        )?;
        check("top_p", self.top_p, unit(self.top_p), share)?;
        check("min_p", self.min_p, unit(self.min_p), share)?;
        check("typical_p", self.typical_p, unit(self.typical_p), share)?;
        check(
            "repeat_penalty",
            self.repeat_penalty,
            self.repeat_penalty.is_finite() && self.repeat_penalty > 0.0,
            "a finite number above 0",
        )?;
        check("presence_penalty", self.presence_penalty, self.presence_penalty.is_finite(), finite)?;
        check("frequency_penalty", self.frequency_penalty, self.frequency_penalty.is_finite(), finite)?;
        for &bias in self.logit_bias.values() {
            check("logit_bias", bias, bias < f32::INFINITY, "a finite number or -inf")?;
        }
        Ok(())
    }
}

setters! {
    SamplingParams {
        set with_temperature(temperature: f32);
        set with_top_k(top_k: usize);
        set with_top_p(top_p: f32);
        set with_min_p(min_p: f32);
        set with_typical_p(typical_p: f32);
        set with_repeat_penalty(repeat_penalty: f32);
        set with_repeat_last_n(repeat_last_n: usize);
        set with_presence_penalty(presence_penalty: f32);
        set with_frequency_penalty(frequency_penalty: f32);
        set with_logit_bias(logit_bias: BTreeMap<TokenId, f32>);
        some with_seed(seed: u64);
    }
}
