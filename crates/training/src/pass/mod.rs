//! Forward and backward passes over batches of whole sequences.

mod head;
mod teacher;

use std::ops::Range;

use ruvllm_models::{Activation, Compute, Model, Pooling};

pub(crate) use self::head::TeacherStates;
pub use self::teacher::DistillationConfig;
pub(crate) use self::teacher::check_vocabularies;

use crate::batch::{Rows, Sequence};
use crate::error::{Error, Result};
use crate::frozen::{GradientFormat, Ropes, Transposed};
use crate::layer::{Buffers, Factors, Layer, Saved};
use crate::lora::Lora;

/// Settings of [`Backprop`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BackpropOptions {
    /// Format of the transposed weights, by which gradients are propagated.
    pub gradients: GradientFormat,
    /// Keep the input of each layer only and compute its activations again in the backward pass:
    /// a fraction of the memory, a third more computation.
    pub checkpointing: bool,
}

/// Back-propagation through a decoder with frozen weights.
///
/// Holds transposed copies of the weights and the memory of a pass. All results have the same bits
/// for any number of threads and on any instruction set.
pub struct Backprop<'m> {
    model: &'m Model,
    compute: &'m Compute,
    options: BackpropOptions,
    /// Made by the first pass with gradients.
    transposed: Option<Transposed>,
    ropes: Ropes,
    memory: Memory,
}

#[derive(Default)]
struct Memory {
    saved: Vec<Saved>,
    /// Inputs of the layers, with checkpointing.
    inputs: Vec<Vec<f32>>,
    buffers: Buffers,
    /// Residual stream, then its gradient.
    hidden: Vec<f32>,
    stream: Vec<f32>,
    head: head::Memory,
}

/// Log-probabilities of the scored tokens of a batch.
#[derive(Debug, Clone, PartialEq)]
pub struct LogProbabilities {
    tokens: Vec<f32>,
    sequences: Vec<Range<usize>>,
}

impl LogProbabilities {
    /// Log-probability of each scored token, of all sequences.
    pub fn tokens(&self) -> &[f32] {
        &self.tokens
    }

    /// Places of the scored tokens of each sequence in [`tokens`](Self::tokens).
    pub fn sequences(&self) -> &[Range<usize>] {
        &self.sequences
    }

    /// Log-probability of each sequence: the sum over its scored tokens.
    pub fn sums(&self) -> Vec<f64> {
        let sum = |range: &Range<usize>| self.tokens[range.clone()].iter().map(|&p| f64::from(p)).sum();
        self.sequences.iter().map(sum).collect()
    }

    /// Sum of the negative log-probabilities of all scored tokens, in nats.
    pub fn loss_sum(&self) -> f64 {
        -self.tokens.iter().map(|&p| f64::from(p)).sum::<f64>()
    }

    /// The same coefficient for all scored tokens of a sequence: derivatives of a loss with respect
    /// to sequence log-probabilities, as [`Pass::backward`] takes them.
    ///
    /// # Errors
    /// [`Error::Length`] unless there is one coefficient per sequence.
    pub fn spread(&self, coefficients: &[f64]) -> Result<Vec<f32>> {
        check_length("sequence coefficients", self.sequences.len(), coefficients.len())?;
        let mut tokens = vec![0.0; self.tokens.len()];
        for (range, &coefficient) in self.sequences.iter().zip(coefficients) {
            tokens[range.clone()].fill(coefficient as f32);
        }
        Ok(tokens)
    }
}

/// A forward pass whose activations are kept for its backward pass.
pub struct Pass<'p, 'm> {
    backprop: &'p mut Backprop<'m>,
    lora: &'p Lora,
    rows: Rows,
}

