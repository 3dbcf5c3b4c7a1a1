//! Conversion of a block to another format, layer by layer.

use ruvllm_kernels::Kernels;
use ruvllm_kernels::attention::{KvScratch, NuqContext, SquatCorrection};

use crate::tier::LayerLayout;

/// Context of one layer's conversions.
#[derive(Clone, Copy, Default)]
pub(crate) struct LayerContext<'a> {
    /// Codebooks and RoPE tables of planes in `nuq3`, if a tier is in it.
    pub(crate) nuq: Option<NuqContext<'a>>,
    /// `SQuat` corrections, one per head, if queries were recorded.
    pub(crate) corrections: Option<&'a [SquatCorrection]>,
}

/// Rewrites one layer's keys and values. Equal formats are copied bit by bit.
pub(crate) fn convert(
    kernels: &Kernels,
    from: (&LayerLayout, &[u8]),
    to: (&LayerLayout, &mut [u8]),
    context: LayerContext<'_>,
    scratch: &mut KvScratch,
) {
    // Corrections are for the first loss of precision.
    let corrections = context.corrections.filter(|_| !from.0.keys_need_calibration());
    let source = from.0.planes(from.1, context.nuq);
    let (keys, values) = to.0.planes_mut(to.1);
    kernels.convert_kv(source.keys, keys.with_nuq(context.nuq).with_corrections(corrections), scratch);
    if let Some(values) = values {
        kernels.convert_kv(source.values, values.with_nuq(context.nuq), scratch);
    }
}
