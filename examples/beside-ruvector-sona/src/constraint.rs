//! `EwcPlusPlus` of `ruvector-sona` as a protection.
//!
//! The crate's `apply_constraints` takes a vector and multiplies each element by
//! `1 / (1 + lambda F)` for each finished task, and by `1 / (1 + 0.1 lambda F)` for the running
//! one, where `F` is above 1e-8. It does not read the parameters: nothing pulls them back to the
//! anchor, which `regularization_loss` alone uses, a value without a gradient. `update_fisher` is
//! a moving average of squares (rate 0.001, from 0, without a correction of that start), and
//! `start_new_task` stores it and raises lambda by 10 % of its first value per task.

use std::sync::Arc;

use ruvector_sona::{EwcConfig, EwcPlusPlus};
use ruvllm_sona::Result;
use ruvllm_sona::continual::Learner;
use ruvllm_sona::random::Random;

use crate::adapter::Adapter;
use crate::data::Token;
use crate::methods::Method;
use crate::protection::{Protection, Step};

/// Initial lambdas; the default of the crate is 2000.
const LAMBDAS: [f32; 6] = [2.0, 6.0, 20.0, 200.0, 2e3, 2e4];

/// Vector that is scaled.
#[derive(Clone, Copy, PartialEq)]
enum Scaled {
    /// Gradient of the batch, before Adam; the scaled one goes to `update_fisher`, in the order of
    /// the crate's background loop. Adam divides by the root of the squares, so that a constant
    /// scale has no effect on its steps.
    Gradients,
    /// Step of Adam, which is what scaling gradients comes to for gradient descent, the optimizer
    /// of that loop. Gradients of single examples go to `update_fisher`, as to the averages of
    /// `ruvllm-sona`.
    Steps,
}

/// All lambdas, on steps and on gradients.
pub(crate) fn methods() -> Vec<Method> {
    let of = |name, scaled, lambda: f32| Method {
        name,
        setting: lambda.to_string(),
        protection: Some(Arc::new(move |adapter| Ok(Box::new(Constraint::new(adapter, scaled, lambda))))),
        replay: None,
        function: None,
    };
    let steps = LAMBDAS.map(|lambda| of("ruvector-sona steps", Scaled::Steps, lambda));
    let gradients = of("ruvector-sona gradients", Scaled::Gradients, 2e3);
    steps.into_iter().chain([gradients]).collect()
}

struct Constraint {
    scaled: Scaled,
    ewc: EwcPlusPlus,
}

impl Constraint {
    fn new(adapter: &Adapter, scaled: Scaled, lambda: f32) -> Self {
        let param_count = adapter.layout().len();
        // The bounds would replace large lambdas.
        let (initial_lambda, min_lambda, max_lambda) = (lambda, 0.0, f32::MAX);
        let config =
            EwcConfig { param_count, initial_lambda, min_lambda, max_lambda, ..EwcConfig::default() };
        Self { scaled, ewc: EwcPlusPlus::new(config) }
    }
}

impl Protection for Constraint {
    fn needs_examples(&self) -> bool {
        self.scaled == Scaled::Steps
    }

    fn push_example(&mut self, gradient: &[f32]) -> Result<()> {
        self.ewc.update_fisher(gradient);
        Ok(())
    }

    fn constrain(&mut self, gradient: &mut [f32]) -> Result<()> {
        if self.scaled == Scaled::Gradients {
            gradient.copy_from_slice(&self.ewc.apply_constraints(gradient));
            self.ewc.update_fisher(gradient);
        }
        Ok(())
    }

    fn finish_step(&mut self, step: &Step<'_>, parameters: &mut [f32]) -> Result<()> {
        if self.scaled == Scaled::Steps {
            let change: Vec<f32> = parameters.iter().zip(step.before).map(|(to, from)| to - from).collect();
            let change = self.ewc.apply_constraints(&change);
            for ((value, from), change) in parameters.iter_mut().zip(step.before).zip(change) {
                *value = from + change;
            }
        }
        Ok(())
    }

    fn finish_task(&mut self, adapter: &mut Adapter, _: &[Token], _: &mut Random) -> Result<()> {
        self.ewc.set_optimal_weights(adapter.parameters());
        self.ewc.start_new_task();
        Ok(())
    }
}
