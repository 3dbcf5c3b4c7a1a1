//! CPU time of the current thread.

use std::time::{Duration, Instant};

/// Clock of the CPU time of the thread that reads it; of elapsed time where the system has none,
/// which overestimates.
#[derive(Debug)]
pub(super) struct CpuClock {
    #[cfg_attr(
        any(target_os = "linux", target_os = "android", target_vendor = "apple"),
        expect(dead_code, reason = "for other systems")
    )]
    start: Instant,
}

impl CpuClock {
    pub(super) fn new() -> Self {
        Self { start: Instant::now() }
    }

    /// Time so far; only differences on one thread have a meaning.
    #[cfg(any(target_os = "linux", target_os = "android", target_vendor = "apple"))]
    pub(super) fn now(&self) -> Duration {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
    }

    /// Time so far; only differences on one thread have a meaning.
    #[cfg(not(any(target_os = "linux", target_os = "android", target_vendor = "apple")))]
    pub(super) fn now(&self) -> Duration {
        self.start.elapsed()
    }
}
