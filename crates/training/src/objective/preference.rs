//! DPO over pairs whose reference is computed when a pair is first read.

use super::{Batch, BatchLoss, Objective, digest_sequences};
use crate::error::{Error, Result};
use crate::lora::Lora;
use crate::pass::Backprop;
use crate::preference::{Preference, PreferenceLoss, add_preference_gradients, preference_loss, reference};

/// Direct preference optimization (arXiv 2305.18290), mean loss per pair in nats.
pub struct Preferences<'d> {
    data: &'d [Preference],
    validation: &'d [Preference],
    beta: f64,
    /// Log-probabilities of both answers under the model alone, of pairs that were read before.
    references: Vec<Option<[f64; 2]>>,
    held_out: Option<Vec<[f64; 2]>>,
}

impl<'d> Preferences<'d> {
    /// Loss over `data`, with the KL weight `beta`; `validation` may be empty.
    ///
    /// # Errors
    /// Errors of sequences that the model cannot read; [`Error::NothingScored`] without pairs or
    /// for an answer without scored tokens; [`Error::Setting`] unless `beta` is positive.
    pub fn new(
        backprop: &Backprop<'_>,
        data: &'d [Preference],
        validation: &'d [Preference],
        beta: f64,
    ) -> Result<Self> {
        if !(beta > 0.0 && beta.is_finite()) {
            return Err(Error::Setting { name: "beta", value: beta.to_string(), range: "positive" });
        }
        if data.is_empty() {
            return Err(Error::NothingScored { what: "the training data" });
        }
        for (what, pairs) in [("the training data", data), ("the validation data", validation)] {
            for (index, pair) in pairs.iter().enumerate() {
                for sequence in [&pair.chosen, &pair.rejected] {
                    sequence.check(index, backprop.model().config())?;
                    if sequence.n_scored() == 0 {
                        return Err(Error::NothingScored { what });
                    }
                }
            }
        }
        Ok(Self { data, validation, beta, references: vec![None; data.len()], held_out: None })
    }

    /// Loss, margin and accuracy of the held-out pairs, without gradients; `None` without any.
    ///
    /// # Errors
    /// Errors of [`Backprop::log_probabilities`].
    pub fn measure(
        &mut self,
        backprop: &mut Backprop<'_>,
        lora: Option<&Lora>,
        per_pass: usize,
    ) -> Result<Option<PreferenceLoss>> {
        if self.validation.is_empty() {
            return Ok(None);
        }
        let pairs: Vec<&Preference> = self.validation.iter().collect();
        if self.held_out.is_none() {
            let mut found = Vec::with_capacity(pairs.len());
            for pairs in pairs.chunks(per_pass) {
                found.extend(reference(backprop, pairs)?);
            }
            self.held_out = Some(found);
        }
        let references = self.held_out.as_deref().unwrap_or_default();
        let mut total = PreferenceLoss::default();
        for (pairs, references) in pairs.chunks(per_pass).zip(references.chunks(per_pass)) {
            let part = preference_loss(backprop, lora, pairs, references, self.beta)?;
            total.add(&part, pairs.len() as f64 / self.validation.len() as f64);
        }
        Ok(Some(total))
    }
}

impl Preferences<'_> {
    /// Log-probabilities of both answers of some pairs under the model alone.
    fn references_of(&mut self, backprop: &mut Backprop<'_>, examples: &[usize]) -> Result<Vec<[f64; 2]>> {
        if examples.iter().any(|&index| self.references[index].is_none()) {
            let pairs: Vec<&Preference> = examples.iter().map(|&index| &self.data[index]).collect();
            for (&index, found) in examples.iter().zip(reference(backprop, &pairs)?) {
                self.references[index] = Some(found);
            }
        }
        Ok(examples.iter().filter_map(|&index| self.references[index]).collect())
    }
}

impl Objective for Preferences<'_> {
    fn label(&self) -> &'static str {
        "DPO loss (nats per pair)"
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
        let (mut total, mut tokens) = (PreferenceLoss::default(), 0);
        for examples in batch.examples.chunks(batch.per_pass) {
            let pairs: Vec<&Preference> = examples.iter().map(|&index| &self.data[index]).collect();
            let references = self.references_of(backprop, examples)?;
            let share = pairs.len() as f64 / batch.examples.len() as f64;
            let part =
                add_preference_gradients(backprop, lora, &pairs, &references, self.beta, share, gradients)?;
            total.add(&part, share);
            let of = |pair: &&Preference| pair.chosen.tokens.len() + pair.rejected.tokens.len();
            tokens += pairs.iter().map(of).sum::<usize>();
        }
        Ok(BatchLoss { loss: total.loss, tokens, reward: None })
    }

    fn validate(&mut self, backprop: &mut Backprop<'_>, lora: &Lora, per_pass: usize) -> Result<Option<f64>> {
        Ok(self.measure(backprop, Some(lora), per_pass)?.map(|found| found.loss))
    }

    /// Log-odds of the rejected answer against the chosen one.
    fn difficulty(&mut self, backprop: &mut Backprop<'_>, _: &Lora, per_pass: usize) -> Result<Vec<f64>> {
        let all: Vec<usize> = (0..self.data.len()).collect();
        let mut odds = Vec::with_capacity(all.len());
        for examples in all.chunks(per_pass.max(1)) {
            let references = self.references_of(backprop, examples)?;
            odds.extend(references.into_iter().map(|[chosen, rejected]| rejected - chosen));
        }
        Ok(odds)
    }

    fn settings(&self) -> String {
        format!("preference {:?}", self.beta)
    }

    fn data_digest(&self) -> [u8; 32] {
        let [data, validation] = [self.data, self.validation]
            .map(|pairs| pairs.iter().flat_map(|pair| [&pair.chosen, &pair.rejected]).collect::<Vec<_>>());
        digest_sequences(&[&data, &validation])
    }
}
