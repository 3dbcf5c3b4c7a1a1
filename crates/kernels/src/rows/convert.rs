//! Conversion between f32 and the 16-bit float types.

use half::{bf16, f16};

use crate::Kernels;
use crate::lanes::{LANES, Lanes};

impl Kernels {
    /// Rounds to half precision, to nearest, ties to even.
    ///
    /// Magnitudes from 65520 become infinity (65504 is the largest finite value); subnormal results
    /// are kept. A NaN becomes quiet and keeps its sign and the upper ten bits of its payload.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn f32_to_f16(&self, x: &[f32], out: &mut [f16]) {
        assert_eq!(x.len(), out.len(), "f32_to_f16: input and output differ in length");
        // SAFETY: `self` exists only where the slot's instruction set is present.
        unsafe { (self.slots.f32_to_f16)(x, out) }
    }

    /// Widens half precision; exact. A NaN becomes quiet and keeps its sign and payload.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn f16_to_f32(&self, x: &[f16], out: &mut [f32]) {
        assert_eq!(x.len(), out.len(), "f16_to_f32: input and output differ in length");
        // SAFETY: `self` exists only where the slot's instruction set is present.
        unsafe { (self.slots.f16_to_f32)(x, out) }
    }

    /// Rounds to bfloat16, to nearest, ties to even.
    ///
    /// Overflow gives infinity; subnormal results are kept. A NaN becomes quiet and keeps its sign
    /// and the upper seven bits of its payload.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn f32_to_bf16(&self, x: &[f32], out: &mut [bf16]) {
        assert_eq!(x.len(), out.len(), "f32_to_bf16: input and output differ in length");
        // SAFETY: `self` exists only where the slot's instruction set is present.
        unsafe { (self.slots.f32_to_bf16)(x, out) }
    }

    /// Widens bfloat16; exact, NaNs bit by bit.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn bf16_to_f32(&self, x: &[bf16], out: &mut [f32]) {
        assert_eq!(x.len(), out.len(), "bf16_to_f32: input and output differ in length");
        // SAFETY: `self` exists only where the slot's instruction set is present.
        unsafe { (self.slots.bf16_to_f32)(x, out) }
    }
}

#[inline(always)]
pub(crate) fn f32_to_f16<L: Lanes>(l: L, x: &[f32], out: &mut [f16]) {
    let (x_chunks, x_tail) = x.as_chunks::<LANES>();
    let (out_chunks, out_tail) = out.as_chunks_mut::<LANES>();
    for (x, out) in x_chunks.iter().zip(out_chunks) {
        l.store_f16(l.load(x), out);
    }
    if !x_tail.is_empty() {
        l.store_partial_f16(l.load_partial(x_tail), out_tail);
    }
}

#[inline(always)]
pub(crate) fn f16_to_f32<L: Lanes>(l: L, x: &[f16], out: &mut [f32]) {
    let (x_chunks, x_tail) = x.as_chunks::<LANES>();
    let (out_chunks, out_tail) = out.as_chunks_mut::<LANES>();
    for (x, out) in x_chunks.iter().zip(out_chunks) {
        l.store(l.load_f16(x), out);
    }
    if !x_tail.is_empty() {
        l.store_partial(l.load_partial_f16(x_tail), out_tail);
    }
}

#[inline(always)]
pub(crate) fn f32_to_bf16<L: Lanes>(l: L, x: &[f32], out: &mut [bf16]) {
    let (x_chunks, x_tail) = x.as_chunks::<LANES>();
    let (out_chunks, out_tail) = out.as_chunks_mut::<LANES>();
    for (x, out) in x_chunks.iter().zip(out_chunks) {
        l.store_bf16(l.load(x), out);
    }
    if !x_tail.is_empty() {
        let mut full = [bf16::ZERO; LANES];
        l.store_bf16(l.load_partial(x_tail), &mut full);
        out_tail.copy_from_slice(&full[..out_tail.len()]);
    }
}

#[inline(always)]
pub(crate) fn bf16_to_f32<L: Lanes>(l: L, x: &[bf16], out: &mut [f32]) {
    let (x_chunks, x_tail) = x.as_chunks::<LANES>();
    let (out_chunks, out_tail) = out.as_chunks_mut::<LANES>();
    for (x, out) in x_chunks.iter().zip(out_chunks) {
        l.store(l.load_bf16(x), out);
    }
    if !x_tail.is_empty() {
        l.store_partial(l.load_partial_bf16(x_tail), out_tail);
    }
}
