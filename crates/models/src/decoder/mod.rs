//! The model as a whole: loading, caches, and the forward pass from token ids to logits.
//! The inside of a layer is in `layer`.

mod adapt;
mod chunks;
mod cutoff;
mod ending;
mod entry;
mod experts;
mod gates;
mod latent;
mod latent_buffers;
mod layer;
mod mamba;
mod parallel;
mod per_layer;
mod per_layer_buffers;
mod prediction;
mod recurrent;
mod rewind;
mod rope;
mod router;
mod shared;
mod sorted;
mod state_buffers;
mod stream_buffers;
mod streams;

use std::cmp::Ordering;
use std::sync::Arc;

use ruvllm_adapters::{Adapter, BaseModel, FactorFormat, Part, ScaledAdapter};
use ruvllm_kv_cache::{KvCalibration, KvPolicy, KvRopes, KvStore, Probe, Sequence};
use ruvllm_memory::{PagePool, Request};

use self::ending::Ending;
use self::entry::{embed, prepare};
pub(crate) use self::gates::Gates;
pub(crate) use self::latent_buffers::LatentBuffers;
use self::layer::Layer;
pub(crate) use self::per_layer_buffers::PerLayerBuffers;
use self::rope::Ropes;
pub(crate) use self::sorted::ExpertBuffers;
pub(crate) use self::state_buffers::RecurrentBuffers;
pub(crate) use self::stream_buffers::StreamBuffers;
use crate::batch::{BatchRows, Segment};
use crate::checkpoint::Checkpoint;
use crate::compute::Compute;
use crate::config::ModelConfig;
use crate::error::{Error, Result};
use crate::weights::{LoadProgress, PredictionHead, RankHead, WeightBytes, Weights};
use crate::workspace::{Buffers, Workspace, resize};

/// A decoder-only transformer with its weights. Immutable and shareable: sequences live in
/// [`Sequence`]s, buffers in a [`Workspace`].
///
/// # Examples
/// ```
/// use ruvllm_memory::{PagePool, PoolConfig};
/// use ruvllm_models::{Compute, KvPolicy, LogitsRows, Model, Segment, Workspace};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/tiny/llama/model-F16.gguf");
/// let gguf = gguf_rs_lite::Gguf::open(path)?;
/// let model = Model::load(&gguf, &mut |_| ())?;
/// let compute = Compute::new(1)?;
/// let mut workspace = Workspace::new();
/// let pool = PagePool::new(PoolConfig::new(64 << 20))?;
/// let store = model.kv_store(&"f32".parse()?, &pool)?;
/// let mut cache = model.new_sequence(&store, 64)?;
///
/// let prompt = Segment::new(&compute, &[558, 46, 77], &mut cache, LogitsRows::Last)?;
/// let logits = model.forward(&compute, &mut workspace, [prompt])?;
/// assert_eq!(logits.len(), model.config().vocab_size);
/// let next = compute.kernels.argmax(logits);
/// assert!(next.is_some());
/// assert_eq!(cache.len(), 3);
/// # Ok(())
/// # }
/// ```
pub struct Model {
    config: ModelConfig,
    weights: Weights,
    ropes: Ropes,
    /// Dimensions that its adapters must match.
    adapter_base: Arc<BaseModel>,
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Model").field("config", &self.config).finish_non_exhaustive()
    }
}

