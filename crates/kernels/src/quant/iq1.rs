//! `IQ1_S` and `IQ1_M`: eight values of -1, 0 and 1 as a point `g` of a grid, all moved by an
//! eighth up or down, `x = d / 8 * (2 * sc + 1) * (8 * g +- 1)`.

use std::sync::LazyLock;

use bytemuck::{Pod, Zeroable};

use super::codebook::neighbours::Neighbours;
use super::codebook::search::{Codebook, Fit, fit_codebook_block};
use super::codebook::{grids, repeat};
use super::importance::Importance;
use super::{Factors, QuantBlock, SUB_BLOCK, f32_to_half, half_to_f32};

/// Unit of scales relative to `d`.
const UNIT: f32 = 0.125;

/// Offset of stored quants `8 * g +- 1`.
const OFFSET: i8 = 9;

/// One quant block of `IQ1_S`: 50 bytes for 256 values.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Iq1S {
    pub(crate) d: [u8; 2],
    /// Low eight bits of the grid indices.
    pub(crate) qs: [[u8; 4]; 8],
    /// Per sub-block the upper three bits of its grid indices, the first lowest; the scale in bits
    /// 12 to 14; bit 15 is set where the values move down.
    pub(crate) qh: [[u8; 2]; 8],
}

/// One quant block of `IQ1_M`: 56 bytes for 256 values.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Iq1M {
    /// Low eight bits of the grid indices.
    pub(crate) qs: [[u8; 4]; 8],
    /// Per eight values a nibble: the upper three bits of the grid index, and above them a bit that
    /// is set where the values move down.
    pub(crate) qh: [[u8; 2]; 8],
    /// Per pair of sub-blocks 16 bits: the scales of their halves, and in the upper four bits a
    /// quarter of the half-precision `d`, the lowest first.
    pub(crate) scales: [[u8; 2]; 4],
}

/// Stored quants of eight values, 0 to 18, from their point plus 1.
#[inline(always)]
fn stored(point: u64, down: bool) -> [u8; 8] {
    (8 * point + if down { 0 } else { repeat(2) }).to_le_bytes()
}

impl Iq1S {
    /// Unit of scales relative to `d`.
    pub(crate) const UNIT: f32 = UNIT;

    /// Points of sub-block `s`, each value plus 1.
    #[inline(always)]
    pub(crate) fn points(&self, s: usize) -> [u64; 4] {
        let qh = usize::from(u16::from_le_bytes(self.qh[s]));
        std::array::from_fn(|l| grids::IQ1[usize::from(self.qs[s][l]) | (qh >> (3 * l) & 7) << 8])
    }
}

impl Iq1M {
    /// Unit of scales relative to `d`.
    pub(crate) const UNIT: f32 = UNIT;

    /// Points of sub-block `s`, each value plus 1.
    #[inline(always)]
    pub(crate) fn points(&self, s: usize) -> [u64; 4] {
        let qh = usize::from(u16::from_le_bytes(self.qh[s]));
        std::array::from_fn(|l| grids::IQ1[usize::from(self.qs[s][l]) | (qh >> (4 * l) & 7) << 8])
    }

    /// The half-precision number of the block.
    #[inline(always)]
    pub(crate) fn d(&self) -> [u8; 2] {
        let quarters = self.scales.map(|[_, high]| high >> 4);
        [quarters[0] | quarters[1] << 4, quarters[2] | quarters[3] << 4]
    }

    /// Integer scales of the halves of sub-blocks.
    #[inline(always)]
    pub(crate) fn half_scales(&self) -> [[i8; 2]; 8] {
        std::array::from_fn(|s| {
            let packed = u16::from_le_bytes(self.scales[s / 2]) >> (6 * (s % 2));
            [packed & 7, packed >> 3 & 7].map(|scale| (2 * scale + 1) as i8)
        })
    }
}

impl QuantBlock for Iq1S {
    const LEN: usize = 256;
    const MAX_QUANT: Option<u8> = Some(18);
    const OFFSET: i8 = OFFSET;

    #[inline(always)]
    fn unpack(&self, quants: &mut [[u8; SUB_BLOCK]]) {
        for (s, quants) in quants.iter_mut().enumerate() {
            let down = self.qh[s][1] & 0x80 != 0;
            for (to, point) in quants.as_chunks_mut::<8>().0.iter_mut().zip(self.points(s)) {
                *to = stored(point, down);
            }
        }
    }

    #[inline(always)]
    fn factors(&self, factors: &mut [Factors]) {
        let d = half_to_f32(self.d) * UNIT;
        for (factors, qh) in factors.iter_mut().zip(self.qh) {
            let scale = d * f32::from(2 * (u16::from_le_bytes(qh) >> 12 & 7) + 1);
            *factors = Factors { scale, ..Factors::UNIT };
        }
    }

    fn quantize(values: &[f32], importance: Importance<'_>) -> Self {
        let Fit { d, scales, codes } = fit_codebook_block::<SGroup, SUB_BLOCK, 8>(values, importance);
        let qs = codes.map(|code| code.map(|eight| eight.index as u8));
        let qh = std::array::from_fn(|s| {
            let high = |l: usize| (codes[s][l].index >> 8) << (3 * l);
            let down = u16::from(codes[s][0].down) << 15;
            (0..4).fold(down | u16::from(scales[s]) << 12, |qh, l| qh | high(l)).to_le_bytes()
        });
        Self { d: f32_to_half(d), qs, qh }
    }
}

