//! Recording off the decode path: a bounded queue and the thread that stores what is in it.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, TrySendError, bounded, never, select, unbounded};

use crate::budget::{Charge, FixedBudget, MemoryBudget};
use crate::error::{Error, Result};
use crate::store::LearningStore;
use crate::trajectory::{Feedback, Trajectory, TrajectoryId};

/// Limits of a recorder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecorderOptions {
    /// Largest number of trajectories in the queue.
    pub queue_records: usize,
    /// Largest number of bytes in the queue and in the batch being written; also charged to the
    /// store's memory budget.
    pub queue_bytes: usize,
    /// Largest number of trajectories in a transaction.
    pub batch_records: usize,
    /// Longest time that a trajectory waits for others to share its transaction, and time between
    /// attempts after a failure.
    pub batch_time: Duration,
}

impl Default for RecorderOptions {
    fn default() -> Self {
        Self {
            queue_records: 1024,
            queue_bytes: 16 << 20,
            batch_records: 256,
            batch_time: Duration::from_millis(100),
        }
    }
}

/// Cause for which a trajectory was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The queue holds its largest number of trajectories.
    #[error("the queue of the recorder is full")]
    QueueFull,
    /// The queue holds its largest number of bytes.
    #[error("the queue of the recorder has no room for these bytes")]
    QueueBytes,
    /// The memory budget has no room.
    #[error("the memory budget has no room for the trajectory")]
    MemoryBudget,
    /// A field is not valid; see [`Trajectory::check`].
    #[error("the trajectory is not valid")]
    Invalid,
    /// The recorder is closed.
    #[error("the recorder is closed")]
    Closed,
}

/// Counters of a recorder since it was started.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecorderStatus {
    /// Trajectories in the queue.
    pub queued: u64,
    /// Bytes in the queue and in the batch being written.
    pub queued_bytes: u64,
    /// Trajectories taken.
    pub taken: u64,
    /// Trajectories stored.
    pub stored: u64,
    /// Trajectories of requests that the store held already.
    pub duplicates: u64,
    /// Trajectories that the store refused for another reason.
    pub refused: u64,
    /// Trajectories dropped for [`Refusal::QueueFull`].
    pub dropped_queue_full: u64,
    /// Trajectories dropped for [`Refusal::QueueBytes`].
    pub dropped_queue_bytes: u64,
    /// Trajectories dropped for [`Refusal::MemoryBudget`].
    pub dropped_memory_budget: u64,
    /// Trajectories dropped for [`Refusal::Invalid`].
    pub dropped_invalid: u64,
    /// Trajectories dropped for [`Refusal::Closed`].
    pub dropped_closed: u64,
    /// Transactions that failed; their trajectories are tried again.
    pub write_errors: u64,
    /// Error of the latest transaction, if it failed.
    pub last_error: Option<String>,
}

/// Recorder of trajectories: [`record`](Self::record) never blocks, one thread stores.
pub struct Recorder {
    queue: Sender<Item>,
    control: Sender<Control>,
    shared: Arc<Shared>,
    queue_budget: Arc<FixedBudget>,
    budgets: [Arc<dyn MemoryBudget>; 2],
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct Shared {
    is_closed: AtomicBool,
    taken: AtomicU64,
    stored: AtomicU64,
    duplicates: AtomicU64,
    refused: AtomicU64,
    dropped: [AtomicU64; 5],
    write_errors: AtomicU64,
    last_error: Mutex<Option<String>>,
}

struct Item {
    trajectory: Trajectory,
    charges: [Charge; 2],
}

enum Control {
    Flush(Sender<Result<()>>),
    Feedback { tenant: String, request: String, feedback: Feedback, reply: Sender<Result<TrajectoryId>> },
    Close(Sender<Result<()>>),
}

impl Recorder {
    /// Starts the thread that stores.
    ///
    /// # Errors
    /// [`Error::Setting`] for a limit of zero; [`Error::StoreIo`] if no thread can be started.
    pub fn start(store: LearningStore, options: RecorderOptions) -> Result<Self> {
        let limits = [
            ("queue_records", options.queue_records),
            ("queue_bytes", options.queue_bytes),
            ("batch_records", options.batch_records),
        ];
        if let Some((name, _)) = limits.iter().find(|(_, limit)| *limit == 0) {
            return Err(Error::Setting { name, value: "0".to_owned(), range: "at least 1" });
        }
        let (queue, items) = bounded(options.queue_records);
        let (control, controls) = unbounded();
        let shared = Arc::new(Shared::default());
        let queue_budget = Arc::new(FixedBudget::new(options.queue_bytes));
        let budgets: [Arc<dyn MemoryBudget>; 2] = [queue_budget.clone(), store.options().budget.clone()];
        let path = store.path().to_owned();
        let writer = Writer::new(store, options, items, controls, Arc::clone(&shared));
        let thread = std::thread::Builder::new().name("sona-recorder".to_owned()).spawn(move || writer.run());
        let fail = |source| Error::StoreIo { action: "start the thread of", path, source };
        let thread = Mutex::new(Some(thread.map_err(fail)?));
        Ok(Self { queue, control, shared, queue_budget, budgets, thread })
    }

