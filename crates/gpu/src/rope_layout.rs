//! Pairing of dimensions in RoPE.

/// Pairing of dimensions in RoPE.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RopeLayout {
    /// `j` with `j + rotary_dim / 2`.
    Halves,
    /// `2 j` with `2 j + 1`.
    Interleaved,
}