impl<'m> Backprop<'m> {
    /// Takes a model. Transposed weights are made by the first pass with gradients.
    ///
    /// # Errors
    /// [`Error::Untrainable`] for a model with a part without gradients, [`Error::Setting`] for an
    /// activation function that has no derivative here.
    pub fn new(model: &'m Model, compute: &'m Compute, options: BackpropOptions) -> Result<Self> {
        if model.config().decoder.unusual_feature().is_some() {
            return Err(Error::untrainable(model.config()));
        }
        let activation = model.config().decoder.activation;
        if !matches!(activation, Activation::SwiGlu | Activation::GeGlu) {
            let value = format!("{activation:?} in {}", model.config().architecture);
            let range = "SwiGlu or GeGlu, whose derivatives are implemented";
            return Err(Error::Setting { name: "activation", value, range });
        }
        let (transposed, memory) = (None, Memory::default());
        Ok(Self { model, compute, options, transposed, ropes: Ropes::new(model), memory })
    }

    /// The model.
    pub fn model(&self) -> &'m Model {
        self.model
    }

    /// Kernels and threads.
    pub fn compute(&self) -> &'m Compute {
        self.compute
    }

    /// Bytes of the transposed weights; 0 before the first pass with gradients.
    pub fn transposed_bytes(&self) -> usize {
        self.transposed.as_ref().map_or(0, Transposed::bytes)
    }

    /// Log-probabilities of the scored tokens of a batch, without gradients. `lora` = `None` is the
    /// model alone.
    ///
    /// # Errors
    /// As [`forward`](Self::forward).
    pub fn log_probabilities(
        &mut self,
        lora: Option<&Lora>,
        sequences: &[&Sequence],
    ) -> Result<LogProbabilities> {
        let rows = self.forward_only(lora, sequences)?;
        Ok(self.score(&rows, false))
    }

    /// Computes a batch without activations for a backward pass.
    fn forward_only(&mut self, lora: Option<&Lora>, sequences: &[&Sequence]) -> Result<Rows> {
        let rows = self.begin(lora, sequences)?;
        self.memory.saved.resize_with(1, Saved::default);
        let Memory { saved, buffers, hidden, .. } = &mut self.memory;
        let parts = (self.model, self.compute, &self.ropes, None);
        for index in 0..self.model.config().n_layers {
            layer(parts, &rows, index, lora)?.forward(hidden, &mut saved[0], buffers);
        }
        Ok(rows)
    }

    /// Computes a batch and keeps the activations that its backward pass reads. Sequences do not
    /// see each other; each is computed whole.
    ///
    /// # Errors
    /// [`Error::OtherModel`]; [`Error::SequenceLength`], [`Error::Token`] and [`Error::Length`] for
    /// sequences that the model cannot read.
    pub fn forward<'p>(&'p mut self, lora: &'p Lora, sequences: &[&Sequence]) -> Result<Pass<'p, 'm>> {
        let rows = self.begin(Some(lora), sequences)?;
        if self.transposed.is_none() {
            let format = self.options.gradients;
            self.transposed = Some(Transposed::new(self.model, format, &self.compute.pool)?);
        }
        let (n_layers, first) = (self.model.config().n_layers, lora.first_layer());
        let checkpointing = self.options.checkpointing;
        let Memory { saved, inputs, buffers, hidden, .. } = &mut self.memory;
        saved.resize_with(if checkpointing { 1 } else { n_layers - first }, Saved::default);
        inputs.resize_with(if checkpointing { n_layers } else { 0 }, Vec::new);
        let parts = (self.model, self.compute, &self.ropes, None);
        for index in 0..n_layers {
            if let Some(input) = inputs.get_mut(index) {
                input.clear();
                input.extend_from_slice(hidden);
            }
            let place = if checkpointing { 0 } else { index.saturating_sub(first) };
            layer(parts, &rows, index, Some(lora))?.forward(hidden, &mut saved[place], buffers);
        }
        Ok(Pass { backprop: self, lora, rows })
    }

    /// Checks a batch and looks its embeddings up.
    fn begin(&mut self, lora: Option<&Lora>, sequences: &[&Sequence]) -> Result<Rows> {
        let (config, weights) = (self.model.config(), self.model.weights());
        if let Some(lora) = lora
            && *lora.base() != *self.model.adapter_base()
        {
            let (found, expected) = (lora.base().to_string(), self.model.adapter_base().to_string());
            return Err(Error::OtherModel { found, expected });
        }
        let rows = Rows::new(sequences, config)?;
        self.ropes.grow(rows.longest());
        let (dim, scale) = (config.model_dim, config.decoder.embedding_scale);
        self.memory.hidden.resize(rows.len() * dim, 0.0);
        for (row, &token) in self.memory.hidden.chunks_exact_mut(dim).zip(rows.tokens()) {
            weights.embedding.dequantize_row(token as usize, row);
            if scale != 1.0 {
                row.iter_mut().for_each(|value| *value *= scale);
            }
        }
        Ok(rows)
    }
}

