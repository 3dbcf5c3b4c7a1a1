//! Tests of the store.

mod damage;
pub(super) mod faults;
mod forget;
mod limits;
mod round_trips;

use std::fmt::Write as _;

use super::*;
use crate::rating::Rating;
use crate::trajectory::{AdapterVersion, Embedding, Feedback, Signals, Timings, Trajectory, TrajectoryId};

/// Trajectory with every field.
fn trajectory(tenant: &str, request: &str) -> Trajectory {
    let embedding: Vec<f32> = (0..100).map(|n| (n as f32 - 50.0) / 7.0).collect();
    Trajectory {
        request_id: request.to_owned(),
        tenant: tenant.to_owned(),
        session: Some("session".to_owned()),
        model_digest: "digest".to_owned(),
        prompt_tokens: (0..200).collect(),
        response_tokens: vec![u32::MAX, 0, 128_000],
        prompt_text: Some("\u{1f980} \"quoted\"\n".to_owned()),
        response_text: None,
        embedding: Some(Embedding::quantize(&embedding).expect("finite")),
        adapters: vec![AdapterVersion { name: "law".to_owned(), version: 3 }],
        route: Some("base".to_owned()),
        kv_policy: Some("q8".to_owned()),
        timings: Timings { ttft_ms: Some(0.1), tokens_per_second: Some(1e-30), ..Timings::default() },
        created_ms: 1_000,
    }
}

fn rated(value: f32) -> Feedback {
    let signals = Signals { copied: Some(true), edit_distance: Some(3), ..Signals::default() };
    Feedback {
        rating: Some(Rating::new(value).expect("in range")),
        correction: Some(vec![1, 2, 3]),
        accepted: Some(false),
        signals,
        step_rewards: vec![0.1, -2.0],
        created_ms: 2_000,
    }
}

fn event(tenant: &str, trajectories: &[TrajectoryId]) -> NewEvent {
    NewEvent {
        tenant: tenant.to_owned(),
        adapter: "a".to_owned(),
        trajectories: trajectories.to_vec(),
        kind: 1,
        settings: [9; 32],
        payload: vec![1, 2, 3],
        created_ms: 3_000,
    }
}

fn save(
    store: &LearningStore,
    tenant: &str,
    kind: SnapshotKind,
    through: u64,
    bytes: &[u8],
) -> Result<SnapshotInfo> {
    store.save_snapshot(&NewSnapshot { tenant, adapter: "a", kind, through, bytes })
}

fn last_sequence(store: &LearningStore, tenant: &str) -> Result<u64> {
    let tenants = store.tenants()?;
    Ok(tenants.iter().find(|(name, _)| name == tenant).map_or(0, |(_, usage)| usage.last_sequence))
}

/// Stores one trajectory.
fn add(store: &LearningStore, tenant: &str, request: &str) -> TrajectoryId {
    add_at(store, tenant, request, 1_000)
}

fn add_at(store: &LearningStore, tenant: &str, request: &str, created_ms: u64) -> TrajectoryId {
    let new = Trajectory { created_ms, ..trajectory(tenant, request) };
    store.add(&[new]).expect("a store").remove(0).expect("stored")
}

/// Everything in the store but times of snapshots and rollbacks, as text.
fn contents(store: &LearningStore) -> String {
    let mut text = String::new();
    for (tenant, usage) in store.tenants().expect("a store") {
        writeln!(text, "{tenant}: {usage:?}").expect("memory");
        for stored in store.trajectories(&tenant, None, usize::MAX).expect("a store") {
            let found = store.find(&tenant, &stored.trajectory.request_id).expect("a request");
            assert_eq!(found, stored.id);
            writeln!(text, "{stored:?}").expect("memory");
        }
        for event in store.events(&tenant, 0, usize::MAX).expect("a store") {
            writeln!(text, "{event:?}").expect("memory");
        }
        for event in store.replay_events(&tenant, "a", 0, usize::MAX).expect("a store") {
            writeln!(text, "replayed: {}", event.sequence).expect("memory");
        }
        for info in store.snapshots(&tenant, "a").expect("a store") {
            let SnapshotInfo { version, parent, through, digest, .. } = &info;
            writeln!(text, "snapshot {version} of {parent:?} through {through}: {digest:?}").expect("memory");
            store.snapshot(&tenant, "a", *version).expect("an intact snapshot");
        }
    }
    text
}
