//! Statistics of the divergence between two runs of a model over the same text.

use ruvllm_text::TokenId;

use crate::benchmark::Percentiles;
use crate::error::{Error, Result};
use crate::evaluate::{LossSum, log_sum_exp};

/// Divergence of a candidate from a reference: their next-token probabilities over the same text.
///
/// Divergences are Kullback-Leibler, `D(reference || candidate) = sum(p * ln(p / q))`, in nats,
/// with the probabilities `p` of the reference and `q` of the candidate over the whole vocabulary.
/// Standard errors are `s / sqrt(n)` with the standard deviation `s` over the `n` positions, as if
/// these were independent.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct KlDivergence {
    /// Scored positions.
    pub positions: usize,
    /// Mean divergence of a position, in nats.
    pub mean: f64,
    /// Standard error of `mean`.
    pub mean_error: f64,
    /// Percentiles of the divergence, by the nearest rank over all positions.
    pub percentiles: Percentiles,
    /// Largest divergence.
    pub max: f64,
    /// Share of positions at which both have the same most probable token; ties to the lowest id.
    pub agreement: f64,
    /// Standard error of `agreement`: `sqrt(a * (1 - a) / (n - 1))`.
    pub agreement_error: f64,
    /// NLL of the text under the reference.
    pub reference: MeanNll,
    /// NLL of the text under the candidate.
    pub candidate: MeanNll,
    /// Mean of `ln(p / q)` of the actual tokens: candidate's NLL minus the reference's. Its error
    /// is that of the paired differences, so it is smaller than those of the two.
    pub difference: MeanNll,
    /// Root mean square of `q - p` of the actual tokens, in [0, 1].
    pub rms_delta_p: f64,
    /// Standard error of `rms_delta_p`, to first order: that of the mean square over `2 *
    /// rms_delta_p`.
    pub rms_delta_p_error: f64,
    /// False if the caller ended the comparison; the other fields cover the positions until then.
    pub complete: bool,
}

impl KlDivergence {
    /// Perplexity of the candidate over that of the reference: `exp` of the mean difference.
    pub fn perplexity_ratio(&self) -> f64 {
        self.difference.perplexity()
    }

    /// Standard error of the ratio, to first order.
    pub fn perplexity_ratio_error(&self) -> f64 {
        self.difference.perplexity_error()
    }
}

/// Mean negative log-likelihood of tokens.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct MeanNll {
    /// Mean of `-ln p`, in nats.
    pub nll: f64,
    /// Standard error of `nll`.
    pub nll_error: f64,
}

impl MeanNll {
    fn of(sum: &LossSum) -> Self {
        Self { nll: sum.mean(), nll_error: sum.standard_error() }
    }

    /// `exp(nll)`.
    pub fn perplexity(&self) -> f64 {
        self.nll.exp()
    }

    /// Standard error of the perplexity, to first order: `perplexity * nll_error`.
    pub fn perplexity_error(&self) -> f64 {
        self.perplexity() * self.nll_error
    }
}

/// Two distributions of one position, compared.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Position {
    /// `D(reference || candidate)` in nats, at least 0.
    divergence: f64,
    /// `-ln p` of the actual token.
    reference_nll: f64,
    candidate_nll: f64,
    /// True if both have the same most probable token.
    agrees: bool,
}

/// A logit without a finite divergence or perplexity.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct UnusableLogit {
    /// `reference` or `candidate`.
    pub(super) run: &'static str,
    pub(super) token: TokenId,
    pub(super) logit: f32,
}

impl UnusableLogit {
    fn new(run: &'static str, logits: &[f32], token: usize) -> Self {
        Self { run, token: token as TokenId, logit: logits.get(token).copied().unwrap_or(f32::NAN) }
    }

    /// The first logit for which a row has no sum of exponentials: NaN or infinity, else that of
    /// token 0 of a row of `-inf`.
    fn of_row(run: &'static str, logits: &[f32]) -> Self {
        let unusable = |logit: &f32| logit.is_nan() || *logit == f32::INFINITY;
        Self::new(run, logits, logits.iter().position(unusable).unwrap_or(0))
    }
}