/// One layer of a pass.
fn layer<'a>(
    (model, compute, ropes, transposed): (&'a Model, &'a Compute, &'a Ropes, Option<&'a Transposed>),
    rows: &'a Rows,
    index: usize,
    lora: Option<&'a Lora>,
) -> Result<Layer<'a>> {
    let weights = &model.weights().layers[index];
    let untrainable = || Error::untrainable(model.config());
    let attention = weights.mixer.attention().ok_or_else(untrainable)?;
    let network = weights.feed_forward.as_ref().ok_or_else(untrainable)?;
    Ok(Layer {
        config: model.config(),
        weights,
        attention_norm: weights.attention_norm.as_deref().ok_or_else(untrainable)?,
        attention,
        value: attention.value.as_ref().ok_or_else(untrainable)?,
        ffn_norm: weights.ffn_norm.as_deref().ok_or_else(untrainable)?,
        network,
        gate: network.gate.as_ref().ok_or_else(untrainable)?,
        transposed: transposed.map(|transposed| &transposed.layers[index]),
        index,
        ropes,
        rows,
        compute,
        factors: Factors::new(lora, index)?,
    })
}

impl Pass<'_, '_> {
    /// Log-probabilities of the scored tokens, whose gradients [`backward`](Self::backward)
    /// propagates.
    pub fn log_probabilities(&mut self) -> LogProbabilities {
        self.backprop.score(&self.rows, true)
    }

    /// Final hidden states of all tokens, behind the final norm: `[tokens, model_dim]`.
    pub fn hidden_states(&self) -> Vec<f32> {
        let Backprop { model, compute, memory, .. } = &*self.backprop;
        let mut out = vec![0.0; memory.hidden.len()];
        let (weight, eps) = (&model.weights().output_norm, model.config().norm_eps);
        compute.kernels.rms_norm(&memory.hidden, weight, eps, &mut out);
        out
    }

    /// Rows of each sequence in [`hidden_states`](Self::hidden_states).
    pub fn sequence_rows(&self) -> &[Range<usize>] {
        self.rows.sequences()
    }

    /// Pooled final hidden state of each sequence: `[sequences, model_dim]`, not normalized.
    pub fn pooled(&self, pooling: Pooling) -> Vec<f32> {
        let dim = self.backprop.model.config().model_dim;
        let (hidden, mut out) = (self.hidden_states(), Vec::new());
        for rows in self.rows.sequences() {
            let mut sum = vec![0.0; dim];
            let (rows, weight) = pooled_rows(rows, pooling);
            for row in hidden[rows.start * dim..rows.end * dim].chunks_exact(dim) {
                sum.iter_mut().zip(row).for_each(|(sum, value)| *sum += weight * value);
            }
            out.extend_from_slice(&sum);
        }
        out
    }

