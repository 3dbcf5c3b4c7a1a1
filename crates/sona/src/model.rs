//! Models as this crate sees them: text in, embedding or text out.

use crate::error::{Error, Result};

/// Embedding model. Equal texts give equal embeddings, all of one dimension.
pub trait Embed: Send + Sync {
    /// Embeds a text.
    ///
    /// # Errors
    /// [`Error::Model`] if the model fails.
    fn embed(&self, text: &str) -> Result<Vec<f32>>;
}

/// Request to a [`Generate`].
#[derive(Debug, Clone, PartialEq)]
pub struct GenerateText {
    /// System prompt.
    pub system: Option<String>,
    /// User prompt.
    pub prompt: String,
    /// JSON Schema that the answer should follow; a model without constraints may ignore it.
    pub schema: Option<String>,
    /// Model by the name that the engine knows; `None` is its default model.
    pub model: Option<String>,
    /// Maximum number of tokens to generate.
    pub max_tokens: usize,
    /// Sampling temperature; 0 = greedy.
    pub temperature: f32,
    /// Seed of sampling.
    pub seed: u64,
}

impl<G: Generate> Generate for &G {
    fn generate(&self, request: &GenerateText) -> Result<String> {
        (**self).generate(request)
    }
}

impl GenerateText {
    /// Makes a greedy request of at most 512 tokens to the default model.
    pub fn new(prompt: impl Into<String>) -> Self {
        Self {
            system: None,
            prompt: prompt.into(),
            schema: None,
            model: None,
            max_tokens: 512,
            temperature: 0.0,
            seed: 0,
        }
    }
}

/// Language model.
pub trait Generate: Send + Sync {
    /// Generates the answer to a request.
    ///
    /// # Errors
    /// [`Error::Model`] if the model fails.
    fn generate(&self, request: &GenerateText) -> Result<String>;
}

/// Scales a vector to length 1, so that dot products are cosines.
///
/// # Errors
/// [`Error::NotFinite`] for NaN, infinity, a vector of zeros or one whose norm overflows.
pub fn normalize(mut vector: Vec<f32>, what: &'static str) -> Result<Vec<f32>> {
    let norm = vector.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt();
    if !norm.is_finite() || norm < f64::from(f32::MIN_POSITIVE) {
        return Err(Error::NotFinite { what });
    }
    for value in &mut vector {
        *value = (f64::from(*value) / norm) as f32;
    }
    Ok(vector)
}

/// Dot product of two vectors of one length, in eight partial sums.
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    debug_assert_eq!(a.len(), b.len());
    let mut sums = [0.0f32; 8];
    let (left, right) = (a.chunks_exact(8), b.chunks_exact(8));
    let rest: f32 = left.remainder().iter().zip(right.remainder()).map(|(x, y)| x * y).sum();
    for (x, y) in left.zip(right) {
        for lane in 0..8 {
            sums[lane] += x[lane] * y[lane];
        }
    }
    sums.iter().sum::<f32>() + rest
}

/// Embeds a text and scales the embedding to length 1.
///
/// # Errors
/// Errors of the model; [`Error::NotFinite`] if its embedding has no direction.
pub(crate) fn embed_unit(embed: &dyn Embed, text: &str) -> Result<Vec<f32>> {
    normalize(embed.embed(text)?, "the embedding of a text")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dot_products_cover_every_element() {
        let a: Vec<f32> = (0..19).map(|i| i as f32).collect();
        assert_eq!(dot(&a, &a), (0..19).map(|i| (i * i) as f32).sum::<f32>());
    }

    #[test]
    fn vectors_without_direction_are_refused() {
        for bad in [vec![0.0; 3], vec![1.0, f32::NAN], vec![f32::INFINITY, 1.0], vec![]] {
            assert!(matches!(normalize(bad, "v"), Err(Error::NotFinite { what: "v" })));
        }
        let unit = normalize(vec![3.0e38, 3.0e38], "v").unwrap();
        assert!((dot(&unit, &unit) - 1.0).abs() < 1e-6);
    }
}
