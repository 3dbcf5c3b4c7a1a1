//! Dynamic temperature: between a low and a high one by the entropy of the distribution.

use super::filter::{Candidate, weigh};
use super::params::SamplingParams;

/// Temperature of the candidates, above 0: the fixed one, or within `dynatemp_range` of it
/// `low + (high - low) * (entropy / ln n)^dynatemp_exponent` for `n` candidates.
///
/// # Source
/// The dynamic temperature of koboldcpp (kalomaze, 2023), as llama.cpp computes it.
pub(super) fn temperature(params: &SamplingParams, candidates: &mut [Candidate]) -> f64 {
    let (middle, range) = (f64::from(params.temperature), f64::from(params.dynatemp_range));
    if range == 0.0 || candidates.len() <= 1 {
        return middle;
    }
    let (low, high) = ((middle - range).max(0.0), middle + range);
    let certainty = normalized_entropy(candidates).powf(f64::from(params.dynatemp_exponent));
    // At 0 the limit: equal maxima share the draws.
    (low + (high - low) * certainty).max(f64::MIN_POSITIVE)
}

/// Entropy of the candidates' distribution divided by its largest possible value, in [0, 1].
fn normalized_entropy(candidates: &mut [Candidate]) -> f64 {
    let total = weigh(candidates, 1.0);
    // A probability that underflowed to 0 adds nothing to the entropy; `0 * inf` would be NaN.
    let entropy: f64 =
        candidates.iter().map(|c| c.weight / total).filter(|&p| p > 0.0).map(|p| -p * p.ln()).sum();
    (entropy / (candidates.len() as f64).ln()).clamp(0.0, 1.0)
}
