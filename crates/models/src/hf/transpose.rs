//! Transposition of matrices of values of any size: alone, and of some rows of each head.

use gguf_rs_lite::TensorData;

use super::shards::Stored;
use crate::weights::weight_format;

/// Rows and columns of a tile in which a matrix is transposed, so that both sides stay in the
/// cache.
const TILE: usize = 32;

/// Writes every `step`-th column from `first` on of a matrix with `width` columns as a row of
/// `out`, which has `columns` columns.
pub(super) fn transpose<const N: usize>(
    values: &[[u8; N]],
    width: usize,
    (first, step): (usize, usize),
    out: &mut [[u8; N]],
    columns: usize,
) {
    let rows = out.len() / columns.max(1);
    for top in (0..rows).step_by(TILE) {
        for left in (0..columns).step_by(TILE) {
            for row in top..rows.min(top + TILE) {
                for column in left..columns.min(left + TILE) {
                    out[row * columns + column] = values[column * width + row * step + first];
                }
            }
        }
    }
}

/// The first rows of each head as columns.
#[derive(Debug)]
pub(super) struct TransposedHeads {
    pub(super) stored: Stored,
    pub(super) n_heads: usize,
    /// Rows of a head that are transposed.
    pub(super) rows: usize,
}

impl TransposedHeads {
    /// The bytes in GGUF. `data` are those of the stored tensor.
    pub(super) fn bytes(&self, data: &TensorData) -> Option<Vec<u8>> {
        match self.stored.tensor_type.and_then(weight_format)?.block_bytes() {
            2 => Some(self.transposed::<2>(data.as_bytes())),
            4 => Some(self.transposed::<4>(data.as_bytes())),
            _ => None,
        }
    }

    fn transposed<const N: usize>(&self, bytes: &[u8]) -> Vec<u8> {
        let columns = self.stored.dims.first().map_or(0, |&columns| columns as usize);
        let values = bytes.as_chunks::<N>().0;
        let of_head = values.len() / self.n_heads.max(1);
        let len = self.rows * columns;
        let mut out = vec![0; self.n_heads * len * N];
        let heads = values.chunks_exact(of_head.max(1));
        for (head, out) in heads.zip(out.as_chunks_mut::<N>().0.chunks_exact_mut(len.max(1))) {
            transpose(&head[..len], columns, (0, 1), out, self.rows);
        }
        out
    }
}
