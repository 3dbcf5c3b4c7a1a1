//! Distance metrics, for one pair of vectors and for one against many.

use half::f16;

use super::integer::IntegerLanes;
use super::rows::{Floats, Int4, Int8, IntegerVector, StoredVector, VectorRows};
use crate::Kernels;
use crate::lanes::{Groups, LANES, Vectors, WideLanes};

/// Columns of a centroid table (see [`column_distances`]).
pub(super) const COLUMNS: usize = 256;

/// Distance metric of two vectors; smaller is nearer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Metric {
    /// Squared Euclidean distance, `Σ (x_i - y_i)^2`.
    SquaredEuclidean,
    /// Negated dot product, `-Σ x_i y_i`.
    Dot,
    /// Cosine distance, `1 - Σ x_i y_i / sqrt(Σ x_i^2 Σ y_i^2)`, in `0..=2`.
    ///
    /// A zero vector has distance 1 to every vector.
    Cosine,
    /// Manhattan distance, `Σ |x_i - y_i|`.
    Manhattan,
}

impl Kernels {
    /// Computes the distance of two vectors.
    ///
    /// # Shapes
    /// `x`, `y`: one row of the same format and length. INT4 and INT8 rows have their own scales.
    ///
    /// # Numerics
    /// In f32 and f16, and for the Manhattan distance of integers: 32 lanes; lane `j` accumulates
    /// the values `j` modulo 32 in ascending order by fused multiply-add (by addition, for
    /// Manhattan); the lanes are reduced by halves, `s_j = a_j + a_(j+16)` and so on. Error at most
    /// `γ_m` of the sum of the terms' magnitudes, `m = dim / 32 + 8` (Higham, section 3.1). The
    /// other integer distances are exact integer sums, combined in f64. Bit-identical for one
    /// against many and on every instruction set. NaN anywhere makes the result NaN. Squares must
    /// be in the range of f32: for the cosine, components between 1e-18 and 1e18 (smaller ones
    /// count as zeros).
    ///
    /// # Panics
    /// If the rows differ in format or length, or are empty.
    #[inline]
    pub fn distance(&self, metric: Metric, x: VectorRows<'_>, y: VectorRows<'_>) -> f32 {
        assert_eq!(x.elements(), y.elements(), "distance: the vectors differ in length");
        assert!(x.elements() > 0, "distance: vectors without values");
        assert!(x.has_scales_for(1) && y.has_scales_for(1), "distance: one scale per vector");
        let slots = self.slots;
        // One slot per format: no dispatch cost if the caller knows the format.
        // SAFETY: `self` exists only where the slots' instruction set is present.
        unsafe {
            match (x, y) {
                (VectorRows::F32(x), VectorRows::F32(y)) => (slots.distance_f32)(metric, x, y),
                (VectorRows::F16(x), VectorRows::F16(y)) => (slots.distance_f16)(metric, x, y),
                (VectorRows::Int8 { values: x, scales: s }, VectorRows::Int8 { values: y, scales: t }) => {
                    (slots.distance_int8)(metric, (x, s[0]), (y, t[0]))
                }
                (VectorRows::Int4 { bytes: x, scales: s }, VectorRows::Int4 { bytes: y, scales: t }) => {
                    (slots.distance_int4)(metric, (x, s[0]), (y, t[0]))
                }
                _ => panic!("distance: the vectors differ in format"),
            }
        }
    }

    /// Computes the distances of `query` to each of `rows`; see [`distance`](Self::distance).
    ///
    /// # Shapes
    /// `query`: one row; `rows`: `out.len()` rows.
    ///
    /// # Panics
    /// If the formats or lengths do not match, or the query is empty.
    pub fn distances(&self, metric: Metric, query: VectorRows<'_>, rows: VectorRows<'_>, out: &mut [f32]) {
        let dim = query.elements();
        assert!(dim > 0, "distances: vectors without values");
        assert_eq!(Some(rows.elements()), dim.checked_mul(out.len()), "distances: length of the rows");
        assert!(query.has_scales_for(1) && rows.has_scales_for(out.len()), "distances: one scale per row");
        // SAFETY: `self` exists only where the slot's instruction set is present.
        unsafe { (self.slots.distances)(metric, query, rows, out) }
    }
}

