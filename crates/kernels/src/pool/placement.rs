//! Placement of the workers on cores.
//!
//! The system's scheduler tends to wake a thread on the core of the thread that woke it. On a
//! machine whose other cores are busy it stays there, and two threads of a pool share one core. A
//! worker that wakes up on the core of the calling thread therefore moves to another one.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Cores for the threads of a pool. Effective on Linux; elsewhere the system alone decides.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Placement {
    /// The choice of the system.
    System,
    /// The choice of the system, except that a worker leaves the core of the calling thread.
    #[default]
    Apart,
    /// Worker `i` on core `cores[i]` alone, counted round if there are fewer cores; the first is
    /// left to the calling thread, whose own placement is not touched.
    Cores(Vec<usize>),
}

/// The rule of one pool, carried out by its workers.
pub(super) struct Places {
    placement: Placement,
    /// Cores that this process may use, when the pool was made.
    allowed: Cores,
    /// The core on which the calling thread started its last job.
    caller: AtomicUsize,
}

impl Places {
    /// For a pool of `threads` threads.
    pub(super) fn new(placement: Placement, threads: usize) -> Self {
        let allowed = Cores::allowed();
        // With more threads than cores they cannot be kept apart.
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

    /// Confines a starting worker to its core.
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

/// A set of cores, one bit each.
#[derive(Clone, Copy)]
struct Cores([u64; MAX_CORES / 64]);

/// Cores beyond these are left to the system.
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
    //! Three functions of the C library that the standard library links anyway: their declarations
    //! cost less than a dependency.

    use std::ffi::c_int;

    unsafe extern "C" {
        pub(super) safe fn sched_getcpu() -> c_int;
        pub(super) fn sched_getaffinity(thread: c_int, bytes: usize, cores: *mut u64) -> c_int;
        pub(super) fn sched_setaffinity(thread: c_int, bytes: usize, cores: *const u64) -> c_int;
    }
}

#[cfg(target_os = "linux")]
impl Cores {
    /// The cores that the current thread may use; none if the system does not tell.
    fn allowed() -> Self {
        let mut cores = Self([0; MAX_CORES / 64]);
        // SAFETY: the pointer is to as many writable bytes as are named; 0 is the calling thread.
        let status = unsafe { system::sched_getaffinity(0, size_of_val(&cores.0), cores.0.as_mut_ptr()) };
        if status == 0 { cores } else { Self([0; MAX_CORES / 64]) }
    }

    /// Confines the current thread to this set. Without effect if that is empty or the system
    /// refuses: where a thread runs is a matter of speed alone.
    fn apply(&self) {
        // SAFETY: the pointer is to as many readable bytes as are named; 0 is the calling thread.
        let _ = unsafe { system::sched_setaffinity(0, size_of_val(&self.0), self.0.as_ptr()) };
    }
}

/// The core that the current thread runs on.
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
