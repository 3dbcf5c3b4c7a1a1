//! Draft model: a small model with the vocabulary of the large one, and its own KV cache.

use ruvllm_kv_cache::{KvPolicy, KvStore};
use ruvllm_models::{KvFormat, Model};

use super::memory;
use crate::codec::{TextCodec, compare_vocabularies};
use crate::error::{Error, Result};
use crate::options::ModelSource;

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
        let capacity = model.config().context_length.min(memory::CAPACITY);
        let pool = memory::pool(&model.config().kv_shape(), capacity)?;
        let kv = model
            .kv_store(&policy, &pool)
            .map_err(|source| Error::KvPolicy { policy: policy.to_string(), source })?;
        Ok(Self { model, kv, ids })
    }
}
