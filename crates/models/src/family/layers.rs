//! Layers that are not alike: heads of several widths, keys and values of earlier layers, and parts
//! that few families have.

use super::window::Window;
use super::{MAX_WIDTH, Sizes};
use crate::config::keys::Keys;
use crate::error::Result;

/// Differences between the layers of a model, and parts that layers have in few families.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LayerKinds {
    /// Heads of layers with a sliding window, where they differ from those of the others.
    pub local_heads: Option<LocalHeads>,
    /// Layer whose keys and values each layer reads, its own or an earlier one, `[n_layers]`;
    /// empty: its own. Layers that read others are the last ones.
    pub kv_sources: Vec<usize>,
    /// True if layers without a window may have no values: these are the keys before their norm.
    pub optional_values: bool,
    /// True if each head of the values is normed, without weights.
    pub value_norms: bool,
    /// Width of the embeddings per layer, which each layer adds to the residual stream through a
    /// gate; 0 = there are none.
    pub input_dim: usize,
    /// Inner widths of the feed-forward networks, `[n_layers]`, 0 for a layer without; empty: all
    /// alike.
    pub ffn_dims: Vec<usize>,
    /// True if the residual stream behind a layer may be multiplied by a factor.
    pub output_scales: bool,
    /// Parts of each layer, `[n_layers]`; empty: all have both.
    pub parts: Vec<LayerParts>,
}

/// Parts of a layer. One with a single part has a single norm.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum LayerParts {
    /// A mixer, then a feed-forward network or experts.
    #[default]
    Both,
    /// A mixer alone: attention, or with a state.
    Mixer,
    /// A feed-forward network or experts alone.
    Network,
}

/// Heads of layers with a sliding window.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LocalHeads {
    /// Number of key and value heads; divides that of the query heads.
    pub n_kv_heads: usize,
    /// Width of one head; even.
    pub head_dim: usize,
    /// True for layers that have them, `[n_layers]`; some have not.
    pub layers: Vec<bool>,
}

impl LayerKinds {
    /// The layer whose keys and values `layer` reads.
    pub fn kv_source(&self, layer: usize) -> usize {
        self.kv_sources.get(layer).copied().unwrap_or(layer)
    }

    /// The parts of a layer.
    pub fn parts_of(&self, layer: usize) -> LayerParts {
        self.parts.get(layer).copied().unwrap_or_default()
    }

    /// The heads of a layer, where they are not the usual ones.
    pub fn local_heads_of(&self, layer: usize) -> Option<&LocalHeads> {
        self.local_heads.as_ref().filter(|local| local.layers[layer])
    }

    /// True if some layers have other heads of attention than the rest.
    pub(crate) fn have_other_heads(&self) -> bool {
        self.local_heads.is_some() || self.optional_values
    }

    /// The first feature that only the forward pass of this crate computes.
    pub(super) fn unusual_feature(&self) -> Option<&'static str> {
        let features = [
            (!self.kv_sources.is_empty(), "layers that read the keys and values of others"),
            (self.local_heads.is_some(), "heads of several widths"),
            (self.input_dim > 0, "embeddings per layer"),
            (self.value_norms, "norms of values"),
            (!self.ffn_dims.is_empty(), "feed-forward networks of several widths"),
            (self.optional_values, "values that are keys"),
            (self.output_scales, "factors of layers"),
            (!self.parts.is_empty(), "layers of one part"),
        ];
        features.into_iter().find_map(|(is_there, name)| is_there.then_some(name))
    }

    /// Reads what files have keys for.
    pub(super) fn read(keys: &Keys<'_>, sizes: &Sizes, window: &Window) -> Result<Self> {
        Ok(Self {
            local_heads: read_local_heads(keys, sizes, window)?,
            kv_sources: read_kv_sources(keys, sizes.n_layers, window)?,
            input_dim: read_input_dim(keys, sizes.n_layers)?,
            ffn_dims: read_ffn_dims(keys, sizes.n_layers)?,
            ..Self::default()
        })
    }
}

