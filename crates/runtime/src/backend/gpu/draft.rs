//! The draft model of a model on the same device (ADR-0156).

use std::sync::Arc;

use gguf_rs_lite::FileMemory;
use ruvllm_gpu::Gpu;
use ruvllm_memory::PoolConfig;
use ruvllm_models::ModelConfig;

use super::report::GpuLoadTimes;
use super::{GpuBackend, GpuOptions};
use crate::codec::TextCodec;
use crate::error::{Error, Result};
use crate::options::ModelSource;
use crate::speculation::{CAPACITY, MOST_DRAFT, check_vocabulary};

/// Loads the draft model of the options for a model with this codec.
///
/// # Errors
/// [`Error::DraftVocabulary`]; as [`GpuBackend::load`] for the draft model.
pub(super) fn load(
    gpu: &Arc<Gpu>,
    options: &GpuOptions,
    codec: &TextCodec,
) -> Result<Option<Box<GpuBackend>>> {
    let Some(source) = &options.draft else { return Ok(None) };
    let checkpoint = source.open(FileMemory::default())?;
    check_vocabulary(&*checkpoint, &source.to_string(), codec)?;
    let draft = ModelConfig::from_checkpoint(&*checkpoint)
        .map_err(|error| Error::Load { name: source.to_string(), source: error })?;
    drop(checkpoint);
    let context = options.context.unwrap_or(usize::MAX).saturating_add(MOST_DRAFT);
    let context = context.min(CAPACITY).min(draft.context_length);
    let options = of_draft(options, context);
    // Its tokens are steps of their own, which are dropped with those that are rejected.
    let kept = (GpuLoadTimes::default(), MOST_DRAFT);
    let loaded = GpuBackend::load_on(Arc::clone(gpu), source, &options, kept);
    loaded.map(|draft| Some(Box::new(draft))).map_err(|error| explain(error, source))
}

/// Options of a draft model whose sequences have `context` tokens, for those of its model.
fn of_draft(options: &GpuOptions, context: usize) -> GpuOptions {
    GpuOptions {
        context: Some(context),
        sequences: options.sequences,
        // It stores no prefix, and each of its sequences has states for drafts.
        spare_states: Some(0),
        // A draft that reads its weights over the bus would take longer than it saves.
        layers: Some(usize::MAX),
        speculation: options.speculation,
        draft_head: false,
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
