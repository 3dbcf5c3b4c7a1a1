//! Rotary position embedding (RoPE): frequencies, cosine/sine tables, in-place application.
//!
//! [`RopeConfig`] gives the frequency of each pair of dimensions, [`RopeTable`] holds the cosines
//! and sines of a range of positions, [`Kernels::rope`] applies them to rows of queries and keys.
//!
//! # Example
//! ```
//! use ruvllm_kernels::Kernels;
//! use ruvllm_kernels::rope::{RopeConfig, RopeLayout, RopeTable};
//!
//! let table = RopeTable::new(&RopeConfig::new(10_000.0, 4), 64)?;
//! let mut heads = [1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0]; // positions 0 and 1, one head of 4 values
//! Kernels::detect()?.rope(&table, RopeLayout::Halves, 0..2, &mut heads, 1, 4);
//! assert_eq!(heads[..4], [1.0, 0.0, 1.0, 0.0], "position 0 stays as it is");
//! # Ok::<(), ruvllm_kernels::Error>(())
//! ```
//!
//! # Source
//! Su et al., "RoFormer", arXiv 2104.09864; sources of the scalings are at [`RopeScaling`].

mod config;
mod table;

use std::ops::Range;

pub use config::{RopeConfig, RopeFrequencies, RopeScaling, yarn_attention_factor};
pub use table::RopeTable;

use crate::Kernels;
use crate::lanes::{LANES, Lanes};

/// Pairs per vector of the interleaved layout.
const PAIRS: usize = LANES / 2;

/// Pairing of the dimensions of a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RopeLayout {
    /// Dimension `j` with `j + rotary_dim / 2` (GPT-NeoX, Hugging Face weights).
    Halves,
    /// Dimension `2 j` with `2 j + 1` (GGUF files of the llama architecture).
    Interleaved,
}

/// Arguments of the kernel, checked by [`Kernels::rope`].
pub(crate) struct RopeJob<'a> {
    table: &'a RopeTable,
    layout: RopeLayout,
    positions: Range<usize>,
    n_heads: usize,
    head_dim: usize,
}

impl Kernels {
    /// Applies RoPE to the heads of consecutive positions, in place.
    ///
    /// Dimensions from the table's `rotary_dim` on are unchanged.
    ///
    /// # Shapes
    /// `x`: `[positions.len(), n_heads, head_dim]`.
    ///
    /// # Numerics
    /// `a' = a cos - b sin`, `b' = b cos + a sin`, each with one fused multiply-add; bit-identical
    /// in both layouts and on all instruction sets.
    ///
    /// # Panics
    /// If `x` has the wrong length, the table lacks a position, or `rotary_dim` exceeds `head_dim`.
    #[allow(clippy::too_many_arguments)] // two objects and four dimensions
    pub fn rope(
        &self,
        table: &RopeTable,
        layout: RopeLayout,
        positions: Range<usize>,
        x: &mut [f32],
        n_heads: usize,
        head_dim: usize,
    ) {
        let heads = positions.len().checked_mul(n_heads);
        let values = heads.and_then(|heads| heads.checked_mul(head_dim));
        assert_eq!(Some(x.len()), values, "rope: length of the rows");
        if x.is_empty() {
            return;
        }
        assert!(table.rotary_dim() <= head_dim, "rope: the rotary dimension exceeds the head");
        let known = table.positions();
        assert!(
            known.start <= positions.start && positions.end <= known.end,
            "rope: positions {positions:?}, but the table holds {known:?}"
        );
        // SAFETY: `self` exists only where the slot's instruction set is present.
        unsafe { (self.slots.rope)(&RopeJob { table, layout, positions, n_heads, head_dim }, x) }
    }
}

#[inline(always)]
pub(crate) fn rope<L: Lanes>(l: L, job: &RopeJob<'_>, x: &mut [f32]) {
    for (position, row) in job.positions.clone().zip(x.chunks_exact_mut(job.n_heads * job.head_dim)) {
        let (cos, sin) = job.table.at(position);
        for head in row.chunks_exact_mut(job.head_dim) {
            let rotary = &mut head[..2 * cos.len()];
            match job.layout {
                RopeLayout::Halves => rotate_halves(l, rotary, cos, sin),
                RopeLayout::Interleaved => rotate_pairs(l, rotary, cos, sin),
            }
        }
    }
}

#[inline(always)]
fn rotate_halves<L: Lanes>(l: L, x: &mut [f32], cos: &[f32], sin: &[f32]) {
    let (a, b) = x.split_at_mut(cos.len());
    let (a_chunks, a_tail) = a.as_chunks_mut::<LANES>();
    let (b_chunks, b_tail) = b.as_chunks_mut::<LANES>();
    let (cos_chunks, cos_tail) = cos.as_chunks::<LANES>();
    let (sin_chunks, sin_tail) = sin.as_chunks::<LANES>();
    for (((a, b), cos), sin) in a_chunks.iter_mut().zip(b_chunks).zip(cos_chunks).zip(sin_chunks) {
        let (va, vb, cos, sin) = (l.load(a), l.load(b), l.load(cos), l.load(sin));
        l.store(l.fnma(vb, sin, l.mul(va, cos)), a);
        l.store(l.fma(va, sin, l.mul(vb, cos)), b);
    }
    if !a_tail.is_empty() {
        let (va, vb) = (l.load_partial(a_tail), l.load_partial(b_tail));
        let (cos, sin) = (l.load_partial(cos_tail), l.load_partial(sin_tail));
        l.store_partial(l.fnma(vb, sin, l.mul(va, cos)), a_tail);
        l.store_partial(l.fma(va, sin, l.mul(vb, cos)), b_tail);
    }
}

/// Rotates four pairs at a time: each value times its cosine, plus its partner times the sine with
/// the partner's sign.
#[inline(always)]
fn rotate_pairs<L: Lanes>(l: L, x: &mut [f32], cos: &[f32], sin: &[f32]) {
    let signs = l.load(&[-1.0, 1.0, -1.0, 1.0, -1.0, 1.0, -1.0, 1.0]);
    let (x_chunks, x_tail) = x.as_chunks_mut::<LANES>();
    let (cos_chunks, cos_tail) = cos.as_chunks::<PAIRS>();
    let (sin_chunks, sin_tail) = sin.as_chunks::<PAIRS>();
    for ((x, cos), sin) in x_chunks.iter_mut().zip(cos_chunks).zip(sin_chunks) {
        let v = l.load(x);
        let sin = l.mul(l.load_twice(sin), signs);
        l.store(l.fma(l.swap_pairs(v), sin, l.mul(v, l.load_twice(cos))), x);
    }
    if !x_tail.is_empty() {
        let (mut cos, mut sin) = ([0.0; PAIRS], [0.0; PAIRS]);
        cos[..cos_tail.len()].copy_from_slice(cos_tail);
        sin[..sin_tail.len()].copy_from_slice(sin_tail);
        let v = l.load_partial(x_tail);
        let sin = l.mul(l.load_twice(&sin), signs);
        l.store_partial(l.fma(l.swap_pairs(v), sin, l.mul(v, l.load_twice(&cos))), x_tail);
    }
}
