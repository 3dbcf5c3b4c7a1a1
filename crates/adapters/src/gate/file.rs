//! Gates as safetensors files: `layers.L.weight`, `[n_adapters, model_dim]`, and `layers.L.bias`,
//! `[n_adapters]`, of every decoder layer; numbers in the metadata.

use std::collections::HashMap;
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use ruvllm_kernels::quant::WeightFormat;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

use super::{AdapterGate, GateConfig, MAX_GATED};
use crate::error::{Error, Result};
use crate::format::peft;
use crate::place::BaseModel;
use crate::shortened::shortened;

impl AdapterGate {
    /// Reads the gate of a safetensors file for a model.
    ///
    /// The file has `layers.L.weight`, `[n_adapters, model_dim]`, and `layers.L.bias`,
    /// `[n_adapters]`, in F32, F16 or BF16 for every layer `L` from 0, and the metadata
    /// `n_adapters`, `temperature`, and, where they apply, `top_k` and `architecture` (as GGUF
    /// files name it).
    ///
    /// # Errors
    /// A file that cannot be read, is damaged or for another model, other tensors, values that are
    /// not finite, and fields out of range.
    pub fn open(path: &Path, base: &Arc<BaseModel>) -> Result<Self> {
        let bytes = gguf_rs_lite::read_bounded(path, most_bytes(base))
            .map_err(|source| Error::Read { path: path.to_owned(), source })?;
        parse(&bytes, base).map_err(|error| Error::InGate { path: path.to_owned(), source: Box::new(error) })
    }
}

/// Bytes of the largest gate of a model.
fn most_bytes(base: &BaseModel) -> u64 {
    let per_layer = MAX_GATED.saturating_mul(base.model_dim.saturating_add(1));
    let values = per_layer.saturating_mul(base.n_layers) as u64;
    values.saturating_mul(size_of::<f32>() as u64).saturating_add(8 + peft::MAX_HEADER_BYTES)
}

fn parse(bytes: &[u8], base: &Arc<BaseModel>) -> Result<AdapterGate> {
    peft::check_header(bytes)?;
    let invalid = |source| Error::Safetensors { source };
    let (_, header) = SafeTensors::read_metadata(bytes).map_err(invalid)?;
    let tensors = SafeTensors::deserialize(bytes).map_err(invalid)?;
    let none = HashMap::new();
    let fields = header.metadata().as_ref().unwrap_or(&none);
    let config = config(fields)?;
    if let Some(found) = fields.get("architecture").filter(|found| **found != base.architecture) {
        let (found, expected) = (shortened(found), base.architecture.clone());
        return Err(Error::Architecture { found, expected });
    }
    tensors.names().into_iter().try_for_each(|name| check_name(name, base))?;
    let (n, dim) = (config.n_adapters, base.model_dim);
    let (mut weights, mut biases) = (Vec::new(), Vec::new());
    for layer in 0..base.n_layers {
        read(&tensors, format!("layers.{layer}.weight"), &[n, dim], &mut weights)?;
        read(&tensors, format!("layers.{layer}.bias"), &[n], &mut biases)?;
    }
    AdapterGate::new(base, config, weights, biases)
}

fn config(fields: &HashMap<String, String>) -> Result<GateConfig> {
    let config = GateConfig {
        n_adapters: number(fields, "n_adapters", "1 to 64")?
            .ok_or_else(|| absent("n_adapters", "1 to 64"))?,
        temperature: number(fields, "temperature", "0.001 to 1000")?
            .ok_or_else(|| absent("temperature", "0.001 to 1000"))?,
        top_k: number(fields, "top_k", "1 to n_adapters")?,
    };
    config.check()?;
    Ok(config)
}

/// The number of a field; `None` if there is no such field.
fn number<T: FromStr>(
    fields: &HashMap<String, String>,
    name: &'static str,
    expected: &'static str,
) -> Result<Option<T>> {
    let Some(text) = fields.get(name) else { return Ok(None) };
    let refused = |_| Error::GateField { name, found: format!("{:?}", shortened(text)), expected };
    text.parse().map(Some).map_err(refused)
}

fn absent(name: &'static str, expected: &'static str) -> Error {
    Error::GateField { name, found: "missing".to_owned(), expected }
}

/// Checks that a tensor belongs to a gate of the model.
fn check_name(name: &str, base: &BaseModel) -> Result<()> {
    let layer = name.strip_prefix("layers.").and_then(|rest| {
        let layer = rest.strip_suffix(".weight").or_else(|| rest.strip_suffix(".bias"))?;
        // One way to write a number, so that no tensor is there twice.
        layer.parse::<usize>().ok().filter(|number| number.to_string() == layer)
    });
    let (n_layers, shown) = (base.n_layers, || shortened(name));
    match layer {
        None => Err(Error::GateTensor { name: shown() }),
        Some(layer) if layer >= n_layers => Err(Error::Layer { name: shown(), layer, n_layers }),
        Some(_) => Ok(()),
    }
}

/// Appends the values of a tensor of this shape.
fn read(tensors: &SafeTensors<'_>, name: String, shape: &[usize], out: &mut Vec<f32>) -> Result<()> {
    let tensor: TensorView<'_> =
        tensors.tensor(&name).map_err(|_| Error::MissingTensor { name: name.clone() })?;
    if tensor.shape() != shape {
        let (found, expected) = (tensor.shape().to_vec(), shape.to_vec());
        return Err(Error::GateShape { name, found, expected });
    }
    let format = match tensor.dtype() {
        Dtype::F32 => WeightFormat::F32,
        Dtype::F16 => WeightFormat::F16,
        Dtype::BF16 => WeightFormat::BF16,
        other => return Err(Error::TensorType { name, found: format!("{other:?}") }),
    };
    let first = out.len();
    out.resize(first + shape.iter().product::<usize>(), 0.0);
    format.dequantize(tensor.data(), &mut out[first..]);
    if out[first..].iter().any(|value| !value.is_finite()) {
        return Err(Error::NotFinite { name });
    }
    Ok(())
}
