//! The models inside of the program: none in builds without the feature `builtin-model`.

use ruvllm::ModelSource;

/// A GGUF file inside of the program.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BuiltIn {
    /// Name in messages.
    pub(crate) name: &'static str,
    /// The file.
    pub(crate) bytes: &'static [u8],
}

impl BuiltIn {
    /// Source of the model for the engine.
    pub(crate) fn source(self) -> ModelSource {
        ModelSource::Static { name: self.name.to_owned(), bytes: self.bytes }
    }
}

/// The model of commands that name none.
#[cfg(feature = "builtin-model")]
pub(crate) fn model() -> Option<BuiltIn> {
    use ruvllm_default_model::{NAME, gguf};
    Some(BuiltIn { name: NAME, bytes: gguf() })
}

/// Its draft model.
#[cfg(feature = "builtin-model")]
pub(crate) fn draft() -> Option<BuiltIn> {
    use ruvllm_default_model::{DRAFT_NAME, draft};
    Some(BuiltIn { name: DRAFT_NAME, bytes: draft() })
}

/// The model of commands that name none: `None` in this build.
#[cfg(not(feature = "builtin-model"))]
pub(crate) fn model() -> Option<BuiltIn> {
    None
}

/// Its draft model: `None` in this build.
#[cfg(not(feature = "builtin-model"))]
pub(crate) fn draft() -> Option<BuiltIn> {
    None
}
