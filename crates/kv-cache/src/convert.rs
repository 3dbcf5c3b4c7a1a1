//! The numbers of a block in another format, layer by layer.

use ruvllm_kernels::{Kernels, KvRole, KvScratch, SquatCorrection};

use crate::store::Tier;

/// Rewrites one layer's keys and values; keys with a correction per head, if there are any. Equal formats are copied bit by
/// bit.
pub(crate) fn convert(
    kernels: &Kernels,
    from: (&Tier, &[u8]),
    to: (&Tier, &mut [u8]),
    corrections: Option<&[SquatCorrection]>,
    scratch: &mut KvScratch,
) {
    let ((from, source), (to, target)) = (from, to);
    let (keys, values) = source.split_at(from.keys.plane_bytes());
    let (to_keys, to_values) = target.split_at_mut(to.keys.plane_bytes());
    match corrections {
        Some(corrections) => {
            kernels.convert_keys_squat(&from.keys, keys, &to.keys, to_keys, corrections, scratch);
        }
        None => kernels.convert_kv(KvRole::Keys, &from.keys, keys, &to.keys, to_keys, scratch),
    }
    kernels.convert_kv(KvRole::Values, &from.values, values, &to.values, to_values, scratch);
}
