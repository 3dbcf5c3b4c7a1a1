//! Mixtures of experts as data: layers, sizes, router, and the switches that families differ in.

use super::Activation;
use super::router::{Router, Scoring};
use crate::config::keys::Keys;
use crate::error::Result;

/// Largest inner width that a file may name.
const MAX_WIDTH: usize = 1 << 20;

/// Largest number of experts that a file may name; published models have up to 512.
const MAX_EXPERTS: usize = 1 << 16;

/// A mixture of experts in the place of a feed-forward network, of each layer or of some.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Experts {
    /// True for layers with experts, `[n_layers]`, at least one; the others have a feed-forward
    /// network.
    pub layers: Vec<bool>,
    /// Inner width of the feed-forward network of layers without experts; 0 = there are none.
    pub dense_dim: usize,
    /// Experts per layer.
    pub count: usize,
    /// Experts that compute each token.
    pub used: usize,
    /// Inner width of an expert.
    pub ffn_dim: usize,
    /// Inner width of the shared experts together, which compute every token; 0 = none.
    pub shared_dim: usize,
    /// True if the output of the shared experts is multiplied by a sigmoid of the token.
    pub shared_gate: bool,
    /// True if the network of every token stands beside the experts: router and experts have inputs
    /// of their own from the residual stream, and both outputs are normed.
    pub is_beside: bool,
    /// True if weights multiply the inputs of experts in the place of their outputs.
    pub weighs_inputs: bool,
    /// Activation of the experts; the shared ones have that of the decoder.
    pub activation: Activation,
    /// Choice of experts and of their weights.
    pub router: Router,
}

/// Defaults for what a family's files leave out.
pub(super) struct Usual {
    pub(super) renormalize: bool,
    pub(super) scoring: Scoring,
    pub(super) shared: Shared,
    pub(super) activation: Activation,
}

/// Shared experts of a family.
#[derive(PartialEq)]
pub(super) enum Shared {
    None,
    /// Present, behind a sigmoid gate.
    Gated,
    /// A feed-forward network beside the experts.
    Beside,
    /// Without a gate: of the width that the file names, or else so many experts as it names, or
    /// else this many.
    Plain(usize),
}

impl Usual {
    /// Softmax over all experts, no shared ones, `SwiGLU`.
    pub(super) const SOFTMAX: Self = Self {
        renormalize: false,
        scoring: Scoring::Softmax,
        shared: Shared::None,
        activation: Activation::SwiGlu,
    };
}

impl Experts {
    /// Reads the mixture of a family that has one.
    pub(super) fn read(keys: &Keys<'_>, n_layers: usize, usual: Usual) -> Result<Self> {
        let count = keys.require_count("expert_count", 1..=MAX_EXPERTS)?;
        let used = keys.require_count("expert_used_count", 1..=count)?;
        let ffn_dim = match keys.count("expert_feed_forward_length", 1..=MAX_WIDTH)? {
            Some(ffn_dim) => ffn_dim,
            None => keys.require_count("feed_forward_length", 1..=MAX_WIDTH)?,
        };
        let shared_dim = read_shared(keys, &usual.shared, ffn_dim)?;
        let router = Router::read(keys, (usual.scoring, usual.renormalize), (count, used))?;
        let shared_gate = usual.shared == Shared::Gated;
        let is_beside = usual.shared == Shared::Beside;
        let (layers, dense_dim) = read_layers(keys, n_layers)?;
        let activation = usual.activation;
        Ok(Self {
            layers,
            dense_dim,
            count,
            used,
            ffn_dim,
            shared_dim,
            shared_gate,
            is_beside,
            weighs_inputs: false,
            activation,
            router,
        })
    }
}

/// The layers with experts, and the width of the feed-forward network of the others.
fn read_layers(keys: &Keys<'_>, n_layers: usize) -> Result<(Vec<bool>, usize)> {
    const STEP: &str = "interleave_moe_layer_step";
    let leading = keys.count("leading_dense_block_count", 0..=n_layers.saturating_sub(1))?.unwrap_or(0);
    // The last of every so many has experts.
    let step = keys.count(STEP, 1..=n_layers)?.unwrap_or(1);
    let has_experts = |layer: usize| layer >= leading && (layer + 1).is_multiple_of(step);
    let layers: Vec<bool> = (0..n_layers).map(has_experts).collect();
    if !layers.contains(&true) {
        return Err(keys.invalid(STEP, step, "a step to layers behind the leading ones without experts"));
    }
    let dense_dim = layers.contains(&false).then(|| keys.require_count("feed_forward_length", 1..=MAX_WIDTH));
    Ok((layers, dense_dim.transpose()?.unwrap_or(0)))
}

/// Inner width of the shared experts together.
fn read_shared(keys: &Keys<'_>, shared: &Shared, ffn_dim: usize) -> Result<usize> {
    const COUNT: &str = "expert_shared_count";
    match shared {
        Shared::None => return Ok(0),
        Shared::Beside => return keys.require_count("feed_forward_length", 1..=MAX_WIDTH),
        _ => {}
    }
    let named = keys.count("expert_shared_feed_forward_length", 1..=MAX_WIDTH)?;
    match (named, shared) {
        (Some(named), _) => Ok(named),
        (None, Shared::Plain(usual)) => {
            let most = MAX_WIDTH / ffn_dim;
            Ok(keys.count(COUNT, 0..=most)?.unwrap_or(*usual).saturating_mul(ffn_dim))
        }
        (None, _) => keys.require_count("feed_forward_length", 1..=MAX_WIDTH),
    }
}
