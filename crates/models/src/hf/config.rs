//! `config.json`: sizes, and the hyperparameters under the keys of GGUF.

use std::path::Path;

use gguf_rs_lite::Metadata;
use serde_json::{Map, Value};

use super::encoder;
use super::family::{self, Family, Form, Kind};
use super::fields::{self, Fields};
use super::rope::{self, Generated};
use super::window;
use crate::error::{Error, Result};

/// Name of the file.
pub(super) const FILE: &str = "config.json";

/// Limits beyond which a value is not taken for real; every size is checked against the tensors afterwards.
pub(super) const MAX_WIDTH: usize = 1 << 20;
const MAX_HEAD_DIM: usize = 1 << 12;
pub(super) const MAX_POSITIONS: usize = u32::MAX as usize;
pub(super) const MAX_LAYERS: usize = 1 << 16;
pub(super) const MAX_VOCAB: usize = 1 << 24;

/// A `config.json` as an object: what `text_config` says stands in the place of what the file itself says.
pub(super) struct Config {
    map: Map<String, Value>,
    /// The model has parts that are not for text.
    pub(super) is_multimodal: bool,
}

/// The sizes that shapes follow from.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    pub(super) model_dim: usize,
    pub(super) ffn_dim: usize,
    pub(super) n_layers: usize,
    pub(super) n_heads: usize,
    pub(super) n_kv_heads: usize,
    pub(super) head_dim: usize,
    /// `None`: as many as the embedding has rows.
    pub(super) vocab_size: Option<usize>,
    pub(super) context: usize,
    /// The row of the first position in an encoder's table; those before it stand for no token.
    pub(super) first_position: usize,
    /// Rows of an encoder's table of token types.
    pub(super) n_token_types: usize,
}

/// What a `config.json` says.
pub(super) struct Hyperparameters {
    pub(super) family: &'static Family,
    pub(super) sizes: Sizes,
    /// The embedding makes the logits; `None` if the file leaves it to the weights.
    pub(super) is_tied: Option<bool>,
    pub(super) metadata: Metadata,
    /// Tensors that follow from the hyperparameters.
    pub(super) generated: Vec<Generated>,
}

impl Config {
    /// Reads the file of a folder.
    pub(super) fn read(folder: &Path) -> Result<Self> {
        let path = folder.join(FILE);
        let map = fields::read_object(&path)?.ok_or_else(|| Error::NotAModelFolder {
            path: folder.to_owned(),
            reason: "it has no config.json",
        })?;
        Self::new(map)
    }

    fn new(mut map: Map<String, Value>) -> Result<Self> {
        let text = match map.remove("text_config") {
            None | Some(Value::Null) => return Ok(Self { map, is_multimodal: false }),
            Some(Value::Object(text)) => text,
            Some(other) => {
                map.insert("text_config".into(), other);
                return Err(Fields::new(FILE, &map).invalid("text_config", "an object"));
            }
        };
        // The class is that of the whole model; the rest of its part for text.
        let classes = map.get("architectures").cloned();
        const TIED: &str = "tie_word_embeddings";
        let disagree =
            matches!((map.get(TIED), text.get(TIED)), (Some(Value::Bool(a)), Some(Value::Bool(b))) if a != b);
        for (key, value) in text {
            // A `null` takes nothing away, but is another thing than a field that is left out.
            if !value.is_null() || !map.contains_key(&key) {
                map.insert(key, value);
            }
        }
        if let Some(classes) = classes {
            map.insert("architectures".into(), classes);
        }
        if disagree {
            // The weights tell.
            map.remove(TIED);
        }
        Ok(Self { map, is_multimodal: true })
    }

    pub(super) fn map(&self) -> &Map<String, Value> {
        &self.map
    }

