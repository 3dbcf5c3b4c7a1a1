//! Truncating filters: top-nσ, top-k, typical, top-p, min-p, XTC. Each shortens the list of
//! candidates and never empties it.
//!
//! `temperature` is that of the distribution so far: 1 before the temperature step.
//!
//! Probabilities are f64, relative to the largest logit. Orders are total (equal logits by id), so
//! that results do not depend on the sort's treatment of equal elements.

use std::array::from_fn;
use std::cmp::Ordering;
use std::iter::once;

use ruvllm_text::TokenId;

/// A token that may still be sampled.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Candidate {
    pub(super) id: TokenId,
    pub(super) logit: f32, // finite
    /// Unnormalized probability `exp((logit - max) / temperature)`, set by `weigh`.
    pub(super) weight: f64,
}

impl Candidate {
    /// The candidate of a logit; `None` if the token is impossible (NaN, `-inf`). `+inf` counts as
    /// `f32::MAX`.
    pub(super) fn of(id: TokenId, logit: f32) -> Option<Self> {
        (logit > f32::NEG_INFINITY).then(|| Self { id, logit: logit.min(f32::MAX), weight: 0.0 })
    }
}

/// Largest logit.
fn largest(candidates: &[Candidate]) -> f32 {
    candidates.iter().fold(f32::NEG_INFINITY, |max, c| max.max(c.logit))
}

/// More likely first, equal logits by id.
fn by_likelihood(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.partial_cmp(&a.logit).unwrap_or(Ordering::Equal).then(a.id.cmp(&b.id))
}

/// Computes the weights at `temperature` and returns their sum.
pub(super) fn weigh(candidates: &mut [Candidate], temperature: f64) -> f64 {
    let max = largest(candidates);
    let mut total = 0.0;
    for candidate in candidates {
        candidate.weight = ((f64::from(candidate.logit) - f64::from(max)) / temperature).exp();
        total += candidate.weight;
    }
    total
}

/// Replaces the logits, divided by the temperature so far, and drops candidates that became
/// impossible; the temperature is 1 afterwards.
pub(super) fn adjust(
    candidates: &mut Vec<Candidate>,
    temperature: &mut f64,
    logit: impl Fn(&Candidate) -> f32,
) {
    for candidate in candidates.iter_mut() {
        if *temperature != 1.0 {
            let scaled = f64::from(candidate.logit) / *temperature;
            candidate.logit = scaled.clamp(f64::from(f32::MIN), f64::from(f32::MAX)) as f32;
        }
        candidate.logit = logit(candidate).min(f32::MAX);
    }
    candidates.retain(|c| c.logit > f32::NEG_INFINITY);
    *temperature = 1.0;
}

/// Top-p (nucleus) filter. Keeps the smallest set of most likely candidates with probabilities of
/// at least `p` in total; 1 keeps all.
///
/// # Source
/// Holtzman et al., arXiv 1904.09751.
pub(super) fn top_p(candidates: &mut Vec<Candidate>, p: f32, temperature: f64) {
    if p < 1.0 && candidates.len() > 1 {
        let total = weigh(candidates, temperature);
        keep_mass(candidates, f64::from(p) * total, by_likelihood);
    }
}

/// Min-p filter: keeps candidates at least `p` times as likely as the most likely one; 0 keeps all.
///
/// # Source
/// Nguyen et al., arXiv 2407.01082.
pub(super) fn min_p(candidates: &mut Vec<Candidate>, p: f32, temperature: f64) {
    if p <= 0.0 || candidates.len() <= 1 {
        return;
    }
    let max = largest(candidates);
    let threshold = f64::from(max) + f64::from(p).ln() * temperature;
    candidates.retain(|c| f64::from(c.logit) >= threshold);
}

/// Locally typical filter. Keeps the candidates whose information `-ln p` is nearest to the
/// entropy, until their probabilities sum to at least `p`; 1 keeps all.
///
/// # Source
/// Meister et al., arXiv 2202.00666.
pub(super) fn typical_p(candidates: &mut Vec<Candidate>, p: f32, temperature: f64) {
    if p >= 1.0 || candidates.len() <= 1 {
        return;
    }
    let max = largest(candidates);
    let total = weigh(candidates, temperature);
    let log_sum = f64::from(max) / temperature + total.ln();
    let information = |c: &Candidate| log_sum - f64::from(c.logit) / temperature;
    // A weight that underflowed to 0 adds nothing to the entropy; `0 * inf` would be NaN.
    let entropy: f64 =
        candidates.iter().filter(|c| c.weight > 0.0).map(|c| c.weight / total * information(c)).sum();
    let distance = |c: &Candidate| (information(c) - entropy).abs();
    keep_mass(candidates, f64::from(p) * total, |a, b| {
        distance(a).total_cmp(&distance(b)).then_with(|| by_likelihood(a, b))
    });
}

