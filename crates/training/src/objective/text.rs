//! Mean cross-entropy of the scored tokens.

use ruvllm_models::ModelConfig;

use super::{Batch, BatchLoss, Objective, digest_sequences};
use crate::batch::Sequence;
use crate::error::{Error, Result};
use crate::lora::Lora;
use crate::pass::{Backprop, Pass};

/// Mean cross-entropy per scored token, in nats.
#[derive(Debug, Clone, Copy)]
pub struct CrossEntropy<'d> {
    data: &'d [Sequence],
    validation: &'d [Sequence],
}

impl<'d> CrossEntropy<'d> {
    /// Loss over `data`; `validation` may be empty.
    ///
    /// # Errors
    /// Errors of sequences that the model cannot read; [`Error::NothingScored`].
    pub fn new(backprop: &Backprop<'_>, data: &'d [Sequence], validation: &'d [Sequence]) -> Result<Self> {
        check_data(backprop.model().config(), data, validation)?;
        Ok(Self { data, validation })
    }
}

/// Checks training and validation data; the latter may be empty.
///
/// # Errors
/// Errors of sequences that the model cannot read; [`Error::NothingScored`].
pub(super) fn check_data(config: &ModelConfig, data: &[Sequence], validation: &[Sequence]) -> Result<()> {
    for (what, sequences) in [("the training data", data), ("the validation data", validation)] {
        for (index, sequence) in sequences.iter().enumerate() {
            sequence.check(index, config)?;
        }
        let is_needed = what == "the training data" || !sequences.is_empty();
        if is_needed && sequences.iter().all(|sequence| sequence.n_scored() == 0) {
            return Err(Error::NothingScored { what });
        }
    }
    Ok(())
}

/// Adds the gradients of the mean loss per scored token of a batch of `data`. `score` computes the
/// scores of a pass, negative losses, and gives the sum of these losses.
pub(super) fn add_mean_gradients(
    backprop: &mut Backprop<'_>,
    lora: &Lora,
    (data, batch): (&[Sequence], &Batch<'_>),
    gradients: &mut [f32],
    mut score: impl FnMut(&mut Pass<'_, '_>, &[&Sequence]) -> Result<f64>,
) -> Result<BatchLoss> {
    let sequences: Vec<&Sequence> = batch.examples.iter().map(|&index| &data[index]).collect();
    let n_scored = |sequences: &[&Sequence]| sequences.iter().map(|one| one.n_scored()).sum::<usize>();
    let n = n_scored(&sequences);
    let coefficient = if n == 0 { 0.0 } else { -1.0 / n as f32 };
    let mut loss = 0.0;
    for sequences in sequences.chunks(batch.per_pass) {
        let mut pass = backprop.forward(lora, sequences)?;
        loss += score(&mut pass, sequences)?;
        pass.backward(&vec![coefficient; n_scored(sequences)], gradients)?;
    }
    let tokens = sequences.iter().map(|sequence| sequence.tokens.len()).sum();
    Ok(BatchLoss { loss: loss / n.max(1) as f64, tokens, reward: None })
}

impl Objective for CrossEntropy<'_> {
    fn label(&self) -> &'static str {
        "cross-entropy (nats per token)"
    }

    fn n_examples(&self) -> usize {
        self.data.len()
    }

    fn add_gradients(
        &mut self,
        backprop: &mut Backprop<'_>,
        lora: &Lora,
        batch: &Batch<'_>,
        gradients: &mut [f32],
    ) -> Result<BatchLoss> {
        add_mean_gradients(backprop, lora, (self.data, batch), gradients, |pass, _| {
            Ok(pass.log_probabilities().loss_sum())
        })
    }

    fn validate(&mut self, backprop: &mut Backprop<'_>, lora: &Lora, per_pass: usize) -> Result<Option<f64>> {
        if self.validation.is_empty() {
            return Ok(None);
        }
        mean_loss(backprop, Some(lora), self.validation, per_pass).map(Some)
    }

    /// Mean loss per scored token.
    fn difficulty(&mut self, backprop: &mut Backprop<'_>, _: &Lora, per_pass: usize) -> Result<Vec<f64>> {
        let mut losses = Vec::with_capacity(self.data.len());
        for sequences in self.data.chunks(per_pass.max(1)) {
            let sequences: Vec<&Sequence> = sequences.iter().collect();
            let scored = backprop.log_probabilities(None, &sequences)?;
            let means = scored.sums().into_iter().zip(scored.sequences());
            losses.extend(means.map(|(sum, tokens)| -sum / tokens.len().max(1) as f64));
        }
        Ok(losses)
    }

    fn settings(&self) -> String {
        "cross-entropy".to_owned()
    }

    fn data_digest(&self) -> [u8; 32] {
        let [data, validation] = [self.data, self.validation].map(|list| list.iter().collect::<Vec<_>>());
        digest_sequences(&[&data, &validation])
    }
}

/// Mean loss per scored token of some sequences, in nats; its exponential is their perplexity.
///
/// # Errors
/// Errors of [`Backprop::log_probabilities`]; [`Error::NothingScored`].
pub fn mean_loss(
    backprop: &mut Backprop<'_>,
    lora: Option<&Lora>,
    sequences: &[Sequence],
    batch: usize,
) -> Result<f64> {
    let (mut sum, mut n) = (0.0, 0);
    for sequences in sequences.chunks(batch.max(1)) {
        let sequences: Vec<&Sequence> = sequences.iter().collect();
        let scored = backprop.log_probabilities(lora, &sequences)?;
        sum += scored.loss_sum();
        n += scored.tokens().len();
    }
    if n == 0 { Err(Error::NothingScored { what: "the sequences" }) } else { Ok(sum / n as f64) }
}
