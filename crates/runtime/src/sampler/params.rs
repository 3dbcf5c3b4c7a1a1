//! Sampling parameters and their validation.

use std::collections::BTreeMap;

use ruvllm_text::TokenId;

use super::dry::DryBreakers;
use super::order::{SamplerOrder, SamplerStep};
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
    /// Locally typical sampling. Keeps the tokens whose information is nearest to the entropy,
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
    /// Top-nσ: drops tokens whose logit is more than `top_n_sigma` standard deviations below the
    /// largest one; 0 = off. Default 0.
    pub top_n_sigma: f32,
    /// DRY: penalty on the logit of a token that would extend a repetition of
    /// `dry_allowed_length` tokens; 0 = off. Default 0.
    pub dry_multiplier: f32,
    /// DRY: factor of the penalty per token of the repetition beyond `dry_allowed_length`, at least
    /// 1. Default 1.75.
    pub dry_base: f32,
    /// DRY: length in tokens of the shortest repetition whose extension is penalized, at least 1.
    /// Default 2.
    pub dry_allowed_length: usize,
    /// DRY: window in which repetitions are searched, last tokens of prompt and output; 0 = none,
    /// `usize::MAX` = all. Default all.
    pub dry_penalty_last_n: usize,
    /// DRY: texts that end a repetition. Default none; usual ones are [`DryBreakers::USUAL`].
    pub dry_breakers: DryBreakers,
    /// XTC: probability, from 0 to 1, that the most likely tokens are excluded at a position; 0 =
    /// off. Default 0.
    pub xtc_probability: f32,
    /// XTC: probability from which on a token is one of the most likely, from 0 to 1; above 0.5 =
    /// off, since no two tokens reach it. Default 0.1.
    pub xtc_threshold: f32,
    /// Mirostat 2: replaces all truncating filters by one that keeps the surprise of the output
    /// near `mirostat_tau`. Default false.
    pub mirostat: bool,
    /// Mirostat: target surprise in bits per token, above 0. Default 5.
    pub mirostat_tau: f32,
    /// Mirostat: learning rate of the threshold, in bits per bit of error. Default 0.1.
    pub mirostat_eta: f32,
    /// Dynamic temperature: the temperature is within this range of `temperature`, at least 0, by
    /// the entropy of the candidates; 0 = off. Default 0.
    pub dynatemp_range: f32,
    /// Dynamic temperature: exponent of the normalized entropy, at least 0. Default 1.
    pub dynatemp_exponent: f32,
    /// Steps and their order. Default: all.
    pub samplers: SamplerOrder,
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
            top_n_sigma: 0.0,
            dry_multiplier: 0.0,
            dry_base: 1.75,
            dry_allowed_length: 2,
            dry_penalty_last_n: usize::MAX,
            dry_breakers: DryBreakers::default(),
            xtc_probability: 0.0,
            xtc_threshold: 0.1,
            mirostat: false,
            mirostat_tau: 5.0,
            mirostat_eta: 0.1,
            dynatemp_range: 0.0,
            dynatemp_exponent: 1.0,
            samplers: SamplerOrder::default(),
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
        let any = |x: f32| x.is_finite();
        let not_negative = |x: f32| x.is_finite() && x >= 0.0;
        let positive = |x: f32| x.is_finite() && x > 0.0;
        let unit = |x: f32| (0.0..=1.0).contains(&x);
        let finite = "a finite number";
        let from_zero = "a finite number of at least 0";
        let above_zero = "a finite number above 0";
        let share = "a number from 0 to 1";
        let ranges: [(_, _, &dyn Fn(f32) -> bool, _); 17] = [
            ("temperature", self.temperature, &not_negative, from_zero),
            ("top_p", self.top_p, &unit, share),
            ("min_p", self.min_p, &unit, share),
            ("typical_p", self.typical_p, &unit, share),
            ("repeat_penalty", self.repeat_penalty, &positive, above_zero),
            ("presence_penalty", self.presence_penalty, &any, finite),
            ("frequency_penalty", self.frequency_penalty, &any, finite),
            ("top_n_sigma", self.top_n_sigma, &not_negative, from_zero),
            ("dry_multiplier", self.dry_multiplier, &not_negative, from_zero),
            ("dry_base", self.dry_base, &|x| x.is_finite() && x >= 1.0, "a finite number of at least 1"),
            (
                "dry_allowed_length",
                self.dry_allowed_length as f32,
                &|x| x >= 1.0,
                "a whole number of at least 1",
            ),
            ("xtc_probability", self.xtc_probability, &unit, share),
            ("xtc_threshold", self.xtc_threshold, &unit, share),
            ("mirostat_tau", self.mirostat_tau, &positive, above_zero),
            ("mirostat_eta", self.mirostat_eta, &not_negative, from_zero),
            ("dynatemp_range", self.dynatemp_range, &not_negative, from_zero),
            ("dynatemp_exponent", self.dynatemp_exponent, &not_negative, from_zero),
        ];
        for (name, value, valid, expected) in ranges {
            check(name, value, valid(value), expected)?;
        }
        for &bias in self.logit_bias.values() {
            check("logit_bias", bias, bias < f32::INFINITY, "a finite number or -inf")?;
        }
        Ok(())
    }

    /// Steps that change anything for a vocabulary of this size, in their order. With mirostat the
    /// truncating filters are none of them.
    pub(super) fn active_steps(&self, vocab_size: usize) -> Vec<SamplerStep> {
        let truncates = !self.mirostat;
        let active = |step: &SamplerStep| match step {
            SamplerStep::Penalties => {
                self.repeat_last_n > 0
                    && (self.repeat_penalty != 1.0
                        || self.presence_penalty != 0.0
                        || self.frequency_penalty != 0.0)
            }
            SamplerStep::Dry => self.dry_multiplier > 0.0 && self.dry_penalty_last_n > 0,
            SamplerStep::TopNSigma => truncates && self.top_n_sigma > 0.0,
            SamplerStep::TopK => truncates && (1..vocab_size).contains(&self.top_k),
            SamplerStep::TypicalP => truncates && self.typical_p < 1.0,
            SamplerStep::TopP => truncates && self.top_p < 1.0,
            SamplerStep::MinP => truncates && self.min_p > 0.0,
            SamplerStep::Xtc => truncates && self.xtc_probability > 0.0 && self.xtc_threshold <= 0.5,
            SamplerStep::Temperature => true,
        };
        self.samplers.steps().iter().copied().filter(active).collect()
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
        set with_top_n_sigma(top_n_sigma: f32);
        set with_dry_multiplier(dry_multiplier: f32);
        set with_dry_base(dry_base: f32);
        set with_dry_allowed_length(dry_allowed_length: usize);
        set with_dry_penalty_last_n(dry_penalty_last_n: usize);
        set with_dry_breakers(dry_breakers: DryBreakers);
        set with_xtc_probability(xtc_probability: f32);
        set with_xtc_threshold(xtc_threshold: f32);
        set with_mirostat(mirostat: bool);
        set with_mirostat_tau(mirostat_tau: f32);
        set with_mirostat_eta(mirostat_eta: f32);
        set with_dynatemp_range(dynatemp_range: f32);
        set with_dynatemp_exponent(dynatemp_exponent: f32);
        set with_samplers(samplers: SamplerOrder);
        set with_logit_bias(logit_bias: BTreeMap<TokenId, f32>);
        some with_seed(seed: u64);
    }
}
