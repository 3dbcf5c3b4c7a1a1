//! Storage with injected faults, and stores that lose power or disk space at any operation.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

use proptest::prelude::*;
use redb::StorageBackend;

use super::*;
use crate::store::Source;

/// In-memory disk that fails when told to; clones share it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Storage(Arc<Mutex<Disk>>);

#[derive(Debug, Default)]
struct Disk {
    bytes: Vec<u8>,
    /// Content at the last sync and the writes since.
    synced: Vec<u8>,
    unsynced: Vec<Change>,
    /// Operations that change the disk, so far.
    operations: usize,
    /// Number of the operation at which the disk dies.
    dies_at: Option<usize>,
    /// Bytes that the disk can hold.
    capacity: Option<usize>,
}

#[derive(Debug, Clone)]
enum Change {
    Write(usize, Vec<u8>),
    Resize(usize),
}

impl Change {
    fn apply(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::Write(offset, data) => {
                let end = offset + data.len();
                bytes.resize(bytes.len().max(end), 0);
                bytes[*offset..end].copy_from_slice(data);
            }
            Self::Resize(len) => bytes.resize(*len, 0),
        }
    }
}

impl Disk {
    /// Applies a change, or dies half-way through a write.
    fn change(&mut self, change: Change) -> io::Result<()> {
        let end = match &change {
            Change::Write(offset, data) => offset + data.len(),
            Change::Resize(len) => *len,
        };
        if self.capacity.is_some_and(|capacity| end > capacity) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.operations += 1;
        if self.dies_at.is_some_and(|dies_at| self.operations >= dies_at) {
            if let (Change::Write(offset, data), true) = (&change, self.dies_at == Some(self.operations)) {
                let torn = Change::Write(*offset, data[..data.len() / 2].to_vec());
                torn.apply(&mut self.bytes);
                self.unsynced.push(torn);
            }
            return Err(io::Error::other("the disk died"));
        }
        change.apply(&mut self.bytes);
        self.unsynced.push(change);
        Ok(())
    }
}

impl Storage {
    fn disk(&self) -> MutexGuard<'_, Disk> {
        self.0.lock().expect("no panic")
    }

    /// Disk after a kill: everything that was written is there.
    fn after_kill(&self) -> Self {
        Self::with(self.disk().bytes.clone())
    }

    /// Disk after a power failure: of what was written since the last sync, what `survives`.
    fn after_power_failure(&self, mut survives: impl FnMut() -> bool) -> Self {
        let disk = self.disk();
        let mut bytes = disk.synced.clone();
        for change in &disk.unsynced {
            if survives() {
                change.apply(&mut bytes);
            }
        }
        Self::with(bytes)
    }

    pub(super) fn with(bytes: Vec<u8>) -> Self {
        Self(Arc::new(Mutex::new(Disk { synced: bytes.clone(), bytes, ..Disk::default() })))
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        self.disk().bytes.clone()
    }
}

impl StorageBackend for Storage {
    fn len(&self) -> io::Result<u64> {
        Ok(self.disk().bytes.len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let disk = self.disk();
        let bytes = disk.bytes.get(offset as usize..offset as usize + out.len());
        out.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.disk().change(Change::Resize(len as usize))
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut disk = self.disk();
        disk.operations += 1;
        if disk.dies_at.is_some_and(|dies_at| disk.operations >= dies_at) {
            return Err(io::Error::other("the disk died"));
        }
        disk.synced = disk.bytes.clone();
        disk.unsynced.clear();
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.disk().change(Change::Write(offset as usize, data.to_vec()))
    }
}

pub(super) fn open(storage: &Storage, options: StoreOptions) -> Result<LearningStore> {
    LearningStore::open_source(Source::Backend(storage.clone()), options)
}

/// Step of a history that the tests run.
#[derive(Debug, Clone)]
enum Step {
    Add(u8, u8),
    Feedback(u8, u8),
    Event(u8, u16),
    Snapshot(u8, u16),
    RollBack(u8),
    Forget(u8),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (0u8..3, 1u8..5).prop_map(|(tenant, n)| Step::Add(tenant, n)),
        2 => (0u8..3, any::<u8>()).prop_map(|(tenant, which)| Step::Feedback(tenant, which)),
        2 => (0u8..3, 0u16..5000).prop_map(|(tenant, len)| Step::Event(tenant, len)),
        2 => (0u8..3, 0u16..30_000).prop_map(|(tenant, len)| Step::Snapshot(tenant, len)),
        1 => (0u8..3).prop_map(Step::RollBack),
        1 => (0u8..3).prop_map(Step::Forget),
    ]
}

fn small() -> StoreOptions {
    let retention = Retention { count: Some(6), ..Retention::default() };
    StoreOptions { retention, snapshots: 2, cache_bytes: 1 << 20, ..StoreOptions::default() }
}

