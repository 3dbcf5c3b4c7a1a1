//! Kernels of mixtures of experts, but for the products of [`super::product`], [`super::gemm`] and
//! [`super::cooperative`].

mod logits;
mod router;
mod sort;
mod sum;

pub(super) use logits::emit as logits;
pub(crate) use logits::{LOGIT_ROWS, logit_outputs};
pub(super) use router::emit as route;
pub(super) use sort::{declare_tile, emit as sort, fetch_tile};
pub(super) use sum::{affine, scale, sum};

/// Threads of a workgroup of [`affine`] and [`sum()`]; a thread per 4 values.
pub(crate) const PAIR_THREADS: u32 = 256;
