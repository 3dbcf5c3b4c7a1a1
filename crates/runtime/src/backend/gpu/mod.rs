//! The GPU backend: models of `ruvllm-models` on the kernels of `ruvllm-gpu`, as an
//! [`InferenceBackend`].
//!
//! ```text
//! Model (GGUF file or folder) ──► DeviceWeights (weights, experts; uploads)   KvPool, Angles (pool)
//!                                        └───────┬────────────────┘
//! GpuSession, GpuBatch ──► Passes (executor) ──► Pass: prepared launches (launches, absorbed, mixture) over Rows (rows)
//!        └── Leased: slots of LoRA factors (adapters) ──┘
//! ```
//!
//! Passes of one size share prepared launches; positions, slots and block tables are in buffers.

mod absorbed;
mod adapters;
mod batch;
mod beside;
mod blocks;
mod draft;
mod executor;
mod experts;
mod filled;
mod final_states;
mod free_blocks;
mod gates;
mod gating;
mod heads;
mod host_blocks;
mod inputs;
mod kv_policy;
mod largest;
mod latent;
mod launches;
mod mixture;
mod pairing;
mod per_layer;
mod pool;
mod prediction;
mod refusal;
mod report;
mod rows;
mod session;
mod states;
mod streams;
mod temperature;
#[cfg(test)]
mod tests;
mod uploads;
mod weights;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use gguf_rs_lite::FileMemory;
use ruvllm_adapters::{FactorFormat, ScaledAdapter};
pub use ruvllm_gpu::self_test::Check as GpuCheck;
pub use ruvllm_gpu::{
    AdapterInfo as GpuAdapter, AdapterKind as GpuAdapterKind, CacheFile as GpuCacheFile,
    CompileTimes as GpuCompileTimes, MatrixShape as GpuMatrixShape, Tuned as GpuTuned,
    adapters as gpu_adapters,
};
use ruvllm_gpu::{Gpu, Selection};
use ruvllm_kernels::attention::KvFormat;
use ruvllm_kv_cache::KvPolicy;
use ruvllm_kv_cache::prefix::TreeStatistics;
use ruvllm_memory::{PagePool, PoolConfig, Tenant};
use ruvllm_models::{Model, ModelConfig};
use ruvllm_text::TokenId;

use self::adapters::DeviceAdapters;
use self::batch::GpuBatch;
use self::executor::{Executor, Reserve};
use self::final_states::Kept;
use self::pool::{Angles, KvPool};
use self::prediction::{GpuHead, HeadMemory, HeadSequences};
use self::refusal::{NAME, Refusal, device_error};
pub use self::report::{GpuKernel, GpuLoadTimes, GpuSelfTest, GpuStates, gpu_choose, gpu_self_test};
pub use self::session::GpuSession;
use self::states::StatePool;
use super::adapters::BackendAdapters;
use super::batch::PrefixSharing;
use super::head::BackendHead;
use super::{BackendBatch, BackendSession, DeviceMemory, InferenceBackend};
use crate::codec::TextCodec;
use crate::error::{Error, Result};
use crate::options::ModelSource;
use crate::speculation::Speculation;

/// Largest number of sequences for which decode keeps the products of a single one (GEMV).
const GEMV_SEQUENCES: usize = 32;

/// Default limit of the context length: its keys and values are allocated at load.
const USUAL_CONTEXT: usize = 8192;

