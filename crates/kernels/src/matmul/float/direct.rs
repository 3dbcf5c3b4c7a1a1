//! Few tokens: a tile of rows with all tokens, straight from the matrix, which is read from memory
//! once.

use std::ops::Range;

use super::{FloatFormat, FloatProduct, chunks, load_tail};
use crate::lanes::{LANES, Lanes};

/// Rows in flight.
const TILE_ROWS: usize = 4;
/// Tokens in flight: with four rows, one accumulator more would be spilled to memory where
/// registers are 16.
const TILE_TOKENS: usize = 2;

/// Computes the outputs of `rows` for all tokens.
#[inline(always)]
pub(super) fn product<L: Lanes, F: FloatFormat>(l: L, product: &FloatProduct<'_>, rows: Range<usize>) {
    for row in rows.clone().step_by(TILE_ROWS) {
        if row + TILE_ROWS <= rows.end {
            all_tokens::<L, F, TILE_ROWS>(l, product, row);
        } else {
            (row..rows.end).for_each(|row| all_tokens::<L, F, 1>(l, product, row));
        }
    }
}

/// All tokens with `R` rows.
#[inline(always)]
fn all_tokens<L: Lanes, F: FloatFormat, const R: usize>(l: L, product: &FloatProduct<'_>, row: usize) {
    for token in (0..product.tokens()).step_by(TILE_TOKENS) {
        if token + 1 == product.tokens() {
            dots::<L, F, R, 1>(l, product, row, token);
        } else {
            dots::<L, F, R, TILE_TOKENS>(l, product, row, token);
        }
    }
}

#[inline(always)]
fn dots<L: Lanes, F: FloatFormat, const R: usize, const T: usize>(
    l: L,
    product: &FloatProduct<'_>,
    row: usize,
    token: usize,
) {
    let n = product.cols / LANES;
    let (rows, x) = (product.rows::<F, R>(row).map(chunks::<F>), product.inputs::<T>(token));
    // The next tile is requested while this one is read, line after line as it lies in memory.
    // Requests that jump from row to row cost a seventh of the bandwidth; the hardware alone, which
    // follows a row for at most a page, half of it.
    let next = if row + 2 * R <= product.n_rows { row + R } else { row };
    let row_bytes = product.cols * size_of::<F>();
    let ahead = &product.weights[next * row_bytes..(next + R) * row_bytes];
    let step = R * size_of::<F::Chunk>();
    let whole = rows.map(|row| &row.0[..n]);
    let values: [&[[f32; LANES]]; T] = x.map(|x| &x.as_chunks().0[..n]);
    let mut acc = [[l.zero(); T]; R];
    for c in 0..n {
        if token == 0 {
            l.prefetch(&ahead[c * step..(c + 1) * step]);
        }
        // Loops and not closures, which do not reliably inherit the CPU features of the function
        // around them. Weights are loaded one at a time: with all tokens' activations in registers,
        // one more is left for them.
        let mut inputs = [l.zero(); T];
        for t in 0..T {
            inputs[t] = l.load(&values[t][c]);
        }
        for r in 0..R {
            multiply(l, F::load(l, &whole[r][c]), &inputs, &mut acc[r]);
        }
    }
    if !product.cols.is_multiple_of(LANES) {
        let mut inputs = [l.zero(); T];
        for t in 0..T {
            inputs[t] = l.load_partial(&x[t][n * LANES..]);
        }
        for r in 0..R {
            multiply(l, load_tail::<L, F>(l, rows[r].1), &inputs, &mut acc[r]);
        }
    }
    for t in 0..T {
        let mut outputs = [0.0; R];
        for r in 0..R {
            outputs[r] = l.sum(acc[r][t]);
        }
        product.write(token + t, row, &outputs);
    }
}

/// One chunk of eight columns of a row with all tokens.
#[inline(always)]
fn multiply<L: Lanes, const T: usize>(l: L, w: L::V, inputs: &[L::V; T], acc: &mut [L::V; T]) {
    for t in 0..T {
        acc[t] = l.fma(w, inputs[t], acc[t]);
    }
}
