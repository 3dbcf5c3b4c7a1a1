//! Operations on rows of f32: one file per operation, with its contract (`impl Kernels`), its generic body and its
//! tests.

pub(crate) mod activation;
pub(crate) mod convert;
pub(crate) mod dot;
pub(crate) mod gram;
pub(crate) mod hadamard;
pub(crate) mod math;
pub(crate) mod norm;
pub(crate) mod product;
pub(crate) mod rope;
pub(crate) mod select;
pub(crate) mod softmax;
