//! Requests to a backend that are computed together: admission by memory, and a thread for requests
//! from anywhere.

use std::collections::VecDeque;
use std::fmt;
use std::num::NonZero;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::thread::JoinHandle;
use std::time::Instant;

use ruvllm_kernels::ThreadPool;
use ruvllm_scheduler::{Config, Refusal};

use super::InferenceBackend;
use super::requests::{Requests, job, prepare, prepare_choices};
use crate::cancel::CancelToken;
use crate::error::{Error, Result};
use crate::request::GenerateRequest;
use crate::step::{Job, Prepared, RequestHandle, StepCounters, StepRecord, StepStatistics};

/// Maximum number of threads that sample: a few rows of logits take less time than it takes to wake
/// many threads.
const MOST_THREADS: usize = 8;

/// Threads for sampling.
///
/// # Errors
/// The system has no thread to give.
pub(super) fn sampling_pool() -> Result<ThreadPool> {
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    ThreadPool::new(cores.min(MOST_THREADS)).map_err(Error::Compute)
}

/// A request that waits for memory.
pub(super) struct Waiting {
    job: Job,
    /// Tokens of KV cache that it may come to take, in whole blocks.
    tokens: usize,
}

impl Waiting {
    /// Checks a request and encodes its prompt.
    ///
    /// # Errors
    /// A request that is invalid or that the backend does not support.
    pub(super) fn new<B: InferenceBackend + ?Sized>(
        backend: &B,
        request: &GenerateRequest,
        cancel: &CancelToken,
    ) -> Result<(Self, RequestHandle)> {
        let prepared = prepare(backend, request, cancel)?;
        Self::of(backend, request, prepared, cancel)
    }

    /// As [`new`](Self::new), for `n` choices.
    ///
    /// # Errors
    /// As [`new`](Self::new), and [`Error::InvalidOption`] for an `n` of 0 or above 128.
    fn choices(
        backend: &dyn InferenceBackend,
        request: &GenerateRequest,
        n: usize,
        cancel: &CancelToken,
    ) -> Result<Vec<(Self, RequestHandle)>> {
        let choices = prepare_choices(backend, request, n, cancel)?;
        choices.into_iter().map(|prepared| Self::of(backend, request, prepared, cancel)).collect()
    }

    fn of<B: InferenceBackend + ?Sized>(
        backend: &B,
        request: &GenerateRequest,
        prepared: Prepared,
        cancel: &CancelToken,
    ) -> Result<(Self, RequestHandle)> {
        let (job, handle) = job(backend, request, prepared, None, cancel)?;
        let tokens = job.spec.capacity.next_multiple_of(backend.kv_policy().block_tokens());
        Ok((Self { job, tokens }, handle))
    }

    /// True if the step loop would end it without computing it.
    fn is_over(&self, now: Instant) -> bool {
        self.job.cancel.is_cancelled() || self.job.deadline.is_some_and(|deadline| deadline <= now)
    }
}

/// Requests of a backend, in the order of their arrival.
pub(super) struct Queue<'b, B: InferenceBackend + ?Sized> {
    backend: &'b B,
    requests: Requests<'b, B>,
    waiting: VecDeque<Waiting>,
    figures: Arc<Figures>,
}

/// Counters of a queue, read by other threads.
#[derive(Debug, Default)]
struct Figures {
    steps: Arc<StepCounters>,
    /// Requests that have not come to the step loop.
    waiting: AtomicUsize,
}

impl<'b, B: InferenceBackend + ?Sized> Queue<'b, B> {
    pub(super) fn new(backend: &'b B, pool: &'b ThreadPool) -> Self {
        Self::counted(backend, pool, Arc::default())
    }

    fn counted(backend: &'b B, pool: &'b ThreadPool, figures: Arc<Figures>) -> Self {
        let requests = Requests::many(backend, pool, Arc::clone(&figures.steps));
        Self { backend, requests, waiting: VecDeque::new(), figures }
    }

