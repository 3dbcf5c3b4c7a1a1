//! Share of a CPU that the background thread takes.

use std::time::{Duration, Instant};

use super::clock::CpuClock;
use super::control::Control;

/// Elapsed time that idling saves up at most: a burst after a long rest has the share of it.
const BURST: Duration = Duration::from_millis(50);

/// Pace of the background thread: keeps its CPU time within a share of the elapsed time.
///
/// A task calls [`rest`](Self::rest) between pieces of work of some milliseconds.
#[derive(Debug)]
pub struct Pace<'c> {
    control: &'c Control,
    clock: CpuClock,
    share: f64,
    /// Start of the thread, and its CPU time then.
    start: Instant,
    cpu_start: Duration,
    paused: Duration,
    /// Time after `start` until which the CPU time so far pays for the share.
    paid: Duration,
    cpu_seen: Duration,
}

impl<'c> Pace<'c> {
    /// Pace of the current thread.
    pub(super) fn new(control: &'c Control, share: f64) -> Self {
        let clock = CpuClock::new();
        let cpu_start = clock.now();
        Self {
            control,
            clock,
            share,
            start: Instant::now(),
            cpu_start,
            paused: Duration::ZERO,
            paid: Duration::ZERO,
            cpu_seen: cpu_start,
        }
    }

    /// Sleeps as long as the CPU time so far exceeds the share, and while the loop is paused; false
    /// if the loop is to stop, and the task is to return soon.
    #[must_use]
    pub fn rest(&mut self) -> bool {
        let cpu = self.clock.now();
        let used = cpu.saturating_sub(self.cpu_seen);
        self.cpu_seen = cpu;
        let now = self.start.elapsed();
        let since = self.paid.max(now.saturating_sub(BURST));
        self.paid = since + used.div_f64(self.share);
        let sleep = self.paid.saturating_sub(now);
        self.report();
        if !sleep.is_zero() && !self.control.wait(sleep, |_| true) {
            return false;
        }
        match self.control.wait_while_paused() {
            Some(paused) => {
                self.paused += paused;
                true
            }
            None => false,
        }
    }

    /// CPU time of the thread so far.
    pub(super) fn cpu_time(&self) -> Duration {
        self.clock.now().saturating_sub(self.cpu_start)
    }

    /// Writes the times into the status.
    pub(super) fn report(&self) {
        let mut state = self.control.lock();
        state.status.cpu_time = self.cpu_time();
        state.status.active_time = self.start.elapsed().saturating_sub(self.paused);
    }
}
