//! Quantization of activations with AVX2.

use std::arch::x86_64::*;

use super::q8::{Order, OrderedQuants, Q8Leaf, Q8SubBlock, TILE_TOKENS};
use crate::lanes::{LANES, X86Lanes};
use crate::matmul::avx2::vector::{load, load_f32, store, transpose, transpose_rows};
use crate::quant::SUB_BLOCK;

impl<const AVX512: bool> Q8Leaf for X86Lanes<AVX512> {
    #[inline(always)]
    fn sub_block(self, x: &[f32; SUB_BLOCK]) -> Q8SubBlock {
        // SAFETY: a value of `X86Lanes` exists only where the features are present.
        unsafe { sub_block(x) }
    }

    #[inline(always)]
    fn reorder(self, sub_blocks: &[Q8SubBlock; LANES], order: Order) -> OrderedQuants {
        // SAFETY: a value of `X86Lanes` exists only where the features are present.
        unsafe { reorder(sub_blocks, order) }
    }

    #[inline(always)]
    fn interleave(self, tokens: &[Q8SubBlock; TILE_TOKENS]) -> [[[i8; 4]; TILE_TOKENS]; SUB_BLOCK / 4] {
        // SAFETY: a value of `X86Lanes` exists only where the features are present.
        unsafe { interleave(tokens) }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn sub_block(x: &[f32; SUB_BLOCK]) -> Q8SubBlock {
    let [a, b, c, d] = x.as_chunks::<LANES>().0 else { unreachable!("32 values are four vectors") };
    let x = [load_f32(a), load_f32(b), load_f32(c), load_f32(d)];
    // As integers, magnitudes sort like floats, with infinity and then NaN above all of them.
    let magnitude = _mm256_set1_epi32(0x7fff_ffff);
    let [a, b, c, d] = x.map(|x| _mm256_and_si256(_mm256_castps_si256(x), magnitude));
    let largest = _mm256_max_epu32(_mm256_max_epu32(a, b), _mm256_max_epu32(c, d));
    let largest = _mm_max_epu32(_mm256_castsi256_si128(largest), _mm256_extracti128_si256::<1>(largest));
    let largest = _mm_max_epu32(largest, _mm_shuffle_epi32::<0b01_00_11_10>(largest));
    let largest = _mm_max_epu32(largest, _mm_shuffle_epi32::<0b10_11_00_01>(largest));
    let largest = _mm_cvtss_f32(_mm_castsi128_ps(largest));
    let inverse = match Q8SubBlock::inverse_scale(largest) {
        Ok(inverse) => _mm256_set1_ps(inverse),
        Err(without_scale) => return without_scale,
    };
    // The conversion rounds to nearest, ties to even; packing works within 128-bit halves, which
    // the permutation undoes.
    let [a, b, c, d] = x.map(|x| _mm256_cvtps_epi32(_mm256_mul_ps(x, inverse)));
    let packed = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
    let quants = _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    let pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), quants);
    let fours = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    let eights = _mm256_add_epi32(fours, _mm256_shuffle_epi32::<0b01_00_11_10>(fours));
    let halves = _mm256_add_epi32(eights, _mm256_shuffle_epi32::<0b10_11_00_01>(eights));
    let halves = [_mm256_extract_epi32::<0>(halves) as i16, _mm256_extract_epi32::<4>(halves) as i16];
    let mut bytes = [0; SUB_BLOCK];
    store(&mut bytes, quants);
    Q8SubBlock::from_quants(bytes, halves, largest)
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn reorder(sub_blocks: &[Q8SubBlock; LANES], order: Order) -> OrderedQuants {
    let quants = sub_blocks.each_ref().map(|b| &b.quants);
    let four = |sub_blocks: [usize; 4]| transpose(sub_blocks.map(|s| load(quants[s])));
    let vectors = match order {
        Order::Plain => quants.map(|quants| load(quants)),
        Order::Pieces => transpose_rows(quants),
        Order::EvenOdd => join(four([0, 2, 4, 6]), four([1, 3, 5, 7])),
        Order::Pairs => join(four([0, 1, 4, 5]), four([2, 3, 6, 7])),
        Order::Eights => {
            let eights = |sub_blocks: [usize; 4]| transpose_eights(sub_blocks.map(|s| load(quants[s])));
            join(eights([0, 1, 2, 3]), eights([4, 5, 6, 7]))
        }
    };
    let mut ordered = [[[0; 4]; LANES]; 8];
    for (to, vector) in ordered.iter_mut().zip(vectors) {
        store(to, vector);
    }
    ordered
}

/// Transposes a matrix of four by four 64-bit numbers.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn transpose_eights(v: [__m256i; 4]) -> [__m256i; 4] {
    let (a, b) = (_mm256_unpacklo_epi64(v[0], v[1]), _mm256_unpackhi_epi64(v[0], v[1]));
    let (c, d) = (_mm256_unpacklo_epi64(v[2], v[3]), _mm256_unpackhi_epi64(v[2], v[3]));
    [
        _mm256_permute2x128_si256::<0x20>(a, c),
        _mm256_permute2x128_si256::<0x20>(b, d),
        _mm256_permute2x128_si256::<0x31>(a, c),
        _mm256_permute2x128_si256::<0x31>(b, d),
    ]
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn join([a, b, c, d]: [__m256i; 4], [e, f, g, h]: [__m256i; 4]) -> [__m256i; 8] {
    [a, b, c, d, e, f, g, h]
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn interleave(tokens: &[Q8SubBlock; TILE_TOKENS]) -> [[[i8; 4]; TILE_TOKENS]; SUB_BLOCK / 4] {
    // Piece `i` of the four tokens in the low half of vector `i`, piece `i + 4` in the high half.
    let pieces = transpose(tokens.each_ref().map(|token| load(&token.quants)));
    let [a, b, c, d] = pieces;
    let mut interleaved = [[[[0_i8; 4]; TILE_TOKENS]; 2]; 4];
    store(&mut interleaved[0], _mm256_permute2x128_si256::<0x20>(a, b));
    store(&mut interleaved[1], _mm256_permute2x128_si256::<0x20>(c, d));
    store(&mut interleaved[2], _mm256_permute2x128_si256::<0x31>(a, b));
    store(&mut interleaved[3], _mm256_permute2x128_si256::<0x31>(c, d));
    bytemuck::cast(interleaved)
}
