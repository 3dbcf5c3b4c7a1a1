//! Matrices that the inputs of a merge change, in one row order.

use std::collections::BTreeMap;

use super::Input;
use crate::error::{Error, Result};
use crate::export::AdapterFormat;
use crate::file::{LoraFile, Update};
use crate::place::{BaseModel, Projection, RowOrder, reorder};

/// Matrix that a merge changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Module {
    /// The matrix.
    pub projection: Projection,
    /// Layer index; 0 for matrices outside the layers.
    pub layer: usize,
    /// Columns.
    pub inputs: usize,
    /// Rows.
    pub outputs: usize,
    /// Name in the first adapter that changes it.
    pub name: String,
    /// Name of the module in PEFT folders, if an input is one.
    pub(crate) peft_name: Option<String>,
}

impl Module {
    /// A matrix of `outputs` rows and `inputs` columns; `name` is for messages.
    pub fn new(
        (projection, layer): (Projection, usize),
        [inputs, outputs]: [usize; 2],
        name: impl Into<String>,
    ) -> Self {
        Self { projection, layer, inputs, outputs, name: name.into(), peft_name: None }
    }
}

/// Updates of one matrix by the inputs, in their order.
#[derive(Debug)]
pub(super) struct Group<'a> {
    pub(super) module: Module,
    pub(super) parts: Vec<Part<'a>>,
}

/// Update of a matrix by one input.
#[derive(Debug)]
pub(super) struct Part<'a> {
    /// Index of the input.
    pub(super) input: usize,
    file: &'a LoraFile,
    update: &'a Update,
}

/// Update in memory: the delta is `B A`.
pub(super) struct Delta {
    pub(super) rank: usize,
    /// `[rank, inputs]`.
    pub(super) a: Vec<f32>,
    /// `[outputs, rank]`, in the row order of the merge.
    b: Vec<f32>,
    scale: f64,
}

/// Aligns the updates of all inputs by their matrix, ascending by layer and projection.
pub(super) fn align<'a>(
    inputs: &[Input<'a>],
    base: Option<&BaseModel>,
    format: AdapterFormat,
) -> Result<Vec<Group<'a>>> {
    let mut groups: BTreeMap<(usize, Projection), Group<'a>> = BTreeMap::new();
    for (input, &Input { file, .. }) in inputs.iter().enumerate() {
        if file.row_order != format.row_order() && base.is_none() {
            return Err(Error::BaseNeeded { reason: "the row order of the adapters differs" });
        }
        base.map_or(Ok(()), |base| file.check(base))?;
        for update in &file.updates {
            let projection =
                base.map_or(update.projection, |base| base.meant(update.projection, file.row_order));
            let Update { layer, inputs, outputs, .. } = *update;
            let peft_name = (file.row_order == RowOrder::HuggingFace).then(|| update.name.clone());
            let module = Module { projection, layer, inputs, outputs, name: update.name.clone(), peft_name };
            let group = groups
                .entry((layer, projection))
                .or_insert_with(|| Group { module: module.clone(), parts: Vec::new() });
            let (found, expected) = ([inputs, outputs], [group.module.inputs, group.module.outputs]);
            if found != expected {
                let (path, name) = (file.path.clone(), module.name);
                return Err(Error::MergeShapes { path, name, found, expected });
            }
            group.module.peft_name = group.module.peft_name.take().or(module.peft_name);
            group.parts.push(Part { input, file, update });
        }
    }
    check_joint(&groups)?;
    Ok(groups.into_values().collect())
}

/// Refuses a joint matrix beside its parts.
fn check_joint(groups: &BTreeMap<(usize, Projection), Group<'_>>) -> Result<()> {
    let parts = |joint| match joint {
        Projection::QueryKeyValue => &[Projection::Query, Projection::Key, Projection::Value][..],
        Projection::GateUp => &[Projection::Gate, Projection::Up][..],
        _ => &[],
    };
    for &(layer, joint) in groups.keys() {
        if parts(joint).iter().any(|&part| groups.contains_key(&(layer, part))) {
            return Err(Error::MergeJoint { joint, layer });
        }
    }
    Ok(())
}

impl Part<'_> {
    pub(super) fn rank(&self) -> usize {
        self.update.rank
    }

    /// Reads the factors, with `B` in the row order of `format`.
    pub(super) fn read(
        &self,
        module: &Module,
        base: Option<&BaseModel>,
        format: AdapterFormat,
    ) -> Result<Delta> {
        let Update { rank, scale, .. } = *self.update;
        let (a, mut b) = (self.update.a.values(), self.update.b.values());
        if !a.iter().chain(&b).all(|value| value.is_finite()) {
            return Err(Error::NotFinite { name: self.update.name.clone() }.in_file(&self.file.path));
        }
        if let Some(base) = base {
            b = reorder(b, rank, module.projection, base, (self.file.row_order, format.row_order()));
        }
        Ok(Delta { rank, a, b, scale: f64::from(scale) })
    }
}

impl Delta {
    /// Sum of products of the entries of two deltas of one shape: that of the entries of
    /// `B1^T B2` and `A1 A2^T`.
    pub(super) fn dot(&self, other: &Self) -> f64 {
        let (outputs, inputs) = (self.b.len() / self.rank, self.a.len() / self.rank);
        let mut outer = vec![0.0; self.rank * other.rank];
        for row in 0..outputs {
            for (i, x) in self.b_row(row).enumerate() {
                for (j, y) in other.b_row(row).enumerate() {
                    outer[i * other.rank + j] += x * y;
                }
            }
        }
        let mut sum = 0.0;
        for (i, x) in self.a.chunks_exact(inputs).enumerate() {
            for (j, y) in other.a.chunks_exact(inputs).enumerate() {
                let dot: f64 = x.iter().zip(y).map(|(&x, &y)| f64::from(x) * f64::from(y)).sum();
                sum += dot * outer[i * other.rank + j];
            }
        }
        sum
    }

    /// Row of `B` with the scale multiplied in.
    pub(super) fn b_row(&self, row: usize) -> impl Iterator<Item = f64> {
        self.b[row * self.rank..][..self.rank].iter().map(|&value| f64::from(value) * self.scale)
    }

    /// Rows of the dense delta from `first` on, as many as fill `out`, `[rows, inputs]`. `sums` is
    /// scratch of a row.
    pub(super) fn rows(&self, first: usize, inputs: usize, out: &mut [f32], sums: &mut Vec<f64>) {
        for (row, out) in out.chunks_exact_mut(inputs).enumerate() {
            sums.clear();
            sums.resize(inputs, 0.0);
            for (b, a) in self.b_row(first + row).zip(self.a.chunks_exact(inputs)) {
                for (sum, &a) in sums.iter_mut().zip(a) {
                    *sum += b * f64::from(a);
                }
            }
            for (out, &sum) in out.iter_mut().zip(sums.iter()) {
                *out = sum as f32;
            }
        }
    }
}
