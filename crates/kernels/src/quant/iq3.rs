//! `IQ3_XXS` and `IQ3_S`: magnitudes of four values as points of a grid, signs beside them.
//!
//! `IQ3_XXS`: `x = d / 4 * (2 * sc + 1) * sign * magnitude`; `IQ3_S`: the same with `d`.

use std::sync::LazyLock;

use bytemuck::{Pod, Zeroable};

use super::codebook::neighbours::Neighbours;
use super::codebook::search::{Codebook, Fit, fit_codebook_block};
use super::codebook::{SignedGridBlock, four_even_signs, grids, unpack_signed};
use super::importance::Importance;
use super::{Factors, QuantBlock, SUB_BLOCK, f32_to_half, half_to_f32};

/// One quant block of `IQ3_XXS`: 98 bytes for 256 values.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Iq3Xxs {
    pub(crate) d: [u8; 2],
    /// Grid indices.
    pub(crate) qs: [[u8; 8]; 8],
    /// Per sub-block 32 bits: four times seven signs, the scale above.
    pub(crate) packed: [[u8; 4]; 8],
}

/// One quant block of `IQ3_S`: 110 bytes for 256 values.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Iq3S {
    pub(crate) d: [u8; 2],
    /// Low eight bits of the grid indices.
    pub(crate) qs: [[u8; 8]; 8],
    /// Per sub-block the ninth bits of its grid indices.
    pub(crate) qh: [u8; 8],
    pub(crate) signs: [[u8; 4]; 8],
    /// Per pair of sub-blocks their scales, the first in the low nibble.
    pub(crate) scales: [u8; 4],
}

impl Iq3Xxs {
    /// Unit of scales relative to `d`.
    pub(crate) const UNIT: f32 = 0.25;
}

impl SignedGridBlock for Iq3Xxs {
    #[inline(always)]
    fn magnitudes(&self, s: usize) -> [u64; 4] {
        let point = |q: u8| u64::from(grids::IQ3_XXS[usize::from(q)]);
        std::array::from_fn(|l| point(self.qs[s][2 * l]) | point(self.qs[s][2 * l + 1]) << 32)
    }

    #[inline(always)]
    fn signs(&self) -> [u32; 8] {
        self.packed.map(|packed| four_even_signs(u32::from_le_bytes(packed)))
    }
}

impl SignedGridBlock for Iq3S {
    #[inline(always)]
    fn magnitudes(&self, s: usize) -> [u64; 4] {
        let high = usize::from(self.qh[s]);
        let point =
            |i: usize| u64::from(grids::IQ3_S[usize::from(self.qs[s][i]) | (high << (8 - i)) & 0x100]);
        std::array::from_fn(|l| point(2 * l) | point(2 * l + 1) << 32)
    }

    #[inline(always)]
    fn signs(&self) -> [u32; 8] {
        self.signs.map(u32::from_le_bytes)
    }
}

impl QuantBlock for Iq3Xxs {
    const LEN: usize = 256;
    const MAX_QUANT: Option<u8> = Some(124);
    const OFFSET: i8 = 62;

    #[inline(always)]
    fn unpack(&self, quants: &mut [[u8; SUB_BLOCK]]) {
        unpack_signed(self, quants);
    }

    #[inline(always)]
    fn factors(&self, factors: &mut [Factors]) {
        let d = half_to_f32(self.d) * Self::UNIT;
        for (factors, packed) in factors.iter_mut().zip(self.packed) {
            let scale = d * (2 * (u32::from_le_bytes(packed) >> 28) + 1) as f32;
            *factors = Factors { scale, ..Factors::UNIT };
        }
    }

    fn quantize(values: &[f32], importance: Importance<'_>) -> Self {
        let Fit { d, scales, codes } = fit_codebook_block::<XxsGroup, SUB_BLOCK, 8>(values, importance);
        let packed = std::array::from_fn(|s| {
            let signs = |l: usize| (codes[s].signs >> (8 * l) & 127) << (7 * l);
            let packed = (0..4).fold(u32::from(scales[s]) << 28, |packed, l| packed | signs(l));
            packed.to_le_bytes()
        });
        let qs = codes.map(|code| code.indices.map(|index| index as u8));
        Self { d: f32_to_half(d), qs, packed }
    }
}

impl QuantBlock for Iq3S {
    const LEN: usize = 256;
    const MAX_QUANT: Option<u8> = Some(30);
    const OFFSET: i8 = 15;

    #[inline(always)]
    fn unpack(&self, quants: &mut [[u8; SUB_BLOCK]]) {
        unpack_signed(self, quants);
    }

