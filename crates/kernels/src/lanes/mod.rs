//! The vocabulary in which every f32 kernel of this crate is written, once: vectors of eight lanes,
//! and of two groups of eight.
//!
//! [`Vectors`] names the operations for both widths, [`Lanes`] those within eight lanes,
//! [`WideLanes`] an instruction set with both ([`Pairs`] where it has no register for two groups).
//! A kernel is a generic `#[inline(always)]` function over one of them; `l.wide()` gives the token
//! of wide vectors. `kernels.rs` instantiates it for each instruction set inside a function that
//! enables the CPU features, so the operations below become single instructions. All
//! implementations round alike and associate alike, so one kernel gives the same bits everywhere.
//! (Which NaN comes out of an operation on NaNs is the one thing that may differ: a NaN stays a
//! NaN, its payload is not promised.)
//!
//! It is not a general SIMD library: only what the kernels use is here.

mod fused;
pub(crate) mod math;
mod scalar;

#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;
#[cfg(target_arch = "x86_64")]
mod x86;

use half::{bf16, f16};

pub(crate) use fused::Fused;
#[cfg(target_arch = "aarch64")]
pub(crate) use neon::NeonLanes;
pub(crate) use scalar::ScalarLanes;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{Avx2Lanes, Avx512Lanes, X86Lanes};

/// Number of f32 lanes in which every reduction is carried, on every instruction set.
pub(crate) const LANES: usize = 8;

/// Values of a wide vector: two groups of lanes.
pub(crate) const WIDE: usize = 2 * LANES;

/// Bytes that one prefetch brings.
pub(crate) const CACHE_LINE: usize = 64;

/// The body of a call of [`Apart::apart`].
pub(crate) trait Work<L> {
    /// Runs it; `#[inline(always)]`, as all kernels.
    fn run(self, l: L);
}

/// A token that can call a function with the CPU features of its instruction set.
pub(crate) trait Apart: Copy {
    /// Does `work` in a function of its own. A kernel that has one body per format would otherwise
    /// be one function with all of them, too large for its values to get registers.
    fn apart(self, work: impl Work<Self>);
}

/// Operations on vectors of `N` f32 values, as eight lanes or as two groups of eight.
///
/// The implementor is a zero-sized token. A value of it exists only where the CPU features are
/// known to be present, so all methods are safe. Kernels take a token as their first argument: `fn
/// dot<L: Lanes>(l: L, ..)`.
pub(crate) trait Vectors<const N: usize>: Copy + Send + Sync {
    /// The values.
    type V: Copy;
    /// The values in memory: `[f32; 8]`, or the two groups.
    type Floats;

    /// `N` times `x`.
    fn splat(self, x: f32) -> Self::V;
    /// The values of `x`, in order.
    fn load(self, x: &Self::Floats) -> Self::V;
    /// Writes the values to `to`, in order.
    fn store(self, v: Self::V, to: &mut Self::Floats);
    /// The values of `x`, widened exactly.
    fn load_f16(self, x: &[f16; N]) -> Self::V;
    /// The values of `x`, widened exactly.
    fn load_bf16(self, x: &[bf16; N]) -> Self::V;
    /// The values of `x`, as numbers.
    fn load_i8(self, x: &[i8; N]) -> Self::V;
    /// The low four bits of each byte of `x` as numbers from 0 to 15, then the high four bits.
    fn load_nibbles(self, x: &[u8; N]) -> [Self::V; 2];

