//! Compact adapter files: one file, one read from disk to memory.
//!
//! ```text
//! header     magic, version, checksums, sections, base model, shapes of sites; 64-byte aligned
//! F16        the factors as a hot adapter has them in memory
//! I8         the factors as a warm adapter has them; starts at a multiple of 64
//! ```
//!
//! Scales and row order are in the factors, for one base model, so loading is a copy into pages
//! with a CRC-32 on the way: no conversion, no parsing of tensors. The I8 section costs half of the
//! F16 one on disk, and makes the warm tier a copy as well, instead of a quantization at each
//! change of tier. SHA-256 digests name the contents; [`CompactFile::verify`] computes them.
//!
//! All numbers are little-endian; the factors are in native byte order of the machines that the
//! kernels support, which are little-endian too.

mod header;
mod read;
mod wire;
mod write;

pub(crate) use header::MAX_TEXT_BYTES;
use header::Section;
pub use read::CompactFile;
pub(crate) use write::{Existing, write};

/// Formats of the sections, in order.
pub(crate) const SECTIONS: [crate::FactorFormat; 2] = [crate::FactorFormat::F16, crate::FactorFormat::I8];

#[cfg(test)]
mod tests;
