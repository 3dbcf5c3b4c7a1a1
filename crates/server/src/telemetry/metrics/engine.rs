//! Metrics of models as tables: name, type and the figure that is read.

use prometheus_client::registry::Unit;
use ruvllm::{
    DeviceMemory, StepStatistics, StoreStatistics, TransferStatistics, TreeStatistics, TuningStatus,
};

use crate::learning::figures::LearningFigures;
use crate::telemetry::figures::EngineFigures;

/// Values of one model, each with a further label if there are several.
type Values = Vec<(Option<(&'static str, &'static str)>, f64)>;

/// A metric of every model that has the figures `F`.
pub(super) struct ModelMetric<F> {
    /// Name without prefix, unit and `_total`.
    pub(super) name: &'static str,
    pub(super) help: &'static str,
    pub(super) unit: Option<Unit>,
    pub(super) is_counter: bool,
    pub(super) read: fn(&F) -> Values,
}

type EngineMetric = ModelMetric<EngineFigures>;

fn counter<F>(name: &'static str, help: &'static str, read: fn(&F) -> Values) -> ModelMetric<F> {
    ModelMetric { name, help, unit: None, is_counter: true, read }
}

fn gauge<F>(name: &'static str, help: &'static str, read: fn(&F) -> Values) -> ModelMetric<F> {
    ModelMetric { name, help, unit: None, is_counter: false, read }
}

impl<F> ModelMetric<F> {
    fn with_unit(self, unit: Unit) -> Self {
        Self { unit: Some(unit), ..self }
    }
}

fn one(value: u64) -> Values {
    vec![(None, value as f64)]
}

/// A value for each tier, from hot on.
fn tiers(values: &[u64]) -> Values {
    let names = ["hot", "warm", "cold"];
    names.iter().zip(values).map(|(&name, &value)| (Some(("tier", name)), value as f64)).collect()
}

/// A count of stored prefixes; nothing without a folder or storage.
fn stored(engine: &EngineFigures, read: fn(&StoreStatistics) -> u64) -> Values {
    let store = engine.prefix.as_ref().and_then(|prefix| prefix.folder.as_ref());
    store.map_or_else(Vec::new, |store| one(read(store)))
}

/// Metrics of engines besides their steps.
pub(super) fn engine_metrics() -> Vec<EngineMetric> {
    kv_metrics()
        .into_iter()
        .chain([snapshot_metric()])
        .chain(transfer_metrics())
        .chain(stored_prefix_metrics())
        .chain(adapter_metrics())
        .chain(learning_metrics())
        .collect()
}

/// Metrics of the steps of every model that generates.
pub(super) fn step_metrics() -> [ModelMetric<StepStatistics>; 12] {
    [
        gauge("requests_running", "Requests in the batch", |steps| one(steps.running)),
        gauge("requests_waiting", "Requests in the queue", |steps| one(steps.waiting)),
        gauge("requests_loading", "Requests in the batch that wait for their adapters", |steps| {
            one(steps.loading)
        }),
        counter("steps", "Forward passes over a batch", |steps| one(steps.steps)),
        counter("step_sequences", "Sequences of all steps", |steps| one(steps.parts)),
        counter("prefill_tokens", "Tokens computed in chunks of prompts", |steps| one(steps.prefill_tokens)),
        counter("decode_tokens", "Generated tokens computed", |steps| one(steps.decode_tokens)),
        counter("drafted_tokens", "Drafted tokens that were verified", |steps| one(steps.drafted_tokens)),
        counter("accepted_tokens", "Drafted tokens that became output", |steps| one(steps.accepted_tokens)),
        counter("preemptions", "Requests that yielded their memory and waited again", |steps| {
            one(steps.preemptions)
        }),
        counter("constraint_masks", "Token masks of constraints", |steps| one(steps.masks)),
        counter(
            "constraint_mask",
            "Time of the token masks of constraints, of all threads",
            |steps: &StepStatistics| vec![(None, steps.mask_time.as_secs_f64())],
        )
        .with_unit(Unit::Seconds),
    ]
}

/// Metrics of models on a device.
pub(super) fn device_metrics() -> [ModelMetric<DeviceMemory>; 3] {
    let bytes = |metric: ModelMetric<DeviceMemory>| metric.with_unit(Unit::Bytes);
    [
        bytes(gauge("device_memory", "Buffers of a model on its device by use", |memory| {
            let other = memory.used.saturating_sub(memory.weights + memory.kv);
            let uses = [("weights", memory.weights), ("kv_cache", memory.kv), ("activations", other)];
            uses.map(|(name, bytes)| (Some(("use", name)), bytes as f64)).into()
        })),
        bytes(gauge("device_memory_reserved", "Memory that the driver has given for buffers", |memory| {
            memory.reserved.map_or_else(Vec::new, one)
        })),
        bytes(gauge("device_memory_budget", "Limit of the buffers on the device", |memory| {
            memory.budget.map_or_else(Vec::new, one)
        })),
    ]
}