/// Runs a step, which is one transaction or none.
fn run(store: &LearningStore, number: usize, step: &Step) -> Result<()> {
    let tenant = |tenant: &u8| format!("tenant {tenant}");
    match step {
        Step::Add(owner, count) => {
            let names = (0..*count).map(|n| format!("{number}/{n}"));
            let new: Vec<_> = names.map(|name| trajectory(&tenant(owner), &name)).collect();
            store.add(&new)?.into_iter().collect::<Result<Vec<_>>>().map(|_| ())
        }
        Step::Feedback(owner, which) => {
            let stored = store.trajectories(&tenant(owner), None, 100)?;
            let Some(stored) = stored.get(*which as usize % stored.len().max(1)) else { return Ok(()) };
            store.attach_feedback(&tenant(owner), &stored.trajectory.request_id, &rated(0.5)).map(|_| ())
        }
        Step::Event(owner, len) => {
            let mut event = event(&tenant(owner), &[]);
            event.payload = vec![number as u8; *len as usize];
            let stored = store.trajectories(&tenant(owner), None, 1)?;
            event.trajectories = stored.iter().map(|stored| stored.id).collect();
            store.append_events(&[event]).map(|_| ())
        }
        Step::Snapshot(owner, len) => {
            let through = last_sequence(store, &tenant(owner))?;
            let bytes = vec![number as u8; *len as usize];
            save(store, &tenant(owner), SnapshotKind::Clean, through, &bytes).map(|_| ())
        }
        Step::RollBack(owner) => {
            let Some(first) = store.snapshots(&tenant(owner), "a")?.first().cloned() else { return Ok(()) };
            store.roll_back(&tenant(owner), "a", Some(first.version)).map(|_| ())
        }
        Step::Forget(owner) => {
            let Some(stored) = store.trajectories(&tenant(owner), None, 1)?.pop() else { return Ok(()) };
            store.forget(&tenant(owner), ForgetScope::Trajectory(stored.id)).map(|_| ())
        }
    }
}

/// Contents after each step of a history without faults, and the operations of the disk.
fn history(steps: &[Step]) -> (Vec<String>, usize) {
    let storage = Storage::default();
    let store = open(&storage, small()).expect("a store");
    let mut states = vec![contents(&store)];
    for (number, step) in steps.iter().enumerate() {
        run(&store, number, step).expect("no fault");
        states.push(contents(&store));
    }
    let operations = storage.disk().operations;
    (states, operations)
}

/// Runs a history until the disk dies; returns the number of steps that succeeded.
fn run_until_death(storage: &Storage, steps: &[Step]) -> Option<usize> {
    let store = open(storage, small()).ok()?;
    let failed = steps.iter().enumerate().position(|(number, step)| run(&store, number, step).is_err());
    Some(failed.unwrap_or(steps.len()))
}

/// The disk holds the state after the steps that succeeded, or after one more.
fn check_state(storage: &Storage, done: Option<usize>, states: &[String], context: &str) {
    let store = open(storage, small()).unwrap_or_else(|error| panic!("{context}: {error}"));
    let state = contents(&store);
    let allowed = done.map_or(&states[..1], |done| &states[done..states.len().min(done + 2)]);
    assert!(allowed.contains(&state), "{context}: {done:?} steps succeeded, another state is stored");
    store.add(&[trajectory("after", "it goes on")]).expect("a store that goes on")[0]
        .as_ref()
        .expect("stored");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6))]

    /// Death of the disk at any write, by a kill or with the loss of any unsynced writes, leaves a
    /// prefix of the committed transactions.
    #[test]
    fn death_at_any_write_leaves_a_prefix(
        steps in prop::collection::vec(step(), 1..8),
        deaths in prop::collection::vec(0.0f64..1.0, 6),
        survivors in prop::collection::vec(any::<bool>(), 64),
    ) {
        let (states, operations) = history(&steps);
        for death in deaths {
            let dies_at = 1 + (death * operations as f64) as usize;
            let storage = Storage::default();
            storage.disk().dies_at = Some(dies_at);
            let done = run_until_death(&storage, &steps);
            check_state(&storage.after_kill(), done, &states, &format!("killed at {dies_at}"));
            let mut survivors = survivors.iter().cycle();
            let disk = storage.after_power_failure(|| *survivors.next().expect("a cycle"));
            check_state(&disk, done, &states, &format!("power lost at {dies_at}"));
        }
    }
}

#[test]
fn death_at_every_write_of_a_snapshot_leaves_the_last_one() {
    let steps = [Step::Add(0, 2), Step::Event(0, 100), Step::Snapshot(0, 9000), Step::Snapshot(0, 20_000)];
    let (states, operations) = history(&steps);
    for dies_at in 1..=operations {
        let storage = Storage::default();
        storage.disk().dies_at = Some(dies_at);
        let done = run_until_death(&storage, &steps);
        for (disk, cause) in [
            (storage.after_kill(), "kill"),
            (storage.after_power_failure(|| false), "power lost, nothing unsynced written"),
        ] {
            check_state(&disk, done, &states, &format!("{cause} at {dies_at}"));
        }
        if done >= Some(3) {
            let store = open(&storage.after_kill(), small()).expect("a store");
            let current = store.current_snapshot("tenant 0", "a").expect("a store").expect("a snapshot");
            store.snapshot("tenant 0", "a", current.version).expect("an intact snapshot");
        }
    }
}

#[test]
fn full_disk_is_an_error_and_the_store_goes_on_when_there_is_room() {
    let storage = Storage::default();
    let store =
        open(&storage, StoreOptions { cache_bytes: 1 << 20, ..StoreOptions::default() }).expect("a store");
    store.add(&[trajectory("t", "first")]).expect("room");
    storage.disk().capacity = Some(storage.bytes().len() + 100_000);
    let mut stored = 1;
    let error = loop {
        match store.add(&[trajectory("t", &stored.to_string())]) {
            Ok(results) => assert!(results[0].is_ok()),
            Err(error) => break error,
        }
        stored += 1;
    };
    assert!(matches!(error, Error::StoreFull { .. }), "{error}");
    assert!(error.to_string().contains("no space left"), "{error}");
    let kept = store.trajectories("t", None, usize::MAX).expect("readable while full");
    assert_eq!(kept.len(), stored);
    storage.disk().capacity = None;
    store.add(&[trajectory("t", "last")]).expect("room")[0].as_ref().expect("stored");
    assert_eq!(store.tenants().expect("a store")[0].1.trajectories, stored as u64 + 1);
}
