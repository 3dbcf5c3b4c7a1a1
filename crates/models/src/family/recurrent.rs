//! Layers that keep a state instead of keys and values, as data.

use super::delta_net::DeltaNet;
use super::mamba::Mamba2;
use crate::config::keys::Keys;
use crate::error::Result;

/// Largest distance of layers with attention that a file may name.
const MAX_INTERVAL: usize = 1 << 20;

/// Layers that keep a state instead of keys and values, or beside them; the others that have a
/// mixer have attention.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Recurrent {
    /// True for layers with a state, `[n_layers]`; some layer has attention.
    pub layers: Vec<bool>,
    /// Their computation in the place of attention.
    pub mixer: RecurrentMixer,
    /// True if it stands beside attention, with the same input: both outputs are added.
    pub beside_attention: bool,
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

/// Short convolution. Source: LFM2, arXiv 2511.23404.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShortConvolution {
    /// Channels, each with its own weights; the width of the model.
    pub channels: usize,
    /// Tokens that an output sees.
    pub taps: usize,
}

impl Recurrent {
    /// Layers with gated `DeltaNet`: as the file lists them, or all but the last of every four.
    pub(super) fn read_delta_net(keys: &Keys<'_>, n_layers: usize, is_grouped: bool) -> Result<Self> {
        const LISTED: &str = "attention.recurrent_layers";
        const INTERVAL: &str = "full_attention_interval";
        let net = DeltaNet::read(keys, read_taps(keys, "ssm.conv_kernel")?, is_grouped)?;
        let mixer = RecurrentMixer::DeltaNet(net);
        let layers = match keys.flags(LISTED, n_layers)? {
            Some(layers) => layers,
            None => {
                let interval = keys.count(INTERVAL, 1..=MAX_INTERVAL)?.unwrap_or(4);
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

    /// These layers with Mamba-2; `None` if there are none.
    pub(super) fn read_mamba2(keys: &Keys<'_>, layers: Vec<bool>) -> Result<Option<Self>> {
        if !layers.contains(&true) {
            return Ok(None);
        }
        let mamba = Mamba2::read(keys, read_taps(keys, "ssm.conv_kernel")?)?;
        Self::with_attention(keys, layers, RecurrentMixer::Mamba2(mamba)).map(Some)
    }

    /// Mamba-2 beside attention in every layer; files may lack its norms.
    pub(super) fn read_beside_attention(keys: &Keys<'_>, n_layers: usize) -> Result<Self> {
        let mamba = Mamba2::read(keys, read_taps(keys, "ssm.conv_kernel")?)?;
        let mixer = RecurrentMixer::Mamba2(Mamba2 { optional_norm: true, ..mamba });
        Ok(Self { layers: vec![true; n_layers], mixer, beside_attention: true })
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
        Ok(Self { layers, mixer, beside_attention: false })
    }

    /// Values of the state of one layer.
    pub fn layer_values(&self) -> usize {
        match &self.mixer {
            RecurrentMixer::DeltaNet(net) => (net.taps - 1) * net.channels() + net.matrix_values(),
            RecurrentMixer::ShortConvolution(convolution) => (convolution.taps - 1) * convolution.channels,
            RecurrentMixer::Mamba2(mamba) => (mamba.taps - 1) * mamba.channels() + mamba.matrix_values(),
        }
    }

    /// Values per token from which the state of one layer can be computed again: the inputs of the
    /// convolution, and behind them the factors of each head as they are projected.
    pub fn journal_values(&self) -> usize {
        match &self.mixer {
            RecurrentMixer::DeltaNet(net) => net.channels() + 2 * net.value_heads,
            RecurrentMixer::ShortConvolution(convolution) => convolution.channels,
            RecurrentMixer::Mamba2(mamba) => mamba.channels() + mamba.heads,
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
