//! AdamW, learning-rate schedules and gradient clipping.

use crate::error::{Error, Result};

/// Settings of AdamW (Loshchilov and Hutter, arXiv 1711.05101).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamConfig {
    /// Decay of the mean of gradients.
    pub beta1: f32,
    /// Decay of the mean of squared gradients.
    pub beta2: f32,
    /// Added to the root of the mean of squared gradients.
    pub epsilon: f32,
    /// Decoupled weight decay per step, times the learning rate.
    pub weight_decay: f32,
}

impl Default for AdamConfig {
    /// 0.9, 0.999, 1e-8, no decay.
    fn default() -> Self {
        Self { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.0 }
    }
}

/// State of AdamW: moments of each value, and steps done.
#[derive(Debug, Clone, PartialEq)]
pub struct Adam {
    config: AdamConfig,
    pub(crate) means: Vec<f32>,
    pub(crate) squares: Vec<f32>,
    pub(crate) steps: u64,
}

impl Adam {
    /// State before the first step over `n` values.
    ///
    /// # Errors
    /// [`Error::Setting`] for decays outside `0..1`, an epsilon that is not positive, and a
    /// negative weight decay.
    pub fn new(config: AdamConfig, n: usize) -> Result<Self> {
        let AdamConfig { beta1, beta2, epsilon, weight_decay } = config;
        let wrong = |name, value: f32, range| Err(Error::Setting { name, value: value.to_string(), range });
        if !(0.0..1.0).contains(&beta1) {
            return wrong("beta1", beta1, "at least 0 and below 1");
        }
        if !(0.0..1.0).contains(&beta2) {
            return wrong("beta2", beta2, "at least 0 and below 1");
        }
        if !(epsilon > 0.0 && epsilon.is_finite()) {
            return wrong("epsilon", epsilon, "positive");
        }
        if !(weight_decay >= 0.0 && weight_decay.is_finite()) {
            return wrong("weight_decay", weight_decay, "0 or positive");
        }
        Ok(Self { config, means: vec![0.0; n], squares: vec![0.0; n], steps: 0 })
    }

    /// Steps done.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Changes `values` by one step against `gradients`:
    /// `θ ← θ - rate (m̂ / (sqrt(v̂) + ε) + decay θ)`, with bias-corrected moments.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn step(&mut self, values: &mut [f32], gradients: &[f32], rate: f32) {
        assert!(
            values.len() == self.means.len() && gradients.len() == values.len(),
            "Adam: values, gradients and moments differ in length"
        );
        self.steps += 1;
        let AdamConfig { beta1, beta2, epsilon, weight_decay } = self.config;
        let correction = |beta: f32| (1.0 - f64::from(beta).powf(self.steps as f64)) as f32;
        let (mean_scale, square_scale) = (1.0 / correction(beta1), 1.0 / correction(beta2));
        let keep = 1.0 - rate * weight_decay;
        let moments = self.means.iter_mut().zip(&mut self.squares);
        for ((value, &gradient), (mean, square)) in values.iter_mut().zip(gradients).zip(moments) {
            *mean = beta1 * *mean + (1.0 - beta1) * gradient;
            *square = beta2 * *square + (1.0 - beta2) * (gradient * gradient);
            let update = *mean * mean_scale / ((*square * square_scale).sqrt() + epsilon);
            *value = *value * keep - rate * update;
        }
    }
}

/// Learning rate by step.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Schedule {
    /// The peak rate.
    Constant,
    /// Half a cosine from the peak rate to `floor` times the peak rate at the last step.
    Cosine {
        /// Last rate, relative to the peak rate.
        floor: f32,
    },
    /// One cycle (Smith and Topin, arXiv 1708.07120): half a cosine from `1 / start` of the peak
    /// rate up to it over the first `rise` of the steps, then half a cosine down to `1 / end` of
    /// it. Replaces warm-up.
    OneCycle {
        /// Share of the steps until the peak.
        rise: f32,
        /// Divisor of the first rate.
        start: f32,
        /// Divisor of the last rate.
        end: f32,
    },
}

impl Schedule {
    /// Factor of the peak rate at `step` of `total`, with linear warm-up over `warmup` steps.
    pub fn factor(self, step: u64, total: u64, warmup: u64) -> f32 {
        let last = total.saturating_sub(1).max(1) as f64;
        let at = (step as f64 / last).min(1.0);
        let cosine = |from: f64, to: f64, part: f64| {
            to + (from - to) * 0.5 * (1.0 + (std::f64::consts::PI * part.clamp(0.0, 1.0)).cos())
        };
        let factor = match self {
            Self::Constant => 1.0,
            Self::Cosine { floor } => cosine(1.0, f64::from(floor), at),
            Self::OneCycle { rise, start, end } => {
                let (rise, start, end) = (f64::from(rise), f64::from(start), f64::from(end));
                return if at < rise {
                    cosine(1.0 / start, 1.0, at / rise) as f32
                } else {
                    cosine(1.0, 1.0 / end, (at - rise) / (1.0 - rise).max(1e-9)) as f32
                };
            }
        };
        let warm = if step < warmup { (step + 1) as f64 / warmup as f64 } else { 1.0 };
        (factor * warm) as f32
    }

