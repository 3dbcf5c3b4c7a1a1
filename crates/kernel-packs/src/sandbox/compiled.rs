//! Compiled modules as bytes. The only unsafe code of the crate.

#![allow(unsafe_code)]

use wasmtime::{Engine, Module};

/// Bytes that an engine of this process or an earlier one wrote, as far as a cache can tell:
/// only [`cache`](super::cache) makes them, after its checks.
pub(super) struct OwnCode<'a>(pub(super) &'a [u8]);

/// Module of compiled code.
///
/// # Errors
/// The error of wasmtime for code of another version, architecture or CPU.
pub(super) fn load(engine: &Engine, code: &OwnCode<'_>) -> wasmtime::Result<Module> {
    // SAFETY: `Module::deserialize` runs the bytes as native code, so they must be the result of
    // `Module::serialize`. They are from a folder that its owner alone can write to, in a file that
    // its owner alone can write to; a header with SHA-256 says that they are what was written for
    // this module and these settings of the engine. Nothing of a pack gets here: packs with
    // anything but WebAssembly are refused when they are verified.
    unsafe { Module::deserialize(engine, code.0) }
}
