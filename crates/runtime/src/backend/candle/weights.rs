//! Weights of a folder as candle tensors; tensors that no model uses are detected.

use std::collections::HashMap;
use std::sync::Arc;

use candle_core::{DType, Device, Error, Result, Shape, Tensor};
use candle_nn::{Init, VarBuilder};
use gguf_rs_lite::TensorType;
use parking_lot::Mutex;
use ruvllm_models::{HfFolder, StoredTensor};

use super::family::QueryFactor;

const EMBEDDING: &str = "model.embed_tokens.weight";
const HEAD: &str = "lm_head.weight";

/// Tensors by name, in F32; `get` removes a tensor.
#[derive(Clone)]
pub(super) struct Weights {
    tensors: Arc<Mutex<HashMap<String, Tensor>>>,
    device: Device,
}

impl Weights {
    /// Reads all tensors of a folder.
    pub(super) fn read(
        folder: &HfFolder,
        query_factor: Option<&QueryFactor>,
        device: &Device,
    ) -> Result<Self> {
        let mut tensors = HashMap::new();
        for stored in folder.stored_tensors() {
            let mut tensor = to_f32(&stored)?;
            if let Some(factor) = query_factor.filter(|factor| stored.name.ends_with(factor.matrix)) {
                tensor = factor.apply(&tensor)?;
            }
            tensors.insert(stored.name, tensor.to_device(device)?);
        }
        Ok(Self { tensors: Arc::new(Mutex::new(tensors)), device: device.clone() })
    }

    /// True if the output projection shares the embedding's weights.
    pub(super) fn is_tied(&self) -> bool {
        !self.tensors.lock().contains_key(HEAD)
    }

    /// Adds an output matrix that shares the embedding's values, for models without tied
    /// embeddings.
    pub(super) fn untie(&self) {
        let mut tensors = self.tensors.lock();
        if let (None, Some(embedding)) = (tensors.get(HEAD), tensors.get(EMBEDDING).cloned()) {
            tensors.insert(HEAD.to_owned(), embedding);
        }
    }

    /// Builder from which candle's models take the tensors, as F32.
    pub(super) fn builder(&self) -> VarBuilder<'static> {
        VarBuilder::from_backend(Box::new(self.clone()), DType::F32, self.device.clone())
    }

    /// First unused tensor by name, if any.
    pub(super) fn left_over(&self) -> Option<String> {
        self.tensors.lock().keys().min().cloned()
    }
}

impl candle_nn::var_builder::SimpleBackend for Weights {
    fn get(&self, shape: Shape, name: &str, _: Init, dtype: DType, device: &Device) -> Result<Tensor> {
        let tensor = self.get_unchecked(name, dtype, device)?;
        if *tensor.shape() == shape {
            return Ok(tensor);
        }
        let msg = format!("shape mismatch for {name}");
        Err(Error::UnexpectedShape { msg, expected: shape, got: tensor.shape().clone() })
    }

    fn get_unchecked(&self, name: &str, dtype: DType, device: &Device) -> Result<Tensor> {
        let tensor = self.tensors.lock().remove(name);
        let tensor = tensor.ok_or_else(|| Error::CannotFindTensor { path: name.to_owned() })?;
        tensor.to_device(device)?.to_dtype(dtype)
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.tensors.lock().contains_key(name)
    }
}

fn to_f32(stored: &StoredTensor) -> Result<Tensor> {
    let dtype = match stored.tensor_type {
        TensorType::F32 => DType::F32,
        TensorType::F16 => DType::F16,
        TensorType::BF16 => DType::BF16,
        other => candle_core::bail!("{} has type {other}", stored.name),
    };
    Tensor::from_raw_buffer(stored.data.as_bytes(), dtype, &stored.shape, &Device::Cpu)?.to_dtype(DType::F32)
}

impl QueryFactor {
    /// Multiplies the query rows of `matrix`, `[rows, model_dim]`, by the factor.
    fn apply(&self, matrix: &Tensor) -> Result<Tensor> {
        let rows = matrix.dim(0)?;
        let queries = self.n_heads * self.head_dim;
        let is_scaled = |row: usize| row < queries && row % self.head_dim < self.scaled;
        let factors: Vec<f32> =
            (0..rows).map(|row| if is_scaled(row) { self.factor as f32 } else { 1.0 }).collect();
        matrix.broadcast_mul(&Tensor::from_vec(factors, (rows, 1), matrix.device())?)
    }
}
