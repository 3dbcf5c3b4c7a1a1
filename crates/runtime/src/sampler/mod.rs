//! Sampling: penalties, logit bias, filters, temperature and the random draw.

mod dry;
mod filter;
mod history;
mod logprobs;
mod mirostat;
mod order;
mod params;
mod rng;
mod temperature;
#[cfg(test)]
mod tests;

use ruvllm_kernels::Kernels;
use ruvllm_text::TokenId;

use self::dry::Dry;
pub use self::dry::DryBreakers;
use self::filter::Candidate;
use self::history::History;
pub(crate) use self::logprobs::compute as compute_logprobs;
pub use self::logprobs::{Logprobs, TokenLogprob};
use self::mirostat::Mirostat;
pub use self::order::{SamplerOrder, SamplerStep};
pub use self::params::SamplingParams;
pub(crate) use self::rng::uniform;
use crate::backend::batch::TokenLogit;
use crate::error::{Error, Result};

/// Samples the next tokens of one sequence.
///
/// # Order of the steps
/// [`SamplingParams::samplers`] gives the steps and their order; the default is
/// 1. repetition, frequency and presence penalty over the last `repeat_last_n` tokens;
/// 2. DRY penalty;
/// 3. top-nσ; 4. top-k; 5. typical; 6. top-p; 7. min-p; 8. XTC, each on the renormalized
///    probabilities of the candidates left;
/// 9. temperature, fixed or dynamic.
///
/// Fixed are: the logit bias, after the penalties at the beginning of the order and before every
/// other step; the random draw, last; greedy sampling at temperature 0 (all penalties of the order,
/// logit bias, then the largest logit, ties to the lowest id; no other step has an effect);
/// mirostat, which takes the place of the filters (3 to 8) and comes after the temperature.
///
/// Filters come before the temperature, as in llama.cpp; libraries that apply a temperature above 1
/// first keep more tokens for the same `top_p`.
///
/// # Differences from llama.cpp
/// - llama.cpp adds the logit bias before the penalties.
/// - At temperature 0 llama.cpp still runs XTC, which can exclude the largest logit, and a dynamic
///   temperature range; here temperature 0 is always greedy, also if the order has no
///   `temperature`.
/// - With mirostat llama.cpp leaves out the penalties and the dynamic temperature range; here they
///   apply. Mirostat version 1 is not implemented.
/// - Tokens that top-nσ excludes leave the list; in llama.cpp they stay in it with probability 0
///   and count in the size of the list, by which the dynamic temperature divides the entropy.
/// - Sequence breakers of DRY: see [`DryBreakers`].
/// - Each step occurs at most once in an order.
/// - Random numbers differ, and with them the tokens of a seed.
///
/// # Numerics
/// Logits are f32, probabilities f64. A NaN logit counts as `-inf` (impossible), `+inf` as
/// `f32::MAX`. The draw and XTC's choice are pure functions of seed and position, independent of
/// other sequences in the batch. Penalties depend on the accepted tokens alone, mirostat's
/// [state](Self::state) on the sampled tokens and their logits.
///
/// Sampling makes no heap allocation: buffers have their full size from the start, except those of
/// DRY, whose size doubles as the sequence outgrows them ([`reserve`](Self::reserve)).
#[derive(Debug, Clone)]
pub struct Sampler {
    kernels: Kernels,
    params: SamplingParams,
    /// Steps that have an effect, in their order.
    steps: Vec<SamplerStep>,
    /// Penalties at the beginning of `steps`: they apply to the whole row of logits.
    leading: usize,
    seed: u64,
    history: History,
    dry: Dry,
    mirostat: Option<Mirostat>,
    logits: Vec<f32>,           // [vocab_size] after leading penalties and bias
    best: Vec<TokenId>,         // result of top-k, most likely first
    candidates: Vec<Candidate>, // at most vocab_size
}

/// State of a [`Sampler`] that its parameters and the tokens of its sequence do not determine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SamplerState {
    /// Mirostat's threshold in bits; `None` without mirostat.
    pub mirostat_mu: Option<f64>,
}

