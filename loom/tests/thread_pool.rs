//! The thread pool of `ruvllm-kernels`.
#![cfg(loom)]

#[path = "../../crates/kernels/src/error.rs"]
mod error;
#[path = "../../crates/kernels/src/pool/mod.rs"]
mod pool;

use error::{Error, Result};
