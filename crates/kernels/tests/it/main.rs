//! Tests of the public interface, above all of [`Kernels`](ruvllm_kernels::Kernels): one executable
//! that links the library.
//!
//! The harness of the unit tests compiles only what they reach. `Kernels` reaches every kernel of
//! every instruction set, so a unit test that named it would compile all of them again.

#![allow(clippy::needless_range_loop)] // several arrays under one index

mod attention;
mod kernels;
mod low_rank;
mod matmul;
mod oracle;
mod properties;
mod quant;
mod recurrence;
mod rope;
mod rows;
mod vector;
