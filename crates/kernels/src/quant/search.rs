//! Search for quant block scales with the least squared error, weighted by importance.
//!
//! Used by the K and `IQ4` formats, which are defined by their decoding alone.
//!
//! For a *group* of values with one scale, several start scales assign quants, each assignment is
//! solved for its best scale (and minimum) by least squares, and the smallest error wins. The
//! winners are rounded to the quant block's integer scales, trying neighbouring integers too, and
//! the quants are assigned again.

use half::f16;

use super::importance::Importance;
use crate::lanes::LANES;

/// Parameters of a quant block of `N` groups with scale and minimum.
pub(super) struct AffineScales<const N: usize> {
    pub(super) d: f32,
    pub(super) dmin: f32,
    pub(super) scales: [u8; N],
    pub(super) mins: [u8; N],
}

/// Parameters of a quant block of `N` groups with a signed scale.
pub(super) struct SymmetricScales<const N: usize> {
    pub(super) d: f32,
    pub(super) scales: [i8; N],
}

/// Values that quants represent, in units of the scale.
pub(super) trait Grid {
    /// Grid ends to which the value of largest magnitude may map: start points of the scale search.
    const ENDS: &'static [f32];
    /// Difference between start points around such an end.
    const STEP: f32;

    /// Grid value nearest to `x`.
    fn nearest(x: f32) -> f32;
}

/// Signed integers of `BITS` bits.
pub(super) struct Integers<const BITS: u32>;

impl Grid for Integers<6> {
    const ENDS: &'static [f32] = &[-32.0];
    const STEP: f32 = 0.1;

    #[inline(always)]
    fn nearest(x: f32) -> f32 {
        round_small(x).clamp(-32.0, 31.0)
    }
}

/// With so few values, the sign that gets the longer end matters.
impl Grid for Integers<3> {
    const ENDS: &'static [f32] = &[-4.0, 3.0];
    const STEP: f32 = 0.1;

    #[inline(always)]
    fn nearest(x: f32) -> f32 {
        round_small(x).clamp(-4.0, 3.0)
    }
}

impl Grid for Integers<4> {
    const ENDS: &'static [f32] = &[-8.0];
    const STEP: f32 = 0.1;

    #[inline(always)]
    fn nearest(x: f32) -> f32 {
        round_small(x).clamp(-8.0, 7.0)
    }
}

impl Grid for Integers<5> {
    const ENDS: &'static [f32] = &[-16.0];
    const STEP: f32 = 0.1;

    #[inline(always)]
    fn nearest(x: f32) -> f32 {
        round_small(x).clamp(-16.0, 15.0)
    }
}

/// Quantizes `N` groups of `LEN` values as `d * sc * q - dmin * mn`.
///
/// `q` is in `0..=max_quant`; `sc` and `mn` are in `0..=max_scale`.
pub(super) fn fit_affine_block<const LEN: usize, const N: usize>(
    values: &[f32],
    importance: Importance<'_>,
    max_quant: u8,
    max_scale: u8,
) -> (AffineScales<N>, [[u8; LEN]; N]) {
    let (groups, _) = values.as_chunks::<LEN>();
    let (max_quant, max_scale) = (f32::from(max_quant), f32::from(max_scale));
    let mut fits = [(0.0, 0.0); N];
    for (g, (fit, x)) in fits.iter_mut().zip(groups).enumerate() {
        *fit = fit_affine(x, &importance.group(g), max_quant);
    }
    let d = round_to_half(fits.iter().fold(0.0, |m, f| f.0.max(m)) / max_scale);
    let dmin = round_to_half(fits.iter().fold(0.0, |m, f| f.1.max(m)) / max_scale);

    let mut result = AffineScales { d, dmin, scales: [0; N], mins: [0; N] };
    let mut quants = [[0; LEN]; N];
    for (s, x) in groups.iter().enumerate() {
        let w = importance.group(s);
        let mut least = f32::INFINITY;
        let highest = x.iter().fold(0.0_f32, |m, &x| m.max(x));
        for min in neighbours(fits[s].1, dmin, 0.0, max_scale) {
            // The fitted scale belongs to the fitted minimum; with the rounded one, the scale that
            // maps the highest value to the largest quant is often better (one outlier in a group).
            let reaching = (highest + dmin * min) / max_quant;
            let scales = [neighbours(fits[s].0, d, 0.0, max_scale), neighbours(reaching, d, 0.0, max_scale)];
            for &scale in scales.as_flattened() {
                let candidate = assign_affine(x, d * scale, -dmin * min, max_quant);
                let error = squared_error(x, &w, &candidate, d * scale, -dmin * min);
                if error < least {
                    least = error;
                    (result.scales[s], result.mins[s]) = (scale as u8, min as u8);
                    quants[s] = candidate.map(|q| q as u8);
                }
            }
        }
    }
    (result, quants)
}

