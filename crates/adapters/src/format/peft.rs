//! Adapters as PEFT saves them: `adapter_config.json` beside `adapter_model.safetensors`, whose
//! tensors are called `base_model.model.MODULE.lora_A.weight` and `.lora_B.weight`. Source: PEFT
//! 0.17.

use std::collections::BTreeMap;
use std::path::Path;

use gguf_rs_lite::TensorData;
use ruvllm_kernels::quant::WeightFormat;
use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::patterns::Patterns;
use super::refused::refused;
use super::simple::{Simple, first_set, numbers};
use crate::error::{Error, Result};
use crate::file::{Factor, LoraFile, Update};
use crate::place::{Projection, RowOrder};

pub(crate) const CONFIG: &str = "adapter_config.json";
pub(crate) const WEIGHTS: &str = "adapter_model.safetensors";

/// Largest configuration that is read, in bytes. One with a rank and a scale for each matrix of 126
/// layers has 150 KB.
const MAX_CONFIG_BYTES: u64 = 1 << 20;

/// Longest list of tensors that is read, in bytes: some 20,000 pairs of factors at most. Those of
/// all matrices of 126 layers take 300 KB.
pub(crate) const MAX_HEADER_BYTES: u64 = 4 << 20;

/// Prefixes of a layer's number in tensor names of decoders, alone or beside an image encoder.
const LAYERS: [&str; 4] =
    ["model.layers.", "layers.", "model.language_model.layers.", "language_model.model.layers."];

const LOGITS: [&str; 2] = ["lm_head", "language_model.lm_head"];

/// Of several names of a projection, the first is written.
const PROJECTIONS: [(&str, Projection); 18] = [
    ("self_attn.q_proj", Projection::Query),
    ("self_attn.k_proj", Projection::Key),
    ("self_attn.v_proj", Projection::Value),
    ("self_attn.qkv_proj", Projection::QueryKeyValue),
    ("self_attn.o_proj", Projection::AttentionOutput),
    ("mlp.gate_proj", Projection::Gate),
    ("mlp.up_proj", Projection::Up),
    ("mlp.gate_up_proj", Projection::GateUp),
    ("mlp.down_proj", Projection::Down),
    ("mlp.shared_expert.gate_proj", Projection::Gate),
    ("mlp.shared_expert.up_proj", Projection::Up),
    ("mlp.shared_expert.down_proj", Projection::Down),
    ("feed_forward.gate_proj", Projection::Gate),
    ("feed_forward.up_proj", Projection::Up),
    ("feed_forward.down_proj", Projection::Down),
    ("feed_forward.shared_expert.gate_proj", Projection::Gate),
    ("feed_forward.shared_expert.up_proj", Projection::Up),
    ("feed_forward.shared_expert.down_proj", Projection::Down),
];

/// The fields that matter here. PEFT writes many of them as `null`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Config {
    peft_type: Option<String>,
    r: Option<usize>,
    lora_alpha: Option<f64>,
    use_rslora: Option<bool>,
    #[serde(deserialize_with = "numbers")]
    rank_pattern: Option<Map<String, Value>>,
    #[serde(deserialize_with = "numbers")]
    alpha_pattern: Option<Map<String, Value>>,
    init_lora_weights: Option<Simple>,
}

/// Fields of adapters that PEFT can merge into their base model, and what they ask for.
const MERGEABLE: [(&str, &str); 3] = [
    ("use_dora", "changes magnitudes as well"),
    ("modules_to_save", "has whole modules"),
    ("trainable_token_indices", "trains single tokens"),
];

/// Other fields that are not set in a plain LoRA, and what they ask for.
const MORE: [(&str, &str); 9] = [
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
    patterns: Patterns,
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
    let text =
        gguf_rs_lite::read_bounded(&path, MAX_CONFIG_BYTES).map_err(|source| Error::Read { path, source })?;
    let invalid = |source| Error::Config { source };
    let names: Vec<_> = MERGEABLE.iter().chain(&MORE).map(|(name, _)| *name).collect();
    let more = first_set(&text, &names).map_err(invalid)?;
    let scales = Scales::new(serde_json::from_slice(&text).map_err(invalid)?, more)?;
    if !weights.exists() && folder.join("adapter_model.bin").exists() {
        let what = "its weights are a pickle (adapter_model.bin); save it again with safe_serialization=True";
        return Err(Error::Unsupported { what: what.to_owned() });
    }
    let data = TensorData::map_file(weights)
        .map_err(|source| Error::Gguf { path: weights.to_owned(), source: Box::new(source) })?;
    LoraFile::new(folder, updates(&data, &scales)?, RowOrder::HuggingFace, None)
}

