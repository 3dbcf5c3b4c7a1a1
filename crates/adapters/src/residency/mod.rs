//! Adapters in memory and on disk: hot, warm and cold.
//!
//! | file | holds |
//! |---|---|
//! | `tiers/` | the state machine: counts, limits, the next move |
//! | `version.rs` | [`AdapterVersion`]: a registered file and its settings |
//! | `worker.rs` | the thread that loads ahead and moves adapters between tiers |
//!
//! # Tiers
//! Hot adapters are F16 factors in pages of the pool, warm ones the same factors in I8; both serve
//! requests in place. Cold ones are compact files, closed while nobody reads them. Every change of
//! tier is a checked copy from the file: nothing is written, so nothing is lost when memory or the
//! file system is short.
//!
//! # Pins
//! An adapter is in use while anybody but the table holds its `Arc`. The table gives out clones
//! under its lock only, so a count of one seen there stays one until the lock is released.
//!
//! # Locks
//! The lock of the table is never held while pages are allocated or a file is read: allocating may
//! call [`PressureOwner::release`], which takes it. The lock of a version is held while its file is
//! read, so that two requests for it read once. One thread at a time settles; its lock is taken
//! before that of a version. The lock of a removed version's last factors is taken within that of
//! the table.

mod tiers;
mod version;
mod worker;

use std::collections::HashMap;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use ruvllm_kernels::low_rank::FactorFormat;
use ruvllm_memory::{
    Demand, Offer, OwnerId, PagePool, PressureOwner, PressurePolicy, Release, Request, Rung, Use,
};

use crate::adapter::Adapter;
use crate::compact::CompactFile;
use crate::error::{Error, Result};
use crate::place::BaseModel;

use tiers::{Id, Move, Tiers};
pub use tiers::{Limits, Precision, Tier};
pub use version::AdapterVersion;
use worker::{Load, Worker};

/// Settings of [`Residency`].
#[derive(Debug, Clone, PartialEq)]
pub struct ResidencyConfig {
    /// Limits of the tiers.
    pub limits: Limits,
    /// Time in which the weight of an access falls to a half.
    pub half_life: Duration,
    /// Pressure policy of loading: what yields to an adapter.
    pub pressure: PressurePolicy,
    /// Time to read a MiB of an adapter, in the unit of the pool's other owners
    /// ([`Offer::cost`]).
    pub cost: u64,
}

impl Default for ResidencyConfig {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            half_life: Duration::from_secs(60),
            pressure: PressurePolicy::default(),
            cost: 1,
        }
    }
}

/// An adapter for a request; it stays in memory until this is dropped.
#[derive(Debug, Clone)]
pub struct Acquired {
    /// The factors, in [`format`](Self::format).
    pub adapter: Arc<Adapter>,
    /// Tier in which it was found; [`Tier::Cold`] if it was loaded.
    pub found: Tier,
}

impl Acquired {
    /// Number format that serves.
    pub fn format(&self) -> FactorFormat {
        self.adapter.layout().format()
    }
}

/// Counters and sizes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ResidencyStatistics {
    /// Adapters in F16.
    pub hot_adapters: usize,
    /// Their bytes.
    pub hot_bytes: usize,
    /// Adapters in I8.
    pub warm_adapters: usize,
    /// Their bytes.
    pub warm_bytes: usize,
    /// Registered adapters that are in their files only.
    pub cold_adapters: usize,
    /// Requests that found their adapter hot.
    pub hot_hits: u64,
    /// Requests that found it warm.
    pub warm_hits: u64,
    /// Requests that loaded it.
    pub misses: u64,
    /// Adapters loaded ahead of their request.
    pub prefetches: u64,
    /// Moves from warm to hot.
    pub promotions: u64,
    /// Moves from hot to warm.
    pub demotions: u64,
    /// Adapters that left memory to keep the limits of the tiers.
    pub evictions: u64,
    /// Adapters that left memory because it was short.
    pub released: u64,
    /// Loads in the background that failed; the requests that need the adapter get the error.
    pub failures: u64,
}

