//! Hugging Face folders (`config.json`, safetensors, tokenizer files) presented as GGUF files.
//!
//! Nothing is converted when a folder is opened: hyperparameters get the keys of GGUF, tensors
//! their names and shapes. Matrices stay in the mapped files. Made anew, when they are asked for,
//! are vectors that are not in f32, norms that GGUF stores plus one, the query and key matrices of
//! the `llama` architecture, whose rows are in another order there, stacks of experts, of which
//! those in MXFP4 keep their values, the rows of a reranker's answers, and the matrices of
//! quantized folders ([`packed`]).
//!
//! Source: the files as transformers 4 and 5 write them; keys, names and row orders as llama.cpp's
//! converter.

mod alternating;
mod bases;
mod change;
mod chat_template;
mod chunked;
mod config;
mod decoder;
mod dense;
mod encoder;
mod expert_rows;
mod experts;
mod family;
mod fields;
mod heads;
mod keys;
mod latent;
mod layers;
mod mamba;
mod mixtures;
mod multipliers;
mod names;
mod origin;
mod packed;
mod parts;
mod prediction;
mod prediction_head;
mod recurrent;
mod rerank;
mod roles;
mod rope;
mod rotary;
mod row_parts;
mod sentence;
mod shards;
mod sizes;
mod stacks;
mod stored_names;
mod streams;
mod tensors;
mod transpose;
mod vocabulary;
mod window;

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};

use gguf_rs_lite::{FileMemory, Metadata, TensorData, TensorInfo, TensorType};
use ruvllm_text::TokenId;
use ruvllm_text::tokenizer::Tokenizer;

pub use self::chat_template::folder_chat_template;
use self::config::Config;
use self::expert_rows::{ExpertRows, RowForm};
use self::fields::{CONFIG_BYTES, Fields, read_object};
use self::origin::{Change, Origin, Slice, Tensor};
use self::shards::Shards;
use crate::checkpoint::{Checkpoint, TensorBytes};
use crate::error::{Error, Result};
use crate::tensor_names::{EMBEDDING, LAYER_INPUTS};
use crate::weights::weight_format;

/// A model in a Hugging Face folder.
///
/// While it or any data of it is alive, mapped weight files must not be shortened or overwritten in
/// place.
///
/// ```no_run
/// use ruvllm_models::{Checkpoint, HfFolder, Model};
///
/// let folder = HfFolder::open("Qwen2.5-0.5B-Instruct")?;
/// let model = Model::load(&folder, &mut |_| ())?;
/// let tokenizer = folder.tokenizer()?;
/// # Ok::<(), ruvllm_models::Error>(())
/// ```
pub struct HfFolder {
    path: PathBuf,
    config: Config,
    metadata: Metadata,
    tensors: Vec<Tensor>,
    by_name: HashMap<String, usize>,
    shards: Shards,
}

/// A tensor as stored in a weight file: rows, names and values of the folder, not of GGUF.
#[derive(Debug, Clone)]
pub struct StoredTensor {
    /// Tensor name in a text-only model, such as `model.layers.0.self_attn.q_proj.weight`, also if
    /// the folder holds a multimodal one.
    pub name: String,
    /// F32, F16 or BF16.
    pub tensor_type: TensorType,
    /// Dimensions, slowest-varying first.
    pub shape: Vec<usize>,
    /// The values; they keep the file mapped.
    pub data: TensorData,
}

