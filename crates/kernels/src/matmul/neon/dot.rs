//! Dot products of signed bytes at the three levels of [`NeonLanes`].
//!
//! | level | instruction | products |
//! |---|---|---|
//! | plain | `smull`, `smlal`, then widening additions of pairs | 8, in 16 bits |
//! | dot products | `sdot` | 4 x 4, in 32 bits |
//! | matrix products | `smmla` | 2 rows x 8 values x 2 tokens, in 32 bits |

use std::arch::aarch64::*;
use std::arch::asm;
use std::ops::Range;

use super::vector::{load, load_signed};
use crate::lanes::NeonLanes;
use crate::lanes::neon::{DOTPROD, I8MM, PLAIN};
use crate::matmul::activations::TileStep;
use crate::matmul::panel::PanelStep;
use crate::quant::QuantBlock;

/// Vectors of four rows in a group of eight.
pub(super) const QUADS: usize = 2;

/// One vector per token and four rows.
pub(crate) type Tile<X, const T: usize> = [[X; QUADS]; T];

/// The values of a panel step in pairs of rows: `[k][v][p]` holds values `8k..8k + 8` of rows `8v +
/// 2p` and `8v + 2p + 1`.
pub(super) type PairedQuants = [[[[u8; 16]; 4]; 2]; 4];

/// Integer dot products of an instruction set, all exact. Default methods use `sdot`.
pub(crate) trait IntegerDot: Copy {
    /// True if panels hold [`PairedQuants`] instead of four rows by four values.
    const PAIRED: bool;

    /// Adds 16 products to `acc`; only the sum of its four lanes has a meaning.
    ///
    /// # Safety
    /// The CPU must have NEON.
    #[target_feature(enable = "neon")]
    #[inline]
    unsafe fn dot(self, acc: int32x4_t, w: int8x16_t, x: int8x16_t) -> int32x4_t {
        sdot(acc, w, x)
    }

    /// The same for any bytes; in `x` of [`dot`](Self::dot), as in quantized activations, none is
    /// -128.
    ///
    /// The CPU must have NEON.
    /// The CPU has NEON.
    #[target_feature(enable = "neon")]
    #[inline]
    unsafe fn dot_of_any(self, acc: int32x4_t, w: int8x16_t, x: int8x16_t) -> int32x4_t {
        sdot(acc, w, x)
    }

    /// Dot products of eight rows, group `v` of the panel, with `T` tokens over some halves of a
    /// sub-block.
    ///
    /// The CPU must have NEON.
    /// The CPU has NEON.
    unsafe fn panel_dot<B: QuantBlock, const T: usize>(
        self,
        w: &PanelStep,
        v: usize,
        x: &TileStep,
        halves: Range<usize>,
    ) -> Tile<int32x4_t, T>;
}

impl IntegerDot for NeonLanes<PLAIN> {
    const PAIRED: bool = false;

    #[target_feature(enable = "neon")]
    #[inline]
    unsafe fn dot(self, acc: int32x4_t, w: int8x16_t, x: int8x16_t) -> int32x4_t {
        // At most 2 * 128 * 127.
        let pairs = vmlal_high_s8(vmull_s8(vget_low_s8(w), vget_low_s8(x)), w, x);
        vpadalq_s16(acc, pairs)
    }

    #[target_feature(enable = "neon")]
    #[inline]
    unsafe fn dot_of_any(self, acc: int32x4_t, w: int8x16_t, x: int8x16_t) -> int32x4_t {
        let low = vpadalq_s16(acc, vmull_s8(vget_low_s8(w), vget_low_s8(x)));
        vpadalq_s16(low, vmull_high_s8(w, x))
    }

    #[target_feature(enable = "neon")]
    #[inline]
    unsafe fn panel_dot<B: QuantBlock, const T: usize>(
        self,
        w: &PanelStep,
        v: usize,
        x: &TileStep,
        halves: Range<usize>,
    ) -> Tile<int32x4_t, T> {
        // Pieces whose products, added in pairs, fit into 16 bits; a half has four.
        let together = const { if B::SUMS < 4 { B::SUMS } else { 4 } };
        let mut isum = [[vdupq_n_s32(0); QUADS]; T];
        for first in (4 * halves.start..4 * halves.end).step_by(together) {
            for t in 0..T {
                let mut products = [[vdupq_n_s16(0); 2]; QUADS];
                for g in first..first + together {
                    let x = vreinterpretq_s8_s32(vdupq_n_s32(i32::from_le_bytes(
                        x.quants[g][t].map(|x| x as u8),
                    )));
                    for (products, w) in products.iter_mut().zip(w.quants[g][v].as_chunks::<16>().0) {
                        let w = load_signed(w);
                        products[0] = vmlal_s8(products[0], vget_low_s8(w), vget_low_s8(x));
                        products[1] = vmlal_high_s8(products[1], w, x);
                    }
                }
                for (isum, products) in isum[t].iter_mut().zip(products) {
                    *isum = vpadalq_s16(*isum, vpaddq_s16(products[0], products[1]));
                }
            }
        }
        isum
    }
}

