//! Quants of 4 and 2 bits: packing in units of 32, and quantization of groups to scale, minimum and
//! quants.

use bytemuck::Pod;
use half::f16;

use super::{GROUP, WIDE};
use crate::lanes::{Groups, LANES, Lanes, Vectors, WideLanes};

/// Bit width of quants.
pub(in crate::attention) trait Codes: Copy {
    /// 32 packed quants. A byte holds quants `32 / (8 / bits)` apart, the earlier ones in its lower
    /// bits.
    type Packed: Pod;
    /// Largest quant.
    const LARGEST: f32;

    /// Unpacks quants to f32, in order.
    fn unpack<L: WideLanes>(l: L, packed: &Self::Packed) -> [L::W; 2];
    /// Packs quants.
    fn pack(quants: &[u8; GROUP]) -> Self::Packed;
}

/// Quants from 0 to 15.
#[derive(Clone, Copy)]
pub(in crate::attention) struct FourBits;

/// Quants from 0 to 3.
#[derive(Clone, Copy)]
pub(in crate::attention) struct TwoBits;

impl Codes for FourBits {
    type Packed = [u8; WIDE];
    const LARGEST: f32 = 15.0;

    #[inline(always)]
    fn unpack<L: WideLanes>(l: L, packed: &Self::Packed) -> [L::W; 2] {
        l.wide().load_nibbles(packed)
    }

    #[inline(always)]
    fn pack(quants: &[u8; GROUP]) -> Self::Packed {
        let mut packed = [0; WIDE];
        for (i, byte) in packed.iter_mut().enumerate() {
            *byte = quants[i] | quants[i + WIDE] << 4;
        }
        packed
    }
}

impl Codes for TwoBits {
    type Packed = [u8; LANES];
    const LARGEST: f32 = 3.0;

    #[inline(always)]
    fn unpack<L: WideLanes>(l: L, packed: &Self::Packed) -> [L::W; 2] {
        l.wide().load_two_bits(packed)
    }

    #[inline(always)]
    fn pack(quants: &[u8; GROUP]) -> Self::Packed {
        let mut packed = [0; LANES];
        for (i, byte) in packed.iter_mut().enumerate() {
            let [c, d] = [quants[i + 2 * LANES], quants[i + 3 * LANES]];
            *byte = quants[i] | quants[i + LANES] << 2 | c << 4 | d << 6;
        }
        packed
    }
}

/// Quantizes up to eight groups: `x = minimum + scale * quant`.
///
/// Scale and minimum are rounded first; quants are the nearest steps of the *rounded* scale, ties
/// to even. Constant groups get the scale 0. Groups with a non-finite value, and groups whose scale
/// or minimum overflows half precision, get the scale NaN.
///
/// # Shapes
/// `x`: `[groups, group]`, `quants`: `[groups, group / 32]`, `scales` and `minima`: `[groups]`.
#[inline(always)]
pub(super) fn quantize<L: Lanes, C: Codes>(
    l: L,
    x: &[[f32; GROUP]],
    quants: &mut [[u8; GROUP]],
    scales: &mut [f16],
    minima: &mut [f16],
) {
    let group = x.len() / scales.len();
    let (mut low, mut high, mut poison) = ([0.0; LANES], [0.0; LANES], [0.0; LANES]);
    for (i, x) in x.chunks_exact(group).enumerate() {
        let mut range = Range::new(l);
        for x in x.as_flattened().as_chunks().0 {
            range = range.with(l, l.load(x));
        }
        // Minimum over lanes, as the maximum of the negated values.
        low[i] = -l.max_lane(l.sub(l.zero(), range.low));
        high[i] = l.max_lane(range.high);
        poison[i] = l.sum(range.poison);
    }
    let range = Range { low: l.load(&low), high: l.load(&high), poison: l.load(&poison) };
    let steps = range.steps::<C>(l);
    scales.copy_from_slice(&steps.scales[..scales.len()]);
    minima.copy_from_slice(&steps.minima[..minima.len()]);
    let (mut offsets, mut inverses) = ([0.0; LANES], [0.0; LANES]);
    l.store(steps.offset, &mut offsets);
    l.store(steps.inverse, &mut inverses);
    for (i, (x, quants)) in x.chunks_exact(group).zip(quants.chunks_exact_mut(group)).enumerate() {
        let (offset, inverse) = (l.splat(offsets[i]), l.splat(inverses[i]));
        let quants = quants.as_flattened_mut().as_chunks_mut().0;
        for (x, quants) in x.as_flattened().as_chunks().0.iter().zip(quants) {
            *quants = count(l, l.mul(l.sub(l.load(x), offset), inverse), [0.0, C::LARGEST]);
        }
    }
}

