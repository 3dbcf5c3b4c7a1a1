//! Eight lanes in portable Rust: the shipped reference of all other instruction sets.
//!
//! Fused multiply-add rounds once on every target ([`Fused`]; a library call without a hardware
//! instruction, so this path is for correctness, not speed). Half-precision conversion uses the
//! software functions of `half`, not its run-time detection. Methods of more than a few
//! instructions are not inlined: kernels unroll their loops for registers that this path does not
//! have, and would be several times as large.

use half::{bf16, f16};

use super::{Fused, LANES, Lanes, Pairs, Vectors, WIDE, WideLanes};

/// Token of the portable path; always available.
#[derive(Clone, Copy)]
pub(crate) struct ScalarLanes;

impl ScalarLanes {
    /// Creates the token; unsafe only for uniformity over instruction sets.
    ///
    /// # Safety
    /// None.
    #[inline(always)]
    pub(crate) unsafe fn assume_available() -> Self {
        Self
    }
}

#[inline(always)]
fn zip(a: [f32; LANES], b: [f32; LANES], f: impl Fn(f32, f32) -> f32) -> [f32; LANES] {
    std::array::from_fn(|i| f(a[i], b[i]))
}

/// Fixed reduction tree over eight lanes.
#[inline(always)]
fn tree(v: [f32; LANES], f: impl Fn(f32, f32) -> f32) -> f32 {
    let s: [f32; 4] = std::array::from_fn(|j| f(v[j], v[j + 4]));
    f(f(s[0], s[2]), f(s[1], s[3]))
}

impl Vectors<LANES> for ScalarLanes {
    type V = [f32; LANES];
    type Floats = [f32; LANES];

    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        [x; LANES]
    }

    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> Self::V {
        *x
    }

    #[inline(always)]
    fn store(self, v: Self::V, to: &mut [f32; LANES]) {
        *to = v;
    }

    #[inline(never)]
    fn load_f16(self, x: &[f16; LANES]) -> Self::V {
        x.map(f16::to_f32_const)
    }

    #[inline(always)]
    fn load_bf16(self, x: &[bf16; LANES]) -> Self::V {
        x.map(|x| f32::from_bits(u32::from(x.to_bits()) << 16))
    }

    #[inline(always)]
    fn load_i8(self, x: &[i8; LANES]) -> Self::V {
        x.map(f32::from)
    }

    #[inline(always)]
    fn load_nibbles(self, x: &[u8; LANES]) -> [Self::V; 2] {
        [x.map(|x| f32::from(x & 15)), x.map(|x| f32::from(x >> 4))]
    }

    #[inline(always)]
    fn add(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a + b)
    }

    #[inline(always)]
    fn sub(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a - b)
    }

    #[inline(always)]
    fn mul(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a * b)
    }

    #[inline(never)]
    fn fma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        std::array::from_fn(|i| a[i].fma(b[i], c[i]))
    }

    #[inline(never)]
    fn fnma(self, a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        std::array::from_fn(|i| (-a[i]).fma(b[i], c[i]))
    }

    #[inline(always)]
    fn max(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    fn abs(self, v: Self::V) -> Self::V {
        v.map(f32::abs)
    }

    #[inline(always)]
    fn select_lt(self, a: Self::V, b: Self::V, x: Self::V, y: Self::V) -> Self::V {
        std::array::from_fn(|i| if a[i] < b[i] { x[i] } else { y[i] })
    }

    #[inline(never)]
    fn round(self, v: Self::V) -> Self::V {
        v.map(f32::round_ties_even)
    }

    #[inline(never)]
    fn pow2(self, n: Self::V) -> Self::V {
        n.map(|n| f32::from_bits(((n as i32).wrapping_add(127) as u32) << 23))
    }

    #[inline(never)]
    fn sums(self, v: [Self::V; LANES]) -> Self::V {
        v.map(|v| self.sum(v))
    }
}

impl Lanes for ScalarLanes {
    #[inline(never)]
    fn store_f16(self, v: Self::V, to: &mut [f16; LANES]) {
        *to = v.map(f16::from_f32_const);
    }

    #[inline(never)]
    fn store_bf16(self, v: Self::V, to: &mut [bf16; LANES]) {
        *to = v.map(bf16::from_f32_const);
    }

    #[inline(always)]
    fn load_two_bits(self, x: &[u8; LANES]) -> [Self::V; 4] {
        [0, 2, 4, 6].map(|shift| x.map(|x| f32::from(x >> shift & 3)))
    }

    #[inline(always)]
    fn lookup(self, table: Self::V, codes: [u8; LANES]) -> Self::V {
        codes.map(|code| table[usize::from(code % LANES as u8)])
    }

    #[inline(always)]
    fn load_twice(self, x: &[f32; LANES / 2]) -> Self::V {
        std::array::from_fn(|i| x[i / 2])
    }

    #[inline(never)]
    fn div(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| a / b)
    }

    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        zip(a, b, |a, b| if a < b { a } else { b })
    }

    #[inline(always)]
    fn swap_pairs(self, v: Self::V) -> Self::V {
        std::array::from_fn(|i| v[i ^ 1])
    }

    #[inline(always)]
    fn swap_twos(self, v: Self::V) -> Self::V {
        std::array::from_fn(|i| v[i ^ 2])
    }

    #[inline(always)]
    fn swap_fours(self, v: Self::V) -> Self::V {
        std::array::from_fn(|i| v[i ^ 4])
    }

    #[inline(never)]
    fn sum(self, v: Self::V) -> f32 {
        tree(v, |a, b| a + b)
    }

    #[inline(never)]
    fn max_lane(self, v: Self::V) -> f32 {
        tree(v, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    fn prefetch<T>(self, _: &[T]) {}
}

impl WideLanes for ScalarLanes {
    type Wide = Pairs<Self>;
    type W = <Pairs<Self> as Vectors<WIDE>>::V;
    // Selects the small register tiles.
    const WIDE_REGISTERS: usize = 8;

    #[inline(always)]
    fn wide(self) -> Self::Wide {
        Pairs(self)
    }
}
