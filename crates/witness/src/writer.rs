//! The writer: callers put entries in a queue, a thread writes them.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::chain::{Chain, Clock, Settings};
use crate::entry::Entry;
use crate::error::{Error, Result, io_error};
use crate::folder::{self, OpenFile};
use crate::key::PrivateKey;
use crate::line::{MAX_FRAME_BYTES, MAX_LINE_BYTES};
use crate::queue::{Item, Limits, OnFull, Queue, Refused, Status};
use crate::time::Timestamp;

/// Behaviour of [`Writer::record`] when the queue is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WhenFull {
    /// Waits for room: no request ends without its entry.
    #[default]
    Block,
    /// Drops the entry and counts it; the log has a line with the number.
    Drop,
}

/// Settings of a [`Writer`].
pub struct Options {
    /// Key that signs checkpoints; without one there are none.
    pub key: Option<PrivateKey>,
    /// Behaviour when the queue is full.
    pub when_full: WhenFull,
    /// Entries in the queue.
    pub queue_entries: usize,
    /// Bytes in the queue.
    pub queue_bytes: usize,
    /// Entries of a batch.
    pub batch_entries: usize,
    /// Time after which a smaller batch is written, and after which a failed one is tried again.
    pub batch_time: Duration,
    /// True to wait for the disk after each batch (fsync).
    pub sync: bool,
    /// Bytes of a file after which another begins.
    pub max_file_bytes: u64,
    /// Lines after which a checkpoint follows.
    pub checkpoint_lines: u64,
    /// Time after which a checkpoint follows a line.
    pub checkpoint_after: Duration,
    /// Called by the writer's thread when a queue that somebody found full has room again.
    pub on_room: Option<Box<dyn Fn() + Send>>,
    /// Called by the writer's thread with the error of the first attempt to write that fails, and
    /// with `None` when one succeeds after it.
    pub on_fault: Option<OnFault>,
}

/// Receiver of the errors of a [`Writer`]; see [`Options::on_fault`].
pub type OnFault = Box<dyn Fn(Option<&io::Error>) + Send>;

impl Default for Options {
    fn default() -> Self {
        Self {
            key: None,
            when_full: WhenFull::default(),
            queue_entries: 10_000,
            queue_bytes: 64 << 20,
            batch_entries: 100,
            batch_time: Duration::from_secs(1),
            sync: false,
            max_file_bytes: 64 << 20,
            checkpoint_lines: 1000,
            checkpoint_after: Duration::from_secs(60),
            on_room: None,
            on_fault: None,
        }
    }
}

/// Reason for which an entry is not in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The queue is full; try again later. Only of [`Writer::try_record`] with [`WhenFull::Block`].
    #[error("the queue of the witness log is full")]
    Full,
    /// The queue was full, and the entry was dropped and counted.
    #[error("the queue of the witness log is full; the entry was dropped")]
    Dropped,
    /// The writer is closed.
    #[error("the witness log is closed")]
    Closed,
    /// The entry is too long even without texts and parameters.
    #[error("the entry has {bytes} bytes, and a line at most {MAX_LINE_BYTES}")]
    TooLong {
        /// Bytes of its line.
        bytes: usize,
    },
}

/// A log that is open for writing, by one writer at a time.
///
/// Entries go through a bounded queue to a thread, which writes them in batches. A batch that fails
/// (disk full) leaves nothing half-written and is tried again; meanwhile the queue fills, and
/// [`WhenFull`] applies. Dropping the writer closes it.
pub struct Writer {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    queue: Queue,
    clock: Clock,
    when_full: WhenFull,
    batch_time: Duration,
}

/// Closes a queue when it is dropped.
struct CloseQueue<'a>(&'a Queue);

impl Drop for CloseQueue<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Writer {
    /// Opens the log in `folder`, or begins one. The folder is created; a torn last line of a
    /// process that was killed is moved to a file of its own, which the log records.
    ///
    /// # Errors
    /// [`Error::InUse`]; [`Error::CutTail`] and [`Error::Damaged`] for a log to which nothing can
    /// be appended without hiding the damage; a file that cannot be written.
    pub fn open(folder: impl AsRef<Path>, options: Options) -> Result<Self> {
        Self::open_with(folder.as_ref(), options, Box::new(folder::open_file), Box::new(Timestamp::now))
    }

