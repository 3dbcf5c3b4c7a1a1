//! The service `ruvllm.v1.Worker`: prefixes and load of a model, for routers of several servers,
//! and prefixes that those hand to each other.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use futures_core::Stream;
use ruvllm::{Engine, PrefixEvent, PrefixEvents};
use tokio::sync::mpsc;
use tonic::{Request, Response, Status, Streaming, async_trait};

use super::events::count;
use super::proto::model_event::Event;
use super::proto::worker_server;
use super::transfer::{self, Place, PrefixParts};
use super::{proto, status};
use crate::api_error::ApiError;
use crate::app::App;
use crate::auth::Caller;
use crate::models::LoadedModel;
use crate::tenant::tenant_of;

/// Longest wait for a change before the load is looked at, and the end of the server.
const PATIENCE: Duration = Duration::from_millis(20);

/// Time between two loads unless the caller names another.
const LOAD_INTERVAL: Duration = Duration::from_millis(100);

/// Events that wait for a reader; further ones wait in the engine.
const QUEUED: usize = 64;

/// The service over the models of a server.
pub(super) struct Worker {
    app: Arc<App>,
}

/// Events of a model. Its thread ends after the stream is dropped.
pub(super) struct ModelEvents(mpsc::Receiver<Result<proto::ModelEvent, Status>>);

impl Worker {
    pub(super) fn new(app: Arc<App>) -> Self {
        Self { app }
    }

    async fn model(&self, name: Option<&str>) -> Result<Arc<LoadedModel>, ApiError> {
        Ok(self.app.models.choose(name).await?.model)
    }

    async fn describe(&self, name: Option<&str>) -> Result<proto::ModelDescription, ApiError> {
        let model = self.model(name).await?;
        let describe = move || {
            let engine = model.engine()?;
            Ok(description(&model, engine, engine.fingerprint()?))
        };
        // The fingerprint reads the whole file.
        tokio::task::spawn_blocking(describe).await.map_err(|panic| ApiError::internal(&panic))?
    }

    async fn plan(&self, call: Request<proto::PlanImportRequest>) -> Result<proto::ImportPlan, ApiError> {
        let (_, extensions, message) = call.into_parts();
        let place = Place::of(&self.app, message.model.as_deref(), &extensions).await?;
        transfer::plan(&place, &message.tokens)
    }

    async fn export(&self, call: Request<proto::ExportPrefixRequest>) -> Result<PrefixParts, ApiError> {
        let (_, extensions, message) = call.into_parts();
        let place = Place::of(&self.app, message.model.as_deref(), &extensions).await?;
        transfer::export(&place, &message)
    }

    async fn watch(&self, call: Request<proto::WatchModelRequest>) -> Result<ModelEvents, ApiError> {
        let (_, extensions, message) = call.into_parts();
        let model = self.model(message.model.as_deref()).await?;
        let engine = model.engine()?;
        let caller = extensions.get::<Caller>();
        let tenant = caller.map(|caller| tenant_of(engine, caller)).transpose()?.unwrap_or_default();
        let interval = message.load_interval_ms.map(|ms| Duration::from_millis(ms.into()));
        let (sender, receiver) = mpsc::channel(QUEUED);
        let watch = Watch {
            app: Arc::clone(&self.app),
            prefixes: engine.prefix_events(&tenant),
            model: Arc::clone(&model),
            interval: interval.unwrap_or(LOAD_INTERVAL),
            sender,
        };
        tokio::task::spawn_blocking(move || watch.run());
        Ok(ModelEvents(receiver))
    }
}

fn description(model: &LoadedModel, engine: &Engine, fingerprint: [u8; 32]) -> proto::ModelDescription {
    let kv = engine.kv_store();
    let pool = kv.pool().stats();
    let block_bytes = kv.policy().hot.block_bytes(kv.shape(), kv.block_tokens());
    let total = block_bytes.map_or(0, |bytes| pool.capacity_pages * pool.page_bytes / bytes.max(1));
    proto::ModelDescription {
        model: model.name().to_string(),
        context_length: count(engine.context_length()),
        block_tokens: count(kv.block_tokens()),
        total_blocks: total as u64,
        max_running: count(engine.scheduling().max_running),
        kv_policy: kv.policy().to_string(),
        fingerprint: fingerprint.to_vec(),
        has_prefix_cache: engine.prefix_statistics().is_some(),
    }
}

