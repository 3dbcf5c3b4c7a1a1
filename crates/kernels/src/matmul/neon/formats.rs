//! Unpacking of the formats in NEON registers.
//!
//! Every format works by its own description, whose plain loops become vector code; the common ones
//! have a shorter way.

use std::arch::aarch64::*;

use half::f16;

use super::Values;
use super::vector::{load, load_f32, load_signed, widen_two};
use crate::lanes::LANES;
use crate::quant::{
    Factors, Iq1M, Iq1S, Iq2S, Iq2Xs, Iq2Xxs, Iq3S, Iq3Xxs, Iq4Xs, MAX_SUB_BLOCKS, NON_LINEAR_CODEBOOK,
    NibbleBlock, PackedScales, Q2K, Q3K, Q4K, Q5K, Q6K, Q8_0, QuantBlock, SUB_BLOCK, Tq1, Tq2,
};

/// The numbers that belong to eight sub-blocks.
pub(super) struct GroupFactors {
    pub(super) scales: [float32x4_t; 2],
    pub(super) mins: [float32x4_t; 2],
    /// Integer scales and minima of halves, in the order of the values.
    pub(super) halves: int8x16_t,
    pub(super) min_halves: int8x16_t,
}

/// A format's way into registers.
pub(super) trait Group: QuantBlock {
    /// The values of all sub-blocks without scale: stored quants, less the offset. `to`:
    /// `[SUB_BLOCKS]`.
    ///
    /// # Safety
    /// The CPU has NEON.
    #[target_feature(enable = "neon")]
    #[inline]
    unsafe fn values(&self, to: &mut [Values]) {
        let mut quants = [[0; SUB_BLOCK]; MAX_SUB_BLOCKS];
        self.unpack(&mut quants[..Self::SUB_BLOCKS]);
        for (to, quants) in to.iter_mut().zip(&quants) {
            for (to, quants) in to.iter_mut().zip(quants.as_chunks::<16>().0) {
                *to = without_offset::<Self>(load(quants));
            }
        }
    }

    /// The factors of `LANES / SUB_BLOCKS` quant blocks.
    ///
    /// # Safety
    /// The CPU has NEON.
    #[target_feature(enable = "neon")]
    #[inline]
    unsafe fn group_factors(group: &[Self]) -> GroupFactors {
        let mut factors = [Factors::default(); LANES];
        for (block, factors) in group.iter().zip(factors.chunks_exact_mut(Self::SUB_BLOCKS)) {
            block.factors(factors);
        }
        GroupFactors {
            scales: load_eight(&factors.map(|f| f.scale)),
            mins: load_eight(&factors.map(|f| f.min)),
            halves: load_signed(&factors.map(|f| f.halves)),
            min_halves: load_signed(&factors.map(|f| f.min_halves)),
        }
    }
}

impl Group for Q8_0 {
    #[target_feature(enable = "neon")]
    #[inline]
    unsafe fn values(&self, to: &mut [Values]) {
        let [low, high] = halves(&self.qs);
        to[0] = [low, high].map(|v| vreinterpretq_s8_u8(v));
    }

    #[target_feature(enable = "neon")]
    #[inline]
    unsafe fn group_factors(group: &[Self]) -> GroupFactors {
        let group: &[Self; LANES] = group.as_array().expect("eight blocks");
        GroupFactors::from_halves(group.each_ref().map(|block| block.d))
    }
}

impl<B: NibbleBlock> Group for B {
    #[target_feature(enable = "neon")]
    #[inline]
    unsafe fn values(&self, to: &mut [Values]) {
        if let Some(codebook) = B::CODEBOOK {
            to[0] = look_up(load(self.qs()), codebook).map(|v| without_offset::<B>(v));
            return;
        }
        let mut quants = nibbles(load(self.qs()));
        if B::FIFTH {
            let high = fifth_bits(self.qh());
            for i in 0..2 {
                quants[i] = vorrq_u8(quants[i], high[i]);
            }
        }
        to[0] = quants.map(|v| without_offset::<B>(v));
    }

    #[target_feature(enable = "neon")]
    #[inline]
    unsafe fn group_factors(group: &[Self]) -> GroupFactors {
        let group: &[Self; LANES] = group.as_array().expect("eight blocks");
        if B::E8M0 {
            let scales = load_eight(&group.each_ref().map(B::scale));
            return GroupFactors { scales, ..GroupFactors::none() };
        }
        let mut factors = GroupFactors::from_halves(group.each_ref().map(B::d));
        if B::HAS_MIN {
            let offsets = GroupFactors::from_halves(group.each_ref().map(B::m)).scales;
            factors.mins = offsets.map(|m| vnegq_f32(m));
        }
        factors
    }
}

