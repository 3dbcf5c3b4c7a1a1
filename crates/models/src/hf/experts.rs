//! Mixtures of experts in `config.json`: fields, their keys in GGUF, and names of tensors.

use super::fields::Fields;
use super::keys::Keys;
use super::sizes::{ExpertSizes, MAX_EXPERTS, MAX_WIDTH};
use crate::error::Result;

/// Stacks of GGUF: gate, up and down.
pub(super) const STACKS: [&str; 3] = ["ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"];

/// Mixture of experts of a family.
#[derive(Debug)]
pub(super) struct Experts {
    /// Fields with the number of experts; the first that is there counts.
    pub(super) count: &'static [&'static str],
    /// Field with the inner width of an expert; `None`: that of the feed-forward network.
    pub(super) ffn_dim: Option<&'static str>,
    /// Field with the inner width of the shared experts; `None`: there are none.
    pub(super) shared_dim: Option<&'static str>,
    /// Field that says if a token's weights are divided by their sum, false where it is absent;
    /// `None`: they are.
    pub(super) renormalize: Option<&'static str>,
    /// Beginning of names, behind the number of the layer, in place of `mlp.`; `None`: that alone.
    pub(super) alias: Option<&'static str>,
    /// Names of the gate, up and down matrices of an expert.
    pub(super) parts: [&'static str; 3],
    /// Storage of the matrices.
    pub(super) form: StackForm,
    /// Fields of the clamped activation and the values that they must have, for which there are no
    /// keys.
    pub(super) clamp: &'static [(&'static str, f64)],
}

/// Storage of the matrices of experts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StackForm {
    /// A matrix per expert, or those of all experts in one tensor with gate below up.
    Usual,
    /// All experts in one tensor in which gate and up alternate, with biases: transposed, or in
    /// MXFP4.
    Alternating,
}

impl Experts {
    /// Reads the sizes of the mixture. `ffn_dim` is the width of the feed-forward network.
    pub(super) fn read(&self, config: &Fields<'_>, ffn_dim: usize) -> Result<ExpertSizes> {
        let width = |key: &str| config.require_count(key, 1..=MAX_WIDTH);
        let key = self.count.iter().find(|key| config.get(key).is_some()).unwrap_or(&self.count[0]);
        let count = config.require_count(key, 1..=MAX_EXPERTS)?;
        const STEP: &str = "decoder_sparse_step";
        if config.count(STEP, 0..=usize::MAX)?.is_some_and(|step| step != 1) {
            return Err(config.invalid(STEP, "1: experts in every layer"));
        }
        const DENSE: &str = "mlp_only_layers";
        if config.list(DENSE)?.is_some_and(|layers| !layers.is_empty()) {
            return Err(config.invalid(DENSE, "an empty list: experts in every layer"));
        }
        const CLIP: &str = "clip_qkv";
        if config.get(CLIP).is_some() {
            return Err(config.invalid(CLIP, "null: queries, keys and values are not clipped"));
        }
        for &(key, known) in self.clamp {
            if config.real(key)?.is_some_and(|found| found != known) {
                return Err(config.invalid(key, format!("{known}: GGUF has no key for another")));
            }
        }
        Ok(ExpertSizes {
            count,
            ffn_dim: self.ffn_dim.map_or(Ok(ffn_dim), width)?,
            shared_dim: self.shared_dim.map_or(Ok(0), width)?,
        })
    }

    /// Writes the keys of the mixture.
    pub(super) fn write(&self, config: &Fields<'_>, sizes: &ExpertSizes, keys: &mut Keys) -> Result<()> {
        keys.count("expert_count", sizes.count);
        keys.count("expert_used_count", config.require_count("num_experts_per_tok", 1..=sizes.count)?);
        if self.ffn_dim.is_some() {
            keys.count("expert_feed_forward_length", sizes.ffn_dim);
        }
        if sizes.shared_dim > 0 {
            keys.count("expert_shared_feed_forward_length", sizes.shared_dim);
        }
        if let Some(field) = self.renormalize {
            keys.flag("expert_weights_norm", config.flag(field)?.unwrap_or(false));
        }
        Ok(())
    }

    /// The name of a tensor behind the number of its layer, with `mlp.` as its beginning.
    pub(super) fn usual_name(&self, name: &str) -> String {
        match self.alias.and_then(|alias| name.strip_prefix(alias)) {
            Some(rest) => format!("mlp.{rest}"),
            None => name.to_owned(),
        }
    }

    /// Name of a matrix of an expert.
    pub(super) fn shown(&self, layer: usize, expert: usize, stack: usize) -> String {
        let part = self.parts[stack];
        format!("model.layers.{layer}.{}experts.{expert}.{part}.weight", self.alias.unwrap_or("mlp."))
    }
}
