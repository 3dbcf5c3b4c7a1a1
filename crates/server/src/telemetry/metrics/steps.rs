//! Histograms over the steps of engines, which keep records of their latest steps.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use super::labels::Labels;
use super::{Histograms, step_seconds};
use crate::models::LoadedModel;

/// Sequences of a step.
fn batch_sizes() -> Histogram {
    Histogram::new([1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0])
}

pub(super) struct StepHistograms {
    batch: Histograms,
    duration: Histograms,
    /// Models with the number of the next step to read.
    read: Mutex<Vec<(Weak<LoadedModel>, u64)>>,
}

impl StepHistograms {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let batch = Histograms::new_with_constructor(batch_sizes);
        registry.register("batch_size", "Sequences of a step", batch.clone());
        let duration = Histograms::new_with_constructor(step_seconds);
        registry.register_with_unit("step_duration", "Time of a step", Unit::Seconds, duration.clone());
        Self { batch, duration, read: Mutex::default() }
    }

    /// Adds the steps since the last call.
    pub(super) fn observe(&self, models: &[Arc<LoadedModel>]) {
        let mut read = self.read.lock();
        read.retain(|(model, _)| model.strong_count() > 0);
        for model in models {
            let known = read.iter().position(|(known, _)| known.as_ptr() == Arc::as_ptr(model));
            let index = known.unwrap_or_else(|| {
                read.push((Arc::downgrade(model), 0));
                read.len() - 1
            });
            let next = &mut read[index].1;
            let steps = model.steps_since(*next);
            let Some(last) = steps.last() else { continue };
            *next = last.number + 1;
            let labels = Labels::of_model(model.name());
            let (batch, duration) = (self.batch.get_or_create(&labels), self.duration.get_or_create(&labels));
            for step in &steps {
                batch.observe(step.sequences as f64);
                duration.observe(step.duration.as_secs_f64());
            }
        }
    }
}
