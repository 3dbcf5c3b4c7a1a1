//! Asymmetric distances (ADC): a query in full precision against encoded vectors.

use crate::vector::distance::COLUMNS;

/// Rows summed in parallel, to overlap the latency of their additions.
const ROWS: usize = 4;

/// Distances of one query's parts to all centroids.
///
/// Computed by [`ProductQuantizer::table`](super::ProductQuantizer::table).
#[derive(Debug, Clone)]
pub struct AdcTable {
    /// Distances, `[subspaces, COLUMNS]`; NaN for missing centroids.
    pub(super) values: Vec<[f32; COLUMNS]>,
}

impl AdcTable {
    /// Computes the distance of the query to one encoded vector.
    ///
    /// # Panics
    /// If the code is not one byte per subspace.
    pub fn distance(&self, code: &[u8]) -> f32 {
        let mut out = 0.0;
        self.distances(code, std::slice::from_mut(&mut out));
        out
    }

    /// Computes the distances of the query to encoded vectors.
    ///
    /// # Shapes
    /// `codes`: `[out.len(), subspaces]`.
    ///
    /// # Numerics
    /// Subspaces are added in ascending order. An invalid code gives NaN.
    ///
    /// # Panics
    /// If the lengths do not match.
    pub fn distances(&self, codes: &[u8], out: &mut [f32]) {
        let parts = self.values.len();
        assert_eq!(Some(codes.len()), parts.checked_mul(out.len()), "distances: length of the codes");
        let (blocks, rest) = out.as_chunks_mut::<ROWS>();
        let (block_codes, rest_codes) = codes.split_at(blocks.len() * ROWS * parts);
        for (codes, out) in block_codes.chunks_exact(ROWS * parts).zip(blocks) {
            *out = self.sums(codes);
        }
        for (codes, out) in rest_codes.chunks_exact(parts).zip(rest) {
            [*out] = self.sums(codes);
        }
    }

    /// Sums of `N` rows.
    fn sums<const N: usize>(&self, codes: &[u8]) -> [f32; N] {
        let parts = self.values.len();
        let rows: [&[u8]; N] = std::array::from_fn(|row| &codes[row * parts..][..parts]);
        let mut sums = [0.0; N];
        for (part, values) in self.values.iter().enumerate() {
            for (sum, row) in sums.iter_mut().zip(rows) {
                *sum += values[usize::from(row[part])];
            }
        }
        sums
    }
}
