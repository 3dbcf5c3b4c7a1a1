//! Layers that are not alike in `config.json`: heads of two widths, keys and values of earlier
//! layers, values that are keys, and embeddings per layer (Gemma 3n and 4).

use gguf_rs_lite::Array;
use serde_json::Value;

use super::family::{Decoder, Part, Shape};
use super::fields::Fields;
use super::keys::Keys;
use super::sizes::{MAX_HEAD_DIM, MAX_VOCAB, MAX_WIDTH, Sizes};
use super::streams;
use super::window::{self, Window};
use crate::error::Result;

const LAYER_TYPES: &str = "layer_types";
const OVERRIDES: &str = "per_layer_config";
const HEAD_DIM: &str = "head_dim";
const KV_HEADS: &str = "num_key_value_heads";
const INPUT_ROWS: &str = "vocab_size_per_layer_input";
const WIDTHS: &str = "widths from 1 to 1048576";

/// Differences between the layers of a model.
#[derive(Debug)]
pub(super) struct LayerKinds {
    /// True for layers with a window, `[n_layers]`.
    windowed: Vec<bool>,
    /// Heads of keys and values, and width of a head, in layers with a window.
    local: (usize, usize),
    /// The first layer that reads the keys and values of an earlier one.
    first_shared: usize,
    /// Widths of the feed-forward networks, `[n_layers]`.
    ffn_dims: Vec<usize>,
    /// True if layers without a window have no projection to values.
    keys_are_values: bool,
    /// True if files have keys and values of layers that never use them, which folders may lack.
    has_unused_keys: bool,
}

impl LayerKinds {
    /// Reads the fields and writes their keys, if the family has such layers. `sizes` have those of
    /// layers with a window, and get those of the others.
    pub(super) fn convert(
        decoder: &Decoder,
        config: &Fields<'_>,
        sizes: &mut Sizes,
        keys: &mut Keys,
    ) -> Result<Option<Self>> {
        if decoder.has_streams {
            let kinds = Self::read_alike(config, decoder.window.as_ref(), sizes)?;
            kinds.write_common(sizes, keys);
            sizes.streams = Some(streams::convert(config, sizes.n_layers, keys)?);
            return Ok(Some(kinds));
        }
        if !decoder.has_layer_kinds {
            return Ok(None);
        }
        let kinds = Self::read(config, sizes)?;
        kinds.write(sizes, keys);
        Ok(Some(kinds))
    }

    fn read(config: &Fields<'_>, sizes: &mut Sizes) -> Result<Self> {
        let windowed = read_windowed(config, sizes.n_layers)?;
        let keys_are_values = config.flag("attention_k_eq_v")?.unwrap_or(false);
        let local = (sizes.n_kv_heads, sizes.head_dim);
        let first_shared = read_first_shared(config, &windowed, 0)?;
        (sizes.n_kv_heads, sizes.head_dim) = read_heads(config, (local, keys_are_values), &windowed)?;
        if !sizes.n_heads.is_multiple_of(sizes.n_kv_heads) || !sizes.head_dim.is_multiple_of(2) {
            let key = if config.get(OVERRIDES).is_some() { OVERRIDES } else { "num_global_key_value_heads" };
            let expected =
                format!("heads that divide the {} attention heads, of an even width", sizes.n_heads);
            return Err(config.invalid(key, expected));
        }
        if let (Some(rows), Some(vocab_size)) = (read_inputs(config, sizes)?, sizes.vocab_size)
            && rows != vocab_size
        {
            return Err(config.invalid(INPUT_ROWS, format!("{vocab_size}, the tokens of the model")));
        }
        check_causal(config)?;
        let is_wide = config.flag("use_double_wide_mlp")?.unwrap_or(false);
        let shared_ffn_dim = if is_wide { 2 * sizes.ffn_dim } else { sizes.ffn_dim };
        let mut ffn_dims = vec![sizes.ffn_dim; first_shared];
        ffn_dims.resize(sizes.n_layers, shared_ffn_dim);
        Ok(Self { windowed, local, first_shared, ffn_dims, keys_are_values, has_unused_keys: false })
    }

    /// Reads the fields of models whose layers have the same heads.
    fn read_alike(config: &Fields<'_>, window: Option<&Window>, sizes: &mut Sizes) -> Result<Self> {
        let windowed = window::read(config, window, sizes)?;
        let first_shared = read_first_shared(config, &windowed, 15)?;
        if let (Some(rows), Some(vocab_size)) = (read_inputs(config, sizes)?, sizes.vocab_size) {
            // Tokens behind them, which stand for parts of images, have the row of the first.
            if rows > vocab_size {
                return Err(config.invalid(INPUT_ROWS, format!("at most {vocab_size}, the tokens")));
            }
            sizes.layer_input_rows = Some(rows);
        }
        let local = (sizes.n_kv_heads, sizes.head_dim);
        let ffn_dims = read_ffn_dims(config, sizes)?;
        Ok(Self { windowed, local, first_shared, ffn_dims, keys_are_values: false, has_unused_keys: true })
    }