#[inline(always)]
pub(crate) fn distances<L: IntegerLanes>(
    l: L,
    metric: Metric,
    query: VectorRows<'_>,
    rows: VectorRows<'_>,
    out: &mut [f32],
) {
    let dim = query.elements();
    match (query, rows) {
        (VectorRows::F32(x), VectorRows::F32(rows)) => {
            for (y, out) in rows.chunks_exact(dim).zip(out) {
                *out = measure(l, metric, Floats(x), Floats(y));
            }
        }
        (VectorRows::F16(x), VectorRows::F16(rows)) => {
            for (y, out) in rows.chunks_exact(dim).zip(out) {
                *out = measure(l, metric, Floats(x), Floats(y));
            }
        }
        (VectorRows::Int8 { values: x, scales: s }, VectorRows::Int8 { values, scales }) => {
            for ((y, &scale), out) in values.chunks_exact(dim).zip(scales).zip(out) {
                *out = measure_integers(l, metric, Int8(x, s[0]), Int8(y, scale));
            }
        }
        (VectorRows::Int4 { bytes: x, scales: s }, VectorRows::Int4 { bytes, scales }) => {
            assert!(dim.is_multiple_of(16), "distances: 4-bit vectors are whole groups of 16 bytes");
            for ((y, &scale), out) in bytes.chunks_exact(dim).zip(scales).zip(out) {
                *out = measure_integers(l, metric, Int4(x, s[0]), Int4(y, scale));
            }
        }
        _ => panic!("distances: the vectors differ in format"),
    }
}

#[inline(always)]
pub(crate) fn distance_f32<L: IntegerLanes>(l: L, metric: Metric, x: &[f32], y: &[f32]) -> f32 {
    measure(l, metric, Floats(x), Floats(y))
}

#[inline(always)]
pub(crate) fn distance_f16<L: IntegerLanes>(l: L, metric: Metric, x: &[f16], y: &[f16]) -> f32 {
    measure(l, metric, Floats(x), Floats(y))
}

#[inline(always)]
pub(crate) fn distance_int8<L: IntegerLanes>(
    l: L,
    metric: Metric,
    (x, sx): (&[i8], f32),
    (y, sy): (&[i8], f32),
) -> f32 {
    measure_integers(l, metric, Int8(x, sx), Int8(y, sy))
}

#[inline(always)]
pub(crate) fn distance_int4<L: IntegerLanes>(
    l: L,
    metric: Metric,
    (x, sx): (&[u8], f32),
    (y, sy): (&[u8], f32),
) -> f32 {
    assert!(x.len().is_multiple_of(16), "distance: 4-bit vectors are whole groups of 16 bytes");
    measure_integers(l, metric, Int4(x, sx), Int4(y, sy))
}

/// Sums over pairs of values from which a metric is computed.
trait Terms<const N: usize> {
    /// Adds the terms of sixteen pairs.
    fn add<L: WideLanes>(l: L, x: L::W, y: L::W, sums: [L::W; N]) -> [L::W; N];
}

struct Squares;
struct Products;
struct Moments;
struct Magnitudes;

impl Terms<1> for Squares {
    #[inline(always)]
    fn add<L: WideLanes>(l: L, x: L::W, y: L::W, [sum]: [L::W; 1]) -> [L::W; 1] {
        let d = l.wide().sub(x, y);
        [l.wide().fma(d, d, sum)]
    }
}

impl Terms<1> for Products {
    #[inline(always)]
    fn add<L: WideLanes>(l: L, x: L::W, y: L::W, [sum]: [L::W; 1]) -> [L::W; 1] {
        [l.wide().fma(x, y, sum)]
    }
}