fn updates(data: &TensorData, scales: &Scales) -> Result<Vec<Update>> {
    check_header(data.as_bytes())?;
    let (header, metadata) =
        SafeTensors::read_metadata(data.as_bytes()).map_err(|source| Error::Safetensors { source })?;
    let mut factors: BTreeMap<String, [Option<Factor>; 2]> = BTreeMap::new();
    for (name, info) in metadata.tensors() {
        // Of matrices outside of the layers PEFT saves a copy, too.
        if [".base_layer.weight", ".base_layer.bias"].iter().any(|end| name.ends_with(end)) {
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
        let place = place(&module).ok_or_else(|| refused(&module))?;
        let given = scales.patterns.of(&module);
        let expected = given.rank.map_or(scales.rank, |rank| rank as usize);
        if a.rows != expected {
            return Err(Error::Rank { name: module, found: a.rows, expected });
        }
        updates.push(Update::new(&module, place, (a, b), |rank| scales.scale(given.alpha, rank))?);
    }
    Ok(updates)
}

/// Refuses a list of tensors that is longer than any adapter's, before it is parsed.
pub(crate) fn check_header(bytes: &[u8]) -> Result<()> {
    match bytes.first_chunk().map(|&length| u64::from_le_bytes(length)) {
        Some(found) if found > MAX_HEADER_BYTES => Err(Error::Header { found, limit: MAX_HEADER_BYTES }),
        _ => Ok(()),
    }
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
    } else if name.contains("trainable_tokens") {
        "it trains single tokens"
    } else if name.ends_with("bias") {
        return Err(Error::Unsupported { what: format!("it has biases: {name}") });
    } else if name.ends_with(".weight") && !name.contains(".lora_") {
        "it has a whole module (modules_to_save)"
    } else {
        return Err(Error::UnexpectedTensor { name: name.to_owned() });
    };
    Err(Error::MergeFirst { what: format!("{what}: {name}") })
}

/// The matrix of a module like `model.layers.3.self_attn.q_proj`.
pub(crate) fn place(module: &str) -> Option<(Projection, usize)> {
    if LOGITS.contains(&module) {
        return Some((Projection::Logits, 0));
    }
    let rest = LAYERS.iter().find_map(|prefix| module.strip_prefix(prefix))?;
    let (layer, part) = rest.split_once('.')?;
    let &(_, projection) = PROJECTIONS.iter().find(|(known, _)| *known == part)?;
    Some((projection, layer.parse().ok()?))
}

/// The module of a matrix, as `model.layers.3.self_attn.q_proj`.
pub(crate) fn module_name(projection: Projection, layer: usize) -> Option<String> {
    if projection == Projection::Logits {
        return Some(LOGITS[0].to_owned());
    }
    let &(part, _) = PROJECTIONS.iter().find(|(_, known)| *known == projection)?;
    Some(format!("{}{layer}.{part}", LAYERS[0]))
}

impl Scales {
    /// `more` is the first field that is set of [`MERGEABLE`] and [`MORE`].
    fn new(config: Config, more: Option<&str>) -> Result<Self> {
        let refuse = |what: &str| Err(Error::Unsupported { what: what.to_owned() });
        match config.peft_type.as_deref() {
            Some("LORA") => {}
            other => return refuse(&format!("peft_type is {}", other.unwrap_or("missing"))),
        }
        if let Some((name, what)) = MERGEABLE.iter().find(|(name, _)| Some(*name) == more) {
            return Err(Error::MergeFirst { what: format!("it {what} ({name})") });
        }
        if let Some((name, what)) = MORE.iter().find(|(name, _)| Some(*name) == more) {
            return refuse(&format!("it {what} ({name})"));
        }
        if let Some(Simple::Text(begin)) = &config.init_lora_weights
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
            patterns: Patterns::new(config.rank_pattern, config.alpha_pattern)?,
        })
    }

    /// Alpha by rank, or by its root; `alpha` is that of a pattern.
    fn scale(&self, alpha: Option<f64>, rank: usize) -> f32 {
        let alpha = alpha.unwrap_or(self.alpha);
        let rank = rank as f64;
        (alpha / if self.by_root { rank.sqrt() } else { rank }) as f32
    }
}
