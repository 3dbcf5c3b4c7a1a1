//! Adapters of requests that start: factors that are in memory at once, others from the residency's
//! thread, while the steps of running requests go on.
//!
//! A request whose factors are not all there keeps its place and is suspended. It holds what it has
//! got, unless memory is short: then it holds nothing until another request has left some, so that
//! requests never wait for each other.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use ruvllm_adapters::{Acquired, Residency};
use ruvllm_memory::Error as MemoryError;
use ruvllm_scheduler::RequestId;

use super::StepLoop;
use crate::error::{Error, Result};
use crate::step::executor::Executor;

/// Factors for a request, or the reason for none.
#[derive(Debug)]
pub(crate) struct Loaded {
    id: RequestId,
    /// Attempt of the request that asked for them.
    attempt: Weak<()>,
    /// Index in the adapters of the request.
    index: usize,
    result: Result<Acquired, ruvllm_adapters::Error>,
}

/// Way to the registered adapters of an engine.
#[derive(Clone)]
pub(crate) struct AdapterLoader {
    pub(crate) residency: Arc<Residency>,
    /// Gives what was loaded to the thread of the loop, which passes it to
    /// [`StepLoop::loaded`].
    pub(crate) send: Arc<dyn Fn(Loaded) + Send + Sync>,
}

/// Requests that have a place and lack factors, the longest first.
#[derive(Debug, Default)]
pub(super) struct Suspended {
    list: Vec<Lacking>,
    /// Memory may have become free since the last attempts.
    freed: bool,
}

#[derive(Debug)]
struct Lacking {
    id: RequestId,
    /// Begin of the wait.
    since: Instant,
    /// `None` while factors are loaded; else the reason that it waits for memory.
    short: Option<Error>,
    /// True if no other request held memory in the last attempt.
    is_alone: bool,
}

impl Suspended {
    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    /// Notes that a request has ended or yielded its memory.
    pub(super) fn freed(&mut self) {
        self.freed = true;
    }

    /// Removes a request; false if it was not suspended.
    pub(super) fn remove(&mut self, id: RequestId) -> bool {
        let before = self.list.len();
        self.list.retain(|lacking| lacking.id != id);
        self.list.len() < before
    }

    /// The first request whose factors are being loaded.
    pub(super) fn loading(&self) -> Option<RequestId> {
        self.list.iter().find(|lacking| lacking.short.is_none()).map(|lacking| lacking.id)
    }

    /// True if a request has waited so long for memory of the pool that no other one may start.
    /// Quotas are the matter of their tenant.
    pub(super) fn is_overdue(&self, patience: Duration) -> bool {
        let mut list = self.list.iter();
        list.any(|lacking| {
            let tenant = lacking.short.as_ref().and_then(short_tenant);
            tenant == Some("") && lacking.since.elapsed() >= patience
        })
    }
}

impl<'c, X: Executor> StepLoop<'c, X> {
    /// Suspends a request that was admitted if it lacks factors; false if it has all.
    pub(super) fn suspend(&mut self, id: RequestId) -> bool {
        if self.acquire(id) {
            return false;
        }
        self.scheduler.suspended(id);
        let (since, short) = (Instant::now(), None);
        self.suspended.list.push(Lacking { id, since, short, is_alone: false });
        true
    }

    /// Takes the factors that a request lacks, as far as they are in memory, and asks for the
    /// others. True if it lacks none.
    fn acquire(&mut self, id: RequestId) -> bool {
        let Some(request) = self.requests.get_mut(&id) else { return true };
        let Some(loader) = &self.loader else { return request.take_adapters() };
        let missing = request.adapters.missing();
        if missing.is_empty() {
            return request.take_adapters();
        }
        let attempt = request.adapters.begin_attempt();
        for missing in missing {
            let version = &missing.version;
            if let Some(acquired) = loader.residency.try_acquire(version, missing.format) {
                request.adapters.set(missing.index, acquired);
                continue;
            }
            let (index, send, attempt) = (missing.index, Arc::clone(&loader.send), attempt.clone());
            loader.residency.acquire_later(version, missing.format, move |result| {
                // Factors that nobody waits for any more are given back before the next load.
                if attempt.strong_count() > 0 {
                    send(Loaded { id, attempt, index, result });
                }
            });
        }
        request.take_adapters()
    }

