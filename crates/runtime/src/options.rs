//! Model source and engine options.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use gguf_rs_lite::{FileMemory, Gguf};
use ruvllm_adapters::{FactorFormat, Limits};
use ruvllm_kernels::Isa;
use ruvllm_kv_cache::prefix::FolderKey;
use ruvllm_kv_cache::{KvCalibration, KvPolicy};
use ruvllm_memory::PressurePolicy;
use ruvllm_models::quantize::Recipe;
use ruvllm_models::{Checkpoint, RowKernels, open_checkpoint_in};
use ruvllm_scheduler::Config as SchedulerConfig;

use crate::error::{Error, Result};
use crate::prefix::{PrefixCaching, fingerprint};
use crate::setters::setters;
use crate::speculation::Speculation;
use crate::step::TuningOptions;

/// Source of a model.
#[derive(Clone)]
#[non_exhaustive]
pub enum ModelSource {
    /// A GGUF file, any part of a split one, or a Hugging Face folder. Mapped files
    /// ([`EngineOptions::mmap`]) must not change during the engine's lifetime.
    Path(PathBuf),
    /// A GGUF file embedded in the program.
    Static {
        /// Name in messages.
        name: String,
        /// The whole file.
        bytes: &'static [u8],
    },
}

impl ModelSource {
    /// Fingerprint of the model, independent of the path. SHA-256 over the metadata and over name,
    /// type, shape and 16 samples of every tensor, and the recipe if the weights are quantized
    /// while loading. Not a checksum of the file.
    ///
    /// # Errors
    /// [`Error::Open`] if the file cannot be read.
    pub fn fingerprint(&self, quantized: Option<Recipe>) -> Result<[u8; 32]> {
        // Only samples are read, so the files are mapped whatever the engine options.
        let checkpoint = self.open(FileMemory::default())?;
        Ok(fingerprint(&*checkpoint, quantized))
    }

    /// The built-in model: a small English one, for tests and first steps.
    #[cfg(feature = "builtin-model")]
    pub fn builtin() -> Self {
        Self::Static { name: ruvllm_default_model::NAME.to_owned(), bytes: ruvllm_default_model::gguf() }
    }

    /// The built-in draft model of [`builtin`](Self::builtin), for [`EngineOptions::draft`].
    #[cfg(feature = "builtin-model")]
    pub fn builtin_draft() -> Self {
        let (name, bytes) = (ruvllm_default_model::DRAFT_NAME, ruvllm_default_model::draft());
        Self::Static { name: name.to_owned(), bytes }
    }

    /// A model of the user's model store, by its name or the reference (`hf://...`) that it was
    /// pulled by. Nothing is downloaded.
    ///
    /// # Errors
    /// [`Error::Store`] for an unknown name, an incomplete download, or no store.
    #[cfg(feature = "store")]
    pub fn stored(name: &str) -> Result<Self> {
        match ruvllm_hub::Store::from_env() {
            Ok(store) => Self::from_store(&store, name),
            Err(source) => Err(Error::Store { name: name.to_owned(), source }),
        }
    }

    /// As [`stored`](Self::stored), from the given store.
    ///
    /// # Errors
    /// As [`stored`](Self::stored).
    #[cfg(feature = "store")]
    pub fn from_store(store: &ruvllm_hub::Store, name: &str) -> Result<Self> {
        let model = store.get(name).map_err(|source| Error::Store { name: name.to_owned(), source })?;
        Ok(Self::Path(model.path))
    }

    /// Opens the file or folder.
    pub(crate) fn open(&self, memory: FileMemory) -> Result<Box<dyn Checkpoint>> {
        match self {
            Self::Path(path) => open_checkpoint_in(path, memory),
            Self::Static { bytes, .. } => match Gguf::from_static_in(bytes, memory) {
                Ok(gguf) => Ok(Box::new(gguf) as Box<dyn Checkpoint>),
                Err(error) => Err(error.into()),
            },
        }
        .map_err(|source| Error::Open { name: self.to_string(), source })
    }
}

impl fmt::Display for ModelSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => path.display().fmt(f),
            Self::Static { name, .. } => f.write_str(name),
        }
    }
}

impl fmt::Debug for ModelSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => f.debug_tuple("Path").field(path).finish(),
            // The bytes would print as megabytes of digits.
            Self::Static { name, bytes } => {
                f.debug_struct("Static").field("name", name).field("bytes", &bytes.len()).finish()
            }
        }
    }
}

impl From<PathBuf> for ModelSource {
    fn from(path: PathBuf) -> Self {
        Self::Path(path)
    }
}

impl From<&Path> for ModelSource {
    fn from(path: &Path) -> Self {
        Self::Path(path.to_owned())
    }
}

impl From<String> for ModelSource {
    fn from(path: String) -> Self {
        Self::Path(path.into())
    }
}

