//! Adapters as PEFT saves them: `adapter_config.json` beside `adapter_model.safetensors`, whose
//! tensors are called `base_model.model.MODULE.lora_A.weight` and `.lora_B.weight`. Source: PEFT
//! 0.17.

use std::collections::BTreeMap;
use std::path::Path;

use gguf_rs_lite::TensorData;
use regex::Regex;
use ruvllm_kernels::quant::WeightFormat;
use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::error::{Error, Result};
use crate::file::{Factor, LoraFile, Update};
use crate::place::{Projection, RowOrder};

const CONFIG: &str = "adapter_config.json";
const WEIGHTS: &str = "adapter_model.safetensors";

/// What comes before a layer's number in the names of decoders, alone or beside an encoder of
/// images.
const LAYERS: [&str; 4] =
    ["model.layers.", "layers.", "model.language_model.layers.", "language_model.model.layers."];

const LOGITS: [&str; 2] = ["lm_head", "language_model.lm_head"];

const PROJECTIONS: [(&str, Projection); 9] = [
    ("self_attn.q_proj", Projection::Query),
    ("self_attn.k_proj", Projection::Key),
    ("self_attn.v_proj", Projection::Value),
    ("self_attn.qkv_proj", Projection::QueryKeyValue),
    ("self_attn.o_proj", Projection::AttentionOutput),
    ("mlp.gate_proj", Projection::Gate),
    ("mlp.up_proj", Projection::Up),
    ("mlp.gate_up_proj", Projection::GateUp),
    ("mlp.down_proj", Projection::Down),
];

/// The fields that matter here. PEFT writes many of them as `null`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Config {
    peft_type: Option<String>,
    r: Option<usize>,
    lora_alpha: Option<f64>,
    use_rslora: Option<bool>,
    rank_pattern: Option<Map<String, Value>>,
    alpha_pattern: Option<Map<String, Value>>,
    init_lora_weights: Option<Value>,
    #[serde(flatten)]
    others: Map<String, Value>,
}

/// Fields that are not set in a plain LoRA, and what they ask for.
const MORE: [(&str, &str); 10] = [
    ("use_dora", "changes magnitudes as well"),
    ("use_qalora", "adds up groups of inputs"),
    ("use_bdlora", "has factors in blocks"),
    ("layer_replication", "repeats layers"),
    ("target_parameters", "changes the parameters of experts"),
    ("alora_invocation_tokens", "begins behind certain tokens only"),
    ("arrow_config", "chooses among adapters by token"),
    ("kasa_config", "changes the weights of the model as well"),
    ("velora_config", "is not computed as a plain LoRA"),
    ("monteclora_config", "is not computed as a plain LoRA"),
];

/// Beginnings of factors that leave the model's own weights as they are; the others subtract what
/// they begin with.
const HARMLESS: [&str; 4] = ["gaussian", "orthogonal", "eva", "mica"];

/// Rank and scale of modules by their names.
struct Scales {
    rank: usize,
    alpha: f64,
    by_root: bool,
    ranks: Vec<(Regex, f64)>,
    alphas: Vec<(Regex, f64)>,
}

pub(crate) fn open(folder: &Path) -> Result<LoraFile> {
    read(folder, &folder.join(WEIGHTS)).map_err(|error| error.in_file(folder))
}

/// Opens the folder of a weights file that was named itself.
pub(crate) fn open_weights(weights: &Path) -> Result<LoraFile> {
    read(weights.parent().unwrap_or(Path::new("")), weights).map_err(|error| error.in_file(weights))
}

fn read(folder: &Path, weights: &Path) -> Result<LoraFile> {
    let path = folder.join(CONFIG);
    let text = std::fs::read(&path).map_err(|source| Error::Read { path, source })?;
    let scales =
        serde_json::from_slice(&text).map_err(|source| Error::Config { source }).and_then(Scales::new)?;
    if !weights.exists() && folder.join("adapter_model.bin").exists() {
        let what = "its weights are a pickle (adapter_model.bin); save it again with safe_serialization=True";
        return Err(Error::Unsupported { what: what.to_owned() });
    }
    let data = TensorData::map_file(weights)
        .map_err(|source| Error::Gguf { path: weights.to_owned(), source: Box::new(source) })?;
    LoraFile::new(folder, updates(&data, &scales)?, RowOrder::HuggingFace, None)
}

