//! A loaded model with everything it needs to run, shared by all requests.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use ruvllm_adapters::Adapter;
use ruvllm_kernels::{Kernels, ThreadPool};
use ruvllm_kv_cache::{KvPolicy, KvStore};
use ruvllm_models::quantize::{InSitu, Recipe};
use ruvllm_models::{Checkpoint, Compute, EmbeddingDefaults, LoadProgress, Model, ModelConfig};
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
use crate::step::{SessionId, StepStatistics, StepThread};

/// A model that is ready to run.
///
/// Requests take `&self`: what belongs to one sequence is made for each call, so an engine can be
/// shared between threads behind an `Arc`.
pub struct Engine {
    core: Arc<Core>,
    /// Started by the first request.
    steps: OnceLock<StepThread>,
    /// Number of the next session.
    sessions: AtomicU64,
    /// Recipe of the quantization at load time, if any.
    pub(crate) quantize: Option<Recipe>,
    plan: Plan,
    /// Adapter of requests that name none.
    pub(crate) adapter: Option<Arc<Adapter>>,
    pub(crate) source: ModelSource,
    /// Embedding defaults from the model's files.
    pub(crate) embedding: EmbeddingDefaults,
    load_time: Duration,
}

/// The model's shape and how it is run; the vocabulary would be too long.
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
    /// Opens a model file or folder with default options and makes it ready.
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

    /// The model inside the program, with default options: a small English one, for tests and first
    /// steps.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    #[cfg(feature = "builtin-model")]
    pub fn builtin() -> Result<Self> {
        Self::open(ModelSource::builtin())
    }

    /// Opens a model file or folder and makes it ready.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn open_with(source: impl Into<ModelSource>, options: &EngineOptions) -> Result<Self> {
        Self::load(&source.into(), options, &mut |_| ())
    }

    /// Opens a model file or folder and makes it ready; `progress` is told how far the weights are.
    ///
    /// # Errors
    /// [`Error::InvalidOption`], [`Error::MlockQuantized`], [`Error::Compute`] if the instruction
    /// set is absent here, [`Error::Open`] (also for files that are not locked in memory),
    /// [`Error::Load`], [`Error::CalibrationModel`], [`Error::KvPolicy`],
    /// [`Error::KvBudgetTooSmall`], [`Error::KvBudget`], [`Error::PrefixStore`],
    /// [`Error::PrefixWriter`], [`Error::SpillWithoutFolder`], [`Error::Tokenizer`] and
    /// [`Error::VocabularyMismatch`] for unusable files and options. A chat template that cannot be
    /// read is no error before it is used.
    pub fn load(
        source: &ModelSource,
        options: &EngineOptions,
        progress: &mut dyn FnMut(LoadProgress<'_>),
    ) -> Result<Self> {
        let start = Start::new(options)?;
        let checkpoint = source.open(options.file_memory())?;
        Self::of_checkpoint(&*checkpoint, source, options, start, progress)
    }

    /// Makes the model in `checkpoint` ready, which is what `source` holds.
    pub(crate) fn of_checkpoint(
        checkpoint: &dyn Checkpoint,
        source: &ModelSource,
        options: &EngineOptions,
        start: Start,
        progress: &mut dyn FnMut(LoadProgress<'_>),
    ) -> Result<Self> {
        let Start { started, machine, compute } = start;
        let name = source.to_string();
        let model = load_model(checkpoint, options, &compute.pool, progress)
            .map_err(|source| Error::Load { name: name.clone(), source })?;
        let embedding = EmbeddingDefaults::from_metadata(checkpoint.metadata())
            .map_err(|source| Error::Load { name: name.clone(), source })?;
        let weights_bytes = match options.quantize {
            None => plan::weights_bytes(checkpoint),
            Some(_) => model.weight_bytes().private,
        };
        let plan = Plan::new(&machine, &ModelSize::new(model.config(), weights_bytes), options);
        let fingerprint = || fingerprint(checkpoint, options.quantize);
        let kv = plan::new_kv_store(&model, fingerprint, options, &plan)?;
        let folder_key = options.prefix_key.as_ref();
        let prefixes = PrefixCache::open(&options.prefixes, folder_key, fingerprint, model.config(), &kv)?;
        let quality = QualityMemory::new(prefixes.as_deref().and_then(PrefixCache::quality_files));
        let codec =
            TextCodec::read(checkpoint, &name, options.tokenizer.as_deref(), model.config().vocab_size)?;
        let core = Core {
            model,
            codec,
            compute,
            prefill_chunk: options.prefill_chunk,
            context: plan.context.value,
            kv,
            prefixes,
            pressure: options.pressure,
            quality,
            counters: Arc::default(),
        };
        Ok(Self {
            core: Arc::new(core),
            steps: OnceLock::new(),
            sessions: AtomicU64::new(0),
            quantize: options.quantize,
            plan,
            adapter: None,
            source: source.clone(),
            embedding,
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

    /// Shape and names of the model.
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

    /// Tokens that a sequence can have, prompt and output together.
    pub fn context_length(&self) -> usize {
        self.plan.context.value
    }

    /// Settings chosen for the machine and the model, with their reasons.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Storage policy of keys and values: the one requested, completed for the model.
    pub fn kv_policy(&self) -> &KvPolicy {
        self.core.kv.policy()
    }

    /// Store of the keys and values of all sequences.
    pub fn kv_store(&self) -> &KvStore {
        &self.core.kv
    }

    /// Counters of the prefix cache; `None` if there is none.
    pub fn prefix_statistics(&self) -> Option<PrefixStatistics> {
        self.core.prefixes.as_deref().map(PrefixCache::statistics)
    }

    /// Counters of the step loop, which runs all requests.
    pub fn step_statistics(&self) -> StepStatistics {
        self.core.counters.read()
    }

    /// Waits until all prefixes are written that were handed over for that: they are written behind
    /// the requests. Dropping the engine waits as well, but tells nobody what went wrong.
    pub fn flush_prefixes(&self) {
        if let Some(prefixes) = &self.core.prefixes {
            prefixes.flush();
        }
    }

    /// Warnings about stored prefixes since the last call, a line each, at most 64. The requests
    /// were served all the same: what could not be read was computed.
    pub fn take_prefix_warnings(&self) -> Vec<String> {
        self.core.prefixes.as_deref().map(PrefixCache::take_warnings).unwrap_or_default()
    }

    /// Threads that compute.
    pub fn threads(&self) -> usize {
        self.plan.threads.value
    }

    /// The kernels that compute.
    pub fn kernels(&self) -> Kernels {
        self.core.compute.kernels
    }

    /// SHA-256 over the metadata and over name, type, shape and 16 samples of every tensor of the
    /// model file, and the recipe if the engine quantizes it: [`ModelSource::fingerprint`].
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

    /// The text that a conversation becomes, up to where the model's answer begins.
    ///
    /// It is for people to read: [`encode_prompt`](Self::encode_prompt) keeps apart what the
    /// template and what the messages say, which this text no longer does.
    ///
    /// # Errors
    /// As [`chat_template`](Self::chat_template); [`Error::Chat`] if the template refuses the
    /// messages.
    pub fn render_chat(&self, messages: &[Message], tools: Option<&serde_json::Value>) -> Result<String> {
        self.core.codec.render_chat(messages, tools)
    }

    /// The token ids that a prompt becomes: at least one, all of them in the vocabulary.
    ///
    /// An empty prompt becomes the beginning-of-text token.
    ///
    /// # Errors
    /// [`Error::EmptyPrompt`] if the model has no such token, [`Error::TokenOutOfRange`],
    /// [`Error::Encode`], [`Error::Chat`], and those of [`chat_template`](Self::chat_template).
    pub fn encode_prompt(&self, prompt: &Prompt) -> Result<Vec<TokenId>> {
        self.core.codec.encode_prompt(prompt)
    }

    /// As [`encode_prompt`](Self::encode_prompt), and ends when `cancel` is set.
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

/// The state of a load before the model's files are opened.
pub(crate) struct Start {
    pub(crate) started: Instant,
    machine: Machine,
    pub(crate) compute: Compute,
}

impl Start {
    /// Checks the options and starts the threads: a machine that lacks something should say so
    /// before a long load.
    pub(crate) fn new(options: &EngineOptions) -> Result<Self> {
        let (started, machine) = (Instant::now(), Machine::detect());
        let compute = plan::compute(&machine, options)?;
        Ok(Self { started, machine, compute })
    }
}

/// The model, quantized on the way if the options say so.
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
