//! Elementary functions on lanes: exp, tanh and the normal CDF. Own polynomials, so that every
//! instruction set and platform gives the same bits; the tests check the stated errors against f64.

use std::f32::consts::{LN_2, LOG2_E};

use crate::lanes::{Lanes, Vectors};

/// Smallest argument of [`exp`] with a nonzero result; below it the exponential is (nearly)
/// subnormal.
pub(crate) const EXP_LOW: f32 = -87.3;

/// Largest argument whose exponential is finite in f32.
const EXP_HIGH: f32 = 88.722_83;

/// Low part of ln 2: `ln 2 - LN_2`.
const LN_2_LOW: f32 = -1.904_654_3e-9;

/// Coefficients of `r^2 .. r^6` in `e^r`.
///
/// Interpolation of `(e^r - 1 - r) / r^2` at the Chebyshev nodes of `|r| <= ln 2 / 2`; error of the
/// polynomial 1.1e-8.
const EXP_POLYNOMIAL: [f32; 5] = [0.5, 0.166_665_76, 0.041_666_556, 0.008_363_203, 0.001_392_621_3];

/// Coefficients of `x^3, x^5 .. x^11` in `tanh x`.
///
/// Interpolation at the Chebyshev nodes of `x^2 <= 1/4`; error of the polynomial 4.5e-9.
const TANH_POLYNOMIAL: [f32; 5] = [-0.333_333_3, 0.133_332_25, -0.053_933_468, 0.021_470_683, -0.006_942_942];

/// Argument to which [`normal_below`] clamps, where it is 0; then the `k` of its substitution.
const NORMAL_HIGH: f32 = 16.0;
const NORMAL_SHIFT: f32 = 4.0;

/// Coefficients of `t^0 .. t^9` in `(x + k) e^(x^2 / 2) Φ(-x)` with `t = (x - k) / (x + k)`.
///
/// Interpolation at the Chebyshev nodes of `0 <= x <= 13.3`; relative error of the polynomial
/// 1.2e-8.
const NORMAL_POLYNOMIAL: [f32; 10] = [
    0.755_285_14,
    -0.607_896_6,
    0.387_136_7,
    -0.186_522_2,
    0.060_406_85,
    -0.007_532_521,
    -0.003_529_760_2,
    0.001_577_709_3,
    0.000_211_579_3,
    -0.000_115_843_64,
];

/// Polynomial `c[0] + c[1] x + c[2] x^2 + ..` by Horner's rule.
#[inline(always)]
fn polynomial<L: Vectors<N>, const N: usize, const C: usize>(l: L, c: &[f32; C], x: L::V) -> L::V {
    let mut y = l.splat(c[C - 1]);
    for &c in c[..C - 1].iter().rev() {
        y = l.fma(y, x, l.splat(c));
    }
    y
}

/// Computes `e^x`, relative error at most 2e-7 for results in the normal range.
///
/// 0 below -87.3 (and for `-inf`), `inf` above 88.72, NaN for NaN, exactly 1 at 0. Bit-identical to
/// [`exp_nonpositive`] for `x <= 0`.
#[inline(always)]
pub(crate) fn exp<L: Lanes>(l: L, x: L::V) -> L::V {
    let (y, n) = reduced_exp(l, x);
    // Two factors, because 2^128 alone is not finite.
    let low = l.max(l.splat(-126.0), l.min(l.splat(126.0), n));
    let y = l.mul(l.mul(y, l.pow2(low)), l.pow2(l.sub(n, low)));
    let y = l.select_lt(x, l.splat(EXP_LOW), l.zero(), y);
    l.select_lt(l.splat(EXP_HIGH), x, l.splat(f32::INFINITY), y)
}

/// Computes `e^x` for `x <= 0` at two thirds of the cost of [`exp`].
///
/// NaN for NaN, unspecified for positive `x`.
#[inline(always)]
pub(crate) fn exp_nonpositive<L: Vectors<N>, const N: usize>(l: L, x: L::V) -> L::V {
    let (y, n) = reduced_exp(l, x);
    l.select_lt(x, l.splat(EXP_LOW), l.splat(0.0), l.mul(y, l.pow2(n)))
}

/// Range reduction `x = n ln 2 + r`, `|r| <= ln 2 / 2`: returns `(e^r, n)`.
///
/// `e^r` is a polynomial of degree 6.
#[inline(always)]
fn reduced_exp<L: Vectors<N>, const N: usize>(l: L, x: L::V) -> (L::V, L::V) {
    let n = l.round(l.mul(x, l.splat(LOG2_E)));
    let r = l.fnma(n, l.splat(LN_2), x);
    let r = l.fnma(n, l.splat(LN_2_LOW), r);
    let tail = polynomial(l, &EXP_POLYNOMIAL, r);
    let one = l.splat(1.0);
    (l.fma(l.fma(tail, r, one), r, one), n)
}

/// Computes `tanh x`, relative error at most 4e-7; ±1 at infinity, NaN for NaN, 0 for both zeros.
#[inline(always)]
pub(crate) fn tanh<L: Lanes>(l: L, x: L::V) -> L::V {
    let square = l.mul(x, x);
    let near = l.fma(l.mul(square, x), polynomial(l, &TANH_POLYNOMIAL, square), x);
    let size = l.abs(x);
    let grown = exp(l, l.add(size, size));
    let one = l.splat(1.0);
    let far = l.sub(one, l.div(l.splat(2.0), l.add(grown, one)));
    let far = l.select_lt(x, l.zero(), l.sub(l.zero(), far), far);
    l.select_lt(size, l.splat(0.5), near, far)
}

