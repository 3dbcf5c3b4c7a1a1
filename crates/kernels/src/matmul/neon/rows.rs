//! Row products: weights in file layout times few tokens (decode).
//!
//! Eight sub-blocks at a time. Each leaves its products spread over the four lanes of a vector (of
//! two, where its halves have scales of their own); pairwise additions then bring eight sums into
//! two vectors, in the order of the accumulators.

use std::arch::aarch64::*;

use super::Values;
use super::dot::IntegerDot;
use super::formats::{Group, GroupFactors};
use super::vector::{load, load_f32, load_signed, pair_products, store_f32, sums};
use crate::lanes::{LANES, Lanes};
use crate::matmul::activations::{Order, Q8Group, Q8Token};
use crate::matmul::integer::join;
use crate::matmul::panel::PANEL_ROWS;
use crate::matmul::scalar::accumulate;

/// See [`RowsLeaf::rows`](crate::matmul::integer::RowsLeaf::rows); `MAX` tokens if `EXACT`, else up
/// to `MAX`. Known to the compiler, a small number of tokens keeps its accumulators in registers.
#[target_feature(enable = "neon")]
#[inline]
pub(super) fn rows<L, B, const MAX: usize, const EXACT: bool>(
    lanes: L,
    blocks: &[B],
    x: &[Q8Token<'_>],
    out: &mut [[f32; PANEL_ROWS]],
) where
    L: IntegerDot + Lanes<V = [float32x4_t; 2]>,
    B: Group,
{
    let x = if EXACT { &x[..MAX] } else { x };
    let blocks_per_row = x[0].sub_blocks.len() / B::SUB_BLOCKS;
    let blocks_per_group = LANES / B::SUB_BLOCKS;
    let n_groups = blocks_per_row / blocks_per_group;
    let mut x_groups: [&[Q8Group]; MAX] = [&[]; MAX];
    for (groups, x) in x_groups.iter_mut().zip(x) {
        *groups = &x.groups(Order::Plain)[..n_groups];
    }
    for (row, blocks) in blocks.chunks_exact(blocks_per_row).enumerate() {
        let groups = blocks.chunks_exact(blocks_per_group);
        let tail = groups.remainder();
        let mut acc = [lanes.zero(); MAX];
        for (i, group) in groups.enumerate() {
            let mut values = [[vdupq_n_s8(0); 2]; LANES];
            for (block, values) in group.iter().zip(values.chunks_exact_mut(B::SUB_BLOCKS)) {
                // SAFETY: this function enables NEON.
                unsafe { block.values(values) };
            }
            // SAFETY: this function enables NEON.
            let factors = unsafe { B::group_factors(group) };
            for (x, acc) in x_groups[..x.len()].iter().zip(&mut acc) {
                add_group::<L, B>(lanes, &values, &factors, &x[i], acc);
            }
        }
        for ((out, x), acc) in out.iter_mut().zip(x).zip(acc) {
            out[row] = if tail.is_empty() {
                lanes.sum(acc)
            } else {
                let mut slots = [0.0; LANES];
                for (slots, acc) in slots.as_chunks_mut::<4>().0.iter_mut().zip(acc) {
                    store_f32(slots, acc);
                }
                accumulate(tail, n_groups * LANES, x, &mut slots);
                join(slots)
            };
        }
    }
}

/// Adds the products of eight sub-blocks to their accumulators.
#[target_feature(enable = "neon")]
#[inline]
fn add_group<L: IntegerDot, B: Group>(
    lanes: L,
    values: &[Values; LANES],
    factors: &GroupFactors,
    x: &Q8Group,
    acc: &mut [float32x4_t; 2],
) {
    let isums = if B::HALF_SCALES {
        scaled_sums(lanes, values, factors.halves, x)
    } else {
        plain_sums(lanes, values, x)
    };
    let x_scales = x.scales.as_chunks::<4>().0;
    for (i, acc) in acc.iter_mut().enumerate() {
        let x_scale = load_f32(&x_scales[i]);
        *acc = vfmaq_f32(*acc, vmulq_f32(factors.scales[i], x_scale), vcvtq_f32_s32(isums[i]));
        if B::HALF_MINS {
            let mins = [vmovl_s8(vget_low_s8(factors.min_halves)), vmovl_high_s8(factors.min_halves)];
            let x_sums = vreinterpretq_s16_u8(load(&x.halves.as_chunks::<4>().0[i]));
            let imin = vcvtq_f32_s32(pair_products(mins[i], x_sums));
            *acc = vfmsq_f32(*acc, vmulq_f32(factors.mins[i], x_scale), imin);
        } else if B::HAS_MIN {
            *acc = vfmsq_f32(*acc, factors.mins[i], load_f32(&x.sums.as_chunks::<4>().0[i]));
        }
    }
}

/// The integer dot products of eight sub-blocks.
#[target_feature(enable = "neon")]
#[inline]
fn plain_sums<L: IntegerDot>(lanes: L, values: &[Values; LANES], x: &Q8Group) -> [int32x4_t; 2] {
    let mut spread = [vdupq_n_s32(0); LANES];
    for (s, spread) in spread.iter_mut().enumerate() {
        let x = activations(x, s);
        // SAFETY: this function enables NEON.
        *spread = unsafe { lanes.dot(lanes.dot(*spread, values[s][0], x[0]), values[s][1], x[1]) };
    }
    let [a, b, c, d, e, f, g, h] = spread;
    [sums([a, b, c, d]), sums([e, f, g, h])]
}

/// The same with the integer scales of halves multiplied in.
#[target_feature(enable = "neon")]
#[inline]
fn scaled_sums<L: IntegerDot>(
    lanes: L,
    values: &[Values; LANES],
    scales: int8x16_t,
    x: &Q8Group,
) -> [int32x4_t; 2] {
    let [low, high] = [vmovl_s8(vget_low_s8(scales)), vmovl_high_s8(scales)];
    let scales = [
        vmovl_s16(vget_low_s16(low)),
        vmovl_high_s16(low),
        vmovl_s16(vget_low_s16(high)),
        vmovl_high_s16(high),
    ];
    // Vector `i`: the halves of sub-block `2i`, then those of sub-block `2i + 1`.
    let mut halves = [vdupq_n_s32(0); LANES / 2];
    for (i, halves) in halves.iter_mut().enumerate() {
        let mut spread = [vdupq_n_s32(0); 4];
        for (j, spread) in spread.iter_mut().enumerate() {
            let (s, half) = (2 * i + j / 2, j % 2);
            // SAFETY: this function enables NEON.
            *spread = unsafe { lanes.dot(*spread, values[s][half], activations(x, s)[half]) };
        }
        *halves = vmulq_s32(sums(spread), scales[i]);
    }
    [vpaddq_s32(halves[0], halves[1]), vpaddq_s32(halves[2], halves[3])]
}

/// The quants of sub-block `s` of a group in [`Order::Plain`].
#[target_feature(enable = "neon")]
#[inline]
fn activations(x: &Q8Group, s: usize) -> Values {
    let quants: &[[[i8; 4]; 4]; 2] = bytemuck::cast_ref(&x.quants[s]);
    [load_signed(&quants[0]), load_signed(&quants[1])]
}
