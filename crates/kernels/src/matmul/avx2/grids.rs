//! Shared code of the `IQ2` and `IQ3` rows: look-ups of grid points, and signs.
//!
//! These products wait for the load ports, not for arithmetic, so both save loads. Indices are
//! computed in vectors and move to general registers 64 bits at a time; reading them back from
//! memory takes a load each. A blend with an unaligned load puts a point into its lane, where
//! `pinsrd` and `pinsrq` take two instructions.
//!
//! Points are looked up in the order of the products: a lane belongs to one sub-block, so that no
//! horizontal sums are left.

use std::arch::asm;
use std::arch::x86_64::*;

/// Margin of a [`Table`] in bytes: a 16-byte load of any point in any lane stays inside.
const MARGIN: usize = 16;

/// Grid points with a margin on both sides.
#[repr(C, align(64))]
pub(super) struct Table<T, const N: usize> {
    before: [u8; MARGIN],
    points: [T; N],
    after: [u8; MARGIN],
}

impl<T: Copy, const N: usize> Table<T, N> {
    pub(super) const fn new(points: &[T; N]) -> Self {
        // Indices are masked with `N - 1`, in 16 bits.
        assert!(N.is_power_of_two() && N <= 1 << 15);
        Self { before: [0; MARGIN], points: *points, after: [0; MARGIN] }
    }

    /// 16 bytes that hold point `index` in lane `lane`; the other lanes are unspecified.
    ///
    /// # Safety
    /// `index` must be below `N`, and the lane within the 16 bytes.
    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    unsafe fn point(&self, index: usize, lane: usize) -> __m128i {
        let start = std::mem::offset_of!(Self, points) + index * size_of::<T>() - lane * size_of::<T>();
        // SAFETY: the caller guarantees that the point is one of the table and at most 16 bytes
        // less its size behind the start of the load, so the margins contain the rest of the 16
        // bytes; `loadu` has no alignment rule.
        unsafe { _mm_loadu_si128(std::ptr::from_ref(self).cast::<u8>().add(start).cast()) }
    }
}

/// Points of four values for the sixteen 16-bit `indices`: those of the low half in the first
/// vector.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn fours<const N: usize>(table: &Table<u32, N>, indices: __m256i) -> [__m256i; 2] {
    let [a, b, c, d] = quads(_mm256_and_si256(indices, _mm256_set1_epi16((N - 1) as i16)));
    // SAFETY: the indices are masked; a vector has four lanes.
    let four = |quad: u64| unsafe {
        let (a, b) = (table.point(index(quad, 0), 0), table.point(index(quad, 1), 1));
        let (c, d) = (table.point(index(quad, 2), 2), table.point(index(quad, 3), 3));
        _mm_blend_epi32::<0b1000>(_mm_blend_epi32::<0b0100>(_mm_blend_epi32::<0b0010>(a, b), c), d)
    };
    [_mm256_set_m128i(four(b), four(a)), _mm256_set_m128i(four(d), four(c))]
}

/// Points of eight values for the sixteen 16-bit `indices`: those of every fourth one, from index
/// `l` on, in vector `l`.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn eights<const N: usize>(table: &Table<u64, N>, indices: __m256i) -> [__m256i; 4] {
    let quads = quads(_mm256_and_si256(indices, _mm256_set1_epi16((N - 1) as i16)));
    let mut points = [_mm256_setzero_si256(); 4];
    for (l, points) in points.iter_mut().enumerate() {
        let [a, b, c, d] = quads.map(|quad| index(quad, l));
        // SAFETY: the indices are masked; a vector has two lanes.
        let two =
            |a: usize, b: usize| unsafe { _mm_blend_epi32::<0b1100>(table.point(a, 0), table.point(b, 1)) };
        *points = _mm256_set_m128i(two(c, d), two(a, b));
    }
    points
}

/// Number `i` of four 16-bit numbers.
#[inline(always)]
fn index(quad: u64, i: usize) -> usize {
    usize::from((quad >> (16 * i)) as u16)
}

/// Sixteen 16-bit numbers in general registers.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn quads(v: __m256i) -> [u64; 4] {
    let (low, high) = (_mm256_castsi256_si128(v), _mm256_extracti128_si256::<1>(v));
    let quads = [
        _mm_cvtsi128_si64(low),
        _mm_extract_epi64::<1>(low),
        _mm_cvtsi128_si64(high),
        _mm_extract_epi64::<1>(high),
    ];
    quads.map(|quad| {
        let mut quad = quad as u64;
        // The compiler would extract every 16-bit number from the vector instead, which takes two
        // instructions each.
        // SAFETY: no instruction is emitted; the value is only declared as changed.
        unsafe {
            asm!("/* {0} */", inout(reg) quad, options(pure, nomem, nostack, preserves_flags));
        }
        quad
    })
}

/// Byte for a set and for a clear sign bit.
#[derive(Clone, Copy)]
pub(super) struct Choice(__m256i);

impl Choice {
    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    pub(super) fn new(set: i8, clear: i8) -> Self {
        Self(_mm256_broadcastsi128_si256(_mm_setr_epi8(
            clear, set, set, 0, set, 0, 0, 0, set, 0, 0, 0, 0, 0, 0, 0,
        )))
    }

    /// The bytes for single sign bits: bit `j % 4` of the low nibble of `nibbles` at byte `j`.
    #[target_feature(enable = "avx2,fma,f16c")]
    #[inline]
    pub(super) fn of(self, nibbles: __m256i) -> __m256i {
        _mm256_shuffle_epi8(self.0, _mm256_and_si256(nibbles, _mm256_set1_epi32(0x0804_0201)))
    }
}

/// Spreads the 8 bits in the low byte of every 16-bit number to the low nibbles of both bytes; the
/// high nibbles are unspecified.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn nibbles_of_words(v: __m256i) -> __m256i {
    _mm256_or_si256(v, _mm256_slli_epi16::<4>(v))
}

/// Adds the eighth sign to seven, so that the number of negative values is even. `folded`: bits 0
/// to 3 of a byte are the exclusive or of its lower and its upper signs, bit 7 is clear.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn add_even_sign(seven: __m256i, folded: __m256i) -> __m256i {
    let odd = _mm256_broadcastsi128_si256(_mm_setr_epi8(
        0, -128, -128, 0, -128, 0, 0, -128, -128, 0, 0, -128, 0, -128, -128, 0,
    ));
    _mm256_or_si256(seven, _mm256_shuffle_epi8(odd, folded))
}

/// Signs of sub-blocks, a byte per eight values, from four times seven bits in each lane.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn four_even_signs(packed: __m256i) -> __m256i {
    let field = |v: __m256i, l: u32| _mm256_and_si256(v, _mm256_set1_epi32(127 << (8 * l)));
    let low = _mm256_or_si256(field(packed, 0), field(_mm256_slli_epi32::<1>(packed), 1));
    let high =
        _mm256_or_si256(field(_mm256_slli_epi32::<2>(packed), 2), field(_mm256_slli_epi32::<3>(packed), 3));
    let seven = _mm256_or_si256(low, high);
    let folded = _mm256_xor_si256(seven, _mm256_srli_epi16::<4>(seven));
    add_even_sign(seven, _mm256_and_si256(folded, _mm256_set1_epi8(15)))
}

/// Factors `2 * s + 1` of the 4-bit scales in the upper bits of the lanes.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn upper_factors(packed: __m256i) -> __m256 {
    let twice = _mm256_slli_epi32::<1>(_mm256_srli_epi32::<28>(packed));
    _mm256_cvtepi32_ps(_mm256_add_epi32(twice, _mm256_set1_epi32(1)))
}
