//! Activation functions of feed-forward networks and experts.

/// Activation function of [`RowOp::Gated`](crate::RowOp::Gated): of a gate and what it multiplies,
/// or of single values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Activation {
    /// SiLU, `x / (1 + exp(-x))`.
    Silu,
    /// GELU (tanh form), `x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))`.
    GeluTanh,
    /// `x / (1 + exp(-alpha x))` of a gate that is at most `limit`, times `1 + up` with `up` within
    /// `limit` of 0; holds the bits of `alpha` and `limit`.
    ClampedSilu {
        /// Factor within the sigmoid.
        alpha_bits: u32,
        /// Largest gate, and largest magnitude of `up`.
        limit_bits: u32,
    },
    /// `max(x, 0)^2`, without a gate.
    SquaredRelu,
}

impl Activation {
    /// True if a gate multiplies another value.
    pub fn is_gated(self) -> bool {
        self != Self::SquaredRelu
    }

    /// Values that one output is computed from: 2 with a gate, else 1.
    pub fn inputs(self) -> u32 {
        if self.is_gated() { 2 } else { 1 }
    }

    /// Part of kernel names.
    pub(crate) fn name(self) -> String {
        match self {
            Self::Silu => "gated_silu".to_owned(),
            Self::GeluTanh => "gated_gelu".to_owned(),
            Self::ClampedSilu { alpha_bits, limit_bits } => {
                format!("gated_clamped_silu_{alpha_bits:x}_{limit_bits:x}")
            }
            Self::SquaredRelu => "squared_relu".to_owned(),
        }
    }
}
