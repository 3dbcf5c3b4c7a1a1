//! Expected reward of one arm as a linear function of the context.

use serde::{Deserialize, Serialize};

use super::bits;
use super::inverse::Inverse;
use super::vector::dot_f64;
use crate::error::{Error, Result};

/// Variance of rewards in 0 to 1 before any is known: the largest that they can have.
const PRIOR_VARIANCE: f64 = 0.25;
/// Number of observations that the prior variance counts as.
const PRIOR_WEIGHT: f64 = 10.0;
/// Factor on old observations below which they are dropped.
const FORGOTTEN: f64 = 1e-9;

/// Parameters that all arms share.
#[derive(Debug, Clone, Copy)]
pub(super) struct Regression {
    /// Weight of the ridge penalty.
    pub(super) ridge: f64,
    /// Factor on the weight of old observations per new one of any arm.
    pub(super) discount: f64,
}

/// Mean and spread of an expected reward.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Estimate {
    pub(super) mean: f64,
    /// Standard deviation of the mean for noise of standard deviation 1.
    pub(super) deviation: f64,
    /// The same without any data.
    pub(super) prior: f64,
    /// Standard deviation of the noise.
    pub(super) noise: f64,
}

/// Discounted ridge regression (Russac, Vernade and Cappé 2019) by rank-one updates of the inverse
/// of `A = sum of discount^age * x x' + ridge * I`.
///
/// Discounting shrinks the ridge term too, which would let the variance of directions without data
/// grow without bound. Each observation therefore restores it in the coordinates that come next, so
/// many per elapsed time step that each has its turn before half of its term is gone. None is
/// restored beyond `ridge`.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct LinearArm {
    inverse: Inverse,
    /// Discounted sum of `reward * x`.
    products: Vec<f64>,
    /// Solution of the regression.
    weights: Vec<f64>,
    /// Time at which the ridge term of each coordinate was restored.
    restored: Vec<u64>,
    /// Next coordinate to restore.
    next: usize,
    /// Time of the last observation.
    time: u64,
    samples: u64,
    /// Discounted sum of squared errors of predictions, and of their weights.
    errors: [f64; 2],
}

impl LinearArm {
    pub(super) fn new(dim: usize, regression: Regression) -> Self {
        Self {
            inverse: Inverse::of_identity(dim, regression.ridge),
            products: vec![0.0; dim],
            weights: vec![0.0; dim],
            restored: vec![0; dim],
            next: 0,
            time: 0,
            samples: 0,
            errors: [0.0; 2],
        }
    }

    pub(super) fn samples(&self) -> u64 {
        self.samples
    }

    /// Estimate for context `x` at `now`, a number of observations of all arms.
    pub(super) fn estimate(&self, x: &[f64], now: u64, regression: Regression) -> Estimate {
        let age = now.saturating_sub(self.time);
        let prior = dot_f64(x, x) / regression.ridge;
        let variance = (self.inverse.quadratic(x) / power(regression.discount, age)).min(prior);
        let [squares, weight] = self.errors;
        let noise = (PRIOR_VARIANCE * PRIOR_WEIGHT + squares) / (PRIOR_WEIGHT + weight);
        let mean = dot_f64(&self.weights, x);
        Estimate { mean, deviation: variance.sqrt(), prior: prior.sqrt(), noise: noise.sqrt() }
    }

    /// Learns from `reward` in context `x` at time `now`.
    pub(super) fn observe(&mut self, x: &[f64], reward: f64, now: u64, regression: Regression) {
        let Regression { ridge, discount } = regression;
        let age = now.saturating_sub(self.time);
        let factor = power(discount, age);
        let error = reward - dot_f64(&self.weights, x);
        if factor < FORGOTTEN {
            let samples = self.samples;
            *self = Self { samples, ..Self::new(x.len(), regression) };
            self.restored.fill(now);
        } else if factor < 1.0 {
            self.inverse.scale(1.0 / factor);
            self.products.iter_mut().for_each(|v| *v *= factor);
            self.errors.iter_mut().for_each(|v| *v *= factor);
            let due = age as f64 * (x.len() as f64 * -discount.log2()).ceil();
            for _ in 0..(due as usize).min(x.len()) {
                let k = self.next;
                let missing = ridge * (1.0 - power(discount, now - self.restored[k]));
                self.inverse.add_diagonal(k, missing);
                self.restored[k] = now;
                self.next = (k + 1) % x.len();
            }
        }
        self.inverse.add(x);
        self.products.iter_mut().zip(x).for_each(|(sum, x)| *sum += reward * x);
        self.weights = self.inverse.product(&self.products);
        self.errors = [self.errors[0] + error * error, self.errors[1] + 1.0];
        self.time = now;
        self.samples += 1;
    }
}

fn power(discount: f64, age: u64) -> f64 {
    discount.powi(i32::try_from(age).unwrap_or(i32::MAX))
}

