//! The weight files of a folder: one `model.safetensors`, or the shards that
//! `model.safetensors.index.json` names. Headers are read and checked; tensor data stay in the
//! mapped files.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Range;
use std::path::{Component, Path};
use std::sync::Arc;

use gguf_rs_lite::{FileMemory, TensorData, TensorType};
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

use super::fields::{self, Fields};
use crate::checkpoint::TensorBytes;
use crate::error::{Error, Result};

pub(super) const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// A tensor as its file describes it, or a quantized matrix that several tensors hold.
#[derive(Debug, Clone)]
pub(super) struct Stored {
    pub(super) name: String,
    /// Index of its file; of a quantized matrix, that of its quants.
    pub(super) shard: usize,
    /// Byte range in the file; of a quantized matrix, that of its quants.
    pub(super) range: Range<usize>,
    /// The type, if GGUF has it.
    pub(super) tensor_type: Option<TensorType>,
    /// The name of the type.
    pub(super) type_name: &'static str,
    /// Dimensions, fastest-varying first.
    pub(super) dims: Vec<u64>,
    /// The quantized matrix that its data are made of.
    pub(super) packed: Option<Arc<dyn Repack>>,
}

/// A matrix whose bytes are made of several stored tensors.
pub(super) trait Repack: fmt::Debug + Send + Sync {
    /// Number of bytes that are made.
    fn byte_len(&self) -> usize;

    /// Some of the rows, those of all experts one below the other; `None` if only all can be made.
    fn of_rows(&self, rows: Range<usize>) -> Option<Arc<dyn Repack>>;

    /// The bytes. `data` has those of stored tensors.
    ///
    /// # Errors
    /// [`Error::TensorValue`] for scales and values that are not finite or too large for the type.
    fn bytes(&self, data: &dyn Fn(&Stored) -> Result<TensorData>) -> Result<Vec<u8>>;
}

impl Stored {
    /// Number of bytes of its data.
    pub(super) fn byte_len(&self) -> usize {
        self.packed.as_ref().map_or(self.range.len(), |packed| packed.byte_len())
    }

    /// The type, which must be one that GGUF has.
    pub(super) fn supported_type(&self) -> Result<TensorType> {
        self.tensor_type.ok_or_else(|| Error::UnsupportedTensorType {
            name: self.name.clone(),
            found: self.type_name,
            supported: "F32, F16, BF16".to_owned(),
        })
    }
}

/// The mapped files, in the order of their names.
#[derive(Debug, Default)]
pub(super) struct Shards {
    files: Vec<TensorData>,
}

impl Shards {
    /// Maps or reads the files of a folder and lists their tensors in the order of their data.
    pub(super) fn open(folder: &Path, memory: FileMemory) -> Result<(Self, Vec<Stored>)> {
        let index_path = folder.join(INDEX);
        let (files, index) = match fields::read_object(&index_path, fields::INDEX_BYTES)? {
            Some(map) => {
                let index = read_index(&Fields::new(INDEX, &map))?;
                (index.values().cloned().collect::<BTreeSet<_>>().into_iter().collect(), index)
            }
            None => (vec![SINGLE.to_owned()], BTreeMap::new()),
        };
        let mut shards = Self::default();
        let mut tensors: Vec<Stored> = Vec::new();
        for file in &files {
            let path = folder.join(file);
            if !path.exists() {
                return Err(match index.is_empty() {
                    true => Error::NotAModelFolder {
                        path: folder.to_owned(),
                        reason: "it has neither model.safetensors nor model.safetensors.index.json",
                    },
                    false => Error::MissingShard { index: index_path, file: file.clone() },
                });
            }
            tensors.extend(shards.add(&path, memory)?);
        }
        check_names(&files, &tensors, &index, &index_path)?;
        Ok((shards, tensors))
    }

    /// Maps or reads one more file, and lists its tensors in the order of their data.
    pub(super) fn add(&mut self, path: &Path, memory: FileMemory) -> Result<Vec<Stored>> {
        let bytes = TensorData::load_file(path, memory)?;
        let tensors = read_header(path, bytes.as_bytes(), self.files.len())?;
        self.files.push(bytes);
        Ok(tensors)
    }

    /// The bytes of a tensor: those in the mapped file, or those that a quantized matrix is made
    /// into now.
    ///
    /// # Errors
    /// [`Error::TensorValue`] for values that the type of a quantized matrix does not have.
    pub(super) fn bytes(&self, tensor: &Stored) -> Result<TensorBytes> {
        if let Some(packed) = &tensor.packed {
            return packed.bytes(&|part| self.data(part)).map(TensorBytes::Made);
        }
        let data = self.files.get(tensor.shard).and_then(|file| file.slice(tensor.range.clone()));
        data.map(TensorBytes::Shared).ok_or_else(|| Error::MissingTensor { name: tensor.name.clone() })
    }

