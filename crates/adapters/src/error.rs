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
    /// A gate over adapters has a fault.
    #[error("cannot use the gate {}", path.display())]
    InGate {
        /// The file.
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
    /// An adapter does more than LoRA, which PEFT can merge into the base model.
    #[error(
        "it is more than a plain LoRA: {what}; merge it with PEFT (merge_and_unload) and use the merged model, \
         or a LoRA extracted from both models"
    )]
    MergeFirst {
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
    /// A matrix of the experts of a mixture.
    #[error(
        "{name} belongs to the experts of a mixture, which adapters cannot change; those of attention and the logits can, and of shared experts where every layer has them"
    )]
    Experts {
        /// The matrix.
        name: String,
    },
    /// A projection of attention in a model that has other layers too.
    #[error(
        "{name} belongs to attention of a model with layers that keep a state, which adapters cannot change; those of the feed-forward network and the logits can"
    )]
    Attention {
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
    /// A number of a gate is absent or out of its range.
    #[error("{name} of the gate is {found}; expected: {expected}")]
    GateField {
        /// The number, as the metadata name it.
        name: &'static str,
        /// Its value.
        found: String,
        /// Range of valid values.
        expected: &'static str,
    },
    /// A tensor that no gate has.
    #[error("{name} is no tensor of a gate (layers.N.weight, layers.N.bias)")]
    GateTensor {
        /// Its name.
        name: String,
    },
    /// A gate has no weights for a layer of the model.
    #[error("it is for another model: it has no tensor {name}")]
    MissingTensor {
        /// The tensor.
        name: String,
    },
    /// A tensor of a gate has another shape than number of adapters and model give.
    #[error("it is for another model or number of adapters: {name} has shape {found:?}, not {expected:?}")]
    GateShape {
        /// The tensor.
        name: String,
        /// Its shape.
        found: Vec<usize>,
        /// Its shape by number of adapters and model.
        expected: Vec<usize>,
    },
    /// A gate is for another number of adapters.
    #[error("the gate is for {expected} adapters; given: {found}")]
    GateAdapters {
        /// Number of adapters given.
        found: usize,
        /// Number of adapters of the gate.
        expected: usize,
    },
    /// A gate and an adapter are for different models.
    #[error("the gate is for another model, {expected}, than an adapter, {found}")]
    GateModel {
        /// Shape of the adapter's model.
        found: String,
        /// Shape of the gate's model.
        expected: String,
    },
    /// Shapes, places or bytes of factors are inconsistent.
    #[error("the factors do not match their layout: {what}")]
    Layout {
        /// The fault.
        what: String,
    },
    /// A MicroLoRA cannot be made or changed as asked.
    #[error("the MicroLoRA cannot be used: {what}")]
    Micro {
        /// The fault.
        what: String,
    },
    /// A merge method that needs another number of adapters.
    #[error("{method} merges {needed}; given: {found}")]
    MergeInputs {
        /// The method.
        method: &'static str,
        /// Number that it needs, in words.
        needed: &'static str,
        /// Number that was given.
        found: usize,
    },
    /// A parameter of a merge that is out of its range.
    #[error("{name} is {found}; expected: {expected}")]
    MergeParameter {
        /// The parameter.
        name: &'static str,
        /// Its value.
        found: f64,
        /// Range of valid values.
        expected: &'static str,
    },
    /// Adapters of models with other sizes cannot be merged.
    #[error(
        "the adapters are for different models: {name} maps {found:?} values in {}, {expected:?} in the others",
        path.display()
    )]
    MergeShapes {
        /// Adapter that differs.
        path: PathBuf,
        /// The matrix.
        name: String,
        /// Inputs and outputs.
        found: [usize; 2],
        /// Inputs and outputs in the adapters before.
        expected: [usize; 2],
    },
    /// Adapters that name different architectures cannot be merged.
    #[error("the adapters are for different architectures: {found} in {}, {expected} in the others", path.display())]
    MergeArchitectures {
        /// Adapter that differs.
        path: PathBuf,
        /// Its architecture.
        found: String,
        /// Architecture of the adapters before.
        expected: String,
    },
    /// One adapter changes a joint matrix, another a part of it.
    #[error("the adapters change {joint} in layer {layer} both as one matrix and in parts")]
    MergeJoint {
        /// The joint projection.
        joint: crate::Projection,
        /// The layer.
        layer: usize,
    },
    /// Row orders or names depend on the base model, which is not given.
    #[error("{reason}, which depends on the base model: name it")]
    BaseNeeded {
        /// Part of the work that needs the base model.
        reason: &'static str,
    },
    /// There is nothing to write: no matrix is changed.
    #[error("the result changes nothing: there is no matrix in it")]
    MergeEmpty,
    /// The caller stopped the work.
    #[error("cancelled")]
    Cancelled,
    /// A decomposition did not converge.
    #[error("the singular value decomposition of {name} does not converge")]
    Decomposition {
        /// The matrix.
        name: String,
    },
    /// A projection that a file format has no name for.
    #[error("{format} has no name for the {projection} projection")]
    Unnamed {
        /// The format.
        format: &'static str,
        /// The projection.
        projection: crate::Projection,
    },
    /// A result exists, and no replacement was asked for.
    #[error("{} exists; name another or replace it", path.display())]
    Exists {
        /// The file or folder.
        path: PathBuf,
    },
    /// A result exists and cannot be replaced.
    #[error("{} exists and {reason}", path.display())]
    NotReplaced {
        /// The file or folder.
        path: PathBuf,
        /// Reason of the refusal, with the remedy.
        reason: &'static str,
    },
    /// A result could not be written.
    #[error("cannot write {}", path.display())]
    Write {
        /// The file or folder.
        path: PathBuf,
        /// Error of the writer.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A file is no compact adapter file.
    #[error("{} is no compact adapter file; add the adapter to the store and name it", path.display())]
    NotCompact {
        /// The file.
        path: PathBuf,
    },
    /// A compact file is damaged.
    #[error("{} is damaged: {what}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The fault.
        what: String,
    },
    /// A compact file has other contents than when it was registered.
    #[error("{} has changed since it was registered; register it again", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// A compact file is for another model.
    #[error("{} is for another model: {found}; this one is {expected}", path.display())]
    BaseModel {
        /// The file.
        path: PathBuf,
        /// Shape of its model.
        found: String,
        /// Shape of the model.
        expected: String,
    },
    /// A compact file has no factors in this format.
    #[error("compact adapter files have F16 and I8 factors, none in {}", format.name())]
    Format {
        /// The format.
        format: ruvllm_kernels::low_rank::FactorFormat,
    },
    /// An adapter has more sites than a compact file can list.
    #[error("{}: the adapter has more factors than a compact file can list", path.display())]
    TooManySites {
        /// The file.
        path: PathBuf,
    },
    /// A file of the store could not be written or removed.
    #[error("cannot write {}", path.display())]
    StoreWrite {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        #[source]
        source: std::io::Error,
    },
    /// A name that no adapter can have.
    #[error("{name:?} is no name of an adapter: {why}")]
    Name {
        /// Its beginning.
        name: String,
        /// The fault.
        why: &'static str,
    },
    /// No adapter of this name is there for the tenant.
    #[error("no adapter {name:?}")]
    UnknownAdapter {
        /// The beginning of the name.
        name: String,
    },
    /// An adapter of this name is there already.
    #[error("there is an adapter {name:?} already")]
    NameTaken {
        /// The name.
        name: String,
    },
    /// A tenant has as many adapters as it may.
    #[error("tenant {tenant:?} has {quota} adapters, its quota")]
    Quota {
        /// Path of the tenant.
        tenant: String,
        /// Largest number of adapters.
        quota: usize,
    },
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
            | Self::InGate { .. }
            | Self::Gguf { .. }
            | Self::Empty { .. }
            | Self::Layout { .. }
            | Self::Micro { .. }
            | Self::MergeShapes { .. }
            | Self::MergeArchitectures { .. }
            | Self::Exists { .. }
            | Self::NotReplaced { .. }
            | Self::Write { .. }
            | Self::Cancelled
            | Self::Memory { .. } => self,
            other => Self::InFile { path: path.to_owned(), source: Box::new(other) },
        }
    }
}
