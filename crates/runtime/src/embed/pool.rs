//! Pooling of hidden states. Sums are f64 in token order, so that neither the division into passes
//! nor the instruction set changes a bit.

use ruvllm_models::Pooling;

use super::{Embedding, Encoded, Settings};

/// Accumulator of a text's states.
pub(super) struct Pool {
    pooling: Pooling,
    /// Sum of the states (mean pooling), or the selected state.
    sum: Vec<f64>,
    states: usize,
}

impl Pool {
    pub(super) fn new(pooling: Pooling, dim: usize) -> Self {
        Self { pooling, sum: vec![0.0; dim], states: 0 }
    }

    /// Adds the next states, `[tokens, dim]`.
    pub(super) fn push(&mut self, states: &[f32]) {
        for state in states.chunks_exact(self.sum.len()) {
            let values = self.sum.iter_mut().zip(state);
            match self.pooling {
                Pooling::Cls if self.states > 0 => {}
                Pooling::Mean => values.for_each(|(sum, &value)| *sum += f64::from(value)),
                _ => values.for_each(|(sum, &value)| *sum = f64::from(value)),
            }
            self.states += 1;
        }
    }

    /// The pooled state.
    pub(super) fn state(self) -> Vec<f64> {
        let divisor = match self.pooling {
            Pooling::Mean => self.states.max(1) as f64,
            _ => 1.0,
        };
        self.sum.into_iter().map(|sum| sum / divisor).collect()
    }
}

/// Finishes the embedding of `text` with these values.
pub(super) fn finish(mut values: Vec<f64>, text: &Encoded, settings: &Settings) -> Embedding {
    if settings.normalize {
        let length = values.iter().map(|value| value * value).sum::<f64>().sqrt();
        // A zero vector cannot be normalized.
        if length != 0.0 {
            values.iter_mut().for_each(|value| *value /= length);
        }
    }
    let vector = values.into_iter().map(|value| value as f32).collect();
    Embedding { vector, tokens: text.tokens.len(), truncated: text.truncated }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pooled(pooling: Pooling, normalize: bool, pushes: &[&[f32]]) -> Vec<f32> {
        let mut pool = Pool::new(pooling, 2);
        pushes.iter().for_each(|states| pool.push(states));
        let text = Encoded { tokens: vec![0; 3], truncated: true };
        let embedding = finish(pool.state(), &text, &Settings { pooling, normalize, max_tokens: 3 });
        assert_eq!((embedding.tokens, embedding.truncated), (3, true));
        embedding.vector
    }

    #[test]
    fn each_kind_takes_its_states() {
        let pushes: [&[f32]; 3] = [&[1.0, 2.0], &[], &[3.0, 4.0, 5.0, 9.0]];
        assert_eq!(pooled(Pooling::Mean, false, &pushes), [3.0, 5.0]);
        assert_eq!(pooled(Pooling::Cls, false, &pushes), [1.0, 2.0]);
        assert_eq!(pooled(Pooling::Last, false, &pushes), [5.0, 9.0]);
        assert_eq!(pooled(Pooling::Last, true, &[&[3.0, 4.0]]), [0.6, 0.8]);
    }

    #[test]
    fn zeros_stay_zeros() {
        assert_eq!(pooled(Pooling::Mean, true, &[&[0.0, 0.0, -0.0, 0.0]]), [0.0, 0.0]);
    }
}
