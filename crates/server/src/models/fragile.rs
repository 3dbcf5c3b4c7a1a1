//! A backend that can be lost, for tests.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use axum::Router;
use parking_lot::Mutex;
use ruvllm::{
    BackendQueue, BackendSession, DeviceMemory, Engine, EngineOptions, Error, InferenceBackend, KvPolicy,
    ModelConfig, TextCodec, TokenId, TreeStatistics,
};

use super::{BackendLoader, LoadedBackend, ModelEntry, ModelSet};
use crate::app::{App, RequestLimits};
use crate::testing::{built_in, router_of};

/// The engine behind the trait, on a device that can be lost.
struct Fragile {
    engine: Engine,
    is_lost: Arc<AtomicBool>,
}

struct FragileSession<'b> {
    session: Box<dyn BackendSession + 'b>,
    is_lost: &'b AtomicBool,
}

impl Fragile {
    fn lost() -> Error {
        Error::BackendLost { backend: "fragile".to_owned(), source: "the driver was reset".into() }
    }
}

impl InferenceBackend for Fragile {
    fn name(&self) -> &str {
        "fragile"
    }

    fn config(&self) -> &ModelConfig {
        self.engine.config()
    }

    fn codec(&self) -> &TextCodec {
        InferenceBackend::codec(&self.engine)
    }

    fn context_length(&self) -> usize {
        256
    }

    fn session(&self, capacity: usize) -> Result<Box<dyn BackendSession + '_>, Error> {
        let session = self.engine.session(capacity)?;
        Ok(Box::new(FragileSession { session, is_lost: &self.is_lost }))
    }

    fn kv_policy(&self) -> KvPolicy {
        *self.engine.kv_policy()
    }

    fn device_memory(&self) -> Option<DeviceMemory> {
        Some(DeviceMemory { budget: Some(9000), used: 3000, reserved: Some(4096), weights: 2000, kv: 600 })
    }

    fn prefix_statistics(&self) -> Option<TreeStatistics> {
        let mut statistics = TreeStatistics::default();
        (statistics.lookups, statistics.full_hits, statistics.partial_hits) = (5, 1, 2);
        Some(statistics)
    }

    fn host_prefix_statistics(&self) -> Option<TreeStatistics> {
        let mut statistics = TreeStatistics::default();
        (statistics.lookups, statistics.partial_hits) = (4, 2);
        (statistics.inserted_blocks, statistics.blocks) = (11, 7);
        Some(statistics)
    }

    fn is_lost(&self) -> bool {
        self.is_lost.load(SeqCst)
    }
}

impl BackendSession for FragileSession<'_> {
    fn len(&self) -> usize {
        self.session.len()
    }

    fn forward(&mut self, tokens: &[TokenId]) -> Result<&[f32], Error> {
        if self.is_lost.load(SeqCst) {
            return Err(Fragile::lost());
        }
        BackendSession::forward(&mut *self.session, tokens)
    }

    fn truncate(&mut self, len: usize) -> Result<usize, Error> {
        self.session.truncate(len)
    }

    fn prefill(
        &mut self,
        tokens: &[TokenId],
        chunk: usize,
        go_on: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<Option<&[f32]>, Error> {
        self.session.prefill(tokens, chunk, go_on)
    }
}

/// Device that models are loaded on.
#[derive(Default)]
pub(crate) struct Device {
    /// Loss of each load.
    pub(super) loads: Mutex<Vec<Arc<AtomicBool>>>,
    /// Loads that fail before one succeeds.
    pub(super) failures: AtomicUsize,
    /// The engine computes in its place.
    pub(super) is_absent: AtomicBool,
}

impl Device {
    fn load(&self) -> Result<LoadedBackend, Error> {
        if self.is_absent.load(SeqCst) {
            return Ok(LoadedBackend::Engine { reason: "there is no device".to_owned() });
        }
        if self.failures.fetch_update(SeqCst, SeqCst, |left| left.checked_sub(1)).is_ok() {
            return Err(Fragile::lost());
        }
        let is_lost: Arc<AtomicBool> = Arc::default();
        self.loads.lock().push(Arc::clone(&is_lost));
        let engine = Engine::load(&built_in(), &options(), &mut |_| ())?;
        let queue = BackendQueue::start(Arc::new(Fragile { engine, is_lost }))?;
        Ok(LoadedBackend::Queue { queue, warnings: vec!["it is fragile".to_owned()] })
    }

    /// Loses what was loaded last.
    pub(super) fn lose(&self) {
        self.loads.lock().last().unwrap().store(true, SeqCst);
    }
}

fn options() -> EngineOptions {
    EngineOptions::default().with_threads(1).with_kv_budget(64 << 20)
}

/// A server with the built-in model on a device.
pub(crate) fn served() -> (Router, Arc<Device>) {
    let device: Arc<Device> = Arc::default();
    let loader = Arc::clone(&device);
    let mut entry = ModelEntry::new("base", built_in(), options());
    entry.backend = Some(BackendLoader::new(move || loader.load()));
    // A limit of the machine's memory, of which the model takes none.
    let models = ModelSet::new(vec![entry], Some(1));
    (router_of(App::new(models, RequestLimits::default())), device)
}
