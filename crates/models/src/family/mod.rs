//! What distinguishes one model family from another, as data: the switches of the one decoder block.
//! A new family is a file here that fills a [`DecoderSpec`] from its metadata keys, and a line in
//! [`FAMILIES`]; the forward pass in `decoder` reads the switches and is never copied.

mod llama;

use ruvllm_kernels::RopeLayout;

use crate::config::keys::Keys;
use crate::error::{Error, Result};

/// The families that can be loaded.
const FAMILIES: &[Family] = &[llama::FAMILY];

/// One model family.
pub(crate) struct Family {
    /// Its value of `general.architecture`, which is also the prefix of its keys.
    architecture: &'static str,
    /// Reads the switches. The argument is the head dimension.
    pub(crate) decoder: fn(&Keys<'_>, usize) -> Result<DecoderSpec>,
}

/// The switches of the decoder block. Biases need none: a projection that has a bias in the file
/// gets it.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct DecoderSpec {
    /// Which elements of a head are rotated together.
    pub rope_layout: RopeLayout,
    /// Factor of query-key products before the softmax.
    pub attention_scale: f32,
    /// `cap` of `cap * tanh(score / cap)`, applied to the scaled products.
    pub attention_soft_cap: Option<f32>,
    /// How far back each layer sees.
    pub window: Window,
    /// What joins the two halves of the feed-forward network.
    pub activation: Activation,
}

/// How far back the layers of a model see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Window {
    /// To the first token.
    Full,
    /// A query sees itself and the tokens before it, this many in all, in every layer.
    Sliding(usize),
}

impl Window {
    /// Number of keys that a query of `_layer` sees at most; `None` is without limit.
    pub fn of_layer(self, _layer: usize) -> Option<usize> {
        match self {
            Self::Full => None,
            Self::Sliding(tokens) => Some(tokens),
        }
    }
}

/// What joins the gate and up projections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Activation {
    /// `silu(gate) * up`.
    SwiGlu,
}

/// The family of an architecture name.
pub(crate) fn find(architecture: &str) -> Result<&'static Family> {
    FAMILIES.iter().find(|family| family.architecture == architecture).ok_or_else(|| {
        Error::UnsupportedArchitecture { found: architecture.to_owned(), supported: supported() }
    })
}

/// The architecture names that can be loaded, separated by commas.
pub(crate) fn supported() -> String {
    FAMILIES.iter().map(|family| family.architecture).collect::<Vec<_>>().join(", ")
}
