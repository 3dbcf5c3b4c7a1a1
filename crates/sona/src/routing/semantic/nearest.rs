//! Nearest neighbours among examples.

use crate::routing::vector::dot;

/// An example near a query.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Neighbour {
    /// Number of the example, in the order of insertion.
    pub example: usize,
    /// Cosine similarity.
    pub similarity: f32,
}

/// An index of unit vectors.
pub trait Nearest {
    /// Adds a unit vector; its number is the count of those before it.
    fn insert(&mut self, unit: &[f32]);

    /// At most `k` examples of the largest cosine similarity to the unit vector `query`, best
    /// first.
    fn nearest(&self, query: &[f32], k: usize) -> Vec<Neighbour>;
}

/// Exact search through all examples: the fastest index for some thousand of them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ExactScan {
    dim: usize,
    values: Vec<f32>,
}

impl Nearest for ExactScan {
    fn insert(&mut self, unit: &[f32]) {
        self.dim = unit.len();
        self.values.extend_from_slice(unit);
    }

    fn nearest(&self, query: &[f32], k: usize) -> Vec<Neighbour> {
        let rows = self.values.chunks_exact(self.dim.max(1)).enumerate();
        let mut found: Vec<Neighbour> =
            rows.map(|(example, row)| Neighbour { example, similarity: dot(row, query) }).collect();
        let order = |a: &Neighbour, b: &Neighbour| {
            b.similarity.total_cmp(&a.similarity).then(a.example.cmp(&b.example))
        };
        if k < found.len() {
            found.select_nth_unstable_by(k, order);
            found.truncate(k);
        }
        found.sort_unstable_by(order);
        found
    }
}
