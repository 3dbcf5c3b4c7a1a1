//! The kernel pack in use, which is replaced while threads read it, of `ruvllm-kernel-packs`.
#![cfg(loom)]

#[path = "../../crates/kernel-packs/src/current.rs"]
mod current;
#[path = "../../crates/kernel-packs/src/sync.rs"]
mod sync;
