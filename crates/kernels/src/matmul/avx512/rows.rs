//! Row products: weights in file layout times few tokens (decode and small batches).
//!
//! A wide vector holds the eight lanes of two rows, as in all of AVX-512 (ADR-0006): lane `s` of
//! its lower half is sub-block `s` of row `r`, that of its upper half sub-block `s` of row `r + 8`.
//! A group of eight sub-blocks of four rows ([`WideGroup`]) is unpacked and transposed in registers
//! once, and meets all tokens: no panel is written to memory, and a token's values are loaded once
//! for four rows. Eight consecutive products end in the lanes of their accumulators, without a
//! horizontal sum; the accumulators, two per token and row pair, rest in the first-level cache.
//!
//! With one token (decode) nothing is reused, and the accumulators stay in registers:
//! `one_token.rs`.

use std::arch::x86_64::*;

use bytemuck::Zeroable;

use super::group::WideGroup;
use super::one_token::one_token;
use super::pair::{PAIRS, Weights, add_group, weights};
use super::vector::{load_f32, store};
use crate::lanes::{Avx512Lanes, LANES, Vectors, WideLanes};
use crate::matmul::activations::{Order, Q8Group, Q8Token};
use crate::matmul::avx2::rows::{X_BYTES, filled};
use crate::matmul::avx2::vector::prefetch_far;
use crate::matmul::integer::RowSums;
use crate::matmul::panel::PANEL_ROWS;
use crate::quant::QuantBlock;

/// Implements [`RowsLeaf::rows`](crate::matmul::integer::RowsLeaf::rows).
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
pub(super) fn rows<B: WideGroup>(
    lanes: Avx512Lanes,
    blocks: &[B],
    x: &[Q8Token<'_>],
    sums: &mut [RowSums],
    out: &mut [[f32; PANEL_ROWS]],
) {
    let blocks_per_row = x[0].sub_blocks.len() / B::SUB_BLOCKS;
    let blocks_per_group = LANES / B::SUB_BLOCKS;
    let n_groups = blocks_per_row / blocks_per_group;
    sums.fill(Zeroable::zeroed());
    match x {
        [x] => one_token(blocks, &x.groups(Order::Pieces)[..n_groups], blocks_per_row, sums),
        _ => several_tokens(blocks, x, blocks_per_row, sums.as_chunks_mut().0),
    }
    let (sums, _) = sums.as_chunks_mut::<PAIRS>();
    if B::SUB_BLOCKS < LANES && n_groups * blocks_per_group < blocks_per_row {
        add_tails(blocks, x, blocks_per_row, sums);
    }
    for (t, out) in out.iter_mut().take(x.len()).enumerate() {
        let mut acc = [_mm512_setzero_ps(); LANES];
        for (pair, acc) in acc.iter_mut().enumerate() {
            *acc = load_f32(&sums[pair / PAIRS * x.len() + t][pair % PAIRS].0);
        }
        store(out, _mm512_castps_si512(lanes.wide().sums(acc)));
    }
}

/// Adds the products of the blocks behind the last whole group of each row, filled up to a group.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
fn add_tails<B: WideGroup>(
    blocks: &[B],
    x: &[Q8Token<'_>],
    blocks_per_row: usize,
    sums: &mut [[RowSums; PAIRS]],
) {
    let blocks_per_group = LANES / B::SUB_BLOCKS;
    let (n_rows, n_groups) = (blocks.len() / blocks_per_row, blocks_per_row / blocks_per_group);
    let tail = n_groups * blocks_per_group..blocks_per_row;
    let slots = tail.len() * B::SUB_BLOCKS;
    for pair in 0..n_rows.min(LANES) {
        // The last row stands in for a missing one.
        let [low, high] = [pair, pair + LANES].map(|row| {
            let row = row.min(n_rows - 1);
            filled(&blocks[row * blocks_per_row..][tail.clone()])
        });
        let group = weights(&low[..blocks_per_group], &high[..blocks_per_group]);
        for (t, token) in x.iter().enumerate() {
            let RowSums(sums) = &mut sums[pair / PAIRS * x.len() + t][pair % PAIRS];
            let acc = [load_f32(sums)];
            let [acc] = add_group::<B, 1>(&[group], &token.groups(Order::Pieces)[n_groups], acc);
            let mut after = *sums;
            store(&mut after, _mm512_castps_si512(acc));
            // The other accumulators have no product: adding one of zero could change the sign of a
            // zero.
            for (sums, after) in sums.iter_mut().zip(after) {
                sums[..slots].copy_from_slice(&after[..slots]);
            }
        }
    }
}

/// Adds the products of whole groups to the accumulators of up to 16 rows.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
fn several_tokens<B: WideGroup>(
    blocks: &[B],
    x: &[Q8Token<'_>],
    blocks_per_row: usize,
    sums: &mut [[RowSums; PAIRS]],
) {
    let blocks_per_group = LANES / B::SUB_BLOCKS;
    let (n_rows, n_groups) = (blocks.len() / blocks_per_row, blocks_per_row / blocks_per_group);
    let at_once = (X_BYTES / (x.len() * size_of::<Q8Group>())).max(1);
    for first in (0..n_groups).step_by(at_once) {
        for (quad, sums) in sums.chunks_exact_mut(x.len()).enumerate() {
            if quad * PAIRS >= n_rows {
                break;
            }
            // The last row stands in for missing ones.
            let mut rows = [[blocks; 2]; PAIRS];
            for (p, rows) in rows.iter_mut().enumerate() {
                for (half, row) in rows.iter_mut().enumerate() {
                    let r = (quad * PAIRS + p + half * LANES).min(n_rows - 1);
                    *row = &blocks[r * blocks_per_row..(r + 1) * blocks_per_row];
                }
            }
            for i in first..n_groups.min(first + at_once) {
                let group = i * blocks_per_group..(i + 1) * blocks_per_group;
                for row in rows.as_flattened() {
                    prefetch_far(&row[group.clone()], size_of_val(blocks));
                }
                let [[a, b], [c, d]] = rows;
                let first = weights(&a[group.clone()], &b[group.clone()]);
                let second = weights(&c[group.clone()], &d[group]);
                all_tokens::<B>(&[first, second], x, i, sums);
            }
        }
    }
}

/// Adds the products with group `i` of all tokens to their accumulators.
///
/// A function of its own, so that the weights are in registers and not in the frame of the caller.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline(never)]
fn all_tokens<B: QuantBlock>(
    weights: &[Weights; PAIRS],
    x: &[Q8Token<'_>],
    i: usize,
    sums: &mut [[RowSums; PAIRS]],
) {
    let weights = *weights;
    for (x, sums) in x.iter().zip(sums) {
        let mut acc = [_mm512_setzero_ps(); PAIRS];
        for p in 0..PAIRS {
            acc[p] = load_f32(&sums[p].0);
        }
        acc = add_group::<B, PAIRS>(&weights, &x.groups(Order::Pieces)[i], acc);
        for p in 0..PAIRS {
            store(&mut sums[p], _mm512_castps_si512(acc[p]));
        }
    }
}
