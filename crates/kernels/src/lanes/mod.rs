//! Eight f32 lanes: the vocabulary in which every f32 kernel of this crate is written, once.
//!
//! A kernel is a generic `#[inline(always)]` function over [`Lanes`]. `kernels.rs` instantiates it for each instruction
//! set inside a function that enables the CPU features, so the operations below become single instructions. All
//! implementations round alike and associate alike, so one kernel gives the same bits everywhere. (Which NaN comes out
//! of an operation on NaNs is the one thing that may differ: a NaN stays a NaN, its payload is not promised.)
//!
//! It is not a general SIMD library: only what the kernels use is here.

pub(crate) mod math;
mod scalar;

#[cfg(target_arch = "aarch64")]
pub(crate) mod neon;
#[cfg(target_arch = "x86_64")]
mod x86;

use half::{bf16, f16};

#[cfg(target_arch = "aarch64")]
pub(crate) use neon::NeonLanes;
pub(crate) use scalar::ScalarLanes;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{Avx2Lanes, Avx512Lanes, X86Lanes};

/// Number of f32 lanes in which every reduction is carried, on every instruction set.
pub(crate) const LANES: usize = 8;

/// Bytes that one prefetch brings.
pub(crate) const CACHE_LINE: usize = 64;

/// What [`WideLanes::apart`] does.
pub(crate) trait Work<L> {
    /// Does it; `#[inline(always)]`, as all kernels.
    fn run(self, l: L);
}

/// Eight f32 lanes of one instruction set.
///
/// The implementor is a zero-sized token. A value of it exists only where the CPU features are known to be present, so
/// all methods are safe. Kernels take the token as their first argument: `fn dot<L: Lanes>(l: L, ..)`.
pub(crate) trait Lanes: Copy + Send + Sync {
    /// The eight values.
    type V: Copy;

    /// Eight times `x`.
    fn splat(self, x: f32) -> Self::V;
    /// The values of `x`, in order.
    fn load(self, x: &[f32; LANES]) -> Self::V;
    /// Writes the lanes to `to`, in order.
    fn store(self, v: Self::V, to: &mut [f32; LANES]);
    /// The values of `x`, widened exactly.
    fn load_f16(self, x: &[f16; LANES]) -> Self::V;
    /// Rounds to nearest, ties to even; overflow becomes infinity; a NaN stays a (quiet) NaN.
    fn store_f16(self, v: Self::V, to: &mut [f16; LANES]);
    /// The values of `x`, widened exactly.
    fn load_bf16(self, x: &[bf16; LANES]) -> Self::V;
    /// Rounds to nearest, ties to even; overflow becomes infinity; a NaN stays a (quiet) NaN.
    fn store_bf16(self, v: Self::V, to: &mut [bf16; LANES]);
    /// The values of `x`, as numbers.
    fn load_i8(self, x: &[i8; LANES]) -> Self::V;
    /// The low four bits of each byte of `x` as numbers from 0 to 15, then the high four bits.
    fn load_nibbles(self, x: &[u8; LANES]) -> [Self::V; 2];
    /// Bits 0 and 1 of each byte of `x` as numbers from 0 to 3, then bits 2 and 3, 4 and 5, 6 and 7.
    fn load_two_bits(self, x: &[u8; LANES]) -> [Self::V; 4];
    /// `table[codes[i]]`; codes are 0 to 7.
    fn lookup(self, table: Self::V, codes: [u8; LANES]) -> Self::V;
    /// `[x0, x0, x1, x1, x2, x2, x3, x3]`.
    fn load_twice(self, x: &[f32; LANES / 2]) -> Self::V;