impl From<&str> for ModelSource {
    fn from(path: &str) -> Self {
        Self::Path(path.into())
    }
}

/// Engine options. A setting that is `None` is chosen for the machine and the model: see
/// [`Plan`](crate::Plan).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct EngineOptions {
    /// Compute threads, the caller's included; `None` = one per core that this process may use.
    pub threads: Option<usize>,
    /// Maps the model's files (default). Truncating a mapped file ends the process (SIGBUS), and
    /// overwriting it in place changes the weights. `false` reads the files into private memory:
    /// later changes have no effect, but loading takes longer and processes do not share the pages.
    pub mmap: bool,
    /// Locks the bytes of the model's files in memory (mlock). Fails beyond the limit
    /// `RLIMIT_MEMLOCK`. Not locked: matrices of a Hugging Face folder that are repacked into
    /// another row order. Default: off.
    pub mlock: bool,
    /// Quantizes the weights while loading, into private memory; `None` = used as stored, mapped.
    pub quantize: Option<Recipe>,
    /// Instruction set; `None` = the environment variable `RUVLLM_ISA`, else the best one of the
    /// CPU.
    pub isa: Option<Isa>,
    /// KV-cache policy; `None` = F16, or `q8` if F16 leaves room for too few tokens.
    pub kv: Option<KvPolicy>,
    /// KV-cache policies besides [`kv`](Self::kv) that requests may name
    /// ([`GenerateRequest::kv`](crate::GenerateRequest::kv)). They share its budget and its prefix
    /// cache, in blocks of as many tokens as the longest group of all policies needs. Policies with
    /// `nuq3` tiers are refused here. Default: none.
    pub request_kv: Vec<KvPolicy>,
    /// KV calibration of the model ([`Engine::calibrate_kv`](crate::Engine::calibrate_kv)), for
    /// policies with `nuq3` tiers.
    pub kv_calibration: Option<Arc<KvCalibration>>,
    /// KV budget in bytes, for all sequences together. Allocated in pages of 2 MiB (below 64 MiB:
    /// of 512 KiB). `None` = enough for [`Plan::SEQUENCES`](crate::Plan::SEQUENCES) sequences of
    /// the model's full context length, within the memory that the weights leave. Pages are taken
    /// as sequences grow.
    pub kv_budget: Option<usize>,
    /// Policy under memory pressure (KV budget short) of requests that name none.
    pub pressure: PressurePolicy,
    /// Prefix cache. Default: in memory.
    pub prefixes: PrefixCaching,
    /// Key of a prefix folder that other users own or may write to, and of a shared storage.
    /// Entries written with another key are ignored; without a key such a folder or storage is
    /// refused. Prefixes of other engines ([`Engine::import_prefix`](crate::Engine::import_prefix))
    /// are taken from holders of the key alone. Default: none.
    pub prefix_key: Option<FolderKey>,
    /// Exchange of prefixes with other engines
    /// ([`Engine::export_prefix`](crate::Engine::export_prefix)); needs a prefix cache. Loading
    /// takes the model's fingerprint, which reads samples of all weights. Default: off.
    pub prefix_transfers: bool,
    /// Replacements of native kernels in decoders, such as those of a kernel pack. Texts may differ
    /// from native ones, and prefixes are reused only with the same
    /// [`digest`](RowKernels::digest). Default: none.
    pub row_kernels: Option<Arc<dyn RowKernels>>,
    /// Time after its last use at which a session ([`Engine::sessions`](crate::Engine::sessions))
    /// ends. Default: never.
    pub session_ttl: Option<Duration>,
    /// Largest number of sessions of a tenant without a quota of its own. Default 1024.
    pub session_quota: usize,
    /// Context length in tokens, prompt and output together, at most the model's. `None` = the
    /// model's, as far as memory allows.
    pub context: Option<usize>,
    /// Number format of the factors of loaded adapters. Default: F16.
    pub adapter_format: FactorFormat,
    /// Limits of the tiers of registered adapters
    /// ([`Engine::adapter_registry`](crate::Engine::adapter_registry)). Default: 100 hot and 1,000
    /// warm adapters; the KV budget limits both.
    pub adapter_limits: Limits,
    /// Prompt tokens per forward pass; a prefill can be cancelled between passes. Default 512.
    pub prefill_chunk: usize,
    /// A `tokenizer.json` in place of the model's tokenizer.
    pub tokenizer: Option<PathBuf>,
    /// Settings of the scheduler: sequences at once, queue limits, target of the inter-token
    /// latency, fair shares. Its `step_tokens` and `block_tokens` have no effect: they are
    /// [`prefill_chunk`](Self::prefill_chunk) and the blocks of the KV cache.
    pub scheduling: SchedulerConfig,
    /// Draft model of speculative decoding: a small model with the same vocabulary. It takes memory
    /// of its own: its weights, and a KV cache of up to 1024 tokens per running request, which is
    /// not part of [`kv_budget`](Self::kv_budget). Default: none.
    pub draft: Option<ModelSource>,
    /// Drafts of the model's own prediction head, if it has one and there is no
    /// [`draft`](Self::draft). The head has a KV cache of its own too, of one layer. Default: on.
    pub draft_head: bool,
    /// Models of which the first one with the model's vocabulary becomes its draft, if there is
    /// neither a [`draft`](Self::draft) nor a head; others are passed over. Default: none.
    pub draft_candidates: Vec<ModelSource>,
    /// Speculative decoding of requests that name none.
    pub speculation: Speculation,
    /// Moves settings of the step loop with the load, by measured gains. The output is the same
    /// with and without. Default: off, settings stay as they are.
    pub tuning: Option<TuningOptions>,
}

