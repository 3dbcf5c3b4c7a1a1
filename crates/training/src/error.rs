//! Errors of fine-tuning.

use std::path::PathBuf;

use ruvllm_models::ModelConfig;

/// Result with this crate's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Errors of fine-tuning: settings, inputs, numbers and files.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting is outside its range.
    #[error("{name} is {value}; it must be {range}")]
    Setting {
        /// Name of the setting.
        name: &'static str,
        /// Its value.
        value: String,
        /// Allowed values.
        range: &'static str,
    },

    /// The model has a part through which no gradients are computed.
    #[error("adapters cannot be trained for this {architecture} model: it has {feature}")]
    Untrainable {
        /// Architecture of the model.
        architecture: String,
        /// The part.
        feature: String,
    },

    /// An adapter was made for a model of other sizes.
    #[error("the adapter is for another model: {found}, need {expected}")]
    OtherModel {
        /// Sizes that the adapter was made for.
        found: String,
        /// Sizes of the model.
        expected: String,
    },

    /// A file has several updates of different rank or scale, which one training run cannot
    /// continue.
    #[error("cannot continue the adapter {}: {reason}", path.display())]
    Continue {
        /// The file.
        path: PathBuf,
        /// Reason.
        reason: String,
    },

    /// A sequence cannot be trained on.
    #[error("sequence {index} has {tokens} tokens; a training sequence has 1 to {most}")]
    SequenceLength {
        /// Index in its batch or data set.
        index: usize,
        /// Its tokens.
        tokens: usize,
        /// Context length of the model.
        most: usize,
    },

    /// A token id is outside the vocabulary.
    #[error("sequence {index} has token {token}; the vocabulary has {vocab_size} tokens")]
    Token {
        /// Index in its batch or data set.
        index: usize,
        /// The id.
        token: u32,
        /// Size of the vocabulary.
        vocab_size: usize,
    },

    /// Teacher and student have vocabularies of different sizes.
    #[error(
        "the teacher has a vocabulary of {teacher} tokens, the student one of {student}; distillation needs the same"
    )]
    Vocabularies {
        /// Size of the teacher's vocabulary.
        teacher: usize,
        /// Size of the student's vocabulary.
        student: usize,
    },

    /// Two arrays that belong together have different lengths.
    #[error("{what} has {found} values, need {expected}")]
    Length {
        /// The array.
        what: &'static str,
        /// Values needed.
        expected: usize,
        /// Values given.
        found: usize,
    },

    /// No token of a data set has a loss.
    #[error("no token of {what} is scored; sequences need two tokens, and a mask that is not all false")]
    NothingScored {
        /// The data set.
        what: &'static str,
    },

    /// A loss or gradient is NaN or infinite; the parameters are those of the step before.
    #[error("{what} of step {step} is not finite; lower the learning rate")]
    NotFinite {
        /// The value.
        what: &'static str,
        /// Optimizer steps done before.
        step: u64,
    },

    /// A state file cannot be read as one.
    #[error("{} is no training state: {reason}", path.display())]
    State {
        /// The file.
        path: PathBuf,
        /// Reason.
        reason: String,
    },

    /// A state file is of a run with other settings, model or data.
    #[error("{} is the state of another run: its {what} differs", path.display())]
    OtherRun {
        /// The file.
        path: PathBuf,
        /// Part of the run that differs.
        what: &'static str,
    },

    /// A state file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        source: std::io::Error,
    },

    /// Memory for a pass cannot be allocated.
    #[error("no memory for {what}: {bytes} bytes; use fewer tokens per batch or checkpointing")]
    Memory {
        /// Purpose of the memory.
        what: &'static str,
        /// Its size.
        bytes: usize,
    },

    /// Error of an [`Objective`](crate::Objective) or [`Rollout`](crate::Rollout) of another crate.
    #[error(transparent)]
    Other(Box<dyn std::error::Error + Send + Sync>),

    /// Error of the adapters crate.
    #[error(transparent)]
    Adapter(#[from] ruvllm_adapters::Error),

    /// Error of the models crate.
    #[error(transparent)]
    Model(#[from] ruvllm_models::Error),

    /// Error of the kernels crate.
    #[error(transparent)]
    Kernels(#[from] ruvllm_kernels::Error),

    /// Error of writing a file.
    #[error(transparent)]
    File(#[from] gguf_rs_lite::Error),
}

impl Error {
    /// The refusal of a model for a part of its layers.
    pub(crate) fn untrainable(config: &ModelConfig) -> Self {
        let feature = config.decoder.unusual_feature().unwrap_or_else(|| "layers of another form".to_owned());
        Self::Untrainable { architecture: config.architecture.clone(), feature }
    }
}
