//! Prefixes that servers hand to each other: plan, export and import of `ruvllm.v1.Worker`.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::http::Extensions;
use futures_core::Stream;
use ruvllm::{Engine, ImportedPrefix, PrefixImport, PrefixOffer, Tenant, TransferError};
use tokio::sync::mpsc;
use tokio::time::timeout;
use tonic::{Status, Streaming};

use super::events::count;
use super::proto;
use super::proto::import_prefix_request::Request as ImportPart;
use super::proto::prefix_part::Part;
use crate::api_error::{ApiError, with_sources};
use crate::app::App;
use crate::auth::Caller;
use crate::body::BodyLimits;
use crate::models::LoadedModel;
use crate::tenant::tenant_of;

/// Bytes of entries in a message: well below the 4 MiB that clients take by default.
const PART_BYTES: usize = 256 << 10;

/// Longest wait for the rest of a refused import. Clients that are writing when the reply comes may
/// take it for a failure of the connection.
const LINGER: Duration = Duration::from_secs(1);

/// Messages that wait for their reader or for the engine.
const QUEUED: usize = 4;

/// A model, and the tenant whose prefixes are meant.
pub(super) struct Place {
    model: Arc<LoadedModel>,
    tenant: Tenant,
}

impl Place {
    /// The model of a name, for the caller of a request.
    ///
    /// # Errors
    /// 404 without such a model, 400 for one that generates no text.
    pub(super) async fn of(app: &App, name: Option<&str>, extensions: &Extensions) -> Result<Self, ApiError> {
        let model = app.models.choose(name).await?.model;
        let engine = model.engine()?;
        let caller = extensions.get::<Caller>();
        let tenant = caller.map(|caller| tenant_of(engine, caller)).transpose()?.unwrap_or_default();
        Ok(Self { model, tenant })
    }

    fn engine(&self) -> Result<&Engine, ApiError> {
        self.model.engine()
    }
}

/// Blocks that are missing of a prompt.
///
/// # Errors
/// 400 for tokens outside of the vocabulary, and if no prefixes are exchanged.
pub(super) fn plan(place: &Place, tokens: &[u32]) -> Result<proto::ImportPlan, ApiError> {
    let plan = place.engine()?.plan_import(&place.tenant, tokens).map_err(refused)?;
    Ok(proto::ImportPlan {
        known_blocks: count(plan.known_blocks),
        missing_blocks: count(plan.missing_blocks),
        bytes: plan.bytes,
        transfer_seconds: plan.transfer_seconds,
        prefill_seconds: plan.prefill_seconds,
        is_worthwhile: plan.is_worthwhile,
    })
}

/// Parts of an export. Its thread ends after the stream is dropped.
pub(super) struct PrefixParts(mpsc::Receiver<Result<proto::PrefixPart, Status>>);

impl Stream for PrefixParts {
    type Item = Result<proto::PrefixPart, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(context)
    }
}

/// Begins to send the blocks of a prompt.
///
/// # Errors
/// As [`plan`].
pub(super) fn export(place: &Place, message: &proto::ExportPrefixRequest) -> Result<PrefixParts, ApiError> {
    let skip_blocks = message.skip_blocks as usize;
    let export =
        place.engine()?.export_prefix(&place.tenant, &message.tokens, skip_blocks).map_err(refused)?;
    let (sender, receiver) = mpsc::channel(QUEUED);
    // Entries are hashed.
    tokio::task::spawn_blocking(move || {
        let part = |part| sender.blocking_send(Ok(proto::PrefixPart { part: Some(part) })).is_ok();
        if !part(Part::Offer(offer_message(export.offer()))) {
            return;
        }
        for entry in export {
            if !entry.chunks(PART_BYTES).all(|bytes| part(Part::Data(bytes.to_vec()))) {
                return;
            }
        }
    });
    Ok(PrefixParts(receiver))
}

fn offer_message(offer: &PrefixOffer) -> proto::PrefixOffer {
    proto::PrefixOffer {
        fingerprint: offer.model.to_vec(),
        kv_format: offer.kv_format.clone(),
        block_tokens: count(offer.block_tokens),
        is_tagged: offer.is_tagged,
        first_block: count(offer.first_block),
        blocks: count(offer.blocks),
        bytes: offer.bytes,
    }
}

fn offer_of(message: proto::PrefixOffer) -> Result<PrefixOffer, ApiError> {
    let bytes = message.fingerprint.len();
    let model = message.fingerprint.try_into();
    let wrong = |_| ApiError::invalid_param("fingerprint", format!("has {bytes} bytes, expected 32"));
    Ok(PrefixOffer {
        model: model.map_err(wrong)?,
        kv_format: message.kv_format,
        block_tokens: message.block_tokens as usize,
        is_tagged: message.is_tagged,
        first_block: message.first_block as usize,
        blocks: message.blocks as usize,
        bytes: message.bytes,
    })
}