    /// Puts a trajectory into the queue. Never waits; a refused one is dropped and counted.
    ///
    /// # Errors
    /// The cause of a drop.
    pub fn record(&self, trajectory: Trajectory) -> Result<(), Refusal> {
        let taken = self.try_record(trajectory);
        let counter =
            taken.map_or_else(|cause| &self.shared.dropped[cause as usize], |()| &self.shared.taken);
        counter.fetch_add(1, Relaxed);
        taken
    }

    fn try_record(&self, trajectory: Trajectory) -> Result<(), Refusal> {
        if self.shared.is_closed.load(Relaxed) {
            return Err(Refusal::Closed);
        }
        trajectory.check().map_err(|_| Refusal::Invalid)?;
        let bytes = trajectory.memory_bytes();
        let [queue, memory] = &self.budgets;
        let queue = Charge::new(queue, bytes).ok_or(Refusal::QueueBytes)?;
        let memory = Charge::new(memory, bytes).ok_or(Refusal::MemoryBudget)?;
        self.queue.try_send(Item { trajectory, charges: [queue, memory] }).map_err(|error| match error {
            TrySendError::Full(_) => Refusal::QueueFull,
            TrySendError::Disconnected(_) => Refusal::Closed,
        })
    }

    /// Attaches feedback to a request that was recorded, also while it is still in the queue. Waits
    /// until the feedback is durable.
    ///
    /// # Errors
    /// Errors of [`LearningStore::attach_feedback`], and [`Error::RecorderClosed`].
    pub fn feedback(&self, tenant: &str, request: &str, feedback: Feedback) -> Result<TrajectoryId> {
        let (tenant, request) = (tenant.to_owned(), request.to_owned());
        self.call(|reply| Control::Feedback { tenant, request, feedback, reply })
    }

    /// Waits until all that was recorded before is durable.
    ///
    /// # Errors
    /// [`Error::Unwritten`] after a failed attempt: the records stay in memory and are tried again.
    /// [`Error::RecorderClosed`].
    pub fn flush(&self) -> Result<()> {
        self.call(Control::Flush)
    }

    /// Refuses further records, stores those in the queue and ends the thread.
    ///
    /// # Errors
    /// [`Error::Unwritten`]: the last attempt failed, the records are lost.
    /// [`Error::RecorderClosed`] if it was closed before.
    pub fn close(&self) -> Result<()> {
        self.shared.is_closed.store(true, Relaxed);
        let closed = self.call(Control::Close);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            // A panic of the thread is reported as `RecorderClosed` by the call above.
            let _ = thread.join();
        }
        closed
    }

    fn call<T>(&self, control: impl FnOnce(Sender<Result<T>>) -> Control) -> Result<T> {
        let (reply, answer) = bounded(1);
        self.control.send(control(reply)).map_err(|_| Error::RecorderClosed)?;
        answer.recv().map_err(|_| Error::RecorderClosed)?
    }

