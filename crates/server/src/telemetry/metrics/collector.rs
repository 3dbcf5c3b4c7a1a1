//! Metrics that are read when somebody asks for them: counters of engines and of the process.

use std::fmt;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::registry::Unit;
use ruvllm::{DeviceMemory, ProcessMemory, StepStatistics, TreeStatistics};

use super::engine::{
    ModelMetric, device_metrics, engine_metrics, host_prefix_metrics, prefix_metrics, step_metrics,
};
use super::kernel_packs::write_kernel_packs;
use super::labels::Labels;
use super::samples::write;
use super::{Source, Sources};
use crate::models::ModelSet;
use crate::telemetry::figures::{EngineFigures, ModelFigures};

/// Metrics of models and their engines.
pub(super) struct EngineCollector {
    models: Arc<ModelSet>,
    steps: [ModelMetric<StepStatistics>; 12],
    prefixes: [ModelMetric<TreeStatistics>; 5],
    host_prefixes: [ModelMetric<TreeStatistics>; 4],
    engine: Vec<ModelMetric<EngineFigures>>,
    device: [ModelMetric<DeviceMemory>; 3],
    sources: Arc<Sources>,
}

impl EngineCollector {
    pub(super) fn new(models: Arc<ModelSet>, sources: Arc<Sources>) -> Self {
        Self {
            models,
            steps: step_metrics(),
            prefixes: prefix_metrics(),
            host_prefixes: host_prefix_metrics(),
            engine: engine_metrics(),
            device: device_metrics(),
            sources,
        }
    }

    fn write_models(&self, encoder: &mut DescriptorEncoder<'_>, models: &[ModelFigures]) -> fmt::Result {
        let offered = self.models.offered().filter(|offered| offered.parent.is_none());
        let is_loaded = |name: &str| models.iter().any(|model| &*model.name == name);
        let loaded: Vec<_> = offered
            .map(|model| (f64::from(u8::from(is_loaded(&model.name))), model.name))
            .map(|(is_loaded, name)| (Labels::of_model(&name.into()), is_loaded))
            .collect();
        write(encoder, ("model_loaded", "1 for a model in memory, else 0", None), false, &loaded)?;
        let bytes: Vec<_> =
            models.iter().map(|model| (Labels::of_model(&model.name), model.bytes as f64)).collect();
        let help = "Weights and KV budget of a model in memory";
        write(encoder, ("model_memory", help, Some(&Unit::Bytes)), false, &bytes)
    }
}

impl fmt::Debug for EngineCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineCollector").finish_non_exhaustive()
    }
}

impl Collector for EngineCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let loaded = self.models.loaded();
        let models: Vec<_> = loaded.iter().map(|model| ModelFigures::read(model)).collect();
        self.write_models(&mut encoder, &models)?;
        write_metrics(&mut encoder, &self.steps, &models, |model| model.steps.as_ref())?;
        write_metrics(&mut encoder, &self.prefixes, &models, |model| model.prefixes.as_ref())?;
        write_metrics(&mut encoder, &self.host_prefixes, &models, |model| model.host_prefixes.as_ref())?;
        write_metrics(&mut encoder, &self.engine, &models, |model| model.engine.as_ref())?;
        write_metrics(&mut encoder, &self.device, &models, |model| model.device.as_ref())?;
        write_kernel_packs(&mut encoder, &loaded)?;
        let help = "Records that the witness log dropped because its queue was full";
        let dropped = read(&self.sources.dropped_records);
        write(&mut encoder, ("witness_dropped_records", help, None), true, &dropped)?;
        let connections = read(&self.sources.connections);
        write(&mut encoder, ("connections", "Open connections", None), false, &connections)
    }
}

/// Writes metrics of all models that have the figures which they read.
fn write_metrics<F>(
    encoder: &mut DescriptorEncoder<'_>,
    metrics: &[ModelMetric<F>],
    models: &[ModelFigures],
    figures: impl Fn(&ModelFigures) -> Option<&F>,
) -> fmt::Result {
    for ModelMetric { name, help, unit, is_counter, read } in metrics {
        let samples: Vec<_> = models
            .iter()
            .filter_map(|model| Some((model, figures(model)?)))
            .flat_map(|(model, figures)| {
                let labels = Labels::of_model(&model.name);
                read(figures).into_iter().map(move |(kind, value)| (Labels { kind, ..labels.clone() }, value))
            })
            .collect();
        write(encoder, (name, help, unit.as_ref()), *is_counter, &samples)?;
    }
    Ok(())
}

/// The sample of a source, if it is there.
fn read(source: &Source) -> Vec<(Labels, f64)> {
    source.get().map(|read| (Labels::default(), read() as f64)).into_iter().collect()
}

/// Metrics of the process under the names that all Prometheus clients use.
#[derive(Debug)]
pub(super) struct ProcessCollector {
    /// Seconds since the Unix epoch.
    started: f64,
}

impl ProcessCollector {
    pub(super) fn new() -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        Self { started: now.map_or(0.0, |time| time.as_secs_f64()) }
    }
}

impl Collector for ProcessCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let resident = ProcessMemory::now().resident_bytes;
        let samples: Vec<_> = resident.map(|bytes| (Labels::default(), bytes as f64)).into_iter().collect();
        let description = ("process_resident_memory", "Resident memory of the process", Some(&Unit::Bytes));
        write(&mut encoder, description, false, &samples)?;
        let description =
            ("process_start_time", "Start of the server since the Unix epoch", Some(&Unit::Seconds));
        write(&mut encoder, description, false, &[(Labels::default(), self.started)])
    }
}
