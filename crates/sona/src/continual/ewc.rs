//! Elastic weight consolidation with one running pair of importance and anchor.

use serde::{Deserialize, Serialize};

use crate::continual::fisher::Fisher;
use crate::continual::layout::ParameterLayout;
use crate::error::{Error, Result};

/// Settings of the penalty.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct EwcSettings {
    /// Strength `lambda` of the penalty, in units of information of mean 1.
    pub strength: f32,
    /// Factor `gamma` of the importance of former tasks, 0 to 1: 0 protects the last task only, 1
    /// sums all.
    pub decay: f32,
    /// Percentile at which the information of a task is capped ([`Fisher::normalize`]).
    pub cap: f64,
}

impl Default for EwcSettings {
    fn default() -> Self {
        Self { strength: 10.0, decay: 0.95, cap: 99.9 }
    }
}

/// Step sizes of the optimizer whose step a proximal step follows.
#[derive(Debug, Clone, Copy)]
pub enum StepSize<'s> {
    /// One for all parameters (gradient descent).
    Same(f32),
    /// One per parameter (`learning_rate / (sqrt(v) + eps)` of Adam).
    Each(&'s [f32]),
}

/// Penalty `lambda / 2 * sum(F_i (theta_i - theta*_i)^2)` on the way from the parameters of former
/// tasks.
///
/// One running pair, whatever the number of tasks: after each, `F = decay * F + F_task` and
/// `theta* = theta` (online EWC: Schwarz et al. 2018, Progress & Compress). `F_task` is normalized
/// to mean 1 ([`Fisher::normalize`]); with [`RunningFisher`](crate::continual::RunningFisher) as
/// its source this is EWC++. Before the first task the penalty is 0.
///
/// The anchor is one point, and factors of a low-rank product are not identifiable: `(B M)(M^-1 A)`
/// is the same update, far from the anchor. Whoever rescales them calls
/// [`rescale`](Self::rescale), which keeps the penalty exactly; after any other change of factors
/// (an SVD, another rank) the information has no equivalent, and [`reanchor`](Self::reanchor) needs
/// it computed anew.
#[derive(Debug, Clone)]
pub struct Ewc {
    layout: ParameterLayout,
    settings: EwcSettings,
    importance: Vec<f32>,
    anchor: Vec<f32>,
    tasks: u64,
}

impl Ewc {
    /// A penalty without tasks.
    ///
    /// # Errors
    /// [`Error::Setting`] for a negative strength, a decay outside 0 to 1 or a cap outside 0 to
    /// 100.
    pub fn new(layout: ParameterLayout, settings: EwcSettings) -> Result<Self> {
        let EwcSettings { strength, decay, cap } = settings;
        let refuse = |name, value: String, range| Err(Error::Setting { name, value, range });
        if !(strength >= 0.0 && strength.is_finite()) {
            return refuse("strength", strength.to_string(), "at least 0");
        }
        if !(0.0..=1.0).contains(&decay) {
            return refuse("decay", decay.to_string(), "0 to 1");
        }
        if !(0.0..=100.0).contains(&cap) {
            return refuse("cap", cap.to_string(), "0 to 100");
        }
        let zeros = vec![0.0; layout.len()];
        Ok(Self { layout, settings, importance: zeros.clone(), anchor: zeros, tasks: 0 })
    }

    /// A penalty that was saved: importance, anchor, and number of finished tasks.
    ///
    /// # Errors
    /// As [`new`](Self::new); [`Error::Dimension`] and [`Error::NotFinite`] for the values,
    /// [`Error::Setting`] for an importance below 0.
    pub fn from_parts(
        layout: ParameterLayout,
        settings: EwcSettings,
        (importance, anchor): (Vec<f32>, Vec<f32>),
        tasks: u64,
    ) -> Result<Self> {
        layout.check("importance", &importance)?;
        layout.check_finite("anchor", &anchor)?;
        let importance = Fisher::from_values(importance)?.values().to_vec();
        Ok(Self { importance, anchor, tasks, ..Self::new(layout, settings)? })
    }

