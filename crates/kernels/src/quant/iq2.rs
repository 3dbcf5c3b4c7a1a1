//! `IQ2_XXS`, `IQ2_XS`, `IQ2_S`: magnitudes of eight values as points of a grid, signs beside them,
//! `x = d / 8 * (2 * sc + 1) * sign * magnitude`.

use std::sync::LazyLock;

use bytemuck::{Pod, Zeroable};

use super::codebook::neighbours::Neighbours;
use super::codebook::search::{Codebook, Fit, fit_codebook_block};
use super::codebook::{SignedGridBlock, even_signs, four_even_signs, grids, unpack_signed};
use super::importance::Importance;
use super::{Factors, QuantBlock, SUB_BLOCK, f32_to_half, half_to_f32};

/// Largest magnitude of the grids.
const HIGHEST: u8 = 43;

/// Unit of scales relative to `d`.
const UNIT: f32 = 0.125;

/// One quant block of `IQ2_XXS`: 66 bytes for 256 values.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Iq2Xxs {
    pub(crate) d: [u8; 2],
    /// Per sub-block four grid indices, then 32 bits: four times seven signs, the scale above.
    pub(crate) qs: [[u8; 8]; 8],
}

/// One quant block of `IQ2_XS`: 74 bytes for 256 values.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Iq2Xs {
    pub(crate) d: [u8; 2],
    /// Per eight values the grid index in bits 0 to 8, seven signs above.
    pub(crate) qs: [[[u8; 2]; 4]; 8],
    /// Per sub-block the scales of its halves, that of the first half in the low nibble.
    pub(crate) scales: [u8; 8],
}

/// One quant block of `IQ2_S`: 82 bytes for 256 values.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Iq2S {
    pub(crate) d: [u8; 2],
    /// Low eight bits of the grid indices.
    pub(crate) qs: [[u8; 4]; 8],
    pub(crate) signs: [[u8; 4]; 8],
    /// Per sub-block the upper two bits of its grid indices, the first lowest.
    pub(crate) qh: [u8; 8],
    /// As in `IQ2_XS`.
    pub(crate) scales: [u8; 8],
}

impl Iq2Xxs {
    /// Unit of scales relative to `d`.
    pub(crate) const UNIT: f32 = UNIT;

    /// Signs and scale of sub-block `s`.
    #[inline(always)]
    fn packed(&self, s: usize) -> u32 {
        let [_, _, _, _, packed @ ..] = self.qs[s];
        u32::from_le_bytes(packed)
    }
}

impl Iq2Xs {
    /// Unit of scales relative to `d`.
    pub(crate) const UNIT: f32 = UNIT;
}

impl Iq2S {
    /// Unit of scales relative to `d`.
    pub(crate) const UNIT: f32 = UNIT;
}

impl SignedGridBlock for Iq2Xxs {
    #[inline(always)]
    fn magnitudes(&self, s: usize) -> [u64; 4] {
        std::array::from_fn(|l| grids::IQ2_XXS[usize::from(self.qs[s][l])])
    }

    #[inline(always)]
    fn signs(&self) -> [u32; 8] {
        std::array::from_fn(|s| four_even_signs(self.packed(s)))
    }
}

impl SignedGridBlock for Iq2Xs {
    #[inline(always)]
    fn magnitudes(&self, s: usize) -> [u64; 4] {
        self.qs[s].map(|q| grids::IQ2_XS[usize::from(u16::from_le_bytes(q) & 511)])
    }

    #[inline(always)]
    fn signs(&self) -> [u32; 8] {
        self.qs.map(|qs| u32::from_le_bytes(qs.map(|[_, high]| even_signs(high >> 1))))
    }
}

impl SignedGridBlock for Iq2S {
    #[inline(always)]
    fn magnitudes(&self, s: usize) -> [u64; 4] {
        let high = usize::from(self.qh[s]);
        std::array::from_fn(|l| grids::IQ2_S[usize::from(self.qs[s][l]) | (high << (8 - 2 * l)) & 0x300])
    }

