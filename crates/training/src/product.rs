//! Products of frozen weights with the updates of trainable factors, and their derivatives.

use ruvllm_kernels::matmul::{Activations, MatmulJob};
use ruvllm_kernels::quant::PackedMatrix;
use ruvllm_kernels::rows::MatrixView;
use ruvllm_models::{Compute, Linear};

use crate::attention::flip;
use crate::lora::SiteFactors;
use crate::parallel;

/// Rows of a piece of an update: its outputs stay in the second-level cache.
const ROWS: usize = 64;

/// Columns of a piece of a gradient of factors.
const COLUMNS: usize = 64;

/// Computes `outs[i] = W_i x + b_i` of one input, with the updates of `factors`. `components`
/// becomes `alpha / rank * A x`, `[tokens, site rank]`, which the backward pass reads.
pub(crate) fn project<const N: usize>(
    compute: &Compute,
    input: &mut Activations,
    linears: [&Linear; N],
    mut outs: [&mut [f32]; N],
    factors: Option<&SiteFactors<'_>>,
    components: &mut Vec<f32>,
) {
    let Compute { kernels, pool, .. } = compute;
    if linears.iter().any(|linear| linear.weights.format().uses_q8()) {
        input.quantize(kernels, pool);
    }
    let site_rank = factors.map_or(0, SiteFactors::site_rank);
    components.resize(input.tokens() * site_rank, 0.0);
    let mut jobs: Vec<MatmulJob<'_>> = linears
        .iter()
        .zip(&mut outs)
        .map(|(linear, out)| MatmulJob { weights: &linear.weights, out })
        .collect();
    if let Some(factors) = factors {
        jobs.push(MatmulJob { weights: &factors.a, out: components });
    }
    kernels.matmul_many(pool, input, &mut jobs);
    for (linear, out) in linears.iter().zip(&mut outs) {
        if let Some(bias) = &linear.bias {
            let rows = out.chunks_mut(ROWS * bias.len());
            parallel::for_each(pool, rows, |rows| {
                rows.chunks_exact_mut(bias.len()).for_each(|row| kernels.add_assign(row, bias));
            });
        }
    }
    let Some(factors) = factors else { return };
    components.iter_mut().for_each(|component| *component *= factors.scale);
    for block in &factors.modules.blocks {
        let (width, first) = (block.rows.len(), block.module * factors.rank);
        let b = MatrixView::new(factors.b_values(block), factors.rank, width, width);
        let rows = outs[block.target].chunks_mut(ROWS * width).zip(components.chunks(ROWS * site_rank));
        parallel::for_each(pool, rows, |(out, components)| {
            let n_rows = out.len() / width;
            kernels.add_product(
                out,
                MatrixView::new(&components[first..], n_rows, factors.rank, site_rank),
                b,
            );
        });
    }
}

/// Memory of [`backward`].
#[derive(Default)]
pub(crate) struct Scratch {
    components: Vec<f32>,
    flipped: Vec<f32>,
    flipped_gradients: Vec<f32>,
}

/// Forward values of a product, and where its gradients go.
pub(crate) struct Backward<'a> {
    /// Joined weights, transposed: `[inputs, outputs]`.
    pub(crate) transposed: &'a PackedMatrix,
    pub(crate) factors: Option<&'a SiteFactors<'a>>,
    /// Input of the forward pass, `[tokens, inputs]`.
    pub(crate) input: &'a [f32],
    /// As [`project`] computed them.
    pub(crate) components: &'a [f32],
    /// Gradient of the input, `[tokens, inputs]`, overwritten; `None` where nothing before it is
    /// trained.
    pub(crate) input_gradient: Option<&'a mut [f32]>,
    /// Gradients of all factors, added to.
    pub(crate) gradients: &'a mut [f32],
}

