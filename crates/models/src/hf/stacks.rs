//! Matrices of single experts, which GGUF has stacked.
//!
//! transformers 4 stores a matrix per expert; transformers 5 reads and writes these too, and
//! computes with gate and up joint and all experts in one tensor, which it stores on request.
//! Folders of Llama 4 have one transposed tensor as published, and a matrix per expert as quantized
//! by llm-compressor. Stacks of matrices per expert, and gate and up of the joint form, are made in
//! memory when they are asked for.

use std::collections::BTreeMap;

use gguf_rs_lite::{TensorInfo, TensorType};

use super::alternating::Alternating;
use super::experts::{Experts, JOINT_DOWN, JOINT_GATE_UP, JOINT_UP, STACKS, StackForm};
use super::origin::{Origin, Slice, Tensor};
use super::shards::Stored;
use super::sizes::ExpertSizes;
use crate::error::{Error, Result};

/// Matrices of experts, until those of all are there.
#[derive(Default)]
pub(super) struct Stacks {
    /// By layer, stack and expert.
    single: BTreeMap<(usize, usize, usize), Stored>,
    /// By layer and stack.
    joint: BTreeMap<(usize, usize), Stored>,
    alternating: Alternating,
}

impl Stacks {
    /// Takes a tensor if it belongs to experts. `name` is its usual name behind the number of the
    /// layer; gives the tensor back if it does not.
    pub(super) fn take(
        &mut self,
        experts: &Experts,
        (layer, name): (usize, &str),
        stored: Stored,
    ) -> Result<Option<Stored>> {
        let Some(rest) = name.strip_prefix("mlp.experts.") else { return Ok(Some(stored)) };
        let stored_name = stored.name.clone();
        let replaced = if let Some((expert, stack)) = experts.single(rest) {
            self.single.insert((layer, stack, expert), stored)
        } else if experts.form != StackForm::Usual {
            match self.alternating.take(layer, rest, stored) {
                Ok(replaced) => replaced,
                Err(stored) => return Ok(Some(stored)),
            }
        } else {
            match rest {
                JOINT_GATE_UP => self.joint.insert((layer, 0), stored),
                JOINT_DOWN => self.joint.insert((layer, 2), stored),
                JOINT_UP if !experts.is_gated => self.joint.insert((layer, 1), stored),
                _ => return Ok(Some(stored)),
            }
        };
        match replaced {
            Some(_) => Err(Error::DuplicateTensor { name: stored_name }),
            None => Ok(None),
        }
    }

    /// The stacked tensors of all layers.
    ///
    /// # Errors
    /// A matrix that is missing, left over, or of another shape or type than the first of its
    /// stack.
    pub(super) fn finish(
        mut self,
        experts: &Experts,
        sizes: (usize, &ExpertSizes),
        layers: &[usize],
        architecture: &str,
    ) -> Result<Vec<Tensor>> {
        let (model_dim, sizes) = sizes;
        let (width, inner, count) = (model_dim as u64, sizes.ffn_dim as u64, sizes.count as u64);
        let mut tensors = Vec::with_capacity(STACKS.len() * layers.len());
        for &layer in layers {
            self.check_form(layer)?;
            if experts.form != StackForm::Usual && self.any_single(layer).is_none() {
                tensors.extend(self.alternating.layer(experts, layer, (model_dim, sizes))?);
                continue;
            }
            if let Some(stored) = self.joint.remove(&(layer, 0)) {
                check_dims(&stored, [width, 2 * inner, count])?;
                let half = sizes.ffn_dim;
                for stack in [0, 1] {
                    let slices = (0..sizes.count).map(|expert| {
                        let first = (2 * expert + stack) * half;
                        Slice::rows(&stored, first..first + half)
                    });
                    let origin = Origin::Stacked(slices.collect());
                    tensors.push(stacked(layer, stack, [width, inner, count], &stored, origin)?);
                }
                tensors.push(self.whole(experts, (layer, 2), [inner, width, count])?);
                continue;
            }
            if self.joint.contains_key(&(layer, 1)) {
                tensors.push(self.whole(experts, (layer, 1), [width, inner, count])?);
                tensors.push(self.whole(experts, (layer, 2), [inner, width, count])?);
                continue;
            }
            let dims = [[width, inner], [width, inner], [inner, width]];
            for (stack, dims) in dims.into_iter().enumerate().skip(usize::from(!experts.is_gated)) {
                tensors.push(self.stack(experts, (layer, stack), dims, sizes.count)?);
            }
        }
        // Experts, layers or forms that the configuration does not have.
        let usual = self.single.into_values().chain(self.joint.into_values()).next();
        match usual.or(self.alternating.left_over()) {
            None => Ok(tensors),
            Some(stored) => {
                Err(Error::UnexpectedTensor { name: stored.name, architecture: architecture.to_owned() })
            }
        }
    }