    pub(crate) fn check(self) -> Result<()> {
        let wrong = |name, value: f32, range| Err(Error::Setting { name, value: value.to_string(), range });
        match self {
            Self::Cosine { floor } if !(0.0..=1.0).contains(&floor) => {
                wrong("Schedule::Cosine::floor", floor, "between 0 and 1")
            }
            Self::OneCycle { rise, .. } if !(0.0..1.0).contains(&rise) => {
                wrong("Schedule::OneCycle::rise", rise, "at least 0 and below 1")
            }
            Self::OneCycle { start, end, .. } if !(start >= 1.0 && end >= 1.0) => {
                wrong("Schedule::OneCycle::start and end", start.min(end), "at least 1")
            }
            _ => Ok(()),
        }
    }
}

/// Euclidean norm of all gradients, summed in f64 in their order.
pub fn gradient_norm(gradients: &[f32]) -> f64 {
    gradients.iter().map(|&gradient| f64::from(gradient) * f64::from(gradient)).sum::<f64>().sqrt()
}

/// Scales gradients so that their norm is at most `largest`, and returns the norm before.
pub fn clip(gradients: &mut [f32], largest: f64) -> f64 {
    let norm = gradient_norm(gradients);
    if norm > largest {
        let factor = (largest / norm) as f32;
        gradients.iter_mut().for_each(|gradient| *gradient *= factor);
    }
    norm
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_those_of_the_paper() {
        let config = AdamConfig { weight_decay: 0.1, ..AdamConfig::default() };
        let mut adam = Adam::new(config, 1).expect("settings");
        let mut value = [2.0_f32];
        let (mut theta, mut mean, mut square) = (2.0_f64, 0.0_f64, 0.0_f64);
        for (step, gradient) in [0.5_f64, -0.25, 1.5, 0.0].into_iter().enumerate() {
            adam.step(&mut value, &[gradient as f32], 0.01);
            mean = 0.9 * mean + 0.1 * gradient;
            square = 0.999 * square + 0.001 * gradient * gradient;
            let n = step as i32 + 1;
            let update =
                mean / (1.0 - 0.9_f64.powi(n)) / ((square / (1.0 - 0.999_f64.powi(n))).sqrt() + 1e-8);
            theta -= 0.01 * (update + 0.1 * theta);
            assert!((f64::from(value[0]) - theta).abs() < 1e-6, "step {n}: {} {theta}", value[0]);
        }
    }

    #[test]
    fn schedules_begin_and_end_where_they_say() {
        let at = |schedule: Schedule, step| schedule.factor(step, 101, 0);
        assert_eq!([0, 50, 100].map(|step| at(Schedule::Constant, step)), [1.0; 3]);
        let cosine = Schedule::Cosine { floor: 0.1 };
        for (step, expected) in [(0, 1.0), (50, 0.55), (100, 0.1), (1000, 0.1)] {
            assert!((at(cosine, step) - expected).abs() < 1e-6);
        }
        let cycle = Schedule::OneCycle { rise: 0.3, start: 25.0, end: 1e4 };
        for (step, expected) in [(0, 0.04), (30, 1.0), (100, 1e-4)] {
            assert!((at(cycle, step) - expected).abs() < 1e-6, "{step}: {}", at(cycle, step));
        }
        assert_eq!(Schedule::Constant.factor(0, 100, 4), 0.25);
        assert_eq!(Schedule::Constant.factor(4, 100, 4), 1.0);
        assert!(Schedule::Constant.factor(0, 0, 0).is_finite());
    }

    #[test]
    fn long_gradients_are_clipped() {
        let mut gradients = [3.0, 4.0];
        assert_eq!(clip(&mut gradients, 10.0), 5.0);
        assert_eq!(gradients, [3.0, 4.0]);
        assert_eq!(clip(&mut gradients, 1.0), 5.0);
        assert!((gradient_norm(&gradients) - 1.0).abs() < 1e-6);
    }

    #[test]
    fn settings_are_checked() {
        for config in [
            AdamConfig { beta1: 1.0, ..AdamConfig::default() },
            AdamConfig { beta2: -0.1, ..AdamConfig::default() },
            AdamConfig { epsilon: 0.0, ..AdamConfig::default() },
            AdamConfig { weight_decay: f32::NAN, ..AdamConfig::default() },
        ] {
            assert!(matches!(Adam::new(config, 1), Err(Error::Setting { .. })));
        }
        assert!(Schedule::Cosine { floor: 2.0 }.check().is_err());
        assert!(Schedule::OneCycle { rise: 1.0, start: 2.0, end: 2.0 }.check().is_err());
    }
}
