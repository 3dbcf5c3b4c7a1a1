//! Eight lanes as one `__m256` (AVX2, FMA, F16C); with AVX-512, wide vectors as one `__m512`.
//!
//! Every method is one to three instructions when inlined into a function that enables the
//! features; it is therefore `#[inline(always)]` and only called from such functions (see
//! `kernels.rs`).

use std::arch::x86_64::*;

use half::{bf16, f16};

use super::{
    CACHE_LINE, Groups, LANES, Lanes, Pairs, Vectors, WIDE, WideLanes, by_intrinsics, with_features,
};

/// Lane masks: eight lanes from `n` before the middle have the first `n` set.
static PARTIAL: [i32; 2 * LANES] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];

/// Proof that the CPU has AVX2, FMA and F16C; if `AVX512`, also AVX-512 F, BW, DQ, VL and VNNI.
#[derive(Clone, Copy)]
pub(crate) struct X86Lanes<const AVX512: bool>(());

pub(crate) type Avx2Lanes = X86Lanes<false>;
pub(crate) type Avx512Lanes = X86Lanes<true>;

impl<const AVX512: bool> X86Lanes<AVX512> {
    /// Asserts the presence of the features.
    ///
    /// # Safety
    /// The CPU must have the features of the type.
    #[inline(always)]
    pub(crate) unsafe fn assume_available() -> Self {
        Self(())
    }
}

impl<const AVX512: bool> Vectors<LANES> for X86Lanes<AVX512> {
    type V = __m256;
    type Floats = [f32; LANES];

    by_intrinsics! {
        add(a, b) = _mm256_add_ps(a, b);
        sub(a, b) = _mm256_sub_ps(a, b);
        mul(a, b) = _mm256_mul_ps(a, b);
        fma(a, b, c) = _mm256_fmadd_ps(a, b, c);
        fnma(a, b, c) = _mm256_fnmadd_ps(a, b, c);
        max(a, b) = _mm256_max_ps(a, b);
        abs(v) = _mm256_andnot_ps(_mm256_set1_ps(-0.0), v);
        select_lt(a, b, x, y) = _mm256_blendv_ps(y, x, _mm256_cmp_ps::<_CMP_LT_OQ>(a, b));
        round(v) = _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(v);
        pow2(n) = {
            let biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
            _mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased))
        };
    }

    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        with_features!(_mm256_set1_ps(x))
    }

    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> Self::V {
        // SAFETY: `x` is 32 readable bytes; `loadu` needs no alignment; features by `self`.
        unsafe { _mm256_loadu_ps(x.as_ptr()) }
    }

    #[inline(always)]
    fn store(self, v: Self::V, to: &mut [f32; LANES]) {
        // SAFETY: `to` is 32 writable bytes; `storeu` needs no alignment; features by `self`.
        unsafe { _mm256_storeu_ps(to.as_mut_ptr(), v) }
    }

    #[inline(always)]
    fn load_f16(self, x: &[f16; LANES]) -> Self::V {
        // SAFETY: `x` is 16 readable bytes; `loadu` needs no alignment; features by `self`.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(x.as_ptr().cast())) }
    }

    #[inline(always)]
    fn load_bf16(self, x: &[bf16; LANES]) -> Self::V {
        // SAFETY: `x` is 16 readable bytes; `loadu` needs no alignment; features by `self`.
        unsafe {
            let wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(x.as_ptr().cast()));
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(wide))
        }
    }

    #[inline(always)]
    fn load_i8(self, x: &[i8; LANES]) -> Self::V {
        // SAFETY: `x` is 8 readable bytes; `loadl` needs no alignment; features by `self`.
        unsafe { _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(x.as_ptr().cast()))) }
    }

    #[inline(always)]
    fn load_nibbles(self, x: &[u8; LANES]) -> [Self::V; 2] {
        // SAFETY: `x` is 8 readable bytes; `loadl` needs no alignment; features by `self`.
        unsafe {
            let bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(x.as_ptr().cast()));
            let low = _mm256_and_si256(bytes, _mm256_set1_epi32(15));
            [_mm256_cvtepi32_ps(low), _mm256_cvtepi32_ps(_mm256_srli_epi32::<4>(bytes))]
        }
    }

    /// Eight reductions at once: each step merges two vectors and halves the number of values per
    /// sum, 14 shuffles and 7 additions in total instead of 8 times 3 and 3.
    #[inline(always)]
    fn sums(self, v: [Self::V; LANES]) -> Self::V {
        let a = self.quarters(self.halves(v[0], v[4]), self.halves(v[1], v[5]));
        let b = self.quarters(self.halves(v[2], v[6]), self.halves(v[3], v[7]));
        with_features!(_mm256_add_ps(
            _mm256_shuffle_ps::<0b10_00_10_00>(a, b),
            _mm256_shuffle_ps::<0b11_01_11_01>(a, b)
        ))
    }
}

