//! Operations on rows of f32: dot products, norms, activations, softmax, top-k, conversion.
//!
//! One file per operation: its public method (`impl Kernels`) and its generic body.
//!
//! # Example
//! ```
//! use ruvllm_kernels::Kernels;
//! use ruvllm_kernels::rows::Norm;
//!
//! let (kernels, mut out) = (Kernels::detect()?, [0.0; 4]);
//! kernels.norm(Norm::Rms { weight: &[1.0; 4] }, 0.0, &[2.0, -2.0, 2.0, -2.0], &mut out);
//! assert_eq!(out, [1.0, -1.0, 1.0, -1.0]);
//! # Ok::<(), ruvllm_kernels::Error>(())
//! ```

pub(crate) mod activation;
pub(crate) mod backward;
pub(crate) mod convert;
pub(crate) mod dot;
pub(crate) mod gram;
pub(crate) mod hadamard;
pub(crate) mod norm;
pub(crate) mod product;
pub(crate) mod select;
pub(crate) mod selected;
pub(crate) mod softmax;

pub use activation::Activation;
pub use norm::Norm;
pub use product::MatrixView;
pub use selected::SelectedRows;
