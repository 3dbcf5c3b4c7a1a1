//! Rows of vectors in each storage format, read in steps of 32 values.

use half::f16;

use super::integer::IntegerLanes;
use super::step::{STEP, unpack};
use crate::lanes::{Groups, LANES, Vectors, WideLanes};

/// One or more vectors of equal length, contiguous.
#[derive(Debug, Clone, Copy)]
pub enum VectorRows<'a> {
    /// f32 values, `[rows, dim]`.
    F32(&'a [f32]),
    /// f16 values, `[rows, dim]`.
    F16(&'a [f16]),
    /// 8-bit integers with one scale per row: `x = scale * q`.
    Int8 {
        /// Quants, `[rows, dim]`.
        values: &'a [i8],
        /// Scales, `[rows]`.
        scales: &'a [f32],
    },
    /// 4-bit integers with one scale per row: `x = scale * q`.
    ///
    /// Sixteen bytes hold 32 integers, each offset by 8: byte `i` has integer `i` in its low nibble
    /// and integer `i + 16` in its high nibble. An incomplete last group is padded with zeros.
    Int4 {
        /// Packed quants, `[rows, 16 * dim.div_ceil(32)]`.
        bytes: &'a [u8],
        /// Scales, `[rows]`.
        scales: &'a [f32],
    },
}

impl VectorRows<'_> {
    /// Number of stored elements of all rows (bytes for 4-bit values).
    pub(super) fn elements(&self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::F16(values) => values.len(),
            Self::Int8 { values, .. } => values.len(),
            Self::Int4 { bytes, .. } => bytes.len(),
        }
    }

    /// True if there is one scale per row, or the format has no scales.
    pub(super) fn has_scales_for(&self, rows: usize) -> bool {
        match self {
            Self::F32(_) | Self::F16(_) => true,
            Self::Int8 { scales, .. } | Self::Int4 { scales, .. } => scales.len() == rows,
        }
    }
}

/// Vector readable as f32 in steps of 32 values.
pub(super) trait StoredVector: Copy {
    /// Stored form of 32 values.
    type Step;

    /// Whole steps.
    fn steps(&self) -> &[Self::Step];

    /// Loads a step of this vector.
    fn load<L: WideLanes>(self, l: L, step: &Self::Step) -> [L::W; 2];

    /// Loads the values after the last whole step, padded with zeros, if any.
    fn load_rest<L: WideLanes>(self, l: L) -> Option<[L::W; 2]>;
}

/// Vector of integers with a scale.
pub(super) trait IntegerVector: StoredVector {
    /// Scale of all integers.
    fn scale(self) -> f32;

    /// Loads the integers of a step.
    fn load_integers<L: IntegerLanes>(self, l: L, step: &Self::Step) -> L::Q;

    /// Loads the integers after the last whole step, padded with zeros, if any.
    fn load_integers_of_rest<L: IntegerLanes>(self, l: L) -> Option<L::Q>;
}

/// Vector of floats.
#[derive(Clone, Copy)]
pub(super) struct Floats<'a, T>(pub(super) &'a [T]);

/// Vector of 8-bit integers.
#[derive(Clone, Copy)]
pub(super) struct Int8<'a>(pub(super) &'a [i8], pub(super) f32);

/// Vector of 4-bit integers.
#[derive(Clone, Copy)]
pub(super) struct Int4<'a>(pub(super) &'a [u8], pub(super) f32);

/// Float type of vectors.
pub(super) trait Float: Copy {
    fn load<L: WideLanes>(l: L, x: &[Self; LANES]) -> L::V;
    fn load_partial<L: WideLanes>(l: L, x: &[Self]) -> L::V;
    fn wide_load<L: WideLanes>(l: L, x: &[[Self; LANES]; 2]) -> L::W;
}

impl Float for f32 {
    #[inline(always)]
    fn load<L: WideLanes>(l: L, x: &[Self; LANES]) -> L::V {
        l.load(x)
    }

    #[inline(always)]
    fn load_partial<L: WideLanes>(l: L, x: &[Self]) -> L::V {
        l.load_partial(x)
    }

    #[inline(always)]
    fn wide_load<L: WideLanes>(l: L, x: &[[Self; LANES]; 2]) -> L::W {
        l.wide().load(x)
    }
}

impl Float for f16 {
    #[inline(always)]
    fn load<L: WideLanes>(l: L, x: &[Self; LANES]) -> L::V {
        l.load_f16(x)
    }

    #[inline(always)]
    fn load_partial<L: WideLanes>(l: L, x: &[Self]) -> L::V {
        l.load_partial_f16(x)
    }

    #[inline(always)]
    fn wide_load<L: WideLanes>(l: L, x: &[[Self; LANES]; 2]) -> L::W {
        l.wide().load_f16(bytemuck::cast_ref(x))
    }
}

