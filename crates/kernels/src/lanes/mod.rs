//! Portable SIMD layer of all f32 kernels: vectors of eight lanes, and of two groups of eight.
//!
//! [`Vectors`] has the operations of both widths, [`Lanes`] those within eight lanes, [`WideLanes`]
//! is an instruction set with both ([`Pairs`] if it has no register for two groups). A kernel is a
//! generic `#[inline(always)]` function over one of them; `l.wide()` gives the token of wide
//! vectors. `kernels.rs` instantiates it for each instruction set inside a function that enables
//! the CPU features, so the operations compile to single instructions. All implementations round
//! and associate identically, so a kernel gives the same bits on all instruction sets. (NaN
//! payloads may differ.)
//!
//! Not a general SIMD library: only operations that the kernels use.

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

/// Accumulator lanes of every f32 reduction, on every instruction set.
pub(crate) const LANES: usize = 8;

/// Values per wide vector: two groups of lanes.
pub(crate) const WIDE: usize = 2 * LANES;

/// Bytes per prefetch.
pub(crate) const CACHE_LINE: usize = 64;

/// Body of a call of [`Apart::apart`].
pub(crate) trait Work<L> {
    /// Runs the work; `#[inline(always)]`, as all kernels.
    fn run(self, l: L);
}

/// Token that can call a function with the CPU features of its instruction set.
pub(crate) trait Apart: Copy {
    /// Runs `work` in a separate function.
    ///
    /// A kernel with one body per format would otherwise be a single function with all of them, too
    /// large for register allocation.
    fn apart(self, work: impl Work<Self>);
}

/// Operations on vectors of `N` f32 values: eight lanes or two groups of eight.
///
/// The implementor is a zero-sized token. It exists only where the CPU features are known to be
/// present, so all methods are safe. Kernels take a token as their first argument: `fn dot<L:
/// Lanes>(l: L, ..)`.
pub(crate) trait Vectors<const N: usize>: Copy + Send + Sync {
    /// Vector in registers.
    type V: Copy;
    /// Vector in memory: `[f32; 8]`, or two groups.
    type Floats;

    /// Broadcasts `x`.
    fn splat(self, x: f32) -> Self::V;
    /// Loads values in order.
    fn load(self, x: &Self::Floats) -> Self::V;
    /// Stores the values in order.
    fn store(self, v: Self::V, to: &mut Self::Floats);
    /// Loads f16 values, widened exactly.
    fn load_f16(self, x: &[f16; N]) -> Self::V;
    /// Loads bf16 values, widened exactly.
    fn load_bf16(self, x: &[bf16; N]) -> Self::V;
    /// Loads i8 values, converted to f32.
    fn load_i8(self, x: &[i8; N]) -> Self::V;
    /// Loads the low four bits of each byte of `x` as 0 to 15, then the high four bits.
    fn load_nibbles(self, x: &[u8; N]) -> [Self::V; 2];

    /// Computes `a + b`.
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    /// Computes `a - b`.
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    /// Computes `a * b`.
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    /// Computes `a * b + c`, rounded once.
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// Computes `c - a * b`, rounded once.
    fn fnma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// Computes `if a > b { a } else { b }`: a NaN in `a` is dropped, a NaN in `b` is kept.
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// Clears the sign bit.
    fn abs(self, v: Self::V) -> Self::V;
    /// Computes `if a < b { x } else { y }`; `y` where `a` or `b` is NaN.
    fn select_lt(self, a: Self::V, b: Self::V, x: Self::V, y: Self::V) -> Self::V;
    /// Rounds to the nearest integer, ties to even.
    fn round(self, v: Self::V) -> Self::V;
    /// Computes `2^n` for an integral `n` in `-126..=127`; unspecified (but no panic) outside.
    fn pow2(self, n: Self::V) -> Self::V;
    /// Reduces eight vectors: lane `i` of each group of the result is the [`sum`](Lanes::sum) of
    /// that group of `v[i]`.
    fn sums(self, v: [Self::V; LANES]) -> Self::V;

    /// Vector of zeros.
    #[inline(always)]
    fn zero(self) -> Self::V {
        self.splat(0.0)
    }
}

/// Eight lanes: adds operations within a vector, and conversions not needed by wide vectors.
// A literal, because with `LANES` the compiler considers `L::V` in bodies ambiguous.
pub(crate) trait Lanes: Vectors<8, Floats = [f32; LANES]> {
    /// Rounds to nearest, ties to even; overflow becomes infinity; a NaN stays a (quiet) NaN.
    fn store_f16(self, v: Self::V, to: &mut [f16; LANES]);
    /// Rounds to nearest, ties to even; overflow becomes infinity; a NaN stays a (quiet) NaN.
    fn store_bf16(self, v: Self::V, to: &mut [bf16; LANES]);
    /// Loads bits 0 and 1 of each byte of `x` as 0 to 3, then bits 2 and 3, 4 and 5, 6 and 7.
    fn load_two_bits(self, x: &[u8; LANES]) -> [Self::V; 4];
    /// Table look-up `table[codes[i]]`; codes are 0 to 7.
    fn lookup(self, table: Self::V, codes: [u8; LANES]) -> Self::V;
    /// Loads each value twice: `[x0, x0, x1, x1, x2, x2, x3, x3]`.
    fn load_twice(self, x: &[f32; LANES / 2]) -> Self::V;