impl Model {
    /// Loads a model; matrices stay in the mapped file where that holds them as they are used.
    /// `progress` is told of every tensor.
    ///
    /// # Errors
    /// As [`ModelConfig::from_checkpoint`], and when a tensor is missing, left over, of an
    /// unsupported type or of another shape than the hyperparameters say.
    pub fn load(checkpoint: &dyn Checkpoint, progress: &mut dyn FnMut(LoadProgress<'_>)) -> Result<Self> {
        let config = ModelConfig::from_checkpoint(checkpoint)?;
        let weights = Weights::load(checkpoint, &config, progress)?;
        let ropes = Ropes::new(&config)?;
        let adapter_base = Arc::new(adapt::base_model(&config));
        Ok(Self { config, weights, ropes, adapter_base })
    }

    /// The hyperparameters.
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// The weights, for other implementations of the forward pass.
    pub fn weights(&self) -> &Weights {
        &self.weights
    }

    /// Head of a model that ranks documents: it scores the final hidden state of the last token.
    pub fn rank_head(&self) -> Option<&RankHead> {
        self.weights.rank_head.as_ref()
    }

    /// Head that predicts the token after the next, of a model that has one:
    /// [`predict`](Self::predict) runs it.
    pub fn prediction_head(&self) -> Option<&PredictionHead> {
        self.weights.prediction_head.as_ref()
    }

    /// Bytes of the weights in shared and in private memory.
    pub fn weight_bytes(&self) -> WeightBytes {
        self.weights.bytes()
    }

    /// Makes the store for keys and values of this model's sequences under `policy`, in pages of
    /// `pool`. A cold tier that the policy leaves open follows from the model's heads.
    ///
    /// # Errors
    /// [`Error::KvCache`] if the policy does not fit the model's heads or the pool its blocks.
    pub fn kv_store(&self, policy: &KvPolicy, pool: &PagePool) -> Result<KvStore> {
        self.config.kv_store(policy, pool)
    }

    /// As [`kv_store`](Self::kv_store), in blocks of `block_tokens` tokens.
    ///
    /// # Errors
    /// As `kv_store`; [`Error::KvCache`] if a block would not hold whole groups of the policy.
    pub fn kv_store_of_blocks(
        &self,
        policy: &KvPolicy,
        pool: &PagePool,
        block_tokens: usize,
    ) -> Result<KvStore> {
        let shape = self.config.kv_shape();
        Ok(KvStore::with_block_tokens(shape, &self.config.complete(policy), pool, block_tokens)?)
    }

    /// Bytes of the smallest pool, in pages of `page_bytes` bytes, that holds a block of keys and
    /// values in each tier of `policy`.
    ///
    /// # Errors
    /// [`Error::KvCache`] if the policy does not fit the model's heads.
    pub fn least_kv_bytes(&self, policy: &KvPolicy, page_bytes: usize) -> Result<usize> {
        Ok(KvStore::least_bytes(self.config.kv_shape(), &self.config.complete(policy), page_bytes)?)
    }

    /// As [`kv_store`](Self::kv_store), with a calibration of this model for tiers that need it.
    ///
    /// # Errors
    /// [`Error::KvCache`] as `kv_store`, and if the calibration is of other heads or layers, or no
    /// tier needs it.
    pub fn calibrated_kv_store(
        &self,
        policy: &KvPolicy,
        pool: &PagePool,
        calibration: Arc<KvCalibration>,
    ) -> Result<KvStore> {
        let (shape, policy) = (self.config.kv_shape(), self.config.complete(policy));
        Ok(KvStore::with_calibration(shape, &policy, pool, calibration, &self.kv_ropes())?)
    }

    /// RoPE parameters of cached keys.
    pub fn kv_ropes(&self) -> KvRopes {
        self.ropes.of_keys(&self.config)
    }

    /// An empty sequence of at most `capacity` tokens. Where the model has frequencies of its own
    /// for long sequences, the capacity chooses between them ([`ModelConfig::long_rope_above`]),
    /// since keys that are cached stay as they are.
    ///
    /// # Errors
    /// [`Error::CacheCapacity`] if `capacity` is 0 or beyond the model's context length.
    pub fn new_sequence(&self, store: &KvStore, capacity: usize) -> Result<Sequence> {
        self.config.new_sequence(store, capacity)
    }

    /// Shape that adapters of this model match.
    pub fn adapter_base(&self) -> &Arc<BaseModel> {
        &self.adapter_base
    }

    /// Loads LoRA adapters for this model into pages of `pool`, in `format`; the updates of `parts`
    /// add up, each times its scale.
    ///
    /// # Errors
    /// [`Error::Adapter`] for adapters of another model, values beyond the format and where there
    /// is no memory.
    pub fn adapter(
        &self,
        parts: &[Part<'_>],
        format: FactorFormat,
        pool: &PagePool,
        request: &Request,
    ) -> Result<Adapter> {
        Ok(Adapter::new(&self.adapter_base, parts, format, pool, request)?)
    }

    /// Runs the tokens of all `segments` through the model, commits their steps and returns the
    /// logits asked for, `[rows, vocab_size]` in the order of segments and tokens. Segments come in
    /// an array or a `Vec`.
    ///
    /// A token's result depends only on its sequence: not on how the prompt was cut into steps, on
    /// what else is in the batch, on the number of threads or on the instruction set.
    ///
    /// # Errors
    /// An empty batch or segment, a token id that the vocabulary does not have, a sequence or an
    /// adapter of another model, rows that are not ascending, no memory for the workspace, or a
    /// router without finite logits. No step was committed then.
    pub fn forward<'s, 'w>(
        &self,
        compute: &Compute,
        workspace: &'w mut Workspace,
        mut segments: impl AsMut<[Segment<'s>]> + IntoIterator<Item = Segment<'s>>,
    ) -> Result<&'w [f32]> {
        let logits = self.logits(compute, workspace, segments.as_mut())?;
        segments.into_iter().for_each(|segment| segment.step.commit());
        Ok(logits)
    }

    /// As [`forward`](Self::forward), but returns the final hidden states (after the last layer and
    /// the final norm), `[rows, model_dim]`, of the tokens whose logits the segments name or whose
    /// hidden states they keep.
    ///
    /// # Errors
    /// As `forward`.
    pub fn hidden_states<'s, 'w>(
        &self,
        compute: &Compute,
        workspace: &'w mut Workspace,
        mut segments: impl AsMut<[Segment<'s>]> + IntoIterator<Item = Segment<'s>>,
    ) -> Result<&'w [f32]> {
        let Workspace { batch, buffers, hidden, .. } = workspace;
        hidden.clear();
        self.check(batch, segments.as_mut())?;
        self.run(compute, batch, buffers, segments.as_mut())?;
        self.ending().hidden(compute, (segments.as_mut(), batch), buffers, false);
        segments.into_iter().for_each(|segment| segment.step.commit());
        Ok(buffers.normed.values())
    }

    /// Logits of the wanted rows of a batch.
    fn logits<'w>(
        &self,
        compute: &Compute,
        workspace: &'w mut Workspace,
        segments: &mut [Segment<'_>],
    ) -> Result<&'w [f32]> {
        self.check(&mut workspace.batch, segments)?;
        workspace.prepare_results(&self.config)?;
        self.run(compute, &workspace.batch, &mut workspace.buffers, segments)?;
        self.ending().finish(compute, segments, workspace);
        Ok(&workspace.logits)
    }

    /// Norm and matrix behind the layers.
    fn ending(&self) -> Ending<'_> {
        let Weights { output_norm, output_norm_bias, .. } = &self.weights;
        Ending {
            config: &self.config,
            norm: (output_norm, output_norm_bias.as_deref()),
            output: self.weights.output_projection(),
        }
    }

