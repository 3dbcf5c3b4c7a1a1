//! The numbers of a block in another format, layer by layer.

use ruvllm_kernels::Kernels;
use ruvllm_kernels::attention::{KvRole, KvScratch, NuqContext, SquatCorrection};

use crate::store::Tier;

/// What conversions of one layer may need beside the numbers.
#[derive(Clone, Copy, Default)]
pub(crate) struct LayerContext<'a> {
    /// What planes in `nuq3` mean, if a tier is in it.
    pub(crate) nuq: Option<NuqContext<'a>>,
    /// What queries say about keys, one per head, if they are known.
    pub(crate) corrections: Option<&'a [SquatCorrection]>,
}

/// Rewrites one layer's keys and values. Equal formats are copied bit by bit.
pub(crate) fn convert(
    kernels: &Kernels,
    from: (&Tier, &[u8]),
    to: (&Tier, &mut [u8]),
    context: LayerContext<'_>,
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
        let corrections = context.corrections.filter(|_| role == KvRole::Keys);
        let learned = from.format().needs_calibration() || to.format().needs_calibration();
        match (context.nuq.filter(|_| learned), corrections) {
            (Some(nuq), _) => kernels.convert_kv_nuq(role, from, source, to, target, nuq, scratch),
            (None, Some(all)) => kernels.convert_keys_squat(from, source, to, target, all, scratch),
            (None, None) => kernels.convert_kv(role, from, source, to, target, scratch),
        }
    }
}
