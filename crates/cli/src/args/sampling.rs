//! Flags of the sampler.

use clap::Args;
use ruvllm::{DryBreakers, SamplerOrder, SamplingParams, Tokenizer};

use super::values::{self, OrDefault};
use crate::error::Result;

/// Options of the sampler.
#[derive(Debug, Args)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct SamplingArgs {
    /// Sampling temperature; 0 = greedy
    #[arg(long, visible_alias = "temp", value_name = "T", default_value = "0.8", value_parser = values::non_negative)]
    pub(crate) temperature: f32,

    /// Top-k: keep the K most likely tokens; 0 = off
    #[arg(long, value_name = "K", default_value = "40", value_parser = values::count)]
    top_k: usize,

    /// Top-p: keep the most likely tokens with total probability P; 1 = off
    #[arg(long, value_name = "P", default_value = "0.95", value_parser = values::fraction)]
    top_p: f32,

    /// Min-p: drop tokens below P times the highest probability; 0 = off
    #[arg(long, value_name = "P", default_value = "0.05", value_parser = values::fraction)]
    min_p: f32,

    /// Locally typical sampling with total probability P; 1 = off
    #[arg(long, value_name = "P", default_value = "1", value_parser = values::fraction)]
    typical_p: f32,

    /// Top-n-sigma: drop tokens over N standard deviations below the highest logit; 0 = off
    #[arg(long, value_name = "N", default_value = "0", value_parser = values::sigmas, allow_negative_numbers = true)]
    top_nsigma: f32,

    /// Repetition penalty on recent tokens; 1 = off
    #[arg(long, value_name = "X", default_value = "1", value_parser = values::above_zero)]
    repeat_penalty: f32,

    /// Number of recent tokens for the penalties; 0 = none
    #[arg(long, value_name = "N", default_value = "64", value_parser = values::count)]
    repeat_last_n: usize,

    /// Presence penalty: subtracted once from the logit of a recent token; 0 = off
    #[arg(long, value_name = "X", default_value = "0", value_parser = values::finite, allow_negative_numbers = true)]
    presence_penalty: f32,

    /// Frequency penalty: subtracted for each occurrence; 0 = off
    #[arg(long, value_name = "X", default_value = "0", value_parser = values::finite, allow_negative_numbers = true)]
    frequency_penalty: f32,

    /// DRY: multiplier of the penalty on continued repetitions; 0 = off
    #[arg(long, value_name = "X", default_value = "0", value_parser = values::non_negative)]
    dry_multiplier: f32,

    /// DRY: factor of the penalty per repeated token
    #[arg(long, value_name = "X", default_value = "1.75", value_parser = values::at_least_one)]
    dry_base: f32,

    /// DRY: shortest repetition that is penalized, in tokens
    #[arg(long, value_name = "N", default_value = "2", value_parser = values::positive)]
    dry_allowed_length: usize,

    /// DRY: number of recent tokens searched for repetitions; -1 = all
    #[arg(long, value_name = "N", default_value = "-1", value_parser = values::recent_or_all,
        allow_negative_numbers = true)]
    dry_penalty_last_n: OrDefault<usize>,

    /// DRY: sequence breaker; repeatable, `none` for none [default: \n : " *]
    #[arg(long, value_name = "TEXT", value_parser = values::breaker, allow_hyphen_values = true)]
    dry_sequence_breaker: Vec<Option<String>>,

    /// XTC: probability of dropping all but the least likely top token; 0 = off
    #[arg(long, value_name = "P", default_value = "0", value_parser = values::fraction)]
    xtc_probability: f32,

    /// XTC: probability that makes a token a top token; above 0.5 = off
    #[arg(long, value_name = "P", default_value = "0.1", value_parser = values::fraction)]
    xtc_threshold: f32,

    /// Mirostat: 2 = version 2, 0 = off
    #[arg(long, value_name = "0|2", default_value = "0", value_parser = values::mirostat)]
    mirostat: u8,

    /// Mirostat: learning rate eta
    #[arg(long, value_name = "X", default_value = "0.1", value_parser = values::non_negative)]
    mirostat_lr: f32,

    /// Mirostat: target surprise tau, in bits per token
    #[arg(long, value_name = "BITS", default_value = "5", value_parser = values::above_zero)]
    mirostat_ent: f32,

    /// Dynamic temperature: range around --temperature, by entropy; 0 = off
    #[arg(long, value_name = "X", default_value = "0", value_parser = values::non_negative)]
    dynatemp_range: f32,

    /// Dynamic temperature: exponent of the normalized entropy
    #[arg(long, value_name = "X", default_value = "1", value_parser = values::non_negative)]
    dynatemp_exp: f32,

    #[arg(
        long,
        value_name = "NAMES",
        help = "Steps in their order, separated by `;`, of penalties, dry, top_n_sigma, top_k, typ_p, top_p, \
                min_p, xtc, temperature; all = these",
        default_value = values::ALL_SAMPLERS,
        value_parser = values::samplers
    )]
    samplers: SamplerOrder,

    /// Logit bias: add VALUE to the logit of token ID, -inf forbids it; repeatable
    #[arg(long, value_name = "ID=VALUE", value_parser = values::logit_bias)]
    logit_bias: Vec<(u32, f32)>,

    /// Random seed [default: -1 = a new one each time]
    #[arg(long, short, value_name = "N", value_parser = values::seed, allow_negative_numbers = true)]
    seed: Option<OrDefault<u64>>,
}

