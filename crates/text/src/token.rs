//! The type of token ids.

/// A token id: an index into a vocabulary.
pub type TokenId = u32;