    /// `a + b`.
    fn add(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a - b`.
    fn sub(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b`.
    fn mul(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a / b`.
    fn div(self, a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`, rounded once.
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// `c - a * b`, rounded once.
    fn fnma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// `if a > b { a } else { b }`: a NaN in `a` is dropped, a NaN in `b` is kept.
    fn max(self, a: Self::V, b: Self::V) -> Self::V;
    /// `if a < b { a } else { b }`: a NaN in `a` is dropped, a NaN in `b` is kept.
    fn min(self, a: Self::V, b: Self::V) -> Self::V;
    /// The magnitude: the sign bit cleared.
    fn abs(self, v: Self::V) -> Self::V;
    /// `if a < b { x } else { y }`; `y` where `a` or `b` is NaN.
    fn select_lt(self, a: Self::V, b: Self::V, x: Self::V, y: Self::V) -> Self::V;
    /// The nearest integer, ties to even.
    fn round(self, v: Self::V) -> Self::V;
    /// `2^n` for an integral `n` in `-126..=127`; unspecified (but no panic) outside.
    fn pow2(self, n: Self::V) -> Self::V;
    /// `[v1, v0, v3, v2, v5, v4, v7, v6]`.
    fn swap_pairs(self, v: Self::V) -> Self::V;
    /// `[v2, v3, v0, v1, v6, v7, v4, v5]`.
    fn swap_twos(self, v: Self::V) -> Self::V;
    /// `[v4, v5, v6, v7, v0, v1, v2, v3]`.
    fn swap_fours(self, v: Self::V) -> Self::V;

    /// The sum of the lanes by the fixed tree: `s_j = v_j + v_{j+4}`, `t_j = s_j + s_{j+2}`, `t_0 + t_1`.
    fn sum(self, v: Self::V) -> f32;
    /// The largest lane, by the same tree of [`max`](Self::max).
    fn max_lane(self, v: Self::V) -> f32;
    /// Lane `i` of the result is `sum(v[i])`.
    fn sums(self, v: [Self::V; LANES]) -> Self::V;

    /// Asks for `x` to be brought into the cache; a hint without any other effect.
    fn prefetch<T>(self, x: &[T]);

    /// Eight zeros.
    #[inline(always)]
    fn zero(self) -> Self::V {
        self.splat(0.0)
    }

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

    /// Writes the first `to.len()` lanes, at most eight, rounded as [`store_f16`](Self::store_f16) does.
    #[inline(always)]
    fn store_partial_f16(self, v: Self::V, to: &mut [f16]) {
        let mut full = [f16::ZERO; LANES];
        self.store_f16(v, &mut full);
        to.copy_from_slice(&full[..to.len()]);
    }
}

/// Two independent groups of eight lanes, handled together: one register where the instruction set has one that wide.
///
/// The halves never mix, so a kernel gives the same bits whether it works on two outputs one after the other or on a
/// wide vector of both.
pub(crate) trait WideLanes: Lanes {
    /// The two groups.
    type W: Copy;

    /// Does `work` in a function of its own. A kernel that has one body per format would otherwise be one function with all of
    /// them, too large for its values to get registers.
    #[inline(never)]
    fn apart(self, work: impl Work<Self>) {
        work.run(self);
    }

    /// How many wide vectors the registers hold: what register tiles are sized by.
    const WIDE_REGISTERS: usize;

    /// `low` and `high` side by side.
    fn join(self, low: Self::V, high: Self::V) -> Self::W;
    /// The two groups apart.
    fn halves_of(self, w: Self::W) -> [Self::V; 2];
    /// The values of `x`, in order.
    fn wide_load(self, x: &[[f32; LANES]; 2]) -> Self::W;
    /// The values of `x`, widened exactly.
    fn wide_load_f16(self, x: &[f16; 2 * LANES]) -> Self::W;
    /// The values of `x`, widened exactly.
    fn wide_load_bf16(self, x: &[bf16; 2 * LANES]) -> Self::W;
    /// The values of `x`, as numbers.
    fn wide_load_i8(self, x: &[i8; 2 * LANES]) -> Self::W;
    /// The low four bits of each byte of `x` as numbers from 0 to 15, then the high four bits.
    fn wide_load_nibbles(self, x: &[u8; 2 * LANES]) -> [Self::W; 2];
    /// Bits 0 and 1 of each byte of `x` as numbers from 0 to 3 beside bits 2 and 3; then bits 4 and 5 beside 6 and 7.
    fn wide_load_two_bits(self, x: &[u8; LANES]) -> [Self::W; 2];
    /// Writes the values to `to`, in order.
    fn wide_store(self, w: Self::W, to: &mut [[f32; LANES]; 2]);
    /// `v` twice.
    fn wide_both(self, v: Self::V) -> Self::W;
    /// Sixteen times `x`.
    fn wide_splat(self, x: f32) -> Self::W;
    /// `a + b`.
    fn wide_add(self, a: Self::W, b: Self::W) -> Self::W;
    /// `a - b`.
    fn wide_sub(self, a: Self::W, b: Self::W) -> Self::W;
    /// The magnitude: the sign bit cleared.
    fn wide_abs(self, w: Self::W) -> Self::W;
    /// `a * b`.
    fn wide_mul(self, a: Self::W, b: Self::W) -> Self::W;
    /// `a * b + c`, rounded once.
    fn wide_fma(self, a: Self::W, b: Self::W, c: Self::W) -> Self::W;
    /// Lane `i` of each group of the result is the [`sum`](Lanes::sum) of that group of `w[i]`.
    fn wide_sums(self, w: [Self::W; LANES]) -> Self::W;
    /// `c - a * b`, rounded once.
    fn wide_fnma(self, a: Self::W, b: Self::W, c: Self::W) -> Self::W;
    /// `if a > b { a } else { b }`, as [`max`](Lanes::max).
    fn wide_max(self, a: Self::W, b: Self::W) -> Self::W;
    /// `if a < b { x } else { y }`, as [`select_lt`](Lanes::select_lt).
    fn wide_select_lt(self, a: Self::W, b: Self::W, x: Self::W, y: Self::W) -> Self::W;
    /// The nearest integer, ties to even.
    fn wide_round(self, v: Self::W) -> Self::W;
    /// `2^n`, as [`pow2`](Lanes::pow2).
    fn wide_pow2(self, n: Self::W) -> Self::W;
}

/// The two groups of an instruction set that has no register for both.
pub(crate) type Wide<V> = [V; 2];

/// The methods of [`WideLanes`] where a wide vector is a [`Wide`] pair.
macro_rules! pair_of_lanes {
    () => {
        #[inline(always)]
        fn join(self, low: Self::V, high: Self::V) -> Self::W {
            [low, high]
        }

        #[inline(always)]
        fn halves_of(self, w: Self::W) -> [Self::V; 2] {
            w
        }

        #[inline(always)]
        fn wide_load(self, x: &[[f32; LANES]; 2]) -> Self::W {
            [self.load(&x[0]), self.load(&x[1])]
        }

        #[inline(always)]
        fn wide_load_f16(self, x: &[f16; 2 * LANES]) -> Self::W {
            let (low, high) = $crate::lanes::eights(x);
            [self.load_f16(low), self.load_f16(high)]
        }

        #[inline(always)]
        fn wide_load_bf16(self, x: &[bf16; 2 * LANES]) -> Self::W {
            let (low, high) = $crate::lanes::eights(x);
            [self.load_bf16(low), self.load_bf16(high)]
        }

        #[inline(always)]
        fn wide_load_i8(self, x: &[i8; 2 * LANES]) -> Self::W {
            let (low, high) = $crate::lanes::eights(x);
            [self.load_i8(low), self.load_i8(high)]
        }

        #[inline(always)]
        fn wide_load_nibbles(self, x: &[u8; 2 * LANES]) -> [Self::W; 2] {
            let (low, high) = $crate::lanes::eights(x);
            let (low, high) = (self.load_nibbles(low), self.load_nibbles(high));
            [[low[0], high[0]], [low[1], high[1]]]
        }

        #[inline(always)]
        fn wide_load_two_bits(self, x: &[u8; LANES]) -> [Self::W; 2] {
            let [a, b, c, d] = self.load_two_bits(x);
            [[a, b], [c, d]]
        }

        #[inline(always)]
        fn wide_store(self, w: Self::W, to: &mut [[f32; LANES]; 2]) {
            self.store(w[0], &mut to[0]);
            self.store(w[1], &mut to[1]);
        }

        #[inline(always)]
        fn wide_both(self, v: Self::V) -> Self::W {
            [v, v]
        }

        #[inline(always)]
        fn wide_splat(self, x: f32) -> Self::W {
            [self.splat(x), self.splat(x)]
        }

        #[inline(always)]
        fn wide_add(self, a: Self::W, b: Self::W) -> Self::W {
            [self.add(a[0], b[0]), self.add(a[1], b[1])]
        }

        #[inline(always)]
        fn wide_sub(self, a: Self::W, b: Self::W) -> Self::W {
            [self.sub(a[0], b[0]), self.sub(a[1], b[1])]
        }

        #[inline(always)]
        fn wide_abs(self, w: Self::W) -> Self::W {
            [self.abs(w[0]), self.abs(w[1])]
        }

        #[inline(always)]
        fn wide_mul(self, a: Self::W, b: Self::W) -> Self::W {
            [self.mul(a[0], b[0]), self.mul(a[1], b[1])]
        }

        #[inline(always)]
        fn wide_fma(self, a: Self::W, b: Self::W, c: Self::W) -> Self::W {
            [self.fma(a[0], b[0], c[0]), self.fma(a[1], b[1], c[1])]
        }

        #[inline(always)]
        fn wide_sums(self, w: [Self::W; LANES]) -> Self::W {
            [self.sums(w.map(|w| w[0])), self.sums(w.map(|w| w[1]))]
        }

        #[inline(always)]
        fn wide_fnma(self, a: Self::W, b: Self::W, c: Self::W) -> Self::W {
            [self.fnma(a[0], b[0], c[0]), self.fnma(a[1], b[1], c[1])]
        }

        #[inline(always)]
        fn wide_max(self, a: Self::W, b: Self::W) -> Self::W {
            [self.max(a[0], b[0]), self.max(a[1], b[1])]
        }

        #[inline(always)]
        fn wide_select_lt(self, a: Self::W, b: Self::W, x: Self::W, y: Self::W) -> Self::W {
            [self.select_lt(a[0], b[0], x[0], y[0]), self.select_lt(a[1], b[1], x[1], y[1])]
        }

        #[inline(always)]
        fn wide_round(self, v: Self::W) -> Self::W {
            [self.round(v[0]), self.round(v[1])]
        }

        #[inline(always)]
        fn wide_pow2(self, n: Self::W) -> Self::W {
            [self.pow2(n[0]), self.pow2(n[1])]
        }
    };
}
pub(crate) use pair_of_lanes;

/// The halves of sixteen values.
#[inline(always)]
pub(crate) fn eights<T>(x: &[T; 2 * LANES]) -> (&[T; LANES], &[T; LANES]) {
    let (halves, _) = x.as_chunks::<LANES>();
    (&halves[0], &halves[1])
}

/// What an elementary function needs of its vectors, whatever their width: [`Lanes`] are eight values, [`Sixteen`] two
/// groups of eight.
pub(crate) trait Vectors: Copy {
    /// The values.
    type Vector: Copy;

    /// `x` everywhere.
    fn each(self, x: f32) -> Self::Vector;
    /// `a * b`.
    fn times(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// `a * b + c`, rounded once.
    fn times_plus(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector;
    /// `c - a * b`, rounded once.
    fn minus_times(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector;
    /// `if a < b { x } else { y }`.
    fn if_less(self, a: Self::Vector, b: Self::Vector, x: Self::Vector, y: Self::Vector) -> Self::Vector;
    /// The nearest integer, ties to even.
    fn nearest(self, v: Self::Vector) -> Self::Vector;
    /// `2^n`, as [`Lanes::pow2`].
    fn two_to(self, n: Self::Vector) -> Self::Vector;
}

/// [`WideLanes`] as [`Vectors`].
#[derive(Clone, Copy)]
pub(crate) struct Sixteen<L>(pub(crate) L);

/// [`Vectors`] by the methods of the lanes behind a token.
macro_rules! vectors_of {
    ($lanes:ident, $vector:ident, $self:ident => $l:expr, $splat:ident, $mul:ident, $fma:ident, $fnma:ident, $select:ident,
     $round:ident, $pow2:ident) => {
        type Vector = L::$vector;

        #[inline(always)]
        fn each($self, x: f32) -> Self::Vector {
            $lanes::$splat($l, x)
        }

        #[inline(always)]
        fn times($self, a: Self::Vector, b: Self::Vector) -> Self::Vector {
            $lanes::$mul($l, a, b)
        }

        #[inline(always)]
        fn times_plus($self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector {
            $lanes::$fma($l, a, b, c)
        }

        #[inline(always)]
        fn minus_times($self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector {
            $lanes::$fnma($l, a, b, c)
        }

        #[inline(always)]
        fn if_less(
            $self,
            a: Self::Vector,
            b: Self::Vector,
            x: Self::Vector,
            y: Self::Vector,
        ) -> Self::Vector {
            $lanes::$select($l, a, b, x, y)
        }

        #[inline(always)]
        fn nearest($self, v: Self::Vector) -> Self::Vector {
            $lanes::$round($l, v)
        }

        #[inline(always)]
        fn two_to($self, n: Self::Vector) -> Self::Vector {
            $lanes::$pow2($l, n)
        }
    };
}

impl<L: Lanes> Vectors for L {
    vectors_of!(Lanes, V, self => self, splat, mul, fma, fnma, select_lt, round, pow2);
}

impl<L: WideLanes> Vectors for Sixteen<L> {
    vectors_of!(WideLanes, W, self => self.0, wide_splat, wide_mul, wide_fma, wide_fnma, wide_select_lt, wide_round, wide_pow2);
}

#[cfg(test)]
mod tests;
