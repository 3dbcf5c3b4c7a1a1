//! Compiled modules as bytes. The only unsafe code of the crate.

#![allow(unsafe_code)]

use wasmtime::{Engine, Module};

/// Bytes that an engine of this process or an earlier one wrote, as far as a cache can tell:
/// only [`cache`](super::cache) makes them, after its checks.
pub(super) struct OwnCode<'a>(pub(super) &'a [u8]);

/// Module of compiled code.
///
/// [`Module::deserialize`] makes native code of the bytes, so they must be the result of
/// [`Module::serialize`]. They are from a file in a folder, both of which their owner alone can
/// write to, and a header with SHA-256 says that they were written for this module and these
/// settings of the engine. Nothing of a pack gets here: packs with anything but WebAssembly are
/// refused when they are verified.
///
/// # Errors
/// The error of wasmtime for code of another version, architecture or CPU.
pub(super) fn load(engine: &Engine, code: &OwnCode<'_>) -> wasmtime::Result<Module> {
    // SAFETY: the bytes are what `Module::serialize` gave for these settings: only `cache` makes
    // `OwnCode`, after it has checked owner, permissions, key and SHA-256 of the file.
    unsafe { Module::deserialize(engine, code.0) }
}
