//! LoRA updates of the products of a pass. Rows of several adapters, and rows without one, may be
//! in one pass: the products with the weights are computed for all together, and the low-rank parts
//! for each run of rows that share an adapter.

use std::ops::Range;

use ruvllm_adapters::{BaseModel, LowRank, Site};
use ruvllm_kernels::matmul::{Activations, MatmulJob};
use ruvllm_kernels::rope::RopeLayout;

use crate::batch::{Segment, Span};
use crate::compute::Compute;
use crate::config::ModelConfig;
use crate::family::Projections;
use crate::rows;
use crate::workspace::Adapted;

/// Columns per thread and turn for single rows: rows of a few thousand values do not wake threads.
const COLUMNS: usize = 512;

/// Rows per thread and turn; they share the loaded factors.
const ROWS: usize = 8;

/// Dimensions that adapters of a model must match.
pub(super) fn base_model(config: &ModelConfig) -> BaseModel {
    BaseModel {
        architecture: config.architecture.clone(),
        n_layers: config.n_layers,
        model_dim: config.model_dim,
        query_dim: config.query_dim(),
        kv_dim: config.kv_dim(),
        head_dim: config.head_dim,
        ffn_dim: config.ffn_dim,
        vocab_size: config.vocab_size,
        interleaved_heads: config.decoder.rope_layout == RopeLayout::Interleaved,
        joint_projections: config.decoder.projections == Projections::Joint,
    }
}

/// The rows that have something added at a site, in runs of one adapter. The rows of `spans` lie
/// one behind the other, whatever rows of the batch they are.
pub(super) fn runs<'a>(
    segments: &'a [Segment<'_>],
    spans: &'a [Span],
    (layer, site): (usize, Site),
) -> impl Iterator<Item = (&'a LowRank, Range<usize>)> {
    let mut spans = spans.iter().peekable();
    let mut row = 0;
    std::iter::from_fn(move || {
        loop {
            let span = spans.next()?;
            let (start, adapter) = (row, segments[span.segment].adapter);
            row += span.len;
            let low_rank = adapter.and_then(|adapter| adapter.at(layer, site));
            let Some((adapter, low_rank)) = adapter.zip(low_rank) else { continue };
            let shares = |next: &&Span| {
                segments[next.segment].adapter.is_some_and(|other| std::ptr::eq(other, adapter))
            };
            while let Some(next) = spans.next_if(shares) {
                row += next.len;
            }
            return Some((low_rank, start..row));
        }
    })
}

/// Adds the updates of `runs` to the products `outs` of `input`. Rows are independent of each
/// other.
pub(super) fn adapt<'a>(
    compute: &Compute,
    adapted: &mut Adapted,
    runs: impl Iterator<Item = (&'a LowRank, Range<usize>)>,
    input: &Activations,
    outs: &mut [&mut [f32]],
) {
    let Compute { kernels, pool } = compute;
    let Adapted { input: part, shrunk } = adapted;
    for (low_rank, rows) in runs {
        let (n_rows, width, rank) = (rows.len(), input.cols(), low_rank.rank());
        let input = if n_rows == input.tokens() {
            input
        } else {
            let values = &input.values()[rows.start * width..rows.end * width];
            part.resize(n_rows, width).copy_from_slice(values);
            &*part
        };
        shrunk.resize(n_rows * rank, 0.0);
        let mut job = [MatmulJob { weights: low_rank.shrink(), out: shrunk }];
        kernels.matmul_many(pool, input, &mut job);
        for (target, out) in outs.iter_mut().enumerate() {
            let Some(width) = low_rank.outputs(target) else { continue };
            let out = &mut out[rows.start * width..rows.end * width];
            if n_rows == 1 {
                let parts = out.chunks_mut(COLUMNS).enumerate();
                rows::for_each(pool, parts, |(part, out)| {
                    low_rank.expand(kernels, target, shrunk, part * COLUMNS, out);
                });
            } else {
                let parts = out.chunks_mut(ROWS * width).zip(shrunk.chunks(ROWS * rank));
                rows::for_each(pool, parts, |(out, shrunk)| low_rank.expand(kernels, target, shrunk, 0, out));
            }
        }
    }
}