    #[inline(always)]
    fn factors(&self, factors: &mut [Factors]) {
        let d = half_to_f32(self.d);
        for (factors, both) in factors.chunks_exact_mut(2).zip(self.scales) {
            for (factors, s) in factors.iter_mut().zip([both & 15, both >> 4]) {
                *factors = Factors { scale: d * f32::from(2 * s + 1), ..Factors::UNIT };
            }
        }
    }

    fn quantize(values: &[f32], importance: Importance<'_>) -> Self {
        let Fit { d, scales, codes } = fit_codebook_block::<SGroup, SUB_BLOCK, 8>(values, importance);
        let high =
            |code: &Thirty2| code.indices.iter().rev().fold(0, |bits, index| bits << 1 | (index >> 8) as u8);
        Self {
            d: f32_to_half(d),
            qs: codes.map(|code| code.indices.map(|index| index as u8)),
            qh: codes.each_ref().map(high),
            signs: codes.map(|code| code.signs.to_le_bytes()),
            scales: std::array::from_fn(|i| scales[2 * i] | scales[2 * i + 1] << 4),
        }
    }
}

/// Code of 32 values.
#[derive(Clone, Copy, Default)]
pub(crate) struct Thirty2 {
    indices: [u16; 8],
    signs: u32,
}

type Grid = Neighbours<4, 8>;

fn neighbours(points: &[u32], levels: [f32; 8]) -> Grid {
    Neighbours::new(points.iter().map(|point| point.to_le_bytes().map(f32::from)), levels)
}

static XXS: LazyLock<Grid> =
    LazyLock::new(|| neighbours(&grids::IQ3_XXS, [4.0, 12.0, 20.0, 28.0, 36.0, 44.0, 52.0, 62.0]));
static S: LazyLock<Grid> =
    LazyLock::new(|| neighbours(&grids::IQ3_S, [1.0, 3.0, 5.0, 7.0, 9.0, 11.0, 13.0, 15.0]));

/// Best code of 32 values; with `even`, of those with an even number of negative values in every
/// eight.
#[inline(always)]
fn assign(grid: &Grid, even: bool, x: &[f32; 32], w: &[f32; 32], scale: f32) -> (Thirty2, [f32; 32]) {
    let mut code = Thirty2::default();
    for (j, x) in x.iter().enumerate() {
        code.signs |= u32::from(*x < 0.0) << j;
    }
    let magnitudes = x.map(f32::abs);
    let (x, w) = (magnitudes.as_chunks::<8>().0, w.as_chunks::<8>().0);
    for (l, (x, w)) in x.iter().zip(w).enumerate() {
        let [a, b] = x.as_chunks::<4>().0 else { unreachable!("two fours") };
        let [wa, wb] = w.as_chunks::<4>().0 else { unreachable!("two fours") };
        let odd = code.signs.to_le_bytes()[l].count_ones() % 2 == 1;
        let (first, second) = if even && odd {
            let (a, b) = (grid.best_signed(a, wa, scale), grid.best_signed(b, wb, scale));
            // The wrong sign is in the four where it costs less.
            if a.flipped.error + b.right.error < a.right.error + b.flipped.error {
                code.signs ^= 1 << (8 * l + usize::from(a.value));
                (a.flipped.index, b.right.index)
            } else {
                code.signs ^= 1 << (8 * l + 4 + usize::from(b.value));
                (a.right.index, b.flipped.index)
            }
        } else {
            (grid.best(a, wa, scale).index, grid.best(b, wb, scale).index)
        };
        (code.indices[2 * l], code.indices[2 * l + 1]) = (first, second);
    }
    let mut values = [0.0; 32];
    for (j, value) in values.iter_mut().enumerate() {
        let magnitude = grid.points[usize::from(code.indices[j / 4])][j % 4];
        *value = if code.signs & 1 << j != 0 { -magnitude } else { magnitude };
    }
    (code, values)
}

/// Groups of `IQ3_XXS`.
struct XxsGroup;

impl Codebook<32> for XxsGroup {
    type Code = Thirty2;
    const SCALES: u8 = 16;
    const UNIT: f32 = Iq3Xxs::UNIT;
    const REACH: [f32; 2] = [46.0, 82.0];

    #[inline(never)]
    fn assign(x: &[f32; 32], w: &[f32; 32], scale: f32) -> (Thirty2, [f32; 32]) {
        assign(&XXS, true, x, w, scale)
    }
}

/// Groups of `IQ3_S`.
struct SGroup;

impl Codebook<32> for SGroup {
    type Code = Thirty2;
    const SCALES: u8 = 16;
    const UNIT: f32 = 1.0;
    const REACH: [f32; 2] = [11.0, 19.0];

    #[inline(never)]
    fn assign(x: &[f32; 32], w: &[f32; 32], scale: f32) -> (Thirty2, [f32; 32]) {
        assign(&S, false, x, w, scale)
    }
}