/// The registered adapters of a model and their tiers, in the pages of one pool.
pub struct Residency {
    base: Arc<BaseModel>,
    pool: PagePool,
    owner: OwnerId,
    config: ResidencyConfig,
    started: Instant,
    table: Mutex<Table>,
    /// Held by the thread that moves adapters between tiers.
    settling: Mutex<()>,
    worker: OnceLock<Worker>,
    myself: Weak<Self>,
}

struct Table {
    tiers: Tiers,
    resident: HashMap<Id, Resident>,
    /// Warm versions that became due for the hot tier.
    promotions: Vec<Arc<AdapterVersion>>,
    statistics: ResidencyStatistics,
}

/// A version in memory.
struct Resident {
    adapter: Arc<Adapter>,
    version: Arc<AdapterVersion>,
    used: Use,
}

impl Resident {
    fn is_pinned(&self) -> bool {
        Arc::strong_count(&self.adapter) > 1
    }
}

impl Table {
    fn is_pinned(&self) -> impl Fn(Id) -> bool + '_ {
        |id| self.resident.get(&id).is_some_and(Resident::is_pinned)
    }

    /// Takes a version out of memory; the caller drops the factors without the lock.
    fn evict(&mut self, id: Id) -> Option<Resident> {
        self.tiers.place(id, Tier::Cold);
        self.resident.remove(&id)
    }
}

impl Residency {
    /// A table of adapters of `base`, an owner of pages of `pool` under the pressure ladder.
    pub fn new(base: Arc<BaseModel>, pool: PagePool, config: ResidencyConfig) -> Arc<Self> {
        let table = Table {
            tiers: Tiers::new(config.limits),
            resident: HashMap::new(),
            promotions: Vec::new(),
            statistics: ResidencyStatistics::default(),
        };
        Arc::new_cyclic(|myself: &Weak<Self>| Self {
            base,
            owner: pool.register(Weak::<Self>::clone(myself)),
            pool,
            config,
            started: Instant::now(),
            table: Mutex::new(table),
            settling: Mutex::new(()),
            worker: OnceLock::new(),
            myself: Weak::clone(myself),
        })
    }

    /// Shape of the model.
    pub fn base(&self) -> &Arc<BaseModel> {
        &self.base
    }

    /// The pool.
    pub fn pool(&self) -> &PagePool {
        &self.pool
    }

    /// Counters and sizes.
    pub fn statistics(&self) -> ResidencyStatistics {
        let table = self.table.lock();
        let (hot_adapters, hot_bytes) = table.tiers.size(Tier::Hot);
        let (warm_adapters, warm_bytes) = table.tiers.size(Tier::Warm);
        let cold_adapters = table.tiers.len() - hot_adapters - warm_adapters;
        ResidencyStatistics {
            hot_adapters,
            hot_bytes,
            warm_adapters,
            warm_bytes,
            cold_adapters,
            ..table.statistics
        }
    }

    /// Tier of a version.
    pub fn tier(&self, version: &AdapterVersion) -> Tier {
        if version.is_removed() { Tier::Cold } else { self.table.lock().tiers.tier(version.id) }
    }

    /// Adds a version, cold.
    pub(crate) fn insert(&self, file: &CompactFile, precision: Precision) -> Result<Id> {
        file.check_base(&self.base)?;
        let bytes = |format| file.bytes(format).unwrap_or(usize::MAX);
        let (hot, warm) = (bytes(FactorFormat::F16), bytes(FactorFormat::I8));
        Ok(self.table.lock().tiers.insert(precision, hot, warm))
    }

    /// Removes a version; requests that have it keep their factors.
    pub(crate) fn remove(&self, version: &AdapterVersion) {
        let mut table = self.table.lock();
        if version.set_removed() {
            let evicted = table.evict(version.id);
            table.tiers.remove(version.id);
            if let Some(resident) = &evicted {
                version.set_last(&resident.adapter);
            }
            drop(table);
            drop(evicted);
        }
    }

