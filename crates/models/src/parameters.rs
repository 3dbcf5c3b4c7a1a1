//! Numbers of parameters, and of those that compute a token.

use gguf_rs_lite::{Metadata, TensorInfo};

use crate::checkpoint::Checkpoint;

/// Parameters of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ParameterCounts {
    /// Elements of all tensors.
    pub total: u64,
    /// Elements that compute a token: of a mixture, as many experts as a token has.
    pub active: u64,
}

impl ParameterCounts {
    /// Counts the parameters of a checkpoint, of any architecture. A mixture is one whose keys say
    /// how many experts there are and how many a token has.
    pub fn of(checkpoint: &dyn Checkpoint) -> Self {
        let experts = expert_counts(checkpoint.metadata());
        let mut counts = Self { total: 0, active: 0 };
        for tensor in checkpoint.tensors() {
            let elements = tensor.elements();
            let active = match experts {
                Some((count, used)) if is_stack(tensor) => (elements / count).saturating_mul(used),
                _ => elements,
            };
            counts.total = counts.total.saturating_add(elements);
            counts.active = counts.active.saturating_add(active);
        }
        counts
    }
}

/// True for a tensor of all experts of a layer.
fn is_stack(tensor: &TensorInfo) -> bool {
    ["_exps.weight", "_exps.bias"].iter().any(|end| tensor.name.ends_with(end))
}

/// Experts of a layer and of a token, if the keys make sense.
fn expert_counts(metadata: &Metadata) -> Option<(u64, u64)> {
    let architecture = metadata.get_str("general.architecture").ok()??;
    let count = |key: &str| metadata.get_u64(&format!("{architecture}.{key}")).ok().flatten();
    let (count, used) = (count("expert_count")?, count("expert_used_count")?);
    (1..=count).contains(&used).then_some((count, used))
}
