//! Classification head of a reranker: one logit for the first state of a pair of texts.
//!
//! `output(tanh(hidden(state)))`; BERT names the hidden layer its pooler.

use std::iter;

use ruvllm_kernels::matmul::{Activations, MatmulJob};

use super::config::EncoderConfig;
use super::linear::linear;
use crate::compute::Compute;
use crate::error::{Error, Result};
use crate::projection::project;
use crate::weights::{Linear, TensorSource};

/// Name of the output matrix.
const OUTPUT: &str = "cls.output";

/// The head's weights.
pub(super) struct Head {
    hidden: Linear,   // [model_dim, model_dim]
    output: Vec<f32>, // [model_dim]
    bias: f32,
}

impl Head {
    /// Loads the head if the file has one.
    ///
    /// # Errors
    /// [`Error::HeadWithoutHidden`]; a tensor of another shape, such as one of a classifier with
    /// several labels.
    pub(super) fn load(source: &mut TensorSource<'_>, config: &EncoderConfig) -> Result<Option<Self>> {
        let dim = config.model_dim;
        if !source.has(&format!("{OUTPUT}.weight")) {
            return Ok(None);
        }
        if !source.has("cls.weight") {
            return Err(Error::HeadWithoutHidden);
        }
        let hidden = linear(source, config, "cls", (dim, dim))?;
        let output = source.values(&format!("{OUTPUT}.weight"), &[dim, 1])?;
        let bias = source.optional_vector(&format!("{OUTPUT}.bias"), 1)?;
        Ok(Some(Self { hidden, output, bias: bias.map_or(0.0, |bias| bias[0]) }))
    }

    /// Logits of these states, `[model_dim]` each.
    pub(super) fn scores<'s>(
        &self,
        compute: &Compute,
        states: impl ExactSizeIterator<Item = &'s [f32]>,
    ) -> Vec<f32> {
        let dim = self.output.len();
        let mut input = Activations::default();
        input.resize(states.len(), dim);
        input
            .values_mut()
            .chunks_exact_mut(dim)
            .zip(states)
            .for_each(|(row, state)| row.copy_from_slice(state));
        let mut hidden = vec![0.0; input.values().len()];
        project(compute, &mut input, &mut [MatmulJob { weights: &self.hidden.weights, out: &mut hidden }]);
        hidden.chunks_exact(dim).map(|row| self.logit(row)).collect()
    }

    /// Logit of a product of the hidden layer. In f64, so that what is left after rounding does not
    /// depend on the machine's library.
    fn logit(&self, product: &[f32]) -> f32 {
        let bias = self.hidden.bias.iter().flatten().chain(iter::repeat(&0.0));
        let hidden = product.iter().zip(bias).map(|(&x, &bias)| f64::from(x) + f64::from(bias));
        // tanh(x) = 1 - 2 / (e^2x + 1), with an absolute error of 1e-16.
        let values = hidden.map(|x| 1.0 - 2.0 / ((2.0 * x).exp() + 1.0));
        let sum: f64 = values.zip(&self.output).map(|(value, &weight)| value * f64::from(weight)).sum();
        (sum + f64::from(self.bias)) as f32
    }
}
