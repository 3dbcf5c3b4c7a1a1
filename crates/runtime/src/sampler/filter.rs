//! Truncating filters after top-k (which is a kernel): typical, top-p, min-p. Each shortens the
//! list of candidates and never empties it.
//!
//! Probabilities are f64, relative to the largest logit. Orders are total (equal logits by id), so
//! that results do not depend on the sort's treatment of equal elements.

use std::cmp::Ordering;

use ruvllm_text::TokenId;

/// A token that may still be sampled.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Candidate {
    pub(super) id: TokenId,
    pub(super) logit: f32, // finite
    /// Unnormalized probability `exp((logit - max) / temperature)`, set by `weigh`.
    pub(super) weight: f64,
}

/// More likely first, equal logits by id.
fn by_likelihood(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.partial_cmp(&a.logit).unwrap_or(Ordering::Equal).then(a.id.cmp(&b.id))
}

/// Computes the weights at `temperature` and returns their sum.
pub(super) fn weigh(candidates: &mut [Candidate], temperature: f64) -> f64 {
    let max = candidates.iter().fold(f32::NEG_INFINITY, |max, c| max.max(c.logit));
    let mut total = 0.0;
    for candidate in candidates {
        candidate.weight = ((f64::from(candidate.logit) - f64::from(max)) / temperature).exp();
        total += candidate.weight;
    }
    total
}

/// Top-p (nucleus) filter: keeps the smallest set of most likely candidates with probabilities of
/// at least `p` in total; 1 keeps all.
///
/// # Source
/// Holtzman et al., arXiv 1904.09751.
pub(super) fn top_p(candidates: &mut Vec<Candidate>, p: f32) {
    if p < 1.0 && candidates.len() > 1 {
        let total = weigh(candidates, 1.0);
        keep_mass(candidates, f64::from(p) * total, by_likelihood);
    }
}

/// Min-p filter: keeps candidates at least `p` times as likely as the most likely one; 0 keeps all.
///
/// # Source
/// Nguyen et al., arXiv 2407.01082.
pub(super) fn min_p(candidates: &mut Vec<Candidate>, p: f32) {
    if p <= 0.0 || candidates.len() <= 1 {
        return;
    }
    let max = candidates.iter().fold(f32::NEG_INFINITY, |max, c| max.max(c.logit));
    let threshold = f64::from(max) + f64::from(p).ln();
    candidates.retain(|c| f64::from(c.logit) >= threshold);
}

/// Locally typical filter: keeps the candidates whose information `-ln p` is nearest to the
/// entropy, until their probabilities sum to at least `p`; 1 keeps all.
///
/// # Source
/// Meister et al., arXiv 2202.00666.
pub(super) fn typical_p(candidates: &mut Vec<Candidate>, p: f32) {
    if p >= 1.0 || candidates.len() <= 1 {
        return;
    }
    let max = candidates.iter().fold(f32::NEG_INFINITY, |max, c| max.max(c.logit));
    let total = weigh(candidates, 1.0);
    let log_sum = f64::from(max) + total.ln();
    let information = |c: &Candidate| log_sum - f64::from(c.logit);
    // A weight that underflowed to 0 adds nothing to the entropy; `0 * inf` would be NaN.
    let entropy: f64 =
        candidates.iter().filter(|c| c.weight > 0.0).map(|c| c.weight / total * information(c)).sum();
    let distance = |c: &Candidate| (information(c) - entropy).abs();
    keep_mass(candidates, f64::from(p) * total, |a, b| {
        distance(a).total_cmp(&distance(b)).then_with(|| by_likelihood(a, b))
    });
}

/// Keeps the shortest prefix in `order` whose weights sum to at least `target`, sorted; at least
/// one candidate.
///
/// Partial sort: chunks of growing length are selected and sorted until the sum is reached, since a
/// nucleus has tens of tokens in a vocabulary of a hundred thousand.
fn keep_mass(
    candidates: &mut Vec<Candidate>,
    target: f64,
    order: impl Fn(&Candidate, &Candidate) -> Ordering,
) {
    let mut sum = 0.0;
    let mut sorted = 0;
    let mut block = 64;
    while sorted < candidates.len() {
        let rest = &mut candidates[sorted..];
        let taken = block.min(rest.len());
        if taken < rest.len() {
            rest.select_nth_unstable_by(taken - 1, &order);
        }
        rest[..taken].sort_unstable_by(&order);
        for (i, candidate) in rest[..taken].iter().enumerate() {
            sum += candidate.weight;
            if sum >= target {
                candidates.truncate(sorted + i + 1);
                return;
            }
        }
        sorted += taken;
        block *= 4;
    }
}