impl Position {
    /// Compares two rows of logits over one vocabulary, followed by the token `target`. Log-softmax
    /// and sums are f64. A token with the logit `-inf` in both adds nothing.
    ///
    /// # Errors
    /// NaN, `inf`, and rows of nothing but `-inf`; a token that is possible for the reference
    /// and has `-inf` in the candidate; a target with `-inf`.
    pub(super) fn new(reference: &[f32], candidate: &[f32], target: TokenId) -> Result<Self, UnusableLogit> {
        let [reference_sum, candidate_sum] = [reference, candidate].map(log_sum_exp);
        for (run, sum, logits) in
            [("reference", reference_sum, reference), ("candidate", candidate_sum, candidate)]
        {
            if !sum.is_finite() {
                return Err(UnusableLogit::of_row(run, logits));
            }
        }
        let mut divergence = 0.0;
        let mut best = [0; 2];
        for (token, (&x, &y)) in reference.iter().zip(candidate).enumerate() {
            let log_p = f64::from(x) - reference_sum;
            let p = log_p.exp();
            // Without probability, `p * ln(p / q)` has the limit 0.
            if p > 0.0 {
                divergence += p * (log_p - (f64::from(y) - candidate_sum));
            }
            if x > reference[best[0]] {
                best[0] = token;
            }
            if y > candidate[best[1]] {
                best[1] = token;
            }
        }
        if !divergence.is_finite() {
            let lost = |(x, y): (&f32, &f32)| *x > f32::NEG_INFINITY && *y == f32::NEG_INFINITY;
            let token = reference.iter().zip(candidate).position(lost).unwrap_or(0);
            return Err(UnusableLogit::new("candidate", candidate, token));
        }
        let target = target as usize;
        let nll = |run, logits: &[f32], sum: f64| {
            let nll = sum - f64::from(logits[target]);
            if nll.is_finite() { Ok(nll) } else { Err(UnusableLogit::new(run, logits, target)) }
        };
        Ok(Self {
            // Rounding may make a divergence of 0 slightly negative.
            divergence: divergence.max(0.0),
            reference_nll: nll("reference", reference, reference_sum)?,
            candidate_nll: nll("candidate", candidate, candidate_sum)?,
            agrees: best[0] == best[1],
        })
    }
}

/// Accumulator of compared positions. It keeps eight bytes per position, for exact percentiles.
#[derive(Debug, Clone, Default)]
pub(super) struct Comparison {
    divergences: Vec<f64>,
    divergence: LossSum,
    reference: LossSum,
    candidate: LossSum,
    difference: LossSum,
    square_delta_p: LossSum,
    agreements: usize,
}

impl Comparison {
    /// Adds a position. Sums depend on the order of positions in their last bits.
    pub(super) fn add(&mut self, position: &Position) {
        let &Position { divergence, reference_nll, candidate_nll, agrees } = position;
        self.divergences.push(divergence);
        self.divergence.add(divergence);
        self.reference.add(reference_nll);
        self.candidate.add(candidate_nll);
        self.difference.add(candidate_nll - reference_nll);
        let delta_p = (-candidate_nll).exp() - (-reference_nll).exp();
        self.square_delta_p.add(delta_p * delta_p);
        self.agreements += usize::from(agrees);
    }