/// Sender of the events of one call.
struct Watch {
    app: Arc<App>,
    model: Arc<LoadedModel>,
    /// `None` without a prefix cache.
    prefixes: Option<PrefixEvents>,
    interval: Duration,
    sender: mpsc::Sender<Result<proto::ModelEvent, Status>>,
}

impl Watch {
    /// Sends events until the reader or the server ends.
    fn run(mut self) {
        let (mut last, mut told) = (None, Instant::now());
        while !self.sender.is_closed() {
            if !self.app.is_ready() {
                let _ = self.sender.blocking_send(Err(Status::unavailable("the server shuts down")));
                return;
            }
            if last.is_none() || told.elapsed() >= self.interval {
                let load = self.load();
                if load != last {
                    (last, told) = (load, Instant::now());
                    if !self.send(load.map(Event::Load)) {
                        return;
                    }
                }
            }
            let Some(prefixes) = &mut self.prefixes else {
                std::thread::sleep(PATIENCE);
                continue;
            };
            for event in prefixes.next(PATIENCE.min(self.interval)) {
                if !self.send(message(event)) {
                    return;
                }
            }
        }
    }

    /// False if the reader is gone.
    fn send(&self, event: Option<Event>) -> bool {
        event.is_none() || self.sender.blocking_send(Ok(proto::ModelEvent { event })).is_ok()
    }

    fn load(&self) -> Option<proto::Load> {
        let engine = self.model.try_engine()?;
        let (steps, kv) = (engine.step_statistics(), engine.kv_usage());
        Some(proto::Load {
            running: count(steps.running as usize),
            waiting: count(steps.waiting as usize),
            used_blocks: (kv.hot.blocks + kv.warm.blocks + kv.cold.blocks) as u64,
            steps: steps.steps,
        })
    }
}

fn message(event: PrefixEvent) -> Option<Event> {
    Some(match event {
        PrefixEvent::Cleared => Event::Cleared(proto::BlocksCleared {}),
        PrefixEvent::Stored { parent, hashes, tokens } => {
            Event::Stored(proto::BlocksStored { parent, hashes, tokens })
        }
        PrefixEvent::Removed { hashes } => Event::Removed(proto::BlocksRemoved { hashes }),
        _ => return None,
    })
}

impl Stream for ModelEvents {
    type Item = Result<proto::ModelEvent, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(context)
    }
}

#[async_trait]
impl worker_server::Worker for Worker {
    type WatchModelStream = ModelEvents;
    type ExportPrefixStream = PrefixParts;

    async fn describe_model(
        &self,
        call: Request<proto::DescribeModelRequest>,
    ) -> Result<Response<proto::ModelDescription>, Status> {
        let name = call.into_inner().model;
        self.describe(name.as_deref()).await.map(Response::new).map_err(|error| status::of(&error))
    }

    async fn watch_model(
        &self,
        call: Request<proto::WatchModelRequest>,
    ) -> Result<Response<ModelEvents>, Status> {
        self.watch(call).await.map(Response::new).map_err(|error| status::of(&error))
    }

    async fn plan_import(
        &self,
        call: Request<proto::PlanImportRequest>,
    ) -> Result<Response<proto::ImportPlan>, Status> {
        self.plan(call).await.map(Response::new).map_err(|error| status::of(&error))
    }

    async fn export_prefix(
        &self,
        call: Request<proto::ExportPrefixRequest>,
    ) -> Result<Response<PrefixParts>, Status> {
        self.export(call).await.map(Response::new).map_err(|error| status::of(&error))
    }

    async fn import_prefix(
        &self,
        call: Request<Streaming<proto::ImportPrefixRequest>>,
    ) -> Result<Response<proto::ImportedPrefix>, Status> {
        let (_, extensions, messages) = call.into_parts();
        let imported = transfer::import(&self.app, &extensions, messages).await;
        imported.map(Response::new).map_err(|error| status::of(&error))
    }
}
