//! Mamba-2 and attention side by side: both read the norm of a layer's input, and both outputs are
//! added to the residual stream.

use super::layer::{Layer, Stream};
use crate::batch::{Segment, Span};
use crate::weights::ParallelWeights;
use crate::workspace::Buffers;

impl Layer<'_> {
    /// Both mixers of the rows in `wanted`, added to them at the front; returns their number. The
    /// rows of `all` change the states and the caches, before any row changes.
    pub(super) fn parallel(
        &self,
        weights: &ParallelWeights,
        buffers: &mut Buffers,
        segments: &mut [Segment<'_>],
        (all, wanted): (&[Span], &[Span]),
    ) -> usize {
        // Attention tells the sums of squares of the input of both.
        let squares = buffers.adapted.squares.take();
        self.scan_mamba2(&weights.mamba2, buffers, segments, all);
        buffers.adapted.squares = squares;
        self.write_attention(&weights.attention, buffers, segments, all);
        if wanted.is_empty() {
            return 0;
        }
        let n_rows = self.keep_wanted(buffers, wanted);
        self.gate_groups(&weights.mamba2, buffers, (all, wanted), n_rows);
        let Buffers { hidden, attended, update, unnormed, adapted, .. } = &mut *buffers;
        let mut squares = adapted.squares.take();
        if let Some(squares) = &mut squares {
            squares.add_state_output(self.index, attended);
        }
        let stream = Stream { hidden, update, unnormed, adapted };
        self.add_mixed(&weights.mamba2.output, attended, stream, (segments, wanted));
        buffers.adapted.squares = squares;
        self.add_attention(&weights.attention, buffers, segments, wanted, n_rows);
        n_rows
    }
}
