//! Eight lanes as two `float32x4_t`: NEON, with or without integer dot product instructions.
//!
//! Every method is one to four instructions when inlined into a function that enables the features;
//! it is therefore `#[inline(always)]` and only called from such functions (see `kernels.rs`).

use std::arch::aarch64::*;
use std::arch::asm;

use half::{bf16, f16};

use super::{Apart, CACHE_LINE, LANES, Lanes, Pairs, Vectors, WIDE, WideLanes, by_intrinsics, with_features};

/// Level of [`NeonLanes`]: NEON only.
pub(crate) const PLAIN: u8 = 0;
/// Level of [`NeonLanes`]: also int8 dot products (`sdot`).
pub(crate) const DOTPROD: u8 = 1;
/// Level of [`NeonLanes`]: also int8 matrix products of 2 x 8 by 8 x 2 (`smmla`).
pub(crate) const I8MM: u8 = 2;

/// Proof that the CPU has NEON and the instructions of `LEVEL` and of the lower levels.
#[derive(Clone, Copy)]
pub(crate) struct NeonLanes<const LEVEL: u8>(());

impl<const LEVEL: u8> NeonLanes<LEVEL> {
    /// Asserts the presence of the features.
    ///
    /// # Safety
    /// The CPU must have the features of the type.
    #[inline(always)]
    pub(crate) unsafe fn assume_available() -> Self {
        Self(())
    }
}

/// Lanes 0 to 3 and 4 to 7.
type Pair = [float32x4_t; 2];

/// Computes `if a > b { a } else { b }`; `fmax` would propagate every NaN.
#[target_feature(enable = "neon")]
#[inline]
fn larger(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    vbslq_f32(vcgtq_f32(a, b), a, b)
}

impl<const LEVEL: u8> Vectors<LANES> for NeonLanes<LEVEL> {
    type V = Pair;
    type Floats = [f32; LANES];

    by_intrinsics! {
        add(a, b) = [vaddq_f32(a[0], b[0]), vaddq_f32(a[1], b[1])];
        sub(a, b) = [vsubq_f32(a[0], b[0]), vsubq_f32(a[1], b[1])];
        mul(a, b) = [vmulq_f32(a[0], b[0]), vmulq_f32(a[1], b[1])];
        fma(a, b, c) = [vfmaq_f32(c[0], a[0], b[0]), vfmaq_f32(c[1], a[1], b[1])];
        fnma(a, b, c) = [vfmsq_f32(c[0], a[0], b[0]), vfmsq_f32(c[1], a[1], b[1])];
        max(a, b) = [larger(a[0], b[0]), larger(a[1], b[1])];
        abs(v) = [vabsq_f32(v[0]), vabsq_f32(v[1])];
        select_lt(a, b, x, y) = [
            vbslq_f32(vcltq_f32(a[0], b[0]), x[0], y[0]),
            vbslq_f32(vcltq_f32(a[1], b[1]), x[1], y[1])
        ];
        round(v) = [vrndnq_f32(v[0]), vrndnq_f32(v[1])];
        pow2(n) = [power_of_two(n[0]), power_of_two(n[1])];
    }

    #[inline(always)]
    fn splat(self, x: f32) -> Self::V {
        with_features!([vdupq_n_f32(x); 2])
    }

    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> Self::V {
        // SAFETY: `x` is 32 readable bytes; the load needs no more alignment than an f32 has;
        // features by `self`.
        unsafe { [vld1q_f32(x.as_ptr()), vld1q_f32(x.as_ptr().add(LANES / 2))] }
    }

    #[inline(always)]
    fn store(self, v: Self::V, to: &mut [f32; LANES]) {
        // SAFETY: `to` is 32 writable bytes; the store needs no more alignment than an f32 has;
        // features by `self`.
        unsafe {
            vst1q_f32(to.as_mut_ptr(), v[0]);
            vst1q_f32(to.as_mut_ptr().add(LANES / 2), v[1]);
        }
    }

    #[inline(always)]
    fn load_f16(self, x: &[f16; LANES]) -> Self::V {
        // SAFETY: `x` is 16 readable bytes; the load needs no more alignment than a u16 has;
        // features by `self`.
        unsafe {
            let halves = vreinterpretq_f16_u16(vld1q_u16(x.as_ptr().cast()));
            [vcvt_f32_f16(vget_low_f16(halves)), vcvt_high_f32_f16(halves)]
        }
    }

