//! Shape of the keys and values of a model.

use std::fmt;

/// Layers, key/value heads and values of a head: the size of a token's keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct KvShape {
    /// Layers.
    pub n_layers: usize,
    /// Key/value heads of a layer.
    pub n_kv_heads: usize,
    /// Values of a head.
    pub head_dim: usize,
    /// True if the value of a token is its key, as in latent attention: only keys are stored.
    pub values_are_keys: bool,
}

impl KvShape {
    /// A shape whose values have memory of their own.
    pub const fn new(n_layers: usize, n_kv_heads: usize, head_dim: usize) -> Self {
        Self { n_layers, n_kv_heads, head_dim, values_are_keys: false }
    }

    /// Width of the keys (or values) of one token in one layer.
    pub fn width(self) -> usize {
        self.n_kv_heads * self.head_dim
    }
}

impl fmt::Display for KvShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} layers x {} heads x {}", self.n_layers, self.n_kv_heads, self.head_dim)?;
        if self.values_are_keys { f.write_str(", which are keys and values") } else { Ok(()) }
    }
}
