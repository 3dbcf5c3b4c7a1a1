//! Integer-dot leaves for NEON, in three levels of int8 dot product instructions ([`dot`]).
//!
//! Quants become signed bytes as they are unpacked, the format's offset subtracted, so that one
//! kind of product serves all formats and nothing has to be corrected afterwards. The token
//! [`NeonLanes`] proves the features of a level; the frames (`rows.rs`, `tile.rs`, `expand.rs`) are
//! generic over it. The instructions of the upper levels have no stable intrinsics yet: each is one
//! line of `asm!` in `dot.rs`.

pub(crate) mod dot;
mod expand;
mod formats;
mod rows;
mod tile;
pub(crate) mod vector;

use std::arch::aarch64::int8x16_t;

use super::integer::{RowSums, RowsLeaf, TileLeaf};
use super::panel::{PANEL_ROWS, PanelStep};
use crate::lanes::NeonLanes;
use crate::matmul::activations::{Q8Token, TileStep};
use dot::IntegerDot;
use formats::Group;

/// The 32 values of a sub-block, without their scale.
type Values = [int8x16_t; 2];

impl<B: Group, const LEVEL: u8> TileLeaf<B> for NeonLanes<LEVEL>
where
    Self: IntegerDot,
{
    #[inline(always)]
    fn expand(self, blocks: &[B], n: usize, panel: &mut [PanelStep]) {
        // SAFETY: a value of `NeonLanes` exists only where NEON is present.
        unsafe { expand::expand(self, blocks, n, panel) }
    }

    #[inline(always)]
    fn tile<const T: usize>(self, panel: &[PanelStep], tile: &[TileStep], out: &mut [[f32; PANEL_ROWS]; T]) {
        // SAFETY: a value of `NeonLanes` exists only where NEON is present.
        unsafe { tile::tile::<Self, B, T>(self, panel, tile, out) }
    }
}

impl<B: Group, const LEVEL: u8> RowsLeaf<B> for NeonLanes<LEVEL>
where
    Self: IntegerDot,
{
    #[inline(always)]
    fn rows(self, blocks: &[B], x: &[Q8Token<'_>], _: &mut [RowSums], out: &mut [[f32; PANEL_ROWS]]) {
        // SAFETY: a value of `NeonLanes` exists only where NEON is present.
        unsafe {
            match x {
                [_] => rows::rows::<Self, B, 1, true>(self, blocks, x, out),
                [_, _] => rows::rows::<Self, B, 2, true>(self, blocks, x, out),
                _ => rows::rows::<Self, B, 8, false>(self, blocks, x, out),
            }
        }
    }
}