    /// Adds the gradients of a loss to `gradients`, of the layout of [`Lora::values`]:
    /// `coefficients` are its derivatives with respect to the log-probability of each scored token.
    /// Mean cross-entropy has `-1 / n` for each of `n` tokens.
    ///
    /// # Errors
    /// [`Error::Length`] unless there is one coefficient per scored token and one gradient per
    /// value.
    pub fn backward(mut self, coefficients: &[f32], gradients: &mut [f32]) -> Result<()> {
        check_length("coefficients", self.rows.scored().len(), coefficients.len())?;
        if !self.backprop.memory.head.has_gradients(self.rows.scored().len()) {
            self.log_probabilities();
        }
        self.backprop.scored_gradients(&self.rows, coefficients);
        self.finish(gradients)
    }

    /// Adds the gradients of a loss of the final hidden states to `gradients`; `derivatives` are
    /// those with respect to [`hidden_states`](Self::hidden_states).
    ///
    /// # Errors
    /// [`Error::Length`] unless both have the right length.
    pub fn backward_hidden(self, derivatives: &[f32], gradients: &mut [f32]) -> Result<()> {
        let Backprop { model, compute, memory, .. } = &mut *self.backprop;
        check_length("derivatives", memory.hidden.len(), derivatives.len())?;
        let (weight, eps) = (&model.weights().output_norm, model.config().norm_eps);
        memory.stream.clear();
        memory.stream.resize(derivatives.len(), 0.0);
        compute.kernels.add_rms_norm_backward(&memory.hidden, weight, eps, derivatives, &mut memory.stream);
        self.finish(gradients)
    }

    /// As [`backward_hidden`](Self::backward_hidden), from the derivatives with respect to
    /// [`pooled`](Self::pooled).
    ///
    /// # Errors
    /// As `backward_hidden`.
    pub fn backward_pooled(self, pooling: Pooling, derivatives: &[f32], gradients: &mut [f32]) -> Result<()> {
        let dim = self.backprop.model.config().model_dim;
        check_length("derivatives", self.rows.sequences().len() * dim, derivatives.len())?;
        let mut hidden = vec![0.0; self.rows.len() * dim];
        for (rows, derivative) in self.rows.sequences().iter().zip(derivatives.chunks_exact(dim)) {
            let (rows, weight) = pooled_rows(rows, pooling);
            for row in hidden[rows.start * dim..rows.end * dim].chunks_exact_mut(dim) {
                row.iter_mut().zip(derivative).for_each(|(out, value)| *out = weight * value);
            }
        }
        self.backward_hidden(&hidden, gradients)
    }

    /// Propagates the gradient of the residual stream through the layers.
    fn finish(self, gradients: &mut [f32]) -> Result<()> {
        let Self { backprop, lora, rows } = self;
        check_length("gradients", lora.len(), gradients.len())?;
        let Backprop { model, compute, options, transposed, ropes, memory } = backprop;
        let Memory { saved, inputs, buffers, hidden, stream, .. } = memory;
        let (n_layers, first) = (model.config().n_layers, lora.first_layer());
        let parts = (*model, *compute, &*ropes, transposed.as_ref());
        for index in (first..n_layers).rev() {
            let layer = layer(parts, &rows, index, Some(lora))?;
            let saved = if options.checkpointing {
                hidden.copy_from_slice(&inputs[index]);
                layer.forward(hidden, &mut saved[0], buffers);
                &saved[0]
            } else {
                &saved[index - first]
            };
            layer.backward(stream, saved, buffers, gradients, index > first);
        }
        Ok(())
    }
}

/// Rows that a pooled state is the weighted sum of.
fn pooled_rows(rows: &Range<usize>, pooling: Pooling) -> (Range<usize>, f32) {
    match pooling {
        Pooling::Last => (rows.end - 1..rows.end, 1.0),
        Pooling::Cls => (rows.start..rows.start + 1, 1.0),
        _ => (rows.clone(), 1.0 / rows.len() as f32),
    }
}

fn check_length(what: &'static str, expected: usize, found: usize) -> Result<()> {
    if expected == found { Ok(()) } else { Err(Error::Length { what, expected, found }) }
}
