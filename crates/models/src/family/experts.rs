//! Mixtures of experts as data: layers, sizes, router, and the switches that families differ in.

use super::Activation;
use crate::config::keys::{Keys, Limits, Real};
use crate::error::Result;

/// Largest inner width that a file may name.
const MAX_WIDTH: usize = 1 << 20;

/// Largest number of experts that a file may name; published models have up to 512.
const MAX_EXPERTS: usize = 1 << 16;

/// Factors of expert outputs; published models have 1 to 2.5.
const WEIGHT_SCALES: Limits = Limits { least: 1e-4, most: 1e4 };

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
    /// Activation of the experts; the shared ones have that of the decoder.
    pub activation: Activation,
    /// Choice of experts and of their weights.
    pub router: Router,
}

/// Router: from the logits of a token's experts to the experts that compute it, and their weights.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Router {
    /// Function from logits to scores.
    pub scoring: Scoring,
    /// Restriction of the selection to groups of experts, if any.
    pub groups: Option<ExpertGroups>,
    /// True if the weights of a token's experts are divided by their sum.
    pub renormalize: bool,
    /// Factor of the weights.
    pub scale: f32,
}

/// Function from the logits of a router to scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Scoring {
    /// Softmax over all experts.
    Softmax,
    /// Sigmoid of each logit. A bias per expert (`exp_probs_b`), if the file has one, is added for
    /// the selection and to nothing else.
    Sigmoid,
    /// Softmax over the selected experts; the selection is by logits.
    SoftmaxOfSelected,
}

/// Groups of consecutive experts: a token's experts are of its best groups. A group has the score
/// of its best expert, or with a selection bias the sum of its two best. Source: DeepSeek-V2 and
/// DeepSeek-V3, arXiv 2405.04434 and 2412.19437.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExpertGroups {
    /// Number of groups; divides that of the experts.
    pub count: usize,
    /// Groups that a token's experts may be of.
    pub used: usize,
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
        let router = read_router(keys, &usual, (count, used))?;
        let shared_gate = usual.shared == Shared::Gated;
        let (layers, dense_dim) = read_layers(keys, n_layers)?;
        let activation = usual.activation;
        Ok(Self { layers, dense_dim, count, used, ffn_dim, shared_dim, shared_gate, activation, router })
    }
}

/// The layers with experts, and the width of the feed-forward network of the others.
fn read_layers(keys: &Keys<'_>, n_layers: usize) -> Result<(Vec<bool>, usize)> {
    let leading = keys.count("leading_dense_block_count", 0..=n_layers.saturating_sub(1))?.unwrap_or(0);
    let layers = (0..n_layers).map(|layer| layer >= leading).collect();
    let dense_dim = (leading > 0).then(|| keys.require_count("feed_forward_length", 1..=MAX_WIDTH));
    Ok((layers, dense_dim.transpose()?.unwrap_or(0)))
}

/// Inner width of the shared experts together.
fn read_shared(keys: &Keys<'_>, shared: &Shared, ffn_dim: usize) -> Result<usize> {
    const COUNT: &str = "expert_shared_count";
    if *shared == Shared::None {
        return Ok(0);
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

fn read_router(keys: &Keys<'_>, usual: &Usual, (count, used): (usize, usize)) -> Result<Router> {
    const FUNCTION: &str = "expert_gating_func";
    let scoring = match keys.count(FUNCTION, 0..=usize::MAX)? {
        None | Some(0) => usual.scoring,
        Some(1) => Scoring::Softmax,
        Some(2) => Scoring::Sigmoid,
        Some(3) => Scoring::SoftmaxOfSelected,
        Some(other) => return Err(keys.invalid(FUNCTION, other, "a whole number from 0 to 3")),
    };
    let renormalize = keys.flag("expert_weights_norm")?.unwrap_or(usual.renormalize);
    let scale = keys.real("expert_weights_scale", Real::NotNegative)?.filter(|&scale| scale > 0.0);
    if let Some(scale) = scale.filter(|&scale| !WEIGHT_SCALES.allows(scale)) {
        return Err(keys.invalid("expert_weights_scale", scale, WEIGHT_SCALES.describe()));
    }
    let groups = read_groups(keys, (count, used))?;
    Ok(Router { scoring, groups, renormalize, scale: scale.unwrap_or(1.0) })
}

fn read_groups(keys: &Keys<'_>, (count, used): (usize, usize)) -> Result<Option<ExpertGroups>> {
    const COUNT: &str = "expert_group_count";
    const USED: &str = "expert_group_used_count";
    let n_groups = keys.count(COUNT, 0..=count)?.unwrap_or(0);
    if n_groups <= 1 {
        return Ok(None);
    }
    if !count.is_multiple_of(n_groups) {
        return Err(keys.invalid(COUNT, n_groups, format!("a divisor of the {count} experts")));
    }
    let n_used = keys.require_count(USED, 1..=n_groups)?;
    if n_used.saturating_mul(count / n_groups) < used {
        let expected = format!("groups that have the {used} experts of a token");
        return Err(keys.invalid(USED, n_used, expected));
    }
    Ok(Some(ExpertGroups { count: n_groups, used: n_used }))
}
