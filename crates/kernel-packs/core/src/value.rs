//! Values of tensors, which are computed with as f32, and their dot product.

use core::arch::wasm32::{
    f32x4_add, f32x4_mul, i32x4_add, i32x4_ge, i32x4_gt, i32x4_shl, i32x4_splat, i32x4_sub, u16x8,
    u16x8_extract_lane, u16x8_narrow_i32x4, u32x4_extend_low_u16x8, u32x4_shr, v128, v128_and,
    v128_bitselect, v128_or, v128_xor,
};

use crate::abi::Plain;
use crate::lanes::{LANES, Lanes};

/// Values per iteration of loops over rows: each iteration asks once whether time is up.
pub const UNROLLED: usize = 64;

/// Value of a tensor.
pub trait Value: Plain {
    /// Zero.
    const ZERO: Self;

    /// Four values as f32.
    fn load(from: &[Self; LANES]) -> Lanes;

    /// Four values, rounded to the type.
    fn store(lanes: Lanes, to: &mut [Self; LANES]);
}

impl Value for f32 {
    const ZERO: Self = 0.0;

    #[inline(always)]
    fn load(from: &[Self; LANES]) -> Lanes {
        Lanes::of(*from)
    }

    #[inline(always)]
    fn store(lanes: Lanes, to: &mut [Self; LANES]) {
        *to = lanes.values();
    }
}

/// Half-precision number.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Half(pub u16);

// SAFETY: A `u16`.
unsafe impl Plain for Half {}

impl Half {
    /// The number as f32.
    pub fn to_f32(self) -> f32 {
        let [value, ..] = Self::load(&[self; LANES]).values();
        value
    }

    /// Nearest number, ties to the even one.
    pub fn of(value: f32) -> Self {
        let mut halves = [Self(0); LANES];
        Self::store(Lanes::splat(value), &mut halves);
        halves[0]
    }
}

impl Value for Half {
    const ZERO: Self = Self(0);

    /// Moves exponent and mantissa to their places and scales by the difference of the biases,
    /// which is exact, for subnormal numbers too.
    #[inline(always)]
    fn load(from: &[Self; LANES]) -> Lanes {
        let [a, b, c, d] = *from;
        let bits = u32x4_extend_low_u16x8(u16x8(a.0, b.0, c.0, d.0, 0, 0, 0, 0));
        let magnitude = v128_and(bits, i32x4_splat(0x7fff));
        let sign = i32x4_shl(v128_and(bits, i32x4_splat(0x8000)), 16);
        let scaled = f32x4_mul(i32x4_shl(magnitude, 13), i32x4_splat(0x7780_0000)); // 2^112
        // Infinity and NaN: the largest exponent.
        let special = i32x4_ge(magnitude, i32x4_splat(0x7c00));
        let largest = v128_or(i32x4_shl(magnitude, 13), i32x4_splat(0x7f80_0000));
        Lanes(v128_or(v128_bitselect(largest, scaled, special), sign))
    }

    #[inline(always)]
    fn store(lanes: Lanes, to: &mut [Self; LANES]) {
        let narrow = u16x8_narrow_i32x4(half_bits(lanes.0), i32x4_splat(0));
        *to = [
            Self(u16x8_extract_lane::<0>(narrow)),
            Self(u16x8_extract_lane::<1>(narrow)),
            Self(u16x8_extract_lane::<2>(narrow)),
            Self(u16x8_extract_lane::<3>(narrow)),
        ];
    }
}

/// Bits of the nearest half-precision numbers, ties to the even one, in 32 bits each.
fn half_bits(values: v128) -> v128 {
    let sign = v128_and(values, i32x4_splat(i32::MIN));
    let magnitude = v128_xor(values, sign);
    // Normal numbers: the bias is exchanged, and half of the last place added, less one for an even
    // mantissa.
    let odd = v128_and(u32x4_shr(magnitude, 13), i32x4_splat(1));
    let rounded = i32x4_add(i32x4_add(magnitude, odd), i32x4_splat(0xfff - (112 << 23)));
    let normal = u32x4_shr(rounded, 13);
    // Subnormal ones: an addition whose last place is theirs rounds them.
    let half = i32x4_splat(0x3f00_0000);
    let subnormal = i32x4_sub(f32x4_add(magnitude, half), half);
    let is_subnormal = i32x4_gt(i32x4_splat(113 << 23), magnitude);
    let finite = v128_bitselect(subnormal, normal, is_subnormal);
    // Beyond: infinity, or NaN.
    let infinity = i32x4_splat(0x7c00);
    let is_nan = i32x4_gt(magnitude, i32x4_splat(0x7f80_0000));
    let beyond = v128_bitselect(i32x4_splat(0x7e00), infinity, is_nan);
    let is_beyond = i32x4_ge(magnitude, i32x4_splat(143 << 23));
    v128_or(v128_bitselect(beyond, finite, is_beyond), u32x4_shr(sign, 16))
}

