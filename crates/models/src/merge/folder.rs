//! Hugging Face folder with merged adapters added to its weights.

use std::collections::HashMap;
use std::fs;
use std::io::Write;
use std::ops::ControlFlow;
use std::path::Path;

use gguf_rs_lite::{TensorInfo, TensorType, write_atomic};
use ruvllm_adapters::Projection;
use ruvllm_adapters::export::{AdapterFormat, FactorType, write_new_folder};
use ruvllm_adapters::merge::{Input, Merge, Method};
use ruvllm_kernels::ThreadPool;
use ruvllm_kernels::quant::WeightFormat;
use serde_json::{Map, Value, json};

use super::pieces::{Piece, pieces};
use crate::config::ModelConfig;
use crate::error::{Error, Result};
use crate::hf::{HfFolder, StoredTensor};
use crate::quantize::{QuantizeProgress, QuantizeReport, convert_tensor};
use crate::weights::weight_format;

const WEIGHTS: &str = "model.safetensors";

/// Ends of files of weights and their lists, which are not copied.
const NOT_COPIED: [&str; 7] = [".safetensors", ".index.json", ".bin", ".pt", ".pth", ".gguf", ".h5"];

/// Largest other file that is copied, in bytes: vocabularies have some 20 MB.
const MAX_COPIED_BYTES: u64 = 256 << 20;

