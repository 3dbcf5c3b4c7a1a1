//! Fine-tuning: steps of AdamW over an [`Objective`], validation, early stop, and a state that a
//! later process continues from with the same bits.

mod curriculum;
mod state;

use std::ops::ControlFlow;

pub use self::curriculum::Curriculum;
use self::curriculum::Epoch;
use crate::batch::Sequence;
use crate::error::{Error, Result};
use crate::fisher::Penalty;
use crate::lora::Lora;
use crate::objective::{Batch, BatchLoss, CrossEntropy, Objective};
use crate::optimizer::{Adam, AdamConfig, Schedule, clip};
use crate::pass::Backprop;

/// Settings of a [`Trainer`].
#[derive(Debug, Clone, PartialEq)]
pub struct TrainConfig {
    /// Peak learning rate.
    pub rate: f32,
    /// Learning rate by step, relative to `rate`.
    pub schedule: Schedule,
    /// Steps of linear warm-up.
    pub warmup: u64,
    /// Optimizer steps in all.
    pub steps: u64,
    /// Sequences per pass.
    pub batch: usize,
    /// Passes per step, whose gradients add up.
    pub accumulate: usize,
    /// Largest norm of the gradients of a step; `None` = no clipping.
    pub clip: Option<f64>,
    /// Settings of AdamW.
    pub adam: AdamConfig,
    /// Seed of the order of sequences.
    pub seed: u64,
    /// Steps between validations.
    pub validate_every: u64,
    /// Validations without a lower loss after which training stops; `None` = never.
    pub patience: Option<u32>,
}

impl Default for TrainConfig {
    /// 100 steps of 8 sequences, a peak rate of 1e-3 on a cosine to 0 after 10 steps of warm-up,
    /// norms clipped to 1, validation every 25 steps, no early stop.
    fn default() -> Self {
        Self {
            rate: 1e-3,
            schedule: Schedule::Cosine { floor: 0.0 },
            warmup: 10,
            steps: 100,
            batch: 8,
            accumulate: 1,
            clip: Some(1.0),
            adam: AdamConfig::default(),
            seed: 0,
            validate_every: 25,
            patience: None,
        }
    }
}

/// Result of one optimizer step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepReport {
    /// Steps done, this one included.
    pub step: u64,
    /// Mean loss before the step, in the unit of the objective: for cross-entropy nats per scored
    /// token.
    pub loss: f64,
    /// Value of the penalty before the step; 0 without one.
    pub penalty: f64,
    /// Norm of the gradients before clipping.
    pub gradient_norm: f64,
    /// Learning rate.
    pub rate: f32,
    /// Tokens computed.
    pub tokens: usize,
    /// Mean reward of the answers sampled for the step.
    pub reward: Option<f64>,
    /// Mean validation loss after the step, where it was measured.
    pub validation: Option<f64>,
}

/// Reason for the end of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// All steps are done.
    Finished,
    /// The validation loss has not fallen for as long as the settings allow.
    EarlyStop,
    /// The caller stopped it; it can be continued.
    Stopped,
}

/// Losses and reward of one step, of the whole run: a continued run has those of the steps before,
/// too.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Point {
    /// Steps done, this one included.
    pub step: u64,
    /// Mean loss before the step.
    pub loss: f64,
    /// Mean validation loss after the step, where it was measured.
    pub validation: Option<f64>,
    /// Mean reward of the answers sampled for the step, of objectives that sample.
    pub reward: Option<f64>,
}

/// Factors with the lowest validation loss so far.
#[derive(Debug, Clone, PartialEq)]
struct Best {
    loss: f64,
    values: Vec<f32>,
}

/// Fine-tuning of LoRA factors.
pub struct Trainer<'t, 'm> {
    backprop: &'t mut Backprop<'m>,
    config: TrainConfig,
    objective: Box<dyn Objective + 't>,
    penalty: Option<Penalty>,
    lora: Lora,
    adam: Adam,
    best: Option<Best>,
    /// Validations since the best one.
    since_best: u32,
    gradients: Vec<f32>,
    history: Vec<Point>,
    curriculum: Option<Curriculum>,
    epoch: Epoch,
}

impl<'t, 'm> Trainer<'t, 'm> {
    /// Begins a run of cross-entropy over `data`; `validation` may be empty.
    ///
    /// # Errors
    /// [`Error::Setting`]; errors of sequences that the model cannot read;
    /// [`Error::NothingScored`].
    pub fn new(
        backprop: &'t mut Backprop<'m>,
        lora: Lora,
        data: &'t [Sequence],
        validation: &'t [Sequence],
        config: TrainConfig,
    ) -> Result<Self> {
        let objective = CrossEntropy::new(backprop, data, validation)?;
        Self::with_objective(backprop, lora, Box::new(objective), config)
    }

    /// Begins a run of any loss.
    ///
    /// # Errors
    /// [`Error::Setting`]; [`Error::NothingScored`] for an objective without examples.
    pub fn with_objective(
        backprop: &'t mut Backprop<'m>,
        lora: Lora,
        objective: Box<dyn Objective + 't>,
        config: TrainConfig,
    ) -> Result<Self> {
        config.check()?;
        if objective.n_examples() == 0 {
            return Err(Error::NothingScored { what: "the training data" });
        }
        let adam = Adam::new(config.adam, lora.len())?;
        let gradients = vec![0.0; lora.len()];
        let (penalty, best, since_best, curriculum, history) = (None, None, 0, None, Vec::new());
        Ok(Self {
            backprop,
            config,
            objective,
            penalty,
            lora,
            adam,
            best,
            since_best,
            gradients,
            history,
            curriculum,
            epoch: Epoch::default(),
        })
    }