fn is_penalty(step: SamplerStep) -> bool {
    matches!(step, SamplerStep::Penalties | SamplerStep::Dry)
}

impl Sampler {
    /// A sampler for logits rows of `vocab_size` values.
    ///
    /// # Errors
    /// [`Error::SamplingParameter`] for a value out of range, [`Error::LogitBiasToken`] for a bias
    /// on an id outside the vocabulary.
    pub fn new(kernels: Kernels, params: &SamplingParams, vocab_size: usize) -> Result<Self> {
        params.validate()?;
        if let Some((&token, _)) = params.logit_bias.iter().find(|&(&token, _)| token as usize >= vocab_size)
        {
            return Err(Error::LogitBiasToken { token, vocab_size });
        }
        let is_greedy = params.temperature == 0.0;
        let mut steps = params.active_steps(vocab_size);
        if is_greedy {
            steps.retain(|&step| is_penalty(step));
        }
        let leading = steps.iter().take_while(|&&step| is_penalty(step)).count();
        // Top-k directly on the row of logits: no other candidates are collected.
        let filters = &steps[leading..];
        let skipped = usize::from(Self::begins_with_fixed_temperature(params, filters));
        let selects = filters.get(skipped) == Some(&SamplerStep::TopK);
        let candidates = match (is_greedy, selects) {
            (true, _) => 0,
            (false, true) => params.top_k,
            (false, false) => vocab_size,
        };
        Ok(Self {
            kernels,
            leading,
            seed: params.seed.unwrap_or_else(rng::fresh_seed),
            history: History::new(params, vocab_size, !steps.contains(&SamplerStep::Penalties)),
            dry: Dry::new(params, vocab_size, !steps.contains(&SamplerStep::Dry)),
            mirostat: Mirostat::new(params),
            logits: vec![0.0; vocab_size],
            // The kernel collects up to twice as many tokens as it keeps.
            best: Vec::with_capacity(if selects { vocab_size.min(2 * params.top_k) } else { 0 }),
            candidates: Vec::with_capacity(candidates),
            steps,
            params: params.clone(),
        })
    }

    /// True if the first step is a temperature that needs no candidates.
    fn begins_with_fixed_temperature(params: &SamplingParams, steps: &[SamplerStep]) -> bool {
        steps.first() == Some(&SamplerStep::Temperature) && params.dynatemp_range == 0.0
    }

    /// Sampling seed: of the parameters, or a fresh one of this sampler.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// True if it takes the largest logit, the lowest id of equals, whatever the tokens before.
    pub(crate) fn is_argmax(&self) -> bool {
        // At temperature 0 the steps are penalties.
        self.params.temperature == 0.0 && self.steps.is_empty() && self.params.logit_bias.is_empty()
    }

    /// Number of the largest logits that it samples from, if it reads no others
    /// ([`sample_largest`](Self::sample_largest)).
    pub(crate) fn largest(&self) -> Option<usize> {
        let rest = &self.steps[self.leading..];
        let skipped = usize::from(Self::begins_with_fixed_temperature(&self.params, rest));
        let selects = self.params.temperature > 0.0 && rest.get(skipped) == Some(&SamplerStep::TopK);
        (selects && self.leading == 0 && self.params.logit_bias.is_empty()).then_some(self.params.top_k)
    }

    /// Kernels that it samples with.
    pub(crate) fn kernels(&self) -> Kernels {
        self.kernels
    }

    /// Reserves memory for a sequence of up to `tokens` tokens: only the DRY penalty needs any. No
    /// call up to that length allocates then.
    pub fn reserve(&mut self, tokens: usize) {
        self.dry.reserve(tokens);
    }

    /// Adds the next token of the sequence, prompt or output, to the penalty windows. Mirostat
    /// learns from it if [`sample`](Self::sample) returned it last.
    pub fn accept(&mut self, token: TokenId) {
        self.history.push(token);
        self.dry.push(token);
        if let Some(mirostat) = &mut self.mirostat {
            mirostat.accept(token);
        }
    }