    /// A matrix of a single expert of a layer.
    fn any_single(&self, layer: usize) -> Option<&Stored> {
        self.single.range((layer, 0, 0)..(layer + 1, 0, 0)).next().map(|(_, stored)| stored)
    }

    /// Checks that the experts of a layer are in one form.
    fn check_form(&self, layer: usize) -> Result<()> {
        let joint = self.joint.range((layer, 0)..(layer + 1, 0)).next().map(|(_, stored)| stored);
        match (self.any_single(layer), joint.or(self.alternating.any(layer))) {
            (Some(single), Some(joint)) => {
                Err(Error::MixedExperts { joint: joint.name.clone(), single: single.name.clone() })
            }
            _ => Ok(()),
        }
    }

    /// A stack that is one tensor in the folder too.
    fn whole(&mut self, experts: &Experts, (layer, stack): (usize, usize), dims: [u64; 3]) -> Result<Tensor> {
        let missing = || Error::MissingTensor {
            name: match experts.joint {
                Some(_) => experts.shown(layer, 0, stack),
                None => format!("model.layers.{layer}.{}experts.{JOINT_DOWN}", experts.prefix()),
            },
        };
        let stored = self.joint.remove(&(layer, stack)).ok_or_else(missing)?;
        check_dims(&stored, dims)?;
        let [_, rows, experts] = dims.map(|dim| dim as usize);
        let slices = match stored.packed {
            // Made expert by expert.
            Some(_) => (0..experts).map(|i| Slice::rows(&stored, i * rows..(i + 1) * rows)).collect(),
            None => vec![Slice::whole(&stored)],
        };
        stacked(layer, stack, dims, &stored, Origin::Stacked(slices))
    }

    /// One stack of single matrices.
    fn stack(
        &mut self,
        experts: &Experts,
        (layer, stack): (usize, usize),
        dims: [u64; 2],
        count: usize,
    ) -> Result<Tensor> {
        let mut slices: Vec<Slice> = Vec::new();
        let is_single = self.any_single(layer).is_some();
        for expert in 0..count {
            let missing = || Error::MissingTensor {
                name: match is_single {
                    true => experts.shown_single(layer, expert, stack),
                    false => experts.shown(layer, expert, stack),
                },
            };
            let stored = self.single.remove(&(layer, stack, expert)).ok_or_else(missing)?;
            let type_of_stack = slices.first().map_or(stored.type_name, |first| first.stored.type_name);
            if stored.dims != dims {
                let expected = dims.to_vec();
                return Err(Error::TensorShape { name: stored.name, expected, found: stored.dims });
            }
            if stored.type_name != type_of_stack {
                let (name, found) = (stored.name, stored.type_name);
                let supported = format!("{type_of_stack}, as the other experts of the layer");
                return Err(Error::UnsupportedTensorType { name, found, supported });
            }
            slices.push(Slice::whole(&stored));
        }
        let first = slices.first().map(|slice| slice.stored.clone());
        let first = first.ok_or_else(|| Error::MissingTensor { name: experts.shown(layer, 0, stack) })?;
        stacked(layer, stack, [dims[0], dims[1], count as u64], &first, Origin::Stacked(slices))
    }
}

/// Checks the shape of a tensor of all experts.
fn check_dims(stored: &Stored, dims: [u64; 3]) -> Result<()> {
    if stored.dims == dims {
        return Ok(());
    }
    let (name, found) = (stored.name.clone(), stored.dims.clone());
    Err(Error::TensorShape { name, expected: dims.to_vec(), found })
}

fn stacked(layer: usize, stack: usize, dims: [u64; 3], stored: &Stored, origin: Origin) -> Result<Tensor> {
    let tensor_type: TensorType = stored.supported_type()?;
    let name = format!("blk.{layer}.{}.weight", STACKS[stack]);
    Ok(Tensor { info: TensorInfo::new(name, dims, tensor_type)?, origin })
}
