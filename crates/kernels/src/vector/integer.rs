//! Dot products of 32 small integers per instruction set: the leaves of INT8 and INT4 distances.
//!
//! Integers are widened to 16 bits; pairwise products and their sum are exact in 32 bits, so all
//! implementations give the same result.

use super::step::{STEP, unpack};
use crate::lanes::{ScalarLanes, WideLanes};

/// Integer operations on top of [`WideLanes`].
pub(crate) trait IntegerLanes: WideLanes {
    /// Vector of 32 integers.
    type Q: Copy;
    /// Partial sums in 32 bits.
    type I: Copy;

    /// Loads 32 integers.
    fn load_int8(self, x: &[i8; STEP]) -> Self::Q;
    /// Loads a group of 4-bit values (see [`VectorRows::Int4`](super::VectorRows::Int4)).
    fn load_int4(self, x: &[u8; STEP / 2]) -> Self::Q;
    /// Zero sum.
    fn integer_zero(self) -> Self::I;
    /// Adds the 32 products of `a` and `b` to `sum`.
    fn integer_dot(self, sum: Self::I, a: Self::Q, b: Self::Q) -> Self::I;
    /// Reduces the partial sums.
    fn integer_sum(self, sum: Self::I) -> i32;
}

impl IntegerLanes for ScalarLanes {
    type Q = [i8; STEP];
    type I = i32;

    #[inline(always)]
    fn load_int8(self, x: &[i8; STEP]) -> Self::Q {
        *x
    }

    #[inline(always)]
    fn load_int4(self, x: &[u8; STEP / 2]) -> Self::Q {
        unpack(x)
    }

    #[inline(always)]
    fn integer_zero(self) -> Self::I {
        0
    }

    #[inline(always)]
    fn integer_dot(self, sum: Self::I, a: Self::Q, b: Self::Q) -> Self::I {
        sum + a.iter().zip(b).map(|(&a, b)| i32::from(a) * i32::from(b)).sum::<i32>()
    }

    #[inline(always)]
    fn integer_sum(self, sum: Self::I) -> i32 {
        sum
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{IntegerLanes, STEP};
    use crate::lanes::{Avx2Lanes, Avx512Lanes};
    use crate::vector::step::INT4_LEVELS;

    /// Unpacks the 32 nibbles of sixteen bytes in order, minus the offset.
    ///
    /// # Safety
    /// The CPU must have AVX2.
    #[inline(always)]
    unsafe fn nibbles(x: &[u8; STEP / 2]) -> __m256i {
        // SAFETY: `x` is 16 readable bytes; `loadu` needs no alignment; the caller guarantees the
        // features.
        unsafe {
            let bytes = _mm_loadu_si128(x.as_ptr().cast());
            let both = _mm256_set_m128i(_mm_srli_epi16::<4>(bytes), bytes);
            let codes = _mm256_and_si256(both, _mm256_set1_epi8(0x0f));
            _mm256_sub_epi8(codes, _mm256_set1_epi8(INT4_LEVELS + 1))
        }
    }

    /// # Safety
    /// The CPU must have AVX2.
    #[inline(always)]
    unsafe fn sum_of_eight(v: __m256i) -> i32 {
        // SAFETY: register-only intrinsics; the caller guarantees the features.
        unsafe {
            let s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256::<1>(v));
            let t = _mm_add_epi32(s, _mm_shuffle_epi32::<0b01_00_11_10>(s));
            _mm_cvtsi128_si32(_mm_add_epi32(t, _mm_shuffle_epi32::<0b10_11_00_01>(t)))
        }
    }

    impl IntegerLanes for Avx2Lanes {
        type Q = [__m256i; 2];
        type I = __m256i;

        #[inline(always)]
        fn load_int8(self, x: &[i8; STEP]) -> Self::Q {
            // SAFETY: `x` is twice 16 readable bytes; `loadu` needs no alignment; features by
            // `self`.
            unsafe {
                [
                    _mm256_cvtepi8_epi16(_mm_loadu_si128(x.as_ptr().cast())),
                    _mm256_cvtepi8_epi16(_mm_loadu_si128(x.as_ptr().add(16).cast())),
                ]
            }
        }

        #[inline(always)]
        fn load_int4(self, x: &[u8; STEP / 2]) -> Self::Q {
            // SAFETY: register-only intrinsics and `nibbles`; features by `self`.
            unsafe {
                let v = nibbles(x);
                [
                    _mm256_cvtepi8_epi16(_mm256_castsi256_si128(v)),
                    _mm256_cvtepi8_epi16(_mm256_extracti128_si256::<1>(v)),
                ]
            }
        }