    /// Writes the keys, some of which stand for all layers otherwise.
    fn write(&self, sizes: &Sizes, keys: &mut Keys) {
        self.write_common(sizes, keys);
        keys.count("attention.key_length", sizes.head_dim);
        keys.count("attention.value_length", sizes.head_dim);
        keys.count("attention.key_length_swa", self.local.1);
        keys.count("attention.value_length_swa", self.local.1);
        keys.count("rope.dimension_count_swa", self.local.1);
        if self.local.0 != sizes.n_kv_heads {
            let heads = (0..sizes.n_layers).map(|layer| self.sizes_of(layer, sizes).n_kv_heads as i32);
            keys.array("attention.head_count_kv", Array::I32(heads.collect()));
        }
    }

    /// Writes the keys that do not depend on the heads of layers.
    fn write_common(&self, sizes: &Sizes, keys: &mut Keys) {
        keys.count("attention.shared_kv_layers", sizes.n_layers - self.first_shared);
        keys.count("embedding_length_per_layer_input", sizes.layer_input_dim);
        if self.ffn_dims.iter().any(|&dim| dim != sizes.ffn_dim) {
            let widths = self.ffn_dims.iter().map(|&dim| dim as i32);
            keys.array("feed_forward_length", Array::I32(widths.collect()));
        }
    }

    /// The sizes of a layer.
    pub(super) fn sizes_of(&self, layer: usize, sizes: &Sizes) -> Sizes {
        let (n_kv_heads, head_dim) =
            if self.windowed[layer] { self.local } else { (sizes.n_kv_heads, sizes.head_dim) };
        Sizes { n_kv_heads, head_dim, ffn_dim: self.ffn_dims[layer], ..*sizes }
    }

    /// True for a tensor that a layer has.
    pub(super) fn has(&self, layer: usize, part: &Part) -> bool {
        let reads_others = layer >= self.first_shared && !self.has_unused_keys;
        match (part.shape, part.gguf) {
            (Shape::Key, _) | (_, "attn_k_norm") => !reads_others,
            (Shape::Value, _) => !reads_others && (self.windowed[layer] || !self.keys_are_values),
            _ => true,
        }
    }

    /// True for a tensor of a layer that folders may lack and files have.
    pub(super) fn may_lack(&self, layer: usize, part: &Part) -> bool {
        let is_of_keys = matches!(part.shape, Shape::Key | Shape::Value) || part.gguf == "attn_k_norm";
        self.has_unused_keys && layer >= self.first_shared && is_of_keys
    }

    /// True for a tensor of a layer that is never used: keys and values beside those that it reads.
    pub(super) fn ignores(&self, layer: usize, name: &str) -> bool {
        let unused = ["self_attn.k_proj.", "self_attn.v_proj.", "self_attn.k_norm.", "self_attn.v_norm."];
        layer >= self.first_shared
            && !self.has_unused_keys
            && unused.iter().any(|prefix| name.starts_with(prefix))
    }
}

/// The first layer that reads the keys and values of an earlier one; as many as `usual` do where
/// the field is absent.
fn read_first_shared(config: &Fields<'_>, windowed: &[bool], usual: usize) -> Result<usize> {
    const SHARED: &str = "num_kv_shared_layers";
    let n_layers = windowed.len();
    let n_shared = config.count(SHARED, 0..=n_layers - 1)?.unwrap_or(usual.min(n_layers - 1));
    let first_shared = n_layers - n_shared;
    let has_source = |kind: &bool| windowed[..first_shared].contains(kind);
    match windowed[first_shared..].iter().all(has_source) {
        true => Ok(first_shared),
        false => {
            let expected = "fewer layers: each reads the last layer of its kind before them";
            Err(config.invalid(SHARED, expected))
        }
    }
}

/// Reads the width of embeddings per layer, and returns the rows of their table if there is one.
fn read_inputs(config: &Fields<'_>, sizes: &mut Sizes) -> Result<Option<usize>> {
    const INPUTS: &str = "hidden_size_per_layer_input";
    let default = if config.is_absent(INPUTS) { 256 } else { 0 };
    sizes.layer_input_dim = config.count(INPUTS, 0..=MAX_WIDTH / sizes.n_layers)?.unwrap_or(default);
    if sizes.layer_input_dim == 0 {
        return Ok(None);
    }
    Ok(Some(config.count(INPUT_ROWS, 1..=MAX_VOCAB)?.unwrap_or(262_144)))
}

/// The widest feed-forward network of a list.
pub(super) fn widest_network(config: &Fields<'_>, field: &str) -> Result<usize> {
    let widths = read_widths(config, field)?;
    widths.into_iter().max().ok_or_else(|| config.invalid(field, WIDTHS))
}

