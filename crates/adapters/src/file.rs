//! Contents of an adapter file of any format.

use std::path::{Path, PathBuf};

use gguf_rs_lite::TensorData;
use ruvllm_kernels::quant::WeightFormat;

use crate::error::{Error, Result};
use crate::place::{BaseModel, Projection, RowOrder, Site, reorder};

/// A LoRA adapter on disk: checked in itself, not yet against a model. Its factors stay in the
/// mapped file.
#[derive(Debug, Clone)]
pub struct LoraFile {
    pub(crate) path: PathBuf,
    pub(crate) updates: Vec<Update>,
    pub(crate) row_order: RowOrder,
    /// Architecture that the file names, as in GGUF metadata.
    pub(crate) architecture: Option<String>,
}

/// The change of one matrix: `scale * B * A`.
#[derive(Debug, Clone)]
pub struct Update {
    /// The matrix.
    pub projection: Projection,
    /// Layer index; 0 for matrices outside the layers.
    pub layer: usize,
    /// Rows of `A`, columns of `B`.
    pub rank: usize,
    /// Columns of `A`.
    pub inputs: usize,
    /// Rows of `B`.
    pub outputs: usize,
    /// Scaling stated by the file: `alpha / rank`, or `alpha / sqrt(rank)` for rsLoRA.
    pub scale: f32,
    /// Name of the matrix in the file.
    pub name: String,
    pub(crate) a: Factor, // [rank, inputs]
    pub(crate) b: Factor, // [outputs, rank]
}

/// A matrix in a file.
#[derive(Debug, Clone)]
pub(crate) struct Factor {
    pub(crate) format: WeightFormat,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) data: TensorData,
}

impl LoraFile {
    /// Path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The matrices that it changes.
    pub fn updates(&self) -> &[Update] {
        &self.updates
    }

    /// Reads the factors of an update of this file for a model: its projection there, `A`, `[rank,
    /// inputs]`, and `B`, `[outputs, rank]`, with the rows in the model's order. `scale` is not
    /// multiplied in.
    ///
    /// # Errors
    /// A file of another model; [`Error::NotFinite`] for values that are not numbers.
    pub fn factors(&self, base: &BaseModel, update: &Update) -> Result<(Projection, Vec<f32>, Vec<f32>)> {
        self.check(base)?;
        let (a, b) = (update.a.values(), update.b.values());
        if !a.iter().chain(&b).all(|value| value.is_finite()) {
            return Err(Error::NotFinite { name: update.name.clone() }.in_file(&self.path));
        }
        let projection = base.meant(update.projection, self.row_order);
        let b = reorder(b, update.rank, projection, base, (self.row_order, RowOrder::Gguf));
        Ok((projection, a, b))
    }

    /// Checks that the adapter is for a model.
    pub(crate) fn check(&self, base: &BaseModel) -> Result<()> {
        self.check_sizes(base).map_err(|error| error.in_file(&self.path))
    }

    fn check_sizes(&self, base: &BaseModel) -> Result<()> {
        if let Some(found) = self.architecture.as_ref().filter(|found| **found != base.architecture) {
            let (found, expected) = (found.clone(), base.architecture.clone());
            return Err(Error::Architecture { found, expected });
        }
        for update in &self.updates {
            let &Update { layer, inputs, outputs, .. } = update;
            let projection = base.meant(update.projection, self.row_order);
            if layer >= base.n_layers {
                let name = update.name.clone();
                return Err(Error::Layer { name, layer, n_layers: base.n_layers });
            }
            let expected_outputs = base.targets(projection).last().map_or(0, |target| target.rows.end);
            // Without shared experts, a mixture has no network that adapters change.
            if base.ffn_dim == 0 && is_feed_forward(base.site(projection)) {
                return Err(Error::Experts { name: update.name.clone() });
            }
            // With a state in some layers, projections of attention are not those of every layer.
            if base.query_dim == 0 && is_attention(base.site(projection)) {
                return Err(Error::Attention { name: update.name.clone() });
            }
            let (found, expected) =
                ([inputs, outputs], [base.inputs(base.site(projection)), expected_outputs]);
            if found != expected {
                return Err(Error::Sizes { name: update.name.clone(), projection, found, expected });
            }
        }
        Ok(())
    }

    /// Sorts the updates of a file that was read, of which there must be some.
    pub(crate) fn new(
        path: &Path,
        mut updates: Vec<Update>,
        row_order: RowOrder,
        architecture: Option<String>,
    ) -> Result<Self> {
        if updates.is_empty() {
            return Err(Error::Empty { path: path.to_owned() });
        }
        updates.sort_by_key(|update| (update.layer, update.projection));
        Ok(Self { path: path.to_owned(), updates, row_order, architecture })
    }
}

fn is_attention(site: Site) -> bool {
    matches!(site, Site::AttentionInput | Site::AttentionOutput)
}

fn is_feed_forward(site: Site) -> bool {
    matches!(site, Site::FeedForwardInput | Site::FeedForwardOutput)
}

impl Update {
    /// An update of two factors, whose shapes must agree. `scale` gets the rank.
    pub(crate) fn new(
        name: &str,
        (projection, layer): (Projection, usize),
        (a, b): (Factor, Factor),
        scale: impl FnOnce(usize) -> f32,
    ) -> Result<Self> {
        let rank = a.rows;
        if rank != b.cols || rank == 0 || a.cols == 0 || b.rows == 0 {
            let shapes = [[a.rows, a.cols], [b.rows, b.cols]];
            return Err(Error::Shapes { name: name.to_owned(), a: shapes[0], b: shapes[1] });
        }
        let (inputs, outputs) = (a.cols, b.rows);
        let scale = scale(rank);
        if !scale.is_finite() {
            return Err(Error::NotFinite { name: name.to_owned() });
        }
        Ok(Self { projection, layer, rank, inputs, outputs, scale, name: name.to_owned(), a, b })
    }
}

impl Factor {
    /// Number of values.
    pub(crate) fn len(&self) -> usize {
        self.rows * self.cols
    }

    /// All values, row after row.
    pub(crate) fn values(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.len()];
        self.read(&mut values);
        values
    }

    /// Writes all values, row after row.
    pub(crate) fn read(&self, values: &mut [f32]) {
        self.format.dequantize(self.data.as_bytes(), values);
    }
}
