//! Asymmetric distances: a query in full precision against vectors that are codes.

use crate::vector::distance::COLUMNS;

/// Rows that are summed side by side, so that one row's additions do not wait for each other.
const ROWS: usize = 4;

/// The distances of one query's parts from all centroids, made by
/// [`ProductQuantizer::table`](super::ProductQuantizer::table).
#[derive(Debug, Clone)]
pub struct AdcTable {
    /// `[subspaces, COLUMNS]`; NaN where there is no centroid.
    pub(super) values: Vec<[f32; COLUMNS]>,
}

impl AdcTable {
    /// The distance of the query from one coded vector.
    ///
    /// # Panics
    /// If the code is not one byte per part.
    pub fn distance(&self, code: &[u8]) -> f32 {
        let mut out = 0.0;
        self.distances(code, std::slice::from_mut(&mut out));
        out
    }

    /// The distances of the query from coded vectors.
    ///
    /// # Shapes
    /// `codes`: `[out.len(), subspaces]`.
    ///
    /// # Numerics
    /// The parts are added in ascending order. A code without a centroid gives NaN.
    ///
    /// # Panics
    /// If the lengths do not fit each other.
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

    /// The sums of `N` rows.
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
