//! Hyperparameters of a model, read from the metadata of a checkpoint and checked. Holds no
//! weights.

mod cache;
mod heads;
pub(crate) mod keys;
mod prediction;
pub(crate) mod rope;

use gguf_rs_lite::Metadata;
use ruvllm_kernels::rope::{RopeConfig, RopeScaling};

use self::cache::CacheLayers;
pub use self::heads::Heads;
pub(crate) use self::heads::read_head_dim;
use self::keys::{Keys, Real};
pub use self::rope::LocalRope;
use crate::checkpoint::Checkpoint;
use crate::error::{Error, Result};
use crate::family::{self, DecoderSpec, Recurrent, Sizes};
use crate::tensor_names::EMBEDDING;

/// Limits beyond which a value is not taken for real. Tensors, whose sizes the file itself bounds,
/// are checked against each width; the limits keep products from overflowing and buffers in
/// proportion.
pub(crate) const MAX_WIDTH: usize = 1 << 20;
pub(crate) const MAX_VOCAB: usize = 1 << 24;

/// Largest context that a file may name; positions are counted in 32 bits.
pub(crate) const MAX_CONTEXT: usize = u32::MAX as usize;

/// Configuration of a decoder-only transformer: sizes, constants and the family's switches.
///
/// # Examples
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let gguf = gguf_rs_lite::Gguf::open("model.gguf")?;
/// let config = ruvllm_models::ModelConfig::from_checkpoint(&gguf)?;
/// println!("{} layers of width {}", config.n_layers, config.model_dim);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ModelConfig {
    /// Value of `general.architecture`.
    pub architecture: String,
    /// Value of `general.name`, if the file has one.
    pub name: Option<String>,
    /// Width of the residual stream.
    pub model_dim: usize,
    /// Inner width of the feed-forward network that computes every token, of several the largest:
    /// of a mixture, that of its shared experts, and 0 without.
    /// [`Experts::dense_dim`](crate::Experts::dense_dim) is that of layers without experts.
    pub ffn_dim: usize,
    /// Number of transformer layers.
    pub n_layers: usize,
    /// Layers of the file behind these, which predict further tokens (multi-token prediction): the
    /// first is the [`PredictionHead`](crate::PredictionHead), others are left out.
    pub prediction_layers: usize,
    /// Number of query heads.
    pub n_heads: usize,
    /// Number of key and value heads, but for layers with [heads of their own](Self::heads);
    /// divides `n_heads`.
    pub n_kv_heads: usize,
    /// Width of one head, but for layers with heads of their own; even, and not always `model_dim /
    /// n_heads`.
    pub head_dim: usize,
    /// Number of token ids, rows of the embedding.
    pub vocab_size: usize,
    /// Number of positions the model was made for.
    pub context_length: usize,
    /// Added to the mean square in each norm.
    pub norm_eps: f32,
    /// Rotary position parameters.
    pub rope: RopeConfig,
    /// Layers with RoPE parameters of their own, such as those with a sliding window.
    pub local_rope: Option<LocalRope>,
    /// The family's switches of the decoder block.
    pub decoder: DecoderSpec,
    /// Layers that write keys and values.
    pub(crate) cache: CacheLayers,
}

