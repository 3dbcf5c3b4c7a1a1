//! Error type of the crate, for outside data: a requested instruction set, a configuration, bytes
//! of a file. Buffers of the wrong length are programming errors and panic, as each method
//! documents.
//!
//! Shared by all modules; variants therefore hold names and numbers, never types of a module.

/// Failures to build kernels, pools, tables and matrices from outside data.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Unknown instruction set name; use one of [`Isa::ALL`](crate::Isa::ALL).
    #[error("unknown instruction set {name:?}: expected one of {expected}")]
    UnknownIsa {
        /// Requested name.
        name: String,
        /// Known names, separated by commas.
        expected: String,
    },

    /// Instruction set that this CPU or this build lacks. There is no silent fallback: request
    /// another one, or none for the best.
    #[error("instruction set {isa} is not available here: use {best} or leave the choice open")]
    IsaUnavailable {
        /// Requested instruction set.
        isa: &'static str,
        /// Best available instruction set.
        best: &'static str,
    },

    /// Thread count out of range; a pool has at least the calling thread.
    #[error("a thread pool of {threads} threads: use 1 to {max}")]
    ThreadCount {
        /// Requested number of threads.
        threads: usize,
        /// Largest supported number.
        max: usize,
    },

    /// The operating system refused to start a worker thread; workers started before it have been
    /// joined.
    #[error("cannot start worker thread {worker}")]
    ThreadSpawn {
        /// Index of the worker that failed to start.
        worker: usize,
        /// Error of the operating system.
        source: std::io::Error,
    },

    /// Rotary dimension that is zero or odd; RoPE rotates values in pairs.
    #[error("rotary dimension {rotary_dim} is not a positive even number")]
    RotaryDim {
        /// Requested rotary dimension.
        rotary_dim: usize,
    },

    /// List of per-frequency RoPE factors with the wrong length; it needs one factor per pair.
    #[error("{what} has {found} values, a rotary embedding of {expected} pairs needs {expected}")]
    RopeFactors {
        /// Name of the list.
        what: &'static str,
        /// Length of the list.
        found: usize,
        /// Required length: half the rotary dimension.
        expected: usize,
    },

    /// RoPE parameter outside the range of its formula.
    #[error("rotary embedding parameter {name} = {value} is out of range: {expected}")]
    RopeParameter {
        /// Name of the parameter.
        name: &'static str,
        /// Value of the parameter.
        value: f64,
        /// Accepted range, in words.
        expected: &'static str,
    },

    /// Matrix row that is not a whole number of quant blocks: damaged file or wrong format.
    #[error("a {format} matrix of {cols} columns: rows must be whole quant blocks of {block_len} values")]
    MatrixCols {
        /// Name of the format.
        format: &'static str,
        /// Number of columns.
        cols: usize,
        /// Values per quant block.
        block_len: usize,
    },

    /// Byte length that does not match the matrix shape: damaged file or wrong shape.
    #[error(
        "a {format} matrix of {rows} rows of {row_bytes} bytes ({cols} columns) cannot have {found} bytes"
    )]
    MatrixBytes {
        /// Name of the format.
        format: &'static str,
        /// Number of rows.
        rows: usize,
        /// Number of columns.
        cols: usize,
        /// Bytes per row.
        row_bytes: usize,
        /// Byte length found.
        found: usize,
    },

    /// Invalid product quantizer: subspaces must be equal and not empty, with 1 to 256 centroids
    /// each.
    #[error(
        "product quantization of {dim} values into {subspaces} parts with {centroids} centroids each: the parts must be \
         equal and not empty, and the centroids 1 to 256"
    )]
    ProductShape {
        /// Length of the vectors.
        dim: usize,
        /// Number of subspaces.
        subspaces: usize,
        /// Number of centroids per subspace.
        centroids: usize,
    },

    /// Length that is not one or more whole vectors.
    #[error("{found} values are not one or more whole vectors of {dim}")]
    VectorCount {
        /// Number of values.
        found: usize,
        /// Length of the vectors.
        dim: usize,
    },

    /// Vector to quantize with a NaN or infinite value.
    #[error("vector {row} has a value that is not finite")]
    VectorValue {
        /// Index of the vector.
        row: usize,
    },

    /// Cosine table requested for product codes. The cosine is no sum over subspaces: normalize the
    /// vectors and use the dot product.
    #[error("product codes have no table of the cosine: normalize the vectors and use the dot product")]
    CosineTable,

    /// Unknown KV format name; use one of [`KvFormat::ALL`](crate::attention::KvFormat::ALL).
    #[error("unknown format of keys and values {name:?}: expected one of {expected}")]
    UnknownKvFormat {
        /// Requested name.
        name: String,
        /// Known names, separated by commas.
        expected: String,
    },

    /// Head size that is not a multiple of the KV format's group size; use another format.
    #[error(
        "keys and values in {format} need heads of a multiple of {multiple} values, these have {head_dim}"
    )]
    KvHeadDim {
        /// Name of the format.
        format: &'static str,
        /// Values per head.
        head_dim: usize,
        /// Values per group.
        multiple: usize,
    },

    /// Invalid levels or ranges: damaged calibration.
    #[error("codebooks of nuq3: {what} are not {expected}")]
    NuqCodebooks {
        /// Name of the invalid values.
        what: &'static str,
        /// Accepted values, in words.
        expected: &'static str,
    },

    /// Too few calibration samples, or samples that are not finite in half precision.
    #[error(
        "codebooks of nuq3 cannot be learned from {samples} positions: they are too few, or hold numbers that are not finite"
    )]
    NuqSamples {
        /// Number of positions observed.
        samples: usize,
    },

    /// KV block size that is not a multiple of the key format's token group.
    ///
    /// Use larger blocks or another format.
    #[error("keys in {format} need blocks of a multiple of {multiple} tokens, these have {block_tokens}")]
    KvBlockTokens {
        /// Name of the format.
        format: &'static str,
        /// Tokens per block.
        block_tokens: usize,
        /// Tokens per group.
        multiple: usize,
    },

    /// Query Gram matrix that is not finite or not positive semidefinite.
    ///
    /// The queries were not finite or the data are damaged; store the keys without correction.
    #[error(
        "the Gram matrix of the queries of a head of {head_dim} values is not finite or not positive semidefinite: use \
         no correction"
    )]
    QueryGram {
        /// Values per head.
        head_dim: usize,
    },
}

/// Result of the crate's fallible functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;
