//! A draft as it grows by the most likely token of a model, a pass after the other.

use ruvllm_kernels::Kernels;
use ruvllm_text::TokenId;

use super::policy::Wanted;

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

    /// Chooses the token behind a row of logits; `probabilities` is room for them.
    pub(super) fn choose(&mut self, kernels: &Kernels, logits: &[f32], probabilities: &mut Vec<f32>) {
        self.token = None;
        probabilities.clear();
        probabilities.extend_from_slice(logits);
        if let Some(best) = kernels.argmax(probabilities) {
            kernels.softmax(probabilities);
            self.likelihood *= f64::from(probabilities[best]);
            self.token = Some(best as TokenId);
        }
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
