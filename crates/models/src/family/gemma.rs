//! Gemma, Gemma 2 and the text parts of Gemma 3, 3n and 4. GGUF files store norm weights with 1
//! added; the published checkpoints do not. Gemma 3n and 4 add nothing to them.

use super::experts::{Experts, Shared, Usual as UsualExperts};
use super::layers::LayerKinds;
use super::streams::{ResidualStreams, read_gate_cutoffs};
use super::window::{Usual, Window};
use super::{Activation, DecoderSpec, Family, LocalRopes, Sizes, read_attention_scale, read_soft_cap};
use crate::config::keys::Keys;
use crate::error::Result;

pub(super) const GEMMA: Family =
    Family { architecture: "gemma", local_rope: LocalRopes::None, decoder: common };

pub(super) const GEMMA2: Family = Family {
    architecture: "gemma2",
    local_rope: LocalRopes::None,
    decoder: |keys, sizes| {
        Ok(DecoderSpec {
            attention_scale: read_attention_scale(keys, scale_width(sizes, 46))?,
            attention_soft_cap: read_soft_cap(keys, "attn_logit_softcapping", Some(50.0))?,
            logits_soft_cap: read_soft_cap(keys, "final_logit_softcapping", Some(30.0))?,
            window: Window::read(keys, sizes.n_layers, Usual { tokens: 4096, period: 2 })?,
            post_norms: true,
            ..common(keys, sizes)?
        })
    },
};

pub(super) const GEMMA3: Family = Family {
    architecture: "gemma3",
    local_rope: LocalRopes::Windowed { base: 10_000.0 },
    decoder: |keys, sizes| {
        Ok(DecoderSpec {
            attention_scale: read_attention_scale(keys, scale_width(sizes, 62))?,
            logits_soft_cap: read_soft_cap(keys, "final_logit_softcapping", None)?,
            window: Window::read(keys, sizes.n_layers, Usual { tokens: 0, period: 6 })?,
            head_norms: true,
            post_norms: true,
            ..common(keys, sizes)?
        })
    },
};

pub(super) const GEMMA3N: Family = Family {
    architecture: "gemma3n",
    local_rope: LocalRopes::Windowed { base: 10_000.0 },
    decoder: |keys, sizes| {
        // Without the key, readers differ in the layers that read the keys and values of others.
        keys.require_count("attention.shared_kv_layers", 0..=sizes.n_layers - 1)?;
        let window = Window::read(keys, sizes.n_layers, Usual { tokens: 0, period: 5 })?;
        Ok(DecoderSpec {
            // The norms of heads hold it.
            attention_scale: 1.0,
            logits_soft_cap: read_soft_cap(keys, "final_logit_softcapping", Some(30.0))?,
            layers: LayerKinds { value_norms: true, ..LayerKinds::read(keys, sizes, &window)? },
            streams: Some(ResidualStreams::read(keys)?),
            gate_cutoffs: read_gate_cutoffs(keys, sizes.n_layers)?,
            window,
            head_norms: true,
            post_norms: true,
            ..common(keys, sizes)?
        })
    },
};

pub(super) const GEMMA4: Family = Family {
    architecture: "gemma4",
    local_rope: LocalRopes::Windowed { base: 10_000.0 },
    decoder: |keys, sizes| {
        let window = Window::read(keys, sizes.n_layers, Usual { tokens: 0, period: 6 })?;
        Ok(DecoderSpec {
            // The norms of heads hold it.
            attention_scale: 1.0,
            logits_soft_cap: read_soft_cap(keys, "final_logit_softcapping", None)?,
            layers: LayerKinds {
                optional_values: true,
                value_norms: true,
                output_scales: true,
                ..LayerKinds::read(keys, sizes, &window)?
            },
            window,
            head_norms: true,
            post_norms: true,
            ..with_experts(keys, sizes)?
        })
    },
};

/// A mixture beside the feed-forward network, if the file has one.
fn with_experts(keys: &Keys<'_>, sizes: &Sizes) -> Result<DecoderSpec> {
    if keys.count("expert_count", 0..=usize::MAX)?.unwrap_or(0) == 0 {
        return common(keys, sizes);
    }
    let (renormalize, shared, activation) = (true, Shared::Beside, Activation::GeGlu);
    let usual = UsualExperts { renormalize, shared, activation, ..UsualExperts::SOFTMAX };
    let experts = Experts::read(keys, sizes.n_layers, usual)?;
    Ok(scaled(DecoderSpec::mixture(keys, sizes, Some(experts))?, sizes))
}

fn common(keys: &Keys<'_>, sizes: &Sizes) -> Result<DecoderSpec> {
    Ok(scaled(DecoderSpec::usual(keys, sizes)?, sizes))
}

fn scaled(spec: DecoderSpec, sizes: &Sizes) -> DecoderSpec {
    let embedding_scale = (sizes.model_dim as f32).sqrt();
    DecoderSpec { activation: Activation::GeGlu, embedding_scale, ..spec }
}

/// The largest model of each generation, known by its layers, scales queries by their part of the
/// model's width; the others by the width of a head. The files do not say it.
fn scale_width(sizes: &Sizes, layers_of_largest: usize) -> usize {
    if sizes.n_layers == layers_of_largest {
        (sizes.model_dim / sizes.n_heads).max(1)
    } else {
        sizes.head_dim
    }
}
