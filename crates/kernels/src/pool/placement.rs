//! Placement of workers on cores.
//!
//! The scheduler tends to wake a thread on the core of the waking thread. On a loaded machine it
//! stays there, and two threads of a pool share one core. A worker that wakes up on the core of the
//! calling thread therefore moves to another one.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Core affinity of the threads of a pool. Effective on Linux only.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Placement {
    /// Chosen by the operating system.
    System,
    /// Chosen by the operating system, except that a worker leaves the core of the calling thread.
    #[default]
    Apart,
    /// Worker `i` on core `cores[i]` only, modulo the number of cores.
    ///
    /// `cores[0]` is for the calling thread, whose own affinity is not changed.
    Cores(Vec<usize>),
}

/// Placement of one pool, applied by its workers.
pub(super) struct Places {
    placement: Placement,
    /// Cores available to this process when the pool was created.
    allowed: Cores,
    /// Core on which the calling thread started its last job.
    caller: AtomicUsize,
}

impl Places {
    /// Creates the placement of a pool of `threads` threads.
    pub(super) fn new(placement: Placement, threads: usize) -> Self {
        let allowed = Cores::allowed();
        // More threads than cores cannot be kept apart.
        let placement = match placement {
            Placement::Apart if allowed.count() < threads => Placement::System,
            placement => placement,
        };
        Self { placement, allowed, caller: AtomicUsize::new(usize::MAX) }
    }

    /// Records the core of the calling thread, before a job.
    pub(super) fn note_caller(&self) {
        if self.placement == Placement::Apart {
            self.caller.store(current_core().unwrap_or(usize::MAX), Ordering::Relaxed);
        }
    }

    /// Pins a starting worker to its core.
    pub(super) fn settle(&self, worker: usize) {
        if let Placement::Cores(cores) = &self.placement
            && let Some(&core) = cores.get(worker % cores.len().max(1))
        {
            Cores::only(core).apply();
        }
    }

    /// Moves the current worker off the core of the calling thread.
    pub(super) fn keep_apart(&self) {
        if self.placement == Placement::Apart {
            let caller = self.caller.load(Ordering::Relaxed);
            if current_core() == Some(caller) {
                self.allowed.without(caller).apply();
            }
        }
    }
}

/// Set of cores, as a bit mask.
#[derive(Clone, Copy)]
struct Cores([u64; MAX_CORES / 64]);

/// Cores beyond this index are left to the operating system.
const MAX_CORES: usize = 1024;

impl Cores {
    fn only(core: usize) -> Self {
        let mut cores = Self([0; MAX_CORES / 64]);
        if let Some(word) = cores.0.get_mut(core / 64) {
            *word |= 1 << (core % 64);
        }
        cores
    }

    fn without(mut self, core: usize) -> Self {
        if let Some(word) = self.0.get_mut(core / 64) {
            *word &= !(1 << (core % 64));
        }
        self
    }

    fn count(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }
}

#[cfg(target_os = "linux")]
mod system {
    //! Three functions of the C library, which the standard library links anyway: declarations
    //! instead of a dependency.

    use std::ffi::c_int;

    unsafe extern "C" {
        pub(super) safe fn sched_getcpu() -> c_int;
        pub(super) fn sched_getaffinity(thread: c_int, bytes: usize, cores: *mut u64) -> c_int;
        pub(super) fn sched_setaffinity(thread: c_int, bytes: usize, cores: *const u64) -> c_int;
    }
}

#[cfg(target_os = "linux")]
impl Cores {
    /// Cores available to the current thread; empty if the system call fails.
    fn allowed() -> Self {
        let mut cores = Self([0; MAX_CORES / 64]);
        // SAFETY: the pointer is to as many writable bytes as stated; 0 is the calling thread.
        let status = unsafe { system::sched_getaffinity(0, size_of_val(&cores.0), cores.0.as_mut_ptr()) };
        if status == 0 { cores } else { Self([0; MAX_CORES / 64]) }
    }

    /// Restricts the current thread to this set. No effect if the set is empty or the system call
    /// fails: placement affects speed only.
    fn apply(&self) {
        // SAFETY: the pointer is to as many readable bytes as stated; 0 is the calling thread.
        let _ = unsafe { system::sched_setaffinity(0, size_of_val(&self.0), self.0.as_ptr()) };
    }
}

/// Core of the current thread.
#[cfg(target_os = "linux")]
fn current_core() -> Option<usize> {
    usize::try_from(system::sched_getcpu()).ok()
}

#[cfg(not(target_os = "linux"))]
impl Cores {
    fn allowed() -> Self {
        Self([0; MAX_CORES / 64])
    }

    fn apply(&self) {}
}

#[cfg(not(target_os = "linux"))]
fn current_core() -> Option<usize> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_of_cores() {
        let both = Cores([0b11; MAX_CORES / 64]);
        assert_eq!(both.count(), 2 * MAX_CORES / 64);
        assert_eq!(both.without(64).count(), both.count() - 1);
        assert_eq!(both.without(MAX_CORES).count(), both.count());
        assert_eq!((Cores::only(65).0[1], Cores::only(65).count()), (2, 1));
        assert_eq!(Cores::only(MAX_CORES).count(), 0);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_thread_leaves_the_core_of_the_caller() {
        let allowed = Cores::allowed();
        assert!(allowed.count() > 0);
        std::thread::spawn(move || {
            let core = current_core().unwrap();
            Cores::only(core).apply();
            let places = Places { placement: Placement::Apart, allowed, caller: AtomicUsize::new(core) };
            places.keep_apart();
            let alone = allowed.count() == 1;
            assert_eq!(Cores::allowed().0, if alone { allowed.0 } else { allowed.without(core).0 });
            assert!(alone || current_core() != Some(core));
        })
        .join()
        .unwrap();
    }
}
