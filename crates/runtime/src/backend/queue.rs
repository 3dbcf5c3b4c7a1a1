//! Requests to a backend that are computed together: admission by memory, and a thread for requests
//! from anywhere.

use std::collections::VecDeque;
use std::fmt;
use std::num::NonZero;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::thread::JoinHandle;
use std::time::Instant;

use ruvllm_kernels::ThreadPool;

use super::InferenceBackend;
use super::requests::{Requests, job, prepare};
use crate::cancel::CancelToken;
use crate::error::{Error, Result};
use crate::request::GenerateRequest;
use crate::step::{Job, RequestHandle};

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
        let (job, handle) = job(backend, request, prepared, None, cancel);
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
}

impl<'b, B: InferenceBackend + ?Sized> Queue<'b, B> {
    pub(super) fn new(backend: &'b B, pool: &'b ThreadPool) -> Self {
        Self { backend, requests: Requests::many(backend, pool), waiting: VecDeque::new() }
    }

    pub(super) fn push(&mut self, waiting: Waiting) {
        self.waiting.push_back(waiting);
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
        over.into_iter().for_each(|waiting| self.requests.submit(waiting.job));
        // Requests that were submitted and have not begun have not taken theirs.
        if self.requests.waiting() > 0 {
            return;
        }
        let mut room = self.backend.kv_room();
        while let Some(next) = self.waiting.pop_front() {
            // Without others, a request that has no room gets the error of its sequence.
            if next.tokens > room && !is_alone {
                self.waiting.push_front(next);
                return;
            }
            room = room.saturating_sub(next.tokens);
            is_alone = false;
            self.requests.submit(next.job);
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
        let shared = Arc::clone(&backend);
        let run = move || run(&*shared, &pool, &received);
        let thread = std::thread::Builder::new().name("ruvllm-backend".into()).spawn(run);
        Ok(Self { backend, commands, thread: Some(thread.map_err(Error::StepThread)?) })
    }

    /// The backend.
    pub fn backend(&self) -> &Arc<dyn InferenceBackend> {
        &self.backend
    }

    /// Submits a request; its text comes through the handle.
    ///
    /// # Errors
    /// As [`InferenceBackend::generate_with`] before the run; later ones come through the handle.
    pub fn submit(&self, request: &GenerateRequest) -> Result<RequestHandle> {
        self.submit_with(request, &CancelToken::new())
    }

    /// Submits a request that `cancel` ends too.
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    pub fn submit_with(&self, request: &GenerateRequest, cancel: &CancelToken) -> Result<RequestHandle> {
        let (waiting, handle) = Waiting::new(&*self.backend, request, cancel)?;
        // A request that nobody receives is dropped, and tells its handle so.
        let _ = self.commands.send(Command::Submit(Box::new(waiting)));
        Ok(handle)
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
fn run(backend: &dyn InferenceBackend, pool: &ThreadPool, commands: &Receiver<Command>) {
    let mut queue = Queue::new(backend, pool);
    loop {
        let received = match queue.is_idle() {
            true => commands.recv().map_err(|_| TryRecvError::Disconnected),
            false => commands.try_recv(),
        };
        match received {
            Ok(Command::Submit(waiting)) => queue.push(*waiting),
            Err(TryRecvError::Empty) => queue.iterate(),
            Ok(Command::Stop) | Err(TryRecvError::Disconnected) => return,
        }
    }
}