    /// `a + b`.
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a - b`.
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b`.
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`, rounded once.
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// `c - a * b`, rounded once.
    fn fnma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// `if a > b { a } else { b }`: a NaN in `a` is dropped, a NaN in `b` is kept.
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// The magnitude: the sign bit cleared.
    fn abs(self, v: Self::V) -> Self::V;
    /// `if a < b { x } else { y }`; `y` where `a` or `b` is NaN.
    fn select_lt(self, a: Self::V, b: Self::V, x: Self::V, y: Self::V) -> Self::V;
    /// The nearest integer, ties to even.
    fn round(self, v: Self::V) -> Self::V;
    /// `2^n` for an integral `n` in `-126..=127`; unspecified (but no panic) outside.
    fn pow2(self, n: Self::V) -> Self::V;
    /// Lane `i` of each group of eight of the result is the [`sum`](Lanes::sum) of that group of
    /// `v[i]`.
    fn sums(self, v: [Self::V; LANES]) -> Self::V;

    /// `N` zeros.
    #[inline(always)]
    fn zero(self) -> Self::V {
        self.splat(0.0)
    }
}

/// Eight lanes: also operations within a vector, and conversions that no wide vector needs.
// (A literal, since with `LANES` the compiler takes `L::V` in bodies for ambiguous.)
pub(crate) trait Lanes: Vectors<8, Floats = [f32; LANES]> {
    /// Rounds to nearest, ties to even; overflow becomes infinity; a NaN stays a (quiet) NaN.
    fn store_f16(self, v: Self::V, to: &mut [f16; LANES]);
    /// Rounds to nearest, ties to even; overflow becomes infinity; a NaN stays a (quiet) NaN.
    fn store_bf16(self, v: Self::V, to: &mut [bf16; LANES]);
    /// Bits 0 and 1 of each byte of `x` as numbers from 0 to 3, then bits 2 and 3, 4 and 5, 6 and
    /// 7.
    fn load_two_bits(self, x: &[u8; LANES]) -> [Self::V; 4];
    /// `table[codes[i]]`; codes are 0 to 7.
    fn lookup(self, table: Self::V, codes: [u8; LANES]) -> Self::V;
    /// `[x0, x0, x1, x1, x2, x2, x3, x3]`.
    fn load_twice(self, x: &[f32; LANES / 2]) -> Self::V;

    /// `a / b`.
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    /// `if a < b { a } else { b }`: a NaN in `a` is dropped, a NaN in `b` is kept.
    fn min(self, a: Self::V, b: Self::V) -> Self::V;
    /// `[v1, v0, v3, v2, v5, v4, v7, v6]`.
    fn swap_pairs(self, v: Self::V) -> Self::V;
    /// `[v2, v3, v0, v1, v6, v7, v4, v5]`.
    fn swap_twos(self, v: Self::V) -> Self::V;
    /// `[v4, v5, v6, v7, v0, v1, v2, v3]`.
    fn swap_fours(self, v: Self::V) -> Self::V;

    /// The sum of the lanes by the fixed tree: `s_j = v_j + v_{j+4}`, `t_j = s_j + s_{j+2}`, `t_0 +
    /// t_1`.
    fn sum(self, v: Self::V) -> f32;
    /// The largest lane, by the same tree of [`max`](Vectors::max).
    fn max_lane(self, v: Self::V) -> f32;

    /// Asks for `x` to be brought into the cache; a hint without any other effect.
    fn prefetch<T>(self, x: &[T]);

    /// The values of `x`, at most eight, followed by zeros.
    #[inline(always)]
    fn load_partial(self, x: &[f32]) -> Self::V {
        let mut full = [0.0; LANES];
        full[..x.len()].copy_from_slice(x);
        self.load(&full)
    }

    /// The values of `x`, at most eight, followed by zeros.
    #[inline(always)]
    fn load_partial_f16(self, x: &[f16]) -> Self::V {
        let mut full = [f16::ZERO; LANES];
        full[..x.len()].copy_from_slice(x);
        self.load_f16(&full)
    }

    /// The values of `x`, at most eight, followed by zeros.
    #[inline(always)]
    fn load_partial_bf16(self, x: &[bf16]) -> Self::V {
        let mut full = [bf16::ZERO; LANES];
        full[..x.len()].copy_from_slice(x);
        self.load_bf16(&full)
    }

    /// Writes the first `to.len()` lanes, at most eight.
    #[inline(always)]
    fn store_partial(self, v: Self::V, to: &mut [f32]) {
        let mut full = [0.0; LANES];
        self.store(v, &mut full);
        to.copy_from_slice(&full[..to.len()]);
    }

    /// Writes the first `to.len()` lanes, at most eight, rounded as [`store_f16`](Self::store_f16)
    /// does.
    #[inline(always)]
    fn store_partial_f16(self, v: Self::V, to: &mut [f16]) {
        let mut full = [f16::ZERO; LANES];
        self.store_f16(v, &mut full);
        to.copy_from_slice(&full[..to.len()]);
    }
}

/// The lanes of an instruction set: eight, and two independent groups of eight handled together
/// ([`wide`](Self::wide)), in one register where there is one that wide.
///
/// The groups never mix, so a kernel gives the same bits whether it works on two outputs one after
/// the other or on a wide vector of both.
pub(crate) trait WideLanes: Lanes + Apart {
    /// The values of a wide vector.
    type W: Copy;
    /// The token of its operations.
    type Wide: Groups<Self, V = Self::W>;
    /// Number of wide vectors that the registers hold; register tiles are sized by it.
    const WIDE_REGISTERS: usize;

    /// The token of the operations on wide vectors.
    fn wide(self) -> Self::Wide;
}

