//! `config.json`: sizes, and the hyperparameters under the keys of GGUF.

use std::path::Path;

use gguf_rs_lite::Metadata;
use serde_json::{Map, Value};

use super::experts::StackForm;
use super::family::{Decoder, Family, Form, Part, Shape, SoftCaps};
use super::fields::{self, Fields};
use super::heads::RecurrentSizes;
use super::keys::Keys;
use super::latent;
use super::layers::LayerKinds;
use super::packed::Scheme;
use super::recurrent::Recurrent;
use super::roles::Role;
use super::rope::{self, Generated};
use super::sizes::{MAX_HEAD_DIM, MAX_LAYERS, MAX_POSITIONS, MAX_VOCAB, MAX_WIDTH, Multipliers, Sizes};
use super::{chunked, decoder, encoder, layers, parts, window};
use crate::error::{Error, Result};
use crate::family::{LatentAttention, listed};

/// Name of the file.
pub(super) const FILE: &str = "config.json";

/// A `config.json` as an object: what `text_config` says stands in the place of what the file
/// itself says.
pub(super) struct Config {
    map: Map<String, Value>,
    /// The model has parts that are not for text.
    pub(super) is_multimodal: bool,
}

/// Contents of a `config.json`, checked and converted.
pub(super) struct Hyperparameters {
    pub(super) family: &'static Family,
    pub(super) sizes: Sizes,
    /// The embedding makes the logits; `None` if the file leaves it to the weights.
    pub(super) is_tied: Option<bool>,
    pub(super) metadata: Metadata,
    /// Quantization of the weights.
    pub(super) scheme: Option<Scheme>,
    /// Tensors that follow from the hyperparameters.
    pub(super) generated: Vec<Generated>,
    /// Roles of layers, `[n_layers]`; empty if all have attention and a network.
    roles: Vec<Role>,
    /// `None`: layers with and without a window are alike.
    kinds: Option<LayerKinds>,
    /// False if the family may have norms of heads and the model has none.
    has_head_norms: bool,
    /// True if the folder has a head that predicts further tokens.
    pub(super) has_prediction_head: bool,
}

impl Hyperparameters {
    /// The tensors of a layer.
    pub(super) fn parts_of(&self, layer: usize) -> impl Iterator<Item = &'static Part> + Clone + use<'_> {
        let groups = match &self.family.form {
            Form::Decoder(decoder) => match self.roles.get(layer) {
                Some(Role::State) => decoder.recurrent_layer,
                Some(Role::Network) => decoder.dense_layer,
                Some(Role::Experts) => decoder.expert_layer,
                None if !decoder.dense_layer.is_empty() && !self.have_experts(layer) => decoder.dense_layer,
                Some(Role::Attention) | None => self.family.layer,
            },
            Form::Encoder(_) => self.family.layer,
        };
        let attention = match &self.sizes.latent {
            None => &[][..],
            Some(latent) if latent.query_rank.is_some() => parts::LATENT_QUERIES,
            Some(_) => parts::LATENT,
        };
        let networks = match &self.family.form {
            Form::Decoder(decoder) => decoder.networks[usize::from(self.sizes.experts.is_none())],
            Form::Encoder(_) => &[],
        };
        let input = if self.sizes.layer_input_dim > 0 { parts::LAYER_INPUT } else { &[] };
        let head = if layer == self.sizes.n_layers { parts::PREDICTION } else { &[] };
        let has_head_norms = self.has_head_norms;
        let parts =
            groups.iter().chain(attention).chain(networks).chain(input).chain(head).copied().flatten();
        let parts = parts.filter(move |part| has_head_norms || part.shape != Shape::HeadNorm);
        let parts = parts.filter(move |part| layer > 0 || part.shape != Shape::LaterNorm);
        let has_norm = self.sizes.recurrent.has_norm;
        let parts = parts.filter(move |part| has_norm || part.shape != Shape::MambaNorm);
        parts.filter(move |part| self.kinds.as_ref().is_none_or(|kinds| kinds.has(layer, part)))
    }

