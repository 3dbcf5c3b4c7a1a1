//! Consolidation of what was learned quickly into a slow adapter.

use serde::{Deserialize, Serialize};

use crate::continual::adam::Adam;
use crate::continual::ewc::{Ewc, StepSize};
use crate::continual::gate::{Gate, GateReport, LossPair, Verdict};
use crate::continual::learner::Learner;
use crate::continual::replay::Replayed;
use crate::error::{Error, Result};
use crate::random::Random;

/// Settings of a consolidation.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ConsolidationSettings {
    /// Steps of the optimizer.
    pub steps: usize,
    /// Examples per step.
    pub batch: usize,
    /// Learning rate of Adam.
    pub learning_rate: f32,
    /// Norm to which the mean gradient of a batch is clipped.
    pub max_gradient_norm: f32,
    /// Smallest number of examples to train on.
    pub min_examples: usize,
    /// Acceptance.
    pub gate: Gate,
    /// Seed of the batches.
    pub seed: u64,
}

impl Default for ConsolidationSettings {
    fn default() -> Self {
        Self {
            steps: 200,
            batch: 16,
            learning_rate: 1e-3,
            max_gradient_norm: 1.0,
            min_examples: 32,
            gate: Gate::default(),
            seed: 0,
        }
    }
}

/// Outcome of a consolidation.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// The learner has the new parameters.
    Accepted(GateReport),
    /// The learner has its former parameters; the verdict says why.
    Rejected(GateReport),
    /// Nothing was measured or nothing was trained; the learner has its former parameters.
    Skipped(Skip),
}

/// Reason for which there was no consolidation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Skip {
    /// Too few examples to train on.
    FewExamples {
        /// Examples given.
        got: usize,
        /// Examples needed.
        need: usize,
    },
    /// Too few held-out examples to judge the result.
    FewHeldOut {
        /// Examples given.
        got: usize,
        /// Examples needed.
        need: usize,
    },
    /// The caller stopped it after so many steps.
    Stopped {
        /// Steps done.
        steps: usize,
    },
    /// Loss or gradient stopped being finite after so many steps.
    Diverged {
        /// Steps done.
        steps: usize,
    },
}

/// Report of a consolidation: measurements only.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// Outcome.
    pub outcome: Outcome,
    /// Steps done.
    pub steps: usize,
    /// Mean training loss of the first and the last tenth of the steps, in nats; absent without
    /// steps.
    pub training_loss: Option<(f64, f64)>,
    /// EWC penalty of the parameters that were judged; absent if none were.
    pub penalty: Option<f64>,
    /// Norm of the change of the parameters that were judged; absent if none were.
    pub change: Option<f64>,
}

/// Trains `learner` - the slow adapter - on replayed examples with the EWC penalty, and keeps the
/// result only if held-out losses do not get worse.
///
/// The objective is `mean loss + lambda / 2 sum(F (theta - theta*)^2)`: Adam on the loss, then the
/// proximal step of the penalty in Adam's metric. `served_loss` is the loss of what answers
/// requests now, slow and quick adapter together; the gate compares it with the learner alone,
/// because the caller removes the quick adapter once this is accepted. `keep_going` is called
/// between steps, e.g. to wait for CPU time; false stops.
///
/// # Errors
/// Settings out of range, another layout of `ewc`, and errors of the learner. The learner has its
/// former parameters then.
pub fn consolidate<L: Learner>(
    learner: &mut L,
    ewc: &Ewc,
    train: &[&L::Example],
    held_out: &[&Replayed<L::Example>],
    served_loss: &mut dyn FnMut(&L::Example) -> Result<f64>,
    settings: &ConsolidationSettings,
    keep_going: &mut dyn FnMut() -> bool,
) -> Result<Report> {
    settings.check()?;
    ewc.layout().check_same(learner.layout())?;
    let skip = if train.len() < settings.min_examples {
        Some(Skip::FewExamples { got: train.len(), need: settings.min_examples })
    } else if held_out.len() < settings.gate.min_examples {
        Some(Skip::FewHeldOut { got: held_out.len(), need: settings.gate.min_examples })
    } else {
        None
    };
    if let Some(skip) = skip {
        let outcome = Outcome::Skipped(skip);
        return Ok(Report { outcome, steps: 0, training_loss: None, penalty: None, change: None });
    }
    let former = learner.parameters().to_vec();
    let result = attempt(learner, ewc, train, held_out, served_loss, settings, keep_going, &former);
    if !matches!(result, Ok(Report { outcome: Outcome::Accepted(_), .. })) {
        learner.set_parameters(&former)?;
    }
    result
}

