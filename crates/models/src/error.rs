//! The error type of this crate: one variant per condition, with the numbers that explain it.

use std::path::PathBuf;

/// Result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Errors of loading and running models.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file is not a well-formed GGUF, or a metadata value has another type than the model
    /// needs.
    #[error(transparent)]
    Gguf(#[from] gguf_rs_lite::Error),

    /// The arithmetic layer refused its input, for instance a matrix whose bytes do not fit its
    /// shape.
    #[error(transparent)]
    Kernels(#[from] ruvllm_kernels::Error),

    /// A tokenizer or chat template cannot be read or used.
    #[error(transparent)]
    Text(#[from] ruvllm_text::Error),

    /// The file holds a model of a family that this crate does not implement.
    #[error("architecture `{found}` is not supported (supported: {supported})")]
    UnsupportedArchitecture {
        /// The value of `general.architecture`.
        found: String,
        /// The families that can be loaded; names that begin alike share their beginning.
        supported: String,
    },

    /// The model encodes texts: it gives embeddings, and no text.
    #[error(
        "architecture `{architecture}` is an encoder: it gives embeddings of texts (`embed`) and generates none"
    )]
    IsEncoder {
        /// The value of `general.architecture`.
        architecture: String,
    },

    /// The model has no classification head, and scores no pairs of texts.
    #[error("the model has no classification head (`cls.output.weight`), so it gives no scores")]
    NoHead,

    /// The tokenizer of a reranker lacks one of its answers.
    #[error(
        "the tokenizer has no token `{token}`, with which a reranker in the form of Qwen3-Reranker answers; the folder needs the tokenizer of its model"
    )]
    NoAnswerToken {
        /// The answer.
        token: &'static str,
    },

    /// The file has the output of a BERT head without its hidden layer.
    #[error(
        "the file has `cls.output.weight` without `cls.weight`: its converter left out the pooler, without which scores are wrong; use the Hugging Face folder, or a file converted from it by `ruvllm convert`"
    )]
    HeadWithoutHidden,

    /// A folder holds no model that can be read.
    #[error("{} holds no model: {reason}", path.display())]
    NotAModelFolder {
        /// The folder.
        path: PathBuf,
        /// Reason, such as a missing file.
        reason: &'static str,
    },

    /// A file of a model folder could not be read.
    #[error("cannot read {}", path.display())]
    ReadFile {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        source: std::io::Error,
    },

    /// A file of a model folder is larger than any such file.
    #[error("{} has more than {limit} bytes, which no model needs", path.display())]
    FileTooLarge {
        /// The file.
        path: PathBuf,
        /// Most bytes that are read.
        limit: u64,
    },

    /// A JSON file of a model folder has more values than any such file.
    #[error("{} has more than {limit} values, which no model needs", path.display())]
    TooManyValues {
        /// The file.
        path: PathBuf,
        /// Most values that are read.
        limit: usize,
    },

    /// A text file of a model folder is not UTF-8.
    #[error("{} is not UTF-8 text", path.display())]
    NotUtf8 {
        /// The file.
        path: PathBuf,
    },

    /// A file of a model folder is not JSON, or no object.
    #[error("{} is no valid JSON object", path.display())]
    InvalidJson {
        /// The file.
        path: PathBuf,
        /// Error of the JSON parser.
        source: serde_json::Error,
    },

    /// A field of a JSON file has a value that no model that can be run has.
    #[error("{field} is {found}, expected {expected}")]
    InvalidField {
        /// The file and the field, with the names of the objects it is in.
        field: String,
        /// Its value.
        found: String,
        /// Description of a valid value.
        expected: String,
    },

    /// A field that the model needs is absent.
    #[error("{field} is missing, expected {expected}")]
    MissingField {
        /// The file and the field, with the names of the objects it is in.
        field: String,
        /// Description of a valid value.
        expected: String,
    },

    /// A weight file is damaged, or shorter than its header says: a download that broke off.
    #[error("{} is damaged or incomplete", path.display())]
    Safetensors {
        /// The file.
        path: PathBuf,
        /// Error of the safetensors reader.
        source: safetensors::SafeTensorError,
    },

    /// The index of a model in several files names one that is not there.
    #[error("{} names {file}, which is not there", index.display())]
    MissingShard {
        /// The index.
        index: PathBuf,
        /// The file.
        file: String,
    },

    /// A weight file lacks a tensor that the index promises.
    #[error("{} says that tensor `{name}` is in {file}, which does not have it", index.display())]
    MissingInShard {
        /// The index.
        index: PathBuf,
        /// Name of the tensor.
        name: String,
        /// The file.
        file: String,
    },

    /// Two tensors of a model have one name.
    #[error("tensor `{name}` is there twice")]
    DuplicateTensor {
        /// Name of the tensor.
        name: String,
    },

    /// The tokenizer makes ids that the embedding has no rows for: they are of different models.
    #[error(
        "the tokenizer has {tokenizer} ids and the embedding {embedding} rows: they are of different models"
    )]
    VocabularySize {
        /// Ids of the tokenizer.
        tokenizer: usize,
        /// Rows of the embedding.
        embedding: usize,
    },

    /// A hyperparameter that the family needs is absent.
    #[error("metadata key `{key}` is missing, expected {expected}")]
    MissingKey {
        /// The full key.
        key: String,
        /// Description of a valid value.
        expected: String,
    },

    /// A hyperparameter has a value that no model of the family can have.
    #[error("metadata key `{key}` is {found}, expected {expected}")]
    InvalidKey {
        /// The full key.
        key: String,
        /// The value in the file.
        found: String,
        /// Description of a valid value.
        expected: String,
    },

    /// A tensor that the architecture needs is absent.
    #[error("tensor `{name}` is missing")]
    MissingTensor {
        /// Name of the tensor.
        name: String,
    },

    /// The file has a tensor that this family does not use. Ignoring it would compute another
    /// model.
    #[error("tensor `{name}` is not part of a `{architecture}` model as this version knows it")]
    UnexpectedTensor {
        /// Name of the tensor.
        name: String,
        /// The family of the model.
        architecture: String,
    },

    /// A layer has its experts in one tensor and single ones beside it.
    #[error(
        "tensor `{joint}` holds all experts of a layer, and `{single}` a single one: remove those of one form"
    )]
    MixedExperts {
        /// Name of the tensor of all experts.
        joint: String,
        /// Name of a matrix of a single expert.
        single: String,
    },

    /// A tensor is stored in a weight format that has no kernels.
    #[error("tensor `{name}` has type {found}, which is not supported (supported: {supported})")]
    UnsupportedTensorType {
        /// Name of the tensor.
        name: String,
        /// Its type in the file.
        found: &'static str,
        /// The types that can be loaded, separated by commas.
        supported: String,
    },

    /// A tensor has another shape than the hyperparameters require. Dimensions are in file order,
    /// columns first.
    #[error("tensor `{name}` has shape {found:?}, expected {expected:?} (columns first)")]
    TensorShape {
        /// Name of the tensor.
        name: String,
        /// Dimensions that follow from the hyperparameters.
        expected: Vec<u64>,
        /// Dimensions in the file.
        found: Vec<u64>,
    },

    /// A tensor holds a value that the model cannot compute with.
    #[error("tensor `{name}` has {found} at index {index}, expected {expected}")]
    TensorValue {
        /// Name of the tensor.
        name: String,
        /// Index of the value.
        index: usize,
        /// The value.
        found: f32,
        /// Description of a valid value.
        expected: String,
    },

    /// A part of a quantized matrix does not fit the others, or no matrix.
    #[error("tensor `{name}` {reason}")]
    QuantizedTensor {
        /// Name of the tensor.
        name: String,
        /// Disagreement, and the expected value.
        reason: String,
    },

    /// A weight is not a finite number, or too large for the type that it was to be stored in.
    #[error("tensor `{name}` holds {found} in row {row}, which cannot be stored as {format}")]
    WeightValue {
        /// Name of the tensor.
        name: String,
        /// Row of the value.
        row: usize,
        /// The value.
        found: f32,
        /// The type that the tensor was to get.
        format: &'static str,
    },

    /// A file is not an importance matrix.
    #[error("not an importance matrix: {reason}")]
    ImportanceFile {
        /// Reason.
        reason: String,
    },

    /// An importance matrix names a tensor that the model does not have.
    #[error("the importance matrix is of another model: this one has no tensor `{name}`")]
    ImportanceTensor {
        /// Name of the tensor.
        name: String,
    },

    /// An importance matrix has another number of columns for a tensor than the model, or of
    /// experts.
    #[error(
        "the importance matrix is of another model: `{name}` has {found} values there and {matrices} x {columns} here"
    )]
    ImportanceColumns {
        /// Name of the tensor.
        name: String,
        /// Columns of the tensor.
        columns: u64,
        /// Matrices of the tensor: its experts, or one.
        matrices: u64,
        /// Values of its entry.
        found: u64,
    },

    /// An importance matrix covers another number of layers than the model has.
    #[error("the importance matrix is of another model: it has {found} layers, this one {layers}")]
    ImportanceLayers {
        /// Layers of the model.
        layers: usize,
        /// Layers with an entry.
        found: usize,
    },

    /// A type was asked for by a pattern that no weight matrix matches.
    #[error("no weight matrix has a name that matches `{pattern}`")]
    OverrideUnmatched {
        /// The pattern.
        pattern: String,
    },

    /// The caller stopped the work.
    #[error("stopped on request")]
    Cancelled,

    /// A KV cache was asked for with no capacity, or with more positions than the model was made
    /// for.
    #[error("a cache of {capacity} tokens was asked for, the model takes 1 to {context_length}")]
    CacheCapacity {
        /// Tokens asked for.
        capacity: usize,
        /// Most positions that the model takes.
        context_length: usize,
    },

    /// The tokens do not fit the sequence or the budget of keys and values, or the policy does not
    /// fit the model. No cache has changed.
    #[error(transparent)]
    KvCache(#[from] ruvllm_kv_cache::Error),

    /// The cache was made for a model of another shape.
    #[error("the cache of segment {segment} is for {found}, the model needs {expected}")]
    CacheShape {
        /// Index of the segment.
        segment: usize,
        /// Layers x heads x head dimension of the cache.
        found: String,
        /// Layers x heads x head dimension of the model.
        expected: String,
    },

    /// An adapter cannot be read or is for another model.
    #[error(transparent)]
    Adapter(#[from] ruvllm_adapters::Error),

    /// An adapter changes a matrix that the model does not store on its own.
    #[error(
        "the {projection} matrix of the model is its embedding too: an adapter that changes it cannot be folded in"
    )]
    TiedMatrix {
        /// The projection.
        projection: ruvllm_adapters::Projection,
    },

    /// Two models that are compared have a tensor of different shapes, or not both.
    #[error(
        "the models are not of one size: {name} is {base:?} in the base and {tuned:?} in the tuned model"
    )]
    TensorDiffers {
        /// The tensor.
        name: String,
        /// Dimensions in the base, fastest-varying first.
        base: Vec<u64>,
        /// Dimensions in the tuned model; empty if it lacks the tensor.
        tuned: Vec<u64>,
    },

    /// A folder of a multimodal model is not written.
    #[error("{} holds more than a text model: name a GGUF file for the result", path.display())]
    Multimodal {
        /// The folder.
        path: PathBuf,
    },

    /// A segment's adapter was made for another model.
    #[error("the adapter of segment {segment} was made for a model of other sizes")]
    AdapterModel {
        /// Index of the segment.
        segment: usize,
    },

    /// A forward pass was asked for without any segment.
    #[error("the batch has no segments")]
    EmptyBatch,

    /// A segment has no tokens.
    #[error("segment {segment} has no tokens")]
    EmptySegment {
        /// Index of the segment.
        segment: usize,
    },

    /// A name that is no kind of pooling.
    #[error("pooling `{found}` is not known (known: mean, last, cls)")]
    UnknownPooling {
        /// The name.
        found: String,
    },

    /// A text has more tokens than an encoder has positions.
    #[error("text {segment} has {tokens} tokens, the model takes at most {context_length}; shorten it")]
    TextOfTokens {
        /// Index of the text.
        segment: usize,
        /// Its length.
        tokens: usize,
        /// Most tokens that the model takes.
        context_length: usize,
    },

    /// A token id is not in the vocabulary.
    #[error("token {index} of segment {segment} is id {token}, the vocabulary has {vocab_size} ids")]
    TokenOutOfRange {
        /// Index of the segment.
        segment: usize,
        /// Index of the token in the segment.
        index: usize,
        /// The id.
        token: u32,
        /// Number of ids that the model knows.
        vocab_size: usize,
    },

    /// The router of a mixture of experts has no finite logits for a token: weights or an adapter
    /// are damaged.
    #[error(
        "layer {layer} cannot choose experts at position {position} of segment {segment}: its router gives NaN or infinity; the model file or an adapter is damaged"
    )]
    RouterLogits {
        /// Index of the layer.
        layer: usize,
        /// Index of the segment.
        segment: usize,
        /// Position of the token in its sequence.
        position: usize,
    },

    /// The model has no head that predicts further tokens.
    #[error("the model has no prediction head (`nextn` tensors), so it makes no drafts of its own")]
    NoPredictionHead,

    /// A prediction head was given another number of hidden states than tokens.
    #[error("{found} values of hidden states for {tokens} tokens, the prediction head needs {expected}")]
    HiddenStates {
        /// Tokens of all segments.
        tokens: usize,
        /// Values that they need.
        expected: usize,
        /// Values given.
        found: usize,
    },

    /// The rows listed for logits are not strictly ascending indices into the segment.
    #[error(
        "segment {segment} asks for logits of row {row}, expected strictly ascending rows below {tokens}"
    )]
    LogitsRow {
        /// Index of the segment.
        segment: usize,
        /// The offending row.
        row: usize,
        /// Number of tokens in the segment.
        tokens: usize,
    },

    /// Memory for a buffer could not be allocated. Free memory or use a smaller context or batch.
    #[error("cannot allocate {bytes} bytes for {what}")]
    OutOfMemory {
        /// Name of the buffer.
        what: &'static str,
        /// Size of the request in bytes.
        bytes: usize,
    },
}

impl Error {
    /// True if the page pool had no room for keys and values or an adapter.
    pub fn is_memory_short(&self) -> bool {
        match self {
            Self::KvCache(source) => source.is_memory_short(),
            Self::Adapter(source) => matches!(source, ruvllm_adapters::Error::Memory { .. }),
            _ => false,
        }
    }
}
