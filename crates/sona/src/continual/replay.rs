//! Replay buffer: a bounded sample of former examples, per tenant and task.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::random::mix;

/// Bytes of an entry besides its example: keys and nodes of the maps.
const ENTRY_BYTES: usize = 128;

/// Bounds of a replay buffer.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ReplaySettings {
    /// Bytes of each tenant's examples. Its tasks have equal shares.
    pub tenant_bytes: usize,
    /// Number of tenants; together with `tenant_bytes` the bound of all memory.
    pub max_tenants: usize,
    /// Tasks of a tenant; a further one replaces the oldest.
    pub max_tasks: usize,
    /// Fraction of trajectories that are held out: never trained on, only measured.
    pub held_out: f64,
    /// Seed of the sample and of the split.
    pub seed: u64,
}

impl Default for ReplaySettings {
    fn default() -> Self {
        Self { tenant_bytes: 8 << 20, max_tenants: 16, max_tasks: 16, held_out: 0.2, seed: 0 }
    }
}

/// Part of the buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Split {
    /// Examples to train on.
    Train,
    /// Examples of the gate.
    HeldOut,
}

/// Example of a trajectory of a task.
#[derive(Debug, Clone)]
pub struct Replayed<E> {
    /// Task.
    pub task: u64,
    /// Identity of the trajectory.
    pub trajectory: u128,
    /// The example.
    pub example: E,
    bytes: usize,
}

impl<E> Replayed<E> {
    /// An example outside of a buffer.
    pub fn new(task: u64, trajectory: u128, example: E) -> Self {
        Self { task, trajectory, example, bytes: 0 }
    }

    /// Another example of the same task and trajectory.
    pub fn with<F>(&self, example: F) -> Replayed<F> {
        Replayed::new(self.task, self.trajectory, example)
    }
}

/// Outcome of [`ReplayBuffer::push`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pushed {
    /// The example is in the buffer, in this split. Others may have been evicted.
    Kept(Split),
    /// The sample is full and the draw was against this example.
    NotDrawn,
    /// The example alone exceeds the share of its task.
    TooLarge {
        /// Bytes of the share.
        share: usize,
    },
    /// The number of tenants is at its bound.
    TooManyTenants,
}

/// Uniform samples of the trajectories of each tenant, task and split, bounded in bytes.
///
/// The sample is a reservoir by priority: each trajectory has a random number from the hash of its
/// identity, and those with the smallest stay (bottom-k sampling: Cohen and Kaplan 2007). It does
/// not depend on the order of arrival, shrinks without bias when a new task takes its share, and
/// the same trajectories give the same sample. The split is a hash of the identity too: no example
/// moves between training and measurement.
#[derive(Debug)]
pub struct ReplayBuffer<E> {
    settings: ReplaySettings,
    tenants: BTreeMap<String, Tenant<E>>,
}

#[derive(Debug)]
struct Tenant<E> {
    /// By task, with the order in which they began.
    tasks: BTreeMap<u64, Task<E>>,
    begun: u64,
}

#[derive(Debug)]
struct Task<E> {
    order: u64,
    train: Sample<E>,
    held_out: Sample<E>,
}

#[derive(Debug)]
struct Sample<E> {
    /// By priority and trajectory.
    entries: BTreeMap<(u64, u128), Replayed<E>>,
    bytes: usize,
    /// Entries of this priority and above are not drawn: one such was evicted.
    limit: Option<(u64, u128)>,
}

impl<E> ReplayBuffer<E> {
    /// An empty buffer.
    ///
    /// # Errors
    /// [`Error::Setting`] for a bound of 0 or a held-out fraction outside 0 to 1.
    pub fn new(settings: ReplaySettings) -> Result<Self> {
        let ReplaySettings { tenant_bytes, max_tenants, max_tasks, held_out, .. } = settings;
        for (name, value) in
            [("tenant_bytes", tenant_bytes), ("max_tenants", max_tenants), ("max_tasks", max_tasks)]
        {
            if value == 0 {
                return Err(Error::Setting { name, value: "0".to_owned(), range: "at least 1" });
            }
        }
        if !(held_out > 0.0 && held_out < 1.0) {
            let value = held_out.to_string();
            return Err(Error::Setting { name: "held_out", value, range: "between 0 and 1" });
        }
        Ok(Self { settings, tenants: BTreeMap::new() })
    }

    /// Split of a trajectory: a function of its identity and the seed alone.
    pub fn split(&self, trajectory: u128) -> Split {
        // Another hash than that of the priority: the sample of each split is uniform.
        let hash = self.hash(trajectory, 1);
        match hash as f64 / (u64::MAX as f64) < self.settings.held_out {
            true => Split::HeldOut,
            false => Split::Train,
        }
    }

