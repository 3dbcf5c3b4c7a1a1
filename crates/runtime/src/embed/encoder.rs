//! Embeddings of encoders.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use ruvllm_kernels::ThreadPool;
use ruvllm_models::quantize::InSitu;
use ruvllm_models::{Checkpoint, Compute, EmbeddingDefaults, Encoder, EncoderWorkspace, LoadProgress};
use ruvllm_text::TokenId;
use ruvllm_text::tokenizer::Tokenizer;

use super::pool::Pool;
use super::{Embedding, EmbeddingRequest, Embeddings, Encoded, Input, Settings, encode};
use crate::codec::read_tokenizer;
use crate::engine::Start;
use crate::error::{Error, Result};
use crate::options::{EngineOptions, ModelSource};

/// Tokens per pass, unless one text has more. More make matrix products hardly faster, and their
/// states would not fit into the L2 cache.
const PASS_TOKENS: usize = 256;

/// Minimum texts per thread for data parallelism. Each thread then runs its own texts through the
/// whole model without waiting for others. With fewer texts the threads share every operation.
const TEXTS_PER_THREAD: usize = 4;

/// An encoder with tokenizer, defaults and threads.
#[derive(Debug)]
pub(super) struct EncoderEngine {
    encoder: Encoder,
    tokenizer: Tokenizer,
    defaults: EmbeddingDefaults,
    compute: Compute,
    /// Same kernels, calling thread only.
    alone: Compute,
    /// Buffers of passes, for reuse.
    workspaces: Mutex<Vec<EncoderWorkspace>>,
    load_time: Duration,
}

/// Work queue of one request, shared by its threads.
struct Queue<'a> {
    texts: &'a [Input<'a>],
    next: AtomicUsize,
    /// Finished embeddings, by index of the text.
    done: Vec<OnceLock<Embedding>>,
    /// Error of the first failed text, with its index.
    failed: Mutex<Option<(usize, Error)>>,
}

impl EncoderEngine {
    /// Loads the encoder of `checkpoint`, which was opened from `source`.
    pub(super) fn load(
        checkpoint: &dyn Checkpoint,
        source: &ModelSource,
        options: &EngineOptions,
        start: Start,
        progress: &mut dyn FnMut(LoadProgress<'_>),
    ) -> Result<Self> {
        let Start { started, compute, .. } = start;
        let name = source.to_string();
        let encoder = match options.quantize {
            None => Encoder::load(checkpoint, progress),
            Some(recipe) => InSitu::new(checkpoint, recipe, &compute.pool)
                .and_then(|quantized| Encoder::load(&quantized, progress)),
        };
        let failed = |source| Error::Load { name: name.clone(), source };
        let encoder = encoder.map_err(failed)?;
        let defaults = EmbeddingDefaults::from_metadata(checkpoint.metadata()).map_err(failed)?;
        let rows = encoder.config().vocab_size;
        let tokenizer = read_tokenizer(checkpoint, &name, options.tokenizer.as_deref(), rows)?;
        let alone = Compute::with(compute.kernels, ThreadPool::single());
        Ok(Self {
            encoder,
            tokenizer,
            defaults,
            compute,
            alone,
            workspaces: Mutex::default(),
            load_time: started.elapsed(),
        })
    }

    pub(super) fn load_time(&self) -> Duration {
        self.load_time
    }

    pub(super) fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    pub(super) fn embed(&self, request: &EmbeddingRequest) -> Result<Embeddings> {
        let config = self.encoder.config();
        let dim = config.model_dim;
        let settings = Settings::new(request, &self.defaults, &self.tokenizer, config.context_length)?;
        let texts = &request.inputs();
        let queue = Queue {
            texts,
            next: AtomicUsize::new(0),
            done: texts.iter().map(|_| OnceLock::new()).collect(),
            failed: Mutex::default(),
        };
        let pool = &self.compute.pool;
        if pool.threads() > 1 && texts.len() >= TEXTS_PER_THREAD * pool.threads() {
            pool.run(&|_| self.work(&self.alone, &queue, &settings));
        } else {
            self.work(&self.compute, &queue, &settings);
        }
        if let Some((_, error)) = queue.failed.into_inner() {
            return Err(error);
        }
        let embeddings = queue.done.into_iter().filter_map(OnceLock::into_inner).collect();
        let Settings { pooling, normalize: normalized, .. } = settings;
        Ok(Embeddings { embeddings, dim, pooling, normalized })
    }

    /// Thread body: takes texts until none is left, pass by pass. Texts are taken in order, so all
    /// texts before a failed one are complete.
    fn work(&self, compute: &Compute, queue: &Queue<'_>, settings: &Settings) {
        let mut workspace = self.workspaces.lock().pop().unwrap_or_default();
        let mut pass = Vec::new();
        let vocab_size = self.encoder.config().vocab_size;
        loop {
            let mut tokens = 0;
            while tokens < PASS_TOKENS && queue.failed.lock().is_none() {
                let index = queue.next.fetch_add(1, Ordering::Relaxed);
                let Some(&input) = queue.texts.get(index) else { break };
                match encode(&self.tokenizer, vocab_size, index, input, settings.max_tokens) {
                    Ok(text) => {
                        tokens += text.tokens.len();
                        pass.push((index, text));
                    }
                    Err(error) => queue.fail(index, error),
                }
            }
            let Some(&(first, _)) = pass.first() else { break };
            if let Err(source) = self.embed_pass(compute, &mut workspace, &pass, queue, settings) {
                queue.fail(first, Error::ForwardTexts { first, texts: pass.len(), source });
            }
            pass.clear();
        }
        self.workspaces.lock().push(workspace);
    }

    fn embed_pass(
        &self,
        compute: &Compute,
        workspace: &mut EncoderWorkspace,
        pass: &[(usize, Encoded)],
        queue: &Queue<'_>,
        settings: &Settings,
    ) -> ruvllm_models::Result<()> {
        let dim = self.encoder.config().model_dim;
        let tokens: Vec<&[TokenId]> = pass.iter().map(|(_, text)| text.tokens.as_slice()).collect();
        let mut rest = self.encoder.forward(compute, workspace, &tokens)?;
        for (index, text) in pass {
            let (states, later) = rest.split_at(text.tokens.len() * dim);
            let mut pool = Pool::new(settings.pooling, dim);
            pool.push(states);
            // Each text is taken by one thread only.
            let _ = queue.done[*index].set(pool.finish(text, settings));
            rest = later;
        }
        Ok(())
    }
}

impl Queue<'_> {
    fn fail(&self, index: usize, error: Error) {
        let mut failed = self.failed.lock();
        if failed.as_ref().is_none_or(|(first, _)| index < *first) {
            *failed = Some((index, error));
        }
    }
}