fn updates(data: &TensorData, scales: &Scales) -> Result<Vec<Update>> {
    let (header, metadata) =
        SafeTensors::read_metadata(data.as_bytes()).map_err(|source| Error::Safetensors { source })?;
    let mut factors: BTreeMap<String, [Option<Factor>; 2]> = BTreeMap::new();
    for (name, info) in metadata.tensors() {
        // Of matrices outside of the layers PEFT saves a copy, too.
        if name.ends_with(".base_layer.weight") {
            continue;
        }
        let (module, which) = split(&name)?;
        let format = match info.dtype {
            Dtype::F32 => WeightFormat::F32,
            Dtype::F16 => WeightFormat::F16,
            Dtype::BF16 => WeightFormat::BF16,
            other => return Err(Error::TensorType { name, found: format!("{other:?}") }),
        };
        let &[rows, cols] = info.shape.as_slice() else { return Err(Error::NotAMatrix { name }) };
        // Eight bytes of length come before the header.
        let range = 8 + header + info.data_offsets.0..8 + header + info.data_offsets.1;
        let data = data.slice(range).ok_or_else(|| Error::Cut { name: name.clone() })?;
        factors.entry(module.to_owned()).or_default()[which] = Some(Factor { format, rows, cols, data });
    }
    let mut updates = Vec::with_capacity(factors.len());
    for (module, pair) in factors {
        let [Some(a), Some(b)] = pair else { return Err(Error::Half { name: module }) };
        let place = place(&module).ok_or_else(|| Error::UnknownMatrix { name: module.clone() })?;
        let expected = scales.rank_of(&module);
        if a.rows != expected {
            return Err(Error::Rank { name: module, found: a.rows, expected });
        }
        updates.push(Update::new(&module, place, (a, b), |rank| scales.scale_of(&module, rank))?);
    }
    Ok(updates)
}

/// The module of a tensor, and whether it is its `A` or `B`.
fn split(name: &str) -> Result<(&str, usize)> {
    let module = name.strip_prefix("base_model.model.").unwrap_or(name);
    if let Some(module) = module.strip_suffix(".lora_A.weight") {
        return Ok((module, 0));
    }
    if let Some(module) = module.strip_suffix(".lora_B.weight") {
        return Ok((module, 1));
    }
    let what = if name.contains("lora_magnitude_vector") {
        "it also changes magnitudes (DoRA)"
    } else if name.contains("lora_embedding_") {
        "it changes the embedding of tokens"
    } else if name.ends_with("bias") {
        "it has biases"
    } else {
        return Err(Error::UnexpectedTensor { name: name.to_owned() });
    };
    Err(Error::Unsupported { what: format!("{what}: {name}") })
}

/// The matrix of a module like `model.layers.3.self_attn.q_proj`.
fn place(module: &str) -> Option<(Projection, usize)> {
    if LOGITS.contains(&module) {
        return Some((Projection::Logits, 0));
    }
    let rest = LAYERS.iter().find_map(|prefix| module.strip_prefix(prefix))?;
    let (layer, part) = rest.split_once('.')?;
    let &(_, projection) = PROJECTIONS.iter().find(|(known, _)| *known == part)?;
    Some((projection, layer.parse().ok()?))
}

impl Scales {
    fn new(config: Config) -> Result<Self> {
        let refuse = |what: &str| Err(Error::Unsupported { what: what.to_owned() });
        match config.peft_type.as_deref() {
            Some("LORA") => {}
            other => return refuse(&format!("peft_type is {}", other.unwrap_or("missing"))),
        }
        let is_set = |value: &Value| match value {
            Value::Null | Value::Bool(false) => false,
            Value::Array(list) => !list.is_empty(),
            Value::Object(fields) => !fields.is_empty(),
            _ => true,
        };
        if let Some((name, what)) = MORE.iter().find(|(name, _)| config.others.get(*name).is_some_and(is_set))
        {
            return refuse(&format!("it {what} ({name})"));
        }
        if let Some(Value::String(begin)) = &config.init_lora_weights
            && !HARMLESS.contains(&begin.as_str())
        {
            return refuse(&format!(
                "it changes the weights of the model when it is loaded (init_lora_weights is {begin})"
            ));
        }
        let (Some(rank), Some(alpha)) = (config.r, config.lora_alpha) else {
            return Err(Error::MissingField { name: if config.r.is_none() { "r" } else { "lora_alpha" } });
        };
        Ok(Self {
            rank,
            alpha,
            by_root: config.use_rslora.unwrap_or(false),
            ranks: patterns(config.rank_pattern)?,
            alphas: patterns(config.alpha_pattern)?,
        })
    }

    fn rank_of(&self, module: &str) -> usize {
        first_match(&self.ranks, module).map_or(self.rank, |rank| rank as usize)
    }

    /// Alpha by rank, or by its root.
    fn scale_of(&self, module: &str, rank: usize) -> f32 {
        let alpha = first_match(&self.alphas, module).unwrap_or(self.alpha);
        let rank = rank as f64;
        (alpha / if self.by_root { rank.sqrt() } else { rank }) as f32
    }
}

/// A pattern is the end of a module's name, from a dot on, and may be a regular expression.
fn patterns(fields: Option<Map<String, Value>>) -> Result<Vec<(Regex, f64)>> {
    let pattern = |(key, value): (String, Value)| {
        let invalid = || Error::Pattern { pattern: key.clone() };
        let regex = Regex::new(&format!(r"^(?:.*\.)?(?:{key})$")).map_err(|_| invalid())?;
        Ok((regex, value.as_f64().ok_or_else(invalid)?))
    };
    fields.unwrap_or_default().into_iter().map(pattern).collect()
}

/// The value of the first pattern that names the module.
fn first_match(patterns: &[(Regex, f64)], module: &str) -> Option<f64> {
    patterns.iter().find(|(regex, _)| regex.is_match(module)).map(|&(_, value)| value)
}
