//! Manager of one kernel pack: upgrade while calls run, health check, rollback (ADR-0098).
//!
//! A [`Manager`] has an active pack, for a grace period also the previous one. [`Manager::upgrade`]
//! compiles a pack, checks its kernels with golden vectors and swaps it in; where that fails, the
//! active pack stays. Each thread that calls kernels has a [`PackReader`], which takes no lock but
//! after a swap. Calls finish on the pack that they began on.
//!
//! The manager has no thread of its own: [`Manager::tick`], which a server calls every second or
//! so, ends grace periods and retries rollbacks of the store. A quarantine needs no tick: the
//! thread whose call led to it swaps the previous pack in.

mod health;
mod loaded;
mod options;
mod state;
mod status;
mod totals;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard};

pub use health::{Checked, Repeat, Unhealthy};
pub use loaded::{LoadedKernel, LoadedPack};
pub use options::{Clock, ManagerOptions, Origin};
pub use status::{KernelStatus, ManagerCounts, PackStatus, Reason, Rollback, Status};

use self::state::{State, Unused};
use self::totals::Totals;
use crate::current::{Current, Reader};
use crate::error::{Error, Result};
use crate::sandbox::{Fault, Sandbox};
use crate::{Pack, Policy, Release};

/// Manager of the versions of one pack. Clones are handles of the same manager.
#[derive(Clone)]
pub struct Manager {
    inner: Arc<Inner>,
}

struct Inner {
    name: String,
    sandbox: Arc<Sandbox>,
    options: ManagerOptions,
    origin: Option<Origin>,
    current: Arc<Current<Active>>,
    /// Held by the one thread that loads packs or changes the store, for as long as that takes.
    changes: Mutex<()>,
    /// Held for moments, also by threads whose call led to a quarantine.
    state: Mutex<State>,
    packs_in_memory: Arc<AtomicUsize>,
    totals: Totals,
}

/// Active pack; `None` before the first one, and after an unload.
type Active = Option<Arc<LoadedPack>>;

/// One thread's view of the active pack.
///
/// It keeps the pack of its last [`get`](Self::get) in memory, so a thread that pauses for long
/// drops its reader.
pub struct PackReader(Reader<Active>);

impl PackReader {
    /// The active pack; `None` before the first one is loaded and after an unload. Costs one atomic
    /// load, and a lock only after a swap.
    ///
    /// Calls use the pack of one `get`. A later one may give another pack, for which requests are
    /// bound again ([`LoadedPack::number`]).
    #[inline]
    pub fn get(&mut self) -> Option<&Arc<LoadedPack>> {
        self.0.get().as_ref()
    }
}

impl fmt::Debug for PackReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PackReader").finish_non_exhaustive()
    }
}

impl Manager {
    /// A manager of the pack with a name, without an active pack.
    pub fn new(sandbox: Arc<Sandbox>, name: impl Into<String>, options: ManagerOptions) -> Self {
        Self::make(sandbox, name.into(), options, None)
    }

    /// A manager that loads its pack from a store, and rolls the store back with itself.
    pub fn with_origin(
        sandbox: Arc<Sandbox>,
        name: impl Into<String>,
        options: ManagerOptions,
        origin: Origin,
    ) -> Self {
        Self::make(sandbox, name.into(), options, Some(origin))
    }