    /// State after the tokens accepted so far.
    pub fn state(&self) -> SamplerState {
        SamplerState { mirostat_mu: self.mirostat.as_ref().map(Mirostat::mu) }
    }

    /// Takes the place of the sampler of a sequence with these tokens, prompt and output, and this
    /// state: another process's, or this one's before tokens that the sequence dropped.
    ///
    /// # Errors
    /// [`Error::SamplingParameter`] if the state holds no finite number; the sampler is unchanged
    /// then.
    pub fn restore(&mut self, tokens: &[TokenId], state: SamplerState) -> Result<()> {
        let mu = state.mirostat_mu;
        if let Some(mu) = mu.filter(|mu| !mu.is_finite()) {
            let expected = "a finite number";
            return Err(Error::SamplingParameter { name: "mirostat_mu", value: mu as f32, expected });
        }
        self.history.clear();
        self.dry.clear();
        for &token in tokens {
            self.history.push(token);
            self.dry.push(token);
        }
        if let Some(mirostat) = &mut self.mirostat {
            mirostat.set_mu(mu.unwrap_or_else(|| mirostat.initial_mu()));
        }
        Ok(())
    }

    /// Samples the next token from `logits`, `[vocab_size]`; `position` is its index in the
    /// sequence, from 0. Call [`accept`](Self::accept) with the token that is appended.
    ///
    /// # Errors
    /// [`Error::NoCandidate`] if every logit is NaN or `-inf`.
    ///
    /// # Panics
    /// If `logits` has not `vocab_size` values.
    pub fn sample(&mut self, logits: &[f32], position: usize) -> Result<TokenId> {
        self.adjust(logits);
        if self.params.temperature == 0.0 {
            let best =
                self.kernels.argmax(&self.logits).filter(|&best| self.logits[best] > f32::NEG_INFINITY);
            return best.map(|best| best as TokenId).ok_or(Error::NoCandidate);
        }
        self.draw(position, None)
    }

    /// As [`sample`](Self::sample), from [`largest`](Self::largest) or more of the largest logits,
    /// in descending order, equal ones by id.
    ///
    /// # Errors
    /// As [`sample`](Self::sample).
    pub(crate) fn sample_largest(&mut self, logits: &[TokenLogit], position: usize) -> Result<TokenId> {
        self.draw(position, Some(logits))
    }

    fn draw(&mut self, position: usize, largest: Option<&[TokenLogit]>) -> Result<TokenId> {
        let total = self.distribution(position, largest);
        let mut left = rng::uniform(self.seed, position as u64) * total;
        // If rounding leaves a rest after the last weight, the last token with a weight is chosen.
        let mut chosen = None;
        for candidate in self.candidates.iter().filter(|c| c.weight > 0.0) {
            chosen = Some(candidate);
            left -= candidate.weight;
            if left < 0.0 {
                break;
            }
        }
        let chosen = chosen.ok_or(Error::NoCandidate)?;
        if let Some(mirostat) = &mut self.mirostat {
            mirostat.note(chosen.id, chosen.weight / total);
        }
        Ok(chosen.id)
    }

    /// Log-probabilities of `token` and of the `top_n` most likely tokens under the model: natural
    /// logarithm of the softmax of `logits`, `[vocab_size]`, in f64. Penalties, bias, filters and
    /// temperature have no effect on them. NaN counts as `-inf`, `+inf` as `f32::MAX`.
    ///
    /// Takes time linear in the vocabulary. [`logprobs_into`](Self::logprobs_into) reuses memory.
    ///
    /// # Errors
    /// [`Error::NoCandidate`] if every logit is NaN or `-inf`.
    pub fn logprobs(&mut self, logits: &[f32], token: TokenId, top_n: usize) -> Result<Logprobs> {
        let mut out = Logprobs::default();
        self.logprobs_into(logits, token, top_n, &mut out)?;
        Ok(out)
    }

    /// As [`logprobs`](Self::logprobs), but overwrites `out` and keeps its memory.
    ///
    /// # Errors
    /// As [`logprobs`](Self::logprobs); the content of `out` is unspecified then.
    pub fn logprobs_into(
        &mut self,
        logits: &[f32],
        token: TokenId,
        top_n: usize,
        out: &mut Logprobs,
    ) -> Result<()> {
        logprobs::compute(&self.kernels, logits, token, top_n, &mut self.best, out)
    }

