//! Choice of a token's experts and of their weights from the logits of a router.
//!
//! Every step is a function of the token's logits alone, in an order that no instruction set,
//! thread or batch changes: of equal scores the expert of the lower index is chosen, and sums go
//! over experts in ascending order.

use ruvllm_kernels::Kernels;

use crate::family::{Router, Scoring};

/// Distance from the largest logit, relative to the larger magnitude, up to which experts share its
/// weight in `SparseMixer`: twice the jitter.
const SPARSE_MIXER_RANGE: f32 = 0.02;

/// An expert of a token.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Choice {
    /// Index of the expert; experts of a token ascend.
    pub(crate) expert: u32,
    /// Factor of its output.
    pub(crate) weight: f32,
    /// Row of the token among the rows that are sorted by expert.
    pub(crate) row: u32,
}

/// A router with the bias of its selection, `[experts]`.
pub(crate) struct Routing<'a> {
    pub(crate) router: &'a Router,
    pub(crate) bias: Option<&'a [f32]>,
}

impl Routing<'_> {
    /// Writes the experts of one token. `logits`, `[experts]`, become scores; `selection`,
    /// `[experts]`, is scratch. False if a logit is not finite: there is no choice then.
    pub(crate) fn choose(
        &self,
        kernels: &Kernels,
        logits: &mut [f32],
        selection: &mut [f32],
        choices: &mut [Choice],
    ) -> bool {
        if !logits.iter().all(|logit| logit.is_finite()) {
            return false;
        }
        match self.router.scoring {
            Scoring::Softmax => kernels.softmax(logits),
            Scoring::Sigmoid => logits.iter_mut().for_each(|logit| *logit = sigmoid(*logit)),
            Scoring::SoftmaxOfSelected | Scoring::SigmoidOfSelected | Scoring::SparseMixer => {}
        }
        selection.copy_from_slice(logits);
        if let Some(bias) = self.bias {
            kernels.add_assign(selection, bias);
        }
        self.keep_groups(selection);
        for choice in &mut *choices {
            let Some(best) = kernels.argmax(selection) else { return false };
            let weight = match self.router.scoring {
                Scoring::SparseMixer => masked_softmax(logits, selection, best),
                _ => logits[best],
            };
            *choice = Choice { expert: best as u32, weight, row: 0 };
            selection[best] = f32::NEG_INFINITY;
        }
        choices.sort_unstable_by_key(|choice| choice.expert);
        self.weigh(choices);
        true
    }

    /// Excludes the experts of all but the best groups.
    fn keep_groups(&self, selection: &mut [f32]) {
        let Some(groups) = self.router.groups else { return };
        let len = selection.len() / groups.count;
        let score = |group: &[f32]| {
            let (mut best, mut second) = (f32::NEG_INFINITY, f32::NEG_INFINITY);
            for &score in group {
                if score > best {
                    (best, second) = (score, best);
                } else if score > second {
                    second = score;
                }
            }
            // Of a group of one expert there is no second.
            if self.bias.is_some() && len > 1 { best + second } else { best }
        };
        // The worst group goes, again and again: quadratic in groups, of which models have few, and
        // nothing is allocated.
        let is_before = |(a, a_score): (usize, f32), (b, b_score): (usize, f32)| {
            a_score > b_score || a_score == b_score && a < b
        };
        for _ in 0..groups.count - groups.used {
            let mut worst: Option<(usize, f32)> = None;
            for (index, group) in selection.chunks_exact(len).enumerate() {
                let this = (index, score(group));
                let is_left = group[0] != f32::NEG_INFINITY;
                if is_left && worst.is_none_or(|worst| is_before(worst, this)) {
                    worst = Some(this);
                }
            }
            if let Some((index, _)) = worst {
                selection[index * len..][..len].fill(f32::NEG_INFINITY);
            }
        }
    }

    /// From scores to weights.
    fn weigh(&self, choices: &mut [Choice]) {
        if self.router.scoring == Scoring::SigmoidOfSelected {
            choices.iter_mut().for_each(|choice| choice.weight = sigmoid(choice.weight));
        }
        if self.router.scoring == Scoring::SoftmaxOfSelected {
            let largest = choices.iter().fold(f32::NEG_INFINITY, |most, choice| most.max(choice.weight));
            for choice in &mut *choices {
                // In f64, so that what is left after rounding does not depend on the machine.
                choice.weight = f64::from(choice.weight - largest).exp() as f32;
            }
        }
        if self.router.renormalize || self.router.scoring == Scoring::SoftmaxOfSelected {
            let sum: f32 = choices.iter().map(|choice| choice.weight).sum();
            if sum > 0.0 {
                choices.iter_mut().for_each(|choice| choice.weight /= sum);
            }
        }
        choices.iter_mut().for_each(|choice| choice.weight *= self.router.scale);
    }
}

