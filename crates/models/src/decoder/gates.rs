//! Gates of adapters: multipliers of their updates for each token of a batch, computed once per
//! layer from its normalized attention input (ADR-0059).

use ruvllm_adapters::{AdapterGate, GatedBy};

use crate::batch::{Segment, Span};
use crate::compute::Compute;
use crate::rows;

/// Gates of the tokens of a batch in one layer. Kept between layers and steps for its memory.
#[derive(Default)]
pub(crate) struct Gates {
    groups: Vec<Group>,
    /// Gates of all groups, `[n_adapters, tokens]` each.
    values: Vec<f32>,
    /// The same, token by token: `[tokens of all groups, most adapters of a gate]`.
    by_token: Vec<f32>,
}

/// A gate of a segment.
struct Group {
    /// Index of the segment; groups ascend by it.
    segment: usize,
    /// Index, in the segment's list, of the first adapter that has this gate.
    adapter: usize,
    /// First token among all tokens of the batch.
    row: usize,
    /// Number of tokens.
    len: usize,
    /// Place in the values.
    start: usize,
}

impl Gates {
    /// Computes the gates of the spans in `layer`. `input`: `[tokens, model_dim]`; `all` are all
    /// rows of the layer, in order.
    pub(super) fn compute(
        &mut self,
        Compute { kernels, pool, .. }: &Compute,
        (segments, all): (&[Segment<'_>], &[Span]),
        layer: usize,
        input: &[f32],
    ) {
        let (n_values, n_rows, width) = self.list(segments, all);
        if n_rows == 0 {
            return;
        }
        let Self { groups, values, by_token } = self;
        values.resize(values.len().max(n_values), 0.0);
        by_token.resize(by_token.len().max(n_rows * width), 0.0);
        let tokens = groups.iter().flat_map(|group| {
            let gate = group.gate(segments);
            let dim = gate.base().model_dim;
            let inputs = &input[group.row * dim..][..group.len * dim];
            inputs.chunks_exact(dim).map(move |input| (gate, input))
        });
        let rows = by_token[..n_rows * width].chunks_exact_mut(width).zip(tokens);
        rows::for_each(pool, rows, |(out, (gate, input))| {
            gate.gates(kernels, layer, input, &mut out[..gate.config().n_adapters]);
        });
        let mut rows = by_token.chunks_exact(width);
        for group in groups.iter() {
            let n_adapters = group.gate(segments).config().n_adapters;
            let values = &mut values[group.start..][..group.len * n_adapters];
            for (token, row) in rows.by_ref().take(group.len).enumerate() {
                for (index, gate) in row[..n_adapters].iter().enumerate() {
                    values[index * group.len + token] = *gate;
                }
            }
        }
    }

    /// Lists the gates of all segments. Returns their values, their tokens and the most adapters.
    fn list(&mut self, segments: &[Segment<'_>], all: &[Span]) -> (usize, usize, usize) {
        self.groups.clear();
        let (mut n_values, mut n_rows, mut width) = (0, 0, 0);
        for span in all {
            let adapters = segments[span.segment].adapters;
            for (adapter, scaled) in adapters.iter().enumerate() {
                let Some(by) = &scaled.gate else { continue };
                let earlier = adapters[..adapter].iter().flat_map(|other| &other.gate);
                if earlier.map(GatedBy::gate).any(|other| std::ptr::eq(&**other, &**by.gate())) {
                    continue;
                }
                let &Span { segment, row, len, .. } = span;
                self.groups.push(Group { segment, adapter, row, len, start: n_values });
                let n_adapters = by.gate().config().n_adapters;
                (n_values, n_rows) = (n_values + len * n_adapters, n_rows + len);
                width = width.max(n_adapters);
            }
        }
        (n_values, n_rows, width)
    }

    /// Gates of the tokens of `span`, a part of its segment.
    pub(super) fn of(&self, segments: &[Segment<'_>], span: &Span, by: &GatedBy) -> &[f32] {
        let first = self.groups.partition_point(|group| group.row + group.len <= span.row);
        let group =
            self.groups[first..].iter().find(|group| std::ptr::eq(group.gate(segments), &**by.gate()));
        let group = group.expect("the gates of the layer are computed");
        &self.values[group.start + by.index() * group.len + span.row - group.row..][..span.len]
    }
}

impl Group {
    fn gate<'a>(&self, segments: &'a [Segment<'_>]) -> &'a AdapterGate {
        let scaled = &segments[self.segment].adapters[self.adapter];
        scaled.gate.as_ref().expect("groups list gated adapters").gate()
    }
}
