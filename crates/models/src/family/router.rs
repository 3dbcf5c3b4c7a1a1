//! Routers of mixtures of experts as data.

use crate::config::keys::{Keys, Limits, Real};
use crate::error::Result;

/// Factors of expert outputs; published models have 1 to 2.5.
const WEIGHT_SCALES: Limits = Limits { least: 1e-4, most: 1e4 };

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
    /// Sigmoid of the logit of each selected expert; the selection is by logits, which differ where
    /// sigmoids are rounded to 1.
    SigmoidOfSelected,
    /// Expert after expert by its logit, each with the softmax over the experts that are left and
    /// whose logits are within 2 % of its own. Source: `SparseMixer` of Phi 3.5 `MoE`, arXiv
    /// 2409.12136, with the jitter of 0.01 of the published model, as it selects without training.
    SparseMixer,
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

impl Router {
    /// Reads a router of `count` experts, of which a token has `used`. `usual` are function and
    /// renormalization where a file does not say.
    pub(super) fn read(
        keys: &Keys<'_>,
        usual: (Scoring, bool),
        (count, used): (usize, usize),
    ) -> Result<Self> {
        const FUNCTION: &str = "expert_gating_func";
        let scoring = match keys.count(FUNCTION, 0..=usize::MAX)? {
            None | Some(0) => usual.0,
            Some(1) => Scoring::Softmax,
            Some(2) => Scoring::Sigmoid,
            Some(3) => Scoring::SoftmaxOfSelected,
            Some(other) => return Err(keys.invalid(FUNCTION, other, "a whole number from 0 to 3")),
        };
        let renormalize = keys.flag("expert_weights_norm")?.unwrap_or(usual.1);
        let scale = keys.real("expert_weights_scale", Real::NotNegative)?.filter(|&scale| scale > 0.0);
        if let Some(scale) = scale.filter(|&scale| !WEIGHT_SCALES.allows(scale)) {
            return Err(keys.invalid("expert_weights_scale", scale, WEIGHT_SCALES.describe()));
        }
        let groups = read_groups(keys, (count, used))?;
        Ok(Self { scoring, groups, renormalize, scale: scale.unwrap_or(1.0) })
    }
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
