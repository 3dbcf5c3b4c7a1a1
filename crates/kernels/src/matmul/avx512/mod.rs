//! Integer-dot leaves for AVX-512 with VNNI.
//!
//! As for AVX2, the token [`Avx512Lanes`] proves the features, and `unsafe` remains only around raw
//! loads and stores.

mod expand;
mod group;
mod one_token;
mod pair;
mod rows;
mod tile;
mod vector;

use bytemuck::Zeroable;

use super::integer::{MAX_ROWS_TOKENS, RowSums, RowsLeaf, SlotSums, Stripe, TileLeaf};
use super::panel::{PANEL_ROWS, PanelStep};
use crate::lanes::Avx512Lanes;
use crate::matmul::activations::{Q8Token, TileStep};
use crate::quant::QuantBlock;
use group::WideGroup;

/// Bias added to signed weights, because `vpdpbusd` takes unsigned ones: flips the sign bit.
const SIGN_BIAS: u8 = 128;

/// Panels, then tiles, per register tile.
const PANELS: usize = 2;
const TILES: usize = 3;

impl<B: WideGroup> TileLeaf<B> for Avx512Lanes {
    const PANELS: usize = PANELS;
    const TILES: usize = TILES;

    #[inline(always)]
    fn expand(self, blocks: &[B], n: usize, panel: &mut [PanelStep]) {
        // SAFETY: a value of `Avx512Lanes` exists only where the features are present.
        unsafe { expand::expand(blocks, n, panel) }
    }

    #[inline(always)]
    fn tile<const T: usize>(self, panel: &[PanelStep], tile: &[TileStep], out: &mut [[f32; PANEL_ROWS]; T]) {
        let stripe = Stripe { panels: panel, tiles: tile, n: panel.len(), tokens: T };
        TileLeaf::<B>::stripe(self, &stripe, &mut SlotSums::zeroed(), out);
    }

    #[inline(always)]
    fn stripe(self, stripe: &Stripe<'_>, slots: &mut SlotSums, out: &mut [[f32; PANEL_ROWS]]) {
        match stripe.tiles.len() / stripe.n {
            1 => stripe_sums::<B, 1>(self, stripe, slots, out),
            2 => stripe_sums::<B, 2>(self, stripe, slots, out),
            _ => stripe_sums::<B, TILES>(self, stripe, slots, out),
        }
    }
}

impl<B: WideGroup> RowsLeaf<B> for Avx512Lanes {
    const TOKENS: usize = MAX_ROWS_TOKENS;
    const SUMS: usize = PANEL_ROWS / 2;

    #[inline(always)]
    fn rows(self, blocks: &[B], x: &[Q8Token<'_>], sums: &mut [RowSums], out: &mut [[f32; PANEL_ROWS]]) {
        // SAFETY: a value of `Avx512Lanes` exists only where the features are present.
        unsafe { rows::rows(self, blocks, x, sums, out) }
    }
}

/// Implements [`TileLeaf::stripe`]; a panel without a partner is computed twice.
#[inline(always)]
fn stripe_sums<B: QuantBlock, const G: usize>(
    _: Avx512Lanes,
    stripe: &Stripe<'_>,
    slots: &mut SlotSums,
    out: &mut [[f32; PANEL_ROWS]],
) {
    let (first, second) = stripe.panels.split_at(stripe.n);
    let panels = [first, if second.is_empty() { first } else { second }];
    let tiles = std::array::from_fn(|g| &stripe.tiles[g * stripe.n..(g + 1) * stripe.n]);
    // SAFETY: a value of `Avx512Lanes` exists only where the features are present.
    unsafe { tile::tile::<B, PANELS, G>(panels, tiles, stripe.tokens, slots, out) };
}
