//! Helpers of the integer AVX2 leaves: loads and stores, transpositions, horizontal sums.

use std::arch::x86_64::*;

/// 32 bytes of any kind, unaligned.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(crate) fn load<T: bytemuck::Pod>(from: &T) -> __m256i {
    const { assert!(size_of::<T>() == 32) };
    // SAFETY: `from` is 32 readable, initialized bytes; `loadu` has no alignment rule.
    unsafe { _mm256_loadu_si256(std::ptr::from_ref(from).cast()) }
}

/// Eight floats, unaligned.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(crate) fn load_f32(from: &[f32; 8]) -> __m256 {
    _mm256_castsi256_ps(load(from))
}

/// Writes eight floats, unaligned.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(crate) fn store_f32(to: &mut [f32; 8], v: __m256) {
    // SAFETY: `to` is 32 writable bytes; `storeu` has no alignment rule.
    unsafe { _mm256_storeu_ps(to.as_mut_ptr(), v) }
}

/// Prefetches `size_of_val(here)` bytes at `distance` bytes after `here`.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(crate) fn prefetch<T>(here: &[T], distance: usize) {
    const LINE: usize = 64;
    let start: *const i8 = here.as_ptr().cast();
    for offset in (0..size_of_val(here)).step_by(LINE) {
        // A prefetch reads nothing and never faults, whatever the address.
        _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(distance + offset));
    }
}

/// As [`prefetch`], into the second-level cache only.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(in crate::matmul) fn prefetch_far<T>(here: &[T], distance: usize) {
    const LINE: usize = 64;
    let start: *const i8 = here.as_ptr().cast();
    for offset in (0..size_of_val(here)).step_by(LINE) {
        // A prefetch reads nothing and never faults, whatever the address.
        _mm_prefetch::<_MM_HINT_T1>(start.wrapping_add(distance + offset));
    }
}

/// Transposes eight rows of 32 bytes: vector `i` holds bytes `4i..4i + 4` of every row.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(crate) fn transpose_rows<T: bytemuck::Pod>(rows: [&T; 8]) -> [__m256i; 8] {
    const { assert!(size_of::<T>() == 32) };
    let rows = rows.map(|row| bytemuck::cast_ref::<T, [[u8; 16]; 2]>(row));
    let (mut low, mut high) = ([_mm256_setzero_si256(); 4], [_mm256_setzero_si256(); 4]);
    for r in 0..4 {
        low[r] = load_pair(&rows[r][0], &rows[r + 4][0]);
        high[r] = load_pair(&rows[r][1], &rows[r + 4][1]);
    }
    let ([a, b, c, d], [e, f, g, h]) = (transpose(low), transpose(high));
    [a, b, c, d, e, f, g, h]
}

/// Writes 32 bytes, unaligned.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(crate) fn store<T: bytemuck::Pod>(to: &mut T, v: __m256i) {
    const { assert!(size_of::<T>() == 32) };
    // SAFETY: `to` is 32 writable bytes of a type for which any bytes are a value; `storeu` has no
    // alignment rule.
    unsafe { _mm256_storeu_si256(std::ptr::from_mut(to).cast(), v) }
}

/// Lane `i` of the result is the sum of the eight lanes of `v[i]`.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(crate) fn sums(v: [__m256i; 8]) -> __m256i {
    let (low, high) = (sums_of_four([v[0], v[1], v[2], v[3]]), sums_of_four([v[4], v[5], v[6], v[7]]));
    _mm256_add_epi32(
        _mm256_permute2x128_si256::<0x20>(low, high),
        _mm256_permute2x128_si256::<0x31>(low, high),
    )
}

/// Lane `i` of each half of the result is the sum of the four lanes of that half of `v[i]`.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn sums_of_four(v: [__m256i; 4]) -> __m256i {
    let a = _mm256_add_epi32(_mm256_unpacklo_epi32(v[0], v[1]), _mm256_unpackhi_epi32(v[0], v[1]));
    let b = _mm256_add_epi32(_mm256_unpacklo_epi32(v[2], v[3]), _mm256_unpackhi_epi32(v[2], v[3]));
    _mm256_add_epi32(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b))
}

/// 16 bytes of any kind, unaligned, in both halves.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(crate) fn load_twice<T: bytemuck::Pod>(from: &T) -> __m256i {
    _mm256_broadcastsi128_si256(load_half(from))
}

/// 16 bytes of any kind, unaligned.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(crate) fn load_half<T: bytemuck::Pod>(from: &T) -> __m128i {
    const { assert!(size_of::<T>() == 16) };
    // SAFETY: `from` is 16 readable, initialized bytes; `loadu` has no alignment rule.
    unsafe { _mm_loadu_si128(std::ptr::from_ref(from).cast()) }
}

/// Two times 16 bytes, unaligned.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(crate) fn load_pair(low: &[u8; 16], high: &[u8; 16]) -> __m256i {
    // SAFETY: both are 16 readable bytes; `loadu` has no alignment rule.
    unsafe { _mm256_loadu2_m128i(high.as_ptr().cast(), low.as_ptr().cast()) }
}

/// Transposes each half as a matrix of four by four 32-bit numbers.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(crate) fn transpose(v: [__m256i; 4]) -> [__m256i; 4] {
    let (a, b) = (_mm256_unpacklo_epi32(v[0], v[1]), _mm256_unpackhi_epi32(v[0], v[1]));
    let (c, d) = (_mm256_unpacklo_epi32(v[2], v[3]), _mm256_unpackhi_epi32(v[2], v[3]));
    [
        _mm256_unpacklo_epi64(a, c),
        _mm256_unpackhi_epi64(a, c),
        _mm256_unpacklo_epi64(b, d),
        _mm256_unpackhi_epi64(b, d),
    ]
}

/// Splits every byte into its low and high nibble.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(crate) fn nibbles(v: __m256i) -> (__m256i, __m256i) {
    let mask = _mm256_set1_epi8(15);
    (_mm256_and_si256(v, mask), _mm256_and_si256(_mm256_srli_epi16::<4>(v), mask))
}

/// Flips the sign of every number.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(crate) fn negate(v: __m256) -> __m256 {
    _mm256_xor_ps(v, _mm256_set1_ps(-0.0))
}

/// Adds the halves of `low` into the low half of the result, those of `high` into the high half, as
/// 32-bit numbers.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(crate) fn fold_halves(low: __m256i, high: __m256i) -> __m256i {
    _mm256_add_epi32(
        _mm256_permute2x128_si256::<0x20>(low, high),
        _mm256_permute2x128_si256::<0x31>(low, high),
    )
}

/// Widens eight half-precision numbers exactly; they are gathered in general registers, see
/// `q4_k.rs`.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(crate) fn widen_halves(halves: [[u8; 2]; 8]) -> __m256 {
    let four = |h: [[u8; 2]; 4]| {
        let [a, b, c, d] = h.map(|h| u64::from(u16::from_le_bytes(h)));
        (a | b << 16 | c << 32 | d << 48) as i64
    };
    let [a, b, c, d, e, f, g, h] = halves;
    _mm256_cvtph_ps(_mm_set_epi64x(four([e, f, g, h]), four([a, b, c, d])))
}
