//! Checkpoint that quantizes its matrices while they are loaded; the files stay unchanged.

use std::collections::HashMap;

use gguf_rs_lite::{Metadata, TensorInfo};
use ruvllm_kernels::ThreadPool;
use ruvllm_text::tokenizer::Tokenizer;

use super::{QuantizeOptions, Recipe, assign, rows};
use crate::checkpoint::{Checkpoint, TensorBytes};
use crate::error::{Error, Result};
use crate::weights::format_of;

/// View of another checkpoint with the tensor types of a [`Recipe`].
///
/// A tensor that keeps its type keeps its bytes. Each other one is made on all threads when its
/// data are asked for, and nothing is kept here, so loading a model takes the memory of what it
/// becomes and of no more than one tensor beside.
pub struct InSitu<'a> {
    inner: &'a dyn Checkpoint,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    by_name: HashMap<String, usize>,
    pool: &'a ThreadPool,
}

impl<'a> InSitu<'a> {
    /// Assigns types to all tensors; quantizes nothing yet.
    ///
    /// # Errors
    /// [`Error::UnsupportedTensorType`] for a matrix that cannot be decoded.
    pub fn new(inner: &'a dyn Checkpoint, recipe: Recipe, pool: &'a ThreadPool) -> Result<Self> {
        let assignments = assign(inner, recipe, &QuantizeOptions::default())?;
        let retyped = |(tensor, to): (&TensorInfo, &super::Assignment)| match to.tensor_type {
            same if same == tensor.tensor_type => Ok(tensor.clone()),
            other => Ok(TensorInfo::new(&tensor.name, tensor.dims.clone(), other)?),
        };
        let tensors: Vec<TensorInfo> =
            inner.tensors().zip(&assignments).map(retyped).collect::<Result<_>>()?;
        let by_name = tensors.iter().enumerate().map(|(i, tensor)| (tensor.name.clone(), i)).collect();
        let mut metadata = inner.metadata().clone();
        metadata.insert("general.file_type", recipe.file_type());
        Ok(Self { inner, metadata, tensors, by_name, pool })
    }
}

impl Checkpoint for InSitu<'_> {
    fn metadata(&self) -> &Metadata {
        &self.metadata
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
        if after.tensor_type == before.tensor_type {
            return Ok(data);
        }
        rows::convert_tensor(before, data.as_ref(), format_of(after)?, self.pool).map(TensorBytes::Made)
    }

    fn padding_rows(&self, tensor: &TensorInfo) -> u64 {
        self.inner.padding_rows(tensor)
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
