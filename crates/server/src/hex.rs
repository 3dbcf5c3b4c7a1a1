//! Digests as text.

use std::fmt::Write;

/// Bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        // A string takes every character.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
