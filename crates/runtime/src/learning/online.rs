//! Adapters that learn online: feedback is logged in a store before it is learned, and published to
//! the requests after it.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use parking_lot::Mutex;
use ruvllm_adapters::{Adapter, MicroLora};
use ruvllm_memory::Tenant;
use ruvllm_sona::continual::{GateReport, Report};
use ruvllm_sona::instant::{Observations, Settings};
use ruvllm_sona::online::{
    ObservedModel, OnlineLearner, OnlineOptions, OnlineStatus, Replay, Taught, TaughtText,
};
use ruvllm_sona::store::{ForgetScope, Forgotten};
use ruvllm_sona::trajectory::{StoredTrajectory, TrajectoryId};
use ruvllm_sona::{Error as SonaError, LearningStore};

use super::learned::publish;
use super::pace::LessonTurns;
use crate::engine::Engine;
use crate::error::{Error, Result};
use crate::request::GenerateRequest;
use crate::sampler::SamplingParams;

/// Tokens of an ordinary text that the model writes.
const ORDINARY_TOKENS: usize = 128;

/// Options of an [`OnlineAdapter`].
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct LearningOptions {
    /// Settings of the instant loop.
    pub settings: Settings,
    /// Tokens kept at each position.
    pub candidates: usize,
    /// Gate and limits.
    pub online: OnlineOptions,
    /// Largest share of the time that lessons take while requests run, above 0 to 1. Lessons of all
    /// adapters of an engine take turns; one that comes too early waits. Without requests none
    /// does.
    pub share: f64,
}

impl Default for LearningOptions {
    fn default() -> Self {
        let (settings, online) = <(Settings, OnlineOptions)>::default();
        Self { settings, candidates: 48, online, share: 0.01 }
    }
}

/// Adapter of one tenant that learns from feedback and keeps what it has learned.
///
/// As a [`LearnedAdapter`](super::LearnedAdapter) with a log: a process that is killed goes on bit
/// by bit, data can be forgotten, and harm at ordinary text is undone.
#[derive(Debug)]
pub struct OnlineAdapter {
    micro: Arc<MicroLora>,
    learner: Mutex<OnlineLearner>,
    candidates: usize,
    share: f64,
}

/// The engine as the learner sees it.
struct Observed<'e> {
    engine: &'e Engine,
    candidates: usize,
}

impl ObservedModel for Observed<'_> {
    fn digest(&self) -> ruvllm_sona::Result<[u8; 32]> {
        self.engine.fingerprint().map_err(failed)
    }

    fn observe(&self, tokens: &[u32], targets: Range<usize>) -> ruvllm_sona::Result<Observations> {
        self.engine.observe(tokens, targets, self.candidates).map_err(failed)
    }

    fn ordinary_texts(&self, seeds: &[u64]) -> ruvllm_sona::Result<Vec<Vec<u32>>> {
        let sampling = SamplingParams { temperature: 1.0, ..SamplingParams::default() };
        let request = GenerateRequest::new("\n").with_max_tokens(ORDINARY_TOKENS).with_ignore_eos(true);
        let request = request.with_sampling(sampling);
        // All at once: the engine computes them in batches, and with the tokens of each alone.
        let running = seeds.iter().map(|&seed| self.engine.submit(request.clone().with_seed(seed)));
        let running: Vec<_> = running.collect::<Result<_>>().map_err(failed)?;
        running.into_iter().map(|text| Ok(text.wait().map_err(failed)?.tokens)).collect()
    }
}

/// True while requests run or wait.
fn is_busy(engine: &Engine) -> bool {
    let load = engine.core().counters.read();
    load.running + load.loading + load.waiting > 0
}

fn failed(error: Error) -> SonaError {
    SonaError::Model { source: error.into() }
}

fn learning(source: SonaError) -> Error {
    Error::Learning { source }
}

