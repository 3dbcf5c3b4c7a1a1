//! The formats of adapter files.

pub(crate) mod gguf;
pub(crate) mod peft;