    fn make(sandbox: Arc<Sandbox>, name: String, options: ManagerOptions, origin: Option<Origin>) -> Self {
        let inner = Inner {
            name,
            sandbox,
            options,
            origin,
            current: Arc::new(Current::new(None)),
            changes: Mutex::new(()),
            state: Mutex::new(State::default()),
            packs_in_memory: Arc::default(),
            totals: Totals::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Name of the pack.
    pub fn name(&self) -> &str {
        &self.inner.name
    }

    /// View of the active pack, for one thread.
    pub fn reader(&self) -> PackReader {
        PackReader(Reader::new(&self.inner.current))
    }

    /// Loads a pack and makes it the active one: compiles all kernels, checks those that an engine
    /// can call, swaps. The former pack becomes the previous one, for the grace period. Waits for
    /// other changes.
    ///
    /// # Errors
    /// [`Error::OtherPack`]; the errors of [`Sandbox::load_all`]; [`Error::Unhealthy`] with kernel
    /// and fault. The active pack stays.
    pub fn upgrade(&self, pack: &Pack) -> Result<()> {
        let _change = self.inner.changes.lock();
        self.inner.expire();
        self.inner.load(pack, false)
    }

    /// Loads the current version of the store if another one is active; false if it is active, or
    /// was unloaded.
    ///
    /// A version that fails as in [`upgrade`](Self::upgrade) is rolled back in the store, unless
    /// the previous version there failed as well. Without an active pack, the version that the
    /// store went back to is then loaded, and the error is still that of the faulty one.
    ///
    /// # Errors
    /// As [`upgrade`](Self::upgrade); [`Error::NoOrigin`]; the errors of
    /// [`Store::open`](crate::Store::open) and of the trusted keys; those of an earlier rollback of
    /// the store that fails again.
    pub fn refresh(&self) -> Result<bool> {
        let _change = self.inner.changes.lock();
        self.inner.expire();
        self.inner.refresh()
    }

    /// Goes back to the previous pack, in the store too if the active one is from it. Within the
    /// grace period nothing is compiled, and a second rollback undoes the first; later, the store's
    /// previous version is loaded. Returns the pack that is active then.
    ///
    /// # Errors
    /// [`Error::NoPrevious`]; after the grace period, also those of [`refresh`](Self::refresh).
    pub fn rollback(&self) -> Result<Release> {
        let _change = self.inner.changes.lock();
        self.inner.expire();
        self.inner.rollback()
    }

    /// Takes the active pack out of use, without a successor, and the previous one with it: native
    /// code computes. The store keeps its version, and [`refresh`](Self::refresh) loads another one
    /// alone; [`upgrade`](Self::upgrade) loads any. Waits for other changes. Returns the pack that
    /// was active, `None` if there was none.
    pub fn unload(&self) -> Option<Release> {
        let _change = self.inner.changes.lock();
        let mut state = self.inner.state.lock();
        let (pack, unused) = state.unload(Reason::Requested)?;
        state.counts.requested += 1;
        self.inner.publish(state, unused);
        Some(pack.release().clone())
    }

    /// Ends the grace period of the previous pack if it is over, and retries a rollback of the
    /// store that failed. Waits for nothing: while another thread loads a pack, the store is left
    /// alone.
    pub fn tick(&self) {
        self.inner.expire();
        if let Some(_change) = self.inner.changes.try_lock() {
            // The status has the error.
            let _ = self.inner.settle();
        }
    }

    /// State, for servers that show it. Ends the grace period of the previous pack if it is over.
    pub fn status(&self) -> Status {
        let Inner { name, options, state, packs_in_memory, totals, .. } = &*self.inner;
        self.inner.expire();
        let totals = totals.read();
        state.lock().status(name, options.clock.now(), packs_in_memory.load(Ordering::Relaxed), totals)
    }
}

impl fmt::Debug for Manager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { name, options, .. } = &*self.inner;
        f.debug_struct("Manager").field("name", name).field("options", options).finish_non_exhaustive()
    }
}

impl Inner {
    /// Compiles, checks and swaps.
    fn load(self: &Arc<Self>, pack: &Pack, is_from_store: bool) -> Result<()> {
        if pack.manifest().name != self.name {
            let (expected, found) = (self.name.clone(), pack.manifest().name.clone());
            return Err(Error::OtherPack { expected, found });
        }
        let Self { sandbox, options, packs_in_memory, .. } = &**self;
        let loaded = LoadedPack::new(sandbox, pack, options, packs_in_memory, is_from_store);
        let loaded = loaded.inspect_err(|error| {
            self.state.lock().refuse(pack.release(), error.to_string(), is_of_pack(error));
        })?;
        self.watch(&loaded);
        self.totals.add(&loaded);
        let mut state = self.state.lock();
        let (now, next) = (options.clock.now(), Arc::new(loaded));
        let unused = state.swap(next, now, options.grace, options.probation);
        self.publish(state, unused);
        Ok(())
    }

    /// Has the pack's kernels tell of their quarantine.
    fn watch(self: &Arc<Self>, pack: &LoadedPack) {
        for loaded in pack.kernels() {
            let (inner, number) = (Arc::downgrade(self), pack.number());
            loaded.kernel.on_quarantine(move |kernel, traps| {
                if let Some(inner) = inner.upgrade() {
                    inner.quarantined(number, kernel, traps);
                }
            });
        }
    }

    /// Goes back from a pack one of whose kernels was quarantined, to native code if there is no
    /// previous one. Called in the thread of the
    /// call, which does not wait for the store: the next tick rolls it back.
    fn quarantined(&self, number: u64, kernel: &str, traps: u32) {
        let reason = Reason::Quarantined { kernel: kernel.to_owned(), traps };
        let mut state = self.state.lock();
        if let Some(unused) = state.quarantine(number, self.options.clock.now(), reason) {
            self.publish(state, unused);
        }
    }

    fn expire(&self) {
        let unused = self.state.lock().expire(self.options.clock.now());
        drop(unused);
    }

