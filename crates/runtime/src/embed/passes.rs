//! Passes of an encoder over the texts of one request, spread over threads.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use ruvllm_kernels::ThreadPool;
use ruvllm_models::{Compute, EncoderWorkspace};

use crate::error::{Error, Result};

/// Tokens per pass, unless one text has more. More make matrix products hardly faster, and their
/// states would not fit into the L2 cache.
const PASS_TOKENS: usize = 256;

/// Minimum texts per thread for data parallelism. Each thread then runs its own texts through the
/// whole model without waiting for others. With fewer texts the threads share every operation.
const TEXTS_PER_THREAD: usize = 4;

/// Threads and buffers of an encoder.
#[derive(Debug)]
pub(super) struct Passes {
    compute: Compute,
    /// Same kernels, calling thread only.
    alone: Compute,
    /// Buffers of passes, for reuse.
    workspaces: Mutex<Vec<EncoderWorkspace>>,
}

/// Texts of one request, and what is computed of each.
pub(super) trait Batch: Sync {
    /// A tokenized text.
    type Text;
    /// Result of a text.
    type Output: Send + Sync;

    /// Number of texts.
    fn len(&self) -> usize;

    /// Tokenizes the text with this index.
    fn encode(&self, index: usize) -> Result<Self::Text>;

    /// Tokens of a text.
    fn tokens(text: &Self::Text) -> usize;

    /// Results of the texts of a pass, in their order.
    fn compute(
        &self,
        compute: &Compute,
        workspace: &mut EncoderWorkspace,
        pass: &[(usize, Self::Text)],
    ) -> ruvllm_models::Result<Vec<Self::Output>>;
}

/// Work queue of one request, shared by its threads.
struct Queue<'a, B: Batch> {
    batch: &'a B,
    next: AtomicUsize,
    /// Finished results, by index of the text.
    done: Vec<OnceLock<B::Output>>,
    /// Error of the first failed text, with its index.
    failed: Mutex<Option<(usize, Error)>>,
}

impl Passes {
    pub(super) fn new(compute: Compute) -> Self {
        let alone = Compute::with(compute.kernels, ThreadPool::single());
        Self { compute, alone, workspaces: Mutex::default() }
    }

    /// Computes all texts; results are in their order.
    ///
    /// # Errors
    /// Error of encoding the first failed text; [`Error::ForwardTexts`] of its pass.
    pub(super) fn run<B: Batch>(&self, batch: &B) -> Result<Vec<B::Output>> {
        let queue = Queue {
            batch,
            next: AtomicUsize::new(0),
            done: (0..batch.len()).map(|_| OnceLock::new()).collect(),
            failed: Mutex::default(),
        };
        let pool = &self.compute.pool;
        if pool.threads() > 1 && batch.len() >= TEXTS_PER_THREAD * pool.threads() {
            pool.run(&|_| self.work(&self.alone, &queue));
        } else {
            self.work(&self.compute, &queue);
        }
        match queue.failed.into_inner() {
            Some((_, error)) => Err(error),
            None => Ok(queue.done.into_iter().filter_map(OnceLock::into_inner).collect()),
        }
    }

    /// Thread body: takes texts until none is left, pass by pass. Texts are taken in order, so all
    /// texts before a failed one are complete.
    fn work<B: Batch>(&self, compute: &Compute, queue: &Queue<'_, B>) {
        let mut workspace = self.workspaces.lock().pop().unwrap_or_default();
        let mut pass = Vec::new();
        loop {
            let mut tokens = 0;
            while tokens < PASS_TOKENS && queue.failed.lock().is_none() {
                let index = queue.next.fetch_add(1, Ordering::Relaxed);
                if index >= queue.batch.len() {
                    break;
                }
                match queue.batch.encode(index) {
                    Ok(text) => {
                        tokens += B::tokens(&text);
                        pass.push((index, text));
                    }
                    Err(error) => queue.fail(index, error),
                }
            }
            let Some(&(first, _)) = pass.first() else { break };
            match queue.batch.compute(compute, &mut workspace, &pass) {
                // Each text is taken by one thread only.
                Ok(outputs) => pass.iter().zip(outputs).for_each(|(&(index, _), output)| {
                    let _ = queue.done[index].set(output);
                }),
                Err(source) => queue.fail(first, Error::ForwardTexts { first, texts: pass.len(), source }),
            }
            pass.clear();
        }
        self.workspaces.lock().push(workspace);
    }
}

impl<B: Batch> Queue<'_, B> {
    fn fail(&self, index: usize, error: Error) {
        let mut failed = self.failed.lock();
        if failed.as_ref().is_none_or(|(first, _)| index < *first) {
            *failed = Some((index, error));
        }
    }
}
