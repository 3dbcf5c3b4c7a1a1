//! Sampling: penalties, logit bias, filters, temperature and the random draw.

mod filter;
mod history;
mod params;
mod rng;
#[cfg(test)]
mod tests;

use ruvllm_kernels::Kernels;
use ruvllm_text::TokenId;

use self::filter::Candidate;
use self::history::History;
pub use self::params::SamplingParams;
pub(crate) use self::rng::uniform;
use crate::error::{Error, Result};

/// Samples the next tokens of one sequence.
///
/// # Order of the steps
/// 1. repetition, frequency and presence penalty over the last `repeat_last_n` tokens;
/// 2. logit bias;
/// 3. at temperature 0 (greedy): the largest logit, ties to the lowest id; no further steps;
/// 4. top-k; 5. typical; 6. top-p; 7. min-p, each on the renormalized probabilities of the
///    candidates left;
/// 8. temperature; 9. the random draw.
///
/// Filters come before the temperature, as in llama.cpp; libraries that apply a temperature above 1
/// first keep more tokens for the same `top_p`.
///
/// # Numerics
/// Logits are f32, probabilities f64. A NaN logit counts as `-inf` (impossible), `+inf` as
/// `f32::MAX`. The draw is a pure function of seed and position, independent of other sequences in
/// the batch.
///
/// Sampling makes no heap allocation: all buffers have their full size from the start.
#[derive(Debug, Clone)]
pub struct Sampler {
    kernels: Kernels,
    params: SamplingParams,
    seed: u64,
    history: History,
    logits: Vec<f32>,           // [vocab_size] after penalties and bias
    best: Vec<TokenId>,         // result of top-k, most likely first
    candidates: Vec<Candidate>, // at most vocab_size
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
        let selects = params.temperature > 0.0 && (1..vocab_size).contains(&params.top_k);
        let candidates = if selects { params.top_k } else { vocab_size };
        Ok(Self {
            kernels,
            seed: params.seed.unwrap_or_else(rng::fresh_seed),
            history: History::new(params, vocab_size),
            logits: vec![0.0; vocab_size],
            // The kernel collects up to twice as many tokens as it keeps.
            best: Vec::with_capacity(if selects { vocab_size.min(2 * params.top_k) } else { 0 }),
            candidates: Vec::with_capacity(if params.temperature > 0.0 { candidates } else { 0 }),
            params: params.clone(),
        })
    }

    /// Sampling seed: of the parameters, or a fresh one of this sampler.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Adds a token of the sequence, prompt or output, to the penalty window.
    pub fn accept(&mut self, token: TokenId) {
        self.history.push(token);
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
        self.filter();
        let total = filter::weigh(&mut self.candidates, f64::from(self.params.temperature));
        let mut left = rng::uniform(self.seed, position as u64) * total;
        // If rounding leaves a rest after the last weight, the last token with a weight is chosen.
        let mut chosen = None;
        for candidate in self.candidates.iter().filter(|c| c.weight > 0.0) {
            chosen = Some(candidate.id);
            left -= candidate.weight;
            if left < 0.0 {
                break;
            }
        }
        chosen.ok_or(Error::NoCandidate)
    }

    /// Copies the logits and applies penalties and logit bias to the copy.
    fn adjust(&mut self, logits: &[f32]) {
        assert_eq!(logits.len(), self.logits.len(), "a logits row must be as long as the vocabulary");
        self.logits.copy_from_slice(logits);
        if !self.history.is_idle() {
            self.history.penalize(&mut self.logits);
        }
        for (&token, &bias) in &self.params.logit_bias {
            self.logits[token as usize] += bias;
        }
    }

    /// Collects the candidates and applies the filters; the list is empty only if no token is
    /// possible.
    fn filter(&mut self) {
        let Self { logits, best, candidates, params, .. } = self;
        let possible = |id: TokenId| {
            let logit = logits[id as usize];
            (logit > f32::NEG_INFINITY).then(|| Candidate { id, logit: logit.min(f32::MAX), weight: 0.0 })
        };
        candidates.clear();
        if params.top_k > 0 && params.top_k < logits.len() {
            self.kernels.top_k(logits, params.top_k, best);
            candidates.extend(best.iter().filter_map(|&id| possible(id)));
        } else {
            candidates.extend((0..logits.len() as TokenId).filter_map(possible));
        }
        filter::typical_p(candidates, params.typical_p);
        filter::top_p(candidates, params.top_p);
        filter::min_p(candidates, params.min_p);
    }
}
