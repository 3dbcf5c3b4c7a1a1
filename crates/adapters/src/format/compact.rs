//! Compact files as adapter files: for sums, scales and other number formats. Requests that take
//! the factors as they are load them without this conversion ([`CompactFile::load`]).

use std::path::Path;
use std::sync::Arc;

use gguf_rs_lite::TensorData;
use ruvllm_kernels::low_rank::Expansion;
use ruvllm_kernels::quant::WeightFormat;

use crate::compact::CompactFile;
use crate::error::{Error, Result};
use crate::file::{Factor, LoraFile, Update};
use crate::layout::SiteLayout;
use crate::place::{Projection, RowOrder, Site};

/// First bytes of the files.
pub(super) const MAGIC: [u8; 4] = *b"ruvl";

pub(super) fn open(path: &Path) -> Result<LoraFile> {
    let file = CompactFile::open(path)?;
    let base = file.base();
    // Rows are in the order of the model; neither order is to be changed at loading.
    let row_order = match (base.interleaved_heads, base.joint_projections) {
        (false, _) => RowOrder::HuggingFace,
        (true, false) => RowOrder::Gguf,
        (true, true) => {
            let what = "interleaved heads in joint projections".to_owned();
            return Err(Error::Unsupported { what }.in_file(path));
        }
    };
    let data = TensorData::from_owner(file.read_f16()?);
    let mut updates = Vec::new();
    for at in file.layout().sites() {
        for index in 0..at.factors.expansions().len() {
            updates.push(update(at, index, &data).map_err(|error| error.in_file(path))?);
        }
    }
    LoraFile::new(path, updates, row_order, Some(base.architecture.clone()))
}

fn update(at: &SiteLayout, index: usize, data: &TensorData) -> Result<Update> {
    let SiteLayout { layer, site, factors } = at;
    let Expansion { target, first, rank, outputs } = factors.expansions()[index];
    let projection = match (site, target) {
        (Site::AttentionInput, 0) => Projection::Query,
        (Site::AttentionInput, 1) => Projection::Key,
        (Site::AttentionInput, _) => Projection::Value,
        (Site::AttentionOutput, _) => Projection::AttentionOutput,
        (Site::FeedForwardInput, 0) => Projection::Gate,
        (Site::FeedForwardInput, _) => Projection::Up,
        (Site::FeedForwardOutput, _) => Projection::Down,
        (Site::Logits, _) => Projection::Logits,
        (Site::FinalHidden, _) => Projection::FinalHidden,
    };
    let name = format!("{projection} of layer {layer}");
    let cut = || Error::Cut { name: name.clone() };
    let (inputs, row_bytes) = (factors.inputs(), factors.inputs() * 2);
    let a = factors.a() + first * row_bytes;
    let a = data.slice(a..a + rank * row_bytes).ok_or_else(cut)?;
    let b = factors.b(index);
    let b = data.slice(b..b + rank * outputs * 2).ok_or_else(cut)?;
    let factor = |rows, cols, data| Factor { format: WeightFormat::F16, rows, cols, data };
    let b = TensorData::from_owner(transposed(b.as_bytes(), rank, outputs));
    let factors = (factor(rank, inputs, a), factor(outputs, rank, b));
    Update::new(&name, (projection, *layer), factors, |_| 1.0)
}

/// `[rows, cols]` values of two bytes as `[cols, rows]`.
fn transposed(values: &[u8], rows: usize, cols: usize) -> Arc<[u8]> {
    let value = |row: usize, col: usize| [0, 1].map(|byte| values[2 * (row * cols + col) + byte]);
    (0..cols).flat_map(|col| (0..rows).flat_map(move |row| value(row, col))).collect()
}
