//! Draft model: a small model with the vocabulary of the large one, and its own KV cache.

use ruvllm_kv_cache::{KvPolicy, KvStore};
use ruvllm_memory::{PagePool, PoolConfig};
use ruvllm_models::{KvFormat, Model};

use crate::codec::{TextCodec, compare_vocabularies};
use crate::error::{Error, Result};
use crate::options::{EngineOptions, ModelSource};

/// Largest number of tokens that the draft model sees of a sequence. Drafts need the latest ones,
/// and a bounded past bounds the memory and the time of catching up.
pub(super) const CAPACITY: usize = 1024;

/// Sequences for which the KV budget has room.
const SEQUENCES: usize = 64;

/// Bytes of a page of the KV budget.
const PAGE: usize = 512 << 10;

/// A loaded draft model, shared by all requests.
pub(crate) struct DraftModel {
    pub(super) model: Model,
    pub(super) kv: KvStore,
    /// Ids that may be drafted.
    pub(super) ids: usize,
}

impl DraftModel {
    /// The draft model of the options, or the first candidate with the model's vocabulary.
    ///
    /// # Errors
    /// As [`load`](Self::load), for the draft model that the options name.
    pub(crate) fn of_options(options: &EngineOptions, codec: &TextCodec) -> Result<Option<Self>> {
        let load = |source| Self::load(source, codec, options.mmap);
        match &options.draft {
            Some(draft) => load(draft).map(Some),
            None => Ok(options.draft_candidates.iter().find_map(|candidate| load(candidate).ok())),
        }
    }

    /// Loads a draft model for a model with this codec.
    ///
    /// # Errors
    /// [`Error::Open`], [`Error::Load`], [`Error::Tokenizer`], [`Error::KvBudget`];
    /// [`Error::DraftVocabulary`] if the vocabularies differ.
    pub(crate) fn load(source: &ModelSource, codec: &TextCodec, mmap: bool) -> Result<Self> {
        let memory = gguf_rs_lite::FileMemory { mmap, mlock: false };
        let checkpoint = source.open(memory)?;
        let name = source.to_string();
        let refused = |reason| Error::DraftVocabulary { name: name.clone(), reason };
        // A list that is too short needs no tokenizer to tell.
        let listed = checkpoint.metadata().get_strings("tokenizer.ggml.tokens").ok().flatten();
        let expected = codec.tokenizer().text_vocab_size();
        if let Some(found) = listed.map(<[_]>::len).filter(|found| *found < expected) {
            return Err(refused(format!("it has {found} tokens, the model has {expected}")));
        }
        let tokenizer =
            checkpoint.tokenizer().map_err(|source| Error::Tokenizer { name: name.clone(), source })?;
        compare_vocabularies(&tokenizer, codec.tokenizer(), "the model").map_err(refused)?;
        let model = Model::load(&*checkpoint, &mut |_| ())
            .map_err(|source| Error::Load { name: name.clone(), source })?;
        let ids = codec.sampled_ids();
        if model.config().vocab_size < ids {
            let rows = model.config().vocab_size;
            return Err(refused(format!("its output has {rows} ids, the model's {ids}")));
        }
        let policy = KvPolicy::uniform(KvFormat::F16.into());
        let capacity = model.config().context_length.min(CAPACITY);
        let shape = model.config().kv_shape();
        let token_bytes: usize = shape.groups().map(|group| 4 * group.width() * group.n_layers).sum();
        let budget = (SEQUENCES * capacity * token_bytes).max(4 * PAGE).next_multiple_of(PAGE);
        let pool = PagePool::new(PoolConfig { page_bytes: PAGE, ..PoolConfig::new(budget) })
            .map_err(|source| Error::KvBudget { budget, source })?;
        let kv = model
            .kv_store(&policy, &pool)
            .map_err(|source| Error::KvPolicy { policy: policy.to_string(), source })?;
        Ok(Self { model, kv, ids })
    }
}
