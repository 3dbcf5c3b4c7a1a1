//! Four f32 values in a vector.

use core::arch::wasm32::{
    f32x4, f32x4_add, f32x4_div, f32x4_extract_lane, f32x4_mul, f32x4_pmax, f32x4_pmin, f32x4_splat,
    f32x4_sub, i32x4_add, i32x4_shl, i32x4_shuffle, i32x4_splat, v128,
};

/// Values per vector.
pub const LANES: usize = 4;

/// Four values.
#[derive(Clone, Copy)]
pub struct Lanes(pub v128);

impl Lanes {
    /// The same value four times.
    pub fn splat(value: f32) -> Self {
        Self(f32x4_splat(value))
    }

    /// Four values.
    pub fn of([a, b, c, d]: [f32; LANES]) -> Self {
        Self(f32x4(a, b, c, d))
    }

    /// The values.
    pub fn values(self) -> [f32; LANES] {
        let Self(v) = self;
        [
            f32x4_extract_lane::<0>(v),
            f32x4_extract_lane::<1>(v),
            f32x4_extract_lane::<2>(v),
            f32x4_extract_lane::<3>(v),
        ]
    }

    /// Sums.
    pub fn plus(self, other: Self) -> Self {
        Self(f32x4_add(self.0, other.0))
    }

    /// Differences.
    pub fn minus(self, other: Self) -> Self {
        Self(f32x4_sub(self.0, other.0))
    }

    /// Products.
    pub fn times(self, other: Self) -> Self {
        Self(f32x4_mul(self.0, other.0))
    }

    /// Quotients.
    pub fn over(self, other: Self) -> Self {
        Self(f32x4_div(self.0, other.0))
    }

    /// Larger values; those of `self` where they are NaN.
    pub fn max(self, other: Self) -> Self {
        Self(f32x4_pmax(self.0, other.0))
    }

    /// Smaller values; those of `self` where they are NaN.
    pub fn min(self, other: Self) -> Self {
        Self(f32x4_pmin(self.0, other.0))
    }

    /// Powers of two of the integers between -126 and 127 in the last bits of values.
    pub fn pow2_of_last_bits(self) -> Self {
        Self(i32x4_add(i32x4_shl(self.0, 23), i32x4_splat(127 << 23)))
    }

    /// Neighbours exchanged: the second, the first, the fourth, the third.
    pub fn swap_pairs(self) -> Self {
        Self(i32x4_shuffle::<1, 0, 3, 2>(self.0, self.0))
    }

    /// The first two values, each twice.
    pub fn twice_low(self) -> Self {
        Self(i32x4_shuffle::<0, 0, 1, 1>(self.0, self.0))
    }

    /// The last two values, each twice.
    pub fn twice_high(self) -> Self {
        Self(i32x4_shuffle::<2, 2, 3, 3>(self.0, self.0))
    }

    /// Sum of the values.
    pub fn sum(self) -> f32 {
        let [a, b, c, d] = self.values();
        (a + c) + (b + d)
    }
}
