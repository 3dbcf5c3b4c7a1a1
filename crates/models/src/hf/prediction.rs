//! Heads that predict further tokens (multi-token prediction): names of their tensors, and the
//! layer behind the last that GGUF has them as.

/// Heads of a family's folders. The first layer is read, others are left out.
#[derive(Debug, Clone, Copy)]
pub(super) struct Prediction {
    /// Field with the number of their layers, 1 where it is absent.
    pub(super) count: &'static str,
    /// Beginning of their names; `None`: they are layers behind the last.
    pub(super) prefix: Option<&'static str>,
}

/// Heads as layers behind the last, as in DeepSeek and GLM.
pub(super) const BEHIND: Prediction = Prediction { count: "num_nextn_predict_layers", prefix: None };

/// Heads apart from the layers, as in Qwen.
pub(super) const APART: Prediction = Prediction { count: "mtp_num_hidden_layers", prefix: Some("mtp.") };

/// Beginnings of names of tensors outside the layers of heads apart, and those of the same in a
/// layer behind the last.
const OUTSIDE: [(&str, &str); 5] = [
    ("fc.", "eh_proj."),
    ("pre_fc_norm_embedding.", "enorm."),
    ("pre_fc_norm_hidden.", "hnorm."),
    ("norm.", "shared_head.norm."),
    ("embed_tokens.", "embed_tokens."),
];

impl Prediction {
    /// The name behind the last of `n_layers` layers that a tensor of heads apart would have, as
    /// `layers.4.enorm.weight`; `None` for others.
    pub(super) fn usual_name(&self, name: &str, n_layers: usize) -> Option<String> {
        let rest = name.strip_prefix(self.prefix?)?;
        if let Some((layer, part)) = rest.strip_prefix("layers.").and_then(|rest| rest.split_once('.')) {
            let layer = layer.parse::<usize>().ok().filter(|number| number.to_string() == layer)?;
            return Some(format!("layers.{}.{part}", n_layers.checked_add(layer)?));
        }
        let (own, usual) = OUTSIDE.iter().find(|(own, _)| rest.starts_with(own))?;
        Some(format!("layers.{n_layers}.{usual}{}", &rest[own.len()..]))
    }

    /// The name in the folder of a tensor whose usual name is that of a layer behind the last.
    pub(super) fn own_name(&self, usual: &str, n_layers: usize) -> Option<String> {
        let (prefix, behind) = (self.prefix?, format!("model.layers.{n_layers}."));
        let part = usual.strip_prefix(&behind)?;
        let outside = OUTSIDE.iter().find(|(_, usual)| part.starts_with(usual));
        Some(match outside {
            Some((own, usual)) => format!("{prefix}{own}{}", &part[usual.len()..]),
            None => format!("{prefix}layers.0.{part}"),
        })
    }

    /// True for a part of a layer that only layers of heads have.
    pub(super) fn is_of_head(part: &str) -> bool {
        ["eh_proj.", "enorm.", "hnorm."].iter().any(|beginning| part.starts_with(beginning))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_heads_apart_are_those_of_a_layer_behind_the_last() {
        for (own, usual) in [
            ("mtp.fc.weight", "layers.4.eh_proj.weight"),
            ("mtp.norm.weight", "layers.4.shared_head.norm.weight"),
            ("mtp.pre_fc_norm_hidden.weight", "layers.4.hnorm.weight"),
            ("mtp.layers.0.mlp.experts.3.up_proj.weight", "layers.4.mlp.experts.3.up_proj.weight"),
        ] {
            assert_eq!(APART.usual_name(own, 4).as_deref(), Some(usual));
            assert_eq!(APART.own_name(&format!("model.{usual}"), 4).as_deref(), Some(own));
            assert_eq!(BEHIND.usual_name(own, 4), None);
        }
        assert_eq!(APART.usual_name("mtp.layers.1.x", 4).as_deref(), Some("layers.5.x"));
        for other in ["mtp.layers.01.x", "mtp.head.weight", "layers.4.fc.weight", "mtp.layers.0"] {
            assert_eq!(APART.usual_name(other, 4), None, "{other}");
        }
        assert_eq!(APART.own_name("model.layers.3.input_layernorm.weight", 4), None);
    }
}
