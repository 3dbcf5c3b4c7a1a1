//! Faults that health checks find.

use crate::sandbox::Fault;

/// Fault of a kernel that a health check found.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unhealthy {
    /// A call failed.
    #[error("the call with {case} failed: {fault}")]
    Call {
        /// Sizes and parameters.
        case: String,
        /// Its failure.
        fault: Box<Fault>,
    },
    /// A value is too far from the reference.
    #[error("the call with {case} has {found} at {index}, {expected} is right within {bound}")]
    Value {
        /// Sizes and parameters.
        case: String,
        /// Index in the output.
        index: usize,
        /// Text of the value.
        found: String,
        /// Text of the value of the reference.
        expected: String,
        /// Text of the largest error that is accepted.
        bound: String,
    },
    /// The same request gave other bits.
    #[error("the call with {case} gives other bits {repeat}, first at byte {byte}")]
    NotRepeatable {
        /// Sizes and parameters.
        case: String,
        /// Kind of the repetition.
        repeat: Repeat,
        /// First byte of the output that differs.
        byte: usize,
    },
}

/// Repetition of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Repeat {
    /// A second call of the same instance.
    #[error("in a second call")]
    SameInstance,
    /// A call of an instance that nobody has used.
    #[error("in a new instance")]
    NewInstance,
    /// A call of three requests.
    #[error("beside two other requests")]
    Batch,
}