    /// Offers an example of `bytes` bytes. One of the same trajectory and task is replaced.
    pub fn push(&mut self, tenant: &str, task: u64, trajectory: u128, example: E, bytes: usize) -> Pushed {
        let (split, priority) = (self.split(trajectory), self.hash(trajectory, 0));
        let settings = self.settings;
        let bytes = bytes.saturating_add(ENTRY_BYTES);
        if !self.tenants.contains_key(tenant) && self.tenants.len() >= settings.max_tenants {
            return Pushed::TooManyTenants;
        }
        let new_tenant = || Tenant { tasks: BTreeMap::new(), begun: 0 };
        let tenant = self.tenants.entry(tenant.to_owned()).or_insert_with(new_tenant);
        tenant.begin(task, &settings);
        let share = share(&settings, tenant.tasks.len(), split);
        if bytes > share {
            return Pushed::TooLarge { share };
        }
        let Some(sample) = tenant.tasks.get_mut(&task).map(|task| task.sample_mut(split)) else {
            return Pushed::NotDrawn;
        };
        let key = (priority, trajectory);
        if sample.limit.is_some_and(|limit| key >= limit) {
            return Pushed::NotDrawn;
        }
        let entry = Replayed { task, trajectory, example, bytes };
        if let Some(former) = sample.entries.insert(key, entry) {
            sample.bytes -= former.bytes;
        }
        sample.bytes += bytes;
        sample.shrink(share);
        match sample.entries.contains_key(&key) {
            true => Pushed::Kept(split),
            false => Pushed::NotDrawn,
        }
    }

    /// Examples of a tenant, by task and in random order within each.
    pub fn examples(&self, tenant: &str, split: Split) -> impl Iterator<Item = &Replayed<E>> {
        let tasks = self.tenants.get(tenant).into_iter().flat_map(|tenant| tenant.tasks.values());
        tasks.flat_map(move |task| task.sample(split).entries.values())
    }

    /// Bytes of a tenant's examples, as its pushes stated them, with a constant for each entry.
    pub fn bytes(&self, tenant: &str) -> usize {
        let tasks = self.tenants.get(tenant).into_iter().flat_map(|tenant| tenant.tasks.values());
        tasks.map(|task| task.train.bytes + task.held_out.bytes).sum()
    }

    /// Tenants with examples, in order.
    pub fn tenants(&self) -> impl Iterator<Item = &str> {
        self.tenants.keys().map(String::as_str)
    }

    /// Removes a trajectory of a tenant; false if it was not there.
    pub fn forget_trajectory(&mut self, tenant: &str, trajectory: u128) -> bool {
        let key = (self.hash(trajectory, 0), trajectory);
        let Some(tenant) = self.tenants.get_mut(tenant) else { return false };
        let samples = tenant.tasks.values_mut().flat_map(|task| [&mut task.train, &mut task.held_out]);
        let mut found = false;
        for sample in samples {
            if let Some(entry) = sample.entries.remove(&key) {
                sample.bytes -= entry.bytes;
                found = true;
            }
        }
        found
    }

    /// Removes all examples of a tenant; false if there were none.
    pub fn forget_tenant(&mut self, tenant: &str) -> bool {
        self.tenants.remove(tenant).is_some()
    }

    fn hash(&self, trajectory: u128, purpose: u64) -> u64 {
        let seed = mix(self.settings.seed.wrapping_add(0x9e37_79b9_7f4a_7c15).wrapping_add(purpose));
        mix(mix(seed ^ trajectory as u64) ^ (trajectory >> 64) as u64)
    }
}

impl<E> Tenant<E> {
    /// Makes room for a task that begins.
    fn begin(&mut self, task: u64, settings: &ReplaySettings) {
        if self.tasks.contains_key(&task) {
            return;
        }
        if self.tasks.len() >= settings.max_tasks {
            let oldest = self.tasks.iter().min_by_key(|(_, task)| task.order).map(|(id, _)| *id);
            self.tasks.retain(|id, _| Some(*id) != oldest);
        }
        let order = self.begun;
        self.begun += 1;
        self.tasks.insert(task, Task { order, train: Sample::new(), held_out: Sample::new() });
        let n_tasks = self.tasks.len();
        for task in self.tasks.values_mut() {
            task.train.shrink(share(settings, n_tasks, Split::Train));
            task.held_out.shrink(share(settings, n_tasks, Split::HeldOut));
        }
    }
}

impl<E> Task<E> {
    fn sample(&self, split: Split) -> &Sample<E> {
        match split {
            Split::Train => &self.train,
            Split::HeldOut => &self.held_out,
        }
    }

    fn sample_mut(&mut self, split: Split) -> &mut Sample<E> {
        match split {
            Split::Train => &mut self.train,
            Split::HeldOut => &mut self.held_out,
        }
    }
}

impl<E> Sample<E> {
    fn new() -> Self {
        Self { entries: BTreeMap::new(), bytes: 0, limit: None }
    }

    /// Evicts entries of the highest priorities until `bytes` suffice.
    fn shrink(&mut self, bytes: usize) {
        while self.bytes > bytes {
            let Some((key, entry)) = self.entries.pop_last() else { return };
            self.bytes -= entry.bytes;
            self.limit = Some(key);
        }
    }
}

