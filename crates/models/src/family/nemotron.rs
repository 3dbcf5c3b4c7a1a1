//! Nemotron-H and Nemotron 3: one part in each layer: Mamba-2, attention without rotation, a
//! feed-forward network of squared `ReLU` without a gate, or experts of that.

use ruvllm_kernels::rope::RopeLayout;

use super::experts::{Experts, Shared, Usual};
use super::layers::{LayerKinds, LayerParts};
use super::{Activation, DecoderSpec, Family, LocalRopes, MAX_WIDTH, Recurrent, Scoring, Sizes};
use crate::config::keys::Keys;
use crate::error::Result;

pub(super) const NEMOTRON_H: Family = Family {
    architecture: "nemotron_h",
    local_rope: LocalRopes::Still,
    decoder: |keys, sizes| {
        let spec = DecoderSpec::usual(keys, sizes)?;
        let widths = read_widths(keys, sizes)?;
        let spec = one_part(spec, keys, sizes, &widths)?;
        Ok(DecoderSpec { layers: LayerKinds { ffn_dims: widths, ..spec.layers }, ..spec })
    },
};

/// With experts in the place of feed-forward networks.
pub(super) const NEMOTRON_H_MOE: Family = Family {
    architecture: "nemotron_h_moe",
    local_rope: LocalRopes::Still,
    decoder: |keys, sizes| {
        const LATENT: &str = "moe_latent_size";
        if let Some(width @ 1..) = keys.count(LATENT, 0..=usize::MAX)? {
            return Err(keys.invalid(LATENT, width, "0: experts of latents cannot be computed"));
        }
        let usual = Usual {
            renormalize: true,
            scoring: Scoring::Sigmoid,
            shared: Shared::Plain(1),
            activation: Activation::SquaredRelu,
        };
        let widths = read_widths(keys, sizes)?;
        let layers = widths.iter().map(|&width| width > 0).collect();
        let experts = Experts { layers, ..Experts::read(keys, sizes.n_layers, usual)? };
        one_part(DecoderSpec::mixture(keys, sizes, Some(experts))?, keys, sizes, &widths)
    },
};

/// Inner widths of networks, `[n_layers]`; 0 for a layer with a mixer.
fn read_widths(keys: &Keys<'_>, sizes: &Sizes) -> Result<Vec<usize>> {
    const KEY: &str = "feed_forward_length";
    let Some(listed) = keys.counts(KEY, sizes.n_layers)? else {
        let expected = format!("an array of {}, 0 for a layer without a network", sizes.n_layers);
        return Err(keys.invalid(KEY, "no array", expected));
    };
    let widths: Vec<usize> =
        listed.into_iter().map(|width| usize::try_from(width).unwrap_or(usize::MAX)).collect();
    for (layer, (&width, &heads)) in widths.iter().zip(&sizes.kv_heads).enumerate() {
        if width > MAX_WIDTH {
            return Err(keys.invalid(KEY, width, format!("whole numbers from 0 to {MAX_WIDTH}")));
        }
        if width > 0 && heads > 0 {
            let expected = format!("0 in layer {layer}, which has heads of keys and values");
            return Err(keys.invalid(KEY, width, expected));
        }
    }
    if widths.iter().all(|&width| width == 0) {
        return Err(keys.invalid(KEY, "all 0", "a layer with a network"));
    }
    Ok(widths)
}

/// The switches of both: layers without a width have a mixer, and those of them without heads of
/// keys and values a state.
fn one_part(spec: DecoderSpec, keys: &Keys<'_>, sizes: &Sizes, widths: &[usize]) -> Result<DecoderSpec> {
    let part = |&width: &usize| if width > 0 { LayerParts::Network } else { LayerParts::Mixer };
    let has_state = |(&width, &heads): (&usize, &usize)| width == 0 && heads == 0;
    let layers = widths.iter().zip(&sizes.kv_heads).map(has_state).collect();
    Ok(DecoderSpec {
        // Converters reorder the rows of q and k, as if they were rotated.
        rope_layout: RopeLayout::Interleaved,
        reordered_heads: true,
        activation: Activation::SquaredRelu,
        recurrent: Recurrent::read_mamba2(keys, layers)?,
        layers: LayerKinds { parts: widths.iter().map(part).collect(), ..spec.layers },
        ..spec
    })
}
