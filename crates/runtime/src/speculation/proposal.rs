//! A draft as it grows by the most likely token of a model, a pass after the other.

use ruvllm_kernels::Kernels;
use ruvllm_text::TokenId;

use super::policy::Wanted;
use crate::backend::batch::TokenLogit;

/// The most likely token behind a sequence.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Choice {
    pub(super) token: TokenId,
    pub(super) probability: f64,
}

impl Choice {
    /// The token behind a row of logits; `None` if no logit is a number. `probabilities` is room
    /// for them.
    pub(super) fn of_logits(kernels: &Kernels, logits: &[f32], probabilities: &mut Vec<f32>) -> Option<Self> {
        probabilities.clear();
        probabilities.extend_from_slice(logits);
        let best = kernels.argmax(probabilities)?;
        kernels.softmax(probabilities);
        Some(Self { token: best as TokenId, probability: f64::from(probabilities[best]) })
    }

    /// The token behind a row of which the largest logits are known, largest first, among ids below
    /// `ids`. The others count as impossible: the probability is a little too high.
    pub(super) fn of_largest(largest: &[TokenLogit], ids: usize) -> Option<Self> {
        let mut known = largest.iter().filter(|known| (known.token as usize) < ids);
        let best = known.next().filter(|best| best.logit > f32::NEG_INFINITY)?;
        let weight = |known: &TokenLogit| f64::from(known.logit - best.logit).exp();
        Some(Self { token: best.token, probability: 1.0 / (1.0 + known.map(weight).sum::<f64>()) })
    }
}

/// The draft of one sequence in the present step.
#[derive(Debug)]
pub(super) struct Proposal {
    /// Index of the sequence among those asked for.
    pub(super) index: usize,
    /// Most likely token of the last pass; `None` before the first, and if no logit was a number.
    pub(super) token: Option<TokenId>,
    /// Probability of the whole draft as its model sees it.
    likelihood: f64,
}

impl Proposal {
    /// An empty draft for the sequence at `index` among those asked for.
    pub(super) fn new(index: usize) -> Self {
        Self { index, token: None, likelihood: 1.0 }
    }

    /// Takes the token behind the last pass.
    pub(super) fn take(&mut self, choice: Option<Choice>) {
        self.token = choice.map(|choice| choice.token);
        self.likelihood *= choice.map_or(1.0, |choice| choice.probability);
    }

    /// Appends the token to the draft if it is likely enough to be verified; true if a further
    /// pass is worth its time.
    pub(super) fn extend(&self, draft: &mut Vec<TokenId>, wanted: &Wanted) -> bool {
        let [draft_floor, verify_floor] = wanted.floors;
        if self.likelihood >= verify_floor {
            draft.extend(self.token);
        }
        // A likelihood that is no number ends the draft too.
        self.token.is_some() && draft.len() < wanted.tokens && self.likelihood > draft_floor
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_logits_stand_for_all_of_them() {
        let kernels = Kernels::detect().expect("kernels");
        let logits = [0.5, 3.0, -1.0, 2.0, 3.0, -20.0];
        let row = |ids: &[TokenId]| -> Vec<TokenLogit> {
            ids.iter().map(|&token| TokenLogit { token, logit: logits[token as usize] }).collect()
        };
        let all = Choice::of_logits(&kernels, &logits, &mut Vec::new()).expect("numbers");
        let largest = Choice::of_largest(&row(&[1, 4, 3, 0, 2]), 6).expect("numbers");
        assert_eq!((all.token, largest.token), (1, 1));
        assert!((all.probability - largest.probability).abs() < 1e-6, "{all:?} {largest:?}");
        // An id that the model does not sample.
        let other = Choice::of_largest(&row(&[4, 3, 0]), 4).expect("numbers");
        let expected = 1.0 / (1.0 + (-1.5_f64).exp());
        assert!(other.token == 3 && (other.probability - expected).abs() < 1e-6, "{other:?}");
        let none = [TokenLogit { token: 2, logit: f32::NEG_INFINITY }];
        assert_eq!((Choice::of_largest(&none, 6), Choice::of_largest(&[], 6)), (None, None));
    }
}
