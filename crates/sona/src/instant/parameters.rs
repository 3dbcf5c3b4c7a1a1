//! Parameters of the instant learner: two low-rank updates behind the last keys and values.

use std::ops::Range;

use crate::error::{Error, Result};

/// Sizes of the learned updates.
///
/// With the final hidden state `h` of a position,
///
/// ```text
/// h'     = h + B A h          A: [hidden_rank, model_dim], B: [model_dim, hidden_rank]
/// logits = W h' + D C h'      C: [logits_rank, model_dim], D: [vocab_size, logits_rank]
/// ```
///
/// Both sit behind the last layer's keys and values, so cached prefixes stay valid, and both
/// gradients follow from the output projection alone: nothing goes back through the layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Width of the final hidden state.
    pub model_dim: usize,
    /// Number of logits.
    pub vocab_size: usize,
    /// Rank of the update of the hidden state; 0 for none.
    pub hidden_rank: usize,
    /// Rank of the update of the logits; 0 for none.
    pub logits_rank: usize,
}

/// Largest rank of an update.
pub const MAX_RANK: usize = 4;

impl Shape {
    /// Checks the sizes.
    ///
    /// # Errors
    /// [`Error::Setting`] for a rank above [`MAX_RANK`], two ranks of 0, or an empty model.
    pub fn check(&self) -> Result<()> {
        let wrong = |name, value: usize, range| Err(Error::Setting { name, value: value.to_string(), range });
        match self {
            Self { model_dim: 0, .. } => wrong("model_dim", 0, "at least 1"),
            Self { vocab_size: 0, .. } => wrong("vocab_size", 0, "at least 1"),
            Self { hidden_rank: 0, logits_rank: 0, .. } => {
                wrong("hidden_rank", 0, "1 to 4, or logits_rank is")
            }
            Self { hidden_rank, .. } if *hidden_rank > MAX_RANK => {
                wrong("hidden_rank", *hidden_rank, "0 to 4")
            }
            Self { logits_rank, .. } if *logits_rank > MAX_RANK => {
                wrong("logits_rank", *logits_rank, "0 to 4")
            }
            _ => Ok(()),
        }
    }

    /// Number of parameters.
    pub fn len(&self) -> usize {
        self.logits_b().end
    }

    /// True without parameters.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Place of `A`, `[hidden_rank, model_dim]`.
    pub fn hidden_a(&self) -> Range<usize> {
        0..self.hidden_rank * self.model_dim
    }

    /// Place of `B`, transposed: `[hidden_rank, model_dim]`.
    pub fn hidden_b(&self) -> Range<usize> {
        let start = self.hidden_a().end;
        start..start + self.hidden_rank * self.model_dim
    }

    /// Place of `C`, `[logits_rank, model_dim]`.
    pub fn logits_a(&self) -> Range<usize> {
        let start = self.hidden_b().end;
        start..start + self.logits_rank * self.model_dim
    }

    /// Place of `D`, transposed: `[logits_rank, vocab_size]`.
    pub fn logits_b(&self) -> Range<usize> {
        let start = self.logits_a().end;
        start..start + self.logits_rank * self.vocab_size
    }

    /// Places of the column of `D` of a token.
    pub(super) fn column(&self, token: u32) -> impl Iterator<Item = usize> + use<> {
        let (start, vocab_size) = (self.logits_b().start, self.vocab_size);
        (0..self.logits_rank).map(move |component| start + component * vocab_size + token as usize)
    }
}
