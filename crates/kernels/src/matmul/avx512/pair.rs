//! Row pairs in registers: groups of eight sub-blocks, unpacked and transposed, and their products
//! with one token.

use std::arch::x86_64::*;

use super::group::WideGroup;
use super::tile::offset;
use crate::lanes::LANES;
use crate::matmul::activations::Q8Group;
use crate::matmul::avx2::vector::load as load_half;
use crate::quant::QuantBlock;

/// Row pairs that are unpacked together: more would not fit in the registers.
pub(super) const PAIRS: usize = 2;

/// A group of eight sub-blocks of two rows in registers.
#[derive(Clone, Copy)]
pub(super) struct Weights {
    /// Unsigned; vector `i` holds piece `i` of every sub-block.
    quants: [__m512i; 8],
    scales: __m512,
    mins: __m512,
    /// The integer scales of the first and of the second halves.
    half_scales: [__m512; 2],
    /// The integer minima of the halves.
    half_mins: __m512i,
}

/// Unpacks a group of two rows into registers.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
pub(super) fn weights<B: WideGroup>(low: &[B], high: &[B]) -> Weights {
    // SAFETY: this function enables the features.
    let (quants, [(low_scales, low_mins), (high_scales, high_mins)]) =
        unsafe { ([B::wide_quants(low), B::wide_quants(high)], [B::scales(low), B::scales(high)]) };
    let mut weights = Weights {
        quants: transpose(quants),
        scales: join(low_scales, high_scales),
        mins: _mm512_setzero_ps(),
        half_scales: [_mm512_setzero_ps(); 2],
        half_mins: _mm512_setzero_si512(),
    };
    if B::HAS_MIN || B::HALF_MINS {
        weights.mins = join(low_mins, high_mins);
    }
    if B::HALF_SCALES || B::HALF_MINS {
        // SAFETY: this function enables the features.
        let [(low_scales, low_mins), (high_scales, high_mins)] =
            unsafe { [B::half_factors(low), B::half_factors(high)] };
        let scales = _mm512_cvtepi8_epi16(_mm256_set_m128i(high_scales, low_scales));
        let first = _mm512_srai_epi32::<16>(_mm512_slli_epi32::<16>(scales));
        let second = _mm512_srai_epi32::<16>(scales);
        weights.half_scales = [_mm512_cvtepi32_ps(first), _mm512_cvtepi32_ps(second)];
        weights.half_mins = _mm512_cvtepi8_epi16(_mm256_set_m128i(high_mins, low_mins));
    }
    weights
}

/// Adds the products of a group of row pairs with one token to the accumulators.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
pub(super) fn add_group<B: QuantBlock, const N: usize>(
    weights: &[Weights; N],
    x: &Q8Group,
    mut acc: [__m512; N],
) -> [__m512; N] {
    let halves = twice(load_half(&x.halves));
    let isum = if B::HALF_SCALES {
        let first = products(weights, x, 0, start(halves, [-offset::<B>(), 0]));
        let second = products(weights, x, 4, start(halves, [0, -offset::<B>()]));
        let mut isum = [_mm512_setzero_ps(); N];
        for p in 0..N {
            let [first_scale, second_scale] = weights[p].half_scales;
            // Exact, as the integers would be: a product is below 2^23, the sum of two below 2^24.
            // The zero that is added makes zeros positive, as those of integers are.
            let zero = _mm512_setzero_ps();
            let scaled = _mm512_fmadd_ps(_mm512_cvtepi32_ps(first[p]), first_scale, zero);
            isum[p] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(second[p]), second_scale, scaled);
        }
        isum
    } else {
        let first = products(weights, x, 0, start(halves, [-offset::<B>(); 2]));
        let all = products(weights, x, 4, first);
        let mut isum = [_mm512_setzero_ps(); N];
        for p in 0..N {
            isum[p] = _mm512_cvtepi32_ps(all[p]);
        }
        isum
    };
    let x_scales = twice_f32(&x.scales);
    for p in 0..N {
        let scale = _mm512_mul_ps(weights[p].scales, x_scales);
        let mut after = _mm512_fmadd_ps(scale, isum[p], acc[p]);
        if B::HALF_MINS {
            let imin = _mm512_dpwssd_epi32(_mm512_setzero_si512(), halves, weights[p].half_mins);
            let scale = _mm512_mul_ps(weights[p].mins, x_scales);
            after = _mm512_fnmadd_ps(scale, _mm512_cvtepi32_ps(imin), after);
        } else if B::HAS_MIN {
            after = _mm512_fnmadd_ps(weights[p].mins, twice_f32(&x.sums), after);
        }
        acc[p] = after;
    }
    acc
}

