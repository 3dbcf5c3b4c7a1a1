//! Content of a step.

use crate::request::RequestId;

/// Tokens of one request in a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Work {
    /// The request.
    pub id: RequestId,
    /// Tokens to compute, at least 1.
    pub tokens: usize,
    /// True if the step computes the last token that the request has: its logits give the next one.
    pub samples: bool,
}
