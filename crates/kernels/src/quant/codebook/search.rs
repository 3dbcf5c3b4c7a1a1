//! Search of scales and grid points with the least weighted squared error.
//!
//! Several start scales of a group choose points, each choice is solved for its best scale, and the
//! best of these is rounded to the quant block's scales `unit * (2 * s + 1)`, trying neighbours
//! too. The unit is then solved for all groups together.

use super::super::importance::Importance;
use super::super::search::{round_to_half, sums};

/// Values that a group of `LEN` values with one scale can represent.
pub(in crate::quant) trait Codebook<const LEN: usize> {
    /// The group's bits, apart from its scale.
    type Code: Copy + Default;
    /// Number of scales.
    const SCALES: u8;
    /// Unit of scales divided by the stored half-precision number.
    const UNIT: f32;
    /// Value that a start scale gives to the largest magnitude, from and to.
    const REACH: [f32; 2];

    /// Code with the least error at `scale`, and its values in units of the scale.
    fn assign(x: &[f32; LEN], w: &[f32; LEN], scale: f32) -> (Self::Code, [f32; LEN]);
}

/// Start scales per group.
const STARTS: usize = 14;

/// Rounds of solving for the unit.
const ROUNDS: usize = 2;

/// Quant block of `N` groups.
pub(in crate::quant) struct Fit<Code, const N: usize> {
    /// The stored number.
    pub(in crate::quant) d: f32,
    pub(in crate::quant) scales: [u8; N],
    pub(in crate::quant) codes: [Code; N],
}

/// Sums of a group with its points: `w * q * q` and `w * x * q`.
#[derive(Clone, Copy, Default)]
struct Moments {
    qq: f32,
    xq: f32,
}

impl Moments {
    #[inline(always)]
    fn of<const LEN: usize>(x: &[f32; LEN], w: &[f32; LEN], q: &[f32; LEN]) -> Self {
        let [qq, xq] = sums(x, w, q, |x, w, q| [w * q * q, w * x * q]);
        Self { qq, xq }
    }

    /// Squared error at a scale, less that of zeros.
    fn error(self, scale: f32) -> f32 {
        scale * (scale * self.qq - 2.0 * self.xq)
    }
}

/// Quantizes `N` groups of `LEN` values.
pub(in crate::quant) fn fit_codebook_block<C: Codebook<LEN>, const LEN: usize, const N: usize>(
    values: &[f32],
    importance: Importance<'_>,
) -> Fit<C::Code, N> {
    let (groups, _) = values.as_chunks::<LEN>();
    let weights: [[f32; LEN]; N] = std::array::from_fn(|g| importance.group(g));
    let mut fits = [0.0; N];
    for ((fit, x), w) in fits.iter_mut().zip(groups).zip(&weights) {
        *fit = fit_group::<C, LEN>(x, w);
    }
    let largest = fits.iter().fold(0.0_f32, |m, &f| m.max(f));
    let mut d = round_to_half(largest / f32::from(2 * C::SCALES - 1) / C::UNIT);
    let mut best = Fit { d, scales: [0; N], codes: [C::Code::default(); N] };
    let mut least = f32::INFINITY;
    for _ in 0..=ROUNDS {
        let mut round = Fit { d, ..best };
        let (mut error, mut all) = (0.0, Moments::default());
        for (g, (x, w)) in groups.iter().zip(&weights).enumerate() {
            let unit = d * C::UNIT;
            let (scale, code, moments) = round_scale::<C, LEN>(x, w, fits[g], unit);
            (round.scales[g], round.codes[g]) = (scale, code);
            let factor = f32::from(2 * scale + 1);
            error += moments.error(unit * factor);
            all.qq += factor * factor * moments.qq;
            all.xq += factor * moments.xq;
        }
        if error < least {
            (best, least) = (round, error);
        }
        d = round_to_half(if all.qq > 0.0 { all.xq / all.qq } else { 0.0 } / C::UNIT);
        if d == best.d {
            break;
        }
    }
    best
}

/// Best scale of a group, not rounded.
fn fit_group<C: Codebook<LEN>, const LEN: usize>(x: &[f32; LEN], w: &[f32; LEN]) -> f32 {
    let largest = x.iter().fold(0.0_f32, |m, x| m.max(x.abs()));
    let (mut best, mut least) = (0.0, 0.0);
    if largest == 0.0 {
        return best;
    }
    let [from, to] = C::REACH;
    let mut consider = |scale: f32| {
        let (_, q) = C::assign(x, w, scale);
        let moments = Moments::of(x, w, &q);
        if moments.qq > 0.0 && moments.xq > 0.0 {
            let scale = moments.xq / moments.qq;
            if moments.error(scale) < least {
                (best, least) = (scale, moments.error(scale));
            }
        }
        best
    };
    for start in 0..STARTS {
        consider(largest / (from + (to - from) * start as f32 / (STARTS - 1) as f32));
    }
    let scale = consider(largest / from);
    consider(scale)
}

/// Stored scale near `fit` with the least error, and the code that it gets.
#[inline(always)]
fn round_scale<C: Codebook<LEN>, const LEN: usize>(
    x: &[f32; LEN],
    w: &[f32; LEN],
    fit: f32,
    unit: f32,
) -> (u8, C::Code, Moments) {
    let ratio = if unit == 0.0 { 0.0 } else { (fit / unit - 1.0) / 2.0 };
    let highest = f32::from(C::SCALES - 1);
    let nearest = ratio.round().clamp(0.0, highest);
    let (mut best, mut least) = ((0, C::Code::default(), Moments::default()), f32::INFINITY);
    for scale in [nearest, (nearest - 1.0).max(0.0), (nearest + 1.0).min(highest)] {
        let value = unit * (2.0 * scale + 1.0);
        let (code, q) = C::assign(x, w, value);
        let moments = Moments::of(x, w, &q);
        let error = moments.error(value);
        if error < least {
            (best, least) = ((scale as u8, code, moments), error);
        }
    }
    best
}
