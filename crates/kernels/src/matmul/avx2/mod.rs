//! Integer-dot leaves for AVX2, FMA and F16C.
//!
//! The token [`Avx2Lanes`] proves the features, so its trait methods are safe and call
//! `#[target_feature]` functions, in which `unsafe` remains only around raw loads and stores.

mod expand;
mod grids;
mod iq1;
mod iq2;
mod iq3;
mod iq4_xs;
mod nibbles;
mod pairs;
mod pieces;
mod plain;
mod q2_k;
mod q3_k;
mod q4_k;
mod q5_k;
mod q6_k;
mod q8_0;
pub(super) mod rows;
mod ternary;
mod tile;
pub(crate) mod vector;

use super::integer::{MAX_ROWS_TOKENS, RowSums, RowsLeaf, TileLeaf};
use super::panel::{PANEL_ROWS, PanelStep};
use crate::lanes::Avx2Lanes;
use crate::matmul::activations::{Q8Token, TileStep};
use crate::quant::QuantBlock;

impl<B: QuantBlock> TileLeaf<B> for Avx2Lanes {
    #[inline(always)]
    fn expand(self, blocks: &[B], n: usize, panel: &mut [PanelStep]) {
        // SAFETY: a value of `Avx2Lanes` exists only where the features are present.
        unsafe { expand::expand(blocks, n, panel) }
    }

    #[inline(always)]
    fn tile<const T: usize>(self, panel: &[PanelStep], tile: &[TileStep], out: &mut [[f32; PANEL_ROWS]; T]) {
        // SAFETY: a value of `Avx2Lanes` exists only where the features are present.
        unsafe { tile::tile::<B, T>(panel, tile, out) }
    }
}

impl<B: rows::Group> RowsLeaf<B> for Avx2Lanes {
    const TOKENS: usize = MAX_ROWS_TOKENS;
    const SUMS: usize = PANEL_ROWS / 2;

    #[inline(always)]
    fn rows(self, blocks: &[B], x: &[Q8Token<'_>], sums: &mut [RowSums], out: &mut [[f32; PANEL_ROWS]]) {
        // SAFETY: a value of `Avx2Lanes` exists only where the features are present.
        unsafe { rows::rows(self, blocks, x, sums, out) }
    }
}
