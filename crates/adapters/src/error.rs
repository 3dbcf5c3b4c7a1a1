//! Errors of adapters.

use std::path::{Path, PathBuf};

/// Result with this crate's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Errors of loading an adapter.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        #[source]
        source: std::io::Error,
    },
    /// A file is neither GGUF nor safetensors.
    #[error("{} is no adapter; name a PEFT folder, its .safetensors file or a GGUF adapter", path.display())]
    Unknown {
        /// The file.
        path: PathBuf,
    },
    /// A file has a fault.
    #[error("cannot use the adapter {}", path.display())]
    InFile {
        /// The file or folder.
        path: PathBuf,
        /// The fault.
        #[source]
        source: Box<Error>,
    },
    /// A file cannot be mapped, or is no valid GGUF file.
    #[error("cannot open {}", path.display())]
    Gguf {
        /// The file.
        path: PathBuf,
        /// Error of the GGUF reader.
        #[source]
        source: Box<gguf_rs_lite::Error>,
    },
    /// The weights are no valid safetensors file.
    #[error("its weights are no valid safetensors file")]
    Safetensors {
        /// Error of the safetensors reader.
        #[source]
        source: safetensors::SafeTensorError,
    },
    /// The configuration is not JSON of the expected form.
    #[error("its adapter_config.json cannot be read")]
    Config {
        /// Error of the JSON parser.
        #[source]
        source: serde_json::Error,
    },
    /// A field is absent.
    #[error("its adapter_config.json has no {name}")]
    MissingField {
        /// The field.
        name: &'static str,
    },
    /// A pattern of ranks or scales cannot be read, or is too large.
    #[error(
        "its adapter_config.json has the pattern {pattern:?}, which is no small regular expression of ASCII with a number"
    )]
    Pattern {
        /// The beginning of the pattern.
        pattern: String,
    },
    /// There is more of the patterns of ranks and scales than any adapter needs.
    #[error("its adapter_config.json has {found} {what}; {limit} are read at most")]
    PatternLimit {
        /// The items that are counted.
        what: &'static str,
        /// Their number.
        found: usize,
        /// Their largest number.
        limit: usize,
    },
    /// The patterns of ranks and scales are too large when they are compiled.
    #[error(
        "the patterns of its adapter_config.json take more than {limit} bytes together; write names instead"
    )]
    PatternSize {
        /// Most bytes of all of them.
        limit: usize,
    },
    /// The weights file announces a list of tensors that is longer than any adapter's.
    #[error("its list of tensors has {found} bytes; {limit} are read at most")]
    Header {
        /// Bytes that the file announces.
        found: u64,
        /// Most bytes that are read.
        limit: u64,
    },
    /// A GGUF file is a model.
    #[error("it is a model, not an adapter (general.type)")]
    Model,
    /// An adapter does more than LoRA.
    #[error("it is more than a plain LoRA: {what}")]
    Unsupported {
        /// Name of the unsupported feature.
        what: String,
    },
    /// There are no factors.
    #[error("the adapter {} changes nothing: it has no factors", path.display())]
    Empty {
        /// The file or folder.
        path: PathBuf,
    },
    /// A tensor that is no factor.
    #[error("{name} is not a factor of a LoRA (lora_A, lora_B)")]
    UnexpectedTensor {
        /// Its name.
        name: String,
    },
    /// A matrix has only one of its two factors.
    #[error("{name} has one of its two factors only")]
    Half {
        /// The matrix.
        name: String,
    },
    /// A matrix that adapters cannot change here.
    #[error(
        "{name} cannot be changed; the projections of attention and of the feed-forward network and the logits can"
    )]
    UnknownMatrix {
        /// The matrix.
        name: String,
    },
    /// A factor of another storage type.
    #[error("{name} is of type {found}; F32, F16, BF16 and (GGUF) Q8_0 are read")]
    TensorType {
        /// The tensor.
        name: String,
        /// Its type.
        found: String,
    },
    /// A factor is not two-dimensional.
    #[error("{name} is not a matrix")]
    NotAMatrix {
        /// The tensor.
        name: String,
    },
    /// The data of a tensor are truncated.
    #[error("{name} goes beyond the end of the file")]
    Cut {
        /// The tensor.
        name: String,
    },
    /// Shapes of two factors of one matrix do not match.
    #[error("the factors of {name} do not fit each other: A is {a:?}, B is {b:?}")]
    Shapes {
        /// The matrix.
        name: String,
        /// Rows and columns.
        a: [usize; 2],
        /// Rows and columns.
        b: [usize; 2],
    },
    /// Rank of the factors differs from that in the configuration.
    #[error("{name} has rank {found}, adapter_config.json says {expected}")]
    Rank {
        /// The matrix.
        name: String,
        /// Rank of the factors.
        found: usize,
        /// Rank in the configuration.
        expected: usize,
    },
    /// A value or scale that is not a number.
    #[error("{name} has values that are not finite")]
    NotFinite {
        /// The matrix.
        name: String,
    },
    /// The adapter names another architecture than the model.
    #[error("it is for the architecture {found}, the model's is {expected}")]
    Architecture {
        /// Architecture of the adapter.
        found: String,
        /// Architecture of the model.
        expected: String,
    },
    /// The adapter is for a model of other sizes.
    #[error(
        "it is for another model: {name} maps {found:?} values, the model's {projection} projection {expected:?}"
    )]
    Sizes {
        /// The matrix.
        name: String,
        /// Projection that the matrix adapts.
        projection: crate::Projection,
        /// Inputs and outputs.
        found: [usize; 2],
        /// Inputs and outputs of the model's.
        expected: [usize; 2],
    },
    /// The adapter changes a layer that the model does not have.
    #[error("it is for another model: {name} is in layer {layer}, the model has {n_layers}")]
    Layer {
        /// The matrix.
        name: String,
        /// Its layer.
        layer: usize,
        /// Number of layers of the model.
        n_layers: usize,
    },
    /// Adapters of different models, or none, cannot be added up.
    #[error("only adapters of one model can be combined, and at least one")]
    Combination,
    /// The pool has no room.
    #[error("no memory for an adapter of {bytes} bytes")]
    Memory {
        /// Size of the adapter in bytes.
        bytes: usize,
        /// Error of the page pool.
        #[source]
        source: ruvllm_memory::Error,
    },
}

impl Error {
    /// Adds the file to the error, unless it names one already.
    pub(crate) fn in_file(self, path: &Path) -> Self {
        match self {
            Self::Read { .. }
            | Self::Unknown { .. }
            | Self::InFile { .. }
            | Self::Gguf { .. }
            | Self::Empty { .. }
            | Self::Combination
            | Self::Memory { .. } => self,
            other => Self::InFile { path: path.to_owned(), source: Box::new(other) },
        }
    }
}