/// Quantizes `N` groups of `LEN` values as `d * sc * q` with grid values `q`.
///
/// The signed `sc` is from `lowest_scale` to `-lowest_scale - 1`. Returns grid values.
pub(super) fn fit_symmetric_block<G: Grid, const LEN: usize, const N: usize>(
    values: &[f32],
    importance: Importance<'_>,
    lowest_scale: f32,
) -> (SymmetricScales<N>, [[f32; LEN]; N]) {
    let (groups, _) = values.as_chunks::<LEN>();
    let mut fits = [0.0; N];
    for (g, (fit, x)) in fits.iter_mut().zip(groups).enumerate() {
        *fit = fit_symmetric::<G, LEN>(x, &importance.group(g));
    }
    let extreme = fits.iter().fold(0.0_f32, |m, &f| if f.abs() > m.abs() { f } else { m });
    let d = round_to_half(extreme / lowest_scale);

    let mut result = SymmetricScales { d, scales: [0; N] };
    let mut quants = [[0.0; LEN]; N];
    for (s, x) in groups.iter().enumerate() {
        let w = importance.group(s);
        let mut least = f32::INFINITY;
        for scale in neighbours(fits[s], d, lowest_scale, -lowest_scale - 1.0) {
            let candidate = assign::<G, LEN>(x, d * scale);
            let error = squared_error(x, &w, &candidate, d * scale, 0.0);
            if error < least {
                (least, quants[s]) = (error, candidate);
                result.scales[s] = scale as i8;
            }
        }
    }
    (result, quants)
}

/// Quantizes `LEN` values as `d * q` with `q` of the grid; returns `d` and the grid values.
pub(super) fn fit_scale<G: Grid, const LEN: usize>(
    values: &[f32],
    importance: Importance<'_>,
) -> (f32, [f32; LEN]) {
    let x = values.as_array().expect("one group");
    let d = round_to_half(fit_symmetric::<G, LEN>(x, &importance.group(0)));
    (d, assign::<G, LEN>(x, d))
}

/// Quantizes `LEN` values as `d * q + m` with `q` in `0..=max_quant`; returns `d`, `m` and quants.
pub(super) fn fit_range<const LEN: usize>(
    values: &[f32],
    importance: Importance<'_>,
    max_quant: f32,
) -> (f32, f32, [u8; LEN]) {
    let values: &[f32; LEN] = values.as_array().expect("one group");
    // The search wants a range that includes zero.
    let shift = values.iter().fold(f32::MAX, |m, &x| m.min(x)).max(0.0);
    let (scale, min) = fit_affine(&values.map(|x| x - shift), &importance.group(0), max_quant);
    let (d, m) = (round_to_half(scale), round_to_half(shift - min));
    (d, m, assign_affine(values, d, m, max_quant).map(|q| q as u8))
}

/// Scale and minimum (subtracted, never negative) of values with quants `0..=max_quant`.
fn fit_affine<const LEN: usize>(x: &[f32; LEN], w: &[f32; LEN], max_quant: f32) -> (f32, f32) {
    /// Start scales: the range divided into `max_quant - 1` to `max_quant + 0.9` steps.
    const STEPS: usize = 20;
    /// Rounds of assigning quants and solving for the scale, per start.
    const ROUNDS: usize = 2;
    let lowest = x.iter().fold(0.0_f32, |m, &x| m.min(x));
    let highest = x.iter().fold(f32::NEG_INFINITY, |m, &x| m.max(x));
    let range = highest - lowest;
    if range <= 0.0 {
        return (0.0, -lowest);
    }
    let (mut best, mut least) = ((range / max_quant, -lowest), f32::INFINITY);
    for step in 0..STEPS {
        let scale = range / (max_quant - 1.0 + 0.1 * step as f32);
        // A grid that starts at the lowest value, and one that contains zero: with a few outliers,
        // most values are near zero and best represented by it.
        for offset in [lowest, -scale * round_small(-lowest / scale)] {
            let (mut scale, mut offset) = (scale, offset);
            for _ in 0..ROUNDS {
                let quants = assign_affine(x, scale, offset, max_quant);
                (scale, offset) = solve_affine(x, w, &quants);
                let error = squared_error(x, w, &quants, scale, offset);
                if error < least {
                    (best, least) = ((scale, -offset), error);
                }
            }
        }
    }
    best
}

/// Scale and offset (not positive) with the least squared error for given quants.
fn solve_affine<const LEN: usize>(x: &[f32; LEN], w: &[f32; LEN], quants: &[f32; LEN]) -> (f32, f32) {
    let [sum_w, sum_q, sum_qq, sum_x, sum_xq] =
        sums(x, w, quants, |x, w, q| [w, w * q, w * (q * q), w * x, w * (x * q)]);
    let determinant = sum_w * sum_qq - sum_q * sum_q;
    if determinant > 0.0 {
        let offset = (sum_qq * sum_x - sum_q * sum_xq) / determinant;
        if offset <= 0.0 {
            return ((sum_w * sum_xq - sum_q * sum_x) / determinant, offset);
        }
    }
    (if sum_qq > 0.0 { sum_xq / sum_qq } else { 0.0 }, 0.0)
}

