//! Switches in which the layers of one encoder differ from those of another.

/// Switches of an encoder.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct EncoderSpec {
    /// Places of the norms.
    pub norms: EncoderNorms,
    /// Norms are RMS norms, without biases, instead of layer norms.
    pub rms_norms: bool,
    /// Heads of queries and keys have norms.
    pub head_norms: bool,
    /// Matrices must have biases; otherwise the tensors tell.
    pub biases: bool,
    /// Layer norms must have biases; otherwise the tensors tell.
    pub norm_biases: bool,
    /// Queries, keys and values are rows of one matrix.
    pub joint_projection: bool,
    /// Feed-forward network.
    pub network: EncoderNetwork,
    /// Factor of the embeddings of tokens.
    pub embedding_scale: f32,
    /// Factor of query-key products.
    pub attention_scale: f32,
    /// Rotary positions; `None`: an embedding of positions is added to that of the tokens.
    pub rotary: Option<RotaryBases>,
    /// Tokens on either side that a token attends to, `[n_layers]`; `None` for the whole text.
    pub reach: Vec<Option<usize>>,
    /// A classification head may follow, which scores pairs of texts.
    pub may_rank: bool,
    /// Matrices may follow behind the pooling.
    pub may_project: bool,
}

/// Places of an encoder's norms.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum EncoderNorms {
    /// Of the sum of each branch and its input, and of the embeddings.
    Sums,
    /// Before each branch but the first, of the embeddings, and behind the last layer.
    Before,
    /// Before and behind each branch, and behind the last layer.
    Around,
}

/// Feed-forward network of an encoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum EncoderNetwork {
    /// `gelu(up)`, exact.
    Gelu,
    /// `gelu(gate) * up`, exact; the rows of the gate stand before those of `up` in one matrix.
    JointGeGlu,
    /// `gelu(gate) * up`, with the approximation of GELU by `tanh`.
    TanhGeGlu,
    /// `silu(gate) * up`.
    SwiGlu,
}

/// Bases of rotary positions of whole heads; elements `i` and `i + width / 2` make a pair.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct RotaryBases {
    /// Base in layers that see the whole text.
    pub full: f32,
    /// Base in layers with a window.
    pub windowed: f32,
}
