//! Integer-dot leaves for AVX2, FMA and F16C.
//!
//! The token [`Avx2Lanes`] proves the features, so its trait methods are safe and hand over to `#[target_feature]`
//! functions, in which `unsafe` is left only around loads and stores of raw memory.

mod rows;
mod tile;
mod vector;

use super::integer::{RowsLeaf, TileLeaf};
use super::panel::{PANEL_ROWS, PanelStep};
use crate::activations::{Q8Token, TileStep};
use crate::format::{Q4_0, Q4K, Q5K, Q6K, Q8_0, QuantBlock};
use crate::lanes::Avx2Lanes;

impl<B: QuantBlock> TileLeaf<B> for Avx2Lanes {
    #[inline(always)]
    fn tile<const T: usize>(self, panel: &[PanelStep], tile: &[TileStep], out: &mut [[f32; PANEL_ROWS]; T]) {
        // SAFETY: a value of `Avx2Lanes` exists only where the features are present.
        unsafe { tile::tile::<B, T>(panel, tile, out) }
    }
}

/// Names the function that multiplies rows of one format as they lie in the file.
macro_rules! rows_leaf {
    ($block:ty, $rows:path) => {
        impl RowsLeaf<$block> for Avx2Lanes {
            #[inline(always)]
            fn rows<const T: usize>(self, blocks: &[$block], x: &[Q8Token<'_>; T], out: &mut [f32]) {
                // SAFETY: a value of `Avx2Lanes` exists only where the features are present.
                unsafe { $rows(blocks, x, out) }
            }
        }
    };
}

rows_leaf!(Q8_0, rows::rows);
rows_leaf!(Q4_0, rows::rows);
rows_leaf!(Q4K, rows::rows);
rows_leaf!(Q5K, rows::rows);
rows_leaf!(Q6K, rows::rows);