/// Options of the GPU backend.
#[derive(Debug, Clone)]
pub struct GpuOptions {
    /// Adapter: index or part of the name; `None` = the best one.
    pub adapter: Option<String>,
    /// Allows software adapters (tests).
    pub software: bool,
    /// Context length in tokens, prompt and output together; `None` = the model's, at most 8192.
    pub context: Option<usize>,
    /// KV capacity on the device in tokens, all sequences together; `None` = a context for each of
    /// `sequences`.
    pub kv_tokens: Option<usize>,
    /// As `kv_tokens`, in bytes of keys and values, without those; a context that is longer is cut.
    pub kv_bytes: Option<u64>,
    /// Format of keys and values: `f16` (default), or `q8` for heads of a multiple of 32 values,
    /// with the rounding of the CPU's `q8` (ADR-0144).
    pub kv: KvPolicy,
    /// Largest number of sequences that are meant to be decoded together. Default 1. More can be;
    /// the number selects the products of decode, for all batches alike: up to 32 those of a single
    /// sequence, beyond it those of prompts, which are faster for many rows and have other last
    /// bits (ADR-0088). Of a model whose layers keep a state it is the number of sequences that
    /// there can be: the device has memory for their states (ADR-0149).
    pub sequences: usize,
    /// States beside the two of each sequence, of a model whose layers keep one: for the tokens of
    /// drafts, and for stored prefixes (ADR-0161). `None` = as many as take the memory of keys,
    /// values and the states of sequences once more, at most 32.
    pub spare_states: Option<usize>,
    /// Layers whose weights lie in memory of the device, counted from the last; more than the model
    /// has mean all. The weights of the others lie in memory of the host and are read over the bus
    /// in every pass (ADR-0148). `None` = as many as there is room for.
    pub layers: Option<usize>,
    /// Memory of the host, in bytes, for keys and values of stored prefixes that those of sequences
    /// displace from the device (ADR-0154); copied back when a request begins with them. Default 0.
    pub host_kv_bytes: u64,
    /// Budget of device memory in bytes, for all buffers; `None` = the driver's limit. Launches
    /// that were prepared for other sizes are released before a request fails for lack of memory.
    pub budget: Option<u64>,
    /// Prompt tokens per forward pass; a prefill can be cancelled between passes. Default 512.
    pub prefill_chunk: usize,
    /// Drafts of requests that name no setting: prompt look-up and the draft model or head,
    /// verified in a pass. Default: as they pay.
    pub speculation: Speculation,
    /// Model with the same vocabulary that drafts on the same device (ADR-0156). Its weights, and
    /// keys and values of up to 1024 tokens for each of `sequences` (or ten states, if its layers
    /// keep some), take memory beside `kv_tokens` and `kv_bytes`, within `budget`. Default: none,
    /// drafts by look-up alone.
    pub draft: Option<ModelSource>,
    /// Drafts of the model's own prediction head, if it has one and there is no
    /// [`draft`](Self::draft) (ADR-0160). Its memory is as that of a draft model of one layer;
    /// where there is none it is left out ([`GpuBackend::head_is_left_out`]). Default: on.
    pub draft_head: bool,
    /// Largest number of LoRA adapters in device memory: of all sequences that are computed at
    /// once. The least recently used idle one gives way to another; without an idle one, requests
    /// wait. Memory is taken when adapters come, for the largest of them in each slot. Default 8.
    pub adapter_slots: usize,
    /// Number format of the factors of adapters on the device: F16 or F32. Default F16.
    pub adapter_format: FactorFormat,
    /// Budget of host memory for the factors of adapters, in bytes; taken as they are loaded.
    /// Default 1 GiB.
    pub adapter_memory: u64,
    /// A `tokenizer.json` in place of the model's tokenizer.
    pub tokenizer: Option<PathBuf>,
    /// Folder of compiled kernels, created if absent; `None` = they are compiled at each start.
    /// Nobody but this user may have permission to write to it.
    pub cache_dir: Option<PathBuf>,
}

impl Default for GpuOptions {
    fn default() -> Self {
        Self {
            adapter: None,
            software: false,
            context: None,
            kv_tokens: None,
            kv_bytes: None,
            kv: KvFormat::F16.into(),
            sequences: 1,
            spare_states: None,
            layers: None,
            host_kv_bytes: 0,
            budget: None,
            prefill_chunk: 512,
            speculation: Speculation::Auto,
            draft: None,
            draft_head: true,
            adapter_slots: 8,
            adapter_format: FactorFormat::F16,
            adapter_memory: 1 << 30,
            tokenizer: None,
            cache_dir: None,
        }
    }
}

