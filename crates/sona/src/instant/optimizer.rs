//! Adam over the parameters of the instant learner.
//!
//! Kingma and Ba, "Adam: A Method for Stochastic Optimization" (ICLR 2015). Columns of `D` that an
//! update does not touch keep parameters and moments, as in the sparse form: otherwise a token
//! would go on moving long after it was last seen, and an update would cost the whole vocabulary.

use super::parameters::Shape;
use super::pass::Gradient;

/// Settings of [`Moments::step`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Step {
    /// Learning rate of `A`, `B` and `C`.
    pub(super) rate: f32,
    /// Learning rate of `D`.
    pub(super) column_rate: f32,
    /// Factor of the gradient: clipping.
    pub(super) gradient_scale: f32,
}

const BETA1: f32 = 0.9;
const BETA2: f32 = 0.99;
const EPSILON: f32 = 1e-8;

/// Running means of gradients and of their squares.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Moments {
    pub(super) steps: u64,
    /// `[parameters]`
    pub(super) mean: Vec<f32>,
    /// `[parameters]`
    pub(super) square: Vec<f32>,
}

impl Moments {
    pub(super) fn new(parameters: usize) -> Self {
        Self { steps: 0, mean: vec![0.0; parameters], square: vec![0.0; parameters] }
    }

    /// Takes the gradient into the means and moves the parameters against them.
    pub(super) fn step(&mut self, shape: &Shape, by: &Step, gradient: &Gradient, parameters: &mut [f32]) {
        self.steps += 1;
        let first = correction(BETA1, self.steps);
        let second = correction(BETA2, self.steps);
        let Self { mean, square, .. } = self;
        let one = |rate: f32, g: f32, mean: &mut f32, square: &mut f32, parameter: &mut f32| {
            let g = g * by.gradient_scale;
            *mean = BETA1 * *mean + (1.0 - BETA1) * g;
            *square = BETA2 * *square + (1.0 - BETA2) * g * g;
            *parameter -= rate * (*mean / first) / ((*square / second).sqrt() + EPSILON);
        };
        let dense = shape.logits_b().start;
        let moments = mean[..dense].iter_mut().zip(&mut square[..dense]);
        let values = gradient.values()[..dense].iter().zip(&mut parameters[..dense]);
        for ((mean, square), (&g, parameter)) in moments.zip(values) {
            one(by.rate, g, mean, square, parameter);
        }
        for at in gradient.touched_places(shape) {
            let g = gradient.values()[at];
            one(by.column_rate, g, &mut mean[at], &mut square[at], &mut parameters[at]);
        }
    }

    /// Moves the parameters against the gradient alone, each by the scale of its mean square: a
    /// direction in which the loss falls, which that of [`step`](Self::step) need not be.
    pub(super) fn descend(&self, shape: &Shape, by: &Step, gradient: &Gradient, parameters: &mut [f32]) {
        let second = correction(BETA2, self.steps);
        let mut one = |at: usize, rate: f32| {
            let g = gradient.values()[at] * by.gradient_scale;
            parameters[at] -= rate * g / ((self.square[at] / second).sqrt() + EPSILON);
        };
        (0..shape.logits_b().start).for_each(|at| one(at, by.rate));
        gradient.touched_places(shape).for_each(|at| one(at, by.column_rate));
    }
}

/// Factor of a mean that began at zero.
fn correction(beta: f32, steps: u64) -> f32 {
    (1.0 - f64::from(beta).powi(i32::try_from(steps).unwrap_or(i32::MAX))) as f32
}
