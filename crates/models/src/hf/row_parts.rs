//! Tensors of folders whose rows are those of several tensors in GGUF, or have factors there.

use std::ops::Range;

use gguf_rs_lite::{TensorInfo, TensorType};

use super::family::{Part, Shape};
use super::origin::{Origin, Slice, Tensor};
use super::shards::Stored;
use super::sizes::Sizes;
use crate::error::{Error, Result};
use crate::interleaved;
use crate::tensor_names::OUTPUT;

/// Rows of a stored matrix that make a tensor, one behind the other, and their factors.
pub(super) struct RowPart {
    name: String,
    /// Ranges may go beyond the last row.
    rows: Vec<(Range<usize>, f32)>,
}

impl RowPart {
    /// All rows times a factor.
    pub(super) fn scaled(name: &str, factor: f32) -> Self {
        Self { name: name.to_owned(), rows: vec![(0..usize::MAX, factor)] }
    }

    /// The tensor; `stored` has all of the rows.
    pub(super) fn tensor(self, stored: &Stored) -> Result<Tensor> {
        let tensor_type = stored.supported_type()?;
        let is_scaled = self.rows.iter().any(|&(_, factor)| factor != 1.0);
        if is_scaled && ![TensorType::F32, TensorType::F16, TensorType::BF16].contains(&tensor_type) {
            let (found, supported) = (tensor_type.name(), "F32, F16 and BF16 for weights with factors");
            return Err(Error::UnsupportedTensorType {
                name: stored.name.clone(),
                found,
                supported: supported.to_owned(),
            });
        }
        let (columns, stored_rows) = (stored.dims[0], stored.dims[1] as usize);
        let row_bytes = stored.byte_len() / stored_rows.max(1);
        let within = |rows: &Range<usize>| rows.start.min(stored_rows)..rows.end.min(stored_rows);
        let n_rows: usize = self.rows.iter().map(|(rows, _)| within(rows).len()).sum();
        let slice = |(rows, factor): &(Range<usize>, f32)| {
            let rows = within(rows);
            let bytes = rows.start * row_bytes..rows.end * row_bytes;
            Slice { bytes, factor: *factor, ..Slice::whole(stored) }
        };
        let info = TensorInfo::new(self.name, [columns, n_rows as u64], tensor_type)?;
        Ok(Tensor { info, origin: Origin::Stacked(self.rows.iter().map(slice).collect()) })
    }
}

/// The tensors that have the rows of a part of dimensions `dims`, columns first; empty if one has
/// all as they are. `name` is that of the first.
pub(super) fn of(part: &Part, name: &str, dims: &[u64], sizes: &Sizes) -> Vec<RowPart> {
    let n_rows = dims.get(1).map_or(0, |&rows| rows as usize);
    let unscaled = |rows: Vec<Range<usize>>| rows.into_iter().map(|rows| (rows, 1.0)).collect();
    let (second, [first_rows, second_rows]) = match part.shape {
        Shape::GateAndUp | Shape::SharedGateAndUp => {
            let halves = [0..n_rows / 2, n_rows / 2..n_rows];
            (name.replace("ffn_gate", "ffn_up"), halves.map(|rows| Vec::from([rows])))
        }
        Shape::InterleavedInput => {
            let state = &sizes.recurrent;
            let (heads, key) = (state.key_heads, state.key_dim);
            let value = state.values() / heads.max(1);
            let [queries, keys, values, gates] = interleaved::parts(heads, [key, key, value, value]);
            (name.replace("attn_qkv", "attn_gate"), [[queries, keys, values].concat(), gates])
        }
        _ => return of_factors(part, name, sizes),
    };
    vec![
        RowPart { name: name.to_owned(), rows: unscaled(first_rows) },
        RowPart { name: second, rows: unscaled(second_rows) },
    ]
}

/// A tensor with factors, and the matrix of the logits where the embedding makes them with another.
fn of_factors(part: &Part, name: &str, sizes: &Sizes) -> Vec<RowPart> {
    let multipliers = &sizes.multipliers;
    let rows = multipliers.of_rows(part, sizes);
    let is_embedding = part.shape == Shape::Embedding;
    let tied = multipliers.tied_logits.filter(|&logits| is_embedding && logits != multipliers.embedding);
    if tied.is_none() && rows.iter().all(|&(_, factor)| factor == 1.0) {
        return Vec::new();
    }
    let whole = RowPart { name: name.to_owned(), rows };
    let output = tied.map(|factor| RowPart::scaled(OUTPUT, factor));
    std::iter::once(whole).chain(output).collect()
}