/// A decoder on a GPU: KV cache in F16 or Q8, quantized weights as stored.
///
/// # Example
/// ```no_run
/// use std::ops::ControlFlow;
///
/// use ruvllm::{CancelToken, GenerateRequest, GpuBackend, GpuOptions, InferenceBackend};
///
/// let backend = GpuBackend::load(&"model.gguf".into(), &GpuOptions::default())?;
/// let request = GenerateRequest::new("Once upon a time").with_max_tokens(32);
/// let completion = backend.generate_with(&request, &CancelToken::new(), &mut |_| ControlFlow::Continue(()))?;
/// println!("{}", completion.text);
/// # Ok::<(), ruvllm::Error>(())
/// ```
pub struct GpuBackend {
    codec: TextCodec,
    context: usize,
    prefill_chunk: usize,
    speculation: Speculation,
    converted: Vec<String>,
    times: GpuLoadTimes,
    executor: Executor,
    /// Tenants, and host memory of the factors of adapters.
    host: PagePool,
    adapters: BackendAdapters,
    draft: Option<Box<GpuBackend>>,
    head: Option<Box<GpuHead>>,
    head_is_left_out: bool,
}

impl GpuBackend {
    /// Loads a file or folder and uploads its weights. Matrices of a format without GPU kernels are
    /// stored as F16 ([`converted`](Self::converted)). Background threads compile the kernels of
    /// short prompts meanwhile.
    ///
    /// Host memory: the file is mapped; matrices that share a product or are converted are copied,
    /// one product at a time.
    ///
    /// # Errors
    /// [`Error::Open`], [`Error::Load`], [`Error::Tokenizer`] and [`Error::VocabularyMismatch`] as
    /// for [`Engine::load`](crate::Engine::load); [`Error::UnsupportedByBackend`] for tensors,
    /// sizes and contexts that the kernels do not support; [`Error::ContextTooLong`];
    /// [`Error::InvalidOption`]; [`Error::Backend`] without an adapter or memory, and if the device
    /// fails. The same for the draft model, and [`Error::DraftVocabulary`] for one with another
    /// vocabulary.
    pub fn load(source: &ModelSource, options: &GpuOptions) -> Result<Self> {
        let at_least_1 = [
            ("context", options.context),
            ("kv_tokens", options.kv_tokens),
            ("prefill_chunk", Some(options.prefill_chunk)),
            ("sequences", Some(options.sequences)),
            ("adapter_slots", Some(options.adapter_slots)),
        ];
        for (option, value) in at_least_1 {
            if value == Some(0) {
                return Err(Error::InvalidOption { name: option, value: 0, expected: "at least 1" });
            }
        }
        options.speculation.check()?;
        if options.adapter_format == FactorFormat::I8 {
            let (name, value) = ("adapter_format", 8);
            return Err(Error::InvalidOption { name, value, expected: "16 or 32 bits" });
        }
        let start = Instant::now();
        let gpu = open(options).map_err(|refusal| refusal.into_error(&source.to_string()))?;
        let times = GpuLoadTimes { open: start.elapsed(), ..GpuLoadTimes::default() };
        Self::load_on(Arc::new(gpu), source, options, (times, 0))
    }