impl SamplingArgs {
    /// The parameters of these flags, without DRY's sequence breakers: those need a tokenizer.
    pub(crate) fn params(&self) -> SamplingParams {
        SamplingParams::default()
            .with_temperature(self.temperature)
            .with_top_k(self.top_k)
            .with_top_p(self.top_p)
            .with_min_p(self.min_p)
            .with_typical_p(self.typical_p)
            .with_repeat_penalty(self.repeat_penalty)
            .with_repeat_last_n(self.repeat_last_n)
            .with_presence_penalty(self.presence_penalty)
            .with_frequency_penalty(self.frequency_penalty)
            .with_top_n_sigma(self.top_nsigma)
            .with_dry_multiplier(self.dry_multiplier)
            .with_dry_base(self.dry_base)
            .with_dry_allowed_length(self.dry_allowed_length)
            .with_dry_penalty_last_n(self.dry_penalty_last_n.0.unwrap_or(usize::MAX))
            .with_xtc_probability(self.xtc_probability)
            .with_xtc_threshold(self.xtc_threshold)
            .with_mirostat(self.mirostat == 2)
            .with_mirostat_eta(self.mirostat_lr)
            .with_mirostat_tau(self.mirostat_ent)
            .with_dynatemp_range(self.dynatemp_range)
            .with_dynatemp_exponent(self.dynatemp_exp)
            .with_samplers(self.samplers.clone())
            .with_logit_bias(self.logit_bias.iter().copied().collect())
            .with_seed(self.seed.and_then(|seed| seed.0))
    }

    /// DRY's sequence breakers.
    pub(crate) fn breakers(&self) -> Vec<String> {
        if self.dry_sequence_breaker.is_empty() {
            return DryBreakers::USUAL.map(str::to_owned).to_vec();
        }
        self.dry_sequence_breaker.iter().flatten().cloned().collect()
    }
}

/// `params` with sequence breakers for the tokens of a model. Without DRY there is nothing to
/// resolve.
///
/// # Errors
/// More breakers than there may be.
pub(crate) fn with_breakers(
    params: SamplingParams,
    breakers: &[String],
    tokenizer: &Tokenizer,
) -> Result<SamplingParams> {
    if params.dry_multiplier == 0.0 {
        return Ok(params);
    }
    Ok(params.with_dry_breakers(DryBreakers::new(tokenizer, breakers)?))
}
