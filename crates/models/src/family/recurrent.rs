//! Layers that keep a state instead of keys and values, as data.

use super::mamba::Mamba2;
use crate::config::keys::Keys;
use crate::error::Result;

/// Largest width and number of heads that a file may name.
const MAX_WIDTH: usize = 1 << 20;

/// Largest width of a query or key of a layer with a state.
pub(crate) const MAX_KEY_DIM: usize = 1 << 10;

/// Layers that keep a state instead of keys and values; the others have attention.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Recurrent {
    /// True for layers with a state, `[n_layers]`; false for at least one.
    pub layers: Vec<bool>,
    /// Their computation in the place of attention.
    pub mixer: RecurrentMixer,
}

/// Computation of a layer with a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum RecurrentMixer {
    /// Gated delta rule behind a short convolution.
    DeltaNet(DeltaNet),
    /// Short convolution between two gates.
    ShortConvolution(ShortConvolution),
    /// Selective state space behind a short convolution.
    Mamba2(Mamba2),
}

/// Gated `DeltaNet`. Source: arXiv 2412.06464, as Qwen 3.5 and Qwen3-Next have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeltaNet {
    /// Heads of queries and keys.
    pub key_heads: usize,
    /// Heads of values, each with a state; a multiple of `key_heads`.
    pub value_heads: usize,
    /// Width of a query or key.
    pub key_dim: usize,
    /// Width of a value.
    pub value_dim: usize,
    /// Tokens that the convolution of queries, keys and values sees.
    pub taps: usize,
    /// True if the value heads of one key head are neighbours, in projections that files have
    /// interleaved by key head; false if the first value head of each key head comes before the
    /// second of any.
    pub is_grouped: bool,
}

/// Short convolution. Source: LFM2, arXiv 2511.23404.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShortConvolution {
    /// Channels, each with its own weights; the width of the model.
    pub channels: usize,
    /// Tokens that an output sees.
    pub taps: usize,
}

impl DeltaNet {
    /// Width of all queries, or all keys, of a token.
    pub fn keys_dim(&self) -> usize {
        self.key_heads * self.key_dim
    }

    /// Width of all values of a token.
    pub fn values_dim(&self) -> usize {
        self.value_heads * self.value_dim
    }

    /// Channels of the convolution: queries, keys and values.
    pub fn channels(&self) -> usize {
        2 * self.keys_dim() + self.values_dim()
    }

    /// Values of the state behind the inputs of the convolution, `[value_heads, key_dim,
    /// value_dim]`.
    pub fn matrix_values(&self) -> usize {
        self.values_dim() * self.key_dim
    }

    /// The key head that a value head reads.
    pub(crate) fn key_head(&self, value_head: usize) -> usize {
        if self.is_grouped {
            value_head / (self.value_heads / self.key_heads)
        } else {
            value_head % self.key_heads
        }
    }

    fn read(keys: &Keys<'_>, is_grouped: bool) -> Result<Self> {
        const VALUE_HEADS: &str = "ssm.time_step_rank";
        const VALUES: &str = "ssm.inner_size";
        let key_heads = keys.require_count("ssm.group_count", 1..=MAX_WIDTH)?;
        let value_heads = keys.require_count(VALUE_HEADS, 1..=MAX_WIDTH)?;
        if !value_heads.is_multiple_of(key_heads) {
            let expected = format!("a multiple of the {key_heads} heads of keys");
            return Err(keys.invalid(VALUE_HEADS, value_heads, expected));
        }
        let values_dim = keys.require_count(VALUES, 1..=MAX_WIDTH)?;
        if !values_dim.is_multiple_of(value_heads) {
            return Err(keys.invalid(VALUES, values_dim, format!("a multiple of the {value_heads} heads")));
        }
        let key_dim = keys.require_count("ssm.state_size", 1..=MAX_KEY_DIM)?;
        let taps = read_taps(keys, "ssm.conv_kernel")?;
        let value_dim = values_dim / value_heads;
        Ok(Self { key_heads, value_heads, key_dim, value_dim, taps, is_grouped })
    }
}

impl Recurrent {
    /// Layers with gated `DeltaNet`: as the file lists them, or all but the last of every four.
    pub(super) fn read_delta_net(keys: &Keys<'_>, n_layers: usize, is_grouped: bool) -> Result<Self> {
        const LISTED: &str = "attention.recurrent_layers";
        const INTERVAL: &str = "full_attention_interval";
        let mixer = RecurrentMixer::DeltaNet(DeltaNet::read(keys, is_grouped)?);
        let layers = match keys.flags(LISTED, n_layers)? {
            Some(layers) => layers,
            None => {
                let interval = keys.count(INTERVAL, 1..=MAX_WIDTH)?.unwrap_or(4);
                (1..=n_layers).map(|layer| !layer.is_multiple_of(interval)).collect()
            }
        };
        Self::with_attention(keys, layers, mixer)
    }

    /// Layers with a short convolution: those without heads of keys and values.
    pub(super) fn read_convolution(keys: &Keys<'_>, (channels, n_layers): (usize, usize)) -> Result<Self> {
        let layers = without_heads(keys, n_layers)?;
        let convolution = ShortConvolution { channels, taps: read_taps(keys, "shortconv.l_cache")? };
        Self::with_attention(keys, layers, RecurrentMixer::ShortConvolution(convolution))
    }

    /// Layers with Mamba-2: those without heads of keys and values; `None` if all have them.
    pub(super) fn read_mamba2(keys: &Keys<'_>, n_layers: usize) -> Result<Option<Self>> {
        let layers = without_heads(keys, n_layers)?;
        if !layers.contains(&true) {
            return Ok(None);
        }
        let mamba = Mamba2::read(keys, read_taps(keys, "ssm.conv_kernel")?)?;
        Self::with_attention(keys, layers, RecurrentMixer::Mamba2(mamba)).map(Some)
    }

    /// A cache needs a layer with keys and values.
    fn with_attention(keys: &Keys<'_>, layers: Vec<bool>, mixer: RecurrentMixer) -> Result<Self> {
        if layers.iter().all(|&is_recurrent| is_recurrent) {
            return Err(keys.invalid(
                "block_count",
                layers.len(),
                "layers of which at least one has attention",
            ));
        }
        Ok(Self { layers, mixer })
    }

    /// Values of the state of one layer.
    pub fn layer_values(&self) -> usize {
        match &self.mixer {
            RecurrentMixer::DeltaNet(net) => (net.taps - 1) * net.channels() + net.matrix_values(),
            RecurrentMixer::ShortConvolution(convolution) => (convolution.taps - 1) * convolution.channels,
            RecurrentMixer::Mamba2(mamba) => (mamba.taps - 1) * mamba.channels() + mamba.matrix_values(),
        }
    }

    /// Number of layers with a state before `layer`.
    pub fn index_of(&self, layer: usize) -> usize {
        self.layers[..layer].iter().filter(|&&is_recurrent| is_recurrent).count()
    }
}

/// True for layers without heads of keys and values, `[n_layers]`.
fn without_heads(keys: &Keys<'_>, n_layers: usize) -> Result<Vec<bool>> {
    Ok(match keys.flags("attention.head_count_kv", n_layers)? {
        Some(has_heads) => has_heads.into_iter().map(|has_heads| !has_heads).collect(),
        None => vec![false; n_layers],
    })
}

fn read_taps(keys: &Keys<'_>, suffix: &str) -> Result<usize> {
    keys.require_count(suffix, 2..=ruvllm_kernels::recurrence::MAX_TAPS)
}