    /// Computes `a / b`.
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    /// Computes `if a < b { a } else { b }`: a NaN in `a` is dropped, a NaN in `b` is kept.
    fn min(self, a: Self::V, b: Self::V) -> Self::V;
    /// Permutes to `[v1, v0, v3, v2, v5, v4, v7, v6]`.
    fn swap_pairs(self, v: Self::V) -> Self::V;
    /// Permutes to `[v2, v3, v0, v1, v6, v7, v4, v5]`.
    fn swap_twos(self, v: Self::V) -> Self::V;
    /// Permutes to `[v4, v5, v6, v7, v0, v1, v2, v3]`.
    fn swap_fours(self, v: Self::V) -> Self::V;

    /// Sums the lanes by the fixed tree: `s_j = v_j + v_{j+4}`, `t_j = s_j + s_{j+2}`, `t_0 + t_1`.
    fn sum(self, v: Self::V) -> f32;
    /// Maximum over lanes, by the same tree of [`max`](Vectors::max).
    fn max_lane(self, v: Self::V) -> f32;

    /// Prefetches `x` into the cache; a hint only.
    fn prefetch<T>(self, x: &[T]);

    /// As [`prefetch`](Self::prefetch), into the second-level cache only where there is a choice.
    #[inline(always)]
    fn prefetch_far<T>(self, x: &[T]) {
        self.prefetch(x);
    }

    /// Loads at most eight values, padded with zeros.
    #[inline(always)]
    fn load_partial(self, x: &[f32]) -> Self::V {
        let mut full = [0.0; LANES];
        full[..x.len()].copy_from_slice(x);
        self.load(&full)
    }

    /// Loads at most eight f16 values, padded with zeros.
    #[inline(always)]
    fn load_partial_f16(self, x: &[f16]) -> Self::V {
        let mut full = [f16::ZERO; LANES];
        full[..x.len()].copy_from_slice(x);
        self.load_f16(&full)
    }

    /// Loads at most eight bf16 values, padded with zeros.
    #[inline(always)]
    fn load_partial_bf16(self, x: &[bf16]) -> Self::V {
        let mut full = [bf16::ZERO; LANES];
        full[..x.len()].copy_from_slice(x);
        self.load_bf16(&full)
    }

    /// Stores the first `to.len()` lanes, at most eight.
    #[inline(always)]
    fn store_partial(self, v: Self::V, to: &mut [f32]) {
        let mut full = [0.0; LANES];
        self.store(v, &mut full);
        to.copy_from_slice(&full[..to.len()]);
    }

    /// Stores the first `to.len()` lanes, at most eight, rounded as by
    /// [`store_f16`](Self::store_f16).
    #[inline(always)]
    fn store_partial_f16(self, v: Self::V, to: &mut [f16]) {
        let mut full = [f16::ZERO; LANES];
        self.store_f16(v, &mut full);
        to.copy_from_slice(&full[..to.len()]);
    }
}

/// Lanes of an instruction set, with wide vectors of two independent groups of eight.
///
/// A wide vector ([`wide`](Self::wide)) is one register if the instruction set has one that wide.
/// Groups never mix, so a kernel gives the same bits for two outputs one after the other and for a
/// wide vector of both.
pub(crate) trait WideLanes: Lanes + Apart {
    /// Wide vector.
    type W: Copy;
    /// Token of the wide operations.
    type Wide: Groups<Self, V = Self::W>;
    /// Number of wide vectors that fit in the registers; determines register tile sizes.
    const WIDE_REGISTERS: usize;

    /// Token of the wide operations.
    fn wide(self) -> Self::Wide;
}

/// Wide vectors as groups of the lanes `L`.
pub(crate) trait Groups<L: Lanes>: Vectors<16, Floats = [[f32; LANES]; 2]> {
    /// Concatenates `low` and `high`.
    fn join(self, low: L::V, high: L::V) -> Self::V;
    /// Splits into the two groups.
    fn halves_of(self, w: Self::V) -> [L::V; 2];
    /// Duplicates `v` to both groups.
    fn both(self, v: L::V) -> Self::V;
    /// Loads bits 0 and 1 of each byte of `x` as 0 to 3 beside bits 2 and 3; then bits 4 and 5
    /// beside 6 and 7.
    fn load_two_bits(self, x: &[u8; LANES]) -> [Self::V; 2];
}

/// Wide vectors of an instruction set without a register for both groups.
#[derive(Clone, Copy)]
pub(crate) struct Pairs<L>(pub(crate) L);

/// Methods of [`Pairs`] that apply an operation to each group.
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

/// Halves of sixteen values.
#[inline(always)]
pub(crate) fn eights<T>(x: &[T; WIDE]) -> (&[T; LANES], &[T; LANES]) {
    let (halves, _) = x.as_chunks::<LANES>();
    (&halves[0], &halves[1])
}

/// Implements methods of a token by one expression of register-only intrinsics each.
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

/// Wraps an expression of register-only intrinsics in a method of a token.
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
