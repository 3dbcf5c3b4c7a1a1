//! The eight lanes as one `__m256`: AVX2, FMA and F16C.
//!
//! Every method is one to three instructions once it has been inlined into a function that enables the features; it is
//! therefore `#[inline(always)]` and only called from such functions (see `kernels.rs`).

use std::arch::x86_64::*;

use half::{bf16, f16};

use super::{LANES, Lanes};

/// Bytes that one prefetch brings.
const CACHE_LINE: usize = 64;

/// Proof that the CPU has AVX2, FMA and F16C.
#[derive(Clone, Copy)]
pub(crate) struct Avx2Lanes(());

impl Avx2Lanes {
    /// Asserts the presence of the features.
    ///
    /// # Safety
    /// The running CPU has AVX2, FMA and F16C.
    #[inline(always)]
    pub(crate) unsafe fn assume_available() -> Self {
        Self(())
    }
}

/// One expression of register-only intrinsics, in a method of [`Avx2Lanes`].
macro_rules! with_features {
    ($e:expr) => {
        // SAFETY: the intrinsics' only precondition is the CPU features, and a value of `Avx2Lanes` (the `self` of the
        // enclosing method) exists only where `assume_available` was promised them.
        unsafe { $e }
    };
}

impl Lanes for Avx2Lanes {
    type V = __m256;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        with_features!(_mm256_set1_ps(x))
    }

    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> Self::V {
        // SAFETY: `x` is 32 readable bytes; `loadu` has no alignment rule; features by `self`.
        unsafe { _mm256_loadu_ps(x.as_ptr()) }
    }

    #[inline(always)]
    fn store(self, v: Self::V, to: &mut [f32; LANES]) {
        // SAFETY: `to` is 32 writable bytes; `storeu` has no alignment rule; features by `self`.
        unsafe { _mm256_storeu_ps(to.as_mut_ptr(), v) }
    }

    #[inline(always)]
    fn load_f16(self, x: &[f16; LANES]) -> Self::V {
        // SAFETY: `x` is 16 readable bytes; `loadu` has no alignment rule; features by `self`.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(x.as_ptr().cast())) }
    }

    #[inline(always)]
    fn store_f16(self, v: Self::V, to: &mut [f16; LANES]) {
        // SAFETY: `to` is 16 writable bytes; `storeu` has no alignment rule; features by `self`.
        unsafe {
            let halves = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v);
            _mm_storeu_si128(to.as_mut_ptr().cast(), halves);
        }
    }

    #[inline(always)]
    fn load_bf16(self, x: &[bf16; LANES]) -> Self::V {
        // SAFETY: `x` is 16 readable bytes; `loadu` has no alignment rule; features by `self`.
        unsafe {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(x.as_ptr().cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
        }
    }

    #[inline(always)]
    fn load_twice(self, x: &[f32; LANES / 2]) -> Self::V {
        // SAFETY: `x` is 16 readable bytes; `loadu` has no alignment rule; features by `self`.
        unsafe {
            let four = _mm_loadu_ps(x.as_ptr());
            _mm256_set_m128(_mm_unpackhi_ps(four, four), _mm_unpacklo_ps(four, four))
        }
    }

    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        with_features!(_mm256_add_ps(a, b))
    }

    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        with_features!(_mm256_sub_ps(a, b))
    }

    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        with_features!(_mm256_mul_ps(a, b))
    }

    #[inline(always)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        with_features!(_mm256_div_ps(a, b))
    }

    #[inline(always)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        with_features!(_mm256_fmadd_ps(a, b, c))
    }

    #[inline(always)]
    fn fnma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        with_features!(_mm256_fnmadd_ps(a, b, c))
    }

    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        with_features!(_mm256_max_ps(a, b))
    }

    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        with_features!(_mm256_min_ps(a, b))
    }

    #[inline(always)]
    fn abs(self, v: Self::V) -> Self::V {
        with_features!(_mm256_andnot_ps(_mm256_set1_ps(-0.0), v))
    }

    #[inline(always)]
    fn select_lt(self, a: Self::V, b: Self::V, x: Self::V, y: Self::V) -> Self::V {
        with_features!(_mm256_blendv_ps(y, x, _mm256_cmp_ps::<_CMP_LT_OQ>(a, b)))
    }

    #[inline(always)]
    fn round(self, v: Self::V) -> Self::V {
        with_features!(_mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(v))
    }

    #[inline(always)]
    fn pow2(self, n: Self::V) -> Self::V {
        with_features!({
            let biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
            _mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased))
        })
    }

    #[inline(always)]
    fn swap_pairs(self, v: Self::V) -> Self::V {
        with_features!(_mm256_permute_ps::<0b10_11_00_01>(v))
    }

    #[inline(always)]
    fn sum(self, v: Self::V) -> f32 {
        with_features!({
            let s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let t = _mm_add_ps(s, _mm_movehl_ps(s, s));
            _mm_cvtss_f32(_mm_add_ss(t, _mm_movehdup_ps(t)))
        })
    }

    #[inline(always)]
    fn max_lane(self, v: Self::V) -> f32 {
        with_features!({
            let s = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let t = _mm_max_ps(s, _mm_movehl_ps(s, s));
            _mm_cvtss_f32(_mm_max_ss(t, _mm_movehdup_ps(t)))
        })
    }

    /// Eight reductions together: each step joins two vectors and halves the number of values per sum, so the whole
    /// takes 14 shuffles and 7 additions instead of 8 times 3 and 3.
    #[inline(always)]
    fn sums(self, v: [Self::V; LANES]) -> Self::V {
        let a = self.quarters(self.halves(v[0], v[4]), self.halves(v[1], v[5]));
        let b = self.quarters(self.halves(v[2], v[6]), self.halves(v[3], v[7]));
        with_features!(_mm256_add_ps(
            _mm256_shuffle_ps::<0b10_00_10_00>(a, b),
            _mm256_shuffle_ps::<0b11_01_11_01>(a, b)
        ))
    }

    #[inline(always)]
    fn prefetch<T>(self, x: &[T]) {
        let bytes = size_of_val(x);
        for offset in (0..bytes).step_by(CACHE_LINE) {
            // SAFETY: the address lies within `x`; a prefetch reads nothing in the language's sense.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(x.as_ptr().cast::<i8>().add(offset)) }
        }
    }
}

impl Avx2Lanes {
    /// First step of the tree for two vectors: the `s_j` of `a` in the low half, those of `b` in the high half.
    #[inline(always)]
    fn halves(self, a: __m256, b: __m256) -> __m256 {
        with_features!(_mm256_add_ps(
            _mm256_permute2f128_ps::<0x20>(a, b),
            _mm256_permute2f128_ps::<0x31>(a, b)
        ))
    }

    /// Second step, in each half: `t_0, t_1` of `a`, then those of `b`.
    #[inline(always)]
    fn quarters(self, a: __m256, b: __m256) -> __m256 {
        with_features!(_mm256_add_ps(
            _mm256_shuffle_ps::<0b01_00_01_00>(a, b),
            _mm256_shuffle_ps::<0b11_10_11_10>(a, b)
        ))
    }
}