/// Widths of the feed-forward networks, one for all layers or a list.
fn read_ffn_dims(config: &Fields<'_>, sizes: &Sizes) -> Result<Vec<usize>> {
    const FIELD: &str = "intermediate_size";
    if !config.get(FIELD).is_some_and(Value::is_array) {
        return Ok(vec![sizes.ffn_dim; sizes.n_layers]);
    }
    let widths = read_widths(config, FIELD)?;
    match widths.len() == sizes.n_layers {
        true => Ok(widths),
        false => Err(config.invalid(FIELD, format!("a width for each of {} layers", sizes.n_layers))),
    }
}

fn read_widths(config: &Fields<'_>, field: &str) -> Result<Vec<usize>> {
    let width = |value: &Value| {
        let width = value.as_u64().and_then(|width| usize::try_from(width).ok());
        width.filter(|width| (1..=MAX_WIDTH).contains(width))
    };
    let widths: Option<Vec<usize>> = config.list(field)?.unwrap_or_default().iter().map(width).collect();
    widths.ok_or_else(|| config.invalid(field, WIDTHS))
}

/// Layers with a window, as the file lists them. The last one sees all tokens.
fn read_windowed(config: &Fields<'_>, n_layers: usize) -> Result<Vec<bool>> {
    let expected = || {
        format!(
            "`full_attention` or `sliding_attention` for each of {n_layers} layers, the last `full_attention`"
        )
    };
    let listed = config.list(LAYER_TYPES)?.ok_or_else(|| config.missing(LAYER_TYPES, expected()))?;
    let is_windowed = |kind: &Value| match kind.as_str() {
        Some("full_attention") => Some(false),
        Some("sliding_attention") => Some(true),
        _ => None,
    };
    let windowed: Option<Vec<bool>> = listed.iter().map(is_windowed).collect();
    let is_whole = |windowed: &Vec<bool>| windowed.len() == n_layers && windowed.last() == Some(&false);
    windowed.filter(is_whole).ok_or_else(|| config.invalid(LAYER_TYPES, expected()))
}

/// Heads of keys and values, and width of a head, of layers without a window: by fields of their
/// own, or as transformers writes them, layer by layer. `local` are those of the other layers.
fn read_heads(
    config: &Fields<'_>,
    (local, keys_are_values): ((usize, usize), bool),
    windowed: &[bool],
) -> Result<(usize, usize)> {
    let Some(overrides) = config.object(OVERRIDES)? else {
        let named = config.count("num_global_key_value_heads", 1..=MAX_WIDTH)?;
        let n_kv_heads = named.filter(|_| keys_are_values).unwrap_or(local.0);
        return Ok((n_kv_heads, config.count("global_head_dim", 1..=MAX_HEAD_DIM)?.unwrap_or(512)));
    };
    let mut found = None;
    for layer in (0..windowed.len()).filter(|&layer| !windowed[layer]) {
        let fields = overrides.object(&layer.to_string())?;
        let count = |key: &str, most: usize, usual: usize| -> Result<usize> {
            let named = fields.as_ref().map_or(Ok(None), |fields| fields.count(key, 1..=most))?;
            Ok(named.unwrap_or(usual))
        };
        let heads = (count(KV_HEADS, MAX_WIDTH, local.0)?, count(HEAD_DIM, MAX_HEAD_DIM, local.1)?);
        if *found.get_or_insert(heads) != heads {
            return Err(config.invalid(OVERRIDES, "the same heads in all layers of a kind"));
        }
    }
    let is_known = |(layer, fields): (&String, &Value)| {
        let is_full = layer.parse::<usize>().ok().and_then(|layer| windowed.get(layer)) == Some(&false);
        let fields = fields.as_object();
        is_full && fields.is_some_and(|fields| fields.keys().all(|key| key == HEAD_DIM || key == KV_HEADS))
    };
    if !overrides.iter().all(is_known) {
        let expected = format!("`{HEAD_DIM}` and `{KV_HEADS}` of layers without a window");
        return Err(config.invalid(OVERRIDES, expected));
    }
    Ok(found.unwrap_or(local))
}

/// Refuses attention in both directions, and windowed layers whose positions are scaled.
fn check_causal(config: &Fields<'_>) -> Result<()> {
    const BOTH_WAYS: &str = "use_bidirectional_attention";
    if config.text(BOTH_WAYS)? == Some("all") {
        return Err(config
            .invalid(BOTH_WAYS, "null or `vision`: only models that write from left to right can be run"));
    }
    let Some(parameters) = config.object("rope_parameters")? else { return Ok(()) };
    match parameters.object("sliding_attention")? {
        Some(windowed) if windowed.text("rope_type")?.is_some_and(|kind| kind != "default") => {
            Err(windowed.invalid("rope_type", "`default`"))
        }
        _ => Ok(()),
    }
}