    /// Loads a model, and its draft model, on a device that was opened. A sequence keeps `earlier`
    /// states before its last one, in models whose layers keep some.
    fn load_on(
        gpu: Arc<Gpu>,
        source: &ModelSource,
        options: &GpuOptions,
        (mut times, earlier): (GpuLoadTimes, usize),
    ) -> Result<Self> {
        let (name, start) = (source.to_string(), Instant::now());
        let checkpoint = source.open(FileMemory::default())?;
        let model = Model::load(&*checkpoint, &mut |_| ())
            .map_err(|source| Error::Load { name: name.clone(), source })?;
        let codec =
            TextCodec::read(&*checkpoint, &name, options.tokenizer.as_deref(), model.config().vocab_size)?;
        times.read = start.elapsed();
        // Before the weights of the model, which take what memory is left.
        let draft = draft::load(&gpu, options, &codec)?;
        let Uploaded { executor, head, context, mut converted } =
            upload(gpu, &model, draft.as_deref(), (options, earlier), codec.sampled_ids(), &mut times)
                .map_err(|refusal| refusal.into_error(&name))?;
        if let Some(draft) = &draft {
            times.add(draft.times);
            converted.extend(draft.converted.iter().map(|tensor| format!("{tensor} of the draft model")));
        }
        // Tenants need one page, of which nothing is used.
        let page = PoolConfig::new(0).page_bytes;
        let budget = usize::try_from(options.adapter_memory).unwrap_or(usize::MAX / 2).max(page);
        let host =
            PagePool::new(PoolConfig::new(budget)).map_err(|source| Error::KvBudget { budget, source })?;
        let (base, format) = (model.adapter_base(), options.adapter_format);
        let adapters = BackendAdapters::new((NAME, adapters::MOST), base, &host, format);
        let GpuOptions { prefill_chunk, speculation, .. } = *options;
        let head_is_left_out =
            prediction::wants(options) && model.prediction_head().is_some() && head.is_none();
        Ok(Self {
            codec,
            context,
            prefill_chunk,
            speculation,
            converted,
            times,
            executor,
            host,
            adapters,
            draft,
            head: head.map(Box::new),
            head_is_left_out,
        })
    }

    /// Sets the adapters of requests that name none, and of measurements; their updates add up.
    ///
    /// # Errors
    /// [`Error::AdapterScale`], and [`Error::AdapterBackend`] for gates and for more adapters than
    /// a sequence can have.
    pub fn set_adapters(&mut self, adapters: &[ScaledAdapter]) -> Result<()> {
        self.adapters.set_defaults(adapters)
    }

    /// Measures tiles of the products of this model, which the device uses at its next opening with
    /// the folder of [`GpuOptions::cache_dir`] (ADR-0155). Results keep their bits. `progress` is
    /// told the number of measured products, and of all.
    ///
    /// # Errors
    /// [`Error::Backend`] on a device without timestamps, without memory for activations, and for a
    /// folder that cannot be written; [`Error::BackendLost`].
    pub fn tune(&self, progress: &mut dyn FnMut(usize, usize)) -> Result<Vec<GpuTuned>> {
        let gpu = &self.executor.gpu;
        let matrices: Vec<_> = self.executor.weights.matrices().collect();
        let action = || "measure tiles of products".to_owned();
        let tuned = gpu.tune(&matrices, progress).map_err(|error| device_error(action(), error))?;
        gpu.save_tiles().map_err(|source| Error::Backend {
            backend: NAME.to_owned(),
            action: action(),
            source: source.into(),
        })?;
        Ok(tuned)
    }

    /// File of the measured tiles; `None` without a folder.
    pub fn tiles_file(&self) -> Option<&Path> {
        self.executor.gpu.tiles_file()
    }

    /// Gives the device up: all later requests fail with [`Error::BackendLost`], as after its loss.
    pub fn destroy(&self) {
        self.executor.gpu.destroy();
    }

    /// Creates an empty sequence as [`InferenceBackend::session`] does, as the concrete type. It
    /// has the default adapters ([`set_adapters`](Self::set_adapters)).
    ///
    /// # Errors
    /// As [`InferenceBackend::session`].
    pub fn gpu_session(&self, capacity: usize) -> Result<GpuSession<'_>> {
        self.session_of(capacity, self.adapters.defaults(), None)
    }

    /// Creates a sequence with adapters, with the longest stored prefix of a prompt if one is
    /// given.
    fn session_of(
        &self,
        capacity: usize,
        adapters: &[ScaledAdapter],
        prompt: Option<(&[TokenId], &PrefixSharing<'_>)>,
    ) -> Result<GpuSession<'_>> {
        if capacity > self.context {
            let (what, model_context) = ("the sequence".to_owned(), self.context);
            return Err(Error::ContextTooLong { what, tokens: capacity, model_context });
        }
        GpuSession::new(&self.executor, &self.codec, capacity, adapters, prompt)
    }
}

impl InferenceBackend for GpuBackend {
    fn name(&self) -> &str {
        NAME
    }

