//! The factors of one site in memory, and the second half of their product.

use std::fmt;
use std::ops::Range;

use ruvllm_kernels::Kernels;
use ruvllm_kernels::quant::{PackedMatrix, SharedBytes};
use ruvllm_kernels::rows::MatrixView;

/// LoRA update of the products of one input: `B (A x)` for each of them, with the scale in `B`.
///
/// The first half is one product with [`shrink`](Self::shrink) for all targets, the second an
/// [`expand`](Self::expand) of its result for each target.
pub struct LowRank {
    shrink: PackedMatrix, // [rank, inputs]
    /// Memory of the factors of all sites.
    memory: SharedBytes,
    expansions: Vec<Expansion>,
}

/// `B` of one update and target.
#[derive(Debug)]
pub(crate) struct Expansion {
    /// The product of the site.
    pub(crate) target: usize,
    /// Range of columns of the site's `A x` that this update reads.
    pub(crate) weights: Range<usize>,
    /// Values in a row of the product.
    pub(crate) outputs: usize,
    /// Byte range of `B` transposed, times its scale: `[rank, outputs]`, in native-endian f32.
    pub(crate) rows: Range<usize>,
}

impl LowRank {
    pub(crate) fn new(shrink: PackedMatrix, memory: SharedBytes, expansions: Vec<Expansion>) -> Self {
        Self { shrink, memory, expansions }
    }

    /// `A` of all updates of the site, one below the other: `[rank, inputs]`.
    pub fn shrink(&self) -> &PackedMatrix {
        &self.shrink
    }

    /// Rows of [`shrink`](Self::shrink): the sum of the ranks.
    pub fn rank(&self) -> usize {
        self.shrink.rows()
    }

    pub(crate) fn expansions(&self) -> &[Expansion] {
        &self.expansions
    }

    /// `B` of an update, transposed and scaled: `[rank, outputs]`.
    pub(crate) fn rows(&self, expansion: &Expansion) -> &[f32] {
        bytemuck::cast_slice(&self.memory.as_ref()[expansion.rows.clone()])
    }

    /// Values in a row of the product `target` of its site; `None` if that is not changed.
    pub fn outputs(&self, target: usize) -> Option<usize> {
        let expansion = self.expansions.iter().find(|expansion| expansion.target == target)?;
        Some(expansion.outputs)
    }

    /// Adds `B` times `shrunk`, `[rows, rank]`, to the same rows of the product `target`, or of its
    /// values from `column` on: `out` is `[rows, columns]`.
    ///
    /// # Numerics
    /// As [`Kernels::add_product`]: what a value gets depends on nothing but its row.
    ///
    /// # Panics
    /// If the lengths are not those of the site.
    pub fn expand(&self, kernels: &Kernels, target: usize, shrunk: &[f32], column: usize, out: &mut [f32]) {
        let rank = self.rank();
        let n_rows = shrunk.len() / rank;
        let n_columns = out.len() / n_rows.max(1);
        for expansion in self.expansions.iter().filter(|expansion| expansion.target == target) {
            let Expansion { weights, outputs, .. } = expansion;
            let weights = MatrixView::new(&shrunk[weights.start..], n_rows, weights.len(), rank);
            let rows = &self.rows(expansion)[column..];
            let rows = MatrixView::new(rows, weights.cols(), n_columns, *outputs);
            kernels.add_product(out, weights, rows);
        }
    }
}

impl fmt::Debug for LowRank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LowRank")
            .field("rank", &self.rank())
            .field("inputs", &self.shrink.cols())
            .finish_non_exhaustive()
    }
}
