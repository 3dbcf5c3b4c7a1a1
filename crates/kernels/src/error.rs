//! The crate's one error type. Only *data* ends up here (a requested instruction set, a
//! configuration, bytes of a file); a caller's own buffers of the wrong length are programming
//! errors and panic, as each method documents.
//!
//! Every module returns these errors, so they carry names and numbers, never types of a module.

/// Failures to build kernels, pools, tables and matrices from outside data.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The name is not an instruction set this crate knows; use one of
    /// [`Isa::ALL`](crate::Isa::ALL).
    #[error("unknown instruction set {name:?}: expected one of {expected}")]
    UnknownIsa {
        /// The name as it was given.
        name: String,
        /// The known names, separated by commas.
        expected: String,
    },

    /// The instruction set is known, but this CPU or this build does not have it. Nothing falls
    /// back silently: ask for another one, or for none to get the best.
    #[error("instruction set {isa} is not available here: use {best} or leave the choice open")]
    IsaUnavailable {
        /// Name of the requested instruction set.
        isa: &'static str,
        /// Name of the best available one.
        best: &'static str,
    },

    /// A thread pool needs at least the calling thread.
    #[error("a thread pool of {threads} threads: use 1 to {max}")]
    ThreadCount {
        /// The number that was asked for.
        threads: usize,
        /// The largest supported number.
        max: usize,
    },

    /// The operating system refused to start a worker thread; the workers started before it have
    /// been joined.
    #[error("cannot start worker thread {worker}")]
    ThreadSpawn {
        /// Index of the worker that could not be started.
        worker: usize,
        /// The operating system's reason.
        source: std::io::Error,
    },

    /// The rotary dimension is zero or odd; it counts values, which are rotated in pairs.
    #[error("rotary dimension {rotary_dim} is not a positive even number")]
    RotaryDim {
        /// The dimension that was given.
        rotary_dim: usize,
    },

    /// A list of per-frequency numbers of a rotary embedding has the wrong length; one per pair is
    /// needed.
    #[error("{what} has {found} values, a rotary embedding of {expected} pairs needs {expected}")]
    RopeFactors {
        /// Name of the list.
        what: &'static str,
        /// Number of values that were given.
        found: usize,
        /// Number of values needed: half the rotary dimension.
        expected: usize,
    },

    /// A parameter of a rotary embedding lies outside the range in which its formula has a meaning.
    #[error("rotary embedding parameter {name} = {value} is out of range: {expected}")]
    RopeParameter {
        /// Name of the parameter.
        name: &'static str,
        /// Its value.
        value: f64,
        /// The accepted range, in words.
        expected: &'static str,
    },

    /// The rows of a matrix must be whole quant blocks of its format; the file is damaged or names
    /// the wrong format.
    #[error("a {format} matrix of {cols} columns: rows must be whole quant blocks of {block_len} values")]
    MatrixCols {
        /// Name of the format.
        format: &'static str,
        /// Number of columns that was given.
        cols: usize,
        /// Values per quant block.
        block_len: usize,
    },

    /// The bytes of a matrix have another size than its shape; the file is damaged or the shape is
    /// wrong.
    #[error(
        "a {format} matrix of {rows} rows of {row_bytes} bytes ({cols} columns) cannot have {found} bytes"
    )]
    MatrixBytes {
        /// Name of the format.
        format: &'static str,
        /// Number of rows that was given.
        rows: usize,
        /// Number of columns that was given.
        cols: usize,
        /// Bytes per row.
        row_bytes: usize,
        /// Number of bytes that was given.
        found: usize,
    },

    /// A product quantizer cuts vectors into equal parts and has 1 to 256 centroids for each.
    #[error(
        "product quantization of {dim} values into {subspaces} parts with {centroids} centroids each: the parts must be \
         equal and not empty, and the centroids 1 to 256"
    )]
    ProductShape {
        /// Length of the vectors.
        dim: usize,
        /// Number of parts.
        subspaces: usize,
        /// Number of centroids per part.
        centroids: usize,
    },

    /// Vectors to be quantized must be whole rows; to train on, at least one.
    #[error("{found} values are not one or more whole vectors of {dim}")]
    VectorCount {
        /// Number of values that was given.
        found: usize,
        /// Length of the vectors.
        dim: usize,
    },

    /// A vector to be quantized has a value that is NaN or infinite; there is no code for it.
    #[error("vector {row} has a value that is not finite")]
    VectorValue {
        /// Index of the vector.
        row: usize,
    },

    /// The cosine is no sum over the parts of a vector, so product codes have no table of it; bring
    /// the vectors to length 1 and use the dot product.
    #[error("product codes have no table of the cosine: normalize the vectors and use the dot product")]
    CosineTable,

    /// The name is not a format of keys and values; use one of
    /// [`KvFormat::ALL`](crate::attention::KvFormat::ALL).
    #[error("unknown format of keys and values {name:?}: expected one of {expected}")]
    UnknownKvFormat {
        /// The name as it was given.
        name: String,
        /// The known names, separated by commas.
        expected: String,
    },

    /// The format stores heads in groups, and the head size is not a whole number of them; use
    /// another format.
    #[error(
        "keys and values in {format} need heads of a multiple of {multiple} values, these have {head_dim}"
    )]
    KvHeadDim {
        /// Name of the format.
        format: &'static str,
        /// Values of a head.
        head_dim: usize,
        /// Values of a group.
        multiple: usize,
    },

    /// Levels or ranges are invalid; the calibration they come from is damaged.
    #[error("codebooks of nuq3: {what} are not {expected}")]
    NuqCodebooks {
        /// Name of the numbers.
        what: &'static str,
        /// The accepted numbers, in words.
        expected: &'static str,
    },

    /// Too few keys and values to calibrate with, or some that are not finite in half precision.
    #[error(
        "codebooks of nuq3 cannot be learned from {samples} positions: they are too few, or hold numbers that are not finite"
    )]
    NuqSamples {
        /// Positions that were observed.
        samples: usize,
    },

    /// The keys of the format share their scales over consecutive positions, and a block does not
    /// hold whole groups of them; use larger blocks or another format.
    #[error("keys in {format} need blocks of a multiple of {multiple} tokens, these have {block_tokens}")]
    KvBlockTokens {
        /// Name of the format.
        format: &'static str,
        /// Positions of a block.
        block_tokens: usize,
        /// Positions of a group.
        multiple: usize,
    },

    /// Numbers that should be the Gram matrix of queries, by which errors of keys are corrected,
    /// cannot be one: the queries were not finite, or the numbers come from elsewhere. Store the
    /// keys without a correction.
    #[error(
        "the Gram matrix of the queries of a head of {head_dim} values is not finite or not positive semidefinite: use \
         no correction"
    )]
    QueryGram {
        /// Values of a head.
        head_dim: usize,
    },
}

/// Result of this crate's fallible constructors.
pub type Result<T, E = Error> = std::result::Result<T, E>;
