//! Quantization of vectors to 8 and 4 bits per value with one scale per vector, and back.

use super::step::{INT4_LEVELS, STEP, pack, unpack};
use crate::Kernels;
use crate::lanes::{LANES, Lanes};

/// Largest magnitude of an 8-bit code.
const INT8_LEVELS: i8 = 127;

impl Kernels {
    /// Quantizes a vector to 8-bit integers; returns the scale, `max|x| / 127`.
    ///
    /// # Numerics
    /// Round to nearest, ties to even: the error of a value is at most half of the scale (plus its
    /// rounding) if the scale is a normal number. A zero vector has scale 0; a non-finite value
    /// gives scale NaN, so that distances are NaN.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn quantize_int8(&self, x: &[f32], out: &mut [i8]) -> f32 {
        assert_eq!(x.len(), out.len(), "quantize_int8: input and output differ in length");
        // SAFETY: `self` exists only where the slot's instruction set is present.
        unsafe { (self.slots.quantize_int8)(x, out) }
    }

    /// Quantizes a vector to 4-bit integers; returns the scale, `max|x| / 7`.
    ///
    /// # Shapes
    /// `x`: `[dim]`; `out`: `[16 * dim.div_ceil(32)]`, in the layout of
    /// [`VectorRows::Int4`](crate::vector::VectorRows::Int4).
    ///
    /// # Numerics
    /// See [`quantize_int8`](Self::quantize_int8).
    ///
    /// # Panics
    /// If `out` has another length.
    pub fn quantize_int4(&self, x: &[f32], out: &mut [u8]) -> f32 {
        assert_eq!(out.len(), x.len().div_ceil(STEP) * STEP / 2, "quantize_int4: length of the bytes");
        // SAFETY: `self` exists only where the slot's instruction set is present.
        unsafe { (self.slots.quantize_int4)(x, out) }
    }

    /// Dequantizes 8-bit integers.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn dequantize_int8(&self, values: &[i8], scale: f32, out: &mut [f32]) {
        assert_eq!(values.len(), out.len(), "dequantize_int8: input and output differ in length");
        for (value, out) in values.iter().zip(out) {
            *out = f32::from(*value) * scale;
        }
    }

    /// Dequantizes 4-bit integers.
    ///
    /// # Shapes
    /// See [`quantize_int4`](Self::quantize_int4).
    ///
    /// # Panics
    /// If the lengths do not match.
    pub fn dequantize_int4(&self, bytes: &[u8], scale: f32, out: &mut [f32]) {
        assert_eq!(bytes.len(), out.len().div_ceil(STEP) * STEP / 2, "dequantize_int4: length of the bytes");
        for (bytes, out) in bytes.as_chunks().0.iter().zip(out.chunks_mut(STEP)) {
            self.dequantize_int8(&unpack(bytes)[..out.len()], scale, out);
        }
    }
}

#[inline(always)]
pub(crate) fn quantize_int8<L: Lanes>(l: L, x: &[f32], out: &mut [i8]) -> f32 {
    let scale = scale(l, x, INT8_LEVELS);
    let (x_chunks, x_tail) = x.as_chunks::<LANES>();
    let (out_chunks, out_tail) = out.as_chunks_mut::<LANES>();
    for (x, out) in x_chunks.iter().zip(out_chunks) {
        *out = codes(l, l.load(x), scale, INT8_LEVELS);
    }
    if !x_tail.is_empty() {
        let last = codes(l, l.load_partial(x_tail), scale, INT8_LEVELS);
        out_tail.copy_from_slice(&last[..out_tail.len()]);
    }
    scale
}

#[inline(always)]
pub(crate) fn quantize_int4<L: Lanes>(l: L, x: &[f32], out: &mut [u8]) -> f32 {
    let scale = scale(l, x, INT4_LEVELS);
    for (x, out) in x.chunks(STEP).zip(out.as_chunks_mut().0) {
        let mut values = [0; STEP];
        for (x, values) in x.chunks(LANES).zip(values.as_chunks_mut().0) {
            *values = codes(l, l.load_partial(x), scale, INT4_LEVELS);
        }
        *out = pack(&values);
    }
    scale
}

/// Scale `max|x| / levels`; NaN if a value is not finite.
#[inline(always)]
fn scale<L: Lanes>(l: L, x: &[f32], levels: i8) -> f32 {
    let (chunks, tail) = x.as_chunks::<LANES>();
    let (mut largest, mut poison) = (l.zero(), l.zero());
    for x in chunks {
        (largest, poison) = see(l, l.load(x), largest, poison);
    }
    (largest, poison) = see(l, l.load_partial(tail), largest, poison);
    l.max_lane(largest) / f32::from(levels) + l.sum(poison)
}

/// Updates the largest magnitudes, and the poison: 0 times a non-finite value is NaN.
#[inline(always)]
fn see<L: Lanes>(l: L, v: L::V, largest: L::V, poison: L::V) -> (L::V, L::V) {
    (l.max(l.abs(v), largest), l.fma(v, l.zero(), poison))
}

/// Quantizes eight values; zeros for a scale of 0 or NaN.
#[inline(always)]
fn codes<L: Lanes>(l: L, x: L::V, scale: f32, levels: i8) -> [i8; LANES] {
    /// 1.5 * 2^23: adding it rounds to an integer in the low bits.
    const INTEGERS: f32 = 12_582_912.0;
    let mut codes = [INTEGERS; LANES];
    if scale > 0.0 {
        let most = l.splat(f32::from(levels));
        let quotient = l.max(l.sub(l.zero(), most), l.min(most, l.div(x, l.splat(scale))));
        l.store(l.add(quotient, l.splat(INTEGERS)), &mut codes);
    }
    codes.map(|code| code.to_bits() as i8)
}
