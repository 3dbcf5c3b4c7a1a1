//! Which tensors a decoder has and what they are called. Says nothing about how they are used.

use gguf_rs_lite::Gguf;

use super::source::{LoadProgress, TensorSource};
use super::{EMBEDDING, LayerWeights, Linear, Weights};
use crate::config::ModelConfig;
use crate::config::rope::FREQUENCY_DIVISORS;
use crate::error::Result;

impl Weights {
    /// Loads the tensors that `config` asks for.
    ///
    /// # Errors
    /// A tensor is missing, left over, of an unsupported type or of another shape.
    pub(crate) fn load(
        gguf: &Gguf,
        config: &ModelConfig,
        progress: &mut dyn FnMut(LoadProgress<'_>),
    ) -> Result<Self> {
        let mut source = TensorSource::new(gguf, progress);
        let embedding = source.matrix(EMBEDDING, config.vocab_size, config.model_dim)?;
        // The configuration has read it already.
        source.skip(FREQUENCY_DIVISORS);
        // `n_layers` is at most the number of tensors, see `ModelConfig`.
        let mut layers = Vec::with_capacity(config.n_layers);
        for layer in 0..config.n_layers {
            layers.push(load_layer(&mut source, config, layer)?);
        }
        let output_norm = source.vector("output_norm.weight", config.model_dim)?;
        let output = if source.has("output.weight") {
            Some(linear(&mut source, "output", config.vocab_size, config.model_dim)?)
        } else {
            None
        };
        let bytes = source.finish(&config.architecture)?;
        Ok(Self { embedding, layers, output_norm, output, bytes })
    }
}

fn load_layer(source: &mut TensorSource<'_>, config: &ModelConfig, layer: usize) -> Result<LayerWeights> {
    let name = |part: &str| format!("blk.{layer}.{part}");
    let (model_dim, ffn_dim) = (config.model_dim, config.ffn_dim);
    let (query_dim, kv_dim) = (config.query_dim(), config.kv_dim());
    // Rotary frequencies that converters of 2023 stored per layer; they follow from the configuration.
    source.skip(&name("attn_rot_embd.weight"));
    Ok(LayerWeights {
        attention_norm: source.vector(&name("attn_norm.weight"), model_dim)?,
        query: linear(source, &name("attn_q"), query_dim, model_dim)?,
        key: linear(source, &name("attn_k"), kv_dim, model_dim)?,
        value: linear(source, &name("attn_v"), kv_dim, model_dim)?,
        attention_output: linear(source, &name("attn_output"), model_dim, query_dim)?,
        ffn_norm: source.vector(&name("ffn_norm.weight"), model_dim)?,
        gate: linear(source, &name("ffn_gate"), ffn_dim, model_dim)?,
        up: linear(source, &name("ffn_up"), ffn_dim, model_dim)?,
        down: linear(source, &name("ffn_down"), model_dim, ffn_dim)?,
    })
}

fn linear(source: &mut TensorSource<'_>, name: &str, rows: usize, cols: usize) -> Result<Linear> {
    Ok(Linear {
        weights: source.matrix(&format!("{name}.weight"), rows, cols)?,
        bias: source.optional_vector(&format!("{name}.bias"), rows)?,
    })
}