impl HfFolder {
    /// Opens a folder: reads its configuration and the headers of its weight files, and checks them
    /// against each other. The tokenizer is read when it is asked for, and of a reranker that does
    /// not name its answers.
    ///
    /// # Errors
    /// [`Error::NotAModelFolder`] without a configuration or weights;
    /// [`Error::UnsupportedArchitecture`]; [`Error::InvalidField`], [`Error::MissingField`] and
    /// [`Error::InvalidJson`] for files that no such model has; [`Error::MissingShard`],
    /// [`Error::MissingInShard`], [`Error::Safetensors`] and [`Error::DuplicateTensor`] for damaged
    /// or incomplete weights; [`Error::MissingTensor`], [`Error::UnexpectedTensor`],
    /// [`Error::TensorShape`] and [`Error::UnsupportedTensorType`] for weights of another model;
    /// [`Error::NoAnswerToken`] for a reranker.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_in(path, FileMemory::default())
    }

    /// As [`HfFolder::open`], with the weight files mapped or read (`memory`). Converted tensors
    /// are in private memory and never locked.
    ///
    /// # Errors
    /// As [`HfFolder::open`], and [`Error::Gguf`] if the system does not lock the bytes.
    pub fn open_in(path: impl AsRef<Path>, memory: FileMemory) -> Result<Self> {
        let path = path.as_ref();
        let config = Config::read(path)?;
        let mut model = config.hyperparameters(&model_name(path, &config))?;
        let (mut shards, mut stored) = Shards::open(path, memory)?;
        if let Some(scheme) = &model.scheme {
            stored = packed::collect(scheme, stored, &shards)?;
        }
        model.find_prediction_head(&stored);
        let mut tensors = tensors::list(&model, config.is_multimodal, stored)?;
        let mut metadata = model.metadata;
        let modules = sentence::write(path, model.family, &mut metadata)?;
        let (width, architecture) = (model.sizes.model_dim, model.family.architecture);
        for module in dense::open(path, modules.dense(), width, (&mut shards, memory))? {
            module.add(architecture, &mut metadata, &mut tensors)?;
        }
        metadata.insert("general.file_type", file_type(&tensors));
        metadata.insert("general.quantization_version", 2_u32);
        chat_template::write(path, &mut metadata)?;
        let by_name = tensors.iter().enumerate().map(|(i, tensor)| (tensor.info.name.clone(), i)).collect();
        let mut folder = Self { path: path.to_owned(), config, metadata, tensors, by_name, shards };
        rerank::complete(&mut folder, &modules)?;
        Ok(folder)
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Number of weight files.
    pub fn shards(&self) -> usize {
        self.shards.len()
    }

    /// Contents of `config.json`; fields of `text_config` override those of the same name.
    pub fn config(&self) -> &serde_json::Map<String, serde_json::Value> {
        self.config.map()
    }

    /// True if the folder holds a model for more than text, of which only the text model is used.
    pub fn is_multimodal(&self) -> bool {
        self.config.is_multimodal
    }

    /// Name of a tensor with quantized weights, if there is one.
    pub fn quantized(&self) -> Option<&str> {
        self.tensors.iter().find_map(|tensor| match &tensor.origin {
            Origin::Experts(ExpertRows { stored, form: RowForm::Mxfp4(_), .. }) => Some(stored.name.as_str()),
            Origin::Stored(stored, _) | Origin::Experts(ExpertRows { stored, .. })
                if stored.packed.is_some() =>
            {
                Some(stored.name.as_str())
            }
            Origin::Stacked(slices) => {
                let mut stored = slices.iter().map(|slice| &slice.stored);
                stored.find(|stored| stored.packed.is_some()).map(|stored| stored.name.as_str())
            }
            _ => None,
        })
    }

    /// The tensors that the model takes from the weight files, as these hold them; without
    /// quantized ones.
    pub fn stored_tensors(&self) -> impl Iterator<Item = StoredTensor> {
        let stored = self.tensors.iter().flat_map(|tensor| match &tensor.origin {
            Origin::Stored(stored, _) => vec![stored],
            // Of a tensor that is in several slices, the first.
            Origin::Stacked(slices) => {
                let first = slices.iter().filter(|slice| slice.bytes.start == 0);
                first.map(|slice| &slice.stored).collect()
            }
            Origin::Experts(rows) if rows.first == 0 => vec![&rows.stored],
            Origin::Transposed(heads) => vec![&heads.stored],
            Origin::Experts(_) | Origin::Generated(_) | Origin::Zeros => Vec::new(),
        });
        stored.filter(|stored| stored.packed.is_none()).filter_map(|stored| {
            Some(StoredTensor {
                name: stored_names::text_name(&stored.name),
                tensor_type: stored.tensor_type?,
                shape: stored.dims.iter().rev().map(|&dim| dim as usize).collect(),
                data: self.shards.data(stored).ok()?,
            })
        })
    }

    fn find(&self, name: &str) -> Option<&Tensor> {
        self.by_name.get(name).map(|&i| &self.tensors[i])
    }

    /// Slices one behind the other; a single one of a file is not copied.
    fn stack(&self, slices: &[Slice]) -> Result<TensorBytes> {
        let data = |slice: &Slice| {
            let data = self.shards.data(&slice.stored)?.slice(slice.bytes.clone());
            data.ok_or_else(|| Error::MissingTensor { name: slice.stored.name.clone() })
        };
        if let [only] = slices
            && only.stored.packed.is_none()
            && only.factor == 1.0
        {
            return data(only).map(TensorBytes::Shared);
        }
        let mut bytes = Vec::with_capacity(slices.iter().map(|slice| slice.bytes.len()).sum());
        for slice in slices {
            let data = data(slice)?;
            match slice.stored.tensor_type.and_then(weight_format) {
                Some(format) if slice.factor != 1.0 => {
                    bytes.extend(change::scaled(data.as_bytes(), format, slice.factor));
                }
                _ => bytes.extend_from_slice(data.as_bytes()),
            }
        }
        Ok(TensorBytes::Made(bytes))
    }

    /// Rows of the embedding.
    fn vocab_size(&self) -> usize {
        self.find(EMBEDDING).and_then(|tensor| tensor.info.dims.get(1)).map_or(0, |&rows| rows as usize)
    }

    /// The tokens that end an answer, as `generation_config.json` or else `config.json` list them.
    fn end_tokens(&self) -> Result<Vec<TokenId>> {
        const FILE: &str = "generation_config.json";
        let map = read_object(&self.path.join(FILE), CONFIG_BYTES)?;
        let generation = map.as_ref().map(|map| Fields::new(FILE, map));
        let named = generation.and_then(|fields| fields.get("eos_token_id"));
        let value = named.or_else(|| self.config.fields().get("eos_token_id"));
        let id = |value: &serde_json::Value| value.as_u64().and_then(|id| TokenId::try_from(id).ok());
        Ok(match value {
            Some(serde_json::Value::Array(ids)) => ids.iter().filter_map(id).collect(),
            Some(value) => id(value).into_iter().collect(),
            None => Vec::new(),
        })
    }
}