    /// Publishes the active pack of the state, so that publications have the order of its changes,
    /// and frees what is no longer used after the lock is released.
    fn publish(&self, state: MutexGuard<'_, State>, unused: Unused) {
        let former = self.current.publish(state.active.clone());
        drop(state);
        drop((former, unused));
    }

    fn refresh(self: &Arc<Self>) -> Result<bool> {
        let origin = self.origin()?;
        self.settle()?;
        let pack = self.open(origin)?;
        let release = pack.release();
        let (active, unloaded) = {
            let state = self.state.lock();
            (state.release(), state.unloaded.clone())
        };
        if [&active, &unloaded].contains(&&Some(release.clone())) {
            return Ok(false);
        }
        let Err(error) = self.load(&pack, true) else { return Ok(true) };
        if is_of_pack(&error) {
            self.state.lock().unsettled = Some(release.clone());
            let is_settled = self.settle().is_ok();
            if active.is_none() && is_settled {
                self.load_other(origin, &release);
            }
        }
        Err(error)
    }

    /// Loads the store's version if it is another one now. A failure is in the status.
    fn load_other(self: &Arc<Self>, origin: &Origin, refused: &Release) {
        if let Ok(pack) = self.open(origin)
            && pack.release() != *refused
        {
            let _ = self.load(&pack, true);
        }
    }

    fn rollback(self: &Arc<Self>) -> Result<Release> {
        let none = || Error::NoPrevious { name: self.name.clone() };
        let mut state = self.state.lock();
        if state.exchange(self.options.clock.now(), self.options.grace).is_some() {
            let release = state.release();
            self.publish(state, Unused::new());
            // The pack is active; the status has an error of the store, and the next tick retries.
            let _ = self.settle();
            return release.ok_or_else(none);
        }
        let active = state.active.clone();
        drop(state);
        let (Some(active), Some(origin)) = (active.filter(|pack| pack.is_from_store), &self.origin) else {
            return Err(none());
        };
        if !self.roll_store_back(origin, active.release())? {
            return Err(none());
        }
        let pack = self.open(origin)?;
        let loaded = self.load(&pack, true);
        if loaded.is_err() {
            // The active pack stays, so it stays the one that a restart loads.
            self.state.lock().unsettled = Some(pack.release());
            let _ = self.settle();
        }
        loaded?;
        self.state.lock().requested(active.release().clone());
        Ok(pack.release())
    }

    /// Rolls the store back from a version that is no longer used, if that is still to be done.
    ///
    /// # Errors
    /// The errors of the store and the trusted keys. The next call tries again.
    fn settle(&self) -> Result<()> {
        let unsettled = self.state.lock().unsettled.clone();
        let (Some(release), Some(origin)) = (unsettled, &self.origin) else { return Ok(()) };
        let settled = self.roll_store_back(origin, &release);
        let mut state = self.state.lock();
        match settled {
            Ok(_) => {
                // A quarantine may have added another one since.
                state.unsettled.take_if(|other| *other == release);
                state.store_fault = None;
                Ok(())
            }
            Err(error) => {
                state.store_fault = Some(error.to_string());
                Err(error)
            }
        }
    }

    /// Rolls the store back from a version; false if there is nothing to go back from or to.
    fn roll_store_back(&self, origin: &Origin, from: &Release) -> Result<bool> {
        let keys = origin.keys()?;
        let policy = Policy { keys: &keys, host: &origin.host, now: None };
        let rolled_back = origin.store.rollback_if(&self.name, policy, |installed| {
            let previous = installed.previous.as_ref();
            // Two faulty versions would take turns.
            let is_good = previous.is_some_and(|previous| !self.state.lock().is_faulty(&previous.release));
            installed.current.release == *from && is_good
        });
        match rolled_back {
            Ok(installed) => Ok(installed.is_some()),
            Err(Error::NoPrevious { .. } | Error::NotInstalled { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn open(&self, origin: &Origin) -> Result<Pack> {
        let keys = origin.keys()?;
        origin.store.open(&self.name, Policy { keys: &keys, host: &origin.host, now: None })
    }

    fn origin(&self) -> Result<&Origin> {
        self.origin.as_ref().ok_or_else(|| Error::NoOrigin { name: self.name.clone() })
    }
}

/// True for errors that the pack has on every machine like this one; others are of the host, such
/// as a lack of memory.
fn is_of_pack(error: &Error) -> bool {
    match error {
        Error::Kernel { fault, .. } => !matches!(**fault, Fault::NoInstance { .. }),
        Error::Unhealthy { .. }
        | Error::NoPlatform { .. }
        | Error::EngineTooOld { .. }
        | Error::MissingFeature { .. } => true,
        _ => false,
    }
}
