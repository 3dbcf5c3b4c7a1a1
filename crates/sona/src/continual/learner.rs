//! Traits between continual learning and the models that learn.

use crate::continual::layout::ParameterLayout;
use crate::error::Result;

/// Model with a flat slice of parameters and a loss per example.
///
/// An example is the unit whose gradients are squared for the Fisher information: one predicted
/// token where possible. Methods take `&mut self` for their buffers; only
/// [`set_parameters`](Self::set_parameters) changes results.
pub trait Learner {
    /// Input with its label.
    type Example;

    /// Layout of parameters and gradients.
    fn layout(&self) -> &ParameterLayout;

    /// The parameters.
    fn parameters(&self) -> &[f32];

    /// Replaces the parameters.
    ///
    /// # Errors
    /// A slice that does not match the layout, or values that the model refuses; the parameters
    /// stay then.
    fn set_parameters(&mut self, parameters: &[f32]) -> Result<()>;

    /// Negative log-likelihood of the label of an example, in nats.
    ///
    /// # Errors
    /// An example of another model.
    fn loss(&mut self, example: &Self::Example) -> Result<f64>;

    /// Writes the gradient of [`loss`](Self::loss) and returns the loss.
    ///
    /// # Errors
    /// As `loss`, and a slice that does not match the layout.
    fn gradient(&mut self, example: &Self::Example, gradient: &mut [f32]) -> Result<f64>;
}

/// Learner that draws labels from its own distribution.
pub trait SampledGradient: Learner {
    /// Writes the gradient of `-log p(y | x)` for the input of the example and a label `y` drawn
    /// from the model, with numbers of `uniform` (uniform in [0, 1)).
    ///
    /// # Errors
    /// As [`Learner::gradient`].
    fn sampled_gradient(
        &mut self,
        example: &Self::Example,
        uniform: &mut dyn FnMut() -> f64,
        gradient: &mut [f32],
    ) -> Result<()>;
}
