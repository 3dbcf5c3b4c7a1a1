//! The `candle` backend: models of candle-transformers as an [`InferenceBackend`].
//!
//! For comparison with an independent implementation (ADR-0022). Models that candle does not
//! compute as their files specify are refused, and contexts are limited to what it computes
//! correctly. Sizes come from [`ModelConfig`], weights from the folder as stored.

mod family;
mod network;
mod weights;

use std::fmt;
use std::path::Path;

use candle_core::{Device, Tensor};
use ruvllm_models::{HfFolder, ModelConfig};
use ruvllm_text::TokenId;

use self::family::Family;
use self::network::Network;
use self::weights::Weights;
use super::{BackendSession, InferenceBackend};
use crate::codec::TextCodec;
use crate::error::{Error, Result};

/// Name of the backend in messages.
const NAME: &str = "candle";

/// Default limit of the context length: candle's masks grow with its square.
const USUAL_CONTEXT: usize = 8192;

/// Options of the candle backend. It computes in F32, with all threads or `RAYON_NUM_THREADS`.
#[derive(Debug, Clone)]
pub struct CandleOptions {
    /// Context length in tokens, prompt and output together; `None` = what model and candle allow,
    /// at most 8192.
    pub context: Option<usize>,
    /// Prompt tokens per forward pass; a prefill can be cancelled between passes. Default 512.
    pub prefill_chunk: usize,
    /// Compute device. Default: the CPU.
    pub device: CandleDevice,
}

impl Default for CandleOptions {
    fn default() -> Self {
        Self { context: None, prefill_chunk: 512, device: CandleDevice::Cpu }
    }
}

/// Compute device of candle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CandleDevice {
    /// The CPU.
    Cpu,
    /// NVIDIA GPU by index; needs the feature `candle-cuda`.
    Cuda(usize),
    /// Apple GPU by index; needs the feature `candle-metal`.
    Metal(usize),
}

/// A model of a Hugging Face folder, run by candle: Llama, Mistral, Qwen 2, Phi-3 or Gemma 2.
///
/// # Example
/// ```no_run
/// use std::ops::ControlFlow;
///
/// use ruvllm::{CancelToken, CandleBackend, CandleOptions, GenerateRequest, InferenceBackend};
///
/// let backend = CandleBackend::load("Qwen2.5-0.5B-Instruct", &CandleOptions::default())?;
/// let request = GenerateRequest::new("Once upon a time").with_max_tokens(32);
/// let completion = backend.generate_with(&request, &CancelToken::new(), &mut |_| ControlFlow::Continue(()))?;
/// println!("{}", completion.text);
/// # Ok::<(), ruvllm::Error>(())
/// ```
pub struct CandleBackend {
    config: ModelConfig,
    codec: TextCodec,
    context: usize,
    prefill_chunk: usize,
    device: Device,
    /// Network with an empty KV cache; clones share the weights.
    network: Network,
}

impl CandleBackend {
    /// Loads a folder, with weights in private memory, in F32.
    ///
    /// # Errors
    /// [`Error::Open`] and [`Error::Load`] as for [`Engine::load`](crate::Engine::load),
    /// [`Error::Tokenizer`] and [`Error::VocabularyMismatch`]; [`Error::UnsupportedByBackend`] for
    /// files, for models that candle does not compute as configured, and for contexts beyond what
    /// it computes correctly; [`Error::InvalidOption`]; [`Error::Backend`] if candle fails, for
    /// instance if the device is absent.
    pub fn load(folder: impl AsRef<Path>, options: &CandleOptions) -> Result<Self> {
        let path = folder.as_ref();
        let name = path.display().to_string();
        let refused = |reason| Error::UnsupportedByBackend { backend: NAME, name: name.clone(), reason };
        for (option, value) in [("context", options.context), ("prefill_chunk", Some(options.prefill_chunk))]
        {
            if value == Some(0) {
                return Err(Error::InvalidOption { name: option, value: 0, expected: "at least 1" });
            }
        }
        if path.is_file() {
            return Err(refused("it reads Hugging Face folders, and this is a file".to_owned()));
        }
        let folder = HfFolder::open(path).map_err(|source| Error::Open { name: name.clone(), source })?;
        if let Some(tensor) = folder.quantized() {
            return Err(refused(format!("it reads unquantized folders, and `{tensor}` is quantized")));
        }
        let config = ModelConfig::from_checkpoint(&folder)
            .map_err(|source| Error::Load { name: name.clone(), source })?;
        let family = Family::of(&config, folder.config()).map_err(refused)?;
        let context = family.context(&config, options.context, USUAL_CONTEXT).map_err(refused)?;
        let codec = TextCodec::read(&folder, &name, None, config.vocab_size)?;
        let device = open_device(options.device).map_err(failed("open the device"))?;
        let weights = Weights::read(&folder, family.query_factor(&config).as_ref(), &device)
            .map_err(failed("read the weights"))?;
        let network = Network::load(&family, &config, context, &weights).map_err(failed("load the model"))?;
        if let Some(left) = weights.left_over() {
            return Err(refused(format!("its model has no place for the tensor `{left}`")));
        }
        Ok(Self { config, codec, context, prefill_chunk: options.prefill_chunk, device, network })
    }
}

