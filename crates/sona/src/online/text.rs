//! Texts that are taught.

use super::ObservedModel;
use crate::error::{Error, Result};
use crate::instant::{Lesson, Observations};
use crate::trajectory::{Feedback, StoredTrajectory};

/// Text with a lesson about it: the response is taught, the prompt is what it follows.
#[derive(Debug, Clone, PartialEq)]
pub struct TaughtText {
    /// Tokens before the response; at least one.
    pub prompt: Vec<u32>,
    /// Tokens that are taught; at least one.
    pub response: Vec<u32>,
    /// Feedback on them.
    pub lesson: Lesson,
}

/// Text and lesson of feedback on a trajectory: a correction before a rating before an acceptance.
/// `None` if it has none of them.
pub(super) fn taught_text(stored: &StoredTrajectory, feedback: &Feedback) -> Option<TaughtText> {
    let prompt = stored.trajectory.prompt_tokens.clone();
    if let Some(correction) = &feedback.correction {
        return Some(TaughtText { prompt, response: correction.clone(), lesson: Lesson::Corrected });
    }
    let accepted = || {
        let rating = if feedback.accepted? { 1.0 } else { -1.0 };
        crate::Rating::new(rating).ok()
    };
    let rating = feedback.rating.or_else(accepted)?;
    let response = stored.trajectory.response_tokens.clone();
    Some(TaughtText { prompt, response, lesson: Lesson::Rated(rating) })
}

/// Observes the response behind its prompt.
pub(super) fn observe(model: &dyn ObservedModel, text: &TaughtText) -> Result<Observations> {
    if text.prompt.is_empty() {
        return Err(Error::Empty { what: "prompt: the first token of a text follows nothing" });
    }
    if text.response.is_empty() {
        return Err(Error::Empty { what: "response: it has no tokens to teach" });
    }
    let tokens = [text.prompt.as_slice(), &text.response].concat();
    model.observe(&tokens, text.prompt.len()..tokens.len())
}

/// Observes all positions of a text.
pub(super) fn observe_all(model: &dyn ObservedModel, tokens: &[u32]) -> Result<Observations> {
    if tokens.len() < 2 {
        return Err(Error::Empty { what: "ordinary text: it needs two tokens" });
    }
    model.observe(tokens, 1..tokens.len())
}