    pub(crate) fn open_with(
        folder: &Path,
        options: Options,
        open: OpenFile,
        now: Box<dyn Fn() -> Timestamp + Send + Sync>,
    ) -> Result<Self> {
        let limits = Limits {
            entries: options.queue_entries.max(1),
            bytes: options.queue_bytes,
            batch_entries: options.batch_entries.max(1),
            batch_bytes: 1 << 20,
            batch_time: options.batch_time,
        };
        let settings = Settings {
            key: options.key,
            max_file_bytes: options.max_file_bytes,
            sync: options.sync,
            checkpoint_lines: options.checkpoint_lines,
            checkpoint_after: options.checkpoint_after,
        };
        let clock = Clock::new(now);
        let chain = Chain::open(folder, settings, open, &clock)?;
        let (queue, when_full, batch_time) = (Queue::new(limits), options.when_full, options.batch_time);
        let shared = Arc::new(Shared { queue, clock, when_full, batch_time });
        shared.queue.succeeded(chain.last_seq());
        let of_thread = Arc::clone(&shared);
        let calls = Calls { on_room: options.on_room, on_fault: options.on_fault };
        let thread = thread::Builder::new()
            .name("witness".to_owned())
            .spawn(move || {
                // Nobody waits for a thread that has ended.
                let _close = CloseQueue(&of_thread.queue);
                of_thread.write_all(chain, &calls);
            })
            .map_err(io_error("start the thread of", folder))?;
        Ok(Self { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Records an entry. With [`WhenFull::Block`] waits while the queue is full.
    ///
    /// # Errors
    /// The entry is not in the log: any reason but [`Refusal::Full`].
    pub fn record(&self, entry: &Entry) -> Result<(), Refusal> {
        self.shared.record(entry, OnFull::Wait)
    }

    /// Records an entry without waiting, for asynchronous callers: after [`Refusal::Full`] they
    /// wait for [`Options::on_room`] and try again. They listen for it before they try, because
    /// the call may come before this function returns.
    ///
    /// # Errors
    /// The entry is not in the log.
    pub fn try_record(&self, entry: &Entry) -> Result<(), Refusal> {
        self.shared.record(entry, OnFull::Refuse)
    }

    /// True if the queue has room for a short entry. If not, [`Options::on_room`] will be called.
    pub fn has_room(&self) -> bool {
        self.shared.queue.has_room(0)
    }

    /// Waits until all entries so far are in the log.
    ///
    /// # Errors
    /// [`Error::Unwritten`] if an attempt to write fails; the entries stay in memory, and the
    /// writer goes on trying.
    pub fn flush(&self) -> Result<()> {
        self.shared.queue.flush().map_err(|(entries, source)| Error::Unwritten { entries, source })
    }

    /// Counters, for metrics.
    pub fn status(&self) -> Status {
        self.shared.queue.status()
    }

    /// Writes all entries and a checkpoint, and ends the thread. Further entries are refused.
    ///
    /// # Errors
    /// [`Error::Unwritten`] if a last attempt to write failed.
    pub fn close(&self) -> Result<()> {
        self.shared.queue.close();
        if let Some(thread) = self.thread.lock().take() {
            // Entries that a panic of `on_room` left unwritten are counted below.
            let _ = thread.join();
        }
        self.shared.queue.unwritten().map_err(|(entries, source)| Error::Unwritten { entries, source })
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // Whoever wants to know calls `close`.
        let _ = self.close();
    }
}

/// Functions that the thread calls.
struct Calls {
    on_room: Option<Box<dyn Fn() + Send>>,
    on_fault: Option<OnFault>,
}

impl Calls {
    fn fault(&self, error: Option<&io::Error>) {
        if let Some(on_fault) = &self.on_fault {
            on_fault(error);
        }
    }
}

impl Shared {
    /// Records an entry. `on_full` is for [`WhenFull::Block`].
    fn record(&self, entry: &Entry, on_full: OnFull) -> Result<(), Refusal> {
        const MOST: usize = MAX_LINE_BYTES - MAX_FRAME_BYTES;
        // Serialized by the caller, so that the queue knows its bytes.
        let mut body = self.clock.body("request", entry);
        if body.len() > MOST {
            body = self.clock.body("request", &entry.without_texts());
        }
        if body.len() > MOST {
            return Err(Refusal::TooLong { bytes: body.len() + MAX_FRAME_BYTES });
        }
        let drops = self.when_full == WhenFull::Drop;
        let on_full = if drops { OnFull::Drop(self.clock.now()) } else { on_full };
        self.queue.push(body, on_full).map_err(|refused| match refused {
            Refused::Closed => Refusal::Closed,
            Refused::Full if drops => Refusal::Dropped,
            Refused::Full => Refusal::Full,
        })
    }

    /// The thread: writes batches until the queue is closed and empty.
    fn write_all(&self, mut chain: Chain, calls: &Calls) {
        let mut retry_checkpoint = None;
        loop {
            let batch = self.queue.take(retry_checkpoint.or_else(|| chain.checkpoint_due()));
            if batch.has_made_room
                && let Some(on_room) = &calls.on_room
            {
                on_room();
            }
            if !batch.items.is_empty() && !self.write(&batch.items, &mut chain, calls) {
                return;
            }
            let is_end = batch.is_closed && batch.items.is_empty();
            if is_end || chain.checkpoint_due().is_some_and(|due| due <= Instant::now()) {
                retry_checkpoint = self.checkpoint(&mut chain, calls);
            }
            if is_end {
                return;
            }
        }
    }

    /// Writes a batch, however often it takes. False if the writer was closed before that.
    fn write(&self, items: &[Item], chain: &mut Chain, calls: &Calls) -> bool {
        let body = |item: &Item| match item {
            Item::Body(body) => body.clone(),
            Item::Dropped(dropped) => self.clock.body("dropped", dropped),
        };
        let bodies: Vec<Vec<u8>> = items.iter().map(body).collect();
        let mut is_last_attempt = false;
        while let Err(error) = chain.append(&bodies, &self.clock) {
            self.failed(&error, calls);
            if is_last_attempt {
                return false;
            }
            is_last_attempt = self.queue.wait_to_retry();
        }
        let entries = items.iter().filter(|item| matches!(item, Item::Body(_))).count();
        if self.queue.written(items.len() as u64, entries as u64, chain.last_seq()) {
            calls.fault(None);
        }
        true
    }

    fn failed(&self, error: &io::Error, calls: &Calls) {
        if self.queue.failed(error) {
            calls.fault(Some(error));
        }
    }

    /// Writes a checkpoint. Returns the time for another attempt if it fails.
    fn checkpoint(&self, chain: &mut Chain, calls: &Calls) -> Option<Instant> {
        match chain.checkpoint(&self.clock) {
            Ok(()) => {
                if self.queue.succeeded(chain.last_seq()) {
                    calls.fault(None);
                }
                None
            }
            Err(error) => {
                self.failed(&error, calls);
                Some(Instant::now() + self.batch_time)
            }
        }
    }
}