impl ModelConfig {
    /// Reads and checks the hyperparameters of the model in `checkpoint`.
    ///
    /// # Errors
    /// [`Error::UnsupportedArchitecture`] for a family that is not implemented,
    /// [`Error::IsEncoder`] for a model that [`Encoder`](crate::Encoder) loads,
    /// [`Error::MissingKey`] and [`Error::InvalidKey`] for hyperparameters that no such model can
    /// have, [`Error::MissingTensor`] and [`Error::TensorShape`] when the embedding, which decides
    /// the vocabulary size, is not usable, and [`Error::Gguf`] for values of a wrong type.
    pub fn from_checkpoint(checkpoint: &dyn Checkpoint) -> Result<Self> {
        let metadata = checkpoint.metadata();
        let architecture = read_architecture(metadata)?;
        if family::is_encoder(metadata) {
            return Err(Error::IsEncoder { architecture: architecture.to_owned() });
        }
        let family = family::find(architecture)?;
        let keys = Keys::new(metadata, architecture);

        let model_dim = keys.require_count("embedding_length", 1..=MAX_WIDTH)?;
        let n_layers = read_layers(&keys, checkpoint)?;
        let prediction_layers = keys.count("nextn_predict_layers", 0..=n_layers - 1)?.unwrap_or(0);
        let n_layers = n_layers - prediction_layers;
        let keys = keys.with_prediction_layers(prediction_layers);
        let n_heads = keys.require_count("attention.head_count", 1..=MAX_WIDTH)?;
        let kv_heads = heads::read_kv_heads(&keys, n_layers, n_heads)?;
        // Files of models whose windowed layers have other heads name a width for these.
        let are_alike = keys.count("attention.key_length_swa", 0..=usize::MAX)?.is_none();
        if are_alike {
            family::common_kv_heads(&keys, &kv_heads, n_heads, &|_| true)?;
        }
        let head_dim = read_head_dim(&keys, model_dim, n_heads)?;
        let context_length = keys.require_count("context_length", 1..=MAX_CONTEXT)?;
        let sizes = Sizes { model_dim, n_layers, n_heads, kv_heads, head_dim };
        let decoder = (family.decoder)(&keys, &sizes)?;
        let is_usual = |layer: usize| decoder.layers.local_heads_of(layer).is_none();
        let n_kv_heads = family::common_kv_heads(&keys, &sizes.kv_heads, n_heads, &is_usual)?;
        let rope = rope::read_rope(&keys, checkpoint, (head_dim, context_length), &decoder)?;
        let ffn_dim = match &decoder.experts {
            Some(experts) => experts.shared_dim,
            None => match decoder.layers.ffn_dims.iter().max() {
                Some(&widest) => widest,
                None => keys.require_count("feed_forward_length", 1..=MAX_WIDTH)?,
            },
        };
        Ok(Self {
            architecture: architecture.to_owned(),
            name: metadata.get_str("general.name")?.map(str::to_owned),
            model_dim,
            ffn_dim,
            n_layers,
            prediction_layers,
            n_heads,
            n_kv_heads,
            head_dim,
            vocab_size: read_vocab_size(&keys, checkpoint, model_dim)?,
            context_length,
            norm_eps: read_norm_eps(&keys)?,
            local_rope: rope::read_local_rope(&keys, &rope, family.local_rope, (&decoder, n_layers))?,
            cache: CacheLayers::new(&decoder, n_layers),
            rope,
            decoder,
        })
    }

    /// Width of all query heads together.
    pub fn query_dim(&self) -> usize {
        self.n_heads * self.head_dim
    }

    /// Width of all key (or value) heads together.
    pub fn kv_dim(&self) -> usize {
        self.n_kv_heads * self.head_dim
    }

    /// Inner width of the widest feed-forward network that is not an expert.
    pub(crate) fn widest_network(&self) -> usize {
        self.ffn_dim.max(self.decoder.experts.as_ref().map_or(0, |experts| experts.dense_dim))
    }

    /// Width of the embeddings of all layers together, in models with embeddings per layer.
    pub(crate) fn layer_inputs_dim(&self) -> usize {
        self.n_layers * self.decoder.layers.input_dim
    }

    /// Width of all residual streams together; 0 in models with one.
    pub(crate) fn streams_dim(&self) -> usize {
        self.decoder.streams.map_or(0, |streams| streams.count * self.model_dim)
    }

    /// Inner width of a layer's feed-forward network.
    pub(crate) fn ffn_dim_of(&self, layer: usize) -> usize {
        self.decoder.layers.ffn_dims.get(layer).copied().unwrap_or(self.ffn_dim)
    }

    /// True if a layer rotates queries and keys.
    pub(crate) fn rotates(&self, layer: usize) -> bool {
        !self.local_rope.as_ref().is_some_and(|local| local.rope.is_none() && local.layers[layer])
    }