impl EngineOptions {
    /// Memory settings of the model files: mapped or private, locked or not.
    pub(crate) fn file_memory(&self) -> FileMemory {
        FileMemory { mmap: self.mmap, mlock: self.mlock }
    }

    /// Refuses values below their range, and options that exclude each other.
    pub(crate) fn check(&self) -> Result<()> {
        let positive = |name, value: Option<usize>| match value {
            Some(0) => Err(Error::InvalidOption { name, value: 0, expected: "at least 1" }),
            _ => Ok(()),
        };
        if self.mlock && self.quantize.is_some() {
            return Err(Error::MlockQuantized);
        }
        self.speculation.check()?;
        positive("threads", self.threads)?;
        positive("context", self.context)?;
        positive("prefill_chunk", Some(self.prefill_chunk))?;
        check_pressure(self.pressure, self.prefixes.has_files())
    }
}

setters! {
    EngineOptions {
        some with_threads(threads: usize);
        set with_mmap(mmap: bool);
        set with_mlock(mlock: bool);
        some with_quantize(quantize: Recipe);
        some with_isa(isa: Isa);
        some with_kv(kv: KvPolicy);
        set with_request_kv(request_kv: Vec<KvPolicy>);
        some with_kv_calibration(kv_calibration: Arc<KvCalibration>);
        some with_kv_budget(kv_budget: usize);
        set with_pressure(pressure: PressurePolicy);
        set with_prefixes(prefixes: PrefixCaching);
        some with_prefix_key(prefix_key: FolderKey);
        set with_prefix_transfers(prefix_transfers: bool);
        some with_row_kernels(row_kernels: Arc<dyn RowKernels>);
        some with_session_ttl(session_ttl: Duration);
        set with_session_quota(session_quota: usize);
        some with_context(context: usize);
        set with_adapter_format(adapter_format: FactorFormat);
        set with_adapter_limits(adapter_limits: Limits);
        set with_prefill_chunk(prefill_chunk: usize);
        some with_tokenizer(tokenizer: PathBuf);
        set with_scheduling(scheduling: SchedulerConfig);
        some with_draft(draft: ModelSource);
        set with_draft_head(draft_head: bool);
        set with_draft_candidates(draft_candidates: Vec<ModelSource>);
        set with_speculation(speculation: Speculation);
        some with_tuning(tuning: TuningOptions);
    }
}

/// Refuses the pressure policy `spill` without a prefix folder.
pub(crate) fn check_pressure(policy: PressurePolicy, has_files: bool) -> Result<()> {
    if policy == PressurePolicy::Spill && !has_files { Err(Error::SpillWithoutFolder) } else { Ok(()) }
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            threads: None,
            mmap: true,
            mlock: false,
            quantize: None,
            isa: None,
            kv: None,
            request_kv: Vec::new(),
            kv_calibration: None,
            kv_budget: None,
            pressure: PressurePolicy::default(),
            prefixes: PrefixCaching::default(),
            prefix_key: None,
            prefix_transfers: false,
            row_kernels: None,
            session_ttl: None,
            session_quota: 1024,
            context: None,
            adapter_format: FactorFormat::F16,
            adapter_limits: Limits::default(),
            prefill_chunk: 512,
            tokenizer: None,
            scheduling: SchedulerConfig::default(),
            draft: None,
            draft_head: true,
            draft_candidates: Vec::new(),
            speculation: Speculation::default(),
            tuning: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_is_refused_with_the_name_of_the_option() {
        let none = |options: EngineOptions| match options.check() {
            Err(Error::InvalidOption { name, value: 0, .. }) => name,
            other => panic!("expected an option error, found {other:?}"),
        };
        assert_eq!(none(EngineOptions { threads: Some(0), ..Default::default() }), "threads");
        assert_eq!(none(EngineOptions { context: Some(0), ..Default::default() }), "context");
        assert_eq!(none(EngineOptions { prefill_chunk: 0, ..Default::default() }), "prefill_chunk");
    }
}
