//! Log-probabilities of a token and of the most likely ones.

use ruvllm_kernels::Kernels;
use ruvllm_text::TokenId;

use crate::error::{Error, Result};

/// A token with its log-probability.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TokenLogprob {
    /// Token id.
    pub token: TokenId,
    /// Natural logarithm of the probability, at most 0; `-inf` for an impossible token.
    pub logprob: f64,
}

/// Log-probabilities at one position: of the token there, and of the most likely tokens.
///
/// They are those of the model: log-softmax of the raw logits, before penalties, bias, filters and
/// temperature. Created by [`Sampler::logprobs`](crate::Sampler::logprobs).
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Logprobs {
    /// The token at the position.
    pub token: TokenLogprob,
    /// The most likely tokens, most likely first, equal logits by ascending id; without impossible
    /// tokens. Holds the token at the position only if it is one of them.
    pub top: Vec<TokenLogprob>,
}

/// Of no position yet: memory for [`Sampler::logprobs_into`](crate::Sampler::logprobs_into).
impl Default for Logprobs {
    fn default() -> Self {
        Self { token: TokenLogprob { token: 0, logprob: f64::NEG_INFINITY }, top: Vec::new() }
    }
}

/// Overwrites `out` with the log-probabilities of `token` and the `top_n` most likely tokens.
/// `best` is memory for the selection.
pub(crate) fn compute(
    kernels: &Kernels,
    logits: &[f32],
    token: TokenId,
    top_n: usize,
    best: &mut Vec<TokenId>,
    out: &mut Logprobs,
) -> Result<()> {
    out.top.clear();
    let max = kernels.argmax(logits).map(|best| logits[best]).filter(|&max| max > f32::NEG_INFINITY);
    let max = f64::from(max.ok_or(Error::NoCandidate)?.min(f32::MAX));
    let offset = |x: f32| f64::from(x.min(f32::MAX)) - max;
    // NaN counts as -inf. In order of the ids, so that the sum has one value.
    let total: f64 = logits.iter().filter(|&&x| x > f32::NEG_INFINITY).map(|&x| offset(x).exp()).sum();
    let log_total = total.ln();
    let logprob = |token: TokenId| {
        let logit = logits.get(token as usize).copied().filter(|&x| x > f32::NEG_INFINITY);
        TokenLogprob { token, logprob: logit.map_or(f64::NEG_INFINITY, |x| offset(x) - log_total) }
    };
    out.token = logprob(token);
    kernels.top_k(logits, top_n, best);
    out.top.extend(best.iter().map(|&token| logprob(token)).filter(|t| t.logprob > f64::NEG_INFINITY));
    Ok(())
}
