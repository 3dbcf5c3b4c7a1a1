//! The error type of this crate: one variant per condition, with the numbers that explain it.

use ruvllm_models::Pooling;
use ruvllm_text::TokenId;

/// Result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Shortage of the KV budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct KvShortage {
    /// Bytes needed by the next step.
    pub needed_bytes: usize,
    /// Free bytes of the budget.
    pub free_bytes: usize,
    /// Size of the budget in bytes.
    pub total_bytes: usize,
}

impl KvShortage {
    fn of(error: &ruvllm_kv_cache::Error) -> Option<Self> {
        let (page_bytes, [needed, free, total]) = match *error {
            ruvllm_kv_cache::Error::Memory {
                page_bytes,
                source: ruvllm_memory::Error::Exhausted { wanted_pages, free_pages, capacity_pages, .. },
                ..
            } => (page_bytes, [wanted_pages, free_pages, capacity_pages]),
            ruvllm_kv_cache::Error::BudgetReached { free_pages, total_pages, page_bytes, kept_pages } => {
                (page_bytes, [kept_pages + 1, free_pages, total_pages])
            }
            _ => return None,
        };
        let [needed_bytes, free_bytes, total_bytes] =
            [needed, free, total].map(|pages| pages.saturating_mul(page_bytes));
        Some(Self { needed_bytes, free_bytes, total_bytes })
    }
}

