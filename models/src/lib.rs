//! The built-in model of `ruvllm` as data: the bytes of a GGUF file of 31.5 MB, and those of its
//! draft model for speculative decoding, of 5.8 MB.
//!
//! A crate of its own, so that a build takes the model only when it asks for it: the program does,
//! and the library's feature `builtin-model`. The README of this crate is the model's card.
//!
//! ```
//! assert_eq!(ruvllm_default_model::gguf()[..4], *b"GGUF");
//! assert_eq!(ruvllm_default_model::draft()[..4], *b"GGUF");
//! ```

#![forbid(unsafe_code)]

/// Name of the model in messages.
pub const NAME: &str = "base-q8_0";

/// Name of its draft model in messages.
pub const DRAFT_NAME: &str = "draft-q8_0";

/// Bytes at an address that suits every tensor and every vector load.
#[repr(C, align(64))]
struct Aligned<T: ?Sized>(T);

static FILE: &Aligned<[u8]> = &Aligned(*include_bytes!("../base-q8_0.gguf"));

static DRAFT: &Aligned<[u8]> = &Aligned(*include_bytes!("../draft-q8_0.gguf"));

/// The GGUF file of the draft model: the same vocabulary, a sixth of the size. At an address that
/// is a multiple of 64.
pub fn draft() -> &'static [u8] {
    &DRAFT.0
}

/// The GGUF file, at an address that is a multiple of 64.
///
/// It is part of the program's read-only data, so its pages are loaded when they are used and
/// shared between processes, as those of a mapped file.
pub fn gguf() -> &'static [u8] {
    &FILE.0
}

#[cfg(test)]
mod tests {
    #[test]
    fn file_is_aligned() {
        assert_eq!(super::gguf().as_ptr().addr() % 64, 0);
        assert_eq!(super::draft().as_ptr().addr() % 64, 0);
    }
}