/// Bytes of a split of one of `n_tasks` tasks.
fn share(settings: &ReplaySettings, n_tasks: usize, split: Split) -> usize {
    let task = settings.tenant_bytes / n_tasks.max(1);
    let held_out = (task as f64 * settings.held_out) as usize;
    match split {
        Split::Train => task - held_out,
        Split::HeldOut => held_out,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn buffer(tenant_bytes: usize) -> ReplayBuffer<u32> {
        let settings = ReplaySettings { tenant_bytes, max_tenants: 2, max_tasks: 3, ..Default::default() };
        ReplayBuffer::new(settings).expect("settings")
    }

    proptest! {
        #[test]
        fn bytes_stay_within_the_bound(
            pushes in prop::collection::vec((0..5_u64, any::<u128>(), 0..2_000_usize), 0..200)
        ) {
            let mut buffer = buffer(10_000);
            for (task, trajectory, bytes) in pushes {
                buffer.push("t", task, trajectory, 0, bytes);
                let stored = |split| buffer.examples("t", split).map(|entry| entry.bytes).sum::<usize>();
                prop_assert_eq!(stored(Split::Train) + stored(Split::HeldOut), buffer.bytes("t"));
                prop_assert!(buffer.bytes("t") <= 10_000);
            }
        }

        #[test]
        fn the_sample_does_not_depend_on_the_order(
            ids in prop::collection::btree_set(any::<u128>(), 1..200), rotate in 0..200_usize
        ) {
            let ids: Vec<u128> = ids.into_iter().collect();
            let sample = |ids: &[u128]| {
                let mut buffer = buffer(6_000);
                for &id in ids {
                    buffer.push("t", 0, id, 0, 72);
                }
                let list = |split| buffer.examples("t", split).map(|e| e.trajectory).collect::<Vec<_>>();
                (list(Split::Train), list(Split::HeldOut))
            };
            let mut rotated = ids.clone();
            rotated.rotate_left(rotate % ids.len());
            prop_assert_eq!(sample(&ids), sample(&rotated));
        }
    }

    #[test]
    fn samples_are_uniform_and_tasks_have_equal_shares() {
        let mut buffer = buffer(300_000);
        for task in 0..3 {
            for id in 0..10_000_u32 {
                buffer.push("t", task, u128::from(id) + (u128::from(task) << 64), id, 72);
            }
        }
        for task in 0..3 {
            let of_task = |split| buffer.examples("t", split).filter(move |entry| entry.task == task);
            // 100,000 bytes of 200 each, 4 in 5 to train on.
            assert_eq!(of_task(Split::Train).count(), 400);
            assert_eq!(of_task(Split::HeldOut).count(), 100);
            let mean = of_task(Split::Train).map(|entry| f64::from(entry.example)).sum::<f64>() / 400.0;
            // Deviation of the mean of 400 uniform numbers: 144. Four of them.
            assert!((mean - 5_000.0).abs() < 578.0, "task {task}: {mean}");
        }
        assert_eq!(buffer.bytes("t"), 300_000);
    }

    #[test]
    fn splits_are_fixed_by_the_identity() {
        let mut buffer = buffer(1 << 20);
        let held_out = (0..10_000).filter(|&id| buffer.split(id) == Split::HeldOut).count();
        // Binomial, deviation 40.
        assert!((1_840..2_160).contains(&held_out), "{held_out}");
        for id in 0..100 {
            let split = buffer.split(id);
            assert_eq!(buffer.push("t", 0, id, 0, 8), Pushed::Kept(split));
            assert_eq!(buffer.push("t", 1, id, 0, 8), Pushed::Kept(split));
        }
    }

    #[test]
    fn pushes_that_are_refused_say_so() {
        let mut buffer = buffer(10_000);
        assert!(matches!(buffer.push("a", 0, 1, 0, 20_000), Pushed::TooLarge { .. }));
        assert!(matches!(buffer.push("b", 0, 1, 0, 8), Pushed::Kept(_)));
        assert_eq!(buffer.push("c", 0, 1, 0, 8), Pushed::TooManyTenants);
        assert!(buffer.forget_tenant("b") && !buffer.forget_tenant("b"));
        assert!(matches!(buffer.push("c", 0, 1, 0, 8), Pushed::Kept(_)));
    }

    #[test]
    fn forgotten_trajectories_are_gone_and_old_tasks_make_room() {
        let mut buffer = buffer(10_000);
        for task in 0..4 {
            buffer.push("t", task, 5, 0, 8);
        }
        let split = buffer.split(5);
        let tasks: Vec<u64> = buffer.examples("t", split).map(|entry| entry.task).collect();
        assert_eq!(tasks, [1, 2, 3]);
        assert!(buffer.forget_trajectory("t", 5) && !buffer.forget_trajectory("t", 5));
        assert_eq!(buffer.bytes("t"), 0);
        assert_eq!(buffer.examples("t", split).count(), 0);
    }

    #[test]
    fn bad_settings_are_errors() {
        for held_out in [0.0, 1.0, f64::NAN] {
            assert!(ReplayBuffer::<()>::new(ReplaySettings { held_out, ..Default::default() }).is_err());
        }
        assert!(ReplayBuffer::<()>::new(ReplaySettings { max_tasks: 0, ..Default::default() }).is_err());
    }
}