/// Normal CDF `Φ(-x)` for `x >= 0`, which is `erfc(x / sqrt 2) / 2`.
///
/// Relative error at most 6e-7 up to `x = 13`, where it falls below 1e-38; 0 from 13.3 on, exactly
/// 1/2 at 0 (to the bit), NaN for NaN. The scaled function `e^(x^2 / 2) Φ(-x)` is smooth; the
/// rounding error of the square is corrected in the exponential.
#[inline(always)]
pub(crate) fn normal_below<L: Lanes>(l: L, x: L::V) -> L::V {
    let x = l.min(l.splat(NORMAL_HIGH), x);
    let one = l.splat(1.0);
    let inverse = l.div(one, l.add(x, l.splat(NORMAL_SHIFT)));
    let t = l.fnma(l.splat(2.0 * NORMAL_SHIFT), inverse, one);
    let scaled = l.mul(polynomial(l, &NORMAL_POLYNOMIAL, t), inverse);
    let half = l.mul(x, l.splat(0.5));
    let square = l.mul(x, half);
    let rest = l.fnma(x, half, square);
    let e = exp_nonpositive(l, l.sub(l.zero(), square));
    l.mul(scaled, l.fma(e, rest, e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lanes::{LANES, ScalarLanes};

    fn exp1(x: f32) -> f32 {
        exp(ScalarLanes, [x; LANES])[0]
    }

    fn tanh1(x: f32) -> f32 {
        tanh(ScalarLanes, [x; LANES])[0]
    }

    fn normal1(x: f32) -> f32 {
        normal_below(ScalarLanes, [x; LANES])[0]
    }

    /// Evenly spaced values in `from..=to`.
    fn sweep(from: f32, to: f32, n: u32) -> impl Iterator<Item = f32> {
        (0..=n).map(move |i| from + (to - from) * (i as f32 / n as f32))
    }

    #[test]
    fn exp_error() {
        for x in sweep(EXP_LOW, EXP_HIGH, 400_000).chain(sweep(-1.0, 1.0, 100_000)) {
            let expected = f64::from(x).exp();
            let error = (f64::from(exp1(x)) / expected - 1.0).abs();
            assert!(error <= 2e-7, "exp({x:?}): relative error {error:e}");
        }
    }

    #[test]
    fn exp_of_nonpositive_values_is_exp() {
        for x in sweep(-100.0, 0.0, 200_000).chain([f32::NEG_INFINITY, f32::MIN, -0.0, -1e-45, EXP_LOW]) {
            assert_eq!(exp_nonpositive(ScalarLanes, [x; LANES])[0].to_bits(), exp1(x).to_bits(), "{x:?}");
        }
        assert!(exp_nonpositive(ScalarLanes, [f32::NAN; LANES])[0].is_nan());
    }

    #[test]
    fn exp_special_values() {
        assert_eq!(exp1(0.0), 1.0);
        assert_eq!(exp1(-0.0), 1.0);
        assert_eq!(exp1(1e-40), 1.0);
        assert_eq!(exp1(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp1(f32::INFINITY), f32::INFINITY);
        assert_eq!(exp1(f32::MAX), f32::INFINITY);
        assert_eq!(exp1(f32::MIN), 0.0);
        assert_eq!(exp1(-88.0), 0.0);
        assert_eq!(exp1(89.0), f32::INFINITY);
        assert!(exp1(EXP_HIGH).is_finite());
        assert!(exp1(f32::NAN).is_nan());
    }

    #[test]
    fn tanh_error() {
        let tiny = (1..60).map(|i| 0.7f32 * 0.25f32.powi(i));
        for x in sweep(-12.0, 12.0, 300_000).chain(sweep(-0.6, 0.6, 100_000)).chain(tiny) {
            let expected = f64::from(x).tanh();
            let error = (f64::from(tanh1(x)) - expected).abs();
            assert!(error <= 4e-7 * expected.abs() + 1e-45, "tanh({x:?}): error {error:e} of {expected:e}");
        }
    }

    #[test]
    fn tanh_special_values() {
        assert_eq!(tanh1(f32::INFINITY), 1.0);
        assert_eq!(tanh1(f32::NEG_INFINITY), -1.0);
        assert!(tanh1(f32::NAN).is_nan());
        assert_eq!(tanh1(-0.0), 0.0);
        assert_eq!(tanh1(0.0), 0.0);
    }

    /// `Φ(-x)` in f64 for `x >= 0`: power series near 0, continued fraction beyond (Abramowitz and
    /// Stegun, 26.2.10 and 26.2.14).
    fn normal_reference(x: f64) -> f64 {
        let density = (-x * x / 2.0).exp() / std::f64::consts::TAU.sqrt();
        if x > 3.0 {
            return density / (1..=200).rev().fold(x, |tail, k| x + f64::from(k) / tail);
        }
        let mut term = x;
        let mut sum = x;
        for k in 1..80 {
            term *= x * x / f64::from(2 * k + 1);
            sum += term;
        }
        0.5 - density * sum
    }

    #[test]
    fn normal_error() {
        assert!((normal_reference(1.0) - 0.158_655_253_931_457_05).abs() < 1e-15);
        assert!((normal_reference(5.0) / 2.866_515_718_791_939e-7 - 1.0).abs() < 1e-12);
        for x in sweep(0.0, 13.0, 300_000).chain(sweep(0.0, 1.0, 100_000)) {
            let error = (f64::from(normal1(x)) / normal_reference(f64::from(x)) - 1.0).abs();
            assert!(error <= 6e-7, "normal_below({x:?}): relative error {error:e}");
        }
    }

    #[test]
    fn normal_special_values() {
        assert_eq!(normal1(0.0), 0.5);
        assert_eq!(normal1(1e-30), 0.5);
        assert_eq!(normal1(14.0), 0.0);
        assert_eq!(normal1(f32::INFINITY), 0.0);
        assert!(normal1(f32::NAN).is_nan());
    }
}
