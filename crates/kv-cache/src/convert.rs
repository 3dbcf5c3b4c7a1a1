//! The numbers of a block in another format, layer by layer.

use ruvllm_kernels::{Kernels, KvRole, KvScratch};

use crate::store::Tier;

/// Rewrites one layer's keys and values. Equal formats are copied bit by bit.
pub(crate) fn convert(
    kernels: &Kernels,
    from: (&Tier, &[u8]),
    to: (&Tier, &mut [u8]),
    scratch: &mut KvScratch,
) {
    let ((from, source), (to, target)) = (from, to);
    let (keys, values) = source.split_at(from.keys.plane_bytes());
    let (to_keys, to_values) = target.split_at_mut(to.keys.plane_bytes());
    let planes = [
        (KvRole::Keys, &from.keys, keys, &to.keys, to_keys),
        (KvRole::Values, &from.values, values, &to.values, to_values),
    ];
    for (role, from, source, to, target) in planes {
        kernels.convert_kv(role, from, source, to, target, scratch);
    }
}
