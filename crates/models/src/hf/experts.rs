//! Mixtures of experts in `config.json`: fields, their keys in GGUF, and names of tensors.

use super::fields::Fields;
use super::keys::Keys;
use super::sizes::{ExpertSizes, MAX_EXPERTS, MAX_LAYERS, MAX_WIDTH};
use crate::error::Result;

/// Stacks of GGUF: gate, up and down.
pub(super) const STACKS: [&str; 3] = ["ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"];

/// Names of tensors of all experts, behind `mlp.experts.`, as transformers 5 computes with them:
/// gate below up, and down.
pub(super) const JOINT_GATE_UP: &str = "gate_up_proj";
pub(super) const JOINT_DOWN: &str = "down_proj";

/// The same of experts without a gate.
pub(super) const JOINT_UP: &str = "up_proj";

/// Mixture of experts of a family.
#[derive(Debug)]
pub(super) struct Experts {
    /// Field that must be true for a mixture; `None`: there always is one.
    pub(super) switch: Option<&'static str>,
    /// Fields with the number of experts; the first that is there counts.
    pub(super) count: &'static [&'static str],
    /// Models of the family may have 0 experts: the shared ones are their feed-forward network.
    pub(super) may_be_dense: bool,
    /// Field with the number of experts of a token.
    pub(super) used: &'static str,
    /// Field with the inner width of an expert; `None`: that of the feed-forward network.
    pub(super) ffn_dim: Option<&'static str>,
    /// Field with the inner width of the shared experts; `None`: there are none.
    pub(super) shared_dim: Option<&'static str>,
    /// Field with the number of shared experts, each as wide as an expert, and its default; in
    /// place of their width.
    pub(super) shared_count: Option<(&'static str, usize)>,
    /// Field with the number of leading layers without experts, and its default; `None`: experts
    /// in every layer.
    pub(super) leading_dense: Option<(&'static str, usize)>,
    /// Field with the distance of layers with experts, the last of every so many, unless
    /// `moe_layers` lists them; `None`: experts in every layer behind the leading ones.
    pub(super) step: Option<&'static str>,
    /// Number of the function from logits to scores in GGUF; `None`: readers have a default.
    pub(super) scoring: Option<usize>,
    /// Field that says if a token's weights are divided by their sum, and its default; `None`: they
    /// are.
    pub(super) renormalize: Option<(&'static str, bool)>,
    /// Field with the factor of weights, 1 where it is absent; `None`: there is none.
    pub(super) scale: Option<&'static str>,
    /// May select experts of the best groups only (`n_group`, `topk_group`).
    pub(super) has_groups: bool,
    /// Beginning of names, behind the number of the layer, in place of `mlp.`; `None`: that alone.
    pub(super) alias: Option<&'static str>,
    /// Names of the tensors of all experts in the place of matrices of single ones: gate below up,
    /// and down.
    pub(super) joint: Option<[&'static str; 2]>,
    /// Beginning of the names of experts alone, in place of `mlp.`; `None`: that of all names.
    pub(super) beginning: Option<&'static str>,
    /// Names of the gate, up and down matrices of an expert.
    pub(super) parts: [&'static str; 3],
    /// False if there are no gate matrices.
    pub(super) is_gated: bool,
    /// Storage of the matrices.
    pub(super) form: StackForm,
    /// Fields of the clamped activation or the router, and the values that they must have, for
    /// which there are no keys.
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
    /// All experts in one tensor, transposed, the columns of gate before those of up, or a matrix
    /// per expert as usual.
    Halves,
}

impl Experts {
    /// Reads the sizes of the mixture; `None` if the model is none. `ffn_dim` is the width of the
    /// feed-forward network.
    pub(super) fn read(&self, config: &Fields<'_>, ffn_dim: usize) -> Result<Option<ExpertSizes>> {
        if let Some(switch) = self.switch
            && config.flag(switch)? != Some(true)
        {
            return Ok(None);
        }
        let width = |key: &str| config.require_count(key, 1..=MAX_WIDTH);
        let key = self.count.iter().find(|key| config.get(key).is_some()).unwrap_or(&self.count[0]);
        let least = usize::from(!self.may_be_dense);
        let count = config.require_count(key, least..=MAX_EXPERTS)?;
        if count == 0 {
            return Ok(None);
        }
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
        const LATENT: &str = "moe_latent_size";
        if config.get(LATENT).is_some() {
            return Err(config.invalid(LATENT, "null: experts of latents cannot be computed"));
        }
        for &(key, known) in self.clamp {
            if config.real(key)?.is_some_and(|found| found != known) {
                return Err(config.invalid(key, format!("{known}: GGUF has no key for another")));
            }
        }
        let ffn_dim = self.ffn_dim.map_or(Ok(ffn_dim), width)?;
        let shared_dim = match self.shared_count {
            Some((field, usual)) => {
                config.count(field, 0..=MAX_WIDTH / ffn_dim)?.unwrap_or(usual).saturating_mul(ffn_dim)
            }
            None => self.shared_dim.map_or(Ok(0), width)?,
        };
        let leading_dense = match self.leading_dense {
            Some((field, usual)) => {
                let n_layers = config.require_count("num_hidden_layers", 1..=MAX_LAYERS)?;
                config.count(field, 0..=n_layers - 1)?.unwrap_or(usual)
            }
            None => 0,
        };
        let step = self.step.map_or(Ok(1), |field| read_step(config, field))?;
        let sizes = ExpertSizes { count, ffn_dim, shared_dim, leading_dense, step };
        Ok(Some(sizes).filter(|_| step > 0))
    }

    /// Writes the keys of the mixture.
    pub(super) fn write(&self, config: &Fields<'_>, sizes: &ExpertSizes, keys: &mut Keys) -> Result<()> {
        keys.count("expert_count", sizes.count);
        keys.count("expert_used_count", config.require_count(self.used, 1..=sizes.count)?);
        if self.ffn_dim.is_some() {
            keys.count("expert_feed_forward_length", sizes.ffn_dim);
        }
        if self.shared_count.is_some() {
            keys.count("expert_shared_count", sizes.shared_dim / sizes.ffn_dim);
        } else if sizes.shared_dim > 0 {
            keys.count("expert_shared_feed_forward_length", sizes.shared_dim);
        }
        if self.leading_dense.is_some() {
            keys.count("leading_dense_block_count", sizes.leading_dense);
        }
        if self.step.is_some() {
            keys.count("interleave_moe_layer_step", sizes.step);
        }
        if let Some(scoring) = self.scoring {
            keys.count("expert_gating_func", scoring);
        }
        if let Some((field, usual)) = self.renormalize {
            keys.flag("expert_weights_norm", config.flag(field)?.unwrap_or(usual));
        }
        if let Some(field) = self.scale {
            keys.real("expert_weights_scale", config.positive(field)?.unwrap_or(1.0));
        }
        if self.has_groups {
            write_groups(config, sizes.count, keys)?;
        }
        Ok(())
    }

    /// The name of a tensor behind the number of its layer, with `mlp.` as its beginning.
    pub(super) fn usual_name(&self, name: &str) -> String {
        match self.joint {
            Some([gate_up, _]) if name == gate_up => return format!("mlp.experts.{JOINT_GATE_UP}"),
            Some([_, down]) if name == down => return format!("mlp.experts.{JOINT_DOWN}"),
            _ => {}
        }
        let of_experts = |beginning| name.strip_prefix(beginning).filter(|rest| rest.starts_with("experts."));
        let of_alias = |alias| name.strip_prefix(alias);
        match self.beginning.and_then(of_experts).or(self.alias.and_then(of_alias)) {
            Some(rest) => format!("mlp.{rest}"),
            None => name.to_owned(),
        }
    }

    /// Number and stack of an expert's matrix, `rest` of whose name is behind `experts.`; gpt-oss
    /// has none.
    pub(super) fn single(&self, rest: &str) -> Option<(usize, usize)> {
        if self.form == StackForm::Alternating {
            return None;
        }
        let (expert, part) = rest.strip_suffix(".weight")?.split_once('.')?;
        // Written back, so that `+1` and `01` are no experts.
        let number = expert.parse::<usize>().ok().filter(|number| number.to_string() == expert)?;
        Some((number, self.parts.iter().position(|known| *known == part)?))
    }

    /// Name of a matrix of an expert, or of that of all experts.
    pub(super) fn shown(&self, layer: usize, expert: usize, stack: usize) -> String {
        if let Some([gate_up, down]) = self.joint {
            return format!("model.layers.{layer}.{}", if stack == 2 { down } else { gate_up });
        }
        self.shown_single(layer, expert, stack)
    }

    /// Name of a matrix of an expert.
    pub(super) fn shown_single(&self, layer: usize, expert: usize, stack: usize) -> String {
        let part = self.parts[stack];
        format!("model.layers.{layer}.{}experts.{expert}.{part}.weight", self.prefix())
    }

    /// Beginning of the names of experts behind the number of the layer.
    pub(super) fn prefix(&self) -> &'static str {
        self.beginning.or(self.alias).unwrap_or("mlp.")
    }
}

/// Distance of the layers with experts, of which files have the first as the last of so many; 0: no
/// layer has any.
fn read_step(config: &Fields<'_>, field: &str) -> Result<usize> {
    const LAYERS: &str = "moe_layers";
    let n_layers = config.require_count("num_hidden_layers", 1..=MAX_LAYERS)?;
    let Some(listed) = config.list(LAYERS)? else {
        return Ok(config.count(field, 0..=n_layers)?.unwrap_or(1));
    };
    let layers: Option<Vec<usize>> =
        listed.iter().map(|layer| layer.as_u64().and_then(|layer| usize::try_from(layer).ok())).collect();
    let expected = || format!("layers of {n_layers} at equal distances, as far from one before the first");
    let layers = layers.ok_or_else(|| config.invalid(LAYERS, expected()))?;
    let Some(step) = layers.first().map(|first| first.saturating_add(1)) else { return Ok(0) };
    let is_regular = layers.iter().copied().eq((step - 1..n_layers).step_by(step));
    if is_regular { Ok(step) } else { Err(config.invalid(LAYERS, expected())) }
}

/// Groups of experts, of which a token's are of the best; one group is none.
fn write_groups(config: &Fields<'_>, n_experts: usize, keys: &mut Keys) -> Result<()> {
    const COUNT: &str = "n_group";
    // DeepSeek-V2 may have groups and not select by them.
    if config.text("topk_method")? == Some("greedy") {
        return Ok(());
    }
    let Some(count @ 2..) = config.count(COUNT, 0..=n_experts)? else { return Ok(()) };
    keys.count("expert_group_count", count);
    keys.count("expert_group_used_count", config.require_count("topk_group", 1..=count)?);
    Ok(())
}
