//! Type of token ids.

/// Token id: an index into the vocabulary.
pub type TokenId = u32;
