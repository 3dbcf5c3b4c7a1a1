//! A loaded model with tokenizer, KV store and threads, shared by all requests.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use ruvllm_adapters::{FactorFormat, Registry, Residency, ResidencyConfig, ScaledAdapter};
use ruvllm_kernels::{Kernels, ThreadPool};
use ruvllm_kv_cache::{KvPolicy, KvStore};
use ruvllm_models::quantize::{InSitu, Recipe};
use ruvllm_models::{
    Checkpoint, Compute, EmbeddingDefaults, LoadProgress, Model, ModelConfig, RowKernelReport,
    rerank_template,
};
use ruvllm_text::TokenId;
use ruvllm_text::chat::{ChatTemplate, Message};
use ruvllm_text::tokenizer::Tokenizer;

use crate::cancel::CancelToken;
use crate::codec::TextCodec;
use crate::core::Core;
use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::options::{EngineOptions, ModelSource};
use crate::plan::{self, ModelSize, Plan};
use crate::prefix::{PrefixCache, PrefixStatistics, fingerprint};
use crate::quality::QualityMemory;
use crate::request::Prompt;
use crate::session_table::{SessionId, SessionTable};
use crate::speculation::Draft;
use crate::step::{StepStatistics, StepThread, Tuning, TuningStatus};

/// A loaded model, ready to run.
///
/// Methods take `&self`; per-sequence state is created for each call, so an engine can be shared
/// between threads behind an `Arc`.
pub struct Engine {
    pub(crate) core: Arc<Core>,
    /// Started by the first request.
    steps: OnceLock<StepThread>,
    /// Number of the next session.
    sessions: AtomicU64,
    /// Sessions by tenant and id.
    pub(crate) session_table: SessionTable,
    /// Recipe of the quantization at load time, if any.
    pub(crate) quantize: Option<Recipe>,
    plan: Plan,
    /// Adapters by tenant and name.
    pub(crate) adapter_registry: Registry,
    /// Adapters of requests that name none.
    pub(crate) adapters: Arc<[ScaledAdapter]>,
    /// Number format of loaded adapters.
    pub(crate) adapter_format: FactorFormat,
    pub(crate) source: ModelSource,
    /// Embedding defaults from the model's files.
    pub(crate) embedding: EmbeddingDefaults,
    /// Prompt of a model that ranks documents, with its placeholders.
    pub(crate) rerank_template: Option<String>,
    load_time: Duration,
}

/// Prints configuration, compute settings and plan; weights and vocabulary are left out.
impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("config", self.config())
            .field("compute", &self.core.compute)
            .field("plan", &self.plan)
            .finish_non_exhaustive()
    }
}

impl Engine {
    /// Loads a model file or folder with default options.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    ///
    /// # Examples
    /// ```no_run
    /// let engine = ruvllm::Engine::open("model.gguf")?;
    /// println!("{}", engine.generate("Once upon a time")?.text);
    /// # Ok::<(), ruvllm::Error>(())
    /// ```
    pub fn open(source: impl Into<ModelSource>) -> Result<Self> {
        Self::open_with(source, &EngineOptions::default())
    }

    /// Loads the built-in model with its draft model and default options: a small English one, for
    /// tests and first steps.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    #[cfg(feature = "builtin-model")]
    pub fn builtin() -> Result<Self> {
        let options = EngineOptions::default().with_draft(ModelSource::builtin_draft());
        Self::open_with(ModelSource::builtin(), &options)
    }