/// `Σ x y`, `Σ x^2`, `Σ y^2`. The query's square is recomputed for each row: loads are the
/// bottleneck.
impl Terms<3> for Moments {
    #[inline(always)]
    fn add<L: WideLanes>(l: L, x: L::W, y: L::W, [xy, xx, yy]: [L::W; 3]) -> [L::W; 3] {
        [l.wide().fma(x, y, xy), l.wide().fma(x, x, xx), l.wide().fma(y, y, yy)]
    }
}

impl Terms<1> for Magnitudes {
    #[inline(always)]
    fn add<L: WideLanes>(l: L, x: L::W, y: L::W, [sum]: [L::W; 1]) -> [L::W; 1] {
        [l.wide().add(sum, l.wide().abs(l.wide().sub(x, y)))]
    }
}

/// Sums of `T` over two vectors of equal length, in 32 lanes.
#[inline(always)]
fn sums<L: WideLanes, T: Terms<N>, R: StoredVector, const N: usize>(l: L, x: R, y: R) -> [f32; N] {
    let (mut low, mut high) = ([l.wide().splat(0.0); N], [l.wide().splat(0.0); N]);
    for (x_step, y_step) in x.steps().iter().zip(y.steps()) {
        let ([x0, x1], [y0, y1]) = (x.load(l, x_step), y.load(l, y_step));
        low = T::add(l, x0, y0, low);
        high = T::add(l, x1, y1, high);
    }
    if let (Some([x0, x1]), Some([y0, y1])) = (x.load_rest(l), y.load_rest(l)) {
        low = T::add(l, x0, y0, low);
        high = T::add(l, x1, y1, high);
    }
    let mut joined = [0.0; N];
    for (i, joined) in joined.iter_mut().enumerate() {
        let [a, b] = l.wide().halves_of(l.wide().add(low[i], high[i]));
        *joined = l.sum(l.add(a, b));
    }
    joined
}

#[inline(always)]
fn measure<L: WideLanes, R: StoredVector>(l: L, metric: Metric, x: R, y: R) -> f32 {
    match metric {
        Metric::SquaredEuclidean => sums::<L, Squares, R, 1>(l, x, y)[0],
        Metric::Dot => -sums::<L, Products, R, 1>(l, x, y)[0],
        Metric::Cosine => cosine(sums::<L, Moments, R, 3>(l, x, y).map(f64::from)),
        Metric::Manhattan => sums::<L, Magnitudes, R, 1>(l, x, y)[0],
    }
}

#[inline(always)]
fn measure_integers<L: IntegerLanes, R: IntegerVector>(l: L, metric: Metric, x: R, y: R) -> f32 {
    let (sx, sy) = (f64::from(x.scale()), f64::from(y.scale()));
    match metric {
        Metric::SquaredEuclidean => {
            let [xy, xx, yy] = integer_sums(l, x, y);
            let square = sx * sx * xx - 2.0 * (sx * sy * xy) + sy * sy * yy;
            // Rounding may give a negative result for nearly equal vectors with different scales;
            // NaN is preserved.
            (if square < 0.0 { 0.0 } else { square }) as f32
        }
        Metric::Dot => (-sx * sy * integer_sums::<L, R, 1>(l, x, y)[0]) as f32,
        Metric::Cosine => {
            let [xy, xx, yy] = integer_sums(l, x, y);
            cosine([sx * sy * xy, sx * sx * xx, sy * sy * yy])
        }
        Metric::Manhattan => sums::<L, Magnitudes, R, 1>(l, x, y)[0],
    }
}