/// Receives the blocks of a prompt.
///
/// # Errors
/// 400 for messages out of order and for blocks that are refused, 408 for a message that does not
/// come in time, 503 without room.
pub(super) async fn import(
    app: &App,
    extensions: &Extensions,
    mut messages: Streaming<proto::ImportPrefixRequest>,
) -> Result<proto::ImportedPrefix, ApiError> {
    let imported = take(app, extensions, &mut messages).await;
    if imported.is_err() {
        let rest = async { while let Ok(Some(_)) = messages.message().await {} };
        let _ = timeout(LINGER, rest).await;
    }
    imported
}

async fn take(
    app: &App,
    extensions: &Extensions,
    messages: &mut Streaming<proto::ImportPrefixRequest>,
) -> Result<proto::ImportedPrefix, ApiError> {
    let patience = extensions.get::<BodyLimits>().unwrap_or(&BodyLimits::DEFAULT).time;
    let Some(ImportPart::Target(target)) = next(messages, patience).await? else {
        return Err(ApiError::invalid_param("target", "the first message has to name the prompt"));
    };
    let place = Place::of(app, target.model.as_deref(), extensions).await?;
    let import = place.engine()?.import_prefix(&place.tenant, &target.tokens).map_err(refused)?;
    let (sender, receiver) = mpsc::channel(QUEUED);
    // Entries are hashed, and prefixes evicted for them.
    let task = tokio::task::spawn_blocking(move || receive(import, receiver));
    let arrived = pass_on(messages, patience, &sender).await;
    drop(sender);
    let received = task.await.map_err(|panic| ApiError::internal(&panic))?;
    // An error of the sender is the cause of an incomplete import.
    arrived?;
    let imported = received?;
    Ok(proto::ImportedPrefix {
        blocks: count(imported.blocks),
        bytes: imported.bytes,
        cached_tokens: count(imported.cached_tokens),
        seconds: imported.time.as_secs_f64(),
    })
}

/// Passes parts on until their end, or that of the import.
async fn pass_on(
    messages: &mut Streaming<proto::ImportPrefixRequest>,
    patience: Duration,
    sender: &mpsc::Sender<Part>,
) -> Result<(), ApiError> {
    while let Some(part) = next(messages, patience).await? {
        let ImportPart::Part(proto::PrefixPart { part: Some(part) }) = part else {
            return Err(ApiError::invalid_param(
                "part",
                "expected a part of an export in all messages but one",
            ));
        };
        if sender.send(part).await.is_err() {
            break;
        }
    }
    Ok(())
}

/// The next message; `None` at the end.
async fn next(
    messages: &mut Streaming<proto::ImportPrefixRequest>,
    patience: Duration,
) -> Result<Option<ImportPart>, ApiError> {
    let message = timeout(patience, messages.message()).await.map_err(|_| ApiError::slow_request())?;
    match message {
        Ok(None) => Ok(None),
        Ok(Some(message)) => message.request.map(Some).ok_or_else(|| ApiError::invalid("a message is empty")),
        Err(status) => Err(ApiError::invalid(format!("the call broke off: {}", status.message()))),
    }
}

/// Body of the thread of an import.
fn receive(mut import: PrefixImport, mut parts: mpsc::Receiver<Part>) -> Result<ImportedPrefix, ApiError> {
    while let Some(part) = parts.blocking_recv() {
        let taken = match part {
            Part::Offer(offer) => import.accept(&offer_of(offer)?),
            Part::Data(bytes) => import.push(&bytes),
        };
        taken.map_err(|error| transfer_error(&error))?;
    }
    import.finish().map_err(|error| transfer_error(&error))
}

/// Error of an engine's method for transfers.
fn refused(error: ruvllm::Error) -> ApiError {
    match &error {
        ruvllm::Error::PrefixTransfer(error) => transfer_error(error),
        _ => ApiError::from(error).renamed(&[("prompt", "tokens")]),
    }
}

/// A refused transfer; its code tells programs the reason.
fn transfer_error(error: &TransferError) -> ApiError {
    let message = with_sources(error);
    let code = match error {
        TransferError::Off => {
            let message = "this server exchanges no prefixes; set grpc.transfers (--grpc-transfers)";
            return ApiError::invalid(message).with_code("transfers_off");
        }
        TransferError::State => "state_layers",
        TransferError::Memory { .. } => return ApiError::overloaded(message, None),
        TransferError::Model { .. } => "other_model",
        TransferError::KvFormat { .. } => "other_kv_format",
        TransferError::BlockTokens { .. } => "other_block_tokens",
        TransferError::Key { .. } => "other_prefix_key",
        TransferError::Gap { .. } => "prefix_gap",
        TransferError::Incomplete { .. } => "prefix_incomplete",
        TransferError::Entry { .. } => "prefix_entry",
        _ => "prefix_parts",
    };
    ApiError::invalid(message).with_code(code)
}