    /// Statistics of the positions so far.
    ///
    /// # Errors
    /// [`Error::Cancelled`] without any position.
    pub(super) fn finish(self, complete: bool) -> Result<KlDivergence> {
        let positions = self.divergences.len();
        let max = self.divergences.iter().copied().fold(0.0, f64::max);
        let percentiles = Percentiles::of(self.divergences).ok_or(Error::Cancelled)?;
        let agreement = self.agreements as f64 / positions as f64;
        let agreement_error = match positions {
            1 => 0.0,
            n => (agreement * (1.0 - agreement) / (n - 1) as f64).sqrt(),
        };
        let rms_delta_p = self.square_delta_p.mean().sqrt();
        let square_error = self.square_delta_p.standard_error();
        let rms_delta_p_error = if rms_delta_p > 0.0 { square_error / (2.0 * rms_delta_p) } else { 0.0 };
        Ok(KlDivergence {
            positions,
            mean: self.divergence.mean(),
            mean_error: self.divergence.standard_error(),
            percentiles,
            max,
            agreement,
            agreement_error,
            reference: MeanNll::of(&self.reference),
            candidate: MeanNll::of(&self.candidate),
            difference: MeanNll::of(&self.difference),
            rms_delta_p,
            rms_delta_p_error,
            complete,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Log-softmax of a row without any of the code above.
    fn naive_log_softmax(logits: &[f32]) -> Vec<f64> {
        let largest = logits.iter().map(|&x| f64::from(x)).fold(f64::NEG_INFINITY, f64::max);
        let total: f64 = logits.iter().map(|&x| (f64::from(x) - largest).exp()).sum();
        logits.iter().map(|&x| f64::from(x) - largest - total.ln()).collect()
    }

    fn naive_divergence(reference: &[f32], candidate: &[f32]) -> f64 {
        let (p, q) = (naive_log_softmax(reference), naive_log_softmax(candidate));
        p.iter().zip(&q).filter(|(p, _)| p.is_finite()).map(|(p, q)| p.exp() * (p - q)).sum()
    }

    fn position(reference: &[f32], candidate: &[f32], target: TokenId) -> Position {
        Position::new(reference, candidate, target).expect("a finite divergence")
    }

    fn refused(reference: &[f32], candidate: &[f32], target: TokenId) -> (&'static str, TokenId, String) {
        let fault = Position::new(reference, candidate, target).expect_err("an unusable logit");
        (fault.run, fault.token, fault.logit.to_string())
    }

    /// Two rows of one vocabulary, in which some tokens are impossible for both, and a target.
    fn rows() -> impl Strategy<Value = (Vec<f32>, Vec<f32>, TokenId)> {
        let logit = || -60f32..60.0;
        let pair = prop_oneof![
            8 => (logit(), logit()),
            4 => logit().prop_map(|x| (x, x)),
            1 => Just((f32::NEG_INFINITY, f32::NEG_INFINITY)),
        ];
        prop::collection::vec(pair, 1..200).prop_flat_map(|mut pairs| {
            pairs[0] = (1.0, -1.0);
            let possible: Vec<usize> = (0..pairs.len()).filter(|&i| pairs[i].0.is_finite()).collect();
            let (reference, candidate): (Vec<f32>, Vec<f32>) = pairs.into_iter().unzip();
            (Just(reference), Just(candidate), prop::sample::select(possible).prop_map(|i| i as TokenId))
        })
    }

    proptest! {
        #[test]
        fn divergence_equals_a_naive_loop_and_is_not_negative((reference, candidate, target) in rows()) {
            let found = position(&reference, &candidate, target);
            let expected = naive_divergence(&reference, &candidate);
            prop_assert!(found.divergence >= 0.0);
            prop_assert!((found.divergence - expected).abs() <= 1e-12 * expected.abs().max(1.0));
            let nll = |logits: &[f32]| -naive_log_softmax(logits)[target as usize];
            prop_assert!((found.reference_nll - nll(&reference)).abs() < 1e-12 * nll(&reference).max(1.0));
            prop_assert!((found.candidate_nll - nll(&candidate)).abs() < 1e-12 * nll(&candidate).max(1.0));
        }

        #[test]
        fn equal_rows_have_no_divergence((reference, _, target) in rows()) {
            let found = position(&reference, &reference, target);
            prop_assert_eq!(found.divergence, 0.0);
            prop_assert!(found.agrees && found.reference_nll == found.candidate_nll);
        }

        #[test]
        fn a_common_offset_changes_nothing((reference, candidate, target) in rows(), offset in -64i8..64) {
            // Multiples of 1/4 within 2^8, so that the sum is exact.
            let rounded = |row: &[f32]| row.iter().map(|x| (x * 4.0).round() / 4.0).collect::<Vec<_>>();
            let (reference, candidate) = (rounded(&reference), rounded(&candidate));
            let moved: Vec<f32> = candidate.iter().map(|x| x + f32::from(offset)).collect();
            let (before, after) = (
                position(&reference, &candidate, target),
                position(&reference, &moved, target),
            );
            prop_assert!((before.divergence - after.divergence).abs() < 1e-12 * before.divergence.max(1.0));
            prop_assert_eq!(before.agrees, after.agrees);
        }
    }

    #[test]
    fn divergence_of_known_rows() {
        // p = 1/2, 1/2; q = 1/4, 3/4.
        let found = position(&[0.0, 0.0], &[0.0, 3f32.ln()], 1);
        let expected = 0.5 * 2f64.ln() + 0.5 * (2.0 / 3.0f64).ln();
        assert!((found.divergence - expected).abs() < 1e-7);
        // A tie goes to the lowest id.
        assert!(!found.agrees && position(&[0.0, 0.0], &[1.0, 0.0], 0).agrees);
        // Logits that differ by d = 2^-20 diverge by d^2 / 8: not lost to rounding.
        let d = 2f32.powi(-20);
        let near = position(&[1.0, 1.0], &[1.0 + d, 1.0], 0);
        assert!((near.divergence * 8.0 / f64::from(d * d) - 1.0).abs() < 0.05, "{}", near.divergence);
    }

    #[test]
    fn impossible_tokens() {
        let none = f32::NEG_INFINITY;
        assert_eq!(position(&[none, 1.0], &[none, 1.0], 1).divergence, 0.0);
        // Possible for the candidate alone: D(p || q) = ln(1 / q).
        let found = position(&[none, 0.0], &[0.0, 0.0], 1);
        assert!((found.divergence - 2f64.ln()).abs() < 1e-15);
        assert_eq!(refused(&[0.0, 0.0], &[none, 0.0], 1), ("candidate", 0, "-inf".to_owned()));
        assert_eq!(refused(&[none, 0.0], &[none, 0.0], 0), ("reference", 0, "-inf".to_owned()));
        assert_eq!(refused(&[none, none], &[0.0, 0.0], 0), ("reference", 0, "-inf".to_owned()));
    }

    #[test]
    fn logits_that_are_no_numbers_are_named() {
        let nan = f32::NAN;
        assert_eq!(refused(&[0.0, nan], &[0.0, 0.0], 0), ("reference", 1, "NaN".to_owned()));
        assert_eq!(refused(&[0.0, 0.0], &[nan, nan], 0), ("candidate", 0, "NaN".to_owned()));
        assert_eq!(refused(&[0.0, 0.0], &[0.0, f32::INFINITY], 0), ("candidate", 1, "inf".to_owned()));
    }

    #[test]
    fn statistics_of_known_positions() {
        let mut comparison = Comparison::default();
        assert!(matches!(comparison.clone().finish(true), Err(Error::Cancelled)));
        // Probabilities of the actual token: 1/2 and 1/4 at every position.
        for i in 1..=100 {
            comparison.add(&Position {
                divergence: f64::from(i),
                reference_nll: 2f64.ln(),
                candidate_nll: 4f64.ln(),
                agrees: i <= 80,
            });
        }
        let found = comparison.finish(false).expect("positions");
        assert_eq!((found.positions, found.complete), (100, false));
        assert_eq!((found.mean, found.max), (50.5, 100.0));
        // The variance of 1 to 100 is 100 * 101 / 12.
        assert!((found.mean_error - (10_100.0f64 / 12.0 / 100.0).sqrt()).abs() < 1e-12);
        let Percentiles { p50, p95, p99, .. } = found.percentiles;
        assert_eq!((p50, p95, p99), (50.0, 95.0, 99.0));
        assert!((found.agreement - 0.8).abs() < 1e-15);
        assert!((found.agreement_error - (0.16f64 / 99.0).sqrt()).abs() < 1e-15);
        assert!((found.reference.perplexity() - 2.0).abs() < 1e-12);
        assert!((found.candidate.perplexity() - 4.0).abs() < 1e-12);
        assert!((found.perplexity_ratio() - 2.0).abs() < 1e-12);
        assert!(found.perplexity_ratio_error() < 1e-6);
        assert!((found.rms_delta_p - 0.25).abs() < 1e-15 && found.rms_delta_p_error < 1e-7);
    }

    #[test]
    fn errors_of_paired_differences_are_small() {
        let mut comparison = Comparison::default();
        for i in 0..50 {
            let nll = f64::from(i % 7);
            comparison.add(&Position {
                divergence: 0.0,
                reference_nll: nll,
                candidate_nll: nll + 0.01,
                agrees: true,
            });
        }
        let found = comparison.finish(true).expect("positions");
        assert!(found.reference.nll_error > 0.1 && found.difference.nll_error < 1e-6);
        assert_eq!((found.agreement, found.agreement_error), (1.0, 0.0));
    }
}
