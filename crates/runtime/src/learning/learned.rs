//! An adapter that the instant loop changes: the learner's parameters in pages of the engine.

use std::sync::Arc;

use parking_lot::Mutex;
use ruvllm_adapters::{Adapter, MicroConfig, MicroLora, Projection, Site};
use ruvllm_memory::{Request, Tenant};
use ruvllm_sona::instant::{InstantLearner, Lesson, Observations, Settings, Shape, Snapshot, Update};

use super::head::ModelHead;
use crate::engine::Engine;
use crate::error::{Error, Result};

/// Adapter of one tenant that learns from feedback.
///
/// It changes the final hidden state and the logits, behind the last keys and values: prefixes of
/// the cache stay valid. Requests that began with a version end with it.
#[derive(Debug)]
pub struct LearnedAdapter {
    micro: Arc<MicroLora>,
    learner: Mutex<InstantLearner>,
}

impl Engine {
    /// Makes an adapter that learns, without effect yet, and registers it for requests of `tenant`
    /// under `name`. Observations for it keep `candidates` tokens.
    ///
    /// # Errors
    /// [`Error::Learning`] for settings out of range; [`Error::Adapter`] for a name that is taken,
    /// different ranks, or no memory.
    pub fn learned_adapter(
        &self,
        tenant: &Tenant,
        name: &str,
        settings: Settings,
        candidates: usize,
    ) -> Result<Arc<LearnedAdapter>> {
        let micro = self.changing_adapter(tenant, &settings)?;
        let learner = self.instant_learner(settings, candidates)?;
        let adapter = LearnedAdapter { micro, learner: Mutex::new(learner) };
        adapter.publish(&adapter.learner.lock())?;
        self.register_changing(tenant, name, &adapter.micro)?;
        Ok(Arc::new(adapter))
    }

    /// A learner of the model's last products, without effect yet and without an adapter.
    ///
    /// # Errors
    /// [`Error::Learning`] for settings out of range.
    pub fn instant_learner(&self, settings: Settings, candidates: usize) -> Result<InstantLearner> {
        let head = Arc::new(ModelHead(Arc::clone(&self.core)));
        let learner = InstantLearner::new(head, settings, candidates);
        learner.map_err(|source| Error::Learning { source })
    }

    /// Pages for the parameters of such a learner.
    pub(super) fn changing_adapter(&self, tenant: &Tenant, settings: &Settings) -> Result<Arc<MicroLora>> {
        let core = self.core();
        let request = Request::default().tenant(tenant.clone()).pressure(core.pressure);
        let micro = MicroLora::new(self.adapter_base(), &config(settings)?, core.kv.pool(), &request);
        micro.map(Arc::new).map_err(failed)
    }

    pub(super) fn register_changing(
        &self,
        tenant: &Tenant,
        name: &str,
        micro: &Arc<MicroLora>,
    ) -> Result<()> {
        self.adapter_registry.register_changing(tenant, name, micro).map_err(failed).map(|_| ())
    }
}

fn failed(source: ruvllm_adapters::Error) -> Error {
    Error::Adapter { source: source.into() }
}

impl LearnedAdapter {
    /// Learns from a text and publishes the next version.
    ///
    /// # Errors
    /// [`Error::Learning`] for observations of another model; [`Error::Adapter`] without memory for
    /// the next version: what was learned is kept, and published with the next lesson.
    pub fn learn(&self, observations: &Observations, lesson: Lesson) -> Result<Update> {
        let mut learner = self.learner.lock();
        let update = learner.learn(observations, lesson).map_err(|source| Error::Learning { source })?;
        if update.applied > 0 {
            self.publish(&learner)?;
        }
        Ok(update)
    }

    /// Keeps positions of ordinary traffic, at which learning holds the model to its base.
    ///
    /// # Errors
    /// [`Error::Learning`] for observations of another model.
    pub fn observe_ordinary(&self, observations: &Observations) -> Result<()> {
        let mut learner = self.learner.lock();
        let mut kept = observations.iter().map(|position| learner.observe_ordinary(position));
        kept.try_for_each(|kept| kept.map_err(|source| Error::Learning { source }))
    }

    /// The current version.
    pub fn current(&self) -> Arc<Adapter> {
        self.micro.current()
    }

    /// Copies the state of the learner.
    pub fn snapshot(&self) -> Snapshot {
        self.learner.lock().snapshot()
    }

    /// Goes back to a snapshot and publishes it as the next version.
    ///
    /// # Errors
    /// [`Error::Learning`] for a snapshot of another model; [`Error::Adapter`] without memory for
    /// the next version: it is published with the next lesson.
    pub fn restore(&self, snapshot: &Snapshot) -> Result<()> {
        let mut learner = self.learner.lock();
        learner.restore(snapshot).map_err(|source| Error::Learning { source })?;
        self.publish(&learner)
    }

    fn publish(&self, learner: &InstantLearner) -> Result<()> {
        publish(&self.micro, learner)
    }
}

/// Writes the parameters to the next version of the adapter.
pub(super) fn publish(micro: &MicroLora, learner: &InstantLearner) -> Result<()> {
    let (shape, parameters) = (learner.shape(), learner.parameters());
    let Shape { hidden_rank, logits_rank, .. } = *shape;
    let sites = [
        (hidden_rank, Site::FinalHidden, shape.hidden_a(), shape.hidden_b()),
        (logits_rank, Site::Logits, shape.logits_a(), shape.logits_b()),
    ];
    let published = micro.update(|edit| {
        for (_, site, a, b) in sites.into_iter().filter(|(rank, ..)| *rank > 0) {
            if let Some(mut factors) = edit.site(0, site) {
                factors.a().copy_from_slice(&parameters[a]);
                factors.b(0).copy_from_slice(&parameters[b]);
            }
        }
    });
    published.map_err(failed)
}

/// Target modules and rank of the adapter.
fn config(settings: &Settings) -> Result<MicroConfig> {
    let Settings { hidden_rank, logits_rank, seed, .. } = *settings;
    let rank = hidden_rank.max(logits_rank);
    if hidden_rank.min(logits_rank) != 0 && hidden_rank != logits_rank {
        let range = "that of hidden_rank, or 0";
        let source =
            ruvllm_sona::Error::Setting { name: "logits_rank", value: logits_rank.to_string(), range };
        return Err(Error::Learning { source });
    }
    let targets = [(hidden_rank, Projection::FinalHidden), (logits_rank, Projection::Logits)];
    let targets = targets.into_iter().filter(|(rank, _)| *rank > 0).map(|(_, target)| target).collect();
    Ok(MicroConfig { rank, targets, seed })
}