/// `Σ x y` and, for `N` = 3, `Σ x^2` and `Σ y^2` of the integers, exact up to 2^53.
#[inline(always)]
fn integer_sums<L: IntegerLanes, R: IntegerVector, const N: usize>(l: L, x: R, y: R) -> [f64; N] {
    /// Steps whose sums fit in 32 bits: 2^16 products of at most 2^14.
    const BLOCK: usize = (1 << 16) / super::step::STEP;
    let mut totals = [0.0; N];
    for (x_steps, y_steps) in x.steps().chunks(BLOCK).zip(y.steps().chunks(BLOCK)) {
        let mut sums = [l.integer_zero(); N];
        for (x_step, y_step) in x_steps.iter().zip(y_steps) {
            sums = add_products(l, sums, x.load_integers(l, x_step), y.load_integers(l, y_step));
        }
        totals = add_sums(l, totals, sums);
    }
    if let (Some(a), Some(b)) = (x.load_integers_of_rest(l), y.load_integers_of_rest(l)) {
        totals = add_sums(l, totals, add_products(l, [l.integer_zero(); N], a, b));
    }
    totals
}

/// Adds 32 products to each sum: of `a` and `b`, of `a` and `a`, of `b` and `b`.
#[inline(always)]
fn add_products<L: IntegerLanes, const N: usize>(l: L, mut sums: [L::I; N], a: L::Q, b: L::Q) -> [L::I; N] {
    for (sum, (a, b)) in sums.iter_mut().zip([(a, b), (a, a), (b, b)]) {
        *sum = l.integer_dot(*sum, a, b);
    }
    sums
}

#[inline(always)]
fn add_sums<L: IntegerLanes, const N: usize>(l: L, mut totals: [f64; N], sums: [L::I; N]) -> [f64; N] {
    for (total, sum) in totals.iter_mut().zip(sums) {
        *total += f64::from(l.integer_sum(sum));
    }
    totals
}

/// Cosine distance from `Σ x y`, `Σ x^2`, `Σ y^2`; never below 0, exactly 0 for equal vectors.
#[inline(always)]
fn cosine([xy, xx, yy]: [f64; 3]) -> f32 {
    let size = xx * yy;
    if size == 0.0 {
        return 1.0;
    }
    let distance = 1.0 - xy / size.sqrt();
    (if distance < 0.0 { 0.0 } else { distance }) as f32
}

/// Distances between `query`, `[n]`, and each of the columns of `columns`, `[n, 256]`.
///
/// One lane per column, the values of a column in ascending order. The cosine has no such sum;
/// [`table`](super::ProductQuantizer::table) rejects it.
#[inline(always)]
pub(crate) fn column_distances<L: WideLanes>(
    l: L,
    metric: Metric,
    query: &[f32],
    columns: &[[f32; COLUMNS]],
    out: &mut [f32; COLUMNS],
) {
    match metric {
        Metric::SquaredEuclidean | Metric::Cosine => column_sums::<L, Squares>(l, query, columns, out),
        Metric::Manhattan => column_sums::<L, Magnitudes>(l, query, columns, out),
        Metric::Dot => {
            column_sums::<L, Products>(l, query, columns, out);
            for out in out {
                *out = -*out;
            }
        }
    }
}

/// Processes 64 columns at a time, as four independent chains.
#[inline(always)]
fn column_sums<L: WideLanes, T: Terms<1>>(
    l: L,
    query: &[f32],
    columns: &[[f32; COLUMNS]],
    out: &mut [f32; COLUMNS],
) {
    const AT_ONCE: usize = 4;
    let (out, _) = out.as_chunks_mut::<LANES>().0.as_chunks_mut::<2>().0.as_chunks_mut::<AT_ONCE>();
    for (block, out) in out.iter_mut().enumerate() {
        let mut sums = [[l.wide().splat(0.0)]; AT_ONCE];
        for (&q, row) in query.iter().zip(columns) {
            let q = l.wide().splat(q);
            for (sum, c) in sums.iter_mut().zip(&wide(row).as_chunks::<AT_ONCE>().0[block]) {
                *sum = T::add(l, q, l.wide().load(c), *sum);
            }
        }
        for ([sum], out) in sums.into_iter().zip(out) {
            l.wide().store(sum, out);
        }
    }
}

/// Row of a column table as pairs of eight lanes.
#[inline(always)]
fn wide(row: &[f32; COLUMNS]) -> &[[[f32; LANES]; 2]] {
    row.as_chunks::<LANES>().0.as_chunks::<2>().0
}