    /// As [`Self::bytes`].
    pub(super) fn data(&self, tensor: &Stored) -> Result<TensorData> {
        Ok(match self.bytes(tensor)? {
            TensorBytes::Shared(data) => data,
            TensorBytes::Made(bytes) => TensorData::from_owner(bytes),
        })
    }

    /// Number of files.
    pub(super) fn len(&self) -> usize {
        self.files.len()
    }

    /// Length of all files together.
    pub(super) fn file_bytes(&self) -> u64 {
        self.files.iter().map(|file| file.len() as u64).sum()
    }
}

/// Reads the map from tensor names to file names.
fn read_index(index: &Fields<'_>) -> Result<BTreeMap<String, String>> {
    let expected = "an object from tensor names to file names";
    let map = index.object("weight_map")?.ok_or_else(|| index.missing("weight_map", expected))?;
    let entry = |(name, file): (&String, &Value)| match file.as_str().filter(|file| is_file_name(file)) {
        Some(file) => Ok((name.clone(), file.to_owned())),
        None => Err(map.invalid(name, "the name of a .safetensors file in the same folder")),
    };
    let files: BTreeMap<String, String> = map.iter().map(entry).collect::<Result<_>>()?;
    if files.is_empty() { Err(index.invalid("weight_map", expected)) } else { Ok(files) }
}

/// True if a name stays in its folder: a single component, without separators.
fn is_file_name(file: &str) -> bool {
    let mut components = Path::new(file).components();
    let is_plain = matches!((components.next(), components.next()), (Some(Component::Normal(_)), None));
    is_plain && !file.contains(['\\', '/', '\0']) && file.ends_with(".safetensors")
}

/// The tensors of one file, in the order of their data.
pub(super) fn read_header(path: &Path, bytes: &[u8], shard: usize) -> Result<Vec<Stored>> {
    let damaged = |source| Error::Safetensors { path: path.to_owned(), source };
    let (header, metadata) = SafeTensors::read_metadata(bytes).map_err(damaged)?;
    let data_start = header + size_of::<u64>();
    let mut tensors: Vec<Stored> = metadata
        .tensors()
        .into_iter()
        .map(|(name, info)| Stored {
            name,
            shard,
            // The library has checked that the data end where the file does.
            range: data_start + info.data_offsets.0..data_start + info.data_offsets.1,
            tensor_type: tensor_type(info.dtype),
            type_name: type_name(info.dtype),
            dims: info.shape.iter().rev().map(|&dim| dim as u64).collect(),
            packed: None,
        })
        .collect();
    tensors.sort_by(|a, b| (a.range.start, &a.name).cmp(&(b.range.start, &b.name)));
    Ok(tensors)
}

/// Checks that names are unique and that each tensor is where the index says.
fn check_names(
    files: &[String],
    tensors: &[Stored],
    index: &BTreeMap<String, String>,
    index_path: &Path,
) -> Result<()> {
    let mut found: BTreeMap<&str, &str> = BTreeMap::new();
    for tensor in tensors {
        if found.insert(&tensor.name, &files[tensor.shard]).is_some() {
            return Err(Error::DuplicateTensor { name: tensor.name.clone() });
        }
    }
    match index.iter().find(|(name, file)| found.get(name.as_str()) != Some(&file.as_str())) {
        None => Ok(()),
        Some((name, file)) => Err(Error::MissingInShard {
            index: index_path.to_owned(),
            name: name.clone(),
            file: file.clone(),
        }),
    }
}

fn tensor_type(dtype: Dtype) -> Option<TensorType> {
    match dtype {
        Dtype::F32 => Some(TensorType::F32),
        Dtype::F16 => Some(TensorType::F16),
        Dtype::BF16 => Some(TensorType::BF16),
        _ => None,
    }
}

fn type_name(dtype: Dtype) -> &'static str {
    match dtype {
        Dtype::F64 => "F64",
        Dtype::F32 => "F32",
        Dtype::F16 => "F16",
        Dtype::BF16 => "BF16",
        Dtype::I8 => "I8",
        Dtype::U8 => "U8",
        Dtype::I32 => "I32",
        Dtype::I64 => "I64",
        Dtype::F8_E4M3 => "F8_E4M3",
        Dtype::F8_E5M2 => "F8_E5M2",
        Dtype::F8_E8M0 => "F8_E8M0",
        _ => "one without kernels",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_leave_the_folder_are_no_file_names() {
        for name in [
            "../a.safetensors",
            "/etc/a.safetensors",
            "a/b.safetensors",
            "..",
            "",
            r"..\a.safetensors",
            "c:\\a.safetensors",
            "a\0.safetensors",
            "./a.safetensors",
            "a.bin",
        ] {
            assert!(!is_file_name(name), "{name:?}");
        }
        assert!(is_file_name("model-00001-of-00002.safetensors") && is_file_name("..a.safetensors"));
    }
}