    /// Values of a sequence's state, of all layers that keep one.
    pub fn state_values(&self) -> usize {
        let values = |recurrent: &Recurrent| recurrent.index_of(self.n_layers) * recurrent.layer_values();
        self.decoder.recurrent.as_ref().map_or(0, values)
    }

    /// Values per token of the journal from which a state can be computed again, of all layers.
    pub(crate) fn journal_values(&self) -> usize {
        let values = |recurrent: &Recurrent| recurrent.index_of(self.n_layers) * recurrent.journal_values();
        self.decoder.recurrent.as_ref().map_or(0, values)
    }

    /// Largest sliding window of all layers in tokens; `None` if a layer has none.
    pub fn longest_window(&self) -> Option<usize> {
        (0..self.n_layers)
            .map(|layer| self.decoder.window.of_layer(layer))
            .max_by_key(|w| w.unwrap_or(usize::MAX))?
    }

    /// Capacity in tokens above which sequences use the long frequencies of `LongRoPE`; `None` if
    /// there is only one set. Keys differ from the first token on, so prefixes are not shared
    /// across it.
    pub fn long_rope_above(&self) -> Option<usize> {
        match self.rope.scaling {
            RopeScaling::LongRope { original_context, .. } if original_context < self.context_length => {
                Some(original_context)
            }
            _ => None,
        }
    }
}

/// Files of models of one part per layer have it under the name of the other norm alone.
fn read_norm_eps(keys: &Keys<'_>) -> Result<f32> {
    const RANGE: Real = Real::AboveUpTo(0.0, 1.0);
    const USUAL: &str = "attention.layer_norm_rms_epsilon";
    match keys.real(USUAL, RANGE)? {
        Some(norm_eps) => Ok(norm_eps),
        None => match keys.real("attention.layer_norm_epsilon", RANGE)? {
            Some(norm_eps) => Ok(norm_eps),
            None => keys.require_real(USUAL, RANGE),
        },
    }
}

/// The value of `general.architecture`.
pub(crate) fn read_architecture(metadata: &Metadata) -> Result<&str> {
    metadata.get_str("general.architecture")?.ok_or_else(|| Error::MissingKey {
        key: "general.architecture".into(),
        expected: format!("one of {}", family::supported()),
    })
}

/// Each layer has tensors of its own: a layer count above the number of tensors is refused before
/// it sizes any allocation.
pub(crate) fn read_layers(keys: &Keys<'_>, checkpoint: &dyn Checkpoint) -> Result<usize> {
    let n_tensors = checkpoint.tensors().count();
    let n_layers = keys.require_count("block_count", 1..=MAX_CONTEXT)?;
    if n_layers > n_tensors {
        let expected = format!("no more layers than the file has tensors ({n_tensors})");
        return Err(keys.invalid("block_count", n_layers, expected));
    }
    Ok(n_layers)
}

/// The rows of the embedding; the key, which older files lack, must agree.
pub(crate) fn read_vocab_size(
    keys: &Keys<'_>,
    checkpoint: &dyn Checkpoint,
    model_dim: usize,
) -> Result<usize> {
    let named = keys.count("vocab_size", 1..=MAX_VOCAB)?;
    let info = checkpoint.tensor(EMBEDDING).ok_or_else(|| Error::MissingTensor { name: EMBEDDING.into() })?;
    let rows = info.dims.get(1).copied().unwrap_or(0);
    let vocab_size = usize::try_from(rows).ok().filter(|rows| (1..=MAX_VOCAB).contains(rows));
    match (vocab_size, named) {
        (Some(vocab_size), Some(named)) if vocab_size != named => {
            Err(keys.invalid("vocab_size", named, format!("{vocab_size}, the rows of `{EMBEDDING}`")))
        }
        (Some(vocab_size), _) => Ok(vocab_size),
        (None, named) => Err(Error::TensorShape {
            name: EMBEDDING.into(),
            expected: vec![model_dim as u64, named.unwrap_or(1) as u64],
            found: info.dims.clone(),
        }),
    }
}
