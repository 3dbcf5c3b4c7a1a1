//! Embeddings of texts without a model.

use crate::error::Result;
use crate::model::Embed;
use crate::random::mix;

/// Baseline without a model: words and character trigrams, hashed to signed dimensions (Weinberger
/// et al. 2009). It knows spelling and no meaning; a model that does not beat it adds nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HashedNgrams {
    /// Values of an embedding, at least 1.
    pub dim: usize,
}

impl Embed for HashedNgrams {
    fn embed(&self, text: &str) -> Result<Vec<f32>> {
        let mut values = vec![0.0; self.dim.max(1)];
        let mut add = |feature: &str, weight: f32| {
            let hash = feature.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| mix(h ^ u64::from(b)));
            let place = (hash >> 1) as usize % values.len();
            values[place] += if hash & 1 == 0 { weight } else { -weight };
        };
        let words = text.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
        for word in words.map(str::to_lowercase) {
            add(&word, 1.0);
            let padded: Vec<char> = format!("<{word}>").chars().collect();
            padded.windows(3).for_each(|gram| add(&gram.iter().collect::<String>(), 0.4));
        }
        Ok(values)
    }
}
