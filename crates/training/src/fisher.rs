//! Diagonal Fisher information and the quadratic penalty of elastic weight consolidation
//! (Kirkpatrick et al., arXiv 1612.00796).

use crate::batch::Sequence;
use crate::error::{Error, Result};
use crate::lora::Lora;
use crate::pass::Backprop;

/// Penalty `lambda / 2 Σ F_i (θ_i - θ*_i)^2`, added to a loss.
#[derive(Debug, Clone, PartialEq)]
pub struct Penalty {
    /// Weight of the penalty.
    pub lambda: f32,
    /// Diagonal Fisher information `F`, of the layout of [`Lora::values`].
    pub fisher: Vec<f32>,
    /// Values `θ*` that the penalty pulls to.
    pub anchor: Vec<f32>,
}

impl Penalty {
    /// Checks the penalty for `n` values.
    pub(crate) fn check(&self, n: usize) -> Result<()> {
        for (what, found) in [("the Fisher information", self.fisher.len()), ("an anchor", self.anchor.len())]
        {
            if found != n {
                return Err(Error::Length { what, expected: n, found });
            }
        }
        if !(self.lambda >= 0.0 && self.lambda.is_finite()) {
            let (value, range) = (self.lambda.to_string(), "0 or positive");
            return Err(Error::Setting { name: "lambda", value, range });
        }
        if !self.fisher.iter().all(|f| *f >= 0.0 && f.is_finite()) {
            let range = "0 or positive for each value";
            return Err(Error::Setting {
                name: "fisher",
                value: "negative or not a number".to_owned(),
                range,
            });
        }
        Ok(())
    }

    /// Adds the gradient of the penalty to `gradients` and returns its value.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn add(&self, values: &[f32], gradients: &mut [f32]) -> f64 {
        assert!(
            values.len() == self.fisher.len()
                && self.anchor.len() == values.len()
                && gradients.len() == values.len(),
            "Penalty: lengths differ"
        );
        let mut sum = 0.0;
        let anchored = values.iter().zip(&self.anchor).zip(&self.fisher);
        for (((value, anchor), fisher), gradient) in anchored.zip(gradients) {
            let distance = value - anchor;
            let pull = self.lambda * fisher * distance;
            sum += f64::from(pull) * f64::from(distance);
            *gradient += pull;
        }
        sum / 2.0
    }
}

/// Empirical diagonal Fisher information of the factors: the mean over sequences of the squared
/// gradient of each sequence's log-probability. Gradients are squared sequence by sequence, not
/// after averaging (arXiv 2502.11756).
///
/// # Errors
/// Errors of [`Backprop::forward`]; [`Error::NothingScored`] without sequences.
pub fn fisher(backprop: &mut Backprop<'_>, lora: &Lora, sequences: &[Sequence]) -> Result<Vec<f32>> {
    let mut sums = vec![0.0_f64; lora.len()];
    let mut gradients = vec![0.0; lora.len()];
    for sequence in sequences {
        gradients.fill(0.0);
        let pass = backprop.forward(lora, &[sequence])?;
        pass.backward(&vec![1.0; sequence.n_scored()], &mut gradients)?;
        for (sum, &gradient) in sums.iter_mut().zip(&gradients) {
            *sum += f64::from(gradient) * f64::from(gradient);
        }
    }
    if sequences.is_empty() {
        return Err(Error::NothingScored { what: "the Fisher sequences" });
    }
    Ok(sums.iter().map(|sum| (sum / sequences.len() as f64) as f32).collect())
}