fn read_local_heads(keys: &Keys<'_>, sizes: &Sizes, window: &Window) -> Result<Option<LocalHeads>> {
    const WIDTH: &str = "attention.key_length_swa";
    let layers: Vec<bool> = (0..sizes.n_layers).map(|layer| window.of_layer(layer).is_some()).collect();
    if !layers.contains(&false) {
        let expected = "layers of which at least one sees all tokens";
        return Err(keys.invalid("attention.sliding_window_pattern", layers.len(), expected));
    }
    if !layers.contains(&true) {
        return Ok(None);
    }
    let most = MAX_WIDTH / sizes.n_heads.max(1);
    let head_dim = keys.count(WIDTH, 1..=most)?.unwrap_or(sizes.head_dim);
    if head_dim % 2 != 0 {
        return Err(keys.invalid(WIDTH, head_dim, "an even number"));
    }
    if let Some(values) = keys.count("attention.value_length_swa", 1..=most)?.filter(|&dim| dim != head_dim) {
        let expected = format!("{head_dim}, that of the keys");
        return Err(keys.invalid("attention.value_length_swa", values, expected));
    }
    let n_kv_heads = common_kv_heads(keys, &sizes.kv_heads, sizes.n_heads, &|layer| layers[layer])?;
    let usual = common_kv_heads(keys, &sizes.kv_heads, sizes.n_heads, &|layer| !layers[layer])?;
    let differ = (n_kv_heads, head_dim) != (usual, sizes.head_dim);
    Ok(differ.then_some(LocalHeads { n_kv_heads, head_dim, layers }))
}

/// Key and value heads of the layers that `is_meant` chooses, which must be alike. `listed` are
/// those of all layers, `[n_layers]`; 0 is a layer without.
pub(crate) fn common_kv_heads(
    keys: &Keys<'_>,
    listed: &[usize],
    n_heads: usize,
    is_meant: &dyn Fn(usize) -> bool,
) -> Result<usize> {
    const KEY: &str = "attention.head_count_kv";
    let meant = listed.iter().enumerate().filter(|&(layer, &heads)| heads > 0 && is_meant(layer));
    let mut heads = meant.map(|(_, &heads)| heads);
    match heads.next().filter(|&first| first <= MAX_WIDTH && heads.all(|other| other == first)) {
        Some(first) if n_heads.is_multiple_of(first) => Ok(first),
        Some(first) => Err(keys.invalid(KEY, first, format!("a divisor of the {n_heads} attention heads"))),
        None => {
            let found = listed.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
            Err(keys.invalid(KEY, found, "one number of heads for all layers that have any"))
        }
    }
}

/// The last layers read the last one of their kind before them. Source: Gemma 3n and 4.
fn read_kv_sources(keys: &Keys<'_>, n_layers: usize, window: &Window) -> Result<Vec<usize>> {
    const KEY: &str = "attention.shared_kv_layers";
    let n_shared = keys.count(KEY, 0..=n_layers - 1)?.unwrap_or(0);
    if n_shared == 0 {
        return Ok(Vec::new());
    }
    let first = n_layers - n_shared;
    let has_window = |layer: usize| window.of_layer(layer).is_some();
    let source = |layer: usize| {
        let of_kind = |&other: &usize| has_window(other) == has_window(layer);
        (0..first).rev().find(of_kind).ok_or_else(|| {
            let kind = if has_window(layer) { "with" } else { "without" };
            let expected = format!("fewer: layer {layer} reads the last layer {kind} a window before them");
            keys.invalid(KEY, n_shared, expected)
        })
    };
    (0..n_layers).map(|layer| if layer < first { Ok(layer) } else { source(layer) }).collect()
}

fn read_input_dim(keys: &Keys<'_>, n_layers: usize) -> Result<usize> {
    Ok(keys.count("embedding_length_per_layer_input", 0..=MAX_WIDTH / n_layers.max(1))?.unwrap_or(0))
}

/// Inner widths of the feed-forward networks, if the file lists them.
fn read_ffn_dims(keys: &Keys<'_>, n_layers: usize) -> Result<Vec<usize>> {
    const KEY: &str = "feed_forward_length";
    let listed = keys.counts(KEY, n_layers)?.unwrap_or_default();
    match listed.iter().find(|width| !(1..=MAX_WIDTH as u64).contains(width)) {
        None => Ok(listed.into_iter().map(|width| width as usize).collect()),
        Some(width) => Err(keys.invalid(KEY, width, format!("whole numbers from 1 to {MAX_WIDTH}"))),
    }
}
