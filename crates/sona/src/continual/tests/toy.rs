//! Toy models with known losses.

use crate::continual::{Learner, ParameterLayout, SampledGradient};
use crate::error::Result;
use crate::random::Random;

/// Softmax regression: logits `W x` with `W [classes, inputs]`.
pub(super) struct Softmax {
    layout: ParameterLayout,
    weights: Vec<f32>,
    classes: usize,
}

/// Features and label.
pub(super) type Labelled = (Vec<f32>, usize);

impl Softmax {
    pub(super) fn new(classes: usize, inputs: usize) -> Self {
        let layout = ParameterLayout::new([("W", classes * inputs)]).expect("a layout");
        Self { layout, weights: vec![0.0; classes * inputs], classes }
    }

    pub(super) fn probabilities(&self, features: &[f32]) -> Vec<f64> {
        let logit = |row: &[f32]| row.iter().zip(features).map(|(w, x)| f64::from(w * x)).sum::<f64>();
        let logits: Vec<f64> = self.weights.chunks_exact(features.len()).map(logit).collect();
        let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = logits.iter().map(|logit| (logit - largest).exp()).sum();
        logits.iter().map(|logit| (logit - largest).exp() / sum).collect()
    }

    fn gradient_of(&self, features: &[f32], label: usize, gradient: &mut [f32]) -> Result<f64> {
        self.layout.check("gradient", gradient)?;
        let probabilities = self.probabilities(features);
        for (class, (row, p)) in gradient.chunks_exact_mut(features.len()).zip(&probabilities).enumerate() {
            let error = p - f64::from(u8::from(class == label));
            for (gradient, &x) in row.iter_mut().zip(features) {
                *gradient = (error * f64::from(x)) as f32;
            }
        }
        Ok(-probabilities[label].ln())
    }

    /// Fraction of examples whose label is the most likely one.
    pub(super) fn accuracy(&self, examples: &[Labelled]) -> f64 {
        let is_right = |(features, label): &&Labelled| {
            let p = self.probabilities(features);
            (0..self.classes).all(|class| p[class] <= p[*label])
        };
        examples.iter().filter(is_right).count() as f64 / examples.len() as f64
    }

    pub(super) fn mean_loss(&mut self, examples: &[Labelled]) -> f64 {
        examples.iter().map(|example| self.loss(example).expect("finite")).sum::<f64>()
            / examples.len() as f64
    }
}

impl Learner for Softmax {
    type Example = Labelled;

    fn layout(&self) -> &ParameterLayout {
        &self.layout
    }

    fn parameters(&self) -> &[f32] {
        &self.weights
    }

    fn set_parameters(&mut self, parameters: &[f32]) -> Result<()> {
        self.layout.check_finite("parameters", parameters)?;
        self.weights.copy_from_slice(parameters);
        Ok(())
    }

    fn loss(&mut self, (features, label): &Labelled) -> Result<f64> {
        Ok(-self.probabilities(features)[*label].ln())
    }

    fn gradient(&mut self, (features, label): &Labelled, gradient: &mut [f32]) -> Result<f64> {
        self.gradient_of(features, *label, gradient)
    }
}

impl SampledGradient for Softmax {
    fn sampled_gradient(
        &mut self,
        (features, _): &Labelled,
        uniform: &mut dyn FnMut() -> f64,
        gradient: &mut [f32],
    ) -> Result<()> {
        let mut rest = uniform();
        let probabilities = self.probabilities(features);
        let drawn = probabilities.iter().position(|p| {
            rest -= p;
            rest < 0.0
        });
        self.gradient_of(features, drawn.unwrap_or(self.classes - 1), gradient).map(|_| ())
    }
}

/// Two tasks of logistic regression: task A depends on the first 10 of 20 features, task B on the
/// last 10, but in its inputs 5 of A's features point the other way, so that learning B unlearns A.
pub(super) fn two_tasks(seed: u64, n: usize) -> [Vec<Labelled>; 2] {
    let mut random = Random::new(seed);
    let mut make = |task: usize| {
        (0..n)
            .map(|_| {
                let label = random.below(2);
                let sign = if label == 1 { 1.0 } else { -1.0 };
                let mut noise = || (random.uniform() - 0.5) as f32 * 2.0;
                let features = (0..20).map(|i| {
                    let mean = match (task, i) {
                        (0, 0..10) | (1, 10..20) => 0.4 * sign,
                        (1, 5..10) => -0.4 * sign,
                        _ => 0.0,
                    };
                    // Features of the other task are faint: that is what information tells.
                    let scale = if task == 0 && i >= 10 || task == 1 && i < 5 { 0.1 } else { 1.0 };
                    mean + scale * noise()
                });
                (features.collect(), label)
            })
            .collect()
    };
    [make(0), make(1)]
}
