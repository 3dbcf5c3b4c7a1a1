//! Eight f32 lanes: the vocabulary in which every f32 kernel of this crate is written, once.
//!
//! A kernel is a generic `#[inline(always)]` function over [`Lanes`]. `kernels.rs` instantiates it for each instruction
//! set inside a function that enables the CPU features, so the operations below become single instructions. All
//! implementations round alike and associate alike, so one kernel gives the same bits everywhere. (Which NaN comes out
//! of an operation on NaNs is the one thing that may differ: a NaN stays a NaN, its payload is not promised.)
//!
//! It is not a general SIMD library: only what the kernels use is here.

mod scalar;

#[cfg(target_arch = "x86_64")]
mod avx2;

use half::{bf16, f16};

#[cfg(target_arch = "x86_64")]
pub(crate) use avx2::Avx2Lanes;
pub(crate) use scalar::ScalarLanes;

/// Number of f32 lanes in which every reduction is carried, on every instruction set.
pub(crate) const LANES: usize = 8;

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

#[cfg(test)]
mod tests;
