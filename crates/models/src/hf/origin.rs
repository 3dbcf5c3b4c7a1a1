//! Tensors of a folder and the origin of their values.

use std::ops::Range;

use gguf_rs_lite::TensorInfo;

use super::expert_rows::ExpertRows;
use super::heads::HeadOrder;
use super::shards::Stored;
use super::transpose::TransposedHeads;

/// A tensor of the model: how it appears and where its values come from.
#[derive(Debug)]
pub(super) struct Tensor {
    pub(super) info: TensorInfo,
    pub(super) origin: Origin,
}

/// Origin of a tensor's values.
#[derive(Debug)]
pub(super) enum Origin {
    /// A tensor of a weight file, changed.
    Stored(Stored, Change),
    /// Parts of tensors of weight files, one behind the other.
    Stacked(Vec<Slice>),
    /// Keys of heads in latent attention.
    Transposed(TransposedHeads),
    /// Rows of the experts of gpt-oss.
    Experts(ExpertRows),
    /// Zeros, for tensors that readers want and nothing uses.
    Zeros,
    /// Values that follow from the hyperparameters.
    Generated(Vec<f32>),
}

/// Change of a tensor's values, beside vectors becoming f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    None,
    /// Of each of this many heads, the second half of the rows goes between the rows of the first.
    Interleave(usize),
    /// One is added.
    PlusOne,
    /// So many rows are left out at the beginning.
    SkipRows(usize),
    /// A matrix becomes f32: a router, or the embedding of token types.
    Widen,
    /// A matrix of one row becomes a vector.
    Flatten,
    /// Rows of heads are ordered.
    HeadRows(HeadOrder),
    /// Columns of heads are ordered.
    HeadColumns(HeadOrder),
    /// Rows of heads are ordered, and the rows become f32.
    Taps(HeadOrder),
    /// Values of heads are ordered, and `x` becomes `-exp(x)`.
    Decay(HeadOrder),
}

/// Bytes of a tensor of a weight file.
#[derive(Debug)]
pub(super) struct Slice {
    pub(super) stored: Stored,
    pub(super) bytes: Range<usize>,
    /// Factor of the values; another than 1 for floats alone.
    pub(super) factor: f32,
}

impl Slice {
    /// All bytes of a tensor.
    pub(super) fn whole(stored: &Stored) -> Self {
        Self { bytes: 0..stored.byte_len(), stored: stored.clone(), factor: 1.0 }
    }

    /// Rows of a tensor, those of all experts one below the other. Of FP8 only these are made.
    pub(super) fn rows(stored: &Stored, rows: Range<usize>) -> Self {
        if let Some(packed) = stored.packed.as_ref().and_then(|packed| packed.of_rows(rows.clone())) {
            let columns = stored.dims.first().copied().unwrap_or(0);
            let dims = vec![columns, rows.len() as u64];
            return Self::whole(&Stored { dims, packed: Some(packed), ..stored.clone() });
        }
        let all_rows: u64 = stored.dims.iter().skip(1).product();
        let row_bytes = stored.byte_len() / (all_rows as usize).max(1);
        Self { bytes: rows.start * row_bytes..rows.end * row_bytes, ..Self::whole(stored) }
    }
}
