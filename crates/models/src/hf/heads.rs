//! Heads of layers with a state: their sizes, and their order in files.

use gguf_rs_lite::TensorType;

/// Sizes of layers with a state; without heads for a convolution alone.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct RecurrentSizes {
    pub(super) key_heads: usize,
    pub(super) value_heads: usize,
    pub(super) key_dim: usize,
    pub(super) value_dim: usize,
    pub(super) taps: usize,
    /// GGUF has the heads of one key side by side too.
    pub(super) is_in_order: bool,
    /// The outputs of heads are normed.
    pub(super) has_norm: bool,
}

impl RecurrentSizes {
    /// Width of all queries, or all keys.
    pub(super) fn keys(&self) -> usize {
        self.key_heads * self.key_dim
    }

    /// Width of all values.
    pub(super) fn values(&self) -> usize {
        self.value_heads * self.value_dim
    }

    /// Order of the heads of values in a tensor with `before` rows before theirs, and `rows` rows
    /// of each.
    pub(super) fn order(&self, before: usize, rows: usize) -> HeadOrder {
        let key_heads = if self.is_in_order { 1 } else { self.key_heads.max(1) };
        HeadOrder { key_heads, per_key: (self.value_heads / key_heads).max(1), before, rows }
    }
}

/// Order of the heads of values. Folders have the heads of one key side by side; in GGUF files the
/// first head of each key comes before the second of any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct HeadOrder {
    key_heads: usize,
    per_key: usize,
    before: usize,
    rows: usize,
}

impl HeadOrder {
    /// True if both orders are one.
    pub(super) fn is_same(self) -> bool {
        self.key_heads == 1 || self.per_key == 1
    }

    /// Rows of a folder, of `row_bytes` bytes, in the order of a GGUF file.
    pub(super) fn of_rows(self, bytes: &[u8], row_bytes: usize) -> Vec<u8> {
        let (kept, heads) = bytes.split_at((self.before * row_bytes).min(bytes.len()));
        let head_bytes = (self.rows * row_bytes).max(1);
        let mut out = kept.to_vec();
        for part in 0..self.per_key {
            for head in heads.chunks(head_bytes).skip(part).step_by(self.per_key) {
                out.extend_from_slice(head);
            }
        }
        out
    }

    /// The same for columns, in each row of `row_bytes` bytes; heads begin and end with blocks.
    pub(super) fn of_columns(self, bytes: &[u8], row_bytes: usize) -> Vec<u8> {
        let head_bytes = row_bytes / (self.key_heads * self.per_key).max(1);
        let heads = Self { rows: 1, ..self };
        bytes.chunks(row_bytes.max(1)).flat_map(|row| heads.of_rows(row, head_bytes)).collect()
    }

    /// True if the columns of a head are whole blocks of a type.
    pub(super) fn fits(self, tensor_type: TensorType) -> bool {
        tensor_type.row_bytes(self.rows as u64).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_of_one_key_come_apart() {
        let sizes = RecurrentSizes { key_heads: 2, value_heads: 6, ..RecurrentSizes::default() };
        let rows: Vec<u8> = (0..14).collect();
        let order = sizes.order(2, 2);
        assert_eq!(order.of_rows(&rows, 1), [0, 1, 2, 3, 8, 9, 4, 5, 10, 11, 6, 7, 12, 13]);
        let order = sizes.order(0, 1);
        assert_eq!(order.of_columns(&rows[..12], 6), [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11]);
        assert!(!order.is_same() && order.fits(TensorType::F16) && !order.fits(TensorType::Q8_0));
        assert!(RecurrentSizes::default().order(0, 1).is_same());
        let order = RecurrentSizes { is_in_order: true, ..sizes }.order(2, 2);
        assert!(order.is_same() && order.of_rows(&rows, 1) == rows);
    }
}
