//! Context of a decision: the prompt's embedding and cheap features as one vector.

use super::vector::{dot, normalized};
use crate::error::{Error, Result};
use crate::random::Random;

/// Largest number of values that an embedding keeps in a context.
pub const MAX_PROJECTION: usize = 64;
/// Values of a context before those of the embedding: a constant 1, length, tools, constraint,
/// turns.
pub(super) const CHEAP_FEATURES: usize = 5;

/// Facts about a request that are known before its prefill ends.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prompt<'e> {
    /// Embedding of the prompt.
    pub embedding: &'e [f32],
    /// Tokens of the prompt.
    pub tokens: usize,
    /// The request has tools.
    pub has_tools: bool,
    /// The output is constrained by a grammar or schema.
    pub is_constrained: bool,
    /// Earlier turns of the session.
    pub turns: usize,
}

/// Encoder of prompts as contexts.
///
/// An embedding of more than `kept` values is multiplied by a seeded matrix of signs (Achlioptas
/// 2003: distances change by a factor near 1), after scaling to norm 1.
#[derive(Debug, Clone)]
pub(super) struct Encoder {
    embedding_dim: usize,
    kept: usize,
    scale: f64,
    /// `kept` rows of `embedding_dim` signs; empty if the embedding is kept as it is.
    signs: Vec<f32>,
}

impl Encoder {
    pub(super) fn new(embedding_dim: usize, projection: usize, scale: f64, seed: u64) -> Self {
        let is_projected = embedding_dim > projection;
        let kept = projection.min(embedding_dim);
        let mut random = Random::new(seed);
        let count = if is_projected { kept * embedding_dim } else { 0 };
        let signs = (0..count).map(|_| if random.bits() >> 63 == 0 { 1.0 } else { -1.0 }).collect();
        Self { embedding_dim, kept, scale, signs }
    }

    /// Values of a context.
    pub(super) fn dim(&self) -> usize {
        CHEAP_FEATURES + self.kept
    }

    /// Context of a prompt.
    pub(super) fn encode(&self, prompt: &Prompt<'_>) -> Result<Box<[f64]>> {
        let embedding = prompt.embedding;
        if embedding.len() != self.embedding_dim {
            return Err(Error::Dimension {
                what: "embedding of the prompt",
                expected: self.embedding_dim,
                got: embedding.len(),
            });
        }
        if !embedding.iter().all(|v| v.is_finite()) {
            return Err(Error::NotFinite { what: "embedding of the prompt" });
        }
        let logarithm = |count: usize, most: f64| ((count as f64).ln_1p() / most.ln_1p()).min(2.0);
        let mut context = Vec::with_capacity(self.dim());
        context.extend([
            1.0,
            logarithm(prompt.tokens, 32_768.0),
            f64::from(u8::from(prompt.has_tools)),
            f64::from(u8::from(prompt.is_constrained)),
            logarithm(prompt.turns, 64.0),
        ]);
        let unit = normalized(embedding);
        if self.signs.is_empty() {
            context.extend(unit.iter().map(|&v| self.scale * f64::from(v)));
        } else {
            let scale = self.scale / (self.kept as f64).sqrt();
            let rows = self.signs.chunks_exact(self.embedding_dim);
            context.extend(rows.map(|row| scale * f64::from(dot(row, &unit))));
        }
        Ok(context.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt(embedding: &[f32]) -> Prompt<'_> {
        Prompt { embedding, tokens: 100, has_tools: true, is_constrained: false, turns: 2 }
    }

    #[test]
    fn projections_keep_angles() {
        let (dim, mut random) = (512, Random::new(9));
        let encoder = Encoder::new(dim, 64, 1.0, 3);
        let mut draw = || (0..dim).map(|_| random.normal() as f32).collect::<Vec<f32>>();
        let mut errors = Vec::new();
        for _ in 0..50 {
            let (a, b) = (draw(), draw());
            let mixed: Vec<f32> = a.iter().zip(&b).map(|(a, b)| a + 0.5 * b).collect();
            let expected = f64::from(dot(&normalized(&a), &normalized(&mixed)));
            let [a, b] = [a, mixed].map(|v| encoder.encode(&prompt(&v)).unwrap());
            let found: f64 = a[CHEAP_FEATURES..].iter().zip(&b[CHEAP_FEATURES..]).map(|(a, b)| a * b).sum();
            errors.push((found - expected).powi(2));
        }
        // The standard error of a product of unit vectors is at most sqrt(2 / 64) = 0.18.
        let error = (errors.iter().sum::<f64>() / 50.0).sqrt();
        assert!(error < 0.25, "{error}");
    }

    #[test]
    fn small_embeddings_are_kept_and_bad_ones_refused() {
        let encoder = Encoder::new(2, 64, 2.0, 3);
        let context = encoder.encode(&prompt(&[3.0, 4.0])).unwrap();
        assert_eq!((context[0], context[2], context[3]), (1.0, 1.0, 0.0));
        assert!((context[5] - 1.2).abs() < 1e-6 && (context[6] - 1.6).abs() < 1e-6, "{context:?}");
        let error = |embedding: &[f32]| encoder.encode(&prompt(embedding)).unwrap_err().to_string();
        assert_eq!(error(&[1.0]), "embedding of the prompt has 1 values, need 2");
        assert_eq!(error(&[1.0, f32::NAN]), "embedding of the prompt holds a value that is not finite");
    }
}