    pub(super) fn push(&mut self, waiting: Waiting) {
        self.figures.waiting.fetch_add(1, Relaxed);
        self.waiting.push_back(waiting);
    }

    /// Gives a request to the step loop.
    fn submit(&mut self, waiting: Waiting) {
        self.figures.waiting.fetch_sub(1, Relaxed);
        self.requests.submit(waiting.job);
    }

    /// True without requests.
    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.requests.is_idle()
    }

    /// Computes a step of the requests for which there is memory.
    pub(super) fn iterate(&mut self) {
        self.admit();
        self.requests.iterate();
    }

    /// Submits requests while the memory that is free holds all that they may come to take.
    fn admit(&mut self) {
        let now = Instant::now();
        let (over, waiting) = std::mem::take(&mut self.waiting).into_iter().partition(|w| w.is_over(now));
        let over: VecDeque<Waiting> = over;
        self.waiting = waiting;
        let mut is_alone = self.requests.is_idle();
        // They take no memory.
        over.into_iter().for_each(|waiting| self.submit(waiting));
        // Requests that were submitted and have not begun have not taken theirs.
        if self.requests.waiting() > 0 {
            return;
        }
        let (mut room, mut sequences) = (self.backend.kv_room(), self.backend.sequence_room());
        while let Some(next) = self.waiting.pop_front() {
            // Without others, a request that has no room gets the error of its sequence.
            if (next.tokens > room || sequences == 0) && !is_alone {
                self.waiting.push_front(next);
                return;
            }
            room = room.saturating_sub(next.tokens);
            sequences = sequences.saturating_sub(1);
            is_alone = false;
            self.submit(next);
        }
    }
}

/// Message to the thread.
enum Command {
    Submit(Box<Waiting>),
    /// Ends the thread.
    Stop,
}

/// Requests to a backend from any thread, computed together in a thread of their own.
///
/// Does for any backend what an [`Engine`](crate::Engine) does for the CPU: requests join those
/// that run, up to 64, and wait for a place and for memory ([`InferenceBackend::kv_room`]). Each is
/// served as by [`InferenceBackend::generate_many`]. Dropping the queue ends the requests.
///
/// # Example
/// ```no_run
/// use std::sync::Arc;
///
/// use ruvllm::{BackendQueue, Engine, GenerateRequest};
///
/// let queue = BackendQueue::start(Arc::new(Engine::open("model.gguf")?))?;
/// let handles = ["The sea", "The sky"].map(|text| queue.submit(&GenerateRequest::new(text)));
/// for handle in handles {
///     println!("{}", handle?.wait()?.text);
/// }
/// # Ok::<(), ruvllm::Error>(())
/// ```
pub struct BackendQueue {
    backend: Arc<dyn InferenceBackend>,
    commands: Sender<Command>,
    figures: Arc<Figures>,
    thread: Option<JoinHandle<()>>,
}

impl BackendQueue {
    /// Starts the thread.
    ///
    /// # Errors
    /// [`Error::StepThread`] and [`Error::Compute`] if the system has no threads to give.
    pub fn start(backend: Arc<dyn InferenceBackend>) -> Result<Self> {
        let pool = sampling_pool()?;
        let (commands, received) = mpsc::channel();
        let figures: Arc<Figures> = Arc::default();
        let (shared, counted) = (Arc::clone(&backend), Arc::clone(&figures));
        let run = move || run(&*shared, &pool, counted, &received);
        let thread = std::thread::Builder::new().name("ruvllm-backend".into()).spawn(run);
        Ok(Self { backend, commands, figures, thread: Some(thread.map_err(Error::StepThread)?) })
    }

