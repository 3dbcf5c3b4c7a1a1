//! Quantization of activations with NEON.

use std::arch::aarch64::*;

use super::q8::{Order, OrderedQuants, Q8Leaf, Q8SubBlock, TILE_TOKENS};
use crate::lanes::{LANES, NeonLanes, ScalarLanes};
use crate::matmul::neon::vector::{load, store};
use crate::quant::SUB_BLOCK;

impl<const LEVEL: u8> Q8Leaf for NeonLanes<LEVEL> {
    #[inline(always)]
    fn sub_block(self, x: &[f32; SUB_BLOCK]) -> Q8SubBlock {
        // SAFETY: a value of `NeonLanes` exists only where NEON is present.
        unsafe { sub_block(x) }
    }

    #[inline(always)]
    fn reorder(self, sub_blocks: &[Q8SubBlock; LANES], order: Order) -> OrderedQuants {
        match order {
            Order::Plain => sub_blocks.each_ref().map(|b| bytemuck::cast(b.quants)),
            _ => ScalarLanes.reorder(sub_blocks, order),
        }
    }

    #[inline(always)]
    fn interleave(self, tokens: &[Q8SubBlock; TILE_TOKENS]) -> [[[i8; 4]; TILE_TOKENS]; SUB_BLOCK / 4] {
        // SAFETY: a value of `NeonLanes` exists only where NEON is present.
        unsafe { interleave(tokens) }
    }
}

#[target_feature(enable = "neon")]
#[inline]
fn sub_block(x: &[f32; SUB_BLOCK]) -> Q8SubBlock {
    let mut values = [vdupq_n_f32(0.0); SUB_BLOCK / 4];
    for (value, x) in values.iter_mut().zip(x.as_chunks::<4>().0) {
        *value = vreinterpretq_f32_u8(load(x));
    }
    // As integers, magnitudes sort like floats, with infinity and then NaN above all of them.
    let mut largest = vdupq_n_u32(0);
    for &value in &values {
        largest = vmaxq_u32(largest, vreinterpretq_u32_f32(vabsq_f32(value)));
    }
    let largest = f32::from_bits(vmaxvq_u32(largest));
    let inverse = match Q8SubBlock::inverse_scale(largest) {
        Ok(inverse) => inverse,
        Err(without_scale) => return without_scale,
    };
    // The conversion rounds to nearest, ties to even.
    let rounded = values.map(|x| vcvtnq_s32_f32(vmulq_n_f32(x, inverse)));
    let mut bytes = [0; SUB_BLOCK];
    let mut halves = [0; 2];
    for (h, to) in bytes.as_chunks_mut::<{ SUB_BLOCK / 2 }>().0.iter_mut().enumerate() {
        let [a, b, c, d] = rounded.as_chunks().0[h];
        let low = vqmovn_high_s32(vqmovn_s32(a), b);
        let high = vqmovn_high_s32(vqmovn_s32(c), d);
        let quants = vqmovn_high_s16(vqmovn_s16(low), high);
        halves[h] = vaddlvq_s8(quants);
        store(to, vreinterpretq_u8_s8(quants));
    }
    Q8SubBlock::from_quants(bytes, halves, largest)
}

#[target_feature(enable = "neon")]
#[inline]
fn interleave(tokens: &[Q8SubBlock; TILE_TOKENS]) -> [[[i8; 4]; TILE_TOKENS]; SUB_BLOCK / 4] {
    let mut interleaved = [[0_u32; 4 * TILE_TOKENS]; 2];
    for (half, to) in interleaved.iter_mut().enumerate() {
        let [a, b, c, d] = tokens.each_ref().map(|token| {
            let halves = token.quants.as_chunks::<{ SUB_BLOCK / 2 }>().0;
            vreinterpretq_u32_u8(load(&halves[half]))
        });
        // SAFETY: `to` is 64 writable bytes, aligned for its elements.
        unsafe { vst4q_u32(to.as_mut_ptr(), uint32x4x4_t(a, b, c, d)) };
    }
    bytemuck::cast(interleaved)
}