/// Errors of the engine. A failed request leaves the engine unchanged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The thread that computes steps could not be started.
    #[error("cannot start the engine's thread")]
    StepThread(#[source] std::io::Error),
    /// The engine does not take the request now.
    #[error("the request is refused")]
    Refused(#[source] ruvllm_scheduler::Refusal),
    /// The request's deadline passed before it was complete.
    #[error("the deadline passed before the request was complete")]
    DeadlineExceeded,
    /// The engine was dropped, or its thread stopped, while the request ran.
    #[error("the engine stopped while the request ran")]
    EngineStopped,
    /// The engine takes no new requests:
    /// [`Engine::begin_shutdown`](crate::Engine::begin_shutdown).
    #[error("the engine is shutting down and takes no new requests; send them to another one")]
    ShuttingDown,
    /// A request with an id failed.
    #[error("request {id:?} failed")]
    InRequest {
        /// [`GenerateRequest::id`](crate::GenerateRequest::id).
        id: Box<str>,
        /// Error of the request.
        #[source]
        source: Box<Self>,
    },
    /// A session cannot be used as asked.
    #[error("cannot use the session")]
    Session(#[source] crate::session_table::SessionError),
    /// The backend does not keep sessions.
    #[error("the backend {backend} keeps no sessions; use the native engine")]
    SessionBackend {
        /// Name of the backend.
        backend: String,
    },
    /// The id of a request or a session is empty or too long.
    #[error("the id of the {of} has {bytes} bytes, expected 1 to {most}")]
    IdLength {
        /// `request` or `session`.
        of: &'static str,
        /// Length of the id.
        bytes: usize,
        /// Largest length.
        most: usize,
    },
    /// Learning from feedback failed.
    #[error("cannot learn")]
    Learning {
        /// Error of learning.
        #[source]
        source: ruvllm_sona::Error,
    },
    /// The model could not be opened: there is no valid GGUF file or Hugging Face folder.
    #[error("cannot open {name}")]
    Open {
        /// Path of the file, or the name given to static bytes.
        name: String,
        /// Error of the reader.
        #[source]
        source: ruvllm_models::Error,
    },
    /// The model store has no such model.
    #[cfg(feature = "store")]
    #[error("cannot take {name} from the model store")]
    Store {
        /// The requested name.
        name: String,
        /// Error of the store, with similar names.
        #[source]
        source: ruvllm_hub::Error,
    },
    /// The file is valid, but the model in it cannot be run.
    #[error("cannot load the model in {name}")]
    Load {
        /// Path of the file, or the name given to static bytes.
        name: String,
        /// Error of the model loader.
        #[source]
        source: ruvllm_models::Error,
    },
    /// The tokenizer of the model, or the one given instead of it, cannot be used.
    #[error("cannot load the tokenizer from {name}")]
    Tokenizer {
        /// Path of the file, or the name given to static bytes.
        name: String,
        /// Error of the tokenizer loader.
        #[source]
        source: ruvllm_models::Error,
    },
    /// The tokenizer is of another model: it has more ids than the model's vocabulary.
    #[error("the tokenizer has {tokenizer} ids and the model only {model}; use the tokenizer of this model")]
    VocabularyMismatch {
        /// Ids of the tokenizer.
        tokenizer: usize,
        /// Rows of the model's embedding.
        model: usize,
    },
    /// An adapter cannot be loaded: unreadable files, another base model, or too little memory.
    #[error("cannot load the adapter")]
    Adapter {
        /// Error of the adapter's reader or the model.
        #[source]
        source: ruvllm_models::Error,
    },
    /// The scale of an adapter is NaN or infinite.
    #[error("the scale of an adapter is {scale}, expected a finite number")]
    AdapterScale {
        /// The scale.
        scale: f32,
    },
    /// The backend cannot compute with the adapters.
    #[error(transparent)]
    AdapterBackend(crate::adapter_refusal::AdapterRefusal),
    /// The backend has one KV policy, and the request names another.
    #[error("the backend {backend} stores keys and values as {own}, not as {policy}; leave out the policy")]
    KvPolicyBackend {
        /// Name of the backend.
        backend: String,
        /// Its policy.
        own: String,
        /// The requested policy.
        policy: String,
    },
    /// The requested instruction set is absent, or the threads could not be started.
    #[error("cannot set up the computation")]
    Compute(#[source] ruvllm_kernels::Error),
    /// An option is out of range.
    #[error("option {name} is {value}, expected {expected}")]
    InvalidOption {
        /// Field of the options.
        name: &'static str,
        /// Its value.
        value: usize,
        /// The range.
        expected: &'static str,
    },
    /// `mlock` and `quantize` exclude each other: quantized weights are not the files' bytes.
    #[error("option mlock locks the bytes of the model's files, which quantize does not keep; choose one")]
    MlockQuantized,
    /// A sampling parameter is NaN or out of range.
    #[error("sampling parameter {name} is {value}, expected {expected}")]
    SamplingParameter {
        /// Field of [`SamplingParams`](crate::SamplingParams).
        name: &'static str,
        /// Its value.
        value: f32,
        /// The range.
        expected: &'static str,
    },
    /// A logit bias names an id outside the vocabulary.
    #[error("logit bias for token {token}, but the vocabulary ends at {}", vocab_size.saturating_sub(1))]
    LogitBiasToken {
        /// The id.
        token: TokenId,
        /// Ids in the vocabulary.
        vocab_size: usize,
    },
    /// A sampler order names no sampler.
    #[error(
        "there is no sampler {name:?}: use penalties, dry, top_n_sigma, top_k, typ_p, top_p, min_p, xtc, \
         temperature, separated by ;"
    )]
    UnknownSampler {
        /// The name.
        name: String,
    },
    /// A sampler order names a sampler twice.
    #[error("sampler {name} occurs twice in the order")]
    RepeatedSampler {
        /// Its name.
        name: &'static str,
    },
    /// A DRY sequence breaker is empty or too long, or there are too many.
    #[error(
        "DRY sequence breaker {} has {bytes} bytes, expected at most 64 breakers of 1 to 128 bytes", index + 1
    )]
    DryBreaker {
        /// Its index in the list.
        index: usize,
        /// Its length.
        bytes: usize,
    },
    /// A stop sequence is empty and would match everywhere.
    #[error("stop string {} is empty; leave it out", index + 1)]
    EmptyStop {
        /// Its index in the list.
        index: usize,
    },
    /// The output cannot be constrained as asked.
    #[cfg(feature = "structured-output")]
    #[error("cannot constrain the output")]
    Constraint(#[source] crate::constraint::ConstraintError),
    /// The tools of a request cannot be used.
    #[error("cannot use the tools")]
    Tools(#[source] crate::tools::ToolError),
    /// Every logit is NaN or `-inf`: the model is damaged, or the logit bias forbids every token.
    #[error("no token can be sampled: every logit is NaN or -inf")]
    NoCandidate,
    /// The prompt is empty and the model has no BOS token.
    #[error("the prompt is empty and the model has no beginning-of-text token; give at least one token")]
    EmptyPrompt,
    /// The prompt exceeds the context length.
    #[error(
        "the prompt has {prompt_tokens} tokens and the context holds {context}; shorten the prompt or load the model \
         with a larger context (the model allows {model_context})"
    )]
    PromptTooLong {
        /// Tokens of the encoded prompt.
        prompt_tokens: usize,
        /// Context length of the engine.
        context: usize,
        /// Context length of the model.
        model_context: usize,
    },
    /// A token id is outside the vocabulary.
    #[error("token id {token} at position {position} is outside the vocabulary of {vocab_size} ids")]
    TokenOutOfRange {
        /// The id.
        token: TokenId,
        /// Its index in the list.
        position: usize,
        /// Ids in the vocabulary.
        vocab_size: usize,
    },
    /// The prompt text could not be tokenized.
    #[error("cannot encode the prompt")]
    Encode(#[source] ruvllm_text::Error),
    /// A generated token could not be detokenized.
    #[error("cannot decode token {token}")]
    Decode {
        /// The id.
        token: TokenId,
        /// Error of the tokenizer.
        #[source]
        source: ruvllm_text::Error,
    },
    /// Messages were given to a model without a chat template.
    #[error("the model has no chat template; give the prompt as text instead of messages")]
    NoChatTemplate,
    /// The model's chat template cannot be read; text prompts still work.
    #[error(
        "the chat template of the model cannot be used: {reason}; give the prompt as text instead of messages"
    )]
    UnusableChatTemplate {
        /// Message of the template parser.
        reason: String,
    },
    /// The chat template refuses the messages, or its text cannot be encoded.
    #[error("cannot make a prompt of the messages")]
    Chat(#[source] ruvllm_text::Error),
    /// A text to embed could not be tokenized.
    #[error("cannot encode text {}", index + 1)]
    EncodeText {
        /// Its index in the request.
        index: usize,
        /// Error of the tokenizer.
        #[source]
        source: ruvllm_text::Error,
    },
    /// A text to embed is empty, and the model adds no special tokens.
    #[error("text {} is empty and the model adds no tokens of its own; leave it out", index + 1)]
    EmptyText {
        /// Its index in the request.
        index: usize,
    },
    /// Documents cannot be ranked.
    #[error(transparent)]
    Rerank(#[from] crate::embed::RerankError),
    /// Pooling of the first token (CLS) with a decoder.
    #[error(
        "pooling {pooling} needs an encoder: the first token of a decoder has seen nothing but itself; use mean or last"
    )]
    PoolingOfDecoder {
        /// Pooling requested.
        pooling: Pooling,
    },
    /// The forward pass of an encoder failed.
    #[error("cannot compute texts {}..={}", first + 1, first + texts)]
    ForwardTexts {
        /// Index of the first text of the pass.
        first: usize,
        /// Texts of the pass.
        texts: usize,
        /// Error of the model.
        #[source]
        source: ruvllm_models::Error,
    },
    /// A forward pass failed.
    #[error("cannot compute positions {start}..{end}", end = start + tokens)]
    Forward {
        /// Position of the first token.
        start: usize,
        /// Tokens of the pass.
        tokens: usize,
        /// Error of the model.
        #[source]
        source: ruvllm_models::Error,
    },
    /// The backend does not support a feature of the model; another one may.
    #[error("the {backend} backend cannot run {name}: {reason}")]
    UnsupportedByBackend {
        /// Name of the backend.
        backend: &'static str,
        /// The model.
        name: String,
        /// Missing feature, and an alternative that works.
        reason: String,
    },
    /// A backend other than the engine failed.
    #[error("the {backend} backend could not {action}")]
    Backend {
        /// Name of the backend.
        backend: String,
        /// Failed action, to follow "could not".
        action: String,
        /// Error of the backend.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The device of a backend is lost, and with it the backend: load the model again.
    #[error("the {backend} backend lost its device; load the model again")]
    BackendLost {
        /// Name of the backend.
        backend: String,
        /// Error of the backend.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The KV budget could not be reserved.
    #[error("cannot reserve {budget} bytes for keys and values; give another budget")]
    KvBudget {
        /// Requested bytes.
        budget: usize,
        /// Error of the page pool.
        #[source]
        source: ruvllm_memory::Error,
    },
    /// The KV budget does not hold a block of each tier.
    #[error(
        "a budget of {budget} bytes is too small for keys and values as {policy}: memory is taken in pages of \
         {page_bytes} bytes, and the least that works is {least_bytes} bytes; raise the budget"
    )]
    KvBudgetTooSmall {
        /// Requested bytes.
        budget: usize,
        /// The requested policy.
        policy: String,
        /// Page size in bytes.
        page_bytes: usize,
        /// Smallest budget in bytes.
        least_bytes: usize,
    },
    /// The KV policy cannot be used with this model.
    #[error("cannot store keys and values as {policy}")]
    KvPolicy {
        /// The requested policy.
        policy: String,
        /// Reason that this model cannot use it.
        #[source]
        source: ruvllm_models::Error,
    },
    /// The request names a KV policy that the engine was not opened with.
    #[error(
        "the engine has no store for keys and values as {policy}; add the policy to \
         EngineOptions::request_kv"
    )]
    KvPolicyNotOpened {
        /// The requested policy.
        policy: String,
    },
    /// The KV calibration was made from another model.
    #[error("the calibration of keys and values was made from another model; calibrate this one")]
    CalibrationModel,
    /// The text is too short for a calibration.
    #[error("the text has {tokens} tokens and a calibration takes at least {least}; use a longer text")]
    CalibrationText {
        /// Tokens of the text.
        tokens: usize,
        /// Tokens needed.
        least: usize,
    },
    /// The KV calibration failed.
    #[error("cannot calibrate keys and values")]
    Calibration(#[source] ruvllm_kv_cache::Error),
    /// The KV cache of a sequence could not be created or changed.
    #[error("cannot make a cache for {tokens} tokens")]
    Cache {
        /// Tokens of the sequence.
        tokens: usize,
        /// Error of the cache.
        #[source]
        source: ruvllm_models::Error,
    },
    /// The pressure policy `spill` needs a prefix folder.
    #[error("the pressure policy spill needs a folder for prefixes: set EngineOptions::prefixes")]
    SpillWithoutFolder,
    /// A storage of prefixes that other engines share needs a key.
    #[error(
        "everybody who can write to the shared storage could forge prefixes: set EngineOptions::prefix_key"
    )]
    NoPrefixKey,
    /// The folder or storage of prefixes cannot be used.
    #[error("cannot use the place for prefixes")]
    PrefixStore(#[source] ruvllm_kv_cache::Error),
    /// A prefix cannot be exchanged with another engine.
    #[error("cannot transfer the prefix")]
    PrefixTransfer(#[source] crate::prefix::TransferError),
    /// The thread that writes prefixes could not be started.
    #[error("cannot start the thread that writes prefixes")]
    PrefixWriter(#[source] std::io::Error),
    /// A measurement exceeds the model's context length.
    #[error("{what} takes {tokens} tokens and the model allows {model_context}")]
    ContextTooLong {
        /// Name of the measurement or sequence.
        what: String,
        /// Tokens needed.
        tokens: usize,
        /// Context length of the model.
        model_context: usize,
    },
    /// A perplexity window has no token to score.
    #[error("a perplexity window of {context} tokens scores nothing; use a context of at least 2")]
    WindowTooShort {
        /// Tokens of a window.
        context: usize,
    },
    /// The text is shorter than one window of the measurement.
    #[error(
        "the text has {tokens} tokens and a window takes {context}; use a longer text or a smaller context"
    )]
    TextTooShort {
        /// Tokens of the text, after the limit.
        tokens: usize,
        /// Tokens of a window.
        context: usize,
    },
    /// The context is too short for a pass key and text around it.
    #[error("a context of {context} tokens leaves no text around a pass key; use at least {least}")]
    PasskeyContext {
        /// Tokens of the context.
        context: usize,
        /// Smallest context in tokens.
        least: usize,
    },
    /// The depth of a pass key is out of range.
    #[error("a pass key at depth {depth} is outside of the text; depths go from 0 to 1")]
    PasskeyDepth {
        /// The requested depth.
        depth: f32,
    },
    /// The vocabulary has no single token for a digit.
    #[error("the vocabulary has no token for the digit {digit} and a pass key needs one; use another model")]
    PasskeyDigit {
        /// The digit.
        digit: u8,
    },
    /// Logits were requested at a position beyond the tokens.
    #[error("logits asked at position {position}, but there are {tokens} tokens")]
    PositionOutOfRange {
        /// The position.
        position: usize,
        /// Tokens given.
        tokens: usize,
    },
    /// The draft model has another vocabulary than the model.
    #[error("{name} cannot draft for this model: {reason}; use a draft of the same vocabulary, or none")]
    DraftVocabulary {
        /// Path of the draft, or the name given to static bytes.
        name: String,
        /// The first difference.
        reason: String,
    },
    /// Runs of models with different vocabularies cannot be compared.
    #[error("the candidate cannot be compared with the reference: {reason}; use models of one vocabulary")]
    ComparedVocabulary {
        /// The first difference.
        reason: String,
    },
    /// A divergence or a perplexity is not finite because of a logit.
    #[error(
        "the {run} gives token {token} the logit {logit} after token {position} of the text: divergence \
         or perplexity is not finite; check the file of the model"
    )]
    ComparedLogit {
        /// `reference` or `candidate`.
        run: &'static str,
        /// Id of the logit.
        token: TokenId,
        /// Value of the logit.
        logit: f32,
        /// Position in the text of the token that came before, from 0.
        position: usize,
    },
    /// A backend could not drop the last tokens of a sequence alone.
    #[error("the backend kept {kept} of {len} tokens while it dropped later ones")]
    Truncated {
        /// Tokens that were to stay.
        len: usize,
        /// Tokens that are left.
        kept: usize,
    },
    /// A measurement, or the rendering of a chat, was cancelled before it had a result.
    #[error("cancelled")]
    Cancelled,
}