    #[inline(always)]
    fn signs(&self) -> [u32; 8] {
        self.signs.map(u32::from_le_bytes)
    }
}

/// Factors of two 4-bit scales per sub-block.
#[inline(always)]
fn half_factors(d: [u8; 2], scales: [u8; 8], factors: &mut [Factors]) {
    let scale = half_to_f32(d) * UNIT;
    for (factors, both) in factors.iter_mut().zip(scales) {
        let halves = [both & 15, both >> 4].map(|s| (2 * s + 1) as i8);
        *factors = Factors { scale, halves, ..Factors::UNIT };
    }
}

/// Scales of halves as nibbles of a byte per sub-block.
fn pack_scales(scales: &[u8; 16]) -> [u8; 8] {
    std::array::from_fn(|s| scales[2 * s] | scales[2 * s + 1] << 4)
}

impl QuantBlock for Iq2Xxs {
    const LEN: usize = 256;
    const MAX_QUANT: Option<u8> = Some(2 * HIGHEST);
    const OFFSET: i8 = HIGHEST as i8;

    #[inline(always)]
    fn unpack(&self, quants: &mut [[u8; SUB_BLOCK]]) {
        unpack_signed(self, quants);
    }

    #[inline(always)]
    fn factors(&self, factors: &mut [Factors]) {
        let d = half_to_f32(self.d) * UNIT;
        for (s, factors) in factors.iter_mut().enumerate() {
            let scale = d * (2 * (self.packed(s) >> 28) + 1) as f32;
            *factors = Factors { scale, ..Factors::UNIT };
        }
    }

    fn quantize(values: &[f32], importance: Importance<'_>) -> Self {
        let Fit { d, scales, codes } = fit_codebook_block::<XxsGroup, SUB_BLOCK, 8>(values, importance);
        let qs = std::array::from_fn(|s| {
            let code: [Eight; 4] = codes[s];
            let signs = |l: usize| u32::from(code[l].signs & 127) << (7 * l);
            let packed = (0..4).fold(u32::from(scales[s]) << 28, |packed, l| packed | signs(l));
            let [a, b, c, d] = packed.to_le_bytes();
            let [e, f, g, h] = code.map(|eight| eight.index as u8);
            [e, f, g, h, a, b, c, d]
        });
        Self { d: f32_to_half(d), qs }
    }
}

impl QuantBlock for Iq2Xs {
    const LEN: usize = 256;
    const MAX_QUANT: Option<u8> = Some(2 * HIGHEST);
    const OFFSET: i8 = HIGHEST as i8;
    const HALF_SCALES: bool = true;

    #[inline(always)]
    fn unpack(&self, quants: &mut [[u8; SUB_BLOCK]]) {
        unpack_signed(self, quants);
    }

    #[inline(always)]
    fn factors(&self, factors: &mut [Factors]) {
        half_factors(self.d, self.scales, factors);
    }

    fn quantize(values: &[f32], importance: Importance<'_>) -> Self {
        let Fit { d, scales, codes } =
            fit_codebook_block::<XsGroup, { SUB_BLOCK / 2 }, 16>(values, importance);
        let packed = codes.map(|code: [Eight; 2]| {
            code.map(|eight| (eight.index | u16::from(eight.signs & 127) << 9).to_le_bytes())
        });
        let qs = std::array::from_fn(|s| {
            let [[a, b], [c, d]] = [packed[2 * s], packed[2 * s + 1]];
            [a, b, c, d]
        });
        Self { d: f32_to_half(d), qs, scales: pack_scales(&scales) }
    }
}

impl QuantBlock for Iq2S {
    const LEN: usize = 256;
    const MAX_QUANT: Option<u8> = Some(2 * HIGHEST);
    const OFFSET: i8 = HIGHEST as i8;
    const HALF_SCALES: bool = true;

    #[inline(always)]
    fn unpack(&self, quants: &mut [[u8; SUB_BLOCK]]) {
        unpack_signed(self, quants);
    }

