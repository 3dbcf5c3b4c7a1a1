//! Numbers of parameters, and of those that compute a token.

use gguf_rs_lite::{Metadata, TensorInfo};

use crate::checkpoint::Checkpoint;
use crate::tensor_names::layer_of;

/// Parameters of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ParameterCounts {
    /// Elements of all tensors.
    pub total: u64,
    /// Elements that compute a token: of a mixture, as many experts as a token has; without layers
    /// that predict further tokens.
    pub active: u64,
}

impl ParameterCounts {
    /// Counts the parameters of a checkpoint, of any architecture. A mixture is one whose keys say
    /// how many experts there are and how many a token has.
    pub fn of(checkpoint: &dyn Checkpoint) -> Self {
        let experts = expert_counts(checkpoint.metadata());
        let n_layers = model_layers(checkpoint.metadata());
        let is_beyond = |tensor: &TensorInfo| {
            n_layers.is_some_and(|n_layers| layer_of(&tensor.name).is_some_and(|layer| layer >= n_layers))
        };
        let mut counts = Self { total: 0, active: 0 };
        for tensor in checkpoint.tensors() {
            let elements = tensor.elements();
            let active = match experts {
                _ if is_beyond(tensor) => 0,
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

/// Value of a key behind the name of the architecture.
fn count(metadata: &Metadata, key: &str) -> Option<u64> {
    let architecture = metadata.get_str("general.architecture").ok()??;
    metadata.get_u64(&format!("{architecture}.{key}")).ok().flatten()
}

/// Layers before those that predict further tokens; `None` without such ones.
fn model_layers(metadata: &Metadata) -> Option<u64> {
    count(metadata, "block_count")?.checked_sub(count(metadata, "nextn_predict_layers")?)
}

/// Experts of a layer and of a token, if the keys make sense.
fn expert_counts(metadata: &Metadata) -> Option<(u64, u64)> {
    let (count, used) = (count(metadata, "expert_count")?, count(metadata, "expert_used_count")?);
    (1..=count).contains(&used).then_some((count, used))
}