impl Error {
    /// The error without [`InRequest`](Self::InRequest) around it.
    pub fn cause(&self) -> &Self {
        match self {
            Self::InRequest { source, .. } => source.cause(),
            error => error,
        }
    }

    /// The error as that of a request with an id, if it has one.
    pub(crate) fn in_request(self, id: Option<&str>) -> Self {
        match id {
            Some(id) => Self::InRequest { id: id.into(), source: Box::new(self) },
            None => self,
        }
    }

    /// KV shortage behind this error; `None` for other errors and for a tenant's quota.
    pub fn kv_shortage(&self) -> Option<KvShortage> {
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(self);
        while let Some(error) = cause {
            if let Some(error) = error.downcast_ref::<ruvllm_kv_cache::Error>() {
                return KvShortage::of(error);
            }
            // Errors of the model crate are transparent, so their source skips the KV-cache error
            // itself.
            if let Some(ruvllm_models::Error::KvCache(error)) = error.downcast_ref() {
                return KvShortage::of(error);
            }
            cause = error.source();
        }
        None
    }

    /// True if a larger KV budget ([`EngineOptions::kv_budget`](crate::EngineOptions::kv_budget))
    /// would help.
    pub fn kv_memory_short(&self) -> bool {
        match self {
            Self::InRequest { source, .. } => source.kv_memory_short(),
            Self::KvBudget { .. } | Self::KvBudgetTooSmall { .. } => true,
            Self::Cache { source, .. } | Self::Forward { source, .. } | Self::Adapter { source } => {
                source.is_memory_short()
            }
            _ => false,
        }
    }
}