fn kv_metrics() -> [EngineMetric; 6] {
    [
        gauge("kv_cache", "Keys and values in memory by tier", |engine: &EngineFigures| {
            tiers(&engine.kv_tiers().map(|(_, tier)| tier.bytes as u64))
        })
        .with_unit(Unit::Bytes),
        gauge("kv_blocks", "KV blocks in memory by tier", |engine| {
            tiers(&engine.kv_tiers().map(|(_, tier)| tier.blocks as u64))
        }),
        gauge("kv_pages_capacity", "Pages of the KV budget", |engine| {
            one(engine.kv.pool.capacity_pages as u64)
        }),
        gauge("kv_pages_used", "Pages of the KV budget in use, by blocks and adapters", |engine| {
            one(engine.kv.pool.used_pages as u64)
        }),
        gauge("kv_page", "Size of a page", |engine: &EngineFigures| one(engine.kv.pool.page_bytes as u64))
            .with_unit(Unit::Bytes),
        counter("kv_evictions", "Units evicted under memory pressure", |engine| {
            one(engine.kv.pool.pressure.evicted_units)
        }),
    ]
}

/// Metrics of every prefix cache, in memory or on a device.
pub(super) fn prefix_metrics() -> [ModelMetric<TreeStatistics>; 5] {
    [
        counter("prefix_lookups", "Lookups in the prefix cache", |tree| one(tree.lookups)),
        counter("prefix_hits", "Lookups that found tokens", |tree| one(tree.full_hits + tree.partial_hits)),
        counter("prefix_hit_tokens", "Tokens found in the prefix cache", |tree| {
            one(tree.hit_tokens + tree.partial_tokens)
        }),
        gauge("prefix_blocks", "KV blocks in the prefix cache", |tree| one(tree.blocks as u64)),
        gauge("prefix_snapshots", "States of layers that keep one in the prefix cache", |tree| {
            one(tree.states as u64)
        }),
    ]
}

/// Metrics of the prefixes that sequences on a device have displaced to memory of the host.
pub(super) fn host_prefix_metrics() -> [ModelMetric<TreeStatistics>; 4] {
    [
        counter("host_prefix_lookups", "Lookups in the prefixes displaced to host memory", |tree| {
            one(tree.lookups)
        }),
        counter("host_prefix_hits", "Lookups there that found tokens", |tree| {
            one(tree.full_hits + tree.partial_hits)
        }),
        counter("host_prefix_displaced_blocks", "KV blocks copied from the device to host memory", |tree| {
            one(tree.inserted_blocks)
        }),
        gauge("host_prefix_blocks", "KV blocks of displaced prefixes in host memory", |tree| {
            one(tree.blocks as u64)
        }),
    ]
}

fn snapshot_metric() -> EngineMetric {
    gauge("prefix_snapshot", "Bytes of these states, within the KV budget", |engine: &EngineFigures| {
        engine.prefix.as_ref().map_or_else(Vec::new, |prefix| one(prefix.snapshot_bytes as u64))
    })
    .with_unit(Unit::Bytes)
}

/// Values of transfers of prefixes; nothing without a prefix cache.
fn transfers(engine: &EngineFigures, read: fn(&TransferStatistics) -> Values) -> Values {
    engine.prefix.as_ref().map_or_else(Vec::new, |prefix| read(&prefix.transfers))
}

/// A value for each direction.
fn directions(exported: u64, imported: u64) -> Values {
    let values = [("exported", exported), ("imported", imported)];
    values.map(|(name, value)| (Some(("direction", name)), value as f64)).into()
}

fn transfer_metrics() -> [EngineMetric; 5] {
    [
        counter("prefix_transfer_blocks", "KV blocks exchanged with other servers, by direction", |engine| {
            transfers(engine, |all| directions(all.exported_blocks, all.imported_blocks))
        }),
        counter("prefix_transfer", "KV blocks exchanged with other servers, by direction", |engine| {
            transfers(engine, |all| directions(all.exported_bytes, all.imported_bytes))
        })
        .with_unit(Unit::Bytes),
        counter("prefix_imports", "Imports of prefixes from other servers, by outcome", |engine| {
            transfers(engine, |all| {
                let outcomes = [
                    ("imported", all.imports),
                    ("refused", all.refused_imports),
                    ("incomplete", all.incomplete_imports),
                    ("slower", all.slower_imports),
                ];
                outcomes.map(|(name, value)| (Some(("outcome", name)), value as f64)).into()
            })
        }),
        counter("prefix_import", "Time of complete imports of prefixes", |engine| {
            transfers(engine, |all| vec![(None, all.import_time.as_secs_f64())])
        })
        .with_unit(Unit::Seconds),
        counter(
            "prefix_import_slower_tokens",
            "Tokens computed because an import would be slower",
            |engine| transfers(engine, |all| one(all.slower_tokens)),
        ),
    ]
}

