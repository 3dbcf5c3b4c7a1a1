//! Faults of a calibration file.

use crate::shape::KvShape;

/// Version of the file format.
pub(super) const FORMAT_VERSION: u32 = 1;

/// Reasons to refuse bytes as a calibration.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CalibrationFault {
    /// No magic number at the start.
    #[error("not a calibration of keys and values")]
    Magic,
    /// Unknown format version.
    #[error("format version {found}, not {FORMAT_VERSION}; calibrate again")]
    Version {
        /// The version they state.
        found: u32,
    },
    /// Wrong length.
    #[error("{found} bytes instead of {expected}")]
    Length {
        /// Bytes that the shape takes, or that a header takes.
        expected: u64,
        /// Length found.
        found: u64,
    },
    /// Checksum mismatch.
    #[error("the checksum is wrong")]
    Checksum,
    /// Codebooks do not match the shape.
    #[error("{layers} codebooks, not all of them for {shape}")]
    Shape {
        /// Codebooks given.
        layers: usize,
        /// The shape given.
        shape: KvShape,
    },
    /// Numbers of a layer are none that keys and values could be read with.
    #[error("layer {layer}")]
    Codebooks {
        /// Index of the layer.
        layer: usize,
        /// The fault in them.
        #[source]
        source: ruvllm_kernels::Error,
    },
}