    fn config(&self) -> &ModelConfig {
        &self.executor.config
    }

    fn codec(&self) -> &TextCodec {
        &self.codec
    }

    fn context_length(&self) -> usize {
        self.context
    }

    fn session(&self, capacity: usize) -> Result<Box<dyn BackendSession + '_>> {
        Ok(Box::new(self.gpu_session(capacity)?))
    }

    fn prefill_chunk(&self) -> usize {
        self.prefill_chunk
    }

    fn speculation(&self) -> Speculation {
        self.speculation
    }

    fn draft_model(&self) -> Option<&dyn InferenceBackend> {
        self.draft.as_deref().map(|draft| draft as &dyn InferenceBackend)
    }

    fn prediction_head(&self) -> Option<Box<dyn BackendHead + '_>> {
        self.head.as_deref().map(|head| Box::new(HeadSequences::new(head)) as Box<dyn BackendHead>)
    }

    fn batch(&self) -> Box<dyn BackendBatch + '_> {
        Box::new(GpuBatch::new(self))
    }

    fn kv_room(&self) -> usize {
        self.executor.pool.blocks.room()
    }

    fn sequence_room(&self) -> usize {
        self.executor.pool.states.as_ref().map_or(usize::MAX, StatePool::room)
    }

    /// With that of the draft model or the prediction head.
    fn device_memory(&self) -> Option<DeviceMemory> {
        let gpu = &self.executor.gpu;
        let of_draft = |bytes: fn(&Self) -> u64| self.draft.as_deref().map_or(0, bytes);
        let of_head = self.head.as_deref().map_or(0, |head| head.executor.pool.bytes());
        Some(DeviceMemory {
            budget: Some(gpu.budget()).filter(|&budget| budget < u64::MAX),
            used: gpu.used(),
            reserved: gpu.reserved(),
            weights: self.weight_bytes() + of_draft(Self::weight_bytes),
            kv: self.kv_bytes() + of_draft(Self::kv_bytes) + of_head,
        })
    }

    fn backend_adapters(&self) -> Option<&BackendAdapters> {
        Some(&self.adapters)
    }

    fn shares_prefixes(&self) -> bool {
        true
    }

    fn prefix_statistics(&self) -> Option<TreeStatistics> {
        Some(self.executor.pool.blocks.statistics())
    }

    fn host_prefix_statistics(&self) -> Option<TreeStatistics> {
        self.executor.pool.blocks.host_statistics()
    }

    /// In the pool of adapters.
    fn tenant(&self, path: &str) -> Result<Tenant, ruvllm_memory::Error> {
        self.host.tenant(path)
    }

    fn is_lost(&self) -> bool {
        self.executor.gpu.is_lost()
    }

    /// `f16` or `q8`.
    fn kv_policy(&self) -> KvPolicy {
        self.executor.pool.policy()
    }
}

/// Prints configuration, context length and adapter.
impl fmt::Debug for GpuBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GpuBackend")
            .field("config", self.config())
            .field("context", &self.context)
            .field("adapter", &self.adapter())
            .finish_non_exhaustive()
    }
}

fn selection(options: &GpuOptions) -> Selection {
    use ruvllm_gpu::AdapterChoice;
    let adapter = match &options.adapter {
        None => AdapterChoice::Best,
        Some(text) => match text.parse() {
            Ok(index) => AdapterChoice::Index(index),
            Err(_) => AdapterChoice::Name(text.clone()),
        },
    };
    Selection { adapter, software: options.software }
}

fn open(options: &GpuOptions) -> Result<Gpu, Refusal> {
    let budget = options.budget.unwrap_or(u64::MAX);
    Gpu::open_cached(&selection(options), budget, options.cache_dir.as_deref())
        .map_err(|source| Refusal::Gpu { action: "open a GPU".into(), source })
}

/// A model on the device.
struct Uploaded {
    executor: Executor,
    head: Option<GpuHead>,
    /// Context length.
    context: usize,
    /// Names and formats of converted matrices.
    converted: Vec<String>,
}

