//! Shape of the keys and values of a model.

use std::fmt;

/// Layers, key/value heads and values of a head: the size of a token's keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct KvShape {
    /// Layers, those with other heads included.
    pub n_layers: usize,
    /// Key/value heads of a layer.
    pub n_kv_heads: usize,
    /// Values of a head.
    pub head_dim: usize,
    /// True if the value of a token is its key, as in latent attention: only keys are stored.
    pub values_are_keys: bool,
    /// The last layers, if their heads are others.
    pub others: Option<OtherHeads>,
}

/// Heads of the last layers of a cache, where they differ from those of the layers before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct OtherHeads {
    /// Layers with these heads, fewer than the cache has.
    pub n_layers: usize,
    /// Key/value heads of a layer.
    pub n_kv_heads: usize,
    /// Values of a head.
    pub head_dim: usize,
}

impl KvShape {
    /// A shape of layers alike, whose values have memory of their own.
    pub const fn new(n_layers: usize, n_kv_heads: usize, head_dim: usize) -> Self {
        Self { n_layers, n_kv_heads, head_dim, values_are_keys: false, others: None }
    }

    /// Width of the keys (or values) of one token in the first layer.
    pub fn width(self) -> usize {
        self.n_kv_heads * self.head_dim
    }

    /// Shape of one layer.
    pub fn of_layer(self, layer: usize) -> Self {
        let is_other = |others: &OtherHeads| layer >= self.n_layers - others.n_layers;
        match self.others.filter(is_other) {
            Some(OtherHeads { n_kv_heads, head_dim, .. }) => {
                Self { n_layers: 1, n_kv_heads, head_dim, others: None, ..self }
            }
            None => Self { n_layers: 1, others: None, ..self },
        }
    }

    /// Layers alike, one shape for each kind, in the order of the layers.
    pub fn groups(self) -> impl Iterator<Item = Self> {
        let n_others = self.others.map_or(0, |others| others.n_layers);
        let first = Self { n_layers: self.n_layers - n_others, others: None, ..self };
        let last = self.others.map(|_| Self { n_layers: n_others, ..self.of_layer(self.n_layers - 1) });
        std::iter::once(first).chain(last)
    }

    /// Index of the group of a layer.
    pub(crate) fn group_of(self, layer: usize) -> usize {
        usize::from(self.others.is_some_and(|others| layer >= self.n_layers - others.n_layers))
    }

    /// First layer of each group.
    pub(crate) fn first_layers(self) -> impl Iterator<Item = usize> {
        std::iter::once(0).chain(self.others.map(|others| self.n_layers - others.n_layers))
    }
}

impl fmt::Display for KvShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, Self { n_layers, n_kv_heads, head_dim, .. }) in self.groups().enumerate() {
            let and = if index == 0 { "" } else { " and " };
            write!(f, "{and}{n_layers} layers x {n_kv_heads} heads x {head_dim}")?;
        }
        if self.values_are_keys { f.write_str(", which are keys and values") } else { Ok(()) }
    }
}