    /// Adds a quadratic penalty to the loss of all steps from now on. It is no part of the saved
    /// state: give it again after [`resume`](Self::resume).
    ///
    /// # Errors
    /// [`Error::Length`] and [`Error::Setting`] for a penalty that does not fit the factors.
    pub fn set_penalty(&mut self, penalty: Option<Penalty>) -> Result<()> {
        penalty.iter().try_for_each(|penalty| penalty.check(self.lora.len()))?;
        self.penalty = penalty;
        Ok(())
    }

    /// The factors after the last step.
    pub fn lora(&self) -> &Lora {
        &self.lora
    }

    /// Optimizer steps done.
    pub fn steps(&self) -> u64 {
        self.adam.steps()
    }

    /// Losses of all steps done, those before a continuation included.
    pub fn history(&self) -> &[Point] {
        &self.history
    }

    /// Name of the loss and its unit.
    pub fn label(&self) -> &'static str {
        self.objective.label()
    }

    /// Lowest validation loss so far.
    pub fn best_loss(&self) -> Option<f64> {
        self.best.as_ref().map(|best| best.loss)
    }

    /// The factors with the lowest validation loss; without validation, those of the last step.
    pub fn into_lora(mut self) -> Lora {
        if let Some(best) = self.best {
            self.lora.values_mut().copy_from_slice(&best.values);
        }
        self.lora
    }

    /// Steps until the end, early stop, or until `progress` breaks.
    ///
    /// # Errors
    /// As [`step`](Self::step).
    pub fn run(
        &mut self,
        progress: &mut dyn FnMut(&Self, &StepReport) -> ControlFlow<()>,
    ) -> Result<Outcome> {
        while self.steps() < self.config.steps {
            if self.is_early() {
                return Ok(Outcome::EarlyStop);
            }
            let report = self.step()?;
            if progress(self, &report).is_break() {
                return Ok(Outcome::Stopped);
            }
        }
        Ok(Outcome::Finished)
    }

    /// True if the validation loss has not fallen for as long as the settings allow.
    fn is_early(&self) -> bool {
        self.config.patience.is_some_and(|patience| self.since_best >= patience)
    }

    /// Does one optimizer step, with validation where it is due.
    ///
    /// # Errors
    /// [`Error::NotFinite`] for a loss or gradient that is no number: the factors are then those
    /// before the step; errors of the objective.
    pub fn step(&mut self) -> Result<StepReport> {
        let step = self.steps();
        let chosen = self.examples_of(step);
        let batch = Batch { step, examples: &chosen, per_pass: self.config.batch };
        self.gradients.fill(0.0);
        let BatchLoss { loss, tokens, reward } =
            self.objective.add_gradients(self.backprop, &self.lora, &batch, &mut self.gradients)?;
        let penalty =
            self.penalty.as_ref().map_or(0.0, |penalty| penalty.add(self.lora.values(), &mut self.gradients));
        let gradient_norm = clip(&mut self.gradients, self.config.clip.unwrap_or(f64::INFINITY));
        for (what, value) in [("the loss", loss + penalty), ("the gradient", gradient_norm)] {
            if !value.is_finite() {
                return Err(Error::NotFinite { what, step });
            }
        }
        let TrainConfig { schedule, warmup, steps, .. } = self.config;
        let rate = self.config.rate * schedule.factor(step, steps, warmup);
        self.adam.step(self.lora.values_mut(), &self.gradients, rate);
        let validation = self.validate_if_due()?;
        let step = self.steps();
        self.history.push(Point { step, loss, validation, reward });
        Ok(StepReport { step, loss, penalty, gradient_norm, rate, tokens, reward, validation })
    }

    fn validate_if_due(&mut self) -> Result<Option<f64>> {
        let step = self.steps();
        let is_due = step.is_multiple_of(self.config.validate_every) || step == self.config.steps;
        if !is_due {
            return Ok(None);
        }
        let Some(loss) = self.objective.validate(self.backprop, &self.lora, self.config.batch)? else {
            return Ok(None);
        };
        if self.best.as_ref().is_none_or(|best| loss < best.loss) {
            self.best = Some(Best { loss, values: self.lora.values().to_vec() });
            self.since_best = 0;
        } else {
            self.since_best += 1;
        }
        Ok(Some(loss))
    }
}

impl TrainConfig {
    fn check(&self) -> Result<()> {
        let wrong = |name, value: String, range| Err(Error::Setting { name, value, range });
        if !(self.rate > 0.0 && self.rate.is_finite()) {
            return wrong("rate", self.rate.to_string(), "positive");
        }
        if self.steps == 0 || self.batch == 0 || self.accumulate == 0 || self.validate_every == 0 {
            let value = "0".to_owned();
            return wrong("steps, batch, accumulate or validate_every", value, "at least 1");
        }
        if let Some(clip) = self.clip.filter(|clip| !(*clip > 0.0 && clip.is_finite())) {
            return wrong("clip", clip.to_string(), "positive");
        }
        self.schedule.check()
    }
}