impl Group for Q2K {
    #[target_feature(enable = "neon")]
    #[inline]
    unsafe fn values(&self, to: &mut [Values]) {
        let mask = vdupq_n_u8(3);
        for (qs, to) in self.qs.iter().zip(to.chunks_exact_mut(4)) {
            for (i, qs) in halves(qs).into_iter().enumerate() {
                to[0][i] = without_offset::<Self>(vandq_u8(qs, mask));
                to[1][i] = without_offset::<Self>(vandq_u8(vshrq_n_u8::<2>(qs), mask));
                to[2][i] = without_offset::<Self>(vandq_u8(vshrq_n_u8::<4>(qs), mask));
                to[3][i] = without_offset::<Self>(vshrq_n_u8::<6>(qs));
            }
        }
    }

    #[target_feature(enable = "neon")]
    #[inline]
    unsafe fn group_factors(group: &[Self]) -> GroupFactors {
        let [scale, min] = widen_two(group[0].d, group[0].dmin);
        let [halves, min_halves] = nibbles(load(&group[0].scales)).map(|v| vreinterpretq_s8_u8(v));
        GroupFactors { scales: [vdupq_n_f32(scale); 2], mins: [vdupq_n_f32(min); 2], halves, min_halves }
    }
}

impl Group for Q3K {}
impl Group for Iq1S {}
impl Group for Iq1M {}
impl Group for Iq2Xxs {}
impl Group for Iq2Xs {}
impl Group for Iq2S {}
impl Group for Iq3Xxs {}
impl Group for Iq3S {}
impl Group for Tq1 {}
impl Group for Tq2 {}

impl Group for Iq4Xs {
    #[target_feature(enable = "neon")]
    #[inline]
    unsafe fn values(&self, to: &mut [Values]) {
        for (to, qs) in to.iter_mut().zip(&self.qs) {
            *to = look_up(load(qs), NON_LINEAR_CODEBOOK).map(|v| vreinterpretq_s8_u8(v));
        }
    }
}

impl Group for Q4K {
    #[target_feature(enable = "neon")]
    #[inline]
    unsafe fn values(&self, to: &mut [Values]) {
        for (qs, to) in self.qs.iter().zip(to.chunks_exact_mut(2)) {
            for (i, qs) in halves(qs).into_iter().enumerate() {
                [to[0][i], to[1][i]] = nibbles(qs).map(|v| without_offset::<Self>(v));
            }
        }
    }

    #[target_feature(enable = "neon")]
    #[inline]
    unsafe fn group_factors(group: &[Self]) -> GroupFactors {
        GroupFactors::from_packed(&group[0].scales)
    }
}

impl Group for Q5K {
    #[target_feature(enable = "neon")]
    #[inline]
    unsafe fn values(&self, to: &mut [Values]) {
        let bit_4 = vdupq_n_u8(16);
        // The fifth bits of the next two sub-blocks are the lowest of each byte.
        let mut high = halves(&self.qh);
        for (qs, to) in self.qs.iter().zip(to.chunks_exact_mut(2)) {
            for (i, qs) in halves(qs).into_iter().enumerate() {
                let [a, b] = nibbles(qs);
                let a = vorrq_u8(a, vandq_u8(vshlq_n_u8::<4>(high[i]), bit_4));
                let b = vorrq_u8(b, vandq_u8(vshlq_n_u8::<3>(high[i]), bit_4));
                [to[0][i], to[1][i]] = [a, b].map(|v| without_offset::<Self>(v));
                high[i] = vshrq_n_u8::<2>(high[i]);
            }
        }
    }

    #[target_feature(enable = "neon")]
    #[inline]
    unsafe fn group_factors(group: &[Self]) -> GroupFactors {
        GroupFactors::from_packed(&group[0].scales)
    }
}

impl Group for Q6K {
    #[target_feature(enable = "neon")]
    #[inline]
    unsafe fn values(&self, to: &mut [Values]) {
        let bits_45 = vdupq_n_u8(0x30);
        for ((ql, qh), to) in self.ql.iter().zip(&self.qh).zip(to.chunks_exact_mut(4)) {
            let (first, second, high) = (halves(&ql[0]), halves(&ql[1]), halves(qh));
            for i in 0..2 {
                let ([a, c], [b, d]) = (nibbles(first[i]), nibbles(second[i]));
                let place = |low, high| without_offset::<Self>(vorrq_u8(low, vandq_u8(high, bits_45)));
                to[0][i] = place(a, vshlq_n_u8::<4>(high[i]));
                to[1][i] = place(b, vshlq_n_u8::<2>(high[i]));
                to[2][i] = place(c, high[i]);
                to[3][i] = place(d, vshrq_n_u8::<2>(high[i]));
            }
        }
    }