    /// Tensors that a layer may have beside these.
    pub(super) fn optional_parts_of(&self, layer: usize) -> impl Iterator<Item = &'static Part> + Clone {
        let own = if layer == self.sizes.n_layers { parts::PREDICTION_OWN } else { &[] };
        own.iter().copied().flatten()
    }

    /// The tensors that are in no layer.
    pub(super) fn parts_outside(&self) -> impl Iterator<Item = &'static Part> + Clone {
        let has_inputs = self.sizes.layer_input_dim > 0;
        self.family.names.outside.iter().filter(move |part| has_inputs || !part.shape.is_of_layer_inputs())
    }

    /// The sizes of a layer.
    pub(super) fn sizes_of(&self, layer: usize) -> Sizes {
        self.kinds.as_ref().map_or(self.sizes, |kinds| kinds.sizes_of(layer, &self.sizes))
    }

    /// True for a layer with experts.
    pub(super) fn have_experts(&self, layer: usize) -> bool {
        let may_be_here = match self.roles.contains(&Role::Experts) {
            true => self.roles[layer] == Role::Experts,
            false => true,
        };
        may_be_here && self.sizes.experts.is_some_and(|experts| experts.are_in(layer))
    }

    /// True for a tensor of a layer that folders may lack and files have.
    pub(super) fn may_lack(&self, layer: usize, part: &Part) -> bool {
        self.kinds.as_ref().is_some_and(|kinds| kinds.may_lack(layer, part))
    }

    /// True for a tensor of a layer that is never used.
    pub(super) fn ignores(&self, layer: usize, name: &str) -> bool {
        self.kinds.as_ref().is_some_and(|kinds| kinds.ignores(layer, name))
    }
}

