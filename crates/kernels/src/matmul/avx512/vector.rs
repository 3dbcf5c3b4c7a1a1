//! Helpers of the integer AVX-512 leaves: loads and stores of 64 bytes, transposition of sixteen
//! rows.

use std::arch::x86_64::*;

use crate::lanes::LANES;

/// 64 bytes of any kind, unaligned.
#[target_feature(enable = "avx512f")]
#[inline]
pub(super) fn load<T: bytemuck::Pod>(from: &T) -> __m512i {
    const { assert!(size_of::<T>() == 64) };
    // SAFETY: `from` is 64 readable, initialized bytes; `loadu` has no alignment rule.
    unsafe { _mm512_loadu_si512(std::ptr::from_ref(from).cast()) }
}

/// Two times eight floats, unaligned.
#[target_feature(enable = "avx512f")]
#[inline]
pub(super) fn load_f32(from: &[[f32; LANES]; 2]) -> __m512 {
    _mm512_castsi512_ps(load(from))
}

/// Sixteen floats, unaligned.
#[target_feature(enable = "avx512f")]
#[inline]
pub(super) fn load_row(from: &[f32; 2 * LANES]) -> __m512 {
    _mm512_castsi512_ps(load(from))
}

/// Writes sixteen floats, unaligned.
#[target_feature(enable = "avx512f")]
#[inline]
pub(super) fn store_row(to: &mut [f32; 2 * LANES], v: __m512) {
    store(to, _mm512_castps_si512(v));
}

/// Writes 64 bytes, unaligned.
#[target_feature(enable = "avx512f")]
#[inline]
pub(super) fn store<T: bytemuck::Pod>(to: &mut T, v: __m512i) {
    const { assert!(size_of::<T>() == 64) };
    // SAFETY: `to` is 64 writable bytes of a type for which any bytes are a value; `storeu` has no
    // alignment rule.
    unsafe { _mm512_storeu_si512(std::ptr::from_mut(to).cast(), v) }
}

/// Transposes sixteen rows of 32 bytes: vector `i` holds bytes `4i..4i + 4` of every row.
#[target_feature(enable = "avx512f")]
#[inline]
pub(super) fn transpose_rows<'a, T: bytemuck::Pod>(row: impl Fn(usize) -> &'a T) -> [__m512i; 8] {
    const { assert!(size_of::<T>() == 32) };
    let mut vectors = [_mm512_setzero_si512(); 8];
    for (half, vectors) in vectors.as_chunks_mut::<4>().0.iter_mut().enumerate() {
        for (j, v) in vectors.iter_mut().enumerate() {
            let part = |r: usize| &bytemuck::cast_ref::<T, [[u8; 16]; 2]>(row(r))[half];
            *v = load_four([part(j), part(j + 4), part(j + 8), part(j + 12)]);
        }
        *vectors = transpose(*vectors);
    }
    vectors
}

/// Four times 16 bytes, unaligned.
#[target_feature(enable = "avx512f")]
#[inline]
fn load_four(from: [&[u8; 16]; 4]) -> __m512i {
    // SAFETY: all are 16 readable bytes; `loadu` has no alignment rule.
    let (low, high) = unsafe {
        (
            _mm256_loadu2_m128i(from[1].as_ptr().cast(), from[0].as_ptr().cast()),
            _mm256_loadu2_m128i(from[3].as_ptr().cast(), from[2].as_ptr().cast()),
        )
    };
    _mm512_inserti64x4::<1>(_mm512_castsi256_si512(low), high)
}

/// Transposes each quarter as a matrix of four by four 32-bit numbers.
#[target_feature(enable = "avx512f")]
#[inline]
fn transpose(v: [__m512i; 4]) -> [__m512i; 4] {
    let (a, b) = (_mm512_unpacklo_epi32(v[0], v[1]), _mm512_unpackhi_epi32(v[0], v[1]));
    let (c, d) = (_mm512_unpacklo_epi32(v[2], v[3]), _mm512_unpackhi_epi32(v[2], v[3]));
    [
        _mm512_unpacklo_epi64(a, c),
        _mm512_unpackhi_epi64(a, c),
        _mm512_unpacklo_epi64(b, d),
        _mm512_unpackhi_epi64(b, d),
    ]
}
