//! The versions of an adapter that learns, of `ruvllm-adapters`.
#![cfg(loom)]

#[path = "../../crates/adapters/src/sync.rs"]
mod sync;
#[path = "../../crates/adapters/src/micro/versions.rs"]
mod versions;
