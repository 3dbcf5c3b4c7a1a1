//! Figures of a loaded model, read at once for a scrape or the live view.

use std::sync::Arc;

use ruvllm::{
    DeviceMemory, Engine, KvTierUsage, KvUsage, PrefixStatistics, ResidencyStatistics, StepStatistics,
    TreeStatistics, TuningStatus,
};

use crate::learning::ModelLearning;
use crate::learning::figures::LearningFigures;
use crate::models::LoadedModel;

/// Figures of a model in memory.
pub(super) struct ModelFigures {
    pub(super) name: Arc<str>,
    /// Bytes of weights and of the KV budget.
    pub(super) bytes: u64,
    /// Absent for an encoder.
    pub(super) steps: Option<StepStatistics>,
    /// Absent for a model that is on no device.
    pub(super) device: Option<DeviceMemory>,
    /// Prefixes in memory or on the device. Absent without a prefix cache.
    pub(super) prefixes: Option<TreeStatistics>,
    /// Prefixes displaced from a device to memory of the host. Absent without a place for them.
    pub(super) host_prefixes: Option<TreeStatistics>,
    /// Absent for an encoder and for another backend.
    pub(super) engine: Option<EngineFigures>,
}

/// Figures of an engine besides its steps.
pub(super) struct EngineFigures {
    pub(super) kv: KvUsage,
    /// Absent without a prefix cache.
    pub(super) prefix: Option<PrefixStatistics>,
    pub(super) adapters: ResidencyStatistics,
    /// Absent without a store of what is learned.
    pub(super) learning: Option<LearningFigures>,
    /// Absent unless settings follow the load.
    pub(super) tuning: Option<TuningStatus>,
}

impl ModelFigures {
    pub(super) fn read(model: &LoadedModel) -> Self {
        Self {
            name: Arc::clone(model.name()),
            bytes: model.bytes(),
            steps: model.step_statistics(),
            device: model.device_memory(),
            prefixes: model.prefix_statistics(),
            host_prefixes: model.host_prefix_statistics(),
            engine: model.try_engine().map(|engine| EngineFigures {
                learning: model.learning().map(ModelLearning::figures),
                ..EngineFigures::read(engine)
            }),
        }
    }
}

impl EngineFigures {
    pub(super) fn read(engine: &Engine) -> Self {
        Self {
            kv: engine.kv_usage(),
            prefix: engine.prefix_statistics(),
            adapters: engine.adapter_statistics(),
            learning: None,
            tuning: engine.tuning_status(),
        }
    }

    /// The tiers of keys and values with their names.
    pub(super) fn kv_tiers(&self) -> [(&'static str, KvTierUsage); 3] {
        [("hot", self.kv.hot), ("warm", self.kv.warm), ("cold", self.kv.cold)]
    }
}