    #[inline(always)]
    fn load_bf16(self, x: &[bf16; LANES]) -> Self::V {
        // SAFETY: `x` is 16 readable bytes; the load needs no more alignment than a u16 has;
        // features by `self`.
        unsafe {
            let upper = vld1q_u16(x.as_ptr().cast());
            let low = vshll_n_u16::<16>(vget_low_u16(upper));
            [vreinterpretq_f32_u32(low), vreinterpretq_f32_u32(vshll_high_n_u16::<16>(upper))]
        }
    }

    #[inline(always)]
    fn load_i8(self, x: &[i8; LANES]) -> Self::V {
        // SAFETY: `x` is 8 readable bytes; features by `self`.
        unsafe {
            let wide = vmovl_s8(vld1_s8(x.as_ptr()));
            [vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide))), vcvtq_f32_s32(vmovl_high_s16(wide))]
        }
    }

    #[inline(always)]
    fn load_nibbles(self, x: &[u8; LANES]) -> [Self::V; 2] {
        // SAFETY: `x` is 8 readable bytes; features by `self`.
        unsafe {
            let bytes = vld1_u8(x.as_ptr());
            [widen_bytes(vand_u8(bytes, vdup_n_u8(15))), widen_bytes(vshr_n_u8::<4>(bytes))]
        }
    }

    /// Eight reductions at once: each step merges two vectors and halves the number of values per
    /// sum.
    #[inline(always)]
    fn sums(self, v: [Self::V; LANES]) -> Self::V {
        with_features!({
            let s = v.map(|v| vaddq_f32(v[0], v[1]));
            let [a, b] = [quarters(s[0], s[1]), quarters(s[2], s[3])];
            let [c, d] = [quarters(s[4], s[5]), quarters(s[6], s[7])];
            [vpaddq_f32(a, b), vpaddq_f32(c, d)]
        })
    }
}

impl<const LEVEL: u8> Lanes for NeonLanes<LEVEL> {
    by_intrinsics! {
        div(a, b) = [vdivq_f32(a[0], b[0]), vdivq_f32(a[1], b[1])];
        swap_pairs(v) = [vrev64q_f32(v[0]), vrev64q_f32(v[1])];
        swap_twos(v) = [vextq_f32::<2>(v[0], v[0]), vextq_f32::<2>(v[1], v[1])];
    }

    #[inline(always)]
    fn store_f16(self, v: Self::V, to: &mut [f16; LANES]) {
        let halves: uint16x8_t;
        // SAFETY: the instructions use only their three registers, and are part of NEON.
        unsafe {
            // The compiler would eliminate the intrinsics after a widening, and with them the step
            // that quiets a NaN.
            asm!(
                "fcvtn {halves:v}.4h, {low:v}.4s",
                "fcvtn2 {halves:v}.8h, {high:v}.4s",
                halves = out(vreg) halves,
                low = in(vreg) v[0],
                high = in(vreg) v[1],
                options(pure, nomem, nostack)
            );
        }
        // SAFETY: `to` is 16 writable bytes; the store needs no more alignment than a u16 has;
        // features by `self`.
        unsafe { vst1q_u16(to.as_mut_ptr().cast(), halves) }
    }

    #[inline(always)]
    fn store_bf16(self, v: Self::V, to: &mut [bf16; LANES]) {
        // SAFETY: `to` is 16 writable bytes; the store needs no more alignment than a u16 has;
        // features by `self`.
        unsafe {
            let low = vshrn_n_u32::<16>(rounded_to_bf16(v[0]));
            let both = vshrn_high_n_u32::<16>(low, rounded_to_bf16(v[1]));
            vst1q_u16(to.as_mut_ptr().cast(), both);
        }
    }

    #[inline(always)]
    fn load_two_bits(self, x: &[u8; LANES]) -> [Self::V; 4] {
        // SAFETY: `x` is 8 readable bytes; features by `self`.
        unsafe {
            let (bytes, low) = (vld1_u8(x.as_ptr()), vdup_n_u8(3));
            [
                widen_bytes(vand_u8(bytes, low)),
                widen_bytes(vand_u8(vshr_n_u8::<2>(bytes), low)),
                widen_bytes(vand_u8(vshr_n_u8::<4>(bytes), low)),
                widen_bytes(vshr_n_u8::<6>(bytes)),
            ]
        }
    }