    pub(super) fn fields(&self) -> Fields<'_> {
        Fields::new(FILE, &self.map)
    }

    /// Reads and checks everything. `name` is what the model is called.
    pub(super) fn hyperparameters(&self, name: &str) -> Result<Hyperparameters> {
        let config = self.fields();
        let classes = config.list("architectures")?.unwrap_or_default();
        let classes: Vec<&str> = classes.iter().filter_map(Value::as_str).collect();
        let family = family::find(&config, &classes)?;
        if config.get("quantization_config").is_some() {
            let expected = "absent: folders of quantized weights cannot be read, take the unquantized model";
            return Err(config.invalid("quantization_config", expected));
        }
        check_activation(&config, family)?;
        let mut metadata = Metadata::new();
        metadata.insert("general.architecture", family.architecture);
        metadata.insert("general.type", "model");
        metadata.insert("general.name", name);
        let mut keys = Keys { architecture: family.architecture, metadata };
        let kind = match family.form {
            Form::Decoder(kind) => kind,
            Form::Encoder(kind) => {
                let sizes = encoder::write(&config, kind, &mut keys)?;
                // Other readers want a number above 0, also where there is no table.
                let n_token_types = sizes.n_token_types.max(1) as u32;
                keys.metadata.insert("tokenizer.ggml.token_type_count", n_token_types);
                // Heads that guess left-out words are parts of some files, and follow from the embedding.
                let is_tied = Some(true);
                let (metadata, generated) = (keys.metadata, Vec::new());
                return Ok(Hyperparameters { family, sizes, is_tied, metadata, generated });
            }
        };
        let sizes = read_sizes(&config, kind)?;
        write_sizes(&config, kind, &sizes, &mut keys)?;
        window::write(&config, kind, &sizes, &mut keys)?;
        write_caps(&config, kind, &sizes, &mut keys)?;
        let generated = rope::write(&config, kind, &sizes, &mut keys)?;
        let is_tied = match (kind, config.flag("tie_word_embeddings")?) {
            (Kind::Gemma | Kind::Gemma2 | Kind::Gemma3, None) => Some(true),
            (_, tied) => tied,
        };
        Ok(Hyperparameters { family, sizes, is_tied, metadata: keys.metadata, generated })
    }
}

/// Writes keys that begin with the architecture.
pub(super) struct Keys {
    architecture: &'static str,
    metadata: Metadata,
}

impl Keys {
    pub(super) fn count(&mut self, suffix: &str, count: usize) {
        // Every count is at most `MAX_POSITIONS`.
        self.insert(suffix, u32::try_from(count).unwrap_or(u32::MAX));
    }

    pub(super) fn real(&mut self, suffix: &str, real: f64) {
        self.insert(suffix, real as f32);
    }

    pub(super) fn text(&mut self, suffix: &str, text: &str) {
        self.insert(suffix, text);
    }

    pub(super) fn flag(&mut self, suffix: &str, flag: bool) {
        self.insert(suffix, flag);
    }

    pub(super) fn flags(&mut self, suffix: &str, flags: Vec<bool>) {
        self.insert(suffix, flags);
    }

    fn insert(&mut self, suffix: &str, value: impl Into<gguf_rs_lite::Value>) {
        self.metadata.insert(format!("{}.{suffix}", self.architecture), value);
    }
}

fn check_activation(config: &Fields<'_>, family: &Family) -> Result<()> {
    for key in ["hidden_activation", "hidden_act", "activation"] {
        if let Some(name) = config.text(key)? {
            // Of several fields the first is the one that counts.
            return match family.activations.contains(&name) {
                true => Ok(()),
                false => Err(config.invalid(key, format!("one of {}", family.activations.join(", ")))),
            };
        }
    }
    Ok(())
}

