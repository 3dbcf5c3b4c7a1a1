//! Faults of a calibration's file.

use crate::shape::KvShape;

/// Version of the file format.
pub(super) const FORMAT_VERSION: u32 = 1;

/// Reasons for which bytes are no calibration.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CalibrationFault {
    /// They do not begin as one.
    #[error("not a calibration of keys and values")]
    Magic,
    /// They have a format that this version does not read.
    #[error("format version {found}, not {FORMAT_VERSION}; calibrate again")]
    Version {
        /// The version they state.
        found: u32,
    },
    /// They are too few or too many.
    #[error("{found} bytes instead of {expected}")]
    Length {
        /// Bytes that the shape takes, or that a header takes.
        expected: u64,
        /// Bytes that are there.
        found: u64,
    },
    /// They are not those that were written.
    #[error("the checksum is wrong")]
    Checksum,
    /// The codebooks are not those of such a shape.
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
