//! Float products for few tokens: a tile of rows with all tokens; weights are read once, in place.

use std::ops::Range;

use super::{FloatFormat, FloatProduct, chunks, load_tail};
use crate::lanes::{LANES, Lanes};

/// Rows per register tile.
const TILE_ROWS: usize = 4;
/// Tokens per register tile: with four rows, one more accumulator would spill on 16 registers.
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
    // The next tile is prefetched while this one is read, line by line in memory order. Prefetches
    // that jump between rows cost a seventh of the bandwidth; the hardware prefetcher alone, which
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
        // Loops instead of closures, which do not reliably inherit the CPU features of the
        // enclosing function. Weights are loaded one at a time: with all activations in registers,
        // one is left.
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
