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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Isa;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 60 * ProptestConfig::default().cases / 256, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn every_number_is_its_sum_of_products_however_the_rows_are_cut(
            (eights, heads, first) in (1usize..5, 0usize..4, 0usize..20),
            (rows, cut) in (0usize..80, 0usize..80),
            values in prop::collection::vec(-4f32..4.0, 500),
        ) {
            let dim = eights * LANES;
            let (columns, width) = (first..first + heads * dim, first + heads * dim + 3);
            let x: Vec<f32> = (0..rows * width).map(|i| values[i * 7 % 500]).collect();
            let mut whole = vec![0.5; dim * dim];
            Kernels::for_isa(Isa::Scalar).unwrap().add_gram(&x, width, columns.clone(), dim, &mut whole);
            for kernels in Kernels::available() {
                let mut parts = vec![0.5; dim * dim];
                let (before, behind) = x.split_at(cut.min(rows) * width);
                for x in [before, behind] {
                    kernels.add_gram(x, width, columns.clone(), dim, &mut parts);
                }
                prop_assert!(parts.iter().zip(&whole).all(|(a, b)| a.to_bits() == b.to_bits()), "{}", kernels.isa());
            }
            let heads: Vec<&[f32]> =
                x.chunks_exact(width).flat_map(|row| row[columns.clone()].chunks_exact(dim)).collect();
            for i in 0..dim {
                for j in i..dim {
                    let products = heads.iter().map(|h| f64::from(h[i]) * f64::from(h[j]));
                    let (sum, size) = products.fold((0.5, 0.5), |(sum, size), x| (sum + x, size + x.abs()));
                    let bound = (heads.len() + 1) as f64 * 2f64.powi(-24) * size;
                    prop_assert!((f64::from(whole[i * dim + j]) - sum).abs() <= bound, "{i}, {j}");
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "size of the matrix")]
    fn a_size_that_overflows_is_refused() {
        // Its square overflows to 0 in `usize`.
        let dim = 1 << (usize::BITS / 2);
        Kernels::detect().unwrap().add_gram(&[], 1, 0..0, dim, &mut []);
    }

    #[test]
    #[should_panic(expected = "heads of 16 values in columns 0..24 of 24")]
    fn parts_of_heads_are_refused() {
        Kernels::detect().unwrap().add_gram(&[0.0; 48], 24, 0..24, 16, &mut [0.0; 256]);
    }
}