impl<const AVX512: bool> Lanes for X86Lanes<AVX512> {
    by_intrinsics! {
        div(a, b) = _mm256_div_ps(a, b);
        min(a, b) = _mm256_min_ps(a, b);
        swap_pairs(v) = _mm256_permute_ps::<0b10_11_00_01>(v);
        swap_twos(v) = _mm256_permute_ps::<0b01_00_11_10>(v);
        swap_fours(v) = _mm256_permute2f128_ps::<0x01>(v, v);
    }

    #[inline(always)]
    fn load_partial(self, x: &[f32]) -> Self::V {
        let mask = &PARTIAL[LANES - x.len()..][..LANES];
        // SAFETY: `mask` is 32 readable bytes; its first `x.len()` lanes are set, and no other lane
        // of `x` is read; features by `self`.
        unsafe { _mm256_maskload_ps(x.as_ptr(), _mm256_loadu_si256(mask.as_ptr().cast())) }
    }

    #[inline(always)]
    fn store_f16(self, v: Self::V, to: &mut [f16; LANES]) {
        // SAFETY: `to` is 16 writable bytes; `storeu` needs no alignment; features by `self`.
        unsafe {
            let halves = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v);
            _mm_storeu_si128(to.as_mut_ptr().cast(), halves);
        }
    }

    #[inline(always)]
    fn store_bf16(self, v: Self::V, to: &mut [bf16; LANES]) {
        // SAFETY: `to` is 16 writable bytes; `storeu` needs no alignment; features by `self`.
        unsafe {
            let bits = _mm256_castps_si256(v);
            let odd = _mm256_and_si256(_mm256_srli_epi32::<16>(bits), _mm256_set1_epi32(1));
            let rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
            let quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x0040_0000));
            let nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(v, v));
            let wide = _mm256_srli_epi32::<16>(_mm256_blendv_epi8(rounded, quiet, nan));
            let packed = _mm256_permute4x64_epi64::<0b00_00_10_00>(_mm256_packus_epi32(wide, wide));
            _mm_storeu_si128(to.as_mut_ptr().cast(), _mm256_castsi256_si128(packed));
        }
    }

    #[inline(always)]
    fn load_two_bits(self, x: &[u8; LANES]) -> [Self::V; 4] {
        // SAFETY: `x` is 8 readable bytes; `loadl` needs no alignment; features by `self`.
        unsafe {
            let bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(x.as_ptr().cast()));
            let low = _mm256_set1_epi32(3);
            [
                _mm256_cvtepi32_ps(_mm256_and_si256(bytes, low)),
                _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srli_epi32::<2>(bytes), low)),
                _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srli_epi32::<4>(bytes), low)),
                _mm256_cvtepi32_ps(_mm256_srli_epi32::<6>(bytes)),
            ]
        }
    }

    #[inline(always)]
    fn lookup(self, table: Self::V, codes: [u8; LANES]) -> Self::V {
        // SAFETY: register-only intrinsics; features by `self`.
        unsafe {
            let codes = _mm_cvtsi64_si128(i64::from_le_bytes(codes));
            _mm256_permutevar8x32_ps(table, _mm256_cvtepu8_epi32(codes))
        }
    }

    #[inline(always)]
    fn load_twice(self, x: &[f32; LANES / 2]) -> Self::V {
        // SAFETY: `x` is 16 readable bytes; `loadu` needs no alignment; features by `self`.
        unsafe {
            let four = _mm_loadu_ps(x.as_ptr());
            _mm256_set_m128(_mm_unpackhi_ps(four, four), _mm_unpacklo_ps(four, four))
        }
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

    #[inline(always)]
    fn prefetch<T>(self, x: &[T]) {
        let bytes = size_of_val(x);
        for offset in (0..bytes).step_by(CACHE_LINE) {
            // SAFETY: the address lies within `x`; a prefetch is no read in the language's sense.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(x.as_ptr().cast::<i8>().add(offset)) }
        }
    }

    #[inline(always)]
    fn prefetch_far<T>(self, x: &[T]) {
        let bytes = size_of_val(x);
        for offset in (0..bytes).step_by(CACHE_LINE) {
            // SAFETY: the address lies within `x`; a prefetch is no read in the language's sense.
            unsafe { _mm_prefetch::<_MM_HINT_T1>(x.as_ptr().cast::<i8>().add(offset)) }
        }
    }
}