/// Wide vectors, as groups of the lanes `L`.
pub(crate) trait Groups<L: Lanes>: Vectors<16, Floats = [[f32; LANES]; 2]> {
    /// `low` and `high` side by side.
    fn join(self, low: L::V, high: L::V) -> Self::V;
    /// The two groups apart.
    fn halves_of(self, w: Self::V) -> [L::V; 2];
    /// `v` twice.
    fn both(self, v: L::V) -> Self::V;
    /// Bits 0 and 1 of each byte of `x` as numbers from 0 to 3 beside bits 2 and 3; then bits 4 and
    /// 5 beside 6 and 7.
    fn load_two_bits(self, x: &[u8; LANES]) -> [Self::V; 2];
}

/// Wide vectors of an instruction set that has no register for both groups.
#[derive(Clone, Copy)]
pub(crate) struct Pairs<L>(pub(crate) L);

/// Methods of [`Pairs`] that do an operation on each group.
macro_rules! on_both_groups {
    ($( $op:ident($($arg:ident),*); )*) => {
        $(
            #[inline(always)]
            fn $op(self, $($arg: Self::V),*) -> Self::V {
                [self.0.$op($($arg[0]),*), self.0.$op($($arg[1]),*)]
            }
        )*
    };
}

impl<L: Lanes> Vectors<WIDE> for Pairs<L> {
    type V = [L::V; 2];
    type Floats = [[f32; LANES]; 2];

    on_both_groups! {
        add(a, b);
        sub(a, b);
        mul(a, b);
        fma(a, b, c);
        fnma(a, b, c);
        max(a, b);
        abs(v);
        select_lt(a, b, x, y);
        round(v);
        pow2(n);
    }

    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        [self.0.splat(x), self.0.splat(x)]
    }

    #[inline(always)]
    fn load(self, x: &Self::Floats) -> Self::V {
        [self.0.load(&x[0]), self.0.load(&x[1])]
    }

    #[inline(always)]
    fn store(self, v: Self::V, to: &mut Self::Floats) {
        self.0.store(v[0], &mut to[0]);
        self.0.store(v[1], &mut to[1]);
    }

    #[inline(always)]
    fn load_f16(self, x: &[f16; WIDE]) -> Self::V {
        let (low, high) = eights(x);
        [self.0.load_f16(low), self.0.load_f16(high)]
    }

    #[inline(always)]
    fn load_bf16(self, x: &[bf16; WIDE]) -> Self::V {
        let (low, high) = eights(x);
        [self.0.load_bf16(low), self.0.load_bf16(high)]
    }

    #[inline(always)]
    fn load_i8(self, x: &[i8; WIDE]) -> Self::V {
        let (low, high) = eights(x);
        [self.0.load_i8(low), self.0.load_i8(high)]
    }

    #[inline(always)]
    fn load_nibbles(self, x: &[u8; WIDE]) -> [Self::V; 2] {
        let (low, high) = eights(x);
        let (low, high) = (self.0.load_nibbles(low), self.0.load_nibbles(high));
        [[low[0], high[0]], [low[1], high[1]]]
    }

    #[inline(always)]
    fn sums(self, v: [Self::V; LANES]) -> Self::V {
        [self.0.sums(v.map(|v| v[0])), self.0.sums(v.map(|v| v[1]))]
    }
}

impl<L: Lanes> Groups<L> for Pairs<L> {
    #[inline(always)]
    fn join(self, low: L::V, high: L::V) -> Self::V {
        [low, high]
    }

    #[inline(always)]
    fn halves_of(self, w: Self::V) -> [L::V; 2] {
        w
    }

    #[inline(always)]
    fn both(self, v: L::V) -> Self::V {
        [v, v]
    }

    #[inline(always)]
    fn load_two_bits(self, x: &[u8; LANES]) -> [Self::V; 2] {
        let [a, b, c, d] = self.0.load_two_bits(x);
        [[a, b], [c, d]]
    }
}

/// The halves of sixteen values.
#[inline(always)]
pub(crate) fn eights<T>(x: &[T; WIDE]) -> (&[T; LANES], &[T; LANES]) {
    let (halves, _) = x.as_chunks::<LANES>();
    (&halves[0], &halves[1])
}

/// Methods of a token by one expression of register-only intrinsics each.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! by_intrinsics {
    ($( $op:ident($($arg:ident),*) = $e:expr; )*) => {
        $(
            #[inline(always)]
            fn $op(self, $($arg: Self::V),*) -> Self::V {
                $crate::lanes::with_features!($e)
            }
        )*
    };
}
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use by_intrinsics;

/// One expression of register-only intrinsics, in a method of a token.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! with_features {
    ($e:expr) => {
        // SAFETY: the intrinsics' only precondition is the CPU features, and a value of the token
        // (the `self` of the enclosing method) exists only where `assume_available` was promised
        // them.
        unsafe { $e }
    };
}
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use with_features;

#[cfg(test)]
mod tests;
