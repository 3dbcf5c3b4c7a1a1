//! Vector search: distances, and quantization of vectors to fewer bytes.
//!
//! | storage | bytes per value | quantized by | compared by |
//! |---|---|---|---|
//! | [`VectorRows::F32`], [`VectorRows::F16`] | 4, 2 | - | [`distance`](crate::Kernels::distance), [`distances`](crate::Kernels::distances) |
//! | [`VectorRows::Int8`] | 1 | [`quantize_int8`](crate::Kernels::quantize_int8) | the same |
//! | [`VectorRows::Int4`] | 1/2 | [`quantize_int4`](crate::Kernels::quantize_int4) | the same |
//! | sign bits, `u64` words | 1/8 | [`quantize_bits`](crate::Kernels::quantize_bits) | [`hamming`](crate::Kernels::hamming), [`hammings`](crate::Kernels::hammings) |
//! | [`ProductQuantizer`] codes | `subspaces / dim` | [`ProductQuantizer::encode`] | [`AdcTable::distances`] |
//!
//! # Example
//! ```
//! use ruvllm_kernels::Kernels;
//! use ruvllm_kernels::vector::{Metric, VectorRows};
//!
//! let (rows, mut distances) = ([1.0, 0.0, 0.0, 1.0], [0.0; 2]);
//! let query = VectorRows::F32(&[1.0, 0.0]);
//! Kernels::detect()?.distances(Metric::Cosine, query, VectorRows::F32(&rows), &mut distances);
//! assert!(distances[0] < distances[1]);
//! # Ok::<(), ruvllm_kernels::Error>(())
//! ```
//!
//! # Files
//! `rows.rs`: formats; `step.rs`: steps of 32 values; `distance.rs`: metrics; `integer.rs`: leaves
//! per instruction set for INT8 and INT4.

mod bits;
mod distance;
mod integer;
mod product;
mod quantize;
mod rows;
mod step;

pub use distance::Metric;
pub use product::{AdcTable, ProductQuantizer, ProductTraining};
pub use rows::VectorRows;

pub(crate) use bits::{hamming, hammings};
pub(crate) use distance::{
    column_distances, distance_f16, distance_f32, distance_int4, distance_int8, distances,
};
pub(crate) use quantize::{quantize_int4, quantize_int8};
