//! Outliers: the numbers of a tile that are kept beside its codes.

use std::cmp::Ordering;

use half::f16;

use super::super::{KEY_TILE, KvRole, WIDE};

/// Stands for no place in a tile.
pub(super) const NO_PLACE: u16 = u16::MAX;

/// Half-precision numbers in a cache line.
const LINE_HALVES: usize = 2 * WIDE;

/// Outliers that a tile has room for. Values: 1 % of the tile, to the nearest whole cache line, at
/// least one; keys have those and the room that the ranges of values take, so that both planes are
/// of one size.
pub(super) fn n_outliers(role: KvRole, head_dim: usize) -> usize {
    let lines = (head_dim.saturating_add(25) / 50).max(1);
    let values = lines.saturating_mul(LINE_HALVES / 2);
    match role {
        KvRole::Keys => values.saturating_add(KEY_TILE),
        KvRole::Values => values,
    }
}

/// Half-precision numbers and places behind the codes of a tile.
pub(in crate::attention::kv) fn n_halves(head_dim: usize) -> usize {
    n_outliers(KvRole::Keys, head_dim).saturating_mul(2)
}

/// Places and numbers of the outliers of a tile.
pub(super) fn split_outliers(halves: &[f16]) -> (&[f16], &[f16]) {
    halves.split_at(halves.len() / 2)
}

/// A number that is kept as it is, in half precision.
#[derive(Debug, Clone, Copy)]
pub(in crate::attention::kv) struct Outlier {
    /// Place in the tile.
    pub(super) place: u16,
    pub(super) number: f32,
    /// Distance to its range.
    pub(super) excess: f32,
}

impl Outlier {
    /// The outlier at a place, if such places are kept.
    pub(super) fn at(place: usize, number: f32, excess: f32) -> Option<Self> {
        let place = u16::try_from(place).ok().filter(|&place| place != NO_PLACE)?;
        Some(Self { place, number, excess })
    }

    /// Total order: larger excess first, then by place.
    fn by_excess(&self, other: &Self) -> Ordering {
        other.excess.total_cmp(&self.excess).then(self.place.cmp(&other.place))
    }
}

/// Writes the outliers with the largest excess; the others keep their codes. With `poison`, writes
/// only the mark by which the tile is read as NaN.
pub(super) fn keep(outliers: &mut Vec<Outlier>, poison: bool, halves: &mut [f16]) {
    let (places, numbers) = halves.split_at_mut(halves.len() / 2);
    places.fill(f16::from_bits(NO_PLACE));
    numbers.fill(f16::ZERO);
    if outliers.len() > places.len() {
        outliers.select_nth_unstable_by(places.len(), Outlier::by_excess);
        outliers.truncate(places.len());
    }
    outliers.sort_unstable_by_key(|outlier| outlier.place);
    let rounded = |outlier: &Outlier| f16::from_f32_const(outlier.number);
    if poison || !outliers.iter().all(|outlier| rounded(outlier).is_finite()) {
        numbers[0] = f16::NAN;
        return;
    }
    for ((place, number), outlier) in places.iter_mut().zip(numbers).zip(&*outliers) {
        (*place, *number) = (f16::from_bits(outlier.place), rounded(outlier));
    }
}

/// Numbers at one end of a position's values that may be kept, and one more: the range ends at the
/// first that is not.
const EXTREMES: usize = 4;

/// The ranges of a tile of values after the outliers were taken off that shorten them most.
///
/// A number at the end of a position's range is taken where the sum of the squared ranges, to which
/// the squared error of quantization is proportional, falls by most; then again, until the tile's
/// room is used. So one share of outliers serves all positions, and each gets what helps.
pub(super) struct Trimmed {
    positions: [Position; KEY_TILE],
}

/// The ends of one position's values.
#[derive(Clone, Copy)]
struct Position {
    /// The largest numbers and the negated smallest ones, from the outside in, with their
    /// dimensions.
    ends: [[(f32, usize); EXTREMES]; 2],
    /// Number taken off at each end.
    taken: [usize; 2],
    /// True if all numbers are finite.
    finite: bool,
}

impl Position {
    fn new(values: &[f32]) -> Self {
        let mut ends = [[(f32::NEG_INFINITY, 0); EXTREMES]; 2];
        let mut finite = true;
        for (dimension, &x) in values.iter().enumerate() {
            finite &= x.is_finite();
            insert(&mut ends[0], (x, dimension));
            insert(&mut ends[1], (-x, dimension));
        }
        Self { ends, taken: [0; 2], finite }
    }

    /// Width of the range with so many numbers taken off.
    fn width(&self, taken: [usize; 2]) -> f32 {
        self.ends[0][taken[0]].0 + self.ends[1][taken[1]].0
    }

    /// Decrease of the squared width when one more number is taken off at an end.
    fn gain(&self, end: usize) -> f32 {
        let mut taken = self.taken;
        taken[end] += 1;
        if !self.finite || taken[end] == EXTREMES || !fits_half(self.ends[end][self.taken[end]].0) {
            return 0.0;
        }
        self.width(self.taken).powi(2) - self.width(taken).powi(2)
    }
}

/// True if `x` rounds to a finite half-precision number.
fn fits_half(x: f32) -> bool {
    f16::from_f32_const(x).is_finite()
}

/// Keeps the largest numbers, the first of equal ones first.
fn insert(ends: &mut [(f32, usize); EXTREMES], new: (f32, usize)) {
    if new.0 <= ends[EXTREMES - 1].0 {
        return;
    }
    let mut new = new;
    for place in ends {
        if new.0 > place.0 {
            std::mem::swap(place, &mut new);
        }
    }
}

impl Trimmed {
    /// Takes at most `n` outliers off the values of 32 positions.
    ///
    /// # Shapes
    /// `values`: `[32, dim]`.
    pub(super) fn new(values: &[f32], dim: usize, n: usize) -> Self {
        let mut positions: [_; KEY_TILE] =
            std::array::from_fn(|slot| Position::new(&values[slot * dim..][..dim]));
        let mut gains = positions.map(|position| [position.gain(0), position.gain(1)]);
        for _ in 0..n {
            let (mut best, mut at) = (0.0, None);
            for (slot, gains) in gains.iter().enumerate() {
                for (end, &gain) in gains.iter().enumerate() {
                    if gain > best {
                        (best, at) = (gain, Some((slot, end)));
                    }
                }
            }
            let Some((slot, end)) = at else { break };
            positions[slot].taken[end] += 1;
            gains[slot] = [positions[slot].gain(0), positions[slot].gain(1)];
        }
        Self { positions }
    }

    /// Lower and upper end of the rest of a position's values; `None` if there was a number that is
    /// not finite.
    pub(super) fn range(&self, slot: usize) -> Option<[f32; 2]> {
        let Position { ends, taken, finite } = &self.positions[slot];
        finite.then(|| [-ends[1][taken[1]].0, ends[0][taken[0]].0])
    }

    /// The outliers, with their places in the tile.
    pub(super) fn outliers(&self, dim: usize) -> Vec<Outlier> {
        let mut outliers = Vec::new();
        for (slot, position) in self.positions.iter().enumerate() {
            for (end, sign) in [1.0, -1.0].into_iter().enumerate() {
                let taken = &position.ends[end][..position.taken[end]];
                let places = taken
                    .iter()
                    .filter_map(|&(x, dimension)| Outlier::at(slot * dim + dimension, sign * x, 0.0));
                outliers.extend(places);
            }
        }
        outliers
    }
}
