//! Attention of layers that read the keys and values of an earlier one and have only queries of
//! their own. They come behind all layers that write keys and values, so that only tokens with
//! logits pass through them.

use super::adapt::{Product, project_adapted_query};
use super::layer::{Layer, Stream, normalize, positions, read_q8};
use crate::batch::{Segment, Span, count};
use crate::rows;
use crate::weights::SharedAttentionWeights;
use crate::workspace::Buffers;

impl Layer<'_> {
    /// Attention of the rows of `spans`, which lie one behind the other, added to them; returns
    /// their number.
    pub(super) fn shared_attention(
        &self,
        weights: &SharedAttentionWeights,
        buffers: &mut Buffers,
        segments: &[Segment<'_>],
        spans: &[Span],
    ) -> usize {
        let Layer { config, compute, heads, .. } = self;
        let (n_rows, width) = (count(spans), heads.query_dim());
        let Buffers { hidden, normed, queries, keys, values, unnormed, adapted, .. } = &mut *buffers;
        let norm = self.weights.attention_norm.as_deref();
        normalize(compute, config, hidden, norm, normed, n_rows, read_q8([&weights.query]));
        let queries = &mut queries[..n_rows * width];
        adapted.gates.compute(compute, (segments, spans), self.index, normed.values());
        let unused = [keys, values].map(|rows| &mut rows[..n_rows * heads.kv_dim()]);
        let query = Product::of(&weights.query, &mut *queries);
        project_adapted_query(compute, adapted, (segments, spans), self.index, normed, (query, unused));
        self.norm_in_place(queries, width, weights.query_norm.as_deref(), unnormed);
        let rows = queries.chunks_exact_mut(width).zip(positions(segments, spans));
        rows::for_each(&compute.pool, rows, |(query, (position, cache))| {
            self.place_query(query, position, cache);
        });
        self.attend(None, buffers, segments, spans, n_rows);
        let Buffers { hidden, attended, update, unnormed, adapted, .. } = buffers;
        let stream = Stream { hidden, update, unnormed, adapted };
        self.add_mixed(&weights.output, attended, stream, (segments, spans));
        n_rows
    }
}