/// Keeps the `k` most likely candidates, most likely first.
pub(super) fn top_k(candidates: &mut Vec<Candidate>, k: usize) {
    if k > 0 && k < candidates.len() {
        candidates.select_nth_unstable_by(k - 1, by_likelihood);
        candidates.truncate(k);
    }
    candidates.sort_unstable_by(by_likelihood);
}

/// Keeps the most likely candidate, of equal ones the lowest id.
pub(super) fn keep_best(candidates: &mut Vec<Candidate>) {
    let best = candidates.iter().copied().min_by(by_likelihood);
    candidates.clear();
    candidates.extend(best);
}

/// Top-nσ filter: keeps the candidates whose logit is within `n` standard deviations of the largest
/// one.
///
/// # Source
/// Tang et al., "Top-nσ: Not All Logits Are You Need", arXiv 2411.07641.
pub(super) fn top_n_sigma(candidates: &mut Vec<Candidate>, n: f32) {
    let threshold = sigma_threshold(candidates, largest(candidates), n, |c| c.logit);
    candidates.retain(|c| f64::from(c.logit) >= threshold);
}

/// Logits that are compared before any of them is looked at singly.
const BLOCK: usize = 64;

/// As [`top_n_sigma`] on all tokens of a logits row with this largest logit; collects the
/// candidates that stay, by id.
pub(super) fn collect_top_n_sigma(logits: &[f32], max: f32, n: f32, candidates: &mut Vec<Candidate>) {
    let threshold = sigma_threshold(logits, max, n, |&logit| logit);
    // Compared as f32, rounded up to keep the same tokens: faster than a conversion of each.
    let bar = round_up(threshold);
    for (block, start) in logits.chunks(BLOCK).zip((0..).step_by(BLOCK)) {
        // Without an early end: the compiler compares several at a time.
        if block.iter().fold(false, |any, &logit| any | (logit >= bar)) {
            let stays = block.iter().zip(start..).filter(|&(&logit, _)| logit >= bar);
            candidates.extend(stays.filter_map(|(&logit, id)| Candidate::of(id, logit)));
        }
    }
}

/// Smallest f32 that is not below `x`.
fn round_up(x: f64) -> f32 {
    let rounded = x as f32;
    if f64::from(rounded) < x { rounded.next_up() } else { rounded }
}

/// Values per step of a scan. Each has its own sum: else every addition waits for the one before.
const LANES: usize = 8;

/// The logits of `items` in steps, the last one filled up with impossible tokens.
fn steps<T>(items: &[T], logit: impl Fn(&T) -> f32 + Copy) -> impl Iterator<Item = [f32; LANES]> {
    let step = move |items: &[T]| from_fn(|i| items.get(i).map_or(f32::NEG_INFINITY, logit));
    let chunks = items.chunks_exact(LANES);
    let rest = chunks.remainder();
    chunks.map(step).chain(once(step(rest)))
}

/// Largest logit `max` minus `n` standard deviations of the logits; impossible tokens do not count.
///
/// One pass over the offsets from `max`: they are small beside their spread, so that the difference
/// of the moments loses few digits of f64.
fn sigma_threshold<T>(items: &[T], max: f32, n: f32, logit: impl Fn(&T) -> f32 + Copy) -> f64 {
    let max = f64::from(max.min(f32::MAX));
    let (mut sums, mut squares, mut counts) = ([0.0; LANES], [0.0; LANES], [0.0; LANES]);
    steps(items, logit).for_each(|logits| {
        for (i, x) in logits.into_iter().enumerate() {
            // NaN counts as -inf.
            let is_possible = x > f32::NEG_INFINITY;
            let offset = if is_possible { f64::from(x.min(f32::MAX)) - max } else { 0.0 };
            sums[i] += offset;
            squares[i] += offset * offset;
            counts[i] += if is_possible { 1.0 } else { 0.0 };
        }
    });
    let count: f64 = counts.iter().sum();
    let mean = sums.iter().sum::<f64>() / count;
    let variance = squares.iter().sum::<f64>() / count - mean * mean;
    max - f64::from(n) * variance.max(0.0).sqrt()
}

/// XTC ("exclude top choices"): of the candidates with probabilities of at least `threshold`, keeps
/// only the least likely one; all others stay.
///
/// # Source
/// p-e-w, text-generation-webui, pull request 6335 (2024).
pub(super) fn xtc(candidates: &mut Vec<Candidate>, threshold: f32, temperature: f64) {
    let total = weigh(candidates, temperature);
    let is_top = |c: &Candidate| c.weight / total >= f64::from(threshold);
    let least = candidates.iter().filter(|c| is_top(c)).copied().max_by(by_likelihood);
    if let Some(least) = least {
        candidates.retain(|c| c.id == least.id || !is_top(c));
    }
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