    #[inline(always)]
    fn lookup(self, table: Self::V, codes: [u8; LANES]) -> Self::V {
        // SAFETY: register-only intrinsics; features by `self`.
        unsafe {
            let table = uint8x16x2_t(vreinterpretq_u8_f32(table[0]), vreinterpretq_u8_f32(table[1]));
            // Byte indices of an f32: four times its code, plus 0 to 3.
            let codes = vmovl_u8(vcreate_u8(u64::from_le_bytes(codes)));
            let bytes = [vmovl_u16(vget_low_u16(codes)), vmovl_u16(vget_high_u16(codes))]
                .map(|codes| vaddq_u32(vmulq_n_u32(codes, 0x0404_0404), vdupq_n_u32(0x0302_0100)));
            bytes.map(|bytes| vreinterpretq_f32_u8(vqtbl2q_u8(table, vreinterpretq_u8_u32(bytes))))
        }
    }

    #[inline(always)]
    fn load_twice(self, x: &[f32; LANES / 2]) -> Self::V {
        // SAFETY: `x` is 16 readable bytes; the load needs no more alignment than an f32 has;
        // features by `self`.
        unsafe {
            let four = vld1q_f32(x.as_ptr());
            [vzip1q_f32(four, four), vzip2q_f32(four, four)]
        }
    }

    #[inline(always)]
    fn min(self, a: Self::V, b: Self::V) -> Self::V {
        self.select_lt(a, b, a, b)
    }

    #[inline(always)]
    fn swap_fours(self, v: Self::V) -> Self::V {
        [v[1], v[0]]
    }

    #[inline(always)]
    fn sum(self, v: Self::V) -> f32 {
        with_features!({
            let s = vaddq_f32(v[0], v[1]);
            vpadds_f32(vadd_f32(vget_low_f32(s), vget_high_f32(s)))
        })
    }

    #[inline(always)]
    fn max_lane(self, v: Self::V) -> f32 {
        with_features!({
            let s = larger(v[0], v[1]);
            let t = larger(s, vextq_f32::<2>(s, s));
            vgetq_lane_f32::<0>(larger(t, vrev64q_f32(t)))
        })
    }

    #[inline(always)]
    fn prefetch<T>(self, x: &[T]) {
        let start: *const u8 = x.as_ptr().cast();
        for offset in (0..size_of_val(x)).step_by(CACHE_LINE) {
            // SAFETY: the address lies within `x`; a prefetch is no read in the language's sense.
            unsafe {
                asm!("prfm pldl1keep, [{0}]", in(reg) start.add(offset), options(readonly, nostack, preserves_flags));
            }
        }
    }
}

/// Converts eight bytes to f32.
#[target_feature(enable = "neon")]
#[inline]
fn widen_bytes(bytes: uint8x8_t) -> Pair {
    let wide = vmovl_u8(bytes);
    [vcvtq_f32_u32(vmovl_u16(vget_low_u16(wide))), vcvtq_f32_u32(vmovl_high_u16(wide))]
}

/// Bits of f32 values rounded to bf16 in their upper halves: to nearest, ties to even; NaNs made
/// quiet.
#[target_feature(enable = "neon")]
#[inline]
fn rounded_to_bf16(v: float32x4_t) -> uint32x4_t {
    let bits = vreinterpretq_u32_f32(v);
    let odd = vandq_u32(vshrq_n_u32::<16>(bits), vdupq_n_u32(1));
    let rounded = vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), odd);
    let quiet = vorrq_u32(bits, vdupq_n_u32(0x0040_0000));
    vbslq_u32(vceqq_f32(v, v), rounded, quiet)
}

/// Computes `2^n` in the exponent bits.
#[target_feature(enable = "neon")]
#[inline]
fn power_of_two(n: float32x4_t) -> float32x4_t {
    vreinterpretq_f32_s32(vshlq_n_s32::<23>(vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127))))
}

/// Second step of the reduction tree for two vectors: `t_0, t_1` of `a`, then of `b`.
#[target_feature(enable = "neon")]
#[inline]
fn quarters(a: float32x4_t, b: float32x4_t) -> float32x4_t {
    let (a, b) = (vreinterpretq_f64_f32(a), vreinterpretq_f64_f32(b));
    let (low, high) = (vzip1q_f64(a, b), vzip2q_f64(a, b));
    vaddq_f32(vreinterpretq_f32_f64(low), vreinterpretq_f32_f64(high))
}

impl<const LEVEL: u8> WideLanes for NeonLanes<LEVEL>
where
    Self: Apart,
{
    type Wide = Pairs<Self>;
    type W = <Pairs<Self> as Vectors<WIDE>>::V;
    const WIDE_REGISTERS: usize = 8;

    #[inline(always)]
    fn wide(self) -> Self::Wide {
        Pairs(self)
    }
}
