//! Tensors of folders whose rows are those of several tensors in GGUF.

use std::ops::Range;

use gguf_rs_lite::TensorInfo;

use super::family::Shape;
use super::origin::{Origin, Slice, Tensor};
use super::shards::Stored;
use super::sizes::Sizes;
use crate::error::Result;
use crate::interleaved;

/// Rows of a stored matrix that make a tensor.
pub(super) struct RowPart {
    name: String,
    /// One behind the other.
    rows: Vec<Range<usize>>,
}

impl RowPart {
    /// The tensor; `stored` has all of the rows.
    pub(super) fn tensor(self, stored: &Stored) -> Result<Tensor> {
        let tensor_type = stored.supported_type()?;
        let (columns, stored_rows) = (stored.dims[0], stored.dims[1] as usize);
        let row_bytes = stored.byte_len() / stored_rows.max(1);
        let n_rows: usize = self.rows.iter().map(ExactSizeIterator::len).sum();
        let slice = |rows: &Range<usize>| Slice {
            stored: stored.clone(),
            bytes: rows.start * row_bytes..rows.end * row_bytes,
        };
        let info = TensorInfo::new(self.name, [columns, n_rows as u64], tensor_type)?;
        Ok(Tensor { info, origin: Origin::Stacked(self.rows.iter().map(slice).collect()) })
    }
}

/// The tensors that have the rows of a matrix of dimensions `dims`, columns first; empty if one has
/// all. `name` is that of the first.
pub(super) fn of(shape: Shape, name: &str, dims: &[u64], sizes: &Sizes) -> Vec<RowPart> {
    let (second, [first_rows, second_rows]) = match shape {
        Shape::GateAndUp | Shape::SharedGateAndUp => {
            let (half, all) = (dims[1] as usize / 2, dims[1] as usize);
            (name.replace("ffn_gate", "ffn_up"), [vec![0..half], vec![half..all]])
        }
        Shape::InterleavedInput => {
            let state = &sizes.recurrent;
            let (heads, key) = (state.key_heads, state.key_dim);
            let value = state.values() / heads.max(1);
            let [queries, keys, values, gates] = interleaved::parts(heads, [key, key, value, value]);
            (name.replace("attn_qkv", "attn_gate"), [[queries, keys, values].concat(), gates])
        }
        _ => return Vec::new(),
    };
    vec![RowPart { name: name.to_owned(), rows: first_rows }, RowPart { name: second, rows: second_rows }]
}