    /// The same importance and anchor with other settings.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub fn with_settings(&self, settings: EwcSettings) -> Result<Self> {
        let Self { layout, importance, anchor, tasks, .. } = self.clone();
        Ok(Self { importance, anchor, tasks, ..Self::new(layout, settings)? })
    }

    /// Layout of parameters and gradients.
    pub fn layout(&self) -> &ParameterLayout {
        &self.layout
    }

    /// Importance of each parameter, 0 before the first task.
    pub fn importance(&self) -> &[f32] {
        &self.importance
    }

    /// Anchor of each parameter.
    pub fn anchor(&self) -> &[f32] {
        &self.anchor
    }

    /// Number of finished tasks.
    pub fn tasks(&self) -> u64 {
        self.tasks
    }

    /// Ends a task: decays the importance, adds the normalized information of the task and anchors
    /// at `parameters`.
    ///
    /// # Errors
    /// [`Error::Dimension`], [`Error::NotFinite`]; [`Error::Empty`] if the information is 0
    /// everywhere. Nothing changes then.
    pub fn finish_task(&mut self, parameters: &[f32], fisher: Fisher) -> Result<()> {
        let decay = self.settings.decay;
        self.anchor_at(parameters, fisher, |former, task| decay * former + task)?;
        self.tasks += 1;
        Ok(())
    }

    /// Ends a task as RWalk does: the importance becomes the sum of the information and the path
    /// scores ([`PathIntegral`](crate::continual::PathIntegral)), each min-max normalized. Both are
    /// running values already, so there is no decay. RWalk's penalty has no factor 1/2: its
    /// `lambda` is half of [`strength`](EwcSettings::strength).
    ///
    /// # Errors
    /// As [`finish_task`](Self::finish_task).
    pub fn finish_task_with_path(&mut self, parameters: &[f32], fisher: &Fisher, path: &[f32]) -> Result<()> {
        self.layout.check_finite("parameters", parameters)?;
        self.layout.check("Fisher information", fisher.values())?;
        self.layout.check_finite("path scores", path)?;
        let (fisher, path) = (min_max(fisher.values()), min_max(path));
        if fisher.iter().chain(&path).all(|value| *value == 0.0) {
            return Err(Error::Empty { what: "Fisher information" });
        }
        for ((importance, fisher), path) in self.importance.iter_mut().zip(fisher).zip(path) {
            *importance = fisher + path;
        }
        self.anchor.copy_from_slice(parameters);
        self.tasks += 1;
        Ok(())
    }

    /// Replaces anchor and importance after a change of the factors, without ending a task. The
    /// mass of the importance (its sum) stays, so that several tasks keep their weight.
    ///
    /// # Errors
    /// As [`finish_task`](Self::finish_task); [`Error::Empty`] before the first task.
    pub fn reanchor(&mut self, parameters: &[f32], fisher: Fisher) -> Result<()> {
        let mass = self.importance.iter().map(|&value| f64::from(value)).sum::<f64>();
        if self.tasks == 0 {
            return Err(Error::Empty { what: "anchor: no task was finished" });
        }
        let mean = (mass / self.layout.len() as f64) as f32;
        self.anchor_at(parameters, fisher, |_, task| mean * task)
    }

    /// Follows a rescaling `theta_i' = scales_i * theta_i` of the parameters (factors brought to
    /// equal norms): `theta*_i' = scales_i theta*_i` and `F_i' = F_i / scales_i^2`. The penalty of
    /// corresponding points is the same.
    ///
    /// # Errors
    /// [`Error::Dimension`], [`Error::NotFinite`]; [`Error::Setting`] for a scale of 0 or one whose
    /// square is outside the range of f32.
    pub fn rescale(&mut self, scales: &[f32]) -> Result<()> {
        self.layout.check_finite("scales", scales)?;
        if let Some(scale) = scales.iter().find(|scale| !(*scale * *scale).is_normal()) {
            let (name, value) = ("scale", scale.to_string());
            return Err(Error::Setting { name, value, range: "not 0, with a square in the range of f32" });
        }
        for ((importance, anchor), &scale) in self.importance.iter_mut().zip(&mut self.anchor).zip(scales) {
            *anchor *= scale;
            *importance /= scale * scale;
        }
        Ok(())
    }

    /// The penalty `lambda / 2 * sum(F_i (theta_i - theta*_i)^2)`, summed in f64.
    ///
    /// # Errors
    /// [`Error::Dimension`].
    pub fn penalty(&self, parameters: &[f32]) -> Result<f64> {
        self.layout.check("parameters", parameters)?;
        let terms = self.importance.iter().zip(&self.anchor).zip(parameters);
        let sum: f64 = terms
            .map(|((&importance, &anchor), &value)| {
                f64::from(importance) * (f64::from(value) - f64::from(anchor)).powi(2)
            })
            .sum();
        Ok(0.5 * f64::from(self.settings.strength) * sum)
    }

    /// Adds the gradient `lambda F (theta - theta*)` of the penalty.
    ///
    /// # Errors
    /// [`Error::Dimension`].
    pub fn add_gradient(&self, parameters: &[f32], gradient: &mut [f32]) -> Result<()> {
        self.layout.check("parameters", parameters)?;
        self.layout.check("gradient", gradient)?;
        let weights = self.importance.iter().zip(&self.anchor);
        for ((gradient, &value), (&importance, &anchor)) in gradient.iter_mut().zip(parameters).zip(weights) {
            *gradient += self.settings.strength * importance * (value - anchor);
        }
        Ok(())
    }

    /// Applies the penalty after a step of an optimizer on the loss alone, in closed form:
    /// `theta = (theta_step + eta lambda F theta*) / (1 + eta lambda F)`. Stable for every
    /// strength, where a gradient step diverges above `2 / (eta F)`.
    ///
    /// # Errors
    /// [`Error::Dimension`]; [`Error::Setting`] for a negative step size.
    pub fn proximal_step(&self, parameters: &mut [f32], step: StepSize<'_>) -> Result<()> {
        self.layout.check("parameters", parameters)?;
        let is_valid = |size: f32| size >= 0.0 && size.is_finite();
        let invalid = match step {
            StepSize::Same(size) => Some(size).filter(|&size| !is_valid(size)),
            StepSize::Each(sizes) => {
                self.layout.check("step sizes", sizes)?;
                sizes.iter().copied().find(|&size| !is_valid(size))
            }
        };
        if let Some(size) = invalid {
            return Err(Error::Setting { name: "step size", value: size.to_string(), range: "at least 0" });
        }
        let weights = self.importance.iter().zip(&self.anchor);
        for (index, (value, (&importance, &anchor))) in parameters.iter_mut().zip(weights).enumerate() {
            let size = match step {
                StepSize::Same(size) => size,
                StepSize::Each(sizes) => sizes[index],
            };
            let pull = f64::from(size) * f64::from(self.settings.strength) * f64::from(importance);
            *value = ((f64::from(*value) + pull * f64::from(anchor)) / (1.0 + pull)) as f32;
        }
        Ok(())
    }

    fn anchor_at(
        &mut self,
        parameters: &[f32],
        fisher: Fisher,
        combine: impl Fn(f32, f32) -> f32,
    ) -> Result<()> {
        self.layout.check_finite("parameters", parameters)?;
        self.layout.check("Fisher information", fisher.values())?;
        let fisher = fisher.normalize(self.settings.cap)?;
        for (importance, &task) in self.importance.iter_mut().zip(fisher.values()) {
            *importance = combine(*importance, task);
        }
        self.anchor.copy_from_slice(parameters);
        Ok(())
    }
}

/// Values mapped linearly to 0 to 1; all 0 if they are equal.
fn min_max(values: &[f32]) -> Vec<f32> {
    let low = values.iter().copied().fold(f32::INFINITY, f32::min);
    let high = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let scale = if high > low { 1.0 / (high - low) } else { 0.0 };
    values.iter().map(|value| (value - low) * scale).collect()
}
