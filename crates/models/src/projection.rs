//! Matrix products of decoders and encoders, with the norms and activations before and after them.

use std::ops::Range;

use ruvllm_kernels::matmul::{Activations, MatmulJob};

use crate::compute::Compute;
use crate::rows;

/// Does the last step to the rows of a product's input, and quantizes them in the same pass if the
/// product reads 8 bits.
pub(crate) fn finish(
    compute: &Compute,
    input: &mut Activations,
    q8: bool,
    step: &(dyn Fn(Range<usize>, &mut [f32]) + Sync),
) {
    if q8 {
        input.update_and_quantize(&compute.kernels, &compute.pool, step);
    } else {
        input.update(&compute.pool, step);
    }
}

/// Products of one input with several matrices. The input is quantized when a format needs it and
/// it is not yet.
pub(crate) fn project(compute: &Compute, input: &mut Activations, jobs: &mut [MatmulJob<'_>]) {
    if needs_q8(jobs) {
        input.quantize(&compute.kernels, &compute.pool);
    }
    compute.kernels.matmul_many(&compute.pool, input, jobs);
}

/// True if one of the products reads 8-bit activations.
pub(crate) fn needs_q8(jobs: &[MatmulJob<'_>]) -> bool {
    jobs.iter().any(|job| job.weights.format().uses_q8())
}

/// Adds `bias` to every row.
pub(crate) fn add_bias(compute: &Compute, rows: &mut [f32], bias: Option<&[f32]>) {
    if let Some(bias) = bias {
        let rows = rows.chunks_exact_mut(bias.len());
        rows::for_each(&compute.pool, rows, |row| compute.kernels.add_assign(row, bias));
    }
}
