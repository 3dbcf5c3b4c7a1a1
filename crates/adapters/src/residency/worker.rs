//! Background thread: loads adapters ahead of their requests, and moves them between tiers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Weak};
use std::thread;

use super::{AdapterVersion, Residency};

/// Longest queue. Beyond it, requests load their adapters themselves.
const QUEUE: usize = 1024;

enum Work {
    Prefetch(Arc<AdapterVersion>),
    Settle,
}

/// Handle of the thread, which ends when this is dropped.
#[derive(Debug)]
pub(super) struct Worker {
    queue: SyncSender<Work>,
    /// A [`Work::Settle`] is queued.
    is_due: Arc<AtomicBool>,
}

impl Worker {
    pub(super) fn start(residency: Weak<Residency>) -> Option<Self> {
        let (queue, work) = sync_channel(QUEUE);
        let is_due = Arc::new(AtomicBool::new(false));
        let due = Arc::clone(&is_due);
        let thread = thread::Builder::new().name("ruvllm-adapters".to_owned());
        thread.spawn(move || run(&residency, &work, &due)).ok()?;
        Some(Self { queue, is_due })
    }

    pub(super) fn prefetch(&self, version: &Arc<AdapterVersion>) {
        let _ = self.queue.try_send(Work::Prefetch(Arc::clone(version)));
    }

    pub(super) fn settle(&self) {
        if !self.is_due.swap(true, Ordering::AcqRel) && self.queue.try_send(Work::Settle).is_err() {
            self.is_due.store(false, Ordering::Release);
        }
    }
}

fn run(residency: &Weak<Residency>, work: &Receiver<Work>, is_due: &AtomicBool) {
    while let Ok(work) = work.recv() {
        // Held for one piece of work only, so that the table ends with its last other owner.
        let Some(residency) = residency.upgrade() else { return };
        match work {
            Work::Prefetch(version) => residency.load_ahead(&version),
            Work::Settle => {
                is_due.store(false, Ordering::Release);
                residency.settle();
            }
        }
    }
}