impl Checkpoint for HfFolder {
    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn file_metadata(&self) -> Result<Metadata> {
        let mut metadata = self.metadata.clone();
        vocabulary::write(
            &self.path,
            &self.config.fields(),
            self.vocab_size(),
            &self.end_tokens()?,
            &mut metadata,
        )?;
        Ok(metadata)
    }

    fn tensors(&self) -> Box<dyn Iterator<Item = &TensorInfo> + '_> {
        Box::new(self.tensors.iter().map(|tensor| &tensor.info))
    }

    fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.find(name).map(|tensor| &tensor.info)
    }

    fn data(&self, tensor: &TensorInfo) -> Result<TensorBytes> {
        let missing = || Error::MissingTensor { name: tensor.name.clone() };
        let tensor = self.find(&tensor.name).ok_or_else(missing)?;
        let (stored, change) = match &tensor.origin {
            Origin::Generated(values) => return Ok(TensorBytes::Made(change::f32_bytes(values))),
            Origin::Zeros => return Ok(TensorBytes::Made(vec![0; tensor.info.bytes() as usize])),
            Origin::Stacked(slices) => return self.stack(slices),
            Origin::Transposed(heads) => {
                let bytes = heads.bytes(&self.shards.data(&heads.stored)?);
                return bytes.map(TensorBytes::Made).ok_or_else(missing);
            }
            Origin::Experts(rows) => {
                let bytes = rows.bytes(|stored| self.shards.data(stored))?;
                return bytes.map(TensorBytes::Made).ok_or_else(missing);
            }
            Origin::Stored(stored, change) => (stored, *change),
        };
        let data = self.shards.bytes(stored)?;
        let same_type = stored.tensor_type == Some(tensor.info.tensor_type);
        match (change, stored.dims.as_slice()) {
            (Change::None, _) if same_type => Ok(data),
            (Change::Taps(order), [.., rows]) => {
                let format = stored.tensor_type.and_then(weight_format).ok_or_else(missing)?;
                Ok(TensorBytes::Made(change::taps(data.as_ref(), format, order, *rows as usize)))
            }
            (Change::Widen | Change::Flatten, _) | (_, [_]) => {
                let format = stored.tensor_type.and_then(weight_format).ok_or_else(missing)?;
                Ok(TensorBytes::Made(change::vector(data.as_ref(), format, change)))
            }
            (Change::SkipRows(skipped), [_, rows]) => {
                let len = data.as_ref().len();
                let kept = skipped * (len / (*rows as usize).max(1))..len;
                Ok(match data {
                    TensorBytes::Shared(data) => TensorBytes::Shared(data.slice(kept).ok_or_else(missing)?),
                    TensorBytes::Made(bytes) => {
                        TensorBytes::Made(bytes.get(kept).ok_or_else(missing)?.to_vec())
                    }
                })
            }
            (Change::HeadRows(order), [_, rows]) => {
                let row_bytes = data.as_ref().len() / (*rows as usize).max(1);
                Ok(TensorBytes::Made(order.of_rows(data.as_ref(), row_bytes)))
            }
            (Change::HeadColumns(order), [_, rows]) => {
                let row_bytes = data.as_ref().len() / (*rows as usize).max(1);
                Ok(TensorBytes::Made(order.of_columns(data.as_ref(), row_bytes)))
            }
            (Change::Interleave(heads), [_, rows]) => {
                let row_bytes = data.as_ref().len() / (*rows as usize).max(1);
                Ok(TensorBytes::Made(change::interleave(data.as_ref(), row_bytes, heads)))
            }
            _ => Ok(data),
        }
    }

    fn padding_rows(&self, tensor: &TensorInfo) -> u64 {
        match tensor.dims[..] {
            [_, rows] if tensor.name == LAYER_INPUTS => (self.vocab_size() as u64).saturating_sub(rows),
            _ => 0,
        }
    }

    fn file_bytes(&self) -> u64 {
        self.shards.file_bytes()
    }

    fn gguf_version(&self) -> Option<u32> {
        None
    }

    fn tokenizer(&self) -> Result<Tokenizer> {
        let file = self.path.join(vocabulary::TOKENIZER);
        let tokenizer = if file.exists() {
            Tokenizer::from_file(&file)?
        } else {
            Tokenizer::from_gguf(&self.file_metadata()?)?
        };
        let (ids, rows) = (tokenizer.text_vocab_size(), self.vocab_size());
        if ids > rows {
            return Err(Error::VocabularySize { tokenizer: ids, embedding: rows });
        }
        Ok(tokenizer.with_end_tokens(&self.end_tokens()?))
    }
}

