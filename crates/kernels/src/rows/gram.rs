//! Gram matrix of rows, accumulated over calls.

use std::ops::Range;

use crate::Kernels;
use crate::lanes::{LANES, Lanes};

/// Rows per pass over the matrix; they stay in the L1 cache during the pass.
const ROWS: usize = 32;

impl Kernels {
    /// Adds the Gram matrix of heads: `gram += Σ h hᵀ` over all heads `h` of `dim` values.
    ///
    /// The heads are in `columns` of each row. Only the diagonal and the part above it are valid;
    /// values below it may be overwritten.
    ///
    /// # Shapes
    /// `rows`: `[n, width]`; `gram`: `[dim, dim]`.
    ///
    /// # Numerics
    /// One chain of fused multiply-adds per element, in the order of rows and heads: bit-identical
    /// for any split of the rows into calls and on any instruction set. Error at most `γ_n Σ|h_i
    /// h_j|`, `n` the number of heads.
    ///
    /// # Panics
    /// If `width` does not divide `rows`, `dim` is not a multiple of 8 or does not divide
    /// `columns`, the columns exceed a row, or the matrix has another size.
    ///
    /// # Examples
    /// ```
    /// let kernels = ruvllm_kernels::Kernels::detect()?;
    /// let mut gram = [0.0; 8 * 8];
    /// // Two rows of two heads; the second heads.
    /// let rows: Vec<f32> = (0..2 * 16).map(|i| i as f32).collect();
    /// kernels.add_gram(&rows, 16, 8..16, 8, &mut gram);
    /// assert_eq!(gram[1], 8.0 * 9.0 + 24.0 * 25.0);
    /// # Ok::<(), ruvllm_kernels::Error>(())
    /// ```
    pub fn add_gram(&self, rows: &[f32], width: usize, columns: Range<usize>, dim: usize, gram: &mut [f32]) {
        assert!(
            width > 0 && rows.len().is_multiple_of(width),
            "add_gram: {} values in rows of {width}",
            rows.len()
        );
        assert!(
            dim > 0 && dim.is_multiple_of(LANES),
            "add_gram: heads of {dim} values, not a multiple of {LANES}"
        );
        assert!(
            columns.start <= columns.end && columns.end <= width && columns.len().is_multiple_of(dim),
            "add_gram: heads of {dim} values in columns {columns:?} of {width}"
        );
        assert_eq!(Some(gram.len()), dim.checked_mul(dim), "add_gram: size of the matrix");
        // SAFETY: `self` exists only where the slot's instruction set is present.
        unsafe { (self.slots.add_gram)(rows, width, columns, dim, gram) }
    }
}

/// Computes tiles of 8 x 8 elements, one register per row of the tile.
#[inline(always)]
pub(crate) fn add_gram<L: Lanes>(
    l: L,
    rows: &[f32],
    width: usize,
    columns: Range<usize>,
    dim: usize,
    gram: &mut [f32],
) {
    let gram = gram.as_chunks_mut::<LANES>().0;
    let eights = dim / LANES;
    for rows in rows.chunks(ROWS * width) {
        for i in 0..eights {
            for j in i..eights {
                let place = |k: usize| (LANES * i + k) * eights + j;
                let mut tile = [l.zero(); LANES];
                for k in 0..LANES {
                    tile[k] = l.load(&gram[place(k)]);
                }
                for row in rows.chunks_exact(width) {
                    for head in row[columns.clone()].chunks_exact(dim) {
                        let head = head.as_chunks::<LANES>().0;
                        let y = l.load(&head[j]);
                        for k in 0..LANES {
                            tile[k] = l.fma(l.splat(head[i][k]), y, tile[k]);
                        }
                    }
                }
                for k in 0..LANES {
                    l.store(tile[k], &mut gram[place(k)]);
                }
            }
        }
    }
}
