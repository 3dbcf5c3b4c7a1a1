//! Losses that a [`Trainer`](crate::Trainer) follows.

mod contrastive;
mod distillation;
mod preference;
mod reward;
mod text;

use sha2::{Digest as _, Sha256};

pub use self::contrastive::{Contrastive, Pair, Retrieval, retrieval};
pub use self::distillation::{Agreement, Distillation, Teacher, agreement};
pub use self::preference::Preferences;
pub use self::reward::{Answer, GroupRelative, RewardConfig, Rollout, advantages};
pub use self::text::{CrossEntropy, mean_loss};

use crate::batch::Sequence;
use crate::error::Result;
use crate::lora::Lora;
use crate::pass::Backprop;

/// Examples of one optimizer step.
#[derive(Debug, Clone, Copy)]
pub struct Batch<'b> {
    /// Optimizer steps done before; loss functions that sample derive their seeds from it.
    pub step: u64,
    /// Indices of the examples, in `0..n_examples`.
    pub examples: &'b [usize],
    /// Examples per pass; the passes of a step add up.
    pub per_pass: usize,
}

/// Loss of a batch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BatchLoss {
    /// Mean loss, in the unit of the objective.
    pub loss: f64,
    /// Tokens computed.
    pub tokens: usize,
    /// Mean reward of sampled answers; `None` for objectives that sample none.
    pub reward: Option<f64>,
}

/// A loss over numbered examples.
///
/// A run can be continued from its state if the gradients are a function of the factors and the
/// [`Batch`] alone.
pub trait Objective {
    /// Name of the loss and its unit, as the label of an axis.
    fn label(&self) -> &'static str;

    /// Number of training examples, at least 1.
    fn n_examples(&self) -> usize;

    /// Adds the gradients of the mean loss of a batch to `gradients`, of the layout of
    /// [`Lora::values`].
    ///
    /// # Errors
    /// Errors of passes; errors of the implementation as [`Error::Other`](crate::Error::Other).
    fn add_gradients(
        &mut self,
        backprop: &mut Backprop<'_>,
        lora: &Lora,
        batch: &Batch<'_>,
        gradients: &mut [f32],
    ) -> Result<BatchLoss>;

    /// Mean loss of the held-out examples, `per_pass` at a time; `None` without any.
    ///
    /// # Errors
    /// As [`add_gradients`](Self::add_gradients).
    fn validate(&mut self, backprop: &mut Backprop<'_>, lora: &Lora, per_pass: usize) -> Result<Option<f64>>;

    /// Difficulty of each training example under the model alone, for a
    /// [`Curriculum`](crate::Curriculum): the larger, the harder. `lora` are new factors, which
    /// change nothing.
    ///
    /// # Errors
    /// As [`add_gradients`](Self::add_gradients).
    fn difficulty(&mut self, backprop: &mut Backprop<'_>, lora: &Lora, per_pass: usize) -> Result<Vec<f64>>;

    /// Settings of the loss, as text: a state of other settings is refused.
    fn settings(&self) -> String;

    /// Checksum of all examples, held-out ones too: a state of other data is refused.
    fn data_digest(&self) -> [u8; 32];
}

/// Checksum of some lists of sequences.
pub(crate) fn digest_sequences(lists: &[&[&Sequence]]) -> [u8; 32] {
    let mut data = Sha256::new();
    for list in lists {
        data.update((list.len() as u64).to_le_bytes());
        for sequence in *list {
            data.update((sequence.tokens.len() as u64).to_le_bytes());
            sequence.tokens.iter().for_each(|token| data.update(token.to_le_bytes()));
            data.update((sequence.mask.len() as u64).to_le_bytes());
            sequence.mask.iter().for_each(|&is_scored| data.update([u8::from(is_scored)]));
        }
    }
    data.finalize().into()
}
