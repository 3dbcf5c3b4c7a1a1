//! Tensors of all experts in which gate and up alternate (gpt-oss) or are one beside the other
//! (Llama 4), until those of all layers are there.

use std::collections::BTreeMap;

use gguf_rs_lite::{TensorInfo, TensorType};

use super::expert_rows::{BLOCK, BLOCK_BYTES, ExpertRows, RowForm};
use super::experts::{Experts, STACKS, StackForm};
use super::origin::{Origin, Tensor};
use super::shards::Stored;
use super::sizes::ExpertSizes;
use crate::error::{Error, Result};

const GATE_UP: &str = "gate_up_proj";
const DOWN: &str = "down_proj";

/// Ends of names: of a matrix in floats, its bias, and its parts in MXFP4.
const FLOATS: &str = "";
const BIAS: &str = "_bias";
const BLOCKS: &str = "_blocks";
const SCALES: &str = "_scales";

/// The tensors by layer, beginning and end of their names.
#[derive(Default)]
pub(super) struct Alternating(BTreeMap<(usize, &'static str, &'static str), Stored>);

/// Rows of all experts, of which stacks have every `stacks.len()`-th, or as many in turn.
struct Rows<'a> {
    form: &'a Experts,
    layer: usize,
    name: &'static str,
    stacks: &'static [&'static str],
    /// Rows of each stack.
    rows: u64,
    columns: u64,
    experts: u64,
}

impl Alternating {
    /// Takes a tensor, `rest` of whose name is behind that of the experts of a layer.
    ///
    /// # Errors
    /// The tensor, if it is none of these.
    pub(super) fn take(
        &mut self,
        layer: usize,
        rest: &str,
        stored: Stored,
    ) -> std::result::Result<Option<Stored>, Stored> {
        let name = [GATE_UP, DOWN].into_iter().find(|name| rest.starts_with(name));
        let place = name.and_then(|name| {
            let end = [FLOATS, BIAS, BLOCKS, SCALES].into_iter().find(|end| rest[name.len()..] == **end)?;
            Some((layer, name, end))
        });
        match place {
            Some(place) => Ok(self.0.insert(place, stored)),
            None => Err(stored),
        }
    }

    /// The stacks of a layer and their biases.
    ///
    /// # Errors
    /// A tensor that is missing, or of another shape or type.
    pub(super) fn layer(
        &mut self,
        form: &Experts,
        layer: usize,
        (model_dim, sizes): (usize, &ExpertSizes),
    ) -> Result<Vec<Tensor>> {
        let (width, inner, experts) = (model_dim as u64, sizes.ffn_dim as u64, sizes.count as u64);
        let gate_up =
            Rows { form, layer, name: GATE_UP, stacks: &STACKS[..2], rows: inner, columns: width, experts };
        let down = Rows { name: DOWN, stacks: &STACKS[2..], rows: width, columns: inner, ..gate_up };
        let mut tensors = Vec::with_capacity(2 * STACKS.len());
        for rows in [gate_up, down] {
            self.weights(&rows, &mut tensors)?;
            if form.form == StackForm::Halves {
                continue;
            }
            let stored = self.require(&rows, BIAS)?;
            stored.supported_type()?;
            check_dims(&stored, &[rows.stored_rows(), experts])?;
            let dims = [rows.rows, experts];
            rows.push(&stored, || RowForm::Bias, ("bias", &dims, TensorType::F32), &mut tensors)?;
        }
        Ok(tensors)
    }

    /// A tensor of a layer that is not taken.
    pub(super) fn any(&self, layer: usize) -> Option<&Stored> {
        self.0.range((layer, "", "")..(layer + 1, "", "")).next().map(|(_, stored)| stored)
    }

    /// A tensor that no layer has taken.
    pub(super) fn left_over(self) -> Option<Stored> {
        self.0.into_values().next()
    }

    fn weights(&mut self, rows: &Rows<'_>, tensors: &mut Vec<Tensor>) -> Result<()> {
        let Rows { columns, experts, .. } = *rows;
        let dims = [columns, rows.rows, experts];
        let is_halved = rows.form.form == StackForm::Halves;
        if is_halved || !self.0.contains_key(&(rows.layer, rows.name, BLOCKS)) {
            let stored = self.require(rows, FLOATS)?;
            let tensor_type = stored.supported_type()?;
            check_dims(&stored, &[rows.stored_rows(), columns, experts])?;
            return rows.push(&stored, || RowForm::Transposed, ("weight", &dims, tensor_type), tensors);
        }
        let (blocks, scales) = (self.require(rows, BLOCKS)?, self.require(rows, SCALES)?);
        for stored in [&blocks, &scales] {
            if stored.type_name != "U8" {
                let (name, found) = (stored.name.clone(), stored.type_name);
                return Err(Error::UnsupportedTensorType { name, found, supported: "U8".to_owned() });
            }
        }
        let n_blocks = columns.div_ceil(BLOCK as u64);
        check_dims(&blocks, &[BLOCK_BYTES as u64, n_blocks, rows.stored_rows(), experts])?;
        check_dims(&scales, &[n_blocks, rows.stored_rows(), experts])?;
        let form = || RowForm::Mxfp4(scales.clone());
        rows.push(&blocks, form, ("weight", &dims, TensorType::MXFP4), tensors)
    }

    fn require(&mut self, rows: &Rows<'_>, end: &'static str) -> Result<Stored> {
        let Rows { form, layer, name, .. } = *rows;
        self.0.remove(&(layer, name, end)).ok_or_else(|| Error::MissingTensor {
            name: format!("model.layers.{layer}.{}experts.{name}{end}", form.prefix()),
        })
    }
}

impl Rows<'_> {
    /// Rows of an expert in the folder.
    fn stored_rows(&self) -> u64 {
        self.rows * self.stacks.len() as u64
    }

    /// Adds the tensor of each stack.
    fn push(
        &self,
        stored: &Stored,
        form: impl Fn() -> RowForm,
        (suffix, dims, tensor_type): (&str, &[u64], TensorType),
        tensors: &mut Vec<Tensor>,
    ) -> Result<()> {
        let (n_stacks, own) = (self.stacks.len(), self.rows as usize);
        for (index, stack) in self.stacks.iter().enumerate() {
            let (first, step) = match self.form.form {
                StackForm::Halves => (index * own, 1),
                _ => (index, n_stacks),
            };
            let name = format!("blk.{}.{stack}.{suffix}", self.layer);
            let info = TensorInfo::new(name, dims, tensor_type)?;
            let rows = ExpertRows { stored: stored.clone(), form: form(), first, step, rows: own };
            tensors.push(Tensor { info, origin: Origin::Experts(rows) });
        }
        Ok(())
    }
}

fn check_dims(stored: &Stored, dims: &[u64]) -> Result<()> {
    if stored.dims == dims {
        return Ok(());
    }
    let (name, found) = (stored.name.clone(), stored.dims.clone());
    Err(Error::TensorShape { name, expected: dims.to_vec(), found })
}