/// State of one arm in a store.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct SavedArm {
    #[serde(with = "bits")]
    inverse: Vec<f64>,
    #[serde(with = "bits")]
    products: Vec<f64>,
    #[serde(with = "bits")]
    weights: Vec<f64>,
    #[serde(with = "bits")]
    errors: Vec<f64>,
    restored: Vec<u64>,
    next: usize,
    time: u64,
    samples: u64,
}

impl LinearArm {
    pub(super) fn save(&self) -> SavedArm {
        SavedArm {
            inverse: self.inverse.packed().to_vec(),
            products: self.products.clone(),
            weights: self.weights.clone(),
            errors: self.errors.to_vec(),
            restored: self.restored.clone(),
            next: self.next,
            time: self.time,
            samples: self.samples,
        }
    }

    /// Restores an arm of `dim` coordinates whose times are at most `now`.
    pub(super) fn load(saved: SavedArm, dim: usize, now: u64) -> Result<Self> {
        let damaged = || Error::Damaged { what: "saved router" };
        let inverse = Inverse::from_packed(dim, saved.inverse).ok_or_else(damaged)?;
        let errors = <[f64; 2]>::try_from(saved.errors).map_err(|_| damaged())?;
        let is_vector = |values: &[f64]| values.len() == dim && values.iter().all(|v| v.is_finite());
        let is_valid = is_vector(&saved.products)
            && is_vector(&saved.weights)
            && errors.iter().all(|v| v.is_finite() && *v >= 0.0)
            && saved.restored.len() == dim
            && saved.restored.iter().all(|&time| time <= saved.time)
            && saved.next < dim
            && saved.time <= now;
        if !is_valid {
            return Err(damaged());
        }
        Ok(Self {
            inverse,
            products: saved.products,
            weights: saved.weights,
            restored: saved.restored,
            next: saved.next,
            time: saved.time,
            samples: saved.samples,
            errors,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    const REGRESSION: Regression = Regression { ridge: 0.1, discount: 0.99 };

    fn context(random: &mut Random, dim: usize) -> Vec<f64> {
        (0..dim).map(|_| random.normal() / (dim as f64).sqrt()).collect()
    }

    #[test]
    fn weights_are_those_of_the_normal_equations() {
        // Without discount the regression is a plain ridge regression.
        let regression = Regression { ridge: 0.5, discount: 1.0 };
        let (mut arm, mut random) = (LinearArm::new(2, regression), Random::new(1));
        let (mut a, mut b) = ([[0.5, 0.0], [0.0, 0.5]], [0.0; 2]);
        for time in 1..200 {
            let x = context(&mut random, 2);
            let reward = random.uniform();
            for i in 0..2 {
                (0..2).for_each(|j| a[i][j] += x[i] * x[j]);
                b[i] += reward * x[i];
            }
            arm.observe(&x, reward, time, regression);
        }
        let determinant = a[0][0] * a[1][1] - a[0][1] * a[1][0];
        let expected = [
            (a[1][1] * b[0] - a[0][1] * b[1]) / determinant,
            (a[0][0] * b[1] - a[1][0] * b[0]) / determinant,
        ];
        for (found, expected) in arm.weights.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-10, "{found} {expected}");
        }
    }

    #[test]
    fn variance_of_directions_without_data_stays_bounded() {
        let dim = 16;
        let (mut arm, mut random) = (LinearArm::new(dim, REGRESSION), Random::new(2));
        let mut x = context(&mut random, dim);
        (x[0], x[1]) = (1.0, 0.0);
        for time in 1..20_000 {
            arm.observe(&x, 0.5, time, REGRESSION);
        }
        // Coordinate 1 never had data: its ridge term lies between 0.99^16 and 1 of the setting.
        let mut unseen = vec![0.0; dim];
        unseen[1] = 1.0;
        let variance = arm.inverse.quadratic(&unseen) * REGRESSION.ridge;
        assert!((0.99..=1.18).contains(&variance), "{variance}");
    }

    #[test]
    fn arms_that_rest_become_uncertain_and_end_at_the_prior() {
        let dim = 4;
        let (mut arm, mut random) = (LinearArm::new(dim, REGRESSION), Random::new(3));
        let x = context(&mut random, dim);
        (1..200).for_each(|time| arm.observe(&x, 0.7, time, REGRESSION));
        let deviation = |now| arm.estimate(&x, now, REGRESSION).deviation;
        assert!(deviation(199) < deviation(300) && deviation(300) < deviation(100_000));
        let prior = (dot_f64(&x, &x) / REGRESSION.ridge).sqrt();
        assert!((deviation(u64::MAX) / prior - 1.0).abs() < 1e-12);
        // An observation after a long rest replaces what was known.
        arm.observe(&x, 0.0, 1_000_000, REGRESSION);
        let estimate = arm.estimate(&x, 1_000_000, REGRESSION);
        assert!(estimate.mean.abs() < 1e-12 && estimate.deviation.is_finite(), "{estimate:?}");
    }
}
