//! Stored prefixes in an S3-compatible object store, shared by several workers.
//!
//! [`ObjectStorage`] is an [`EntryStorage`](ruvllm_kv_cache::prefix::store::EntryStorage) over the
//! crate `object_store`, one object per block. It moves bytes and verifies nothing: all checks are
//! those of [`PrefixStore`](ruvllm_kv_cache::prefix::PrefixStore). Requests of one call run at the
//! same time, and each has an end: an answer that comes later counts as none.
//!
//! HTTP is `ureq` with rustls and ring, as in the rest of the program, on a few threads of its own.

mod answer;
mod error;
mod http;
mod location;
mod storage;

pub use error::Error;
pub use storage::ObjectStorage;

/// The README's example, compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