    /// Gives the factors of a version, loading them if it is cold, and counts the access.
    ///
    /// # Errors
    /// Errors of [`CompactFile::load`]: a file that is gone, damaged or changed, and memory.
    pub fn acquire(&self, version: &Arc<AdapterVersion>) -> Result<Acquired> {
        self.count(version);
        match self.try_acquire(version, None) {
            Some(acquired) => Ok(acquired),
            None => self.acquire_now(version, None),
        }
    }

    /// Counts the access of a request that waits for its turn, and gives the tier of now. The
    /// request then takes the factors by [`try_acquire`](Self::try_acquire) or
    /// [`acquire_later`](Self::acquire_later), which count none.
    pub fn count(&self, version: &AdapterVersion) -> Tier {
        let now = self.now();
        let mut table = self.table.lock();
        if version.is_removed() {
            return Tier::Cold;
        }
        table.tiers.touch(version.id, now);
        table.tiers.tier(version.id)
    }

    /// The factors of a version if they are in memory, without waiting; in `format`, if there is
    /// one, for a request that began with it.
    pub fn try_acquire(
        &self,
        version: &Arc<AdapterVersion>,
        format: Option<FactorFormat>,
    ) -> Option<Acquired> {
        self.find(version, format)
    }

    /// Gives `done` the factors, or the reason for none, from the background thread; loads them if
    /// the version is cold, or resident in another format than that asked for. Such loads go before
    /// prefetches and moves between tiers. Without a thread this one loads.
    ///
    /// `done` must be quick, and must not call this table.
    pub fn acquire_later(
        &self,
        version: &Arc<AdapterVersion>,
        format: Option<FactorFormat>,
        done: impl FnOnce(Result<Acquired>) + Send + 'static,
    ) {
        let load = Load { version: Arc::clone(version), format, done: Box::new(done) };
        match self.worker() {
            Some(worker) => worker.load(load),
            None => self.finish(load),
        }
    }

    /// Loads a version in the background, for a request that waits for its turn. Without a thread,
    /// or with a full queue, nothing is loaded ahead.
    pub fn prefetch(&self, version: &Arc<AdapterVersion>) {
        let is_cold = !version.is_removed() && self.tier(version) == Tier::Cold;
        if is_cold && let Some(worker) = self.worker() {
            worker.prefetch(version);
        }
    }

    /// Moves adapters that are due between the tiers, and returns the number of moves. The
    /// background thread does this after each load. A move that another thread has begun is
    /// finished when this returns.
    pub fn settle(&self) -> usize {
        let mut moves = 0;
        while let Some(has_moved) = self.settle_one() {
            moves += usize::from(has_moved);
        }
        moves
    }

    /// Does one of the moves that are due; false if it could not be done, `None` if there is none.
    fn settle_one(&self) -> Option<bool> {
        let _settling = self.settling.lock();
        let promoted = self.table.lock().promotions.pop();
        if let Some(version) = promoted {
            return Some(self.promote(&version));
        }
        let mut table = self.table.lock();
        let Move { id, to } = table.tiers.next_move(table.is_pinned())?;
        let Some(evicted) = table.evict(id) else { return Some(true) };
        let is_demoted = to == Tier::Warm;
        if !is_demoted {
            table.statistics.evictions += 1;
        }
        drop(table);
        let Resident { version, adapter, .. } = evicted;
        // First the larger copy goes, so that its pages hold the smaller one.
        drop(adapter);
        if is_demoted {
            self.demote(&version);
        }
        Some(true)
    }

    /// Loads a version, unless it is there by now.
    fn acquire_now(&self, version: &Arc<AdapterVersion>, format: Option<FactorFormat>) -> Result<Acquired> {
        let _loading = version.loading.lock();
        // Another request, or the worker, may have loaded it meanwhile.
        if let Some(acquired) = self.find(version, format) {
            return Ok(acquired);
        }
        self.table.lock().statistics.misses += 1;
        let adapter = match format {
            None => self.load(version)?,
            Some(format) => self.load_as(version, format)?,
        };
        Ok(Acquired { adapter, found: Tier::Cold })
    }