impl Config {
    /// Reads the file of a folder.
    pub(super) fn read(folder: &Path) -> Result<Self> {
        let path = folder.join(FILE);
        let map = fields::read_object(&path, fields::CONFIG_BYTES)?.ok_or_else(|| {
            Error::NotAModelFolder { path: folder.to_owned(), reason: "it has no config.json" }
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
        let family = find_family(&config, &classes)?;
        let scheme = read_scheme(&config, family)?;
        check_activation(&config, family)?;
        let mut metadata = Metadata::new();
        metadata.insert("general.architecture", family.architecture);
        metadata.insert("general.type", "model");
        metadata.insert("general.name", name);
        if let Some(scheme) = &scheme {
            metadata.insert("general.source.quantization", scheme.shown.as_str());
        }
        let mut keys = Keys { architecture: family.architecture, metadata };
        let decoder = match &family.form {
            Form::Decoder(decoder) => decoder,
            Form::Encoder(encoder) => {
                let sizes = encoder::write(&config, encoder, &mut keys)?;
                return Ok(of_encoder(family, sizes, keys, scheme));
            }
        };
        let mut sizes = read_sizes(&config, decoder)?;
        write_sizes(&config, decoder, &sizes, &mut keys)?;
        let kinds = LayerKinds::convert(decoder, &config, &mut sizes, &mut keys)?;
        let mut roles = Vec::new();
        match decoder.recurrent {
            None => write_spans(&config, decoder, &sizes, &mut keys)?,
            Some(recurrent) => {
                (sizes.recurrent, roles) = recurrent.read(&config, sizes.n_layers)?;
                recurrent.write(&sizes, &roles, &mut keys);
            }
        }
        if let (Some(experts), Some(expert_sizes)) = (&decoder.experts, &sizes.experts) {
            experts.write(&config, expert_sizes, &mut keys)?;
        }
        write_caps(&config, decoder, &sizes, &mut keys)?;
        if decoder.has_factors {
            write_factors(&config, &mut keys)?;
        }
        if let Some(period) = decoder.still_every {
            check_still_layers(&config, period, sizes.n_layers)?;
        }
        let generated = rope::write(&config, decoder, &sizes, &mut keys)?;
        let is_tied = config.flag("tie_word_embeddings")?.or(decoder.is_tied);
        let is_tied = is_tied.filter(|&tied| !(tied && decoder.is_never_tied));
        sizes.multipliers.tie(is_tied);
        let has_head_norms = match decoder.head_norm_switch {
            Some(switch) => config.flag(switch)?.unwrap_or(false),
            None => true,
        };
        let metadata = keys.metadata;
        Ok(Hyperparameters {
            family,
            sizes,
            is_tied,
            metadata,
            scheme,
            generated,
            roles,
            kinds,
            has_head_norms,
            has_prediction_head: false,
        })
    }
}

/// Hyperparameters of an encoder, whose `keys` are written but for the common ones.
fn of_encoder(
    family: &'static Family,
    sizes: Sizes,
    mut keys: Keys,
    scheme: Option<Scheme>,
) -> Hyperparameters {
    // Other readers want a number above 0, also where there is no table.
    keys.metadata.insert("tokenizer.ggml.token_type_count", sizes.n_token_types.max(1) as u32);
    Hyperparameters {
        family,
        sizes,
        // Heads that guess left-out words are parts of some files, and follow from the embedding.
        is_tied: Some(true),
        metadata: keys.metadata,
        scheme,
        generated: Vec::new(),
        roles: Vec::new(),
        kinds: None,
        has_head_norms: true,
        has_prediction_head: false,
    }
}

/// The family that a `config.json` names. `classes` are those of its `architectures`.
fn find_family(config: &Fields<'_>, classes: &[&str]) -> Result<&'static Family> {
    let families = || decoder::FAMILIES.iter().chain(encoder::FAMILIES);
    // By their names in GGUF, of which there are fewer than classes.
    let supported = || listed(families().map(|family| family.architecture));
    let model_type = config.text("model_type")?;
    let found = match (classes.first(), model_type) {
        (Some(class), model_type) => {
            let is_of_type =
                |family: &&Family| model_type.is_some_and(|name| family.model_types.contains(&name));
            let of_class =
                || families().filter(|family| family.classes.contains(class) && (family.applies)(config));
            of_class().find(is_of_type).or_else(|| of_class().next())
        }
        (None, Some(name)) => {
            families().find(|family| family.model_types.contains(&name) && (family.applies)(config))
        }
        (None, None) => return Err(config.missing("architectures", "a class such as `LlamaForCausalLM`")),
    };
    found.ok_or_else(|| Error::UnsupportedArchitecture {
        found: classes.first().copied().or(model_type).unwrap_or_default().to_owned(),
        supported: supported(),
    })
}

/// The quantization of the weights, in a form that the family's tensors may have.
fn read_scheme(config: &Fields<'_>, family: &Family) -> Result<Option<Scheme>> {
    let has_mxfp4 = match &family.form {
        Form::Decoder(decoder) => {
            decoder.experts.is_some_and(|experts| experts.form == StackForm::Alternating)
        }
        Form::Encoder(_) => false,
    };
    Scheme::read(config, has_mxfp4)
}

fn check_activation(config: &Fields<'_>, family: &Family) -> Result<()> {
    for key in ["mlp_hidden_act", "hidden_activation", "hidden_act", "activation", "activation_function"] {
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

fn read_sizes(config: &Fields<'_>, decoder: &Decoder) -> Result<Sizes> {
    let model_dim = config.require_count("hidden_size", 1..=MAX_WIDTH)?;
    let attention = read_attention(config, decoder, model_dim)?;
    let mut ffn_dim = read_ffn_dim(config, decoder)?;
    let experts = decoder.experts.map(|experts| experts.read(config, ffn_dim)).transpose()?.flatten();
    // Without experts, the network of some families is that of the shared ones.
    let shared = decoder.experts.filter(|_| !decoder.networks[1].is_empty());
    if let (None, Some(field)) = (&experts, shared.and_then(|experts| experts.shared_dim)) {
        ffn_dim = config.require_count(field, 1..=MAX_WIDTH)?;
    }
    Ok(Sizes {
        model_dim,
        ffn_dim,
        experts,
        latent: attention.latent,
        multipliers: match decoder.has_multipliers {
            true => Multipliers::read(config)?,
            false => Multipliers::NONE,
        },
        recurrent: RecurrentSizes::default(),
        n_layers: match decoder.recurrent {
            Some(recurrent) => recurrent.read_count(config)?,
            None => config.require_count("num_hidden_layers", 1..=MAX_LAYERS)?,
        },
        prediction_layers: match decoder.prediction {
            Some(prediction) => config.count(prediction.count, 0..=MAX_LAYERS)?.unwrap_or(1),
            None => 0,
        },
        n_heads: attention.n_heads,
        n_kv_heads: attention.n_kv_heads,
        head_dim: attention.head_dim,
        layer_input_dim: 0,
        layer_input_rows: None,
        streams: None,
        vocab_size: config.count("vocab_size", 1..=MAX_VOCAB)?,
        context: count_or(config, "max_position_embeddings", MAX_POSITIONS, decoder.context)?,
        first_position: 0,
        n_token_types: 0,
    })
}

/// A whole number up to `max`; without a default it is required.
fn count_or(config: &Fields<'_>, key: &str, max: usize, default: Option<usize>) -> Result<usize> {
    match default {
        Some(default) => Ok(config.count(key, 1..=max)?.unwrap_or(default)),
        None => config.require_count(key, 1..=max),
    }
}

/// Heads and their widths.
struct AttentionSizes {
    n_heads: usize,
    n_kv_heads: usize,
    head_dim: usize,
    latent: Option<LatentAttention>,
}

fn read_attention(config: &Fields<'_>, decoder: &Decoder, model_dim: usize) -> Result<AttentionSizes> {
    let n_heads = count_or(config, "num_attention_heads", MAX_WIDTH, decoder.n_heads)?;
    if decoder.is_latent {
        let latent = latent::read(config)?;
        // One key head, as wide as what is cached.
        let head_dim = latent.rank + latent.rotary_dim;
        return Ok(AttentionSizes { n_heads, n_kv_heads: 1, head_dim, latent: Some(latent) });
    }
    let n_kv_heads = decoder.n_kv_heads.or(Some(n_heads));
    let n_kv_heads = count_or(config, "num_key_value_heads", MAX_WIDTH, n_kv_heads)?;
    if n_heads % n_kv_heads != 0 {
        let expected = format!("a divisor of the {n_heads} attention heads");
        return Err(config.invalid("num_key_value_heads", expected));
    }
    // The first Nemotron-H has the second.
    let named = match config.count("head_dim", 1..=MAX_HEAD_DIM)? {
        None => config.count("attention_head_dim", 1..=MAX_HEAD_DIM)?,
        named => named,
    };
    let head_dim = match named.or(decoder.head_dim) {
        Some(head_dim) => head_dim,
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
    Ok(AttentionSizes { n_heads, n_kv_heads, head_dim, latent: None })
}

/// Width of the feed-forward network; of a mixture that names none, that of an expert.
fn read_ffn_dim(config: &Fields<'_>, decoder: &Decoder) -> Result<usize> {
    let field = decoder.ffn_dim;
    if decoder.has_streams && config.get(field).is_some_and(Value::is_array) {
        return layers::widest_network(config, field);
    }
    let of_experts = decoder.experts.and_then(|experts| experts.ffn_dim);
    if !decoder.adjusts_ffn_dim {
        return match (config.count(field, 1..=MAX_WIDTH)?, of_experts) {
            (Some(ffn_dim), _) => Ok(ffn_dim),
            (None, Some(of_experts)) => config.require_count(of_experts, 1..=MAX_WIDTH),
            (None, None) => config.require_count(field, 1..=MAX_WIDTH),
        };
    }
    let named = match config.count("block_ff_dim", 1..=MAX_WIDTH)? {
        Some(named) => named,
        None => config.require_count(field, 1..=MAX_WIDTH)?,
    };
    if config.flag("block_auto_adjust_ff_dim")? == Some(false) {
        return Ok(named);
    }
    const MULTIPLE: &str = "block_multiple_of";
    let thirds = 2 * named / 3;
    const FACTOR: &str = "block_ffn_dim_multiplier";
    let factor = match config.positive(FACTOR)? {
        Some(factor) => factor,
        None if config.is_absent(FACTOR) => 1.0,
        None => return Ok(thirds),
    };
    let multiple = config.count(MULTIPLE, 1..=MAX_WIDTH)?.unwrap_or(256);
    let ffn_dim = ((factor * thirds as f64) as usize).checked_next_multiple_of(multiple);
    match ffn_dim.filter(|ffn_dim| (1..=MAX_WIDTH).contains(ffn_dim)) {
        Some(ffn_dim) => Ok(ffn_dim),
        None => Err(config.invalid(FACTOR, format!("a width of at most {MAX_WIDTH}"))),
    }
}

fn write_sizes(config: &Fields<'_>, decoder: &Decoder, sizes: &Sizes, keys: &mut Keys) -> Result<()> {
    keys.count("block_count", sizes.n_layers);
    keys.count("context_length", sizes.context);
    keys.count("embedding_length", sizes.model_dim);
    keys.count("feed_forward_length", sizes.ffn_dim);
    keys.count("attention.head_count", sizes.n_heads);
    keys.count("attention.head_count_kv", sizes.n_kv_heads);
    let mut norm_eps = None;
    for key in ["layer_norm_epsilon", "rms_norm_eps", "norm_eps"] {
        norm_eps = norm_eps.or(config.positive(key)?);
    }
    let norm_eps = norm_eps.unwrap_or(decoder.norm_eps);
    keys.real("attention.layer_norm_rms_epsilon", norm_eps);
    if decoder.recurrent == Some(Recurrent::Mamba2Alone) {
        // Other readers look for this one.
        keys.real("attention.layer_norm_epsilon", norm_eps);
    }
    let is_implied = config.get("head_dim").is_none() && sizes.head_dim * sizes.n_heads == sizes.model_dim;
    if let Some(latent) = &sizes.latent {
        latent::write(latent, keys);
    } else if decoder.writes_head_dim && !is_implied {
        keys.count("attention.key_length", sizes.head_dim);
        keys.count("attention.value_length", sizes.head_dim);
    }
    if let (true, Some(vocab_size)) = (decoder.writes_vocab_size, sizes.vocab_size) {
        keys.count("vocab_size", vocab_size);
    }
    Ok(())
}

/// Attention spans of the layers.
fn write_spans(config: &Fields<'_>, decoder: &Decoder, sizes: &Sizes, keys: &mut Keys) -> Result<()> {
    match decoder.is_chunked {
        true => chunked::write(config, sizes, keys),
        false => window::write(config, decoder.window.as_ref(), sizes, keys),
    }
}

/// Soft caps, and the scale of scores where it is not that of the head.
fn write_caps(config: &Fields<'_>, decoder: &Decoder, sizes: &Sizes, keys: &mut Keys) -> Result<()> {
    const ATTENTION: &str = "attn_logit_softcapping";
    const LOGITS: &str = "final_logit_softcapping";
    match decoder.soft_caps {
        SoftCaps::None => return Ok(()),
        SoftCaps::Both { scores, logits } => {
            for (key, usual) in [(ATTENTION, scores), (LOGITS, logits)] {
                // `null` is no cap.
                let absent = if config.is_absent(key) { usual } else { 0.0 };
                keys.real(key, config.positive(key)?.unwrap_or(absent));
            }
        }
        SoftCaps::LogitsAlone { usual } => {
            // `null` is no cap, which readers with a usual one must be told.
            let absent = usual.map(|usual| if config.is_absent(LOGITS) { usual } else { 0.0 });
            if let Some(cap) = config.positive(LOGITS)?.or(absent) {
                keys.real(LOGITS, cap);
            }
            return Ok(());
        }
        SoftCaps::Logits => {
            if config.get(ATTENTION).is_some() {
                return Err(config.invalid(ATTENTION, "null: Gemma 3 has norms instead"));
            }
            const BOTH_WAYS: &str = "use_bidirectional_attention";
            if config.flag(BOTH_WAYS)? == Some(true) && !decoder.is_encoder {
                return Err(
                    config.invalid(BOTH_WAYS, "false: only models that write from left to right can be run")
                );
            }
            if let Some(cap) = config.positive(LOGITS)? {
                keys.real(LOGITS, cap);
            }
        }
    }
    let scalar = config.positive("query_pre_attn_scalar")?.unwrap_or(256.0);
    if scalar != sizes.head_dim as f64 {
        keys.real("attention.scale", scalar.sqrt().recip());
    }
    Ok(())
}

/// Granite's factors; files have a divisor of logits.
fn write_factors(config: &Fields<'_>, keys: &mut Keys) -> Result<()> {
    for (field, key) in [
        ("attention_multiplier", "attention.scale"),
        ("embedding_multiplier", "embedding_scale"),
        ("residual_multiplier", "residual_scale"),
        ("logits_scaling", "logit_scale"),
    ] {
        keys.real(key, config.positive(field)?.unwrap_or(1.0));
    }
    Ok(())
}

/// Checks that the layers that do not rotate queries and keys are those that files have no key for:
/// the last of every `period`.
fn check_still_layers(config: &Fields<'_>, period: usize, n_layers: usize) -> Result<()> {
    const INTERVAL: &str = "no_rope_layer_interval";
    const LAYERS: &str = "no_rope_layers";
    const WINDOWS: &str = "use_sliding_window";
    if config.flag(WINDOWS)? == Some(true) {
        return Err(config.invalid(WINDOWS, "false: windows of this family cannot be computed"));
    }
    let Some(listed) = config.list(LAYERS)? else {
        return match config.count(INTERVAL, 1..=MAX_LAYERS)? {
            Some(interval) if interval != period => Err(config.invalid(INTERVAL, period.to_string())),
            _ => Ok(()),
        };
    };
    // 1 is a layer that does.
    let rotates = |layer: usize| u64::from(!(layer + 1).is_multiple_of(period));
    let is_usual = |(layer, value): (usize, &Value)| value.as_u64() == Some(rotates(layer));
    if listed.len() == n_layers && listed.iter().enumerate().all(is_usual) {
        return Ok(());
    }
    Err(config
        .invalid(LAYERS, format!("0 for the last of every {period} of {n_layers} layers, 1 for others")))
}