/// Up to three values, then zeros.
pub fn load_partial<T: Value>(from: &[T]) -> Lanes {
    let mut values = [T::ZERO; LANES];
    values.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
    T::load(&values)
}

/// Stores up to three values.
pub fn store_partial<T: Value>(lanes: Lanes, to: &mut [T]) {
    let mut values = [T::ZERO; LANES];
    T::store(lanes, &mut values);
    to.iter_mut().zip(values).for_each(|(to, from)| *to = from);
}

/// Dot product: eight partial sums of four for long rows, two for others.
#[inline(always)]
pub fn dot<A: Value, B: Value>(a: &[A], b: &[B]) -> f32 {
    const SUMS: usize = 8;
    let (a_blocks, a) = a.as_chunks::<UNROLLED>();
    let (b_blocks, b) = b.as_chunks::<UNROLLED>();
    let mut sum = Lanes::splat(0.0);
    if !a_blocks.is_empty() {
        let mut sums = [sum; SUMS];
        for (a, b) in a_blocks.iter().zip(b_blocks) {
            for (index, (a, b)) in a.as_chunks().0.iter().zip(b.as_chunks().0).enumerate() {
                sums[index % SUMS] = sums[index % SUMS].plus(A::load(a).times(B::load(b)));
            }
        }
        let [s0, s1, s2, s3, s4, s5, s6, s7] = sums;
        sum = s0.plus(s4).plus(s1.plus(s5)).plus(s2.plus(s6).plus(s3.plus(s7)));
    }
    let (a_pairs, a) = a.as_chunks::<{ 2 * LANES }>();
    let (b_pairs, b) = b.as_chunks::<{ 2 * LANES }>();
    let mut other = Lanes::splat(0.0);
    for (a, b) in a_pairs.iter().zip(b_pairs) {
        let ([a0, a1], [b0, b1]) = (halves(a), halves(b));
        sum = sum.plus(A::load(a0).times(B::load(b0)));
        other = other.plus(A::load(a1).times(B::load(b1)));
    }
    for (a, b) in a.chunks(LANES).zip(b.chunks(LANES)) {
        sum = sum.plus(load_partial(a).times(load_partial(b)));
    }
    sum.plus(other).sum()
}

/// The first four values and the others.
#[inline(always)]
fn halves<T>(values: &[T; 2 * LANES]) -> [&[T; LANES]; 2] {
    let (low, high) = values.as_chunks().0.split_at(1);
    [&low[0], &high[0]]
}

/// Writes a function of the values of two tensors of one length.
#[inline(always)]
pub fn map2<A: Value, B: Value, C: Value>(
    a: &[A],
    b: &[B],
    out: &mut [C],
    function: impl Fn(Lanes, Lanes) -> Lanes,
) {
    let (a_blocks, a) = a.as_chunks::<UNROLLED>();
    let (b_blocks, b) = b.as_chunks::<UNROLLED>();
    let (out_blocks, out) = out.as_chunks_mut::<UNROLLED>();
    for ((a, b), out) in a_blocks.iter().zip(b_blocks).zip(out_blocks) {
        let chunks = a.as_chunks().0.iter().zip(b.as_chunks().0).zip(out.as_chunks_mut().0);
        for ((a, b), out) in chunks {
            C::store(function(A::load(a), B::load(b)), out);
        }
    }
    let (a_chunks, a) = a.as_chunks();
    let (b_chunks, b) = b.as_chunks();
    let (out_chunks, out) = out.as_chunks_mut();
    for ((a, b), out) in a_chunks.iter().zip(b_chunks).zip(out_chunks) {
        C::store(function(A::load(a), B::load(b)), out);
    }
    if !out.is_empty() {
        store_partial(function(load_partial(a), load_partial(b)), out);
    }
}