fn stored_prefix_metrics() -> [EngineMetric; 8] {
    [
        counter("stored_prefix_lookups", "Lookups in the folder or object store of prefixes", |engine| {
            stored(engine, |store| store.lookups)
        }),
        counter("stored_prefix_loaded_blocks", "Stored KV blocks read and verified", |engine| {
            stored(engine, |store| store.loaded_blocks)
        }),
        counter("stored_prefix_written_blocks", "KV blocks stored", |engine| {
            stored(engine, |store| store.written_blocks)
        }),
        counter(
            "stored_prefix_unusable_blocks",
            "Stored KV blocks that were refused or unreadable",
            |engine| stored(engine, |store| store.unusable_blocks),
        ),
        counter("stored_prefix_errors", "Failed calls of the store, timeouts included", |engine| {
            stored(engine, |store| store.storage_errors)
        }),
        counter("stored_prefix_timeouts", "Calls of the store without an answer in time", |engine| {
            stored(engine, |store| store.storage_timeouts)
        }),
        counter("stored_prefix_pauses", "Times that a failing store was left alone", |engine| {
            stored(engine, |store| store.storage_pauses)
        }),
        gauge("stored_prefix_paused", "1 while the store is left alone after a failure", |engine| {
            stored(engine, |store| store.is_paused.into())
        }),
    ]
}

fn adapter_metrics() -> [EngineMetric; 5] {
    [
        gauge("adapters", "Registered adapters by tier", |engine| {
            let adapters = &engine.adapters;
            let counts = [adapters.hot_adapters, adapters.warm_adapters, adapters.cold_adapters];
            tiers(&counts.map(|count| count as u64))
        }),
        gauge("adapters_resident", "Adapters in memory by tier", |engine: &EngineFigures| {
            tiers(&[engine.adapters.hot_bytes, engine.adapters.warm_bytes].map(|bytes| bytes as u64))
        })
        .with_unit(Unit::Bytes),
        counter("adapter_requests", "Uses of adapters, by the tier they were found in", |engine| {
            let adapters = &engine.adapters;
            tiers(&[adapters.hot_hits, adapters.warm_hits, adapters.misses])
        }),
        counter("adapter_loads", "Adapters loaded from their files, by cause", |engine| {
            let causes = [("request", engine.adapters.misses), ("prefetch", engine.adapters.prefetches)];
            causes.map(|(cause, count)| (Some(("cause", cause)), count as f64)).into()
        }),
        counter("adapter_evictions", "Adapters that left memory", |engine| {
            one(engine.adapters.evictions + engine.adapters.released)
        }),
    ]
}

/// A value for each name of a label; nothing without learning.
fn learned<const N: usize>(
    engine: &EngineFigures,
    label: &'static str,
    read: fn(&LearningFigures) -> [(&'static str, u64); N],
) -> Values {
    let values = engine.learning.iter().flat_map(read);
    values.map(|(name, value)| (Some((label, name)), value as f64)).collect()
}

fn learning_metrics() -> [EngineMetric; 7] {
    [
        counter("learning_lessons", "Feedback by its result", |engine| {
            learned(engine, "result", |learning| learning.lessons)
        }),
        counter("learning_consolidations", "Consolidations of lessons by their result", |engine| {
            learned(engine, "result", |learning| learning.consolidations)
        }),
        counter("learning_recorded_requests", "Choices that were stored for feedback", |engine| {
            engine.learning.as_ref().map_or_else(Vec::new, |learning| one(learning.recorded))
        }),
        counter("learning_dropped_requests", "Choices that were not stored, by cause", |engine| {
            learned(engine, "cause", |learning| learning.dropped)
        }),
        gauge("learning_adapters", "Adapters that learn, by standing", |engine| {
            learned(engine, "standing", |learning| learning.adapters)
        }),
        gauge("learning_harm", "Largest rise of the loss at ordinary text", |engine: &EngineFigures| {
            let harm = engine.learning.as_ref().and_then(|learning| learning.harm);
            harm.map(|harm| (None, harm)).into_iter().collect()
        })
        .with_unit(Unit::Other("nats".to_owned())),
        counter("tuning_decisions", "Decisions of the tuner by outcome", |engine| {
            engine.tuning.as_ref().map_or_else(Vec::new, decisions)
        }),
    ]
}

fn decisions(tuning: &TuningStatus) -> Values {
    let outcomes = [
        ("applied", tuning.applied),
        ("tried", tuning.tried),
        ("kept", tuning.kept),
        ("rolled_back", tuning.rolled_back),
        ("interrupted", tuning.interrupted),
        ("noted", tuning.shifts),
    ];
    outcomes.map(|(outcome, count)| (Some(("outcome", outcome)), count as f64)).into()
}