impl Engine {
    /// Continues the adapter `name` of a tenant as its log in `store` says, or begins it, and
    /// registers it for requests of the tenant.
    ///
    /// # Errors
    /// [`Error::Learning`] for settings out of range, a store that cannot be used, a log of another
    /// model or settings; [`Error::Adapter`] for a name that is taken, or no memory.
    pub fn online_adapter(
        &self,
        tenant: &Tenant,
        name: &str,
        store: &LearningStore,
        options: LearningOptions,
    ) -> Result<Arc<OnlineAdapter>> {
        let LearningOptions { settings, candidates, online, share } = options;
        if !(share > 0.0 && share <= 1.0) {
            let (value, range) = (share.to_string(), "above 0, at most 1");
            return Err(learning(SonaError::Setting { name: "share of the time", value, range }));
        }
        let micro = self.changing_adapter(tenant, &settings)?;
        let learner = self.instant_learner(settings, candidates)?;
        let model = Observed { engine: self, candidates };
        let owner = OnlineAdapter::owner(tenant);
        let learner = OnlineLearner::open(learner, store.clone(), (owner, name), online, &model);
        let learner = learner.map_err(learning)?;
        publish(&micro, learner.learner())?;
        self.register_changing(tenant, name, &micro)?;
        Ok(Arc::new(OnlineAdapter { micro, learner: Mutex::new(learner), candidates, share }))
    }
}

impl OnlineAdapter {
    /// Name of a tenant in the store: `default` for the root.
    pub fn owner(tenant: &Tenant) -> &str {
        if tenant.path().is_empty() { "default" } else { tenant.path() }
    }

    /// Logs a lesson on these trajectories, learns it and publishes the next version. `engine` is
    /// that of the adapter.
    ///
    /// # Errors
    /// [`Error::Learning`] for texts without prompt or response or beyond the context, and from the
    /// store. Nothing is learned then. [`Error::Adapter`] without memory for the next version: it
    /// is published with the next lesson.
    pub fn teach(&self, engine: &Engine, text: &TaughtText, of: &[TrajectoryId]) -> Result<Taught> {
        self.in_turn(engine, || self.change(engine, |learner, model| learner.teach(model, text, of)))
    }

    /// Learns from the latest feedback on a trajectory; `None` if it teaches nothing.
    ///
    /// # Errors
    /// As [`teach`](Self::teach).
    pub fn teach_trajectory(&self, engine: &Engine, stored: &StoredTrajectory) -> Result<Option<Taught>> {
        let teach = || self.change(engine, |learner, model| learner.teach_trajectory(model, stored));
        self.in_turn(engine, teach)
    }

    /// Takes the state that the store says, after data was removed through another adapter of the
    /// tenant.
    ///
    /// # Errors
    /// [`Error::Learning`] from the store; [`Error::Adapter`].
    pub fn reload(&self, engine: &Engine) -> Result<()> {
        self.change(engine, |learner, model| learner.reload(model))
    }

    /// Removes data of the tenant from the store, and its influence from this adapter. Others of
    /// the tenant need a [`reload`](Self::reload).
    ///
    /// # Errors
    /// [`Error::Learning`] from the store, with nothing removed; [`Error::Adapter`].
    pub fn forget(&self, engine: &Engine, scope: ForgetScope) -> Result<Forgotten> {
        self.change(engine, |learner, model| learner.forget(scope, model))
    }

    /// Goes back to a snapshot; `None`: to the base.
    ///
    /// # Errors
    /// [`Error::Learning`] for an unknown snapshot, and from the store; [`Error::Adapter`].
    pub fn roll_back(&self, engine: &Engine, version: Option<u64>) -> Result<()> {
        self.change(engine, |learner, model| learner.roll_back(version, model))
    }

