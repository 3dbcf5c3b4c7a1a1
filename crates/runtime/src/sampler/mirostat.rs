//! Mirostat 2: truncation whose threshold follows the surprise of the sampled tokens.
//!
//! # Source
//! Basu et al., "Mirostat: A Neural Text Decoding Algorithm that Directly Controls Perplexity",
//! arXiv 2007.14966, in the second form of the authors' reference program: tokens are truncated by
//! their surprise itself, without an estimate of the Zipf exponent.

use ruvllm_text::TokenId;

use super::filter::{Candidate, keep_best};
use super::params::SamplingParams;

/// Controller of one sequence. Surprise is in bits.
#[derive(Debug, Clone)]
pub(super) struct Mirostat {
    tau: f64,
    eta: f64,
    /// Largest surprise of a candidate.
    mu: f64,
    /// Last sampled token with its surprise, until the sequence takes it.
    sampled: Option<(TokenId, f64)>,
}

impl Mirostat {
    /// A controller at its start, or `None` if mirostat is off.
    pub(super) fn new(params: &SamplingParams) -> Option<Self> {
        let (tau, eta) = (f64::from(params.mirostat_tau), f64::from(params.mirostat_eta));
        let start = Self { tau, eta, mu: 2.0 * tau, sampled: None };
        params.mirostat.then_some(start)
    }

    /// Threshold of a sequence without output.
    pub(super) fn initial_mu(&self) -> f64 {
        2.0 * self.tau
    }

    pub(super) fn mu(&self) -> f64 {
        self.mu
    }

    pub(super) fn set_mu(&mut self, mu: f64) {
        self.mu = mu;
        self.sampled = None;
    }

    /// Drops the candidates whose surprise is above the threshold, at most all but the most likely
    /// one. `total` is the sum of the weights.
    pub(super) fn truncate(&self, candidates: &mut Vec<Candidate>, total: f64) {
        let least = total * (-self.mu).exp2();
        if candidates.iter().any(|c| c.weight >= least) {
            candidates.retain(|c| c.weight >= least);
        } else {
            keep_best(candidates);
        }
    }

    /// Notes a sampled token with its probability among the remaining candidates.
    pub(super) fn note(&mut self, token: TokenId, probability: f64) {
        self.sampled = Some((token, -probability.log2()));
    }

    /// Updates the threshold if the sequence's next token is the sampled one. Forced tokens and
    /// those of a prompt have no surprise to learn from.
    pub(super) fn accept(&mut self, token: TokenId) {
        if let Some((_, surprise)) = self.sampled.take().filter(|(sampled, _)| *sampled == token) {
            self.mu -= self.eta * (surprise - self.tau);
        }
    }
}
