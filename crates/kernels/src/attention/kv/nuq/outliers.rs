//! Outliers: values of a tile stored separately from its codes.

use std::cmp::Ordering;

use half::f16;

use super::super::{KEY_TILE, KvRole, WIDE};

/// Index of an empty outlier entry.
pub(super) const NO_PLACE: u16 = u16::MAX;

/// Half-precision numbers per cache line.
const LINE_HALVES: usize = 2 * WIDE;

/// Outlier capacity of a tile.
///
/// Values: 1 % of the tile, rounded to whole cache lines, at least one. Keys also get the space
/// that value ranges take, so that both planes have the same size.
pub(super) fn n_outliers(role: KvRole, head_dim: usize) -> usize {
    let lines = (head_dim.saturating_add(25) / 50).max(1);
    let values = lines.saturating_mul(LINE_HALVES / 2);
    match role {
        KvRole::Keys => values.saturating_add(KEY_TILE),
        KvRole::Values => values,
    }
}

/// Half-precision numbers (ranges, outliers and their indices) after the codes of a tile.
pub(in crate::attention::kv) fn n_halves(head_dim: usize) -> usize {
    n_outliers(KvRole::Keys, head_dim).saturating_mul(2)
}

/// Splits the outliers of a tile into indices and values.
pub(super) fn split_outliers(halves: &[f16]) -> (&[f16], &[f16]) {
    halves.split_at(halves.len() / 2)
}

/// Value stored in half precision instead of as a code.
#[derive(Debug, Clone, Copy)]
pub(in crate::attention::kv) struct Outlier {
    /// Index in the tile.
    pub(super) place: u16,
    pub(super) number: f32,
    /// Distance from the range.
    pub(super) excess: f32,
}

impl Outlier {
    /// Creates an outlier at index `place`; `None` if the index exceeds `u16`.
    pub(super) fn at(place: usize, number: f32, excess: f32) -> Option<Self> {
        let place = u16::try_from(place).ok().filter(|&place| place != NO_PLACE)?;
        Some(Self { place, number, excess })
    }

    /// Total order: larger excess first, then by index.
    fn by_excess(&self, other: &Self) -> Ordering {
        other.excess.total_cmp(&self.excess).then(self.place.cmp(&other.place))
    }
}

/// Writes the outliers with the largest excess; the rest stay as codes. With `poison`, writes only
/// the marker that makes the tile read as NaN.
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

/// Candidates per end of a position's values, plus one: the range ends at the first value that is
/// not an outlier.
const EXTREMES: usize = 4;

/// Ranges of a tile of values after removing the outliers that shorten them most.
///
/// Greedy: removes the range end that decreases the sum of squared ranges most (the squared
/// quantization error is proportional to it), until the tile's outlier capacity is used. All
/// positions share the capacity.
pub(super) struct Trimmed {
    positions: [Position; KEY_TILE],
}

/// Extremes of one position's values.
#[derive(Clone, Copy)]
struct Position {
    /// Largest values and negated smallest values with their dimensions, outermost first.
    ends: [[(f32, usize); EXTREMES]; 2],
    /// Number of outliers removed at each end.
    taken: [usize; 2],
    /// True if all values are finite.
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

    /// Width of the range after removing `taken` values at each end.
    fn width(&self, taken: [usize; 2]) -> f32 {
        self.ends[0][taken[0]].0 + self.ends[1][taken[1]].0
    }

    /// Decrease of the squared width by one more outlier at an end.
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

/// Inserts into the sorted largest values; equal values keep their order.
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
    /// Selects at most `n` outliers of the values of 32 positions.
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

    /// Low and high end of a position's remaining values; `None` if a value was not finite.
    pub(super) fn range(&self, slot: usize) -> Option<[f32; 2]> {
        let Position { ends, taken, finite } = &self.positions[slot];
        finite.then(|| [-ends[1][taken[1]].0, ends[0][taken[0]].0])
    }

    /// Outliers with their indices in the tile.
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
