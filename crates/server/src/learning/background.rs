//! Consolidation of what tenants have taught, on a thread of its own (ADR-0093).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ruvllm::crates::sona::Result;
use ruvllm::crates::sona::background::{Background, BackgroundSettings, Pace, Run, Task};
use ruvllm::crates::sona::continual::{Outcome, Report};

use crate::api_error::with_sources;
use crate::config::Learning;
use crate::models::{LoadedModel, ModelSet};

/// Time between two looks for lessons to consolidate.
const INTERVAL: Duration = Duration::from_secs(1);
/// Share of one CPU, unless the configuration says another.
const CPU_SHARE: f64 = 0.1;

/// Starts the thread; `None` if nothing learns, or a share of 0 turns it off.
///
/// # Errors
/// [`ruvllm::crates::sona::Error::Thread`].
pub(crate) fn start(models: &Arc<ModelSet>, learning: &Learning) -> Result<Option<Background>> {
    let cpu_share = learning.background_share.unwrap_or(CPU_SHARE);
    if learning.folder.is_none() || cpu_share == 0.0 {
        return Ok(None);
    }
    let mut settings = BackgroundSettings::default();
    (settings.interval, settings.cpu_share) = (INTERVAL, cpu_share);
    let task = Consolidation { models: Arc::clone(models), faults: BTreeMap::new() };
    Background::start(vec![Box::new(task)], settings).map(Some)
}

/// Consolidates the adapters of the models in memory, one after the other.
struct Consolidation {
    models: Arc<ModelSet>,
    /// Latest fault of each model, which is not logged again.
    faults: BTreeMap<String, String>,
}

impl Task for Consolidation {
    fn name(&self) -> &str {
        "consolidation"
    }

    fn run(
        &mut self,
        _: u64,
        pace: &mut Pace<'_>,
    ) -> std::result::Result<Run, Box<dyn std::error::Error + Send + Sync>> {
        let mut judged = 0;
        for model in self.models.loaded() {
            match consolidate(&model, pace) {
                Ok(count) => judged += count,
                Err(error) => self.fault(&model, &error),
            }
        }
        Ok(match judged {
            0 => Run::Skipped("no adapter has enough new lessons".to_owned()),
            _ => Run::Done(format!("{judged} adapters judged")),
        })
    }
}

impl Consolidation {
    /// Logs a fault, unless it is that of the last time.
    fn fault(&mut self, model: &LoadedModel, error: &ruvllm::Error) {
        let fault = with_sources(error);
        let last = self.faults.insert(model.name().to_string(), fault.clone());
        if last.as_ref() != Some(&fault) {
            tracing::error!(model = &**model.name(), error = fault, "lessons cannot be consolidated");
        }
    }
}

/// Consolidates the adapters of a model that are due; their number.
fn consolidate(model: &LoadedModel, pace: &mut Pace<'_>) -> std::result::Result<u64, ruvllm::Error> {
    let (Some(learning), Ok(engine)) = (model.learning(), model.engine()) else { return Ok(0) };
    let mut judged = 0;
    for (tenant, name, adapter) in learning.opened() {
        let Some(report) = adapter.consolidate(engine, &mut || pace.rest())? else { continue };
        judged += 1;
        let result = result(&report);
        learning.counters().count_consolidation(result);
        learning.observe(&tenant, &name, &adapter);
        tracing::info!(
            model = &**model.name(),
            tenant,
            adapter = name,
            result,
            steps = report.steps,
            "lessons were consolidated"
        );
    }
    Ok(judged)
}

/// Name of an outcome in logs and metrics.
fn result(report: &Report) -> &'static str {
    match report.outcome {
        Outcome::Accepted(_) => "accepted",
        Outcome::Rejected(_) => "rejected",
        Outcome::Skipped(_) => "skipped",
    }
}
