//! Adam with its step sizes, for proximal steps in the same metric.

use crate::error::{Error, Result};

/// Adam (Kingma and Ba 2015) with its usual constants, whose step sizes a proximal step of
/// [`Ewc`](crate::continual::Ewc) can take.
#[derive(Debug, Clone)]
pub struct Adam {
    learning_rate: f32,
    first: Vec<f32>,
    second: Vec<f32>,
    steps: i32,
    sizes: Vec<f32>,
}

impl Adam {
    const BETAS: (f32, f32) = (0.9, 0.999);
    const EPSILON: f32 = 1e-8;

    /// Moments of `len` parameters, 0.
    ///
    /// # Errors
    /// [`Error::Setting`] for a learning rate that is not above 0.
    pub fn new(len: usize, learning_rate: f32) -> Result<Self> {
        if !(learning_rate > 0.0 && learning_rate.is_finite()) {
            let (name, value) = ("learning_rate", learning_rate.to_string());
            return Err(Error::Setting { name, value, range: "above 0" });
        }
        let zeros = vec![0.0; len];
        Ok(Self { learning_rate, first: zeros.clone(), second: zeros.clone(), steps: 0, sizes: zeros })
    }

    /// Moves the parameters by a step against the gradient.
    ///
    /// # Errors
    /// [`Error::Dimension`]; [`Error::NotFinite`] for a gradient. Nothing moves then.
    pub fn step(&mut self, parameters: &mut [f32], gradient: &[f32]) -> Result<()> {
        for (what, values) in [("parameters", &*parameters), ("gradient", gradient)] {
            if values.len() != self.sizes.len() {
                return Err(Error::Dimension { what, expected: self.sizes.len(), got: values.len() });
            }
        }
        if !gradient.iter().all(|value| value.is_finite()) {
            return Err(Error::NotFinite { what: "gradient" });
        }
        self.steps = self.steps.saturating_add(1);
        let (beta1, beta2) = Self::BETAS;
        let (bias1, bias2) = (1.0 - beta1.powi(self.steps), 1.0 - beta2.powi(self.steps));
        let moments = self.first.iter_mut().zip(&mut self.second).zip(&mut self.sizes);
        for ((value, &gradient), ((first, second), size)) in parameters.iter_mut().zip(gradient).zip(moments)
        {
            *first = beta1 * *first + (1.0 - beta1) * gradient;
            *second = beta2 * *second + (1.0 - beta2) * gradient * gradient;
            // A parameter without any gradient so far has no scale of its own.
            let root = (*second / bias2).sqrt();
            let scale = if root > 0.0 { root + Self::EPSILON } else { 1.0 };
            *size = self.learning_rate / scale;
            *value -= *size * *first / bias1;
        }
        Ok(())
    }

    /// Step size of each parameter in the last step, `learning_rate / (sqrt(v) + eps)`; the
    /// learning rate where there was no gradient yet.
    pub fn sizes(&self) -> &[f32] {
        &self.sizes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_step_is_the_learning_rate_against_the_sign() {
        let mut adam = Adam::new(3, 0.1).expect("a rate");
        let mut parameters = [1.0, 1.0, 1.0];
        adam.step(&mut parameters, &[4.0, -0.01, 0.0]).expect("a step");
        for (found, expected) in parameters.iter().zip([0.9_f32, 1.1, 1.0]) {
            assert!((found - expected).abs() < 1e-5, "{parameters:?}");
        }
        assert!((adam.sizes()[0] - 0.025).abs() < 1e-6 && adam.sizes()[2] == 0.1, "{:?}", adam.sizes());
    }

    #[test]
    fn bad_gradients_move_nothing() {
        assert!(Adam::new(1, 0.0).is_err() && Adam::new(1, f32::NAN).is_err());
        let mut adam = Adam::new(1, 0.1).expect("a rate");
        let mut parameters = [1.0];
        assert!(matches!(adam.step(&mut parameters, &[f32::NAN]), Err(Error::NotFinite { .. })));
        assert!(matches!(adam.step(&mut parameters, &[1.0, 1.0]), Err(Error::Dimension { .. })));
        assert_eq!(parameters, [1.0]);
    }
}