    /// Counters.
    pub fn status(&self) -> RecorderStatus {
        let shared = &self.shared;
        let dropped = |cause: Refusal| shared.dropped[cause as usize].load(Relaxed);
        RecorderStatus {
            queued: self.queue.len() as u64,
            queued_bytes: self.queue_budget.used() as u64,
            taken: shared.taken.load(Relaxed),
            stored: shared.stored.load(Relaxed),
            duplicates: shared.duplicates.load(Relaxed),
            refused: shared.refused.load(Relaxed),
            dropped_queue_full: dropped(Refusal::QueueFull),
            dropped_queue_bytes: dropped(Refusal::QueueBytes),
            dropped_memory_budget: dropped(Refusal::MemoryBudget),
            dropped_invalid: dropped(Refusal::Invalid),
            dropped_closed: dropped(Refusal::Closed),
            write_errors: shared.write_errors.load(Relaxed),
            last_error: shared.last_error.lock().unwrap_or_else(PoisonError::into_inner).clone(),
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        // An error has nobody to be reported to; `close` reports it.
        let _ = self.close();
    }
}

/// State of the thread.
struct Writer {
    store: LearningStore,
    options: RecorderOptions,
    items: Receiver<Item>,
    controls: Receiver<Control>,
    shared: Arc<Shared>,
    batch: Vec<Trajectory>,
    charges: Vec<[Charge; 2]>,
    /// Time of the next attempt to store the batch.
    due: Option<Instant>,
}

impl Writer {
    fn new(
        store: LearningStore,
        options: RecorderOptions,
        items: Receiver<Item>,
        controls: Receiver<Control>,
        shared: Arc<Shared>,
    ) -> Self {
        let (batch, charges) = (Vec::new(), Vec::new());
        Self { store, options, items, controls, shared, batch, charges, due: None }
    }

    fn run(mut self) {
        let idle = Duration::from_secs(3600);
        let no_items = never();
        loop {
            let items = if self.is_full() { &no_items } else { &self.items };
            let wait = self.due.map_or(idle, |due| due.saturating_duration_since(Instant::now()));
            select! {
                recv(items) -> item => match item {
                    Ok(item) => self.push(item),
                    Err(_) => break,
                },
                recv(self.controls) -> control => match control {
                    Ok(Control::Close(reply)) => {
                        let mut drained = self.drain();
                        // A caller that found the recorder open may have been late.
                        while drained.is_ok() && !self.items.is_empty() {
                            drained = self.drain();
                        }
                        // The caller may have gone.
                        let _ = reply.send(drained);
                        return;
                    }
                    Ok(control) => self.handle(control),
                    Err(_) => break,
                },
                default(wait) => {}
            }
            if self.due.is_some_and(|due| due <= Instant::now()) {
                // A failure is in the status, and the batch is tried again.
                let _ = self.store_batch();
            }
        }
        let _ = self.drain();
    }

    fn is_full(&self) -> bool {
        self.batch.len() >= self.options.batch_records
    }

    fn push(&mut self, Item { trajectory, charges }: Item) {
        self.batch.push(trajectory);
        self.charges.push(charges);
        let now = Instant::now();
        let due = self.due.get_or_insert(now + self.options.batch_time);
        if self.batch.len() >= self.options.batch_records && self.shared.has_no_error() {
            *due = now;
        }
    }

    fn handle(&mut self, control: Control) {
        // Callers that have gone do not need their answers.
        match control {
            Control::Flush(reply) | Control::Close(reply) => {
                let _ = reply.send(self.drain());
            }
            Control::Feedback { tenant, request, feedback, reply } => {
                // The trajectory may be in the queue.
                let is_queued =
                    matches!(self.store.find(&tenant, &request), Err(Error::UnknownRequest { .. }));
                let drained = if is_queued { self.drain() } else { Ok(()) };
                let attached =
                    drained.and_then(|()| self.store.attach_feedback(&tenant, &request, &feedback));
                let _ = reply.send(attached);
            }
        }
    }