impl<const AVX512: bool> X86Lanes<AVX512> {
    /// First step of the reduction tree for two vectors: the `s_j` of `a` in the low half, those of
    /// `b` in the high half.
    #[inline(always)]
    fn halves(self, a: __m256, b: __m256) -> __m256 {
        with_features!(_mm256_add_ps(
            _mm256_permute2f128_ps::<0x20>(a, b),
            _mm256_permute2f128_ps::<0x31>(a, b)
        ))
    }

    /// Second step of the reduction tree, in each half: `t_0, t_1` of `a`, then of `b`.
    #[inline(always)]
    fn quarters(self, a: __m256, b: __m256) -> __m256 {
        with_features!(_mm256_add_ps(
            _mm256_shuffle_ps::<0b01_00_01_00>(a, b),
            _mm256_shuffle_ps::<0b11_10_11_10>(a, b)
        ))
    }
}

impl WideLanes for Avx2Lanes {
    type Wide = Pairs<Self>;
    type W = <Pairs<Self> as Vectors<WIDE>>::V;
    const WIDE_REGISTERS: usize = 8;

    #[inline(always)]
    fn wide(self) -> Self::Wide {
        Pairs(self)
    }
}

impl WideLanes for Avx512Lanes {
    type Wide = Zmm;
    type W = __m512;
    const WIDE_REGISTERS: usize = 32;

    #[inline(always)]
    fn wide(self) -> Self::Wide {
        Zmm(self)
    }
}