    /// Loads for a request that waits.
    fn finish(&self, load: Load) {
        let Load { version, format, done } = load;
        done(self.acquire_now(&version, format));
    }

    /// The factors of a resident version; in `format`, if there is one.
    fn find(&self, version: &Arc<AdapterVersion>, format: Option<FactorFormat>) -> Option<Acquired> {
        let now = self.now();
        let fits = |adapter: &Adapter| format.is_none_or(|format| format == adapter.layout().format());
        let mut guard = self.table.lock();
        let table = &mut *guard;
        if version.is_removed() {
            let adapter = version.last().filter(|adapter| fits(adapter))?;
            let found = tier_of(adapter.layout().format());
            return Some(Acquired { adapter, found });
        }
        let resident = table.resident.get_mut(&version.id).filter(|resident| fits(&resident.adapter))?;
        resident.used = self.pool.now(Rung::Adapter);
        let adapter = Arc::clone(&resident.adapter);
        let found = table.tiers.tier(version.id);
        match found {
            Tier::Hot => table.statistics.hot_hits += 1,
            _ => table.statistics.warm_hits += 1,
        }
        let is_due = found == Tier::Warm && table.tiers.is_promoted(version.id, now, table.is_pinned());
        if is_due && !table.promotions.iter().any(|due| due.id == version.id) {
            table.promotions.push(Arc::clone(version));
            drop(guard);
            self.wake();
        }
        Some(Acquired { adapter, found })
    }

    /// Loads a cold version into the tier that its count allows. The caller holds its lock.
    fn load(&self, version: &Arc<AdapterVersion>) -> Result<Arc<Adapter>> {
        let tier = {
            let table = self.table.lock();
            match version.precision {
                // A removed version has no tier; a request that began with it is served anyway.
                _ if version.is_removed() => version.precision.of_removed(),
                _ => table.tiers.target(version.id, table.is_pinned()),
            }
        };
        let (adapter, tier) = match self.read(version, tier) {
            // Half of the memory may be there.
            Err(Error::Memory { .. }) if tier == Tier::Hot && version.precision == Precision::Tiered => {
                (self.read(version, Tier::Warm)?, Tier::Warm)
            }
            read => (read?, tier),
        };
        self.publish(version, &adapter, tier);
        self.wake();
        Ok(adapter)
    }

    /// Loads a version in the format that a request began with. Where the version is resident in
    /// the other one, the copy is that request's alone.
    fn load_as(&self, version: &Arc<AdapterVersion>, format: FactorFormat) -> Result<Arc<Adapter>> {
        let tier = tier_of(format);
        let adapter = self.read(version, tier)?;
        if version.is_removed() || self.tier(version) == Tier::Cold {
            self.publish(version, &adapter, tier);
            self.wake();
        }
        Ok(adapter)
    }

    fn read(&self, version: &AdapterVersion, tier: Tier) -> Result<Arc<Adapter>> {
        let format = if tier == Tier::Hot { FactorFormat::F16 } else { FactorFormat::I8 };
        let request = Request::default().tenant(version.tenant.clone()).pressure(self.config.pressure);
        let AdapterVersion { path, digest, .. } = version;
        CompactFile::load_from(path, digest, &self.base, format, &self.pool, &request).map(Arc::new)
    }

    /// Makes factors the resident ones of a version, and offers them to the ladder.
    fn publish(&self, version: &Arc<AdapterVersion>, adapter: &Arc<Adapter>, tier: Tier) {
        let mut table = self.table.lock();
        if version.is_removed() {
            version.set_last(adapter);
            return;
        }
        let used = self.pool.now(Rung::Adapter);
        let resident = Resident { adapter: Arc::clone(adapter), version: Arc::clone(version), used };
        let replaced = table.resident.insert(version.id, resident);
        table.tiers.place(version.id, tier);
        let offer = Offer { tenant: &version.tenant, rung: Rung::Adapter, cost: self.config.cost, used };
        // Cannot fail: the tenant was charged for pages of this pool.
        let _ = self.pool.offer(self.owner, u64::from(version.id.0), offer);
        drop(table);
        drop(replaced);
    }