/// Values of a step as two wide vectors.
type Quarters<T> = [[[T; LANES]; 2]; 2];

/// Splits `x` into whole steps and the rest.
#[inline(always)]
fn split<T>(x: &[T]) -> (&[Quarters<T>], &[T]) {
    let (steps, rest) = x.as_chunks::<STEP>();
    (steps.as_flattened().as_chunks::<LANES>().0.as_chunks::<2>().0.as_chunks::<2>().0, rest)
}

impl<T: Float> StoredVector for Floats<'_, T> {
    type Step = Quarters<T>;

    #[inline(always)]
    fn steps(&self) -> &[Self::Step] {
        split(self.0).0
    }

    #[inline(always)]
    fn load<L: WideLanes>(self, l: L, step: &Self::Step) -> [L::W; 2] {
        [T::wide_load(l, &step[0]), T::wide_load(l, &step[1])]
    }

    #[inline(always)]
    fn load_rest<L: WideLanes>(self, l: L) -> Option<[L::W; 2]> {
        let rest = split(self.0).1;
        if rest.is_empty() {
            return None;
        }
        let (eights, partial) = rest.as_chunks::<LANES>();
        let mut groups = [l.zero(); STEP / LANES];
        // Comparisons instead of a variable index, which would force the array into memory.
        for (i, group) in groups.iter_mut().enumerate() {
            if let Some(eight) = eights.get(i) {
                *group = T::load(l, eight);
            } else if i == eights.len() {
                *group = T::load_partial(l, partial);
            }
        }
        Some([l.wide().join(groups[0], groups[1]), l.wide().join(groups[2], groups[3])])
    }
}

impl Int8<'_> {
    /// Integers after the last whole step, padded with zeros, if any.
    #[inline(always)]
    fn rest(&self) -> Option<[i8; STEP]> {
        let rest = self.0.as_chunks::<STEP>().1;
        let mut step = [0; STEP];
        step[..rest.len()].copy_from_slice(rest);
        if rest.is_empty() { None } else { Some(step) }
    }
}

impl StoredVector for Int8<'_> {
    type Step = [i8; STEP];

    #[inline(always)]
    fn steps(&self) -> &[Self::Step] {
        self.0.as_chunks().0
    }

    #[inline(always)]
    fn load<L: WideLanes>(self, l: L, step: &Self::Step) -> [L::W; 2] {
        scaled(l, step, self.1)
    }

    #[inline(always)]
    fn load_rest<L: WideLanes>(self, l: L) -> Option<[L::W; 2]> {
        match self.rest() {
            Some(step) => Some(self.load(l, &step)),
            None => None,
        }
    }
}

impl IntegerVector for Int8<'_> {
    #[inline(always)]
    fn scale(self) -> f32 {
        self.1
    }

    #[inline(always)]
    fn load_integers<L: IntegerLanes>(self, l: L, step: &Self::Step) -> L::Q {
        l.load_int8(step)
    }

    #[allow(clippy::manual_map)] // a closure would not be compiled for the instruction set
    #[inline(always)]
    fn load_integers_of_rest<L: IntegerLanes>(self, l: L) -> Option<L::Q> {
        match self.rest() {
            Some(step) => Some(l.load_int8(&step)),
            None => None,
        }
    }
}

impl StoredVector for Int4<'_> {
    type Step = [u8; STEP / 2];

    #[inline(always)]
    fn steps(&self) -> &[Self::Step] {
        self.0.as_chunks().0
    }

    #[inline(always)]
    fn load<L: WideLanes>(self, l: L, step: &Self::Step) -> [L::W; 2] {
        scaled(l, &unpack(step), self.1)
    }

    #[inline(always)]
    fn load_rest<L: WideLanes>(self, _: L) -> Option<[L::W; 2]> {
        None
    }
}

impl IntegerVector for Int4<'_> {
    #[inline(always)]
    fn scale(self) -> f32 {
        self.1
    }

    #[inline(always)]
    fn load_integers<L: IntegerLanes>(self, l: L, step: &Self::Step) -> L::Q {
        l.load_int4(step)
    }

    #[inline(always)]
    fn load_integers_of_rest<L: IntegerLanes>(self, _: L) -> Option<L::Q> {
        None
    }
}

/// Multiplies integers by a scale.
#[inline(always)]
fn scaled<L: WideLanes>(l: L, values: &[i8; STEP], scale: f32) -> [L::W; 2] {
    let wide: [f32; STEP] = values.map(f32::from);
    let (steps, _) = split(&wide);
    let scale = l.wide().splat(scale);
    [l.wide().mul(l.wide().load(&steps[0][0]), scale), l.wide().mul(l.wide().load(&steps[0][1]), scale)]
}