/// Initial sums: the sums of a token's halves times `offsets`, the same for all rows.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
fn start<const N: usize>(halves: __m512i, offsets: [i16; 2]) -> [__m512i; N] {
    let zero = _mm512_setzero_si512();
    if offsets == [0; 2] {
        return [zero; N];
    }
    [_mm512_dpwssd_epi32(zero, halves, _mm512_set1_epi32(bytemuck::cast(offsets))); N]
}

/// Adds the products of four pieces, from piece `first` on.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
fn products<const N: usize>(
    weights: &[Weights; N],
    x: &Q8Group,
    first: usize,
    mut isum: [__m512i; N],
) -> [__m512i; N] {
    for i in first..first + 4 {
        let x = twice(load_half(&x.quants[i]));
        for p in 0..N {
            isum[p] = _mm512_dpbusd_epi32(isum[p], weights[p].quants[i], x);
        }
    }
    isum
}

/// The same 32 bytes in both halves.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
fn twice(v: __m256i) -> __m512i {
    _mm512_broadcast_i64x4(v)
}

/// The same eight floats in both halves.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
fn twice_f32(from: &[f32; LANES]) -> __m512 {
    _mm512_castsi512_ps(twice(load_half(from)))
}

/// Concatenates two halves.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
fn join(low: __m256, high: __m256) -> __m512 {
    _mm512_insertf32x8::<1>(_mm512_castps256_ps512(low), high)
}

/// Reorders the quants of two rows from value order (eight pieces of two sub-blocks per vector):
/// vector `i` is piece `i` of the eight sub-blocks of the first row, then of the second.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
#[inline]
fn transpose(rows: [[__m512i; 4]; 2]) -> [__m512i; 8] {
    // Of two vectors, piece by piece, the four sub-blocks: pieces 0 to 3, and with four more 4
    // to 7.
    let low = _mm512_setr_epi32(0, 8, 16, 24, 1, 9, 17, 25, 2, 10, 18, 26, 3, 11, 19, 27);
    let high = _mm512_add_epi32(low, _mm512_set1_epi32(4));
    let mut vectors = [_mm512_setzero_si512(); 8];
    for (place, vectors) in [low, high].into_iter().zip(vectors.as_chunks_mut::<4>().0) {
        let mut fours = [_mm512_setzero_si512(); 4]; // [row, half of the sub-blocks]
        for (i, fours) in fours.iter_mut().enumerate() {
            let row = &rows[i / 2];
            *fours = _mm512_permutex2var_epi32(row[i % 2 * 2], place, row[i % 2 * 2 + 1]);
        }
        // Quarters: a matrix of four by four.
        let [a, b, c, d] = fours;
        let (ab, cd) =
            (_mm512_shuffle_i32x4::<0b01_00_01_00>(a, b), _mm512_shuffle_i32x4::<0b01_00_01_00>(c, d));
        vectors[0] = _mm512_shuffle_i32x4::<0b10_00_10_00>(ab, cd);
        vectors[1] = _mm512_shuffle_i32x4::<0b11_01_11_01>(ab, cd);
        let (ab, cd) =
            (_mm512_shuffle_i32x4::<0b11_10_11_10>(a, b), _mm512_shuffle_i32x4::<0b11_10_11_10>(c, d));
        vectors[2] = _mm512_shuffle_i32x4::<0b10_00_10_00>(ab, cd);
        vectors[3] = _mm512_shuffle_i32x4::<0b11_01_11_01>(ab, cd);
    }
    vectors
}