/// Softmax at `best`, the largest of the logits that are left in `selection`, over those of them
/// that are within [`SPARSE_MIXER_RANGE`] of it. In f64, as [`sigmoid`].
fn masked_softmax(logits: &[f32], selection: &[f32], best: usize) -> f32 {
    let most = logits[best];
    let is_masked = |logit: f32| (most - logit) / logit.abs().max(most) > SPARSE_MIXER_RANGE;
    let left = logits.iter().zip(selection).filter(|(_, left)| left.is_finite()).map(|(&logit, _)| logit);
    let near = left.filter(|&logit| !is_masked(logit));
    let sum: f64 = near.map(|logit| f64::from(logit - most).exp()).sum();
    (1.0 / sum) as f32
}

/// `1 / (1 + e^-x)`. In f64, so that what is left after rounding does not depend on the machine's
/// library.
pub(crate) fn sigmoid(x: f32) -> f32 {
    (1.0 / (1.0 + (-f64::from(x)).exp())) as f32
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::family::ExpertGroups;

    fn router(scoring: Scoring, renormalize: bool) -> Router {
        Router { scoring, groups: None, renormalize, scale: 1.0 }
    }

    /// Experts and weights of a token.
    fn choose(router: &Router, bias: Option<&[f32]>, logits: &[f32], used: usize) -> Option<Vec<(u32, f32)>> {
        let kernels = Kernels::detect().expect("kernels");
        let (mut scores, mut selection) = (logits.to_vec(), vec![0.0; logits.len()]);
        let mut choices = vec![Choice::default(); used];
        let routing = Routing { router, bias };
        let found = routing.choose(&kernels, &mut scores, &mut selection, &mut choices);
        found.then(|| choices.iter().map(|choice| (choice.expert, choice.weight)).collect())
    }

    #[track_caller]
    fn assert_close(found: Option<Vec<(u32, f32)>>, expected: &[(u32, f64)]) {
        let found = found.expect("a choice");
        let same = |(a, b): (&(u32, f32), &(u32, f64))| a.0 == b.0 && (f64::from(a.1) - b.1).abs() < 1e-6;
        assert!(found.len() == expected.len() && found.iter().zip(expected).all(same), "{found:?}");
    }

    const LOGITS: [f32; 4] = [1.0, 3.0, 2.0, -1.0];

    #[test]
    fn weights_are_scores_renormalized_or_not() {
        let sum: f64 = LOGITS.iter().map(|&x| f64::from(x).exp()).sum();
        let [second, third] = [3.0_f64.exp() / sum, 2.0_f64.exp() / sum];
        assert_close(choose(&router(Scoring::Softmax, false), None, &LOGITS, 2), &[(1, second), (2, third)]);
        let share = 1.0 / (1.0 + (-1.0_f64).exp());
        for scoring in [Scoring::Softmax, Scoring::SoftmaxOfSelected] {
            assert_close(choose(&router(scoring, true), None, &LOGITS, 2), &[(1, share), (2, 1.0 - share)]);
        }
        let of_selected = choose(&router(Scoring::SoftmaxOfSelected, false), None, &LOGITS, 2);
        assert_close(of_selected, &[(1, share), (2, 1.0 - share)]);
        let scaled = Router { scale: 2.5, ..router(Scoring::Softmax, true) };
        assert_close(choose(&scaled, None, &LOGITS, 1), &[(1, 2.5)]);
    }

    #[test]
    fn a_bias_selects_and_leaves_the_weights() {
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        let sigmoids = router(Scoring::Sigmoid, false);
        let bias = [0.0, -5.0, 0.0, 5.0];
        let expected = [(2, sigmoid(2.0)), (3, sigmoid(-1.0))];
        assert_close(choose(&sigmoids, Some(&bias), &LOGITS, 2), &expected);
        let renormalized = Router { renormalize: true, scale: 2.0, ..sigmoids };
        let sum = (sigmoid(2.0) + sigmoid(-1.0)) / 2.0;
        let expected = expected.map(|(expert, weight)| (expert, weight / sum));
        assert_close(choose(&renormalized, Some(&bias), &LOGITS, 2), &expected);
    }

    #[test]
    fn sigmoids_of_selected_experts_select_by_logits() {
        let sigmoids = router(Scoring::SigmoidOfSelected, false);
        assert_close(choose(&sigmoids, None, &[30.0, 20.0, 40.0], 1), &[(2, 1.0)]);
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        assert_close(
            choose(&sigmoids, None, &[-1.0, 0.5, -2.0], 2),
            &[(0, sigmoid(-1.0)), (1, sigmoid(0.5))],
        );
    }

    #[test]
    fn sparse_mixer_shares_weights_of_near_logits() {
        let mixer = router(Scoring::SparseMixer, false);
        let softmax = |own: f64, others: &[f64]| 1.0 / others.iter().map(|x| (x - own).exp()).sum::<f64>();
        let first = softmax(5.0, &[5.0, 4.95]);
        assert_close(choose(&mixer, None, &[4.8, 5.0, 4.95, -5.0], 2), &[(1, first), (2, 1.0)]);
        // 4.88 is within 2 % of 4.95, but not of 5.
        let second = softmax(4.95, &[4.95, 4.88]);
        assert_close(choose(&mixer, None, &[4.88, 5.0, 4.95, -5.0], 2), &[(1, first), (2, second)]);
        // Below zero, distances are relative to the magnitude of the smaller logit.
        assert_close(
            choose(&mixer, None, &[-1.0, -1.01, -2.0], 2),
            &[(0, softmax(-1.0, &[-1.0, -1.01])), (1, 1.0)],
        );
        assert_close(choose(&mixer, None, &[0.0, 0.0, -1.0], 2), &[(0, 0.5), (1, 1.0)]);
    }

    #[test]
    fn experts_are_of_the_best_groups() {
        let logits = [5.0, -9.0, 4.0, 3.9, 1.0, 1.1, 4.5, -9.0];
        let groups = Some(ExpertGroups { count: 4, used: 2 });
        let experts = |bias: Option<&[f32]>, router: &Router| {
            let chosen = choose(router, bias, &logits, 3).expect("a choice");
            chosen.into_iter().map(|(expert, _)| expert).collect::<Vec<_>>()
        };
        let by_best = Router { groups, ..router(Scoring::Softmax, false) };
        assert_eq!(experts(None, &by_best), [0, 1, 6], "groups 0 and 3 have the largest scores");
        let by_two = Router { groups, ..router(Scoring::Sigmoid, false) };
        assert_eq!(experts(Some(&[0.0; 8]), &by_two), [2, 3, 5], "groups 1 and 2 have the largest sums");
    }

    #[test]
    fn equal_scores_go_to_the_lower_index_and_other_numbers_to_none() {
        let softmax = router(Scoring::Softmax, true);
        let experts = |logits: &[f32]| {
            let chosen = choose(&softmax, None, logits, 2)?;
            Some(chosen.into_iter().map(|(expert, _)| expert).collect::<Vec<_>>())
        };
        assert_eq!(experts(&[1.0; 5]), Some(vec![0, 1]));
        assert_eq!(experts(&[-0.0, 1.0, 0.0]), Some(vec![0, 1]));
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert_eq!(experts(&[1.0, bad, 2.0]), None, "{bad}");
        }
        assert!(choose(&router(Scoring::Sigmoid, true), Some(&[f32::NAN; 2]), &[1.0, 2.0], 1).is_none());
        // All scores underflow: the weights stay zeros.
        let tiny = choose(&router(Scoring::Sigmoid, true), None, &[-1e30, -1e30], 1);
        assert_eq!(tiny, Some(vec![(0, 0.0)]));
    }

    proptest! {
        #[test]
        fn the_choice_is_that_of_a_full_sort(
            logits in prop::collection::vec(-4_i8..4, 1..40),
            scoring in prop::sample::select(&[Scoring::Softmax, Scoring::Sigmoid, Scoring::SoftmaxOfSelected][..]),
            used in 1_usize..9,
        ) {
            let logits: Vec<f32> = logits.into_iter().map(f32::from).collect();
            let used = used.min(logits.len());
            let mut order: Vec<u32> = (0..logits.len() as u32).collect();
            order.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b)));
            order.truncate(used);
            order.sort_unstable();
            let chosen = choose(&router(scoring, true), None, &logits, used).expect("a choice");
            prop_assert_eq!(chosen.iter().map(|&(expert, _)| expert).collect::<Vec<_>>(), order);
            let sum: f32 = chosen.iter().map(|(_, weight)| weight).sum();
            prop_assert!((sum - 1.0).abs() < 1e-5);
        }
    }
}
