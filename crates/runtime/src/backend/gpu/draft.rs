//! The draft model of a model on the same device (ADR-0156).

use std::sync::Arc;

use gguf_rs_lite::FileMemory;
use ruvllm_gpu::Gpu;
use ruvllm_memory::PoolConfig;
use ruvllm_models::ModelConfig;

use super::refusal::NAME;
use super::report::GpuLoadTimes;
use super::{GpuBackend, GpuOptions};
use crate::codec::TextCodec;
use crate::error::{Error, Result};
use crate::options::ModelSource;
use crate::speculation::{CAPACITY, MOST_DRAFT, check_vocabulary};

/// Loads the draft model of the options for a model, given by name, configuration and codec.
///
/// # Errors
/// [`Error::UnsupportedByBackend`] for a model that no draft can be taken back from;
/// [`Error::DraftVocabulary`]; as [`GpuBackend::load`] for the draft model.
pub(super) fn load(
    gpu: &Arc<Gpu>,
    options: &GpuOptions,
    (name, config, codec): (&str, &ModelConfig, &TextCodec),
) -> Result<Option<Box<GpuBackend>>> {
    let Some(source) = &options.draft else { return Ok(None) };
    if config.decoder.recurrent.is_some() {
        return Err(Error::UnsupportedByBackend {
            backend: NAME,
            name: name.to_owned(),
            reason: "its layers keep a state, which no rejected draft can be taken back from on a GPU; \
                     leave the draft model out"
                .to_owned(),
        });
    }
    let checkpoint = source.open(FileMemory::default())?;
    check_vocabulary(&*checkpoint, &source.to_string(), codec)?;
    let draft = ModelConfig::from_checkpoint(&*checkpoint)
        .map_err(|error| Error::Load { name: source.to_string(), source: error })?;
    drop(checkpoint);
    let context = options.context.unwrap_or(usize::MAX).saturating_add(MOST_DRAFT);
    let context = context.min(CAPACITY).min(draft.context_length);
    let options = of_draft(options, context);
    let loaded = GpuBackend::load_on(Arc::clone(gpu), source, &options, GpuLoadTimes::default());
    loaded.map(|draft| Some(Box::new(draft))).map_err(|error| explain(error, source))
}

/// Options of a draft model whose sequences have `context` tokens, for those of its model.
fn of_draft(options: &GpuOptions, context: usize) -> GpuOptions {
    GpuOptions {
        context: Some(context),
        sequences: options.sequences,
        // A draft that reads its weights over the bus would take longer than it saves.
        layers: Some(usize::MAX),
        speculation: options.speculation,
        // No request names an adapter.
        adapter_memory: PoolConfig::new(0).page_bytes as u64,
        ..GpuOptions::default()
    }
}

/// Names the draft model in an error that names no model.
fn explain(error: Error, source: &ModelSource) -> Error {
    match error {
        Error::Backend { backend, action, source: cause } => Error::Backend {
            backend,
            action: format!("load the draft model {source}: {action}"),
            source: cause,
        },
        other => other,
    }
}
