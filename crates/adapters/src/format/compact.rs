//! Compact files as adapter files: for sums, scales and other number formats. Requests that take
//! the factors as they are load them without this conversion ([`CompactFile::load`]).

use std::path::Path;
use std::sync::Arc;

use gguf_rs_lite::TensorData;
use ruvllm_kernels::low_rank::{Expansion, FactorFormat};
use ruvllm_kernels::quant::WeightFormat;

use crate::adapter::Adapter;
use crate::compact::CompactFile;
use crate::error::{Error, Result};
use crate::file::{Factor, LoraFile, Update};
use crate::layout::{Layout, SiteLayout};
use crate::place::{BaseModel, Projection, RowOrder, Site};

/// First bytes of the files.
pub(super) const MAGIC: [u8; 4] = *b"ruvl";

pub(super) fn open(path: &Path) -> Result<LoraFile> {
    let file = CompactFile::open(path)?;
    let base = file.base();
    let row_order = row_order(base, path)?;
    let data = TensorData::from_owner(file.read_f16()?);
    let updates = updates(file.layout(), &data, WeightFormat::F16).map_err(|error| error.in_file(path))?;
    LoraFile::new(path, updates, row_order, Some(base.architecture.clone()))
}

/// Rows are in the order of the model; neither order is to be changed at loading.
fn row_order(base: &BaseModel, path: &Path) -> Result<RowOrder> {
    match (base.interleaved_heads, base.joint_attention) {
        (false, _) => Ok(RowOrder::HuggingFace),
        (true, false) => Ok(RowOrder::Gguf),
        (true, true) => {
            let what = "interleaved heads in joint projections".to_owned();
            Err(Error::Unsupported { what }.in_file(path))
        }
    }
}

impl LoraFile {
    /// The updates of an adapter in memory, as if they were those of a file: to add a learned
    /// adapter to a store. `name` stands for the path in errors.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for factors in I8, and for joint projections of interleaved heads.
    pub fn of_adapter(adapter: &Adapter, name: &str) -> Result<Self> {
        let (base, path) = (adapter.base(), Path::new(name));
        let format = match adapter.layout().format() {
            FactorFormat::F32 => WeightFormat::F32,
            FactorFormat::F16 => WeightFormat::F16,
            FactorFormat::I8 => {
                return Err(Error::Unsupported { what: "factors in I8".to_owned() }.in_file(path));
            }
        };
        let data = TensorData::from_owner(Arc::<[u8]>::from(adapter.factors()));
        let updates = updates(adapter.layout(), &data, format).map_err(|error| error.in_file(path))?;
        Self::new(path, updates, row_order(base, path)?, Some(base.architecture.clone()))
    }
}

fn updates(layout: &Layout, data: &TensorData, format: WeightFormat) -> Result<Vec<Update>> {
    let all = layout.sites().iter().flat_map(|at| (0..at.factors.expansions().len()).map(move |i| (at, i)));
    all.map(|(at, index)| update(at, index, data, format)).collect()
}

/// `format` is F16 or F32.
fn update(at: &SiteLayout, index: usize, data: &TensorData, format: WeightFormat) -> Result<Update> {
    let width = if format == WeightFormat::F32 { 4 } else { 2 };
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
    let (inputs, row_bytes) = (factors.inputs(), factors.inputs() * width);
    let a = factors.a() + first * row_bytes;
    let a = data.slice(a..a + rank * row_bytes).ok_or_else(cut)?;
    let b = factors.b(index);
    let b = data.slice(b..b + rank * outputs * width).ok_or_else(cut)?;
    let factor = |rows, cols, data| Factor { format, rows, cols, data };
    let b = TensorData::from_owner(transposed(b.as_bytes(), (rank, outputs), width));
    let factors = (factor(rank, inputs, a), factor(outputs, rank, b));
    Update::new(&name, (projection, *layer), factors, |_| 1.0)
}

/// `[rows, cols]` values of `width` bytes as `[cols, rows]`.
fn transposed(values: &[u8], (rows, cols): (usize, usize), width: usize) -> Arc<[u8]> {
    let value = |row: usize, col: usize| &values[width * (row * cols + col)..][..width];
    (0..cols).flat_map(|col| (0..rows).flat_map(move |row| value(row, col)).copied()).collect()
}