    /// True once no request can be computed any more: the backend is lost, or its thread has ended.
    pub fn is_lost(&self) -> bool {
        self.backend.is_lost() || self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Counts of the steps, and the requests that wait and run now.
    pub fn step_statistics(&self) -> StepStatistics {
        let steps = self.figures.steps.read();
        StepStatistics { waiting: steps.waiting + self.figures.waiting.load(Relaxed) as u64, ..steps }
    }

    /// The steps from a number on, as far as they are kept: see
    /// [`Engine::steps_since`](crate::Engine::steps_since).
    pub fn steps_since(&self, number: u64) -> Vec<StepRecord> {
        self.figures.steps.steps_since(number)
    }

    /// The backend.
    pub fn backend(&self) -> &Arc<dyn InferenceBackend> {
        &self.backend
    }

    /// Submits a request; its text comes through the handle.
    ///
    /// # Errors
    /// [`Error::Refused`] while 4096 requests wait; as [`InferenceBackend::generate_with`] before
    /// the run; later ones come through the handle.
    pub fn submit(&self, request: &GenerateRequest) -> Result<RequestHandle> {
        self.submit_with(request, &CancelToken::new())
    }

    /// Submits a request that `cancel` ends too.
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    pub fn submit_with(&self, request: &GenerateRequest, cancel: &CancelToken) -> Result<RequestHandle> {
        self.admit(1)?;
        let (waiting, handle) = Waiting::new(&*self.backend, request, cancel)?;
        self.send(waiting);
        Ok(handle)
    }

    /// Submits `n` choices of a prompt, each a request of its own with a seed one above that of the
    /// one before. On a backend with a prefix cache those that begin behind the first share whole
    /// blocks of its prompt; otherwise the prompt is computed for each.
    ///
    /// # Errors
    /// As [`submit`](Self::submit), and [`Error::InvalidOption`] for an `n` of 0 or above 128.
    pub fn submit_many(&self, request: &GenerateRequest, n: usize) -> Result<Vec<RequestHandle>> {
        self.admit(n)?;
        let choices = Waiting::choices(&*self.backend, request, n, &CancelToken::new())?;
        let submit = |(waiting, handle)| {
            self.send(waiting);
            handle
        };
        Ok(choices.into_iter().map(submit).collect())
    }

    /// Refuses requests beyond the limit of those that wait.
    fn admit(&self, n: usize) -> Result<()> {
        let waiting = self.step_statistics().waiting as usize;
        if waiting.saturating_add(n) <= Config::default().max_waiting {
            return Ok(());
        }
        Err(Error::Refused(Refusal::QueueFull { waiting, retry_after: None }))
    }

    fn send(&self, waiting: Waiting) {
        self.figures.waiting.fetch_add(1, Relaxed);
        // A request that nobody receives is dropped, and tells its handle so.
        let _ = self.commands.send(Command::Submit(Box::new(waiting)));
    }
}

impl Drop for BackendQueue {
    fn drop(&mut self) {
        let _ = self.commands.send(Command::Stop);
        if let Some(thread) = self.thread.take() {
            // A panic was reported by the thread itself; its requests have got an error.
            let _ = thread.join();
        }
    }
}

/// Prints the backend's name.
impl fmt::Debug for BackendQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BackendQueue").field("backend", &self.backend.name()).finish_non_exhaustive()
    }
}

/// Computes steps until the queue is dropped.
fn run(
    backend: &dyn InferenceBackend,
    pool: &ThreadPool,
    figures: Arc<Figures>,
    commands: &Receiver<Command>,
) {
    let mut queue = Queue::counted(backend, pool, figures);
    loop {
        let received = match queue.is_idle() {
            true => commands.recv().map_err(|_| TryRecvError::Disconnected),
            false => commands.try_recv(),
        };
        match received {
            // Counted by the sender.
            Ok(Command::Submit(waiting)) => queue.waiting.push_back(*waiting),
            Err(TryRecvError::Empty) => queue.iterate(),
            Ok(Command::Stop) | Err(TryRecvError::Disconnected) => return,
        }
    }
}