/// Signed scale of values with quants of a grid.
fn fit_symmetric<G: Grid, const LEN: usize>(x: &[f32; LEN], w: &[f32; LEN]) -> f32 {
    let extreme = x.iter().fold(0.0_f32, |m, &x| if x.abs() > m.abs() { x } else { m });
    if extreme == 0.0 {
        return 0.0;
    }
    let (mut best, mut least) = (0.0, f32::INFINITY);
    for end in G::ENDS {
        for step in -9..=9 {
            let start = extreme / end.signum() / (end.abs() + G::STEP * step as f32);
            let quants = assign::<G, LEN>(x, start);
            let [sum_qq, sum_xq] = sums(x, w, &quants, |x, w, q| [w * (q * q), w * (x * q)]);
            let scale = if sum_qq > 0.0 { sum_xq / sum_qq } else { 0.0 };
            let error = squared_error(x, w, &quants, scale, 0.0);
            if error < least {
                (best, least) = (scale, error);
            }
        }
    }
    best
}

/// Grid values nearest to `x / scale`; nearest to zero if the scale has no finite inverse.
#[inline(always)]
fn assign<G: Grid, const LEN: usize>(x: &[f32; LEN], scale: f32) -> [f32; LEN] {
    let inverse = inverse_of(scale);
    let mut quants = [0.0; LEN];
    for (quant, x) in quants.iter_mut().zip(x) {
        *quant = G::nearest(x * inverse);
    }
    quants
}

/// Quants nearest to `(x - offset) / scale`; all zero if the scale has no finite inverse.
#[inline(always)]
fn assign_affine<const LEN: usize>(x: &[f32; LEN], scale: f32, offset: f32, max_quant: f32) -> [f32; LEN] {
    let inverse = inverse_of(scale);
    let mut quants = [0.0; LEN];
    for (quant, x) in quants.iter_mut().zip(x) {
        *quant = round_small((x - offset) * inverse).clamp(0.0, max_quant);
    }
    quants
}

fn inverse_of(scale: f32) -> f32 {
    let inverse = 1.0 / scale;
    if inverse.is_finite() { inverse } else { 0.0 }
}

#[inline(always)]
fn squared_error<const LEN: usize>(
    x: &[f32; LEN],
    w: &[f32; LEN],
    quants: &[f32; LEN],
    scale: f32,
    offset: f32,
) -> f32 {
    let [error] = sums(x, w, quants, |x, w, q| {
        let difference = scale * q + offset - x;
        [w * (difference * difference)]
    });
    error
}

/// Computes `N` sums over values, weights and quants, each in eight accumulators.
///
/// One chain of dependent additions would take most of the time.
#[inline(always)]
pub(super) fn sums<const LEN: usize, const N: usize>(
    x: &[f32; LEN],
    w: &[f32; LEN],
    quants: &[f32; LEN],
    terms: impl Fn(f32, f32, f32) -> [f32; N],
) -> [f32; N] {
    let mut lanes = [[0.0; LANES]; N];
    let (x, w, quants) = (x.as_chunks::<LANES>().0, w.as_chunks::<LANES>().0, quants.as_chunks::<LANES>().0);
    for ((x, w), q) in x.iter().zip(w).zip(quants) {
        for lane in 0..LANES {
            for (sum, term) in lanes.iter_mut().zip(terms(x[lane], w[lane], q[lane])) {
                sum[lane] += term;
            }
        }
    }
    lanes.map(|lanes| {
        let halves: [f32; LANES / 2] = std::array::from_fn(|lane| lanes[lane] + lanes[lane + LANES / 2]);
        (halves[0] + halves[2]) + (halves[1] + halves[3])
    })
}

/// Integers around `value / unit` within the bounds.
fn neighbours(value: f32, unit: f32, lowest: f32, highest: f32) -> [f32; 3] {
    let ratio = if unit == 0.0 { 0.0 } else { value / unit };
    let nearest = ratio.round().clamp(lowest, highest);
    [nearest, (nearest - 1.0).max(lowest), (nearest + 1.0).min(highest)]
}

/// Rounds to the nearest integer, exactly for magnitudes below 2^22, in two additions.
///
/// A call to `round` would prevent vectorization on the baseline instruction set.
#[inline(always)]
fn round_small(x: f32) -> f32 {
    const SHIFT: f32 = 12_582_912.0; // 1.5 * 2^23
    (x + SHIFT) - SHIFT
}

pub(super) fn round_to_half(x: f32) -> f32 {
    f16::from_f32_const(x).to_f32_const()
}