/// Wide vectors as one `__m512`.
#[derive(Clone, Copy)]
pub(crate) struct Zmm(#[allow(dead_code)] Avx512Lanes); // proof of the features

impl Vectors<WIDE> for Zmm {
    type V = __m512;
    type Floats = [[f32; LANES]; 2];

    by_intrinsics! {
        add(a, b) = _mm512_add_ps(a, b);
        sub(a, b) = _mm512_sub_ps(a, b);
        abs(w) = _mm512_abs_ps(w);
        mul(a, b) = _mm512_mul_ps(a, b);
        fma(a, b, c) = _mm512_fmadd_ps(a, b, c);
        fnma(a, b, c) = _mm512_fnmadd_ps(a, b, c);
        max(a, b) = _mm512_max_ps(a, b);
        select_lt(a, b, x, y) = _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b), y, x);
        round(v) = _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(v);
        pow2(n) = {
            let biased = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127));
            _mm512_castsi512_ps(_mm512_slli_epi32::<23>(biased))
        };
    }

    #[inline(always)]
    fn load(self, x: &Self::Floats) -> Self::V {
        // SAFETY: `x` is 64 readable bytes; `loadu` needs no alignment; features by `self`.
        unsafe { _mm512_loadu_ps(x.as_ptr().cast()) }
    }

    #[inline(always)]
    fn load_f16(self, x: &[f16; WIDE]) -> Self::V {
        // SAFETY: `x` is 32 readable bytes; `loadu` needs no alignment; features by `self`.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(x.as_ptr().cast())) }
    }

    #[inline(always)]
    fn load_bf16(self, x: &[bf16; WIDE]) -> Self::V {
        // SAFETY: `x` is 32 readable bytes; `loadu` needs no alignment; features by `self`.
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(x.as_ptr().cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }

    #[inline(always)]
    fn load_i8(self, x: &[i8; WIDE]) -> Self::V {
        // SAFETY: `x` is 16 readable bytes; `loadu` needs no alignment; features by `self`.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(x.as_ptr().cast()))) }
    }

    #[inline(always)]
    fn load_nibbles(self, x: &[u8; WIDE]) -> [Self::V; 2] {
        // SAFETY: `x` is 16 readable bytes; `loadu` needs no alignment; features by `self`.
        unsafe {
            let bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(x.as_ptr().cast()));
            let low = _mm512_and_si512(bytes, _mm512_set1_epi32(15));
            [_mm512_cvtepi32_ps(low), _mm512_cvtepi32_ps(_mm512_srli_epi32::<4>(bytes))]
        }
    }

    #[inline(always)]
    fn store(self, w: Self::V, to: &mut Self::Floats) {
        // SAFETY: `to` is 64 writable bytes; `storeu` needs no alignment; features by `self`.
        unsafe { _mm512_storeu_ps(to.as_mut_ptr().cast(), w) }
    }

    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        with_features!(_mm512_set1_ps(x))
    }

    #[inline(always)]
    fn sums(self, w: [Self::V; LANES]) -> Self::V {
        // The reduction tree of eight vectors at once. Quarters of 128 bits: first the `s_j` of
        // both groups of two vectors, then the `t_j` of a group of two vectors, then the sums of a
        // group of four, permuted to order at the end.
        let s: [__m512; 4] = std::array::from_fn(|i| {
            with_features!(_mm512_add_ps(
                _mm512_shuffle_f32x4::<0b10_00_10_00>(w[i], w[i + 4]),
                _mm512_shuffle_f32x4::<0b11_01_11_01>(w[i], w[i + 4])
            ))
        });
        let t: [__m512; 2] = std::array::from_fn(|i| {
            with_features!(_mm512_add_ps(
                _mm512_shuffle_ps::<0b01_00_01_00>(s[2 * i], s[2 * i + 1]),
                _mm512_shuffle_ps::<0b11_10_11_10>(s[2 * i], s[2 * i + 1])
            ))
        });
        with_features!({
            let y = _mm512_add_ps(
                _mm512_shuffle_ps::<0b10_00_10_00>(t[0], t[1]),
                _mm512_shuffle_ps::<0b11_01_11_01>(t[0], t[1]),
            );
            _mm512_shuffle_f32x4::<0b11_01_10_00>(y, y)
        })
    }
}

impl Groups<Avx512Lanes> for Zmm {
    #[inline(always)]
    fn join(self, low: __m256, high: __m256) -> Self::V {
        with_features!(_mm512_insertf32x8::<1>(_mm512_castps256_ps512(low), high))
    }

    #[inline(always)]
    fn halves_of(self, w: Self::V) -> [__m256; 2] {
        with_features!([_mm512_castps512_ps256(w), _mm512_extractf32x8_ps::<1>(w)])
    }

    #[inline(always)]
    fn load_two_bits(self, x: &[u8; LANES]) -> [Self::V; 2] {
        // SAFETY: `x` is 8 readable bytes; `loadl` needs no alignment; features by `self`.
        unsafe {
            let bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(x.as_ptr().cast()));
            let both = _mm512_broadcast_i64x4(bytes);
            let shift = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 2, 2, 2, 2, 2, 2, 2, 2);
            let first = _mm512_srlv_epi32(both, shift);
            let low = _mm512_set1_epi32(3);
            [
                _mm512_cvtepi32_ps(_mm512_and_si512(first, low)),
                _mm512_cvtepi32_ps(_mm512_and_si512(_mm512_srli_epi32::<4>(first), low)),
            ]
        }
    }

    #[inline(always)]
    fn both(self, v: __m256) -> Self::V {
        with_features!(_mm512_broadcast_f32x8(v))
    }
}
