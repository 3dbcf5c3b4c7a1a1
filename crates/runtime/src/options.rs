//! Where a model comes from and how the engine runs it.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use gguf_rs_lite::Gguf;
use ruvllm_kernels::{Isa, KvFormat};
use ruvllm_kv_cache::{KvCalibration, KvPolicy};
use ruvllm_models::quantize::Recipe;
use ruvllm_models::{Checkpoint, open_checkpoint};

use crate::error::{Error, Result};
use crate::prefix::PrefixCaching;

/// Where a model comes from.
#[derive(Clone)]
pub enum ModelSource {
    /// A GGUF file, any part of a split one, or a Hugging Face folder. Weights are mapped and must not be changed while the
    /// engine lives.
    Path(PathBuf),
    /// A GGUF file inside the program.
    Static {
        /// What messages call it.
        name: String,
        /// The whole file.
        bytes: &'static [u8],
    },
}

impl ModelSource {
    /// Opens the file or folder.
    pub(crate) fn open(&self) -> Result<Box<dyn Checkpoint>> {
        match self {
            Self::Path(path) => open_checkpoint(path),
            Self::Static { bytes, .. } => match Gguf::from_static(bytes) {
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
            // The file itself would be megabytes of digits.
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

impl From<&str> for ModelSource {
    fn from(path: &str) -> Self {
        Self::Path(path.into())
    }
}

/// How the engine runs a model.
#[derive(Debug, Clone)]
pub struct EngineOptions {
    /// Threads that compute, the caller's included; `None` = as many as this process may use.
    pub threads: Option<usize>,
    /// The storage type that weights get while they are loaded, in private memory; `None` = they stay as they are, mapped.
    pub quantize: Option<Recipe>,
    /// Instruction set; `None` = the best one here, or the one named by the environment variable `RUVLLM_ISA`.
    pub isa: Option<Isa>,
    /// How keys and values are stored. Default: everything in F16.
    pub kv: KvPolicy,
    /// What was learned of the model's keys and values ([`Engine::calibrate_kv`](crate::Engine::calibrate_kv)), for a policy
    /// with tiers in `nuq3`.
    pub kv_calibration: Option<Arc<KvCalibration>>,
    /// Bytes of keys and values of all sequences together, in pages of 2 MiB (below 64 MiB: of 512 KiB); `None` = as many as
    /// [`EngineOptions::DEFAULT_SEQUENCES`] of the model's full length may need, at most the machine's memory. Memory is
    /// taken as sequences grow.
    pub kv_budget: Option<usize>,
    /// Whether prompts are kept for requests that begin alike. Default: in memory.
    pub prefixes: PrefixCaching,
    /// Tokens of a sequence, prompt and output together, at most what the model allows. `None` = what the model
    /// allows, at most [`EngineOptions::DEFAULT_CONTEXT`].
    pub context: Option<usize>,
    /// Prompt tokens per forward pass; also how often a prefill can be cancelled. Default 512.
    pub prefill_chunk: usize,
    /// A `tokenizer.json` to use instead of the tokenizer in the model file.
    pub tokenizer: Option<PathBuf>,
}

impl EngineOptions {
    /// Largest context that is taken without being asked for: the cache of a model made for 128 k tokens can be
    /// larger than the model.
    pub const DEFAULT_CONTEXT: usize = 4096;

    /// Sequences of the model's full length that the default budget of keys and values is made for.
    pub const DEFAULT_SEQUENCES: usize = 4;

    /// Threads that compute.
    pub(crate) fn threads(&self) -> Result<usize> {
        match self.threads {
            Some(0) => Err(Error::InvalidOption { name: "threads", value: 0, expected: "at least 1" }),
            Some(threads) => Ok(threads),
            None => Ok(available_threads()),
        }
    }

    /// The options checked and completed.
    pub(crate) fn resolve(&self, model_context: usize) -> Result<Resolved> {
        let positive = |name, value| match value {
            0 => Err(Error::InvalidOption { name, value, expected: "at least 1" }),
            _ => Ok(value),
        };
        Ok(Resolved {
            threads: self.threads()?,
            quantize: self.quantize,
            context: positive("context", self.context.unwrap_or(Self::DEFAULT_CONTEXT))?.min(model_context),
            prefill_chunk: positive("prefill_chunk", self.prefill_chunk)?,
        })
    }
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            threads: None,
            quantize: None,
            isa: None,
            kv: KvFormat::F16.into(),
            kv_calibration: None,
            kv_budget: None,
            prefixes: PrefixCaching::default(),
            context: None,
            prefill_chunk: 512,
            tokenizer: None,
        }
    }
}

/// Options with every default filled in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Resolved {
    pub(crate) threads: usize,
    pub(crate) quantize: Option<Recipe>,
    pub(crate) context: usize,
    pub(crate) prefill_chunk: usize,
}

/// Threads that this process may use; 1 where the system does not tell.
fn available_threads() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_context_is_bounded_by_the_model_and_the_default() {
        let resolve = |context, model| {
            EngineOptions { context, ..Default::default() }.resolve(model).map(|r| r.context)
        };
        assert_eq!(resolve(None, 131_072).ok(), Some(4096));
        assert_eq!(resolve(None, 512).ok(), Some(512));
        assert_eq!(resolve(Some(100), 512).ok(), Some(100));
        assert_eq!(resolve(Some(8192), 131_072).ok(), Some(8192));
        assert_eq!(resolve(Some(8192), 512).ok(), Some(512));
    }

    #[test]
    fn zero_is_refused_with_the_name_of_the_option() {
        let none = |options: EngineOptions| match options.resolve(64) {
            Err(Error::InvalidOption { name, value: 0, .. }) => name,
            other => panic!("expected an option error, found {other:?}"),
        };
        assert_eq!(none(EngineOptions { threads: Some(0), ..Default::default() }), "threads");
        assert_eq!(none(EngineOptions { context: Some(0), ..Default::default() }), "context");
        assert_eq!(none(EngineOptions { prefill_chunk: 0, ..Default::default() }), "prefill_chunk");
    }
}