    /// Stores what is in the queue now.
    fn drain(&mut self) -> Result<()> {
        let mut left = self.items.len();
        loop {
            while left > 0 && !self.is_full() {
                let Ok(item) = self.items.try_recv() else { break };
                self.push(item);
                left -= 1;
            }
            if self.batch.is_empty() {
                return Ok(());
            }
            self.store_batch().map_err(|source| {
                let records = (self.batch.len() + self.items.len()) as u64;
                Error::Unwritten { records, source: Box::new(source) }
            })?;
        }
    }

    /// Stores the batch in one transaction; after a failure it stays for another attempt.
    fn store_batch(&mut self) -> Result<()> {
        let results = match self.store.add(&self.batch) {
            Ok(results) => results,
            Err(error) => {
                self.shared.write_errors.fetch_add(1, Relaxed);
                self.shared.set_error(Some(error.to_string()));
                self.due = Some(Instant::now() + self.options.batch_time);
                return Err(error);
            }
        };
        for result in results {
            let counter = match result {
                Ok(_) => &self.shared.stored,
                Err(Error::DuplicateRequest { .. }) => &self.shared.duplicates,
                Err(_) => &self.shared.refused,
            };
            counter.fetch_add(1, Relaxed);
        }
        self.shared.set_error(None);
        self.batch.clear();
        self.charges.clear();
        self.due = None;
        Ok(())
    }
}

impl Shared {
    fn set_error(&self, error: Option<String>) {
        *self.last_error.lock().unwrap_or_else(PoisonError::into_inner) = error;
    }

