//! Thresholds of routes from their own examples.

use super::keywords::words;
use super::{Nearest, SemanticRouter};
use crate::error::Result;

impl<N: Nearest> SemanticRouter<N> {
    /// Sets each route's threshold from its examples, each scored without itself, and from
    /// `outside`: embeddings and texts that belong to no route.
    ///
    /// The threshold accepts the share `recall` of the own examples. With outside examples it is
    /// the value that tells both best (largest mean of the two rates), if that is higher.
    ///
    /// # Errors
    /// [`Error::Dimension`](crate::Error::Dimension), [`Error::NotFinite`](crate::Error::NotFinite)
    /// for an outside example. Thresholds stay as they were.
    pub fn calibrate(&mut self, outside: &[(&[f32], &str)]) -> Result<()> {
        let mut own = vec![Vec::new(); self.names.len()];
        for (index, example) in self.examples.iter().enumerate() {
            let ranked = self.rank(&example.unit, &example.words, Some(index));
            let score = ranked.iter().find(|ranked| ranked.route == example.route);
            own[example.route].extend(score.map(|ranked| ranked.score));
        }
        let mut negatives = vec![Vec::new(); self.names.len()];
        for (embedding, text) in outside {
            // A text meets the threshold of the route that it is nearest to.
            if let Some(best) = self.rank(&self.unit(embedding)?, &words(text), None).first() {
                negatives[best.route].push(best.score);
            }
        }
        let pairs = own.iter_mut().zip(&negatives);
        self.thresholds =
            pairs.map(|(own, negatives)| threshold(own, negatives, self.settings.recall)).collect();
        Ok(())
    }
}

/// Threshold of one route; negative infinity without own examples.
fn threshold(own: &mut [f32], negatives: &[f32], recall: f32) -> f32 {
    own.sort_unstable_by(|a, b| b.total_cmp(a));
    let accepted = ((own.len() as f32 * recall).ceil() as usize).clamp(1, own.len().max(1));
    let Some(&lowest) = own.get(accepted - 1) else { return f32::NEG_INFINITY };
    if negatives.is_empty() {
        return lowest;
    }
    let rate = |values: &[f32], threshold: f32| {
        values.iter().filter(|&&v| v >= threshold).count() as f32 / values.len() as f32
    };
    let quality = |threshold: f32| rate(own, threshold) + 1.0 - rate(negatives, threshold);
    own.iter().copied().fold(lowest, |best, value| {
        if value > lowest && quality(value) > quality(best) { value } else { best }
    })
}

#[cfg(test)]
mod tests {
    use super::threshold;

    #[test]
    fn thresholds_accept_the_recall_and_reject_outside_examples() {
        let mut own = [0.9, 0.8, 0.7, 0.6, 0.1];
        assert_eq!(threshold(&mut own, &[], 0.8), 0.6);
        assert_eq!(threshold(&mut own, &[], 1.0), 0.1);
        assert_eq!(threshold(&mut own, &[0.2, 0.3, 0.65], 1.0), 0.7);
        assert_eq!(threshold(&mut own, &[0.05], 1.0), 0.1);
        assert_eq!(threshold(&mut [], &[0.5], 1.0), f32::NEG_INFINITY);
    }
}