fn read_sizes(config: &Fields<'_>, kind: Kind) -> Result<Sizes> {
    // Gemma 3 files leave out what is as in the smallest model of the class.
    let gemma3 = kind == Kind::Gemma3;
    let or_default = |key: &str, max: usize, default: usize| match config.count(key, 1..=max)? {
        Some(count) => Ok(count),
        None if gemma3 => Ok(default),
        None => config.require_count(key, 1..=max),
    };
    let model_dim = config.require_count("hidden_size", 1..=MAX_WIDTH)?;
    let n_heads = or_default("num_attention_heads", MAX_WIDTH, 8)?;
    let n_kv_heads = match config.count("num_key_value_heads", 1..=MAX_WIDTH)? {
        Some(n_kv_heads) => n_kv_heads,
        None if gemma3 => 4,
        None => n_heads,
    };
    if n_heads % n_kv_heads != 0 {
        let expected = format!("a divisor of the {n_heads} attention heads");
        return Err(config.invalid("num_key_value_heads", expected));
    }
    let head_dim = match config.count("head_dim", 1..=MAX_HEAD_DIM)? {
        Some(head_dim) => head_dim,
        None if matches!(kind, Kind::Gemma | Kind::Gemma2 | Kind::Gemma3) => 256,
        None if model_dim.is_multiple_of(n_heads) && model_dim / n_heads <= MAX_HEAD_DIM => {
            model_dim / n_heads
        }
        None => {
            let expected = format!("a divisor of hidden_size {model_dim}, or head_dim");
            return Err(config.invalid("num_attention_heads", expected));
        }
    };
    if head_dim % 2 != 0 {
        let key = if config.get("head_dim").is_some() { "head_dim" } else { "num_attention_heads" };
        return Err(config.invalid(key, format!("heads of an even width, not of {head_dim}")));
    }
    Ok(Sizes {
        model_dim,
        ffn_dim: config.require_count("intermediate_size", 1..=MAX_WIDTH)?,
        n_layers: config.require_count("num_hidden_layers", 1..=MAX_LAYERS)?,
        n_heads,
        n_kv_heads,
        head_dim,
        vocab_size: config.count("vocab_size", 1..=MAX_VOCAB)?,
        context: or_default("max_position_embeddings", MAX_POSITIONS, 131_072)?,
        first_position: 0,
        n_token_types: 0,
    })
}

fn write_sizes(config: &Fields<'_>, kind: Kind, sizes: &Sizes, keys: &mut Keys) -> Result<()> {
    keys.count("block_count", sizes.n_layers);
    keys.count("context_length", sizes.context);
    keys.count("embedding_length", sizes.model_dim);
    keys.count("feed_forward_length", sizes.ffn_dim);
    keys.count("attention.head_count", sizes.n_heads);
    keys.count("attention.head_count_kv", sizes.n_kv_heads);
    let usual_eps = if kind == Kind::Phi3 { 1e-5 } else { 1e-6 };
    keys.real("attention.layer_norm_rms_epsilon", config.positive("rms_norm_eps")?.unwrap_or(usual_eps));
    let is_implied = config.get("head_dim").is_none() && sizes.head_dim * sizes.n_heads == sizes.model_dim;
    // Phi-3 files name none, and their writers none either.
    if kind != Kind::Phi3 && !is_implied {
        keys.count("attention.key_length", sizes.head_dim);
        keys.count("attention.value_length", sizes.head_dim);
    }
    if let (Kind::Llama | Kind::Mistral | Kind::Mistral3, Some(vocab_size)) = (kind, sizes.vocab_size) {
        keys.count("vocab_size", vocab_size);
    }
    Ok(())
}

/// Soft caps, and the scale of scores where it is not that of the head.
fn write_caps(config: &Fields<'_>, kind: Kind, sizes: &Sizes, keys: &mut Keys) -> Result<()> {
    const ATTENTION: &str = "attn_logit_softcapping";
    const LOGITS: &str = "final_logit_softcapping";
    match kind {
        Kind::Gemma2 => {
            for (key, usual) in [(ATTENTION, 50.0), (LOGITS, 30.0)] {
                // `null` is no cap.
                let absent = if config.is_absent(key) { usual } else { 0.0 };
                keys.real(key, config.positive(key)?.unwrap_or(absent));
            }
        }
        Kind::Gemma3 => {
            if config.get(ATTENTION).is_some() {
                return Err(config.invalid(ATTENTION, "null: Gemma 3 has norms instead"));
            }
            const BOTH_WAYS: &str = "use_bidirectional_attention";
            if config.flag(BOTH_WAYS)? == Some(true) {
                return Err(
                    config.invalid(BOTH_WAYS, "false: only models that write from left to right can be run")
                );
            }
            if let Some(cap) = config.positive(LOGITS)? {
                keys.real(LOGITS, cap);
            }
        }
        _ => return Ok(()),
    }
    let scalar = config.positive("query_pre_attn_scalar")?.unwrap_or(256.0);
    if scalar != sizes.head_dim as f64 {
        keys.real("attention.scale", scalar.sqrt().recip());
    }
    Ok(())
}