    #[inline(always)]
    fn factors(&self, factors: &mut [Factors]) {
        half_factors(self.d, self.scales, factors);
    }

    fn quantize(values: &[f32], importance: Importance<'_>) -> Self {
        let Fit { d, scales, codes } =
            fit_codebook_block::<SGroup, { SUB_BLOCK / 2 }, 16>(values, importance);
        let (mut qs, mut signs, mut qh) = ([[0; 4]; 8], [[0; 4]; 8], [0; 8]);
        for (i, eight) in codes.as_flattened().iter().enumerate() {
            let (s, l) = (i / 4, i % 4);
            qs[s][l] = eight.index as u8;
            signs[s][l] = eight.signs;
            qh[s] |= ((eight.index >> 8) as u8) << (2 * l);
        }
        Self { d: f32_to_half(d), qs, signs, qh, scales: pack_scales(&scales) }
    }
}

/// Code of eight values.
#[derive(Clone, Copy, Default)]
pub(crate) struct Eight {
    index: u16,
    signs: u8,
}

type Grid = Neighbours<8, 3>;

fn neighbours(points: &[u64]) -> Grid {
    let floats = |point: &u64| point.to_le_bytes().map(f32::from);
    Neighbours::new(points.iter().map(floats), [8.0, 25.0, f32::from(HIGHEST)])
}

static XXS: LazyLock<Grid> = LazyLock::new(|| neighbours(&grids::IQ2_XXS));
static XS: LazyLock<Grid> = LazyLock::new(|| neighbours(&grids::IQ2_XS));
static S: LazyLock<Grid> = LazyLock::new(|| neighbours(&grids::IQ2_S));

/// Best code of eight values; with `even`, of those with an even number of negative values.
#[inline(always)]
fn assign_eight(
    grid: &Grid,
    even: bool,
    x: &[f32; 8],
    w: &[f32; 8],
    scale: f32,
    values: &mut [f32; 8],
) -> Eight {
    let mut signs = 0_u8;
    for (j, x) in x.iter().enumerate() {
        signs |= u8::from(*x < 0.0) << j;
    }
    let magnitudes = x.map(f32::abs);
    let index = if even && signs.count_ones() % 2 == 1 {
        let found = grid.best_signed(&magnitudes, w, scale);
        signs ^= 1 << found.value;
        found.flipped.index
    } else {
        grid.best(&magnitudes, w, scale).index
    };
    let point = &grid.points[usize::from(index)];
    for (j, value) in values.iter_mut().enumerate() {
        *value = if signs & 1 << j != 0 { -point[j] } else { point[j] };
    }
    Eight { index, signs }
}

/// Implements [`Codebook`] for groups of `$len` values on a grid of eights.
macro_rules! codebook {
    ($($(#[$doc:meta])* $name:ident: $len:literal values, $grid:ident, even: $even:literal;)*) => { $(
        $(#[$doc])*
        struct $name;

        impl Codebook<$len> for $name {
            type Code = [Eight; $len / 8];
            const SCALES: u8 = 16;
            const UNIT: f32 = UNIT;
            const REACH: [f32; 2] = [28.0, 62.0];

            #[inline(never)]
            fn assign(x: &[f32; $len], w: &[f32; $len], scale: f32) -> (Self::Code, [f32; $len]) {
                let (mut code, mut values) = (Self::Code::default(), [0.0; $len]);
                let (x, w) = (x.as_chunks().0, w.as_chunks().0);
                for (l, to) in values.as_chunks_mut().0.iter_mut().enumerate() {
                    code[l] = assign_eight(&$grid, $even, &x[l], &w[l], scale, to);
                }
                (code, values)
            }
        }
    )* };
}

codebook! {
    /// Groups of `IQ2_XXS`.
    XxsGroup: 32 values, XXS, even: true;
    /// Groups of `IQ2_XS`.
    XsGroup: 16 values, XS, even: true;
    /// Groups of `IQ2_S`.
    SGroup: 16 values, S, even: false;
}