/// Uploads the model, whose tokenizer has `ids` ids, beside its draft model.
fn upload(
    gpu: Arc<Gpu>,
    model: &Model,
    draft: Option<&GpuBackend>,
    (options, earlier): (&GpuOptions, usize),
    ids: usize,
    times: &mut GpuLoadTimes,
) -> Result<Uploaded, Refusal> {
    let config = model.config();
    refusal::check(config)?;
    let kv_format = refusal::kv_format(options.kv, config)?;
    let activation = refusal::activation(config.decoder.activation)?;
    let context = refusal::context(config, options.context, USUAL_CONTEXT)?;
    let start = Instant::now();
    let (kv_tokens, context) = kv_tokens(options, config, kv_format, context);
    let failed = |action: &str| {
        let action = action.to_owned();
        move |source| Refusal::Gpu { action, source }
    };
    let pool = KvPool::new(&gpu, config, kv_format, kv_tokens, options.host_kv_bytes)
        .map_err(failed("allocate keys and values; lower GpuOptions::context or kv_tokens"))?
        .with_states(&gpu, config, (options.sequences, earlier, options.spare_states))
        .map_err(failed("allocate states; lower GpuOptions::sequences or spare_states"))?;
    let angles =
        Angles::new(&gpu, config, &model.kv_ropes(), context).map_err(failed("upload RoPE tables"))?;
    let reserve = || -> ruvllm_gpu::Result<_> {
        let draft = draft.map(|draft| Reserve::new(&gpu, draft.config(), draft.context)).transpose()?;
        Ok((Reserve::new(&gpu, config, context)?, draft))
    };
    let reserve = options.layers.is_none().then(reserve);
    // Without room for the largest passes no layer takes any from smaller ones.
    let layers = if let Some(Err(_)) = reserve { Some(0) } else { options.layers };
    let mut head = HeadMemory::new(&gpu, model, options, context);
    let (mut weights, uploads) =
        prediction::place((&gpu, model), (layers, options.layers.is_none()), &mut head)?;
    drop(reserve);
    let decode_gemm = options.sequences > GEMV_SEQUENCES;
    let f16 = options.adapter_format == FactorFormat::F16;
    let adapters = DeviceAdapters::new(Arc::clone(model.adapter_base()), f16, options.adapter_slots);
    let parts = (decode_gemm, adapters);
    let of_head = weights.head.take();
    let head = head
        .zip(of_head)
        .map(|(memory, weights)| memory.with_weights((&gpu, model), *weights, (ids, decode_gemm)));
    let head = head.transpose()?;
    let kept = if head.is_some() { Kept::All } else { Kept::None };
    let executor = Executor::new(gpu, config.clone(), activation, weights, (pool, angles), ids, parts)
        .map_err(failed("allocate logits"))?
        .keeping(kept);
    // A request that needs these passes reports the failure.
    let is_cut = executor.pool.states.as_ref().is_none_or(StatePool::has_drafts);
    let has_drafts = options.speculation != Speculation::Off && is_cut;
    let _ = executor.compile_ahead(context, has_drafts);
    if let Some(head) = &head {
        head.compile_ahead();
    }
    times.allocate = start.elapsed();
    let converted = uploads.write(&executor.gpu)?;
    times.upload = start.elapsed() - times.allocate;
    Ok(Uploaded { executor, head, context, converted })
}

/// Tokens that there are keys and values for, and the context length, at most `context`.
fn kv_tokens(
    options: &GpuOptions,
    config: &ModelConfig,
    format: ruvllm_gpu::KvFormat,
    context: usize,
) -> (usize, usize) {
    match (options.kv_tokens, options.kv_bytes) {
        (Some(tokens), _) => (tokens, context),
        (None, Some(bytes)) => {
            let tokens = KvPool::tokens_of(config, format, bytes);
            (tokens, context.min(tokens))
        }
        (None, None) => {
            let sequence = context.next_multiple_of(ruvllm_gpu::KV_BLOCK_TOKENS as usize);
            (sequence.saturating_mul(options.sequences), context)
        }
    }
}
