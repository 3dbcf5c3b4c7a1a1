//! Activation functions of feed-forward networks.

/// Activation that combines the gate and up projections, or of the up projection alone.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Activation {
    /// `silu(gate) * up`.
    SwiGlu,
    /// `gelu(gate) * up`, with the approximation of GELU by `tanh`.
    GeGlu,
    /// `(up + 1) * gate * sigmoid(alpha * gate)` with `gate` at most `limit` and `up` within
    /// `limit` of 0. Source: gpt-oss, with 1.702 and 7.
    ClampedSwiGlu {
        /// Factor within the sigmoid.
        alpha: f32,
        /// Largest gate, and largest magnitude of `up`.
        limit: f32,
    },
    /// `max(up, 0)^2`, without a gate.
    SquaredRelu,
}

impl Activation {
    /// True if networks have a gate projection.
    pub fn is_gated(self) -> bool {
        self != Self::SquaredRelu
    }
}