    /// Takes factors that a request has asked for.
    pub(crate) fn loaded(&mut self, loaded: Loaded) {
        let Loaded { id, attempt, index, result } = loaded;
        self.is_waiting = false;
        let request = self.requests.get_mut(&id).filter(|request| request.adapters.is_attempt(&attempt));
        let Some(request) = request else { return };
        match result.map_err(|source| Error::Adapter { source: source.into() }) {
            Ok(acquired) => {
                request.adapters.set(index, acquired);
                if request.take_adapters() {
                    self.wake(id);
                }
            }
            Err(error) if short_tenant(&error).is_some() => self.stall(id, error),
            Err(error) => self.fail(id, error),
        }
    }

    /// Suspends a request that was admitted and has its factors, but no place for them on the
    /// device.
    pub(super) fn suspend_short(&mut self, id: RequestId, error: Error) {
        self.scheduler.suspended(id);
        self.suspended.list.push(Lacking { id, since: Instant::now(), short: None, is_alone: false });
        self.stall(id, error);
    }

    /// Starts a suspended request that has all its adapters.
    fn wake(&mut self, id: RequestId) {
        if !self.suspended.list.iter().any(|lacking| lacking.id == id) {
            return;
        }
        match self.start(id) {
            Ok(cached) => {
                self.suspended.remove(id);
                self.scheduler.started(id, cached);
                self.scheduler.resumed(id);
            }
            Err(error) if short_tenant(&error).is_some() => self.stall(id, error),
            Err(error) => self.fail(id, error),
        }
    }

    /// Makes a suspended request wait for memory; it holds none meanwhile.
    pub(super) fn stall(&mut self, id: RequestId, error: Error) {
        if let Some(request) = self.requests.get_mut(&id) {
            request.release_adapters();
        }
        if let Some(lacking) = self.suspended.list.iter_mut().find(|lacking| lacking.id == id) {
            lacking.short = Some(error);
        }
    }

    /// Tries again to get the adapters for which memory was short, once there may be some. The
    /// first request fails if it was alone and memory was short nevertheless.
    pub(super) fn retry_short(&mut self) {
        let is_short = |lacking: &&mut Lacking| lacking.short.is_some();
        if !self.suspended.list.iter_mut().any(|lacking| is_short(&lacking)) {
            self.suspended.freed = false;
            return;
        }
        let mut again = Vec::new();
        if std::mem::take(&mut self.suspended.freed) {
            for lacking in self.suspended.list.iter_mut().filter(is_short) {
                (lacking.short, lacking.is_alone) = (None, false);
                again.push(lacking.id);
            }
        } else if self.scheduler.running() == self.suspended.len() && self.suspended.loading().is_none() {
            if self.yield_idle() {
                self.suspended.freed();
                return;
            }
            let Some(first) = self.suspended.list.first_mut() else { return };
            let id = first.id;
            match first.short.take() {
                Some(error) if first.is_alone => return self.fail(id, error),
                _ => first.is_alone = true,
            }
            again.push(id);
        }
        for id in again {
            if self.acquire(id) {
                self.wake(id);
            }
        }
    }
}

/// Tenant for whose memory an adapter waits, empty for the whole pool or device; `None` if waiting
/// would not help.
pub(super) fn short_tenant(error: &Error) -> Option<&str> {
    if matches!(error, Error::AdapterBackend(refusal) if refusal.is_temporary()) {
        return Some("");
    }
    let Error::Adapter { source: ruvllm_models::Error::Adapter(source) } = error else { return None };
    let ruvllm_adapters::Error::Memory { source, .. } = source else { return None };
    match source {
        MemoryError::QuotaExceeded { wanted_pages, quota_pages, .. } if wanted_pages > quota_pages => None,
        source => source.short_tenant(),
    }
}