    /// Loads a model file or folder.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn open_with(source: impl Into<ModelSource>, options: &EngineOptions) -> Result<Self> {
        Self::load(&source.into(), options, &mut |_| ())
    }

    /// Loads a model file or folder; `progress` gets the loading progress of the weights.
    ///
    /// # Errors
    /// [`Error::InvalidOption`], [`Error::MlockQuantized`], [`Error::Compute`] if the CPU lacks the
    /// instruction set, [`Error::Open`] (also for files that are not locked in memory),
    /// [`Error::Load`], [`Error::CalibrationModel`], [`Error::KvPolicy`],
    /// [`Error::KvBudgetTooSmall`], [`Error::KvBudget`], [`Error::PrefixStore`],
    /// [`Error::PrefixWriter`], [`Error::SpillWithoutFolder`], [`Error::Tokenizer`],
    /// [`Error::VocabularyMismatch`] and [`Error::DraftVocabulary`] for unusable files and options.
    /// An unreadable chat template is an error only when it is used.
    pub fn load(
        source: &ModelSource,
        options: &EngineOptions,
        progress: &mut dyn FnMut(LoadProgress<'_>),
    ) -> Result<Self> {
        let start = Start::new(options)?;
        let checkpoint = source.open(options.file_memory())?;
        Self::of_checkpoint(&*checkpoint, source, options, start, progress)
    }

    /// Loads the model of `checkpoint`, which was opened from `source`.
    pub(crate) fn of_checkpoint(
        checkpoint: &dyn Checkpoint,
        source: &ModelSource,
        options: &EngineOptions,
        start: Start,
        progress: &mut dyn FnMut(LoadProgress<'_>),
    ) -> Result<Self> {
        let Start { started, machine, compute } = start;
        let name = source.to_string();
        let failed = |source| Error::Load { name: name.clone(), source };
        let model = load_model(checkpoint, options, &compute.pool, progress).map_err(failed)?;
        let embedding = EmbeddingDefaults::from_metadata(checkpoint.metadata()).map_err(failed)?;
        let rerank_template = rerank_template_of(checkpoint, &model).map_err(failed)?;
        let weights_bytes = match options.quantize {
            None => plan::weights_bytes(checkpoint),
            Some(_) => model.weight_bytes().private,
        };
        let plan = Plan::new(&machine, &ModelSize::new(model.config(), weights_bytes), options);
        let fingerprint = || fingerprint(checkpoint, options.quantize);
        let (kv, request_kv) = plan::new_kv_store(&model, fingerprint, options, &plan)?;
        let (caching, has_transfers) = (&options.prefixes, options.prefix_transfers);
        let (key, row_kernels) = (options.prefix_key.as_ref(), options.row_kernels.clone());
        let config = model.config();
        let prefixes = PrefixCache::open(caching, key, has_transfers, fingerprint, config, &kv, row_kernels)?;
        let quality = QualityMemory::new(prefixes.as_deref().and_then(PrefixCache::quality_files));
        let codec =
            TextCodec::read(checkpoint, &name, options.tokenizer.as_deref(), model.config().vocab_size)?;
        let draft = Draft::of_options(options, &model, &codec)?;
        let residency = Residency::new(
            Arc::clone(model.adapter_base()),
            kv.pool().clone(),
            ResidencyConfig {
                limits: options.adapter_limits,
                pressure: options.pressure,
                ..ResidencyConfig::default()
            },
        );
        let EngineOptions { scheduling, prefill_chunk, speculation, .. } = options;
        let tuning = options.tuning.as_ref();
        let tuning = tuning.map(|tuning| Tuning::new(tuning, scheduling, *prefill_chunk, *speculation));
        let tuning = tuning.transpose()?;
        let core = Core {
            residency: Arc::clone(&residency),
            model,
            codec,
            compute,
            prefill_chunk: options.prefill_chunk,
            scheduling: options.scheduling.clone(),
            context: plan.context.value,
            kv,
            request_kv,
            prefixes,
            pressure: options.pressure,
            quality,
            counters: Arc::default(),
            intake: Arc::default(),
            draft,
            speculation: options.speculation,
            tuning,
            #[cfg(feature = "learning")]
            lessons: crate::learning::LessonTurns::default(),
        };
        Ok(Self {
            core: Arc::new(core),
            adapter_registry: Registry::new(residency),
            steps: OnceLock::new(),
            sessions: AtomicU64::new(0),
            session_table: SessionTable::new(options.session_ttl, options.session_quota),
            quantize: options.quantize,
            plan,
            adapters: Arc::default(),
            adapter_format: options.adapter_format,
            source: source.clone(),
            embedding,
            rerank_template,
            load_time: started.elapsed(),
        })
    }

    /// The state that requests share.
    pub(crate) fn core(&self) -> &Core {
        &self.core
    }

    /// Number of a new session.
    pub(crate) fn new_session(&self) -> SessionId {
        SessionId(self.sessions.fetch_add(1, Ordering::Relaxed))
    }

    /// Releases the sequence that a session keeps, and waits for that.
    pub(crate) fn end_session(&self, session: SessionId) {
        if let Some(steps) = self.steps.get() {
            steps.end_session(session);
        }
    }

    /// The thread of the step loop.
    ///
    /// # Errors
    /// [`Error::StepThread`] if it cannot be started.
    pub(crate) fn steps(&self) -> Result<&StepThread> {
        if let Some(steps) = self.steps.get() {
            return Ok(steps);
        }
        // Of two threads that are started at the same time one ends at once.
        let steps = StepThread::start(Arc::clone(&self.core)).map_err(Error::StepThread)?;
        Ok(self.steps.get_or_init(|| steps))
    }

    /// Hyperparameters and names of the model.
    pub fn config(&self) -> &ModelConfig {
        self.core.model.config()
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.core.model
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        self.core.codec.tokenizer()
    }

    /// The chat template of the model.
    ///
    /// # Errors
    /// [`Error::NoChatTemplate`] if it has none, [`Error::UnusableChatTemplate`] if it cannot be
    /// read.
    pub fn chat_template(&self) -> Result<&ChatTemplate> {
        self.core.codec.chat_template()
    }

    /// Context length in tokens: prompt and output together.
    pub fn context_length(&self) -> usize {
        self.plan.context.value
    }

    /// Settings chosen for the machine and the model, with their reasons.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// KV-cache policy: the one requested or chosen, completed for the model.
    pub fn kv_policy(&self) -> &KvPolicy {
        self.core.kv.policy()
    }

    /// KV store of all sequences.
    pub fn kv_store(&self) -> &KvStore {
        &self.core.kv
    }

    /// Limits of the scheduler, as the engine was opened with.
    pub fn scheduling(&self) -> &ruvllm_scheduler::Config {
        &self.core.scheduling
    }

    /// Counters of the prefix cache; `None` if it is off.
    pub fn prefix_statistics(&self) -> Option<PrefixStatistics> {
        let mut statistics = self.core.prefixes.as_deref().map(PrefixCache::statistics)?;
        let stores = [&self.core.kv].into_iter().chain(&self.core.request_kv);
        statistics.snapshot_bytes = stores.map(|kv| kv.snapshots().bytes).sum();
        Some(statistics)
    }

    /// Counters of the step loop, which runs all requests.
    pub fn step_statistics(&self) -> StepStatistics {
        self.core.counters.read()
    }

    /// Counters and settings of the tuner; `None` without [`EngineOptions::tuning`].
    pub fn tuning_status(&self) -> Option<TuningStatus> {
        self.core.tuning.as_ref().map(Tuning::status)
    }

    /// Takes the decisions of the tuner since the last call, with their reasons, at most 256: older
    /// ones are dropped and counted.
    pub fn take_tuning_changes(&self) -> Vec<ruvllm_sona::tuning::Change> {
        self.core.tuning.as_ref().map(Tuning::take_changes).unwrap_or_default()
    }

    /// Waits until all queued prefixes are on disk; a background thread writes them. Dropping the
    /// engine waits as well, but reports no failures.
    pub fn flush_prefixes(&self) {
        if let Some(prefixes) = &self.core.prefixes {
            prefixes.flush();
        }
    }

    /// Takes the warnings about stored prefixes since the last call, one line each, at most 64. The
    /// affected requests succeeded: unreadable prefixes were recomputed.
    pub fn take_prefix_warnings(&self) -> Vec<String> {
        self.core.prefixes.as_deref().map(PrefixCache::take_warnings).unwrap_or_default()
    }

    /// Refuses requests from now on with [`Error::ShuttingDown`]. Those that wait or run go on to
    /// their end: the engine is drained once [`open_requests`](Self::open_requests) is 0. To end
    /// them at once, cancel them or drop the engine.
    pub fn begin_shutdown(&self) {
        self.core.intake.close();
    }

    /// True after [`begin_shutdown`](Self::begin_shutdown).
    pub fn is_shutting_down(&self) -> bool {
        self.core.intake.is_closed()
    }

    /// Requests that were submitted and have not ended: those that are encoded, wait or run. Once
    /// it is 0 after [`begin_shutdown`](Self::begin_shutdown), none runs and none can come; one
    /// that is being refused may show for a moment.
    pub fn open_requests(&self) -> usize {
        self.core.intake.open()
    }

    /// State of the kernels that replace native ones; `None` without
    /// [`EngineOptions::row_kernels`], and for kernels that count nothing.
    pub fn row_kernel_report(&self) -> Option<RowKernelReport> {
        self.core.compute.row_kernels.as_ref()?.report()
    }

    /// Number of compute threads.
    pub fn threads(&self) -> usize {
        self.plan.threads.value
    }

    /// Kernels of the chosen instruction set.
    pub fn kernels(&self) -> Kernels {
        self.core.compute.kernels
    }

    /// Fingerprint of the model: [`ModelSource::fingerprint`], with the recipe if the engine
    /// quantizes it.
    ///
    /// # Errors
    /// [`Error::Open`] if the model file is gone.
    pub fn fingerprint(&self) -> Result<[u8; 32]> {
        self.source.fingerprint(self.quantize)
    }

    /// Duration of loading: [`open`](Self::open) or [`load`](Self::load).
    pub fn load_time(&self) -> Duration {
        self.load_time
    }

    /// Renders a conversation with the chat template, up to the beginning of the model's answer.
    ///
    /// For display only: in this text, markers of the template and equal text of a message look the
    /// same. [`encode_prompt`](Self::encode_prompt) encodes them differently.
    ///
    /// # Errors
    /// As [`chat_template`](Self::chat_template); [`Error::Chat`] if the template refuses the
    /// messages.
    pub fn render_chat(&self, messages: &[Message], tools: Option<&serde_json::Value>) -> Result<String> {
        self.core.codec.render_chat(messages, tools)
    }

    /// Encodes a prompt: at least one token id, all of them in the vocabulary.
    ///
    /// An empty prompt is encoded as BOS.
    ///
    /// # Errors
    /// [`Error::EmptyPrompt`] if the model has no BOS, [`Error::TokenOutOfRange`],
    /// [`Error::Encode`], [`Error::Chat`], and those of [`chat_template`](Self::chat_template).
    pub fn encode_prompt(&self, prompt: &Prompt) -> Result<Vec<TokenId>> {
        self.core.codec.encode_prompt(prompt)
    }

    /// As [`encode_prompt`](Self::encode_prompt), but stops when `cancel` is set.
    ///
    /// # Errors
    /// As [`encode_prompt`](Self::encode_prompt), and [`Error::Cancelled`].
    pub fn encode_prompt_until(&self, prompt: &Prompt, cancel: &CancelToken) -> Result<Vec<TokenId>> {
        self.core.codec.encode_prompt_until(prompt, cancel)
    }

    /// Checks that every id is in the model's vocabulary.
    pub(crate) fn check_tokens(&self, tokens: &[TokenId]) -> Result<()> {
        self.core.codec.check_tokens(tokens)
    }
}

/// State of a load before the model's files are opened.
pub(crate) struct Start {
    pub(crate) started: Instant,
    machine: Machine,
    pub(crate) compute: Compute,
}

impl Start {
    /// Checks the options and starts the threads, so that a missing CPU feature fails before a long
    /// load.
    pub(crate) fn new(options: &EngineOptions) -> Result<Self> {
        let (started, machine) = (Instant::now(), Machine::detect());
        let compute = plan::compute(&machine, options)?;
        Ok(Self { started, machine, compute })
    }
}

/// The prompt of a model that ranks documents.
fn rerank_template_of(checkpoint: &dyn Checkpoint, model: &Model) -> ruvllm_models::Result<Option<String>> {
    let template = || rerank_template(checkpoint.metadata()).map(str::to_owned);
    model.rank_head().map(|_| template()).transpose()
}

/// Loads the weights, quantized while loading if the options say so.
fn load_model(
    checkpoint: &dyn Checkpoint,
    options: &EngineOptions,
    pool: &ThreadPool,
    progress: &mut dyn FnMut(LoadProgress<'_>),
) -> Result<Model, ruvllm_models::Error> {
    match options.quantize {
        None => Model::load(checkpoint, progress),
        Some(recipe) => Model::load(&InSitu::new(checkpoint, recipe, pool)?, progress),
    }
}