/// The shape of the folder; lists of tensors would be too long.
impl fmt::Debug for HfFolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HfFolder")
            .field("path", &self.path)
            .field("shards", &self.shards.len())
            .field("tensors", &self.tensors.len())
            .finish_non_exhaustive()
    }
}

/// Name of the model: last part of `_name_or_path` in the configuration, else the folder's name.
fn model_name(path: &Path, config: &Config) -> String {
    let last = |name: &str| name.trim_end_matches('/').rsplit('/').next().unwrap_or_default().to_owned();
    let named = config.fields().get("_name_or_path").and_then(serde_json::Value::as_str).map(last);
    let folder = || {
        let absolute = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        absolute.file_name().map(|name| name.to_string_lossy().into_owned())
    };
    named.filter(|name| !name.is_empty()).or_else(folder).unwrap_or_default()
}

/// The number of `general.file_type` for the type of most matrix values.
fn file_type(tensors: &[Tensor]) -> u32 {
    let values = |tensor_type: TensorType| -> u64 {
        let has_type =
            |tensor: &&Tensor| tensor.info.dims.len() > 1 && tensor.info.tensor_type == tensor_type;
        tensors.iter().filter(has_type).map(|tensor| tensor.info.elements()).sum()
    };
    let types = [
        (TensorType::F32, 0),
        (TensorType::F16, 1),
        (TensorType::Q4_0, 2),
        (TensorType::Q4_1, 3),
        (TensorType::Q8_0, 7),
        (TensorType::BF16, 32),
        (TensorType::MXFP4, 38),
    ];
    types.into_iter().max_by_key(|&(tensor_type, _)| values(tensor_type)).map_or(0, |(_, number)| number)
}