impl QuantBlock for Iq1M {
    const LEN: usize = 256;
    const MAX_QUANT: Option<u8> = Some(18);
    const OFFSET: i8 = OFFSET;
    const HALF_SCALES: bool = true;

    #[inline(always)]
    fn unpack(&self, quants: &mut [[u8; SUB_BLOCK]]) {
        for (s, quants) in quants.iter_mut().enumerate() {
            let qh = u16::from_le_bytes(self.qh[s]);
            let eights = quants.as_chunks_mut::<8>().0.iter_mut();
            for (l, (to, point)) in eights.zip(self.points(s)).enumerate() {
                *to = stored(point, qh >> (4 * l) & 8 != 0);
            }
        }
    }

    #[inline(always)]
    fn factors(&self, factors: &mut [Factors]) {
        let scale = half_to_f32(self.d()) * UNIT;
        for (factors, halves) in factors.iter_mut().zip(self.half_scales()) {
            *factors = Factors { scale, halves, ..Factors::UNIT };
        }
    }

    fn quantize(values: &[f32], importance: Importance<'_>) -> Self {
        let Fit { d, scales, codes } =
            fit_codebook_block::<MGroup, { SUB_BLOCK / 2 }, 16>(values, importance);
        let (mut qs, mut qh) = ([[0; 4]; 8], [[0; 2]; 8]);
        for (i, eight) in codes.as_flattened().iter().enumerate() {
            let (s, l) = (i / 4, i % 4);
            qs[s][l] = eight.index as u8;
            qh[s][l / 2] |= ((eight.index >> 8) as u8 | u8::from(eight.down) << 3) << (4 * (l % 2));
        }
        let d = u16::from_le_bytes(f32_to_half(d));
        let scales = std::array::from_fn(|i| {
            let quarter = (d >> (4 * i) & 15) << 12;
            (0..4).fold(quarter, |packed, j| packed | u16::from(scales[4 * i + j]) << (3 * j)).to_le_bytes()
        });
        Self { qs, qh, scales }
    }
}

/// Code of eight values.
#[derive(Clone, Copy, Default)]
pub(crate) struct Eight {
    index: u16,
    /// True if the values move down.
    down: bool,
}

static GRID: LazyLock<Neighbours<8, 3>> = LazyLock::new(|| {
    let floats = |point: &u64| point.to_le_bytes().map(|byte| f32::from(byte) - 1.0);
    Neighbours::new(grids::IQ1.iter().map(floats), [-1.0, 0.0, 1.0])
});

/// Best point for eight values that move in the given direction, and its error.
#[inline(always)]
fn assign_eight(x: &[f32; 8], w: &[f32; 8], scale: f32, down: bool) -> (Eight, f32) {
    let moved = x.map(|x| if down { x + scale } else { x - scale });
    let found = GRID.best(&moved, w, 8.0 * scale);
    let squares: f32 = moved.iter().zip(w).map(|(x, w)| w * x * x).sum();
    (Eight { index: found.index, down }, found.error + squares)
}

/// Values of a code in units of the scale.
#[inline(always)]
fn values_of(code: &[Eight], values: &mut [f32]) {
    for (eight, to) in code.iter().zip(values.as_chunks_mut::<8>().0) {
        let point = &GRID.points[usize::from(eight.index)];
        *to = point.map(|g| 8.0 * g + if eight.down { -1.0 } else { 1.0 });
    }
}

/// Groups of `IQ1_S`: all values move in one direction.
struct SGroup;

impl Codebook<32> for SGroup {
    type Code = [Eight; 4];
    const SCALES: u8 = 8;
    const UNIT: f32 = UNIT;
    const REACH: [f32; 2] = [8.0, 22.0];

    #[inline(never)]
    fn assign(x: &[f32; 32], w: &[f32; 32], scale: f32) -> (Self::Code, [f32; 32]) {
        let (x, w) = (x.as_chunks().0, w.as_chunks().0);
        let (mut best, mut least) = (Self::Code::default(), f32::INFINITY);
        for down in [false, true] {
            let (mut code, mut error) = (Self::Code::default(), 0.0);
            for (l, eight) in code.iter_mut().enumerate() {
                let (found, part) = assign_eight(&x[l], &w[l], scale, down);
                *eight = found;
                error += part;
            }
            if error < least {
                (best, least) = (code, error);
            }
        }
        let mut values = [0.0; 32];
        values_of(&best, &mut values);
        (best, values)
    }
}

/// Groups of `IQ1_M`: every eight values move in their own direction.
struct MGroup;

impl Codebook<16> for MGroup {
    type Code = [Eight; 2];
    const SCALES: u8 = 8;
    const UNIT: f32 = UNIT;
    const REACH: [f32; 2] = [8.0, 20.0];

    #[inline(never)]
    fn assign(x: &[f32; 16], w: &[f32; 16], scale: f32) -> (Self::Code, [f32; 16]) {
        let (x, w) = (x.as_chunks().0, w.as_chunks().0);
        let code = std::array::from_fn(|l| {
            let [up, down] = [false, true].map(|down| assign_eight(&x[l], &w[l], scale, down));
            if down.1 < up.1 { down.0 } else { up.0 }
        });
        let mut values = [0.0; 16];
        values_of(&code, &mut values);
        (code, values)
    }
}