    /// Loads a version ahead of its request.
    fn load_ahead(&self, version: &Arc<AdapterVersion>) {
        let _loading = version.loading.lock();
        if version.is_removed() || self.tier(version) != Tier::Cold {
            return;
        }
        let is_loaded = self.load(version).is_ok();
        let statistics = &mut self.table.lock().statistics;
        if is_loaded {
            statistics.prefetches += 1;
        } else {
            statistics.failures += 1;
        }
    }

    /// Reads a warm version into the hot tier; false if it is not due any more, or cannot be read.
    fn promote(&self, version: &Arc<AdapterVersion>) -> bool {
        let _loading = version.loading.lock();
        let is_due = {
            let table = self.table.lock();
            !version.is_removed() && table.tiers.is_promoted(version.id, self.now(), table.is_pinned())
        };
        is_due && self.replace(version, Tier::Hot, |statistics| &mut statistics.promotions)
    }

    /// Reads a version that has left the hot tier into the warm one.
    fn demote(&self, version: &Arc<AdapterVersion>) {
        let _loading = version.loading.lock();
        if !version.is_removed() && self.tier(version) == Tier::Cold {
            self.replace(version, Tier::Warm, |statistics| &mut statistics.demotions);
        }
    }

    fn replace(
        &self,
        version: &Arc<AdapterVersion>,
        tier: Tier,
        counter: impl FnOnce(&mut ResidencyStatistics) -> &mut u64,
    ) -> bool {
        let read = self.read(version, tier);
        if let Ok(adapter) = &read {
            self.publish(version, adapter, tier);
        }
        let statistics = &mut self.table.lock().statistics;
        *(if read.is_ok() { counter(statistics) } else { &mut statistics.failures }) += 1;
        read.is_ok()
    }

    /// Has the worker settle, if there is anything to do.
    fn wake(&self) {
        let is_due = {
            let table = self.table.lock();
            !table.promotions.is_empty() || table.tiers.next_move(table.is_pinned()).is_some()
        };
        if is_due && let Some(worker) = self.worker() {
            worker.settle();
        }
    }

    /// The background thread, which the first use starts; `None` if the system has none.
    fn worker(&self) -> Option<&Worker> {
        if self.worker.get().is_none() {
            let worker = Worker::start(Weak::clone(&self.myself))?;
            return Some(self.worker.get_or_init(|| worker));
        }
        self.worker.get()
    }

    /// Half-lives since the start.
    fn now(&self) -> f64 {
        self.started.elapsed().as_secs_f64() / self.config.half_life.as_secs_f64().max(1e-9)
    }
}

/// Tier whose adapters have this format.
fn tier_of(format: FactorFormat) -> Tier {
    if format == FactorFormat::F16 { Tier::Hot } else { Tier::Warm }
}

impl PressureOwner for Residency {
    /// Evicts an idle adapter. It leaves memory at once, also from the hot tier: its file is there,
    /// and whoever asks is short of memory now.
    fn release(&self, unit: u64, demand: Demand) -> Release {
        let Ok(id) = u32::try_from(unit).map(Id) else { return Release::Gone };
        let mut table = self.table.lock();
        match table.resident.get(&id) {
            None => return Release::Gone,
            Some(resident) if resident.is_pinned() => return Release::Pinned,
            Some(resident) if resident.used.turn > demand.last_use => return Release::Used(resident.used),
            Some(_) => {}
        }
        let evicted = table.evict(id);
        table.statistics.released += 1;
        drop(table);
        drop(evicted);
        Release::Released { has_rest: false }
    }
}

impl std::fmt::Debug for Residency {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Residency")
            .field("config", &self.config)
            .field("statistics", &self.statistics())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
