//! Loading of a decoder's tensors.

use ruvllm_kernels::rope::RopeScaling;

use super::linear::linear;
use super::load_layer::load_layer;
use super::load_streams::load_streams;
use super::source::{LoadProgress, TensorSource};
use super::{PerLayerWeights, PredictionHead, RankHead, Weights};
use crate::checkpoint::Checkpoint;
use crate::config::ModelConfig;
use crate::config::rope::{FREQUENCY_DIVISORS, LONG_FACTORS, SHORT_FACTORS};
use crate::error::Result;
use crate::tensor_names::{EMBEDDING, LAYER_INPUTS};

impl Weights {
    /// Loads the tensors that `config` asks for.
    ///
    /// # Errors
    /// A tensor is missing, left over, of an unsupported type or of another shape.
    pub(crate) fn load(
        checkpoint: &dyn Checkpoint,
        config: &ModelConfig,
        progress: &mut dyn FnMut(LoadProgress<'_>),
    ) -> Result<Self> {
        let mut source = TensorSource::new(checkpoint, progress);
        let embedding = source.matrix(EMBEDDING, config.vocab_size, config.model_dim)?;
        let has_inputs = config.decoder.layers.input_dim > 0;
        let per_layer = has_inputs.then(|| load_per_layer(&mut source, config)).transpose()?;
        let streams = load_streams(&mut source, config)?;
        // The configuration has read these already.
        source.skip(FREQUENCY_DIVISORS);
        if matches!(config.rope.scaling, RopeScaling::LongRope { .. }) {
            source.skip(SHORT_FACTORS);
            source.skip(LONG_FACTORS);
        }
        // `n_layers` is at most the number of tensors, see `ModelConfig`.
        let mut layers = Vec::with_capacity(config.n_layers);
        for layer in 0..config.n_layers {
            layers.push(load_layer(&mut source, config, layer, &|part| format!("blk.{layer}.{part}"))?);
        }
        let prediction_head = PredictionHead::load(&mut source, config)?;
        let output_norm = format!("{}.weight", config.decoder.output_norm_name);
        let mut output_norm = source.vector(&output_norm, config.model_dim)?;
        // Products are linear: the factor of logits is one of what they multiply.
        output_norm.iter_mut().for_each(|weight| *weight *= config.decoder.logits_scale);
        let has_bias = config.decoder.layer_norms;
        let output_norm_bias =
            has_bias.then(|| source.vector("output_norm.bias", config.model_dim)).transpose()?;
        let output = if source.has("output.weight") {
            Some(linear(&mut source, "output", config.vocab_size, config.model_dim)?)
        } else {
            None
        };
        let rank_head = RankHead::load(&mut source, config.model_dim)?;
        let bytes = source.finish(&config.architecture)?;
        Ok(Self {
            embedding,
            per_layer,
            streams,
            layers,
            output_norm,
            output_norm_bias,
            output,
            rank_head,
            prediction_head,
            bytes,
        })
    }
}

fn load_per_layer(source: &mut TensorSource<'_>, config: &ModelConfig) -> Result<PerLayerWeights> {
    let input_dim = config.decoder.layers.input_dim;
    let width = config.n_layers * input_dim;
    let rows = source.rows(LAYER_INPUTS)?.clamp(1, config.vocab_size);
    Ok(PerLayerWeights {
        embedding: source.matrix(LAYER_INPUTS, rows, width)?,
        projection: linear(source, "per_layer_model_proj", width, config.model_dim)?,
        norm: source.vector("per_layer_proj_norm.weight", input_dim)?,
    })
}