/// Derivatives of [`project`]: from the gradients of all outputs, side by side in `outputs`, those
/// of the input and of the factors.
pub(crate) fn backward(
    compute: &Compute,
    outputs: &mut Activations,
    job: Backward<'_>,
    scratch: &mut Scratch,
) {
    let Compute { kernels, pool, .. } = compute;
    let Backward { transposed, factors, input, components, mut input_gradient, gradients } = job;
    let (tokens, width) = (outputs.tokens(), outputs.cols());
    let mut jobs = Vec::new();
    if let Some(out) = input_gradient.as_deref_mut() {
        if transposed.format().uses_q8() {
            outputs.quantize(kernels, pool);
        }
        jobs.push(MatmulJob { weights: transposed, out });
    }
    let Some(factors) = factors else {
        kernels.matmul_many(pool, outputs, &mut jobs);
        return;
    };
    let site_rank = factors.site_rank();
    let Scratch { components: component_gradients, flipped, flipped_gradients } = scratch;
    component_gradients.resize(tokens * site_rank, 0.0);
    jobs.push(MatmulJob { weights: &factors.b, out: component_gradients });
    kernels.matmul_many(pool, outputs, &mut jobs);
    component_gradients.iter_mut().for_each(|gradient| *gradient *= factors.scale);
    flip(component_gradients, site_rank, flipped_gradients);
    flip(components, site_rank, flipped);

    let inputs = factors.modules.inputs;
    let a = &mut gradients[factors.modules.a.clone()];
    let rows = Strided { values: input, width: inputs, first: 0, columns: inputs };
    add_outer(compute, flipped_gradients, site_rank, rows, a);
    for block in &factors.modules.blocks {
        let first = factors.starts[block.target];
        let rows = Strided { values: outputs.values(), width, first, columns: block.rows.len() };
        let left = &flipped[block.module * factors.rank * tokens..][..factors.rank * tokens];
        add_outer(compute, left, factors.rank, rows, &mut gradients[block.values.clone()]);
    }
    if let Some(out) = input_gradient {
        let a = MatrixView::new(factors.a_values(), site_rank, inputs, inputs);
        let rows = out.chunks_mut(ROWS * inputs).zip(component_gradients.chunks(ROWS * site_rank));
        parallel::for_each(pool, rows, |(out, components)| {
            let weights = MatrixView::new(components, out.len() / inputs, site_rank, site_rank);
            kernels.add_product(out, weights, a);
        });
    }
}

/// Some columns of row-major rows.
#[derive(Clone, Copy)]
struct Strided<'a> {
    values: &'a [f32],
    width: usize,
    first: usize,
    columns: usize,
}

/// Adds a product over all tokens, `out += left rows`, with `left`, `[n, tokens]`. Each thread
/// takes some columns, so a sum has one order: the tokens'.
fn add_outer(compute: &Compute, left: &[f32], n: usize, rows: Strided<'_>, out: &mut [f32]) {
    let Compute { kernels, pool, .. } = compute;
    let Strided { values, width, first, columns } = rows;
    let tokens = values.len() / width;
    let mut parts: Vec<Vec<&mut [f32]>> =
        (0..columns.div_ceil(COLUMNS)).map(|_| Vec::with_capacity(n)).collect();
    for row in out.chunks_exact_mut(columns) {
        for (part, piece) in parts.iter_mut().zip(row.chunks_mut(COLUMNS)) {
            part.push(piece);
        }
    }
    parallel::for_each(pool, parts.into_iter().enumerate(), |(part, mut pieces)| {
        let n_columns = pieces.first().map_or(0, |piece| piece.len());
        let mut sums = Vec::with_capacity(n * n_columns);
        pieces.iter().for_each(|piece| sums.extend_from_slice(piece));
        for start in (0..tokens).step_by(ROWS) {
            let len = ROWS.min(tokens - start);
            let weights = MatrixView::new(&left[start..], n, len, tokens);
            let right = &values[start * width + first + part * COLUMNS..];
            kernels.add_product(&mut sums, weights, MatrixView::new(right, len, n_columns, width));
        }
        for (piece, sums) in pieces.iter_mut().zip(sums.chunks_exact(n_columns)) {
            piece.copy_from_slice(sums);
        }
    });
}