    /// Copies the logits and applies penalties and logit bias to the copy.
    fn adjust(&mut self, logits: &[f32]) {
        assert_eq!(logits.len(), self.logits.len(), "a logits row must be as long as the vocabulary");
        let Self { params, steps, leading, history, dry, logits: row, .. } = self;
        row.copy_from_slice(logits);
        for step in &steps[..*leading] {
            if *step == SamplerStep::Penalties {
                history.penalize(row);
            } else {
                dry.find();
                for &token in dry.found() {
                    row[token as usize] -= dry.penalty(token);
                }
            }
        }
        for (&token, &bias) in &params.logit_bias {
            row[token as usize] += bias;
        }
    }

    /// Collects the candidates and applies the steps; returns the sum of their weights. The list is
    /// empty only if no token is possible.
    fn distribution(&mut self, position: usize, largest: Option<&[TokenLogit]>) -> f64 {
        let temperature = self.filter(position, largest);
        let mut total = filter::weigh(&mut self.candidates, temperature);
        if let Some(mirostat) = &self.mirostat {
            mirostat.truncate(&mut self.candidates, total);
            total = self.candidates.iter().map(|c| c.weight).sum();
        }
        total
    }

    /// Collects the candidates and applies the steps after the leading penalties; returns the
    /// temperature that the candidates' logits are still to be divided by.
    fn filter(&mut self, position: usize, largest: Option<&[TokenLogit]>) -> f64 {
        let Self { kernels, params, steps, leading, seed, history, dry, logits, best, candidates, .. } = self;
        let mut temperature = 1.0;
        candidates.clear();
        let mut rest = steps[*leading..].iter();
        if Self::begins_with_fixed_temperature(params, rest.as_slice()) {
            rest.next();
            temperature = f64::from(params.temperature);
        }
        // The first filter may shorten the vocabulary before candidates are collected.
        match rest.clone().next() {
            Some(SamplerStep::TopK) => {
                rest.next();
                if let Some(largest) = largest {
                    let found = largest.iter().take(params.top_k);
                    candidates.extend(found.filter_map(|found| Candidate::of(found.token, found.logit)));
                } else {
                    kernels.top_k(logits, params.top_k, best);
                    candidates.extend(best.iter().filter_map(|&id| Candidate::of(id, logits[id as usize])));
                }
            }
            Some(SamplerStep::TopNSigma) => {
                rest.next();
                // Without a largest logit no token is possible.
                if let Some(best) = kernels.argmax(logits) {
                    filter::collect_top_n_sigma(logits, logits[best], params.top_n_sigma, candidates);
                }
            }
            _ => {
                candidates.extend(logits.iter().zip(0..).filter_map(|(&x, id)| Candidate::of(id, x)));
            }
        }
        for step in rest {
            match step {
                SamplerStep::Penalties => {
                    filter::adjust(candidates, &mut temperature, |c| history.penalize_token(c.id, c.logit));
                }
                SamplerStep::Dry => {
                    dry.find();
                    filter::adjust(candidates, &mut temperature, |c| c.logit - dry.penalty(c.id));
                }
                SamplerStep::TopNSigma => filter::top_n_sigma(candidates, params.top_n_sigma),
                SamplerStep::TopK => filter::top_k(candidates, params.top_k),
                SamplerStep::TypicalP => filter::typical_p(candidates, params.typical_p, temperature),
                SamplerStep::TopP => filter::top_p(candidates, params.top_p, temperature),
                SamplerStep::MinP => filter::min_p(candidates, params.min_p, temperature),
                SamplerStep::Xtc => {
                    if rng::uniform_for_xtc(*seed, position as u64) < f64::from(params.xtc_probability) {
                        filter::xtc(candidates, params.xtc_threshold, temperature);
                    }
                }
                SamplerStep::Temperature => temperature = temperature::temperature(params, candidates),
            }
        }
        temperature
    }
}
