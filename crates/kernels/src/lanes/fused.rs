//! Scalar fused multiply-add with one rounding on every target.
//!
//! `f32::mul_add` calls the target's C library if no instruction is known at compile time. The
//! mingw-w64 version (target `x86_64-pc-windows-gnu`) is not correctly rounded: one in five results
//! on random inputs is wrong by one ulp or more. There the sum is computed in double precision.

/// Fused multiply-add.
pub(crate) trait Fused {
    /// Computes `self * factor + addend`, rounded once.
    fn fma(self, factor: Self, addend: Self) -> Self;
}

impl Fused for f32 {
    #[cfg(not(all(windows, target_env = "gnu")))]
    #[inline(always)]
    #[allow(clippy::disallowed_methods)]
    fn fma(self, factor: Self, addend: Self) -> Self {
        self.mul_add(factor, addend)
    }

    #[cfg(all(windows, target_env = "gnu"))]
    #[inline]
    fn fma(self, factor: Self, addend: Self) -> Self {
        rounded_once(self, factor, addend)
    }
}

/// Computes `a * b + c` in double precision.
///
/// The product is exact; the sum is rounded to odd, so that the final rounding to single precision
/// equals one rounding of the exact sum (Boldo and Melquiond, "Emulation of FMA and correctly
/// rounded sums", 2008).
#[cfg(any(test, all(windows, target_env = "gnu")))]
fn rounded_once(a: f32, b: f32, c: f32) -> f32 {
    let (product, c) = (f64::from(a) * f64::from(b), f64::from(c));
    let sum = product + c;
    // Exact error of the sum (Knuth's two-sum).
    let part = sum - product;
    let error = (product - (sum - part)) + (c - part);
    let bits = sum.to_bits();
    let is_odd = bits & 1 == 1;
    if error == 0.0 || is_odd || !sum.is_finite() {
        return sum as f32;
    }
    // The neighbour in the direction of the error is odd.
    let grows = (error > 0.0) == (sum > 0.0);
    f64::from_bits(if grows { bits + 1 } else { bits - 1 }) as f32
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Finite numbers of all magnitudes, including denormals.
    fn number() -> impl Strategy<Value = f32> {
        any::<u32>().prop_map(f32::from_bits).prop_filter("finite", |x| x.is_finite())
    }

    /// Numbers with `c` near `a * b`, where double rounding shows.
    fn three() -> impl Strategy<Value = (f32, f32, f32)> {
        (number(), -1e3f32..1e3, -40i32..40, any::<u32>()).prop_map(|(a, b, shift, noise)| {
            let near = a * b * 2f32.powi(shift);
            let c = f32::from_bits(near.to_bits() ^ (noise & 0xff));
            (a, b, if c.is_finite() { c } else { 0.0 })
        })
    }

    proptest! {
        #[test]
        fn one_rounding((a, b, c) in prop_oneof![three(), (number(), number(), number())]) {
            let (fused, expected) = (rounded_once(a, b, c), a.fma(b, c));
            prop_assert!(fused.to_bits() == expected.to_bits(), "{a:e} {b:e} {c:e}: {fused:e} {expected:e}");
        }
    }

    #[test]
    fn a_sum_that_two_roundings_get_wrong() {
        // 1 + 2^-23 + 2^-24 - 2^-60: below the midpoint, but the last term does not fit in a
        // double.
        let (above, below) = (1.0 + 2f32.powi(-18), 1.0 - 2f32.powi(-18));
        let (a, b, c) = (above * 2f32.powi(-12), below * 2f32.powi(-12), 1.0 + f32::EPSILON);
        assert_eq!(rounded_once(a, b, c), c);
        assert_eq!(a.fma(b, c), c);
        assert_ne!((f64::from(a) * f64::from(b) + f64::from(c)) as f32, c);
        assert_eq!(rounded_once(f32::INFINITY, 1.0, 1.0), f32::INFINITY);
        assert!(rounded_once(f32::NAN, 1.0, 1.0).is_nan());
    }
}