/// Writes `folder` with a merge of adapters added to its matrices to the new folder `output`: one
/// safetensors file, and copies of the configuration, tokenizer and other small files.
///
/// Matrices get the type `matrices`, or keep theirs; one matrix and one delta in f32 are in memory.
/// The folder appears complete or not at all.
///
/// # Errors
/// As [`Merge::new`]; [`Error::TiedMatrix`], [`Error::Multimodal`];
/// [`Error::UnsupportedTensorType`] for quantized weights; [`Error::WeightValue`] for weights
/// beyond the type's range; [`Error::Cancelled`]; files that cannot be written.
pub fn write_folder(
    folder: &HfFolder,
    inputs: &[Input<'_>],
    method: Method,
    output: &Path,
    matrices: Option<FactorType>,
    pool: &ThreadPool,
    progress: &mut dyn FnMut(QuantizeProgress<'_>) -> ControlFlow<()>,
) -> Result<QuantizeReport> {
    if folder.is_multimodal() {
        return Err(Error::Multimodal { path: folder.path().to_owned() });
    }
    if let Some(name) = folder.quantized() {
        let (name, supported) = (name.to_owned(), "F32, F16, BF16".to_owned());
        return Err(Error::UnsupportedTensorType { name, found: "U8", supported });
    }
    let base = ModelConfig::from_checkpoint(folder)?.adapter_base();
    let merge = Merge::new(inputs, method, Some(&base), AdapterFormat::Peft)?;
    let tensors: Vec<StoredTensor> = folder.stored_tensors().collect();
    let mut changes: HashMap<(Projection, usize), Vec<(usize, Piece)>> = HashMap::new();
    for (i, module) in merge.modules().enumerate() {
        for piece in pieces(&base, module.projection) {
            changes.entry((piece.projection, module.layer)).or_default().push((i, piece));
        }
    }
    for &(projection, layer) in changes.keys() {
        if !tensors.iter().any(|tensor| place(tensor) == Some((projection, layer))) {
            return Err(Error::TiedMatrix { projection });
        }
    }
    let job = Job { merge, changes, matrices, pool };
    write_new_folder(output, |temporary| {
        copy_files(folder, temporary, matrices)?;
        job.write(&tensors, &temporary.join(WEIGHTS), progress)
    })?;
    Ok(QuantizeReport { tensors: tensors.len(), ..QuantizeReport::default() })
}

/// The matrix of a tensor.
fn place(tensor: &StoredTensor) -> Option<(Projection, usize)> {
    Projection::of_module(tensor.name.strip_suffix(".weight")?)
}

struct Job<'a> {
    merge: Merge<'a>,
    changes: HashMap<(Projection, usize), Vec<(usize, Piece)>>,
    matrices: Option<FactorType>,
    pool: &'a ThreadPool,
}

impl Job<'_> {
    /// Writes the weights, one tensor at a time.
    fn write(
        &self,
        tensors: &[StoredTensor],
        path: &Path,
        progress: &mut dyn FnMut(QuantizeProgress<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let header = self.header(tensors)?;
        let bytes_total = tensors.iter().map(|tensor| tensor.data.len() as u64).sum();
        let mut bytes_done = 0;
        write_atomic(path, |mut out| {
            let failed =
                |source| gguf_rs_lite::Error::File { action: "write", path: path.to_owned(), source };
            out.write_all(&(header.len() as u64).to_le_bytes()).map_err(failed)?;
            out.write_all(&header).map_err(failed)?;
            for tensor in tensors {
                out.write_all(&self.data(tensor)?).map_err(failed)?;
                bytes_done += tensor.data.len() as u64;
                let step = QuantizeProgress { tensor: &tensor.name, bytes_done, bytes_total };
                if progress(step).is_break() {
                    return Err(Error::Cancelled);
                }
            }
            Ok(out)
        })
    }

    /// Type of a tensor in the result: vectors keep theirs.
    fn format(&self, tensor: &StoredTensor) -> Result<WeightFormat> {
        let own = || {
            weight_format(tensor.tensor_type)
                .ok_or_else(|| Error::MissingTensor { name: tensor.name.clone() })
        };
        match self.matrices {
            Some(FactorType::F32) if tensor.shape.len() > 1 => Ok(WeightFormat::F32),
            Some(FactorType::F16) if tensor.shape.len() > 1 => Ok(WeightFormat::F16),
            Some(FactorType::BF16) if tensor.shape.len() > 1 => Ok(WeightFormat::BF16),
            _ => own(),
        }
    }

    fn data(&self, tensor: &StoredTensor) -> Result<Vec<u8>> {
        let from = weight_format(tensor.tensor_type);
        let to = self.format(tensor)?;
        let changes = place(tensor).and_then(|place| self.changes.get(&place));
        let (Some(from), true) = (from, changes.is_some() || from != Some(to)) else {
            return Ok(tensor.data.as_bytes().to_vec());
        };
        let mut values = vec![0.0; tensor.shape.iter().product()];
        from.dequantize(tensor.data.as_bytes(), &mut values);
        let width = tensor.shape.last().copied().unwrap_or(1);
        for (module, piece) in changes.into_iter().flatten() {
            piece.add(&self.merge.delta(*module, self.pool)?, &mut values, width);
        }
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        drop(values);
        let dims: Vec<u64> = tensor.shape.iter().rev().map(|&dim| dim as u64).collect();
        convert_tensor(&TensorInfo::new(&tensor.name, dims, TensorType::F32)?, &bytes, to, self.pool)
    }

    /// Names, types, shapes and places, padded to 8 bytes. Source: safetensors, README.
    fn header(&self, tensors: &[StoredTensor]) -> Result<Vec<u8>> {
        let mut header = Map::new();
        header.insert("__metadata__".to_owned(), json!({"format": "pt"}));
        let mut at = 0;
        for tensor in tensors {
            let format = self.format(tensor)?;
            let bytes =
                tensor.shape.iter().product::<usize>() * if format == WeightFormat::F32 { 4 } else { 2 };
            let entry =
                json!({"dtype": format.name(), "shape": tensor.shape, "data_offsets": [at, at + bytes]});
            header.insert(tensor.name.clone(), entry);
            at += bytes;
        }
        let mut header = Value::Object(header).to_string().into_bytes();
        header.resize(header.len().next_multiple_of(8), b' ');
        Ok(header)
    }
}

/// Copies the files beside the weights. The configuration names the new type.
fn copy_files(folder: &HfFolder, output: &Path, matrices: Option<FactorType>) -> Result<()> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| Error::Gguf(gguf_rs_lite::Error::File { action: "copy", path, source })
    };
    for entry in fs::read_dir(folder.path()).map_err(failed(folder.path()))? {
        let path = entry.map_err(failed(folder.path()))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let metadata = fs::metadata(&path).map_err(failed(&path))?;
        if !metadata.is_file()
            || metadata.len() > MAX_COPIED_BYTES
            || NOT_COPIED.iter().any(|end| name.ends_with(end))
        {
            continue;
        }
        let mut bytes = fs::read(&path).map_err(failed(&path))?;
        if let (true, Some(matrices)) = (name == "config.json", matrices) {
            bytes = with_type(&bytes, matrices).unwrap_or(bytes);
        }
        write_atomic(output.join(&name), |mut out| match out.write_all(&bytes) {
            Ok(()) => Ok(out),
            Err(source) => Err(failed(&path)(source)),
        })?;
    }
    Ok(())
}

/// The configuration with another type of weights, if it names one.
fn with_type(config: &[u8], matrices: FactorType) -> Option<Vec<u8>> {
    let name = match matrices {
        FactorType::F32 => "float32",
        FactorType::F16 => "float16",
        FactorType::BF16 => "bfloat16",
    };
    let mut config: Map<String, Value> = serde_json::from_slice(config).ok()?;
    for key in ["torch_dtype", "dtype"] {
        if let Some(value) = config.get_mut(key) {
            *value = name.into();
        }
    }
    serde_json::to_vec_pretty(&config).ok()
}
