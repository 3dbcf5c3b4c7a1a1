//! Shared parts of the benchmark suites: limits of the machine, and a runner that prints results as
//! fractions of them. The suites are in `suites/`, one file per subject.
//!
//! `cargo bench -p ruvllm-benches --bench matmul` measures; `cargo test -p ruvllm-benches` runs
//! every body once with small shapes. `RUVLLM_ISA` forces an instruction set,
//! `RUVLLM_BENCH_THREADS` a number of threads.

#![deny(unsafe_code)]

mod limits;
mod product;
mod suite;

pub use limits::{Arithmetic, Limits, Peak};
pub use product::Product;
pub use suite::{Suite, Work};

/// `n` values in `-0.5..0.5` from a multiplicative generator; the same on every run.
#[must_use]
pub fn values(n: usize) -> Vec<f32> {
    let mut state = 0x2545_F491_4F6C_DD1Du64;
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5
    };
    (0..n).map(next).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn values_are_spread_around_zero() {
        let values = super::values(10_000);
        let mean = values.iter().sum::<f32>() / 10_000.0;
        assert!(values.iter().all(|v| (-0.5..0.5).contains(v)));
        // Four standard errors of the mean of a uniform distribution.
        assert!(mean.abs() < 4.0 * 0.289 / 100.0, "{mean}");
    }
}
