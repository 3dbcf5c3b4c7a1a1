//! Rows of a delta in the matrices that a model stores: joint, or one by one.

use std::ops::Range;

use ruvllm_adapters::{BaseModel, Projection};

/// Rows of a delta that lie in one stored matrix.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Piece {
    /// The stored matrix.
    pub(super) projection: Projection,
    /// Its first row that is changed.
    pub(super) first: usize,
    /// Rows of the delta.
    pub(super) rows: Range<usize>,
}

/// The stored matrices that a delta of a projection changes.
pub(super) fn pieces(base: &BaseModel, projection: Projection) -> Vec<Piece> {
    use Projection as P;
    let (query, kv, ffn) = (base.query_dim, base.kv_dim, base.ffn_dim);
    let piece = |projection, first, start, len| Piece { projection, first, rows: start..start + len };
    let is_joint = match projection {
        P::Gate | P::Up | P::GateUp => base.joint_feed_forward,
        _ => base.joint_attention,
    };
    match (is_joint, projection) {
        (true, P::Query) => vec![piece(P::QueryKeyValue, 0, 0, query)],
        (true, P::Key) => vec![piece(P::QueryKeyValue, query, 0, kv)],
        (true, P::Value) => vec![piece(P::QueryKeyValue, query + kv, 0, kv)],
        (true, P::Gate) => vec![piece(P::GateUp, 0, 0, ffn)],
        (true, P::Up) => vec![piece(P::GateUp, ffn, 0, ffn)],
        (false, P::QueryKeyValue) => {
            vec![
                piece(P::Query, 0, 0, query),
                piece(P::Key, 0, query, kv),
                piece(P::Value, 0, query + kv, kv),
            ]
        }
        (false, P::GateUp) => vec![piece(P::Gate, 0, 0, ffn), piece(P::Up, 0, ffn, ffn)],
        (_, whole) => vec![piece(whole, 0, 0, usize::MAX)],
    }
}

impl Piece {
    /// Adds the piece of a dense delta to a matrix, both with rows of `width` values.
    pub(super) fn add(&self, delta: &[f32], matrix: &mut [f32], width: usize) {
        let rows = delta.chunks_exact(width).skip(self.rows.start).take(self.rows.len());
        for (out, row) in matrix.chunks_exact_mut(width).skip(self.first).zip(rows) {
            out.iter_mut().zip(row).for_each(|(out, value)| *out += value);
        }
    }
}