    fn has_no_error(&self) -> bool {
        self.last_error.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rating::Rating;
    use crate::store::StoreOptions;

    fn trajectory(request: &str, tokens: usize) -> Trajectory {
        Trajectory {
            request_id: request.to_owned(),
            tenant: "t".to_owned(),
            model_digest: "m".to_owned(),
            prompt_tokens: vec![1; tokens],
            ..Trajectory::default()
        }
    }

    /// Recorder whose thread stores on `flush` alone, and its store.
    fn recorder(
        queue_records: usize,
        queue_bytes: usize,
        memory: usize,
    ) -> (tempfile::TempDir, Recorder, LearningStore) {
        let folder = tempfile::tempdir().expect("a folder");
        let budget = Arc::new(FixedBudget::new(memory));
        let options = StoreOptions { cache_bytes: 1 << 20, budget, ..StoreOptions::default() };
        let store = LearningStore::open(folder.path().join("store"), options).expect("a store");
        let hour = Duration::from_secs(3600);
        let options = RecorderOptions { queue_records, queue_bytes, batch_records: 2, batch_time: hour };
        let recorder = Recorder::start(store.clone(), options).expect("a thread");
        (folder, recorder, store)
    }

    fn count(store: &LearningStore) -> u64 {
        store.tenants().expect("a store").iter().map(|(_, usage)| usage.trajectories).sum()
    }

    #[test]
    fn flushed_and_closed_records_are_stored() {
        let (_folder, recorder, store) = recorder(100, 1 << 20, 64 << 20);
        for n in 0..5 {
            recorder.record(trajectory(&n.to_string(), 10)).expect("room");
        }
        recorder.flush().expect("a store");
        assert_eq!(count(&store), 5);
        recorder.record(trajectory("4", 10)).expect("room");
        recorder.record(trajectory("5", 10)).expect("room");
        recorder.close().expect("a store");
        assert_eq!(recorder.record(trajectory("6", 10)), Err(Refusal::Closed));
        assert!(matches!(recorder.flush(), Err(Error::RecorderClosed)));
        assert!(matches!(recorder.close(), Err(Error::RecorderClosed)));
        let expected = RecorderStatus {
            taken: 7,
            stored: 6,
            duplicates: 1,
            dropped_closed: 1,
            ..RecorderStatus::default()
        };
        assert_eq!((count(&store), recorder.status()), (6, expected));
    }

    #[test]
    fn drops_are_counted_by_cause() {
        let bytes = trajectory("0", 1000).memory_bytes();
        let (_folder, small, _) = recorder(1000, bytes * 3 / 2, 64 << 20);
        assert_eq!(small.record(trajectory("0", 1000)), Ok(()));
        assert_eq!(small.record(trajectory("1", 1000)), Err(Refusal::QueueBytes));
        assert_eq!(small.record(Trajectory::default()), Err(Refusal::Invalid));
        small.flush().expect("a store");
        assert_eq!(small.record(trajectory("2", 1000)), Ok(()));
        let status = small.status();
        assert_eq!((status.taken, status.dropped_queue_bytes, status.dropped_invalid), (2, 1, 1));
        assert_eq!(status.queued_bytes, bytes as u64);

        let (_folder, poor, _) = recorder(1000, 1 << 20, (1 << 20) + bytes / 2);
        assert_eq!(poor.record(trajectory("0", 1000)), Err(Refusal::MemoryBudget));
        let status = poor.status();
        assert_eq!((status.dropped_memory_budget, status.queued_bytes), (1, 0));
    }

    #[test]
    fn callers_never_wait_for_a_store_that_fails() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("store");
        let options = || StoreOptions { cache_bytes: 1 << 20, ..StoreOptions::default() };
        drop(LearningStore::open(&path, options()).expect("a store"));
        // Every write to it is refused.
        let store =
            LearningStore::open(&path, StoreOptions { read_only: true, ..options() }).expect("a store");
        let batch_time = Duration::from_millis(1);
        let options =
            RecorderOptions { queue_records: 3, batch_records: 2, batch_time, ..RecorderOptions::default() };
        let recorder = Recorder::start(store, options).expect("a thread");
        let results: Vec<_> = (0..20).map(|n| recorder.record(trajectory(&n.to_string(), 10))).collect();
        let error = recorder.flush().expect_err("read-only");
        assert!(matches!(error, Error::Unwritten { .. }), "{error}");
        let dropped = results.iter().filter(|result| **result == Err(Refusal::QueueFull)).count() as u64;
        let status = recorder.status();
        assert_eq!((status.dropped_queue_full, status.taken, status.stored), (dropped, 20 - dropped, 0));
        assert!(dropped >= 15 && status.write_errors > 0, "{status:?}");
        assert!(status.last_error.expect("an error").contains("cannot write to"));
        let lost = recorder.close().expect_err("read-only");
        assert!(matches!(lost, Error::Unwritten { records, .. } if records == 20 - dropped), "{lost}");
    }

    #[test]
    fn feedback_reaches_trajectories_in_the_queue() {
        let (_folder, recorder, store) = recorder(100, 1 << 20, 64 << 20);
        recorder.record(trajectory("0", 10)).expect("room");
        let feedback = Feedback { rating: Some(Rating::new(1.0).expect("in range")), ..Feedback::default() };
        let id = recorder.feedback("t", "0", feedback.clone()).expect("a request");
        let stored = store.trajectory("t", id).expect("a store").expect("a trajectory");
        assert_eq!(stored.feedback, std::slice::from_ref(&feedback));
        let unknown = recorder.feedback("t", "1", feedback.clone()).expect_err("unknown");
        assert!(matches!(unknown, Error::UnknownRequest { .. }), "{unknown}");
        let foreign = recorder.feedback("u", "0", feedback).expect_err("foreign");
        assert!(matches!(foreign, Error::ForeignRequest { .. }), "{foreign}");
        let bad = recorder.feedback("t", "0", Feedback::default()).expect_err("empty");
        assert!(matches!(bad, Error::Record { .. }), "{bad}");
    }

    #[test]
    fn limits_of_zero_are_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let store =
            LearningStore::open(folder.path().join("store"), StoreOptions::default()).expect("a store");
        let options = RecorderOptions { batch_records: 0, ..RecorderOptions::default() };
        let refused = Recorder::start(store, options).err().expect("zero");
        assert!(matches!(refused, Error::Setting { name: "batch_records", .. }), "{refused}");
    }
}