#[expect(clippy::too_many_arguments, reason = "those of `consolidate` and the parameters at its start")]
fn attempt<L: Learner>(
    learner: &mut L,
    ewc: &Ewc,
    train: &[&L::Example],
    held_out: &[&Replayed<L::Example>],
    served_loss: &mut dyn FnMut(&L::Example) -> Result<f64>,
    settings: &ConsolidationSettings,
    keep_going: &mut dyn FnMut() -> bool,
    former: &[f32],
) -> Result<Report> {
    // Before training: a learner may share state with what is served.
    let mut pairs = Vec::with_capacity(held_out.len());
    for replayed in held_out {
        let before = served_loss(&replayed.example)?;
        pairs.push(LossPair { task: replayed.task, before, after: f64::NAN });
    }
    let training = optimize(learner, ewc, train, settings, keep_going)?;
    let (steps, training_loss) = (training.losses.len(), training.ends());
    if let Some(skip) = training.skip {
        let outcome = Outcome::Skipped(skip);
        return Ok(Report { outcome, steps, training_loss, penalty: None, change: None });
    }
    for (pair, replayed) in pairs.iter_mut().zip(held_out) {
        pair.after = learner.loss(&replayed.example)?;
    }
    let Some(report) = settings.gate.judge(&pairs)? else {
        return Err(Error::Empty { what: "held-out set" });
    };
    let outcome = match report.verdict {
        Verdict::Accepted => Outcome::Accepted(report),
        _ => Outcome::Rejected(report),
    };
    let penalty = Some(ewc.penalty(learner.parameters())?);
    let squares = learner.parameters().iter().zip(former).map(|(a, b)| f64::from(a - b).powi(2));
    let change = Some(squares.sum::<f64>().sqrt());
    Ok(Report { outcome, steps, training_loss, penalty, change })
}

/// Trains as [`consolidate`] does, with nothing held out and nothing judged: a repetition of one
/// that was accepted. False, with parameters that are of no use, if there are too few examples or
/// the loss diverges.
#[cfg(feature = "store")]
pub(crate) fn train<L: Learner>(
    learner: &mut L,
    ewc: &Ewc,
    examples: &[&L::Example],
    settings: &ConsolidationSettings,
) -> Result<bool> {
    settings.check()?;
    ewc.layout().check_same(learner.layout())?;
    if examples.len() < settings.min_examples {
        return Ok(false);
    }
    Ok(optimize(learner, ewc, examples, settings, &mut || true)?.skip.is_none())
}

/// Losses of the steps that were done.
struct Training {
    losses: Vec<f64>,
    skip: Option<Skip>,
}

impl Training {
    /// Means of the first and the last tenth.
    fn ends(&self) -> Option<(f64, f64)> {
        let n = self.losses.len().div_ceil(10);
        let mean = |losses: &[f64]| losses.iter().sum::<f64>() / n as f64;
        (n > 0).then(|| (mean(&self.losses[..n]), mean(&self.losses[self.losses.len() - n..])))
    }
}

fn optimize<L: Learner>(
    learner: &mut L,
    ewc: &Ewc,
    train: &[&L::Example],
    settings: &ConsolidationSettings,
    keep_going: &mut dyn FnMut() -> bool,
) -> Result<Training> {
    let len = ewc.layout().len();
    let mut random = Random::new(settings.seed);
    let mut adam = Adam::new(len, settings.learning_rate)?;
    let (mut gradient, mut mean) = (vec![0.0; len], vec![0.0; len]);
    let mut parameters = learner.parameters().to_vec();
    let mut losses = Vec::with_capacity(settings.steps);
    for step in 0..settings.steps {
        if !keep_going() {
            return Ok(Training { losses, skip: Some(Skip::Stopped { steps: step }) });
        }
        mean.fill(0.0);
        let mut loss = 0.0;
        for _ in 0..settings.batch {
            loss += learner.gradient(train[random.below(train.len())], &mut gradient)?;
            for (mean, gradient) in mean.iter_mut().zip(&gradient) {
                *mean += gradient / settings.batch as f32;
            }
        }
        let loss = loss / settings.batch as f64;
        let norm = mean.iter().map(|&value| f64::from(value).powi(2)).sum::<f64>().sqrt();
        if !(loss.is_finite() && norm.is_finite()) {
            return Ok(Training { losses, skip: Some(Skip::Diverged { steps: step }) });
        }
        if norm > f64::from(settings.max_gradient_norm) {
            let scale = (f64::from(settings.max_gradient_norm) / norm) as f32;
            mean.iter_mut().for_each(|value| *value *= scale);
        }
        adam.step(&mut parameters, &mean)?;
        ewc.proximal_step(&mut parameters, StepSize::Each(adam.sizes()))?;
        learner.set_parameters(&parameters)?;
        losses.push(loss);
    }
    Ok(Training { losses, skip: None })
}

impl ConsolidationSettings {
    /// Checks the settings.
    ///
    /// # Errors
    /// [`Error::Setting`].
    pub fn check(&self) -> Result<()> {
        let refuse = |name, value: String, range| Err(Error::Setting { name, value, range });
        for (name, value) in
            [("steps", self.steps), ("batch", self.batch), ("min_examples", self.min_examples)]
        {
            if value == 0 {
                return refuse(name, value.to_string(), "at least 1");
            }
        }
        for (name, value) in
            [("learning_rate", self.learning_rate), ("max_gradient_norm", self.max_gradient_norm)]
        {
            if !(value > 0.0 && value.is_finite()) {
                return refuse(name, value.to_string(), "above 0");
            }
        }
        self.gate.check()
    }
}
