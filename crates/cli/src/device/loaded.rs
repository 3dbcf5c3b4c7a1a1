//! A command's model on its device.

use std::ops::ControlFlow;
use std::rc::Rc;
use std::time::Duration;

use ruvllm::{
    BackendConversation, CancelToken, Completion, Conversation, Engine, GenerateRequest, InferenceBackend,
    ScaledAdapter,
};
use serde::Serialize;

use crate::args::AdapterArgs;
use crate::error::Result;
use crate::output;

/// A loaded model; commands run it through [`backend`](Self::backend) on any device.
pub(crate) enum Loaded {
    Cpu(Box<Engine>),
    #[cfg_attr(not(feature = "gpu"), allow(dead_code))]
    Gpu(GpuModel),
}

/// A model on a GPU.
#[cfg_attr(not(feature = "gpu"), allow(dead_code))]
pub(crate) struct GpuModel {
    pub(crate) backend: Rc<dyn InferenceBackend>,
    pub(crate) load_time: Duration,
    pub(crate) facts: GpuFacts,
    /// Waits until the compiled kernels are on disk, and prints warnings about them.
    pub(crate) finish: Box<dyn Fn()>,
}

/// Device and memory of a model on a GPU.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(not(feature = "gpu"), allow(dead_code))]
pub(crate) struct GpuFacts {
    /// Name and driver of the adapter.
    pub(crate) adapter: String,
    pub(crate) weights_bytes: u64,
    /// In memory of the host.
    pub(crate) host_weights_bytes: u64,
    pub(crate) kv_bytes: u64,
}

impl Loaded {
    /// Backend of the model, on either device.
    pub(crate) fn backend(&self) -> &dyn InferenceBackend {
        match self {
            Self::Cpu(engine) => &**engine,
            Self::Gpu(model) => &*model.backend,
        }
    }

    /// Engine of a model on the CPU; `None` on a GPU.
    pub(crate) fn engine(&self) -> Option<&Engine> {
        match self {
            Self::Cpu(engine) => Some(engine),
            Self::Gpu(_) => None,
        }
    }

    /// Loads the adapters of a command for the requests of the model.
    ///
    /// # Errors
    /// As [`AdapterArgs::load`]; a gate on a GPU.
    pub(crate) fn load_adapters(&self, adapters: &AdapterArgs) -> Result<Vec<ScaledAdapter>> {
        match self {
            Self::Cpu(engine) => adapters.load(engine),
            Self::Gpu(model) => match model.backend.backend_adapters() {
                Some(backend) => adapters.load_in(backend),
                None => Ok(Vec::new()),
            },
        }
    }

    /// Device and memory of a model on a GPU; `None` on the CPU.
    pub(crate) fn gpu(&self) -> Option<&GpuFacts> {
        match self {
            Self::Cpu(_) => None,
            Self::Gpu(model) => Some(&model.facts),
        }
    }

    /// Duration of the load.
    pub(crate) fn load_time(&self) -> Duration {
        match self {
            Self::Cpu(engine) => engine.load_time(),
            Self::Gpu(model) => model.load_time,
        }
    }

    /// Starts an empty conversation.
    pub(crate) fn conversation(&self) -> DeviceConversation<'_> {
        match self {
            Self::Cpu(engine) => DeviceConversation::Cpu(Box::new(engine.conversation())),
            Self::Gpu(model) => DeviceConversation::Gpu(Box::new(BackendConversation::new(&*model.backend))),
        }
    }

    /// Waits until the prefixes of the requests, or the compiled kernels, are on disk, and prints
    /// warnings about them.
    pub(crate) fn finish(&self) {
        match self {
            Self::Cpu(engine) => {
                engine.flush_prefixes();
                for warning in engine.take_prefix_warnings() {
                    output::warn(&warning);
                }
            }
            Self::Gpu(model) => (model.finish)(),
        }
    }
}

/// Conversation whose requests share one growing sequence, on either device.
pub(crate) enum DeviceConversation<'m> {
    Cpu(Box<Conversation<'m>>),
    Gpu(Box<BackendConversation<'m>>),
}

impl DeviceConversation<'_> {
    /// Generates text for one request.
    ///
    /// # Errors
    /// See [`Conversation::generate`].
    pub(crate) fn generate(
        &mut self,
        request: &GenerateRequest,
        cancel: &CancelToken,
        on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Completion, ruvllm::Error> {
        match self {
            Self::Cpu(conversation) => conversation.generate_with(request, cancel, on_text),
            Self::Gpu(conversation) => conversation.generate(request, cancel, on_text),
        }
    }

    /// Drops the sequence.
    pub(crate) fn clear(&mut self) {
        match self {
            Self::Cpu(conversation) => conversation.clear(),
            Self::Gpu(conversation) => conversation.clear(),
        }
    }

    /// Tokens in the KV cache.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Cpu(conversation) => conversation.len(),
            Self::Gpu(conversation) => conversation.len(),
        }
    }

    /// Size of the keys and values in bytes.
    pub(crate) fn kv_bytes(&self) -> usize {
        match self {
            Self::Cpu(conversation) => conversation.kv_bytes(),
            Self::Gpu(conversation) => conversation.kv_bytes(),
        }
    }
}