    /// Consolidates the lessons: trains on a sample of all of them, beside requests and lessons,
    /// and takes the result if held-out text does not get worse. `None` if too few lessons are new,
    /// the adapter is in quarantine, `keep_going` has stopped it, or its result is void, because
    /// data was forgotten or new ordinary text came meanwhile.
    ///
    /// `keep_going` is called between pieces of the work, e.g. to wait for CPU time
    /// ([`Pace::rest`](ruvllm_sona::background::Pace::rest)). While requests run, the work leaves
    /// them the same share of the time as lessons do.
    ///
    /// # Errors
    /// [`Error::Learning`] from the store; [`Error::Adapter`] as for [`teach`](Self::teach).
    pub fn consolidate(
        &self,
        engine: &Engine,
        keep_going: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Report>> {
        let model = Observed { engine, candidates: self.candidates };
        let planned = self.learner.lock().plan_consolidation(&model).map_err(learning)?;
        let Some(mut consolidation) = planned else { return Ok(None) };
        let mut begun = Instant::now();
        let mut rested = || {
            LessonTurns::rest(self.share, || is_busy(engine), begun.elapsed());
            let goes_on = keep_going();
            begun = Instant::now();
            goes_on
        };
        let Some(report) = consolidation.train(&model, &mut rested).map_err(learning)?.cloned() else {
            return Ok(None);
        };
        let taken =
            self.change(engine, |learner, model| learner.finish_consolidation(model, consolidation))?;
        Ok(taken.then_some(report))
    }

    /// Judges the current state at held-out ordinary text: saves a snapshot of it, or goes back to
    /// the last clean one. `None` if the text says too little.
    ///
    /// # Errors
    /// [`Error::Learning`], [`Error::Adapter`].
    pub fn judge(&self, engine: &Engine) -> Result<Option<GateReport>> {
        self.change(engine, |learner, model| learner.judge(model))
    }

    /// Rise of the mean loss at held-out ordinary text, in nats per token. `None` if the text says
    /// too little.
    ///
    /// # Errors
    /// [`Error::Learning`].
    pub fn harm(&self, engine: &Engine) -> Result<Option<f64>> {
        let model = Observed { engine, candidates: self.candidates };
        let report = self.learner.lock().measure(&model).map_err(learning)?;
        Ok(report.map(|report| report.overall.difference()))
    }

    /// Ends a quarantine.
    ///
    /// # Errors
    /// [`Error::Learning`] from the store.
    pub fn release(&self) -> Result<()> {
        self.learner.lock().release().map_err(learning)
    }

    /// Lessons of the log that are in effect, in their order.
    ///
    /// # Errors
    /// [`Error::Learning`] from the store.
    pub fn lessons(&self) -> Result<Vec<TaughtText>> {
        self.learner.lock().lessons().map_err(learning)
    }

    /// Learns the whole log again from the base, and compares with the current state.
    ///
    /// # Errors
    /// [`Error::Learning`] from the store and for a log that was trimmed.
    pub fn replay(&self, engine: &Engine) -> Result<Replay> {
        let model = Observed { engine, candidates: self.candidates };
        self.learner.lock().replay(&model).map_err(learning)
    }

    /// Counters and measurements.
    ///
    /// # Errors
    /// [`Error::Learning`] from the store.
    pub fn status(&self) -> Result<OnlineStatus> {
        self.learner.lock().status().map_err(learning)
    }

    /// The current version.
    pub fn current(&self) -> Arc<Adapter> {
        self.micro.current()
    }

    /// Runs a lesson in its turn among those of the engine, in the share of the time that requests
    /// leave it.
    fn in_turn<T>(&self, engine: &Engine, lesson: impl FnOnce() -> T) -> T {
        engine.core().lessons.run(self.share, || is_busy(engine), lesson)
    }

    /// Changes the learner and publishes its parameters, also after a failure: it may have gone
    /// back to a snapshot.
    fn change<T>(
        &self,
        engine: &Engine,
        change: impl FnOnce(&mut OnlineLearner, &dyn ObservedModel) -> ruvllm_sona::Result<T>,
    ) -> Result<T> {
        let mut learner = self.learner.lock();
        let changed = change(&mut learner, &Observed { engine, candidates: self.candidates });
        publish(&self.micro, learner.learner())?;
        changed.map_err(learning)
    }
}