/// Ranges of eight groups, or of the lanes of one group.
#[derive(Clone, Copy)]
pub(super) struct Range<V> {
    low: V,
    high: V,
    /// Zero, or NaN after a non-finite value.
    poison: V,
}

/// Scales and minima of eight groups.
pub(super) struct Steps<V> {
    pub(super) scales: [f16; LANES],
    pub(super) minima: [f16; LANES],
    /// Minima rounded to half precision.
    pub(super) offset: V,
    /// Reciprocals of the scales rounded to half precision; 0 for a scale of 0.
    pub(super) inverse: V,
}

impl<V: Copy> Range<V> {
    /// Empty range.
    #[inline(always)]
    pub(super) fn new<L: Lanes<V = V>>(l: L) -> Self {
        Self { low: l.splat(f32::INFINITY), high: l.splat(f32::NEG_INFINITY), poison: l.zero() }
    }

    /// Extends the range by `x`.
    #[inline(always)]
    pub(super) fn with<L: Lanes<V = V>>(self, l: L, x: V) -> Self {
        let poison = l.add(self.poison, l.sub(x, x));
        Self { low: l.min(x, self.low), high: l.max(x, self.high), poison }
    }

    /// Scales and minima of eight groups.
    #[inline(always)]
    pub(super) fn steps<C: Codes>(self, l: impl Lanes<V = V>) -> Steps<V> {
        let (mut low, mut high, mut step) = ([0.0; LANES], [0.0; LANES], [0.0; LANES]);
        l.store(self.low, &mut low);
        l.store(self.high, &mut high);
        l.store(l.div(l.sub(self.high, self.low), l.splat(C::LARGEST)), &mut step);
        for (i, step) in step.iter_mut().enumerate() {
            *step = off_the_middle(*step, (f64::from(high[i]) - f64::from(low[i])) / f64::from(C::LARGEST));
        }
        let (mut scales, mut minima) = ([f16::ZERO; LANES], [f16::ZERO; LANES]);
        l.store_f16(l.add(l.load(&step), self.poison), &mut scales);
        // Adding zero normalizes -0: the sign of a zero minimum must not depend on which of two
        // zeros is taken as the smallest.
        l.store_f16(l.add(self.low, l.zero()), &mut minima);
        for (scale, minimum) in scales.iter_mut().zip(minima) {
            if !scale.is_finite() || !minimum.is_finite() {
                *scale = f16::NAN;
            }
        }
        let scale = l.load_f16(&scales);
        Steps { scales, minima, offset: l.load_f16(&minima), inverse: inverse(l, scale) }
    }
}

/// Moves `x` one ulp towards `exact` if it lies midway between two half-precision numbers.
///
/// Rounding the result then equals rounding `exact`.
#[inline(always)]
fn off_the_middle(x: f32, exact: f64) -> f32 {
    // 13 significand bits that half precision lacks.
    if x.to_bits() & 0x1fff != 0x1000 {
        x
    } else if exact > f64::from(x) {
        x.next_up()
    } else if exact < f64::from(x) {
        x.next_down()
    } else {
        x
    }
}

/// Reciprocals of the scales; 0 for a scale of 0.
#[inline(always)]
pub(super) fn inverse<L: Lanes>(l: L, scale: L::V) -> L::V {
    l.select_lt(l.zero(), scale, l.div(l.splat(1.0), scale), l.zero())
}

/// Rounds eight values to the nearest integers, ties to even, clamped to bounds within
/// `-128..=255`.
#[inline(always)]
pub(super) fn count<L: Lanes>(l: L, x: L::V, bounds: [f32; 2]) -> [u8; LANES] {
    // In this order a NaN is clamped to a bound.
    let q = l.max(l.min(l.round(x), l.splat(bounds[1])), l.splat(bounds[0]));
    // Low bits of the sum with 3 * 2^22: integer instructions, which compilers vectorize; a
    // conversion would saturate.
    let mut sums = [0.0; LANES];
    l.store(l.add(q, l.splat(12_582_912.0)), &mut sums);
    let mut bytes = [0; LANES];
    for (byte, sum) in bytes.iter_mut().zip(sums) {
        *byte = sum.to_bits() as u8;
    }
    bytes
}