    /// Checks a batch and lays its rows out.
    fn check(&self, batch: &mut BatchRows, segments: &[Segment<'_>]) -> Result<()> {
        batch.fill(&self.config, segments)?;
        let is_other = |scaled: &ScaledAdapter| {
            let gate = scaled.gate.as_ref().map(|by| by.gate().base());
            *scaled.adapter.base() != self.adapter_base || gate.is_some_and(|gate| *gate != self.adapter_base)
        };
        match segments.iter().position(|segment| segment.adapters.iter().any(is_other)) {
            Some(segment) => Err(Error::AdapterModel { segment }),
            None => Ok(()),
        }
    }

    /// Sends the tokens of a checked batch through all layers; the rows of the wanted ones are then
    /// the first of the residual stream.
    fn run(
        &self,
        compute: &Compute,
        batch: &BatchRows,
        buffers: &mut Buffers,
        segments: &mut [Segment<'_>],
    ) -> Result<()> {
        prepare(&self.config, buffers, batch.n_tokens())?;
        self.prepare_probes(buffers, segments)?;
        let ropes = self.ropes.tables(batch.n_positions());

        embed(&self.config, &self.weights.embedding, &mut buffers.hidden, segments);
        self.embed_per_layer(compute, buffers, segments, batch.n_tokens());
        self.split_streams(compute, buffers, batch.n_tokens());
        let config = &self.config;
        let last_writer = config.last_writer();
        for (index, weights) in self.weights.layers.iter().enumerate() {
            // Behind the last keys and values only the rows with logits matter.
            let (all, wanted) = match index.cmp(&last_writer) {
                Ordering::Less => (&batch.all, &batch.all),
                Ordering::Equal => (&batch.all, &batch.wanted),
                Ordering::Greater if batch.front.is_empty() => break,
                Ordering::Greater => (&batch.front, &batch.front),
            };
            let (heads, cache_index) = (config.heads(index), config.cache_layer(index));
            let layer = Layer { config, weights, index, heads, cache_index, ropes: &ropes, compute };
            layer.forward(buffers, segments, all, wanted)?;
        }
        self.merge_streams(compute, buffers, batch.n_wanted());
        Ok(())
    }

    /// The query of the last token of a segment of the last pass, in the layer of
    /// [`Segment::with_probe`]; `None` if there was no such pass, layer or segment.
    pub fn probe<'w>(&self, workspace: &'w Workspace, segment: usize) -> Option<Probe<'w>> {
        let kept = &workspace.buffers.kept;
        let layer = (*kept.layers.get(segment)?)?;
        let query = kept.queries.chunks_exact(self.config.widest_heads().0).nth(segment)?;
        let writer = *self.config.cache.writers().get(layer)?;
        Some(self.probe_of(layer, query.get(..self.config.heads(writer).query_dim())?))
    }

    /// A query of one token in a layer of the cache, `[n_heads, head_dim]`, with what attention
    /// does with it.
    ///
    /// # Panics
    /// If the cache has no such layer.
    pub fn probe_of<'q>(&self, layer: usize, query: &'q [f32]) -> Probe<'q> {
        let decoder = &self.config.decoder;
        Probe {
            layer,
            query,
            scale: decoder.attention_scale,
            window: decoder.window.of_layer(self.config.cache.writers()[layer]),
            soft_cap: decoder.attention_soft_cap,
        }
    }

    /// Makes room for the queries of probed segments.
    fn prepare_probes(&self, buffers: &mut Buffers, segments: &[Segment<'_>]) -> Result<()> {
        let kept = &mut buffers.kept;
        kept.layers.clear();
        kept.queries.clear();
        if segments.iter().any(|segment| segment.probed_layer.is_some()) {
            kept.layers.extend(segments.iter().map(|segment| segment.probed_layer));
            let n_values = segments.len().saturating_mul(self.config.widest_heads().0);
            resize(&mut kept.queries, n_values, "probed queries")?;
        }
        Ok(())
    }
}

impl ModelConfig {
    /// Dimensions that adapters of the model must match.
    pub fn adapter_base(&self) -> BaseModel {
        adapt::base_model(self)
    }
}

#[cfg(test)]
mod tests;
