//! Importance matrices: mean squared inputs of each weight matrix, per column.
//!
//! The error of a product by a rounded weight grows with its input: quantizers that know the mean
//! squares put the error where inputs are small. [`InputSquares`] are summed during forward passes
//! ([`Workspace::observe_inputs`](crate::Workspace::observe_inputs)); [`ImportanceMatrix`] names
//! them by tensor, and reads and writes the files of llama.cpp.

mod file;
mod squares;

use std::collections::{BTreeMap, BTreeSet};

use gguf_rs_lite::TensorInfo;

use crate::checkpoint::Checkpoint;
use crate::error::{Error, Result};
use crate::tensor_names::{OUTPUT, layer_of, output_name};

pub(crate) use self::squares::ExpertProduct;
pub use self::squares::InputSquares;

/// Mean squared inputs of the matrices of one model, by tensor name.
#[derive(Debug, Clone, PartialEq)]
pub struct ImportanceMatrix {
    entries: BTreeMap<String, Entry>,
    datasets: Vec<String>,
    /// Tokens per window of the text.
    window: usize,
    /// Number of windows.
    windows: usize,
}

/// Sums of one tensor.
#[derive(Debug, Clone, PartialEq)]
struct Entry {
    /// Sums of squared inputs, `[matrices, columns]`; several matrices are the experts of a
    /// mixture.
    sums: Vec<f32>,
    /// Number of inputs, `[matrices]` or one for all.
    counts: Vec<f32>,
}

impl ImportanceMatrix {
    /// Sums of a run of `checkpoint`'s model over windows of a text.
    pub fn new(
        squares: &InputSquares,
        checkpoint: &dyn Checkpoint,
        dataset: &str,
        (windows, window): (usize, usize),
    ) -> Self {
        let output = output_name(checkpoint.tensors());
        let entry = |tensor: &TensorInfo| {
            let matrices = squares.of_tensor(&tensor.name, output)?;
            let columns = usize::try_from(*tensor.dims.first()?).ok()?;
            let counts = matrices.iter().map(|matrix| matrix.rows as f32).collect();
            let mut sums = Vec::with_capacity(matrices.len() * columns);
            for matrix in matrices {
                sums.extend(matrix.sums.iter().map(|&sum| sum as f32));
                // An expert that was never chosen has no sums.
                sums.resize(sums.len() + columns - matrix.sums.len(), 0.0);
            }
            Some((tensor.name.clone(), Entry { sums, counts }))
        };
        let entries =
            checkpoint.tensors().filter(|tensor| tensor.dims.len() >= 2).filter_map(entry).collect();
        Self { entries, datasets: vec![dataset.to_owned()], window, windows }
    }

    /// Number of tensors.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True if no tensor has an entry.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Mean squared inputs of a tensor, `[matrices, columns]`: zeros for a matrix without inputs;
    /// `None` without an entry or any inputs.
    pub fn means(&self, tensor: &str) -> Option<Vec<f32>> {
        let Entry { sums, counts } = self.entries.get(tensor)?;
        if !counts.iter().any(|&count| count > 0.0) {
            return None;
        }
        let columns = sums.len() / counts.len();
        let matrices = sums.chunks_exact(columns.max(1)).zip(counts);
        let mean = |sum: f32, count: f32| if count > 0.0 { sum / count } else { 0.0 };
        Some(matrices.flat_map(|(sums, &count)| sums.iter().map(move |&sum| mean(sum, count))).collect())
    }

    /// Checks that the entries are those of a model with these tensors.
    ///
    /// # Errors
    /// [`Error::ImportanceTensor`], [`Error::ImportanceColumns`] or [`Error::ImportanceLayers`].
    pub(crate) fn check(&self, tensors: &[&TensorInfo]) -> Result<()> {
        for (name, entry) in &self.entries {
            let Some(tensor) = tensors.iter().find(|tensor| tensor.name == *name) else {
                // llama.cpp may name the embedding so where it makes the logits.
                if name == OUTPUT {
                    continue;
                }
                return Err(Error::ImportanceTensor { name: name.clone() });
            };
            let columns = tensor.dims.first().copied().unwrap_or(1);
            let matrices = tensor.dims.iter().skip(2).product::<u64>();
            let (found, counts) = (entry.sums.len() as u64, entry.counts.len() as u64);
            if found != columns.saturating_mul(matrices) || counts != 1 && counts != matrices {
                return Err(Error::ImportanceColumns { name: name.clone(), columns, matrices, found });
            }
        }
        // Other programs sum no inputs of prediction heads.
        let is_head = |layer: &u64| {
            let beginning = format!("blk.{layer}.nextn.");
            tensors.iter().any(|tensor| tensor.name.starts_with(&beginning))
        };
        let of_model = |layers: BTreeSet<u64>| layers.into_iter().filter(|layer| !is_head(layer)).count();
        let layers = of_model(layers_of(tensors.iter().map(|tensor| tensor.name.as_str())));
        let found = of_model(layers_of(self.entries.keys().map(String::as_str)));
        if found == layers { Ok(()) } else { Err(Error::ImportanceLayers { layers, found }) }
    }
}

/// Layers that the names mention.
fn layers_of<'a>(names: impl Iterator<Item = &'a str>) -> BTreeSet<u64> {
    names.filter_map(layer_of).collect()
}