impl IntegerDot for NeonLanes<DOTPROD> {
    const PAIRED: bool = false;

    #[target_feature(enable = "neon")]
    #[inline]
    unsafe fn panel_dot<B: QuantBlock, const T: usize>(
        self,
        w: &PanelStep,
        v: usize,
        x: &TileStep,
        halves: Range<usize>,
    ) -> Tile<int32x4_t, T> {
        let mut isum = [[vdupq_n_s32(0); QUADS]; T];
        for g in 4 * halves.start..4 * halves.end {
            let x = load_signed(&x.quants[g]);
            for (q, w) in w.quants[g][v].as_chunks::<16>().0.iter().enumerate() {
                let w = load_signed(w);
                for t in 0..T {
                    isum[t][q] = sdot_lane(isum[t][q], w, x, t);
                }
            }
        }
        isum
    }
}

impl IntegerDot for NeonLanes<I8MM> {
    const PAIRED: bool = true;

    #[target_feature(enable = "neon")]
    #[inline]
    unsafe fn panel_dot<B: QuantBlock, const T: usize>(
        self,
        w: &PanelStep,
        v: usize,
        x: &TileStep,
        halves: Range<usize>,
    ) -> Tile<int32x4_t, T> {
        let w: &PairedQuants = bytemuck::cast_ref(&w.quants);
        // [row pair][token pair], each two rows by two tokens.
        let mut products = [[vdupq_n_s32(0); 2]; 2 * QUADS];
        for k in 2 * halves.start..2 * halves.end {
            let [a, b] = [2 * k, 2 * k + 1].map(|g| vreinterpretq_s32_u8(load(&x.quants[g])));
            let x = [vzip1q_s32(a, b), vzip2q_s32(a, b)].map(|x| vreinterpretq_s8_s32(x));
            for (products, w) in products.iter_mut().zip(&w[k][v]) {
                let w = load_signed(w);
                for u in 0..T.div_ceil(2) {
                    products[u] = smmla(products[u], w, x[u]);
                }
            }
        }
        let mut isum = [[vdupq_n_s32(0); QUADS]; T];
        for t in 0..T {
            for q in 0..QUADS {
                let (a, b) = (products[2 * q][t / 2], products[2 * q + 1][t / 2]);
                isum[t][q] = if t % 2 == 0 { vuzp1q_s32(a, b) } else { vuzp2q_s32(a, b) };
            }
        }
        isum
    }
}

/// One instruction of the architecture's `$extension` on vector registers, `$acc` being read and
/// written.
///
/// The assembler learns of the extension here and not by `target_feature`, since a function that
/// enables more features than its caller cannot be inlined into it.
macro_rules! accumulate {
    ($extension:literal, $instruction:literal, $acc:ident, $w:ident, $x:ident) => {{
        let mut acc = $acc;
        // SAFETY: the instruction touches its three registers alone; the CPU has it, since the
        // caller holds the token of its level.
        unsafe {
            asm!(
                concat!(".arch_extension ", $extension),
                $instruction,
                acc = inout(vreg) acc,
                w = in(vreg) $w,
                x = in(vreg) $x,
                options(pure, nomem, nostack, preserves_flags)
            );
        }
        acc
    }};
}

/// Lane `i` of the result: lane `i` of `acc`, and the products of bytes `4i..4i + 4`.
#[target_feature(enable = "neon")]
#[inline]
fn sdot(acc: int32x4_t, w: int8x16_t, x: int8x16_t) -> int32x4_t {
    accumulate!("dotprod", "sdot {acc:v}.4s, {w:v}.16b, {x:v}.16b", acc, w, x)
}

/// The same with bytes `4t..4t + 4` of `x` in all lanes.
#[target_feature(enable = "neon")]
#[inline]
fn sdot_lane(acc: int32x4_t, w: int8x16_t, x: int8x16_t, t: usize) -> int32x4_t {
    // Loops over the tokens are unrolled, which leaves one of these.
    match t {
        0 => accumulate!("dotprod", "sdot {acc:v}.4s, {w:v}.16b, {x:v}.4b[0]", acc, w, x),
        1 => accumulate!("dotprod", "sdot {acc:v}.4s, {w:v}.16b, {x:v}.4b[1]", acc, w, x),
        2 => accumulate!("dotprod", "sdot {acc:v}.4s, {w:v}.16b, {x:v}.4b[2]", acc, w, x),
        _ => accumulate!("dotprod", "sdot {acc:v}.4s, {w:v}.16b, {x:v}.4b[3]", acc, w, x),
    }
}

/// Lane `2i + j` of the result: that of `acc`, and the dot product of the halves `i` of `w` and `j`
/// of `x`.
#[target_feature(enable = "neon")]
#[inline]
fn smmla(acc: int32x4_t, w: int8x16_t, x: int8x16_t) -> int32x4_t {
    accumulate!("i8mm", "smmla {acc:v}.4s, {w:v}.16b, {x:v}.16b", acc, w, x)
}
