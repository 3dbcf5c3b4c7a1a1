//! Vocabulary of the AVX2 leaves: loads, sums across vectors.

use std::arch::x86_64::*;

/// 32 bytes of any kind, unaligned.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn load<T: bytemuck::Pod>(from: &T) -> __m256i {
    const { assert!(size_of::<T>() == 32) };
    // SAFETY: `from` is 32 readable, initialized bytes; `loadu` has no alignment rule.
    unsafe { _mm256_loadu_si256(std::ptr::from_ref(from).cast()) }
}

/// Eight floats, unaligned.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn load_f32(from: &[f32; 8]) -> __m256 {
    _mm256_castsi256_ps(load(from))
}

/// Writes eight floats, unaligned.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn store_f32(to: &mut [f32; 8], v: __m256) {
    // SAFETY: `to` is 32 writable bytes; `storeu` has no alignment rule.
    unsafe { _mm256_storeu_ps(to.as_mut_ptr(), v) }
}

/// Lane `i` of the result is the sum of the eight lanes of `v[i]`.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
pub(super) fn sums(v: [__m256i; 8]) -> __m256i {
    let (low, high) = (sums_of_four([v[0], v[1], v[2], v[3]]), sums_of_four([v[4], v[5], v[6], v[7]]));
    _mm256_add_epi32(
        _mm256_permute2x128_si256::<0x20>(low, high),
        _mm256_permute2x128_si256::<0x31>(low, high),
    )
}

/// Lane `i` of each half of the result is the sum of the four lanes of that half of `v[i]`.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn sums_of_four(v: [__m256i; 4]) -> __m256i {
    let a = _mm256_add_epi32(_mm256_unpacklo_epi32(v[0], v[1]), _mm256_unpackhi_epi32(v[0], v[1]));
    let b = _mm256_add_epi32(_mm256_unpacklo_epi32(v[2], v[3]), _mm256_unpackhi_epi32(v[2], v[3]));
    _mm256_add_epi32(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b))
}
