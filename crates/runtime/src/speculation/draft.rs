//! The choice of what drafts beside look-up.

use ruvllm_models::Model;

use super::draft_head::DraftHead;
use super::draft_model::DraftModel;
use crate::codec::TextCodec;
use crate::error::Result;
use crate::options::EngineOptions;

/// Drafter that computes its drafts, with memory of its own.
pub(crate) enum Draft {
    /// A smaller model.
    Model(Box<DraftModel>),
    /// The model's own prediction head.
    Head(DraftHead),
}

impl Draft {
    /// The draft model of the options; the model's head, if it has one and the options permit it;
    /// or the first candidate with the model's vocabulary.
    ///
    /// # Errors
    /// As [`DraftModel::load`], for the draft model that the options name, and as
    /// [`DraftHead::of_model`].
    pub(crate) fn of_options(
        options: &EngineOptions,
        model: &Model,
        codec: &TextCodec,
    ) -> Result<Option<Self>> {
        let load =
            |source| DraftModel::load(source, codec, options.mmap).map(|model| Self::Model(Box::new(model)));
        if let Some(draft) = &options.draft {
            return load(draft).map(Some);
        }
        if options.draft_head
            && let Some(head) = DraftHead::of_model(model, codec.sampled_ids())?
        {
            return Ok(Some(Self::Head(head)));
        }
        Ok(options.draft_candidates.iter().find_map(|candidate| load(candidate).ok()))
    }
}