impl InferenceBackend for CandleBackend {
    fn name(&self) -> &str {
        NAME
    }

    fn config(&self) -> &ModelConfig {
        &self.config
    }

    fn codec(&self) -> &TextCodec {
        &self.codec
    }

    fn context_length(&self) -> usize {
        self.context
    }

    fn session(&self, capacity: usize) -> Result<Box<dyn BackendSession + '_>> {
        check_context(capacity, self.context)?;
        Ok(Box::new(CandleSession {
            backend: self,
            network: self.network.clone(),
            len: 0,
            capacity,
            logits: Vec::new(),
        }))
    }

    fn prefill_chunk(&self) -> usize {
        self.prefill_chunk
    }
}

/// Prints configuration, context length and device.
impl fmt::Debug for CandleBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CandleBackend")
            .field("config", &self.config)
            .field("context", &self.context)
            .field("device", &self.device)
            .finish_non_exhaustive()
    }
}

/// A sequence: a clone of the network with its own KV cache.
struct CandleSession<'b> {
    backend: &'b CandleBackend,
    network: Network,
    len: usize,
    capacity: usize,
    logits: Vec<f32>, // [vocab_size] of the last pass
}

impl CandleSession<'_> {
    fn clear(&mut self) {
        self.network = self.backend.network.clone();
        self.len = 0;
    }

    fn compute(&mut self, tokens: &[TokenId]) -> candle_core::Result<Vec<f32>> {
        let input = Tensor::new(tokens, &self.backend.device)?.unsqueeze(0)?;
        self.network.forward(&input, self.len)?.flatten_all()?.to_vec1()
    }
}

impl BackendSession for CandleSession<'_> {
    fn len(&self) -> usize {
        self.len
    }

    fn forward(&mut self, tokens: &[TokenId]) -> Result<&[f32]> {
        if tokens.is_empty() {
            let source = ruvllm_models::Error::EmptySegment { segment: 0 };
            return Err(Error::Forward { start: self.len, tokens: 0, source });
        }
        self.backend.codec.check_tokens(tokens)?;
        let end = self.len.saturating_add(tokens.len());
        check_context(end, self.capacity)?;
        match self.compute(tokens) {
            Ok(logits) => {
                (self.logits, self.len) = (logits, end);
                Ok(&self.logits)
            }
            Err(error) => {
                // The failed pass may have extended the caches of some layers only.
                let start = self.len;
                self.clear();
                Err(failed(&format!("compute positions {start}..{end}"))(error))
            }
        }
    }

    /// Candle's KV caches can only be cleared, not truncated.
    fn truncate(&mut self, len: usize) -> Result<usize> {
        if len < self.len {
            self.clear();
        }
        Ok(self.len)
    }
}

fn check_context(tokens: usize, context: usize) -> Result<()> {
    if tokens <= context {
        return Ok(());
    }
    Err(Error::ContextTooLong { what: "the sequence".to_owned(), tokens, model_context: context })
}

fn open_device(device: CandleDevice) -> candle_core::Result<Device> {
    match device {
        CandleDevice::Cpu => Ok(Device::Cpu),
        CandleDevice::Cuda(number) => Device::new_cuda(number),
        CandleDevice::Metal(number) => Device::new_metal(number),
    }
}

/// Error of a failed candle operation.
fn failed(action: &str) -> impl FnOnce(candle_core::Error) -> Error {
    let (backend, action) = (NAME.to_owned(), action.to_owned());
    move |error| Error::Backend { backend, action, source: error.into() }
}