    #[target_feature(enable = "neon")]
    #[inline]
    unsafe fn group_factors(group: &[Self]) -> GroupFactors {
        let [d, _] = widen_two(group[0].d, [0; 2]);
        GroupFactors {
            scales: [vdupq_n_f32(d); 2],
            halves: load_signed(&group[0].scales),
            ..GroupFactors::none()
        }
    }
}

impl GroupFactors {
    /// Factors of a format without any: zero or one.
    #[target_feature(enable = "neon")]
    #[inline]
    fn none() -> Self {
        let (zeros, ones) = ([vdupq_n_f32(0.0); 2], vdupq_n_s8(1));
        Self { scales: zeros, mins: zeros, halves: ones, min_halves: ones }
    }

    /// One half-precision scale per sub-block.
    #[target_feature(enable = "neon")]
    #[inline]
    fn from_halves(halves: [[u8; 2]; LANES]) -> Self {
        let halves = vreinterpretq_f16_u8(load(&halves.map(f16::from_le_bytes)));
        let scales = [vcvt_f32_f16(vget_low_f16(halves)), vcvt_high_f32_f16(halves)];
        Self { scales, ..Self::none() }
    }

    /// The scales and minima of a `Q4_K` or `Q5_K` quant block.
    #[target_feature(enable = "neon")]
    #[inline]
    fn from_packed(packed: &PackedScales) -> Self {
        let (low, high) = packed.halves();
        let [d, dmin] = widen_two(packed.d, packed.dmin);
        let numbers = [low, high].map(|bytes| vmovl_u8(vcreate_u8(bytes)));
        Self {
            scales: numbers.map(|v| vmulq_n_f32(vcvtq_f32_u32(vmovl_u16(vget_low_u16(v))), d)),
            mins: numbers.map(|v| vmulq_n_f32(vcvtq_f32_u32(vmovl_high_u16(v)), dmin)),
            ..Self::none()
        }
    }
}

/// 32 bytes as two vectors.
#[target_feature(enable = "neon")]
#[inline]
fn halves(bytes: &[u8; 32]) -> [uint8x16_t; 2] {
    bytemuck::cast_ref::<_, [[u8; 16]; 2]>(bytes).each_ref().map(|half| load(half))
}

#[target_feature(enable = "neon")]
#[inline]
fn load_eight(from: &[f32; LANES]) -> [float32x4_t; 2] {
    let [low, high] = from.as_chunks::<4>().0 else { unreachable!("eight values are two vectors") };
    [load_f32(low), load_f32(high)]
}

/// The low four bits of every byte, and the high four.
#[target_feature(enable = "neon")]
#[inline]
fn nibbles(v: uint8x16_t) -> [uint8x16_t; 2] {
    [vandq_u8(v, vdupq_n_u8(15)), vshrq_n_u8::<4>(v)]
}

/// The stored values of a codebook that the low and the high four bits of every byte stand for.
#[target_feature(enable = "neon")]
#[inline]
fn look_up(packed: uint8x16_t, codebook: [u8; 16]) -> [uint8x16_t; 2] {
    let table = load(&codebook);
    nibbles(packed).map(|quants| vqtbl1q_u8(table, quants))
}

/// 32 bits, each as 16 or 0.
#[target_feature(enable = "neon")]
#[inline]
fn fifth_bits(bits: [u8; 4]) -> [uint8x16_t; 2] {
    let place = load(&[1_u8, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128]);
    let [a, b, c, d] = bits.map(|bits| vdup_n_u8(bits));
    [vcombine_u8(a, b), vcombine_u8(c, d)].map(|bits| vandq_u8(vtstq_u8(bits, place), vdupq_n_u8(16)))
}

/// Stored quants as signed bytes around zero.
#[target_feature(enable = "neon")]
#[inline]
fn without_offset<B: QuantBlock>(stored: uint8x16_t) -> int8x16_t {
    if B::OFFSET == 0 || B::MAX_QUANT.is_none() {
        return vreinterpretq_s8_u8(stored);
    }
    vreinterpretq_s8_u8(vsubq_u8(stored, vdupq_n_u8(B::OFFSET as u8)))
}
