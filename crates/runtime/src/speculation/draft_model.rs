//! Draft model: a small model with the vocabulary of the large one, and its own KV cache.

use ruvllm_kv_cache::{KvPolicy, KvStore, Sequence};
use ruvllm_models::{Checkpoint, Compute, KvFormat, LogitsRows, Model, ModelConfig, Segment, Workspace};
use ruvllm_text::TokenId;

use super::draft_engine::DraftEngine;
use super::memory;
use super::proposal::Choice;
use crate::codec::{TextCodec, compare_vocabularies};
use crate::error::{Error, Result};
use crate::options::ModelSource;
use crate::segments::{Batch, recycle};

/// Checks that a checkpoint, `name` in messages, has the vocabulary of a model with this codec, so
/// that it can draft for it.
///
/// # Errors
/// [`Error::Tokenizer`], [`Error::Load`]; [`Error::DraftVocabulary`] if the vocabularies differ.
pub(crate) fn check_vocabulary(checkpoint: &dyn Checkpoint, name: &str, codec: &TextCodec) -> Result<()> {
    let refused = |reason| Error::DraftVocabulary { name: name.to_owned(), reason };
    // A list that is too short needs no tokenizer to tell.
    let listed = checkpoint.metadata().get_strings("tokenizer.ggml.tokens").ok().flatten();
    let expected = codec.tokenizer().text_vocab_size();
    if let Some(found) = listed.map(<[_]>::len).filter(|found| *found < expected) {
        return Err(refused(format!("it has {found} tokens, the model has {expected}")));
    }
    let tokenizer =
        checkpoint.tokenizer().map_err(|source| Error::Tokenizer { name: name.to_owned(), source })?;
    compare_vocabularies(&tokenizer, codec.tokenizer(), "the model").map_err(refused)?;
    let config = ModelConfig::from_checkpoint(checkpoint)
        .map_err(|source| Error::Load { name: name.to_owned(), source })?;
    let (rows, ids) = (config.vocab_size, codec.sampled_ids());
    if rows < ids {
        return Err(refused(format!("its output has {rows} ids, the model's {ids}")));
    }
    Ok(())
}

/// A loaded draft model, shared by all requests.
pub(crate) struct DraftModel {
    pub(super) model: Model,
    pub(super) kv: KvStore,
    /// Ids that may be drafted.
    pub(super) ids: usize,
}

impl DraftModel {
    /// Loads a draft model for a model with this codec.
    ///
    /// # Errors
    /// [`Error::Open`], [`Error::Load`], [`Error::Tokenizer`], [`Error::KvBudget`];
    /// [`Error::DraftVocabulary`] if the vocabularies differ.
    pub(crate) fn load(source: &ModelSource, codec: &TextCodec, mmap: bool) -> Result<Self> {
        let memory = gguf_rs_lite::FileMemory { mmap, mlock: false };
        let checkpoint = source.open(memory)?;
        let name = source.to_string();
        check_vocabulary(&*checkpoint, &name, codec)?;
        let model = Model::load(&*checkpoint, &mut |_| ())
            .map_err(|source| Error::Load { name: name.clone(), source })?;
        let policy = KvPolicy::uniform(KvFormat::F16.into());
        let capacity = model.config().context_length.min(memory::CAPACITY);
        let pool = memory::pool(&model.config().kv_shape(), capacity)?;
        let kv = model
            .kv_store(&policy, &pool)
            .map_err(|source| Error::KvPolicy { policy: policy.to_string(), source })?;
        Ok(Self { model, kv, ids: codec.sampled_ids() })
    }
}

/// A draft model on the CPU.
pub(super) struct ModelEngine<'c> {
    draft: &'c DraftModel,
    compute: &'c Compute,
    workspace: Workspace,
    segments: Vec<Segment<'static>>,
    /// Probabilities of a row of logits.
    probabilities: Vec<f32>,
}

impl<'c> ModelEngine<'c> {
    pub(super) fn new(draft: &'c DraftModel, compute: &'c Compute) -> Self {
        let (workspace, segments, probabilities) = (Workspace::new(), Vec::new(), Vec::new());
        Self { draft, compute, workspace, segments, probabilities }
    }
}

impl DraftEngine for ModelEngine<'_> {
    type Cache = Sequence;

    fn capacity(&self) -> usize {
        self.draft.model.config().context_length.min(memory::CAPACITY)
    }

    fn vocab_size(&self) -> usize {
        self.draft.model.config().vocab_size
    }

    fn begin(&mut self) -> Option<Sequence> {
        self.draft.model.new_sequence(&self.draft.kv, self.capacity()).ok()
    }

    fn truncate(&mut self, cache: &mut Sequence, len: usize) -> bool {
        cache.truncate(len).is_ok()
    }

    fn clear(&mut self, cache: &mut Sequence) {
        cache.clear();
    }

    fn pass<'p>(
        &mut self,
        parts: impl Iterator<Item = (&'p mut Sequence, &'p [TokenId])>,
        found: &mut Vec<Option<Choice>>,
    ) -> bool {
        let Self { draft, compute, workspace, segments, probabilities } = self;
        let mut batch = recycle(std::mem::take(segments));
        let mut passed = true;
        for (cache, tokens) in parts {
            match Segment::new(compute, tokens, cache, LogitsRows::Last) {
                Ok(segment) => batch.push(segment),
                Err(_) => passed = false,
            }
        }
        passed = passed && draft.model.forward(compute, workspace, Batch(&mut batch)).is_ok();
        *segments = recycle(batch);
        if passed {
            let rows = workspace.logits().chunks_exact(draft.model.config().vocab_size);
            let choose = |row: &[f32]| Choice::of_logits(&compute.kernels, &row[..draft.ids], probabilities);
            found.clear();
            found.extend(rows.map(choose));
        }
        passed
    }

    fn end(&mut self, _: Sequence) {}
}
