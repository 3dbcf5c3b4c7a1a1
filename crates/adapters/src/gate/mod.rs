//! Gates over several adapters: weights of their updates for each token and layer.
//!
//! A gate is a linear layer and a softmax per decoder layer, as in X-LoRA (arXiv 2402.07148), on
//! the normalized attention input of that layer (ADR-0059).

mod file;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use ruvllm_kernels::Kernels;
use sha2::{Digest as _, Sha256};

use crate::error::{Error, Result};
use crate::place::BaseModel;

/// Largest number of adapters of a gate.
pub const MAX_GATED: usize = 64;

/// Range of valid temperatures: scores stay finite and different.
const TEMPERATURES: std::ops::RangeInclusive<f32> = 1e-3..=1e3;

/// Form of a gate's softmax.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GateConfig {
    /// Number of adapters, 1 to [`MAX_GATED`].
    pub n_adapters: usize,
    /// Divisor of the scores, 0.001 to 1000.
    pub temperature: f32,
    /// Adapters per token and layer, those of the highest scores; the gates of the others are 0.
    /// `None` = all.
    pub top_k: Option<usize>,
}

/// Token-wise gate over several adapters of one model.
///
/// For a token with normalized attention input `h` in layer `l`, the gates of the adapters are
/// `softmax((W_l h + b_l) / temperature)`. They multiply the updates of the adapters at every site
/// of the layer; logits take the gates of the last layer.
pub struct AdapterGate {
    base: Arc<BaseModel>,
    config: GateConfig,
    /// `[n_layers, n_adapters, model_dim]`
    weights: Vec<f32>,
    /// `[n_layers, n_adapters]`
    biases: Vec<f32>,
    digest: [u8; 32],
}

impl AdapterGate {
    /// A gate of given weights.
    ///
    /// # Shapes
    /// `weights`: `[n_layers, n_adapters, model_dim]`; `biases`: `[n_layers, n_adapters]`.
    ///
    /// # Errors
    /// [`Error::GateField`] for a configuration out of range; [`Error::GateShape`] for another
    /// number of values, [`Error::NotFinite`] for values that are not finite.
    pub fn new(
        base: &Arc<BaseModel>,
        config: GateConfig,
        weights: Vec<f32>,
        biases: Vec<f32>,
    ) -> Result<Self> {
        config.check()?;
        let shape = [base.n_layers, config.n_adapters, base.model_dim];
        for (name, values, expected) in [("weights", &weights, &shape[..]), ("biases", &biases, &shape[..2])]
        {
            if values.len() != expected.iter().product::<usize>() {
                let (found, expected) = (vec![values.len()], expected.to_vec());
                return Err(Error::GateShape { name: name.to_owned(), found, expected });
            }
            if values.iter().any(|value| !value.is_finite()) {
                return Err(Error::NotFinite { name: name.to_owned() });
            }
        }
        let digest = digest(config, &weights, &biases);
        Ok(Self { base: Arc::clone(base), config, weights, biases, digest })
    }

    /// Gates of all adapters for one token in `layer`, written to `gates`.
    ///
    /// # Shapes
    /// `input`: `[model_dim]`, the normalized attention input; `gates`: `[n_adapters]`.
    ///
    /// # Numerics
    /// Scores are [`Kernels::dot`] plus the bias, divided by the temperature; then
    /// [`Kernels::softmax`], with `top_k` of the highest scores only (of equal ones those of the
    /// first adapters). The same bits on every instruction set.
    ///
    /// # Panics
    /// If the layer does not exist, or shapes do not match.
    pub fn gates(&self, kernels: &Kernels, layer: usize, input: &[f32], gates: &mut [f32]) {
        let (n, dim) = (self.config.n_adapters, self.base.model_dim);
        assert_eq!(gates.len(), n, "gates of another number of adapters");
        let weights = self.weights[layer * n * dim..][..n * dim].chunks_exact(dim);
        let biases = &self.biases[layer * n..][..n];
        for ((gate, weights), bias) in gates.iter_mut().zip(weights).zip(biases) {
            *gate = (kernels.dot(weights, input) + bias) / self.config.temperature;
        }
        if let Some(top_k) = self.config.top_k {
            keep_highest(gates, top_k);
        }
        kernels.softmax(gates);
    }

    /// Number of adapters and form of the softmax.
    pub fn config(&self) -> GateConfig {
        self.config
    }

    /// Shape of the model that it was loaded for.
    pub fn base(&self) -> &Arc<BaseModel> {
        &self.base
    }

    /// Digest of weights and configuration: equal for equal gates only.
    pub fn digest(&self) -> &[u8; 32] {
        &self.digest
    }
}

impl GateConfig {
    /// Checks the ranges of all fields.
    fn check(&self) -> Result<()> {
        let &Self { n_adapters, temperature, top_k } = self;
        let refuse = |name, found: String, expected| Err(Error::GateField { name, found, expected });
        if !(1..=MAX_GATED).contains(&n_adapters) {
            return refuse("n_adapters", n_adapters.to_string(), "1 to 64");
        }
        if !TEMPERATURES.contains(&temperature) {
            return refuse("temperature", temperature.to_string(), "0.001 to 1000");
        }
        match top_k.filter(|top_k| !(1..=n_adapters).contains(top_k)) {
            Some(top_k) => refuse("top_k", top_k.to_string(), "1 to n_adapters"),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for AdapterGate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdapterGate")
            .field("base", &self.base)
            .field("config", &self.config)
            .finish_non_exhaustive()
    }
}

/// Sets all but the `n` highest scores to `-inf`, whose softmax is 0; of equal scores the first
/// stay.
fn keep_highest(scores: &mut [f32], n: usize) {
    const { assert!(MAX_GATED <= u64::BITS as usize, "a bit for each score") };
    let beats = |a: usize, b: usize| scores[a].total_cmp(&scores[b]).then(b.cmp(&a)).is_gt();
    let is_kept = |index: usize| (0..scores.len()).filter(|&other| beats(other, index)).count() < n;
    let kept = (0..scores.len()).filter(|&index| is_kept(index)).fold(0u64, |kept, index| kept | 1 << index);
    for (index, score) in scores.iter_mut().enumerate() {
        if kept >> index & 1 == 0 {
            *score = f32::NEG_INFINITY;
        }
    }
}

fn digest(config: GateConfig, weights: &[f32], biases: &[f32]) -> [u8; 32] {
    let GateConfig { n_adapters, temperature, top_k } = config;
    let mut hash = Sha256::new();
    hash.update(format!("gate {n_adapters} {:08x} {top_k:?} {};", temperature.to_bits(), biases.len()));
    hash.update(bytemuck::cast_slice::<f32, u8>(biases));
    hash.update(bytemuck::cast_slice::<f32, u8>(weights));
    hash.finalize().into()
}
