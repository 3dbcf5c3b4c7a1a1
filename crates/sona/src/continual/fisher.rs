//! Diagonal Fisher information.

use crate::continual::learner::{Learner, SampledGradient};
use crate::error::{Error, Result};
use crate::random::Random;

/// Diagonal Fisher information of each parameter: `F_i = E[(d log p(y | x) / d theta_i)^2]`.
///
/// Gradients are squared per example and then averaged; the square of a mean gradient would shrink
/// with the batch.
#[derive(Debug, Clone, PartialEq)]
pub struct Fisher {
    values: Vec<f32>,
}

impl Fisher {
    /// Empirical Fisher information: labels are those of the examples.
    ///
    /// # Errors
    /// [`Error::Empty`] without examples, [`Error::NotFinite`] for a gradient, and errors of the
    /// learner.
    pub fn empirical<'e, L: Learner>(
        learner: &mut L,
        examples: impl IntoIterator<Item = &'e L::Example>,
    ) -> Result<Self>
    where
        L::Example: 'e,
    {
        let mut sum = SquareSum::new(learner.layout().len());
        let mut gradient = vec![0.0; learner.layout().len()];
        for example in examples {
            learner.gradient(example, &mut gradient)?;
            sum.push(&gradient)?;
        }
        sum.finish()
    }

    /// True Fisher information: labels are drawn from the model's distribution, `draws` for each
    /// input.
    ///
    /// # Errors
    /// As [`empirical`](Self::empirical).
    pub fn sampled<'e, L: SampledGradient>(
        learner: &mut L,
        examples: impl IntoIterator<Item = &'e L::Example>,
        draws: usize,
        seed: u64,
    ) -> Result<Self>
    where
        L::Example: 'e,
    {
        let mut random = Random::new(seed);
        let mut sum = SquareSum::new(learner.layout().len());
        let mut gradient = vec![0.0; learner.layout().len()];
        for example in examples {
            for _ in 0..draws {
                learner.sampled_gradient(example, &mut || random.uniform(), &mut gradient)?;
                sum.push(&gradient)?;
            }
        }
        sum.finish()
    }

    /// Information computed elsewhere.
    ///
    /// # Errors
    /// [`Error::NotFinite`]; [`Error::Setting`] for a negative value.
    pub fn from_values(values: Vec<f32>) -> Result<Self> {
        if !values.iter().all(|value| value.is_finite()) {
            return Err(Error::NotFinite { what: "Fisher information" });
        }
        if let Some(value) = values.iter().find(|value| **value < 0.0) {
            return Err(Error::Setting {
                name: "Fisher information",
                value: value.to_string(),
                range: "at least 0",
            });
        }
        Ok(Self { values })
    }

    /// Information per parameter, none below 0.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// Caps the values at their percentile `cap` (0 to 100, nearest rank), so that few parameters
    /// do not dominate, and divides by the mean. The result has mean 1: the loss scale of a task
    /// does not decide how well it is protected (Schwarz et al. 2018, Progress & Compress).
    ///
    /// # Errors
    /// [`Error::Setting`] for a percentile outside 0 to 100; [`Error::Empty`] if all values are 0.
    pub fn normalize(mut self, cap: f64) -> Result<Self> {
        if !(0.0..=100.0).contains(&cap) {
            return Err(Error::Setting { name: "cap", value: cap.to_string(), range: "0 to 100" });
        }
        let mut sorted = self.values.clone();
        sorted.sort_unstable_by(f32::total_cmp);
        let rank = (cap / 100.0 * sorted.len() as f64).ceil() as usize;
        let bound = match sorted.get(rank.saturating_sub(1)) {
            // Most values are 0: any cap among them would remove all information.
            Some(0.0) | None => f32::MAX,
            Some(bound) => *bound,
        };
        let mean = self.values.iter().map(|&value| f64::from(value.min(bound))).sum::<f64>()
            / self.values.len() as f64;
        // The quotient of a denormal mean would not be finite.
        if self.values.is_empty() || mean < f64::from(f32::MIN_POSITIVE) {
            return Err(Error::Empty { what: "Fisher information" });
        }
        for value in &mut self.values {
            *value = (f64::from(value.min(bound)) / mean) as f32;
        }
        Ok(self)
    }
}

/// Sum of squared gradients in f64.
#[derive(Debug, Clone)]
pub(crate) struct SquareSum {
    sum: Vec<f64>,
    examples: u64,
}

impl SquareSum {
    pub(crate) fn new(len: usize) -> Self {
        Self { sum: vec![0.0; len], examples: 0 }
    }

    pub(crate) fn examples(&self) -> u64 {
        self.examples
    }

    /// Adds the squares of a gradient of one example; all or nothing.
    pub(crate) fn push(&mut self, gradient: &[f32]) -> Result<()> {
        if gradient.len() != self.sum.len() {
            let (expected, got) = (self.sum.len(), gradient.len());
            return Err(Error::Dimension { what: "gradient", expected, got });
        }
        if !gradient.iter().all(|value| value.is_finite()) {
            return Err(Error::NotFinite { what: "gradient" });
        }
        for (sum, &value) in self.sum.iter_mut().zip(gradient) {
            *sum += f64::from(value) * f64::from(value);
        }
        self.examples += 1;
        Ok(())
    }

    /// Means of the squares, and a start from 0.
    pub(crate) fn take_means(&mut self) -> impl Iterator<Item = f64> + '_ {
        let examples = std::mem::take(&mut self.examples) as f64;
        self.sum.iter_mut().map(move |sum| std::mem::take(sum) / examples)
    }

    fn finish(mut self) -> Result<Fisher> {
        if self.examples == 0 {
            return Err(Error::Empty { what: "set of examples for the Fisher information" });
        }
        Fisher::from_values(self.take_means().map(|mean| mean as f32).collect())
    }
}
