//! Checkpoint with merged adapters added to its weights; the files stay unchanged.

use std::collections::HashMap;

use gguf_rs_lite::{Metadata, TensorInfo, TensorType};
use ruvllm_adapters::Projection;
use ruvllm_adapters::export::AdapterFormat;
use ruvllm_adapters::merge::{Input, Merge, Method};
use ruvllm_kernels::ThreadPool;
use ruvllm_text::tokenizer::Tokenizer;

use super::pieces::{Piece, pieces};
use crate::checkpoint::{Checkpoint, TensorBytes};
use crate::config::ModelConfig;
use crate::error::{Error, Result};
use crate::quantize::convert_tensor;
use crate::weights::format_of;

/// Types of the matrices that adapters change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Types {
    /// As in the base: a quantized matrix is quantized again.
    Base,
    /// F32, to be quantized from.
    F32,
}

/// View of another checkpoint with a merge of adapters added to its matrices.
///
/// Each changed matrix is made when its data are asked for: one matrix and one delta in f32 are in
/// memory. Other tensors keep type and bytes.
pub struct Folded<'a> {
    inner: &'a dyn Checkpoint,
    merge: Merge<'a>,
    tensors: Vec<TensorInfo>,
    by_name: HashMap<String, usize>,
    /// Modules of the merge that change a tensor.
    changes: HashMap<String, Vec<(usize, Piece)>>,
    pool: &'a ThreadPool,
}

impl<'a> Folded<'a> {
    /// Checks the adapters against the model and assigns them to tensors; computes nothing yet.
    ///
    /// # Errors
    /// As [`Merge::new`]; [`Error::TiedMatrix`] for an adapter of an output matrix that is
    /// the embedding; a model that cannot be read.
    pub fn new(
        inner: &'a dyn Checkpoint,
        inputs: &[Input<'a>],
        method: Method,
        types: Types,
        pool: &'a ThreadPool,
    ) -> Result<Self> {
        let base = ModelConfig::from_checkpoint(inner)?.adapter_base();
        let merge = Merge::new(inputs, method, Some(&base), AdapterFormat::Gguf)?;
        let mut changes: HashMap<String, Vec<(usize, Piece)>> = HashMap::new();
        for (i, module) in merge.modules().enumerate() {
            for piece in pieces(&base, module.projection) {
                let stored = piece.projection;
                let name = stored.gguf_name(module.layer);
                let name = name.ok_or_else(|| Error::MissingTensor { name: module.name.clone() })?;
                if inner.tensor(&name).is_none() {
                    return Err(match stored {
                        Projection::Logits => Error::TiedMatrix { projection: stored },
                        _ => Error::MissingTensor { name },
                    });
                }
                changes.entry(name).or_default().push((i, piece));
            }
        }
        let tensors: Vec<TensorInfo> = inner
            .tensors()
            .map(|tensor| match types {
                Types::F32 if changes.contains_key(&tensor.name) => {
                    format_of(tensor)?;
                    Ok(TensorInfo::new(&tensor.name, tensor.dims.clone(), TensorType::F32)?)
                }
                _ => Ok(tensor.clone()),
            })
            .collect::<Result<_>>()?;
        let by_name = tensors.iter().enumerate().map(|(i, tensor)| (tensor.name.clone(), i)).collect();
        Ok(Self { inner, merge, tensors, by_name, changes, pool })
    }

    /// Number of tensors that are changed.
    pub fn changed(&self) -> usize {
        self.changes.len()
    }
}

impl Checkpoint for Folded<'_> {
    fn metadata(&self) -> &Metadata {
        self.inner.metadata()
    }

    fn file_metadata(&self) -> Result<Metadata> {
        self.inner.file_metadata()
    }

    fn tensors(&self) -> Box<dyn Iterator<Item = &TensorInfo> + '_> {
        Box::new(self.tensors.iter())
    }

    fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.by_name.get(name).map(|&i| &self.tensors[i])
    }

    fn data(&self, tensor: &TensorInfo) -> Result<TensorBytes> {
        let missing = || Error::MissingTensor { name: tensor.name.clone() };
        let before = self.inner.tensor(&tensor.name).ok_or_else(missing)?;
        let after = self.tensor(&tensor.name).ok_or_else(missing)?;
        let data = self.inner.data(before)?;
        let Some(changes) = self.changes.get(&tensor.name) else { return Ok(data) };
        let width = before.dims.first().map_or(0, |&width| width as usize);
        let mut values = vec![0.0; before.elements() as usize];
        format_of(before)?.dequantize(data.as_ref(), &mut values);
        for (module, piece) in changes {
            piece.add(&self.merge.delta(*module, self.pool)?, &mut values, width);
        }
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
        drop(values);
        let whole = TensorInfo::new(&tensor.name, before.dims.clone(), TensorType::F32)?;
        convert_tensor(&whole, &bytes, format_of(after)?, self.pool).map(TensorBytes::Made)
    }

    fn file_bytes(&self) -> u64 {
        self.inner.file_bytes()
    }

    fn gguf_version(&self) -> Option<u32> {
        None
    }

    fn tokenizer(&self) -> Result<Tokenizer> {
        self.inner.tokenizer()
    }
}
