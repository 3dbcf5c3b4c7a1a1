//! Prefix cache: keys and values of shared prefixes, in memory and on disk.
//!
//! [`PrefixTree`] indexes the blocks in memory: a radix tree over tokens whose edges are whole
//! blocks. It owns no keys and values, only cheap handles of the blocks (`B`) and of the states
//! behind some of them (`S`), and offers its leaves for eviction ([`Leaves`]). [`PrefixStore`]
//! keeps blocks as files, named by a hash of everything they depend on, and trusts no file it
//! reads. Neither knows the other, nor what a block holds: the owner of both moves blocks from one
//! to the other.
//!
//! ```text
//! PrefixTree<B> ── lookup ──> Match { blocks, partial, pin }
//!    │ insert
//!    └─ evict ──> Evicted { key, tokens, blocks }
//!                    │
//! PrefixStore <──── put ── find ──> Found { chain, warnings } ── load ──> the bytes of each block
//! ```
//!
//! [`PrefixKey`] decides what two sequences may share: keys and values are equal only if model,
//! adapter, cache format, RoPE scaling *and* tokens are, and visible only inside their [`Scope`].

mod error;
mod key;
pub mod store;
mod tree;

pub use error::{PrefixError, Warning};
pub use key::{AdapterVersion, PrefixKey, Scope};
pub use store::PrefixStore;
pub use store::entry::Fault;
pub use store::folder_key::{FolderKey, Purpose, TAG_BYTES};
pub use tree::{
    Evicted, Inserted, LeafEviction, LeafId, Leaves, Lru, Match, MatchEnd, Partial, PrefixBlocks,
    PrefixChange, PrefixNode, PrefixPin, PrefixTree, PrefixWatch, StateMatch, TreeStatistics,
};