        #[inline(always)]
        fn integer_zero(self) -> Self::I {
            // SAFETY: a register-only intrinsic; features by `self`.
            unsafe { _mm256_setzero_si256() }
        }

        #[inline(always)]
        fn integer_dot(self, sum: Self::I, a: Self::Q, b: Self::Q) -> Self::I {
            // SAFETY: register-only intrinsics; features by `self`.
            unsafe {
                let products = _mm256_add_epi32(_mm256_madd_epi16(a[0], b[0]), _mm256_madd_epi16(a[1], b[1]));
                _mm256_add_epi32(sum, products)
            }
        }

        #[inline(always)]
        fn integer_sum(self, sum: Self::I) -> i32 {
            // SAFETY: features by `self`.
            unsafe { sum_of_eight(sum) }
        }
    }

    impl IntegerLanes for Avx512Lanes {
        type Q = __m512i;
        type I = __m512i;

        #[inline(always)]
        fn load_int8(self, x: &[i8; STEP]) -> Self::Q {
            // SAFETY: `x` is 32 readable bytes; `loadu` needs no alignment; features by `self`.
            unsafe { _mm512_cvtepi8_epi16(_mm256_loadu_si256(x.as_ptr().cast())) }
        }

        #[inline(always)]
        fn load_int4(self, x: &[u8; STEP / 2]) -> Self::Q {
            // SAFETY: a register-only intrinsic and `nibbles`; features by `self`.
            unsafe { _mm512_cvtepi8_epi16(nibbles(x)) }
        }

        #[inline(always)]
        fn integer_zero(self) -> Self::I {
            // SAFETY: a register-only intrinsic; features by `self`.
            unsafe { _mm512_setzero_si512() }
        }

        #[inline(always)]
        fn integer_dot(self, sum: Self::I, a: Self::Q, b: Self::Q) -> Self::I {
            // SAFETY: a register-only intrinsic; features by `self`.
            unsafe { _mm512_dpwssd_epi32(sum, a, b) }
        }

        #[inline(always)]
        fn integer_sum(self, sum: Self::I) -> i32 {
            // SAFETY: register-only intrinsics; features by `self`.
            unsafe {
                let (low, high) = (_mm512_castsi512_si256(sum), _mm512_extracti64x4_epi64::<1>(sum));
                sum_of_eight(_mm256_add_epi32(low, high))
            }
        }
    }
}

#[cfg(target_arch = "aarch64")]
mod neon {
    use std::arch::aarch64::*;

    use super::{IntegerLanes, STEP};
    use crate::lanes::{Apart, NeonLanes};
    use crate::matmul::neon::dot::IntegerDot;
    use crate::vector::step::INT4_LEVELS;

    impl<const LEVEL: u8> IntegerLanes for NeonLanes<LEVEL>
    where
        Self: IntegerDot + Apart,
    {
        type Q = [int8x16_t; 2];
        type I = int32x4_t;

        #[inline(always)]
        fn load_int8(self, x: &[i8; STEP]) -> Self::Q {
            // SAFETY: `x` is twice 16 readable bytes; features by `self`.
            unsafe { [vld1q_s8(x.as_ptr()), vld1q_s8(x.as_ptr().add(16))] }
        }

        #[inline(always)]
        fn load_int4(self, x: &[u8; STEP / 2]) -> Self::Q {
            // SAFETY: `x` is 16 readable bytes; features by `self`.
            unsafe {
                let bytes = vld1q_u8(x.as_ptr());
                let offset = vdupq_n_s8(INT4_LEVELS + 1);
                let (low, high) = (vandq_u8(bytes, vdupq_n_u8(15)), vshrq_n_u8::<4>(bytes));
                [vsubq_s8(vreinterpretq_s8_u8(low), offset), vsubq_s8(vreinterpretq_s8_u8(high), offset)]
            }
        }

        #[inline(always)]
        fn integer_zero(self) -> Self::I {
            // SAFETY: a register-only intrinsic; features by `self`.
            unsafe { vdupq_n_s32(0) }
        }

        #[inline(always)]
        fn integer_dot(self, sum: Self::I, a: Self::Q, b: Self::Q) -> Self::I {
            // SAFETY: features by `self`.
            unsafe { self.dot_of_any(self.dot_of_any(sum, a[0], b[0]), a[1], b[1]) }
        }

        #[inline(always)]
        fn integer_sum(self, sum: Self::I) -> i32 {
            // SAFETY: a register-only intrinsic; features by `self`.
            unsafe { vaddvq_s32(sum) }
        }
    }
}
