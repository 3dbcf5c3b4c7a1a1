//! Gate: a paired test of losses before and after a change.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Quantile 0.95 of the standard normal distribution.
const Z_95: f64 = 1.644_853_626_951_472_2;

/// Losses of one held-out example before and after a change.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LossPair {
    /// Task of the example.
    pub task: u64,
    /// Loss before, in nats.
    pub before: f64,
    /// Loss after, in nats.
    pub after: f64,
}

/// Paired comparison: differences `after - before` of the same examples.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PairedTest {
    /// Number of examples.
    pub examples: usize,
    /// Mean loss before.
    pub before: f64,
    /// Mean loss after.
    pub after: f64,
    /// Standard error of the mean difference.
    pub standard_error: f64,
    /// One-sided 95 % confidence bounds of the mean difference (Student's t).
    pub bounds: (f64, f64),
}

/// Verdict of a [`Gate`].
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// The loss did not get worse by more than the tolerance.
    Accepted,
    /// The upper bound of the mean difference of all examples is above the tolerance, or above 0
    /// where a gain is needed.
    NotShownHarmless {
        /// Upper bound.
        upper: f64,
    },
    /// The lower bound of the mean difference of a task is above the tolerance.
    TaskWorse {
        /// The task.
        task: u64,
        /// Lower bound.
        lower: f64,
    },
}

/// Measurement of a gate.
#[derive(Debug, Clone, PartialEq)]
pub struct GateReport {
    /// Verdict.
    pub verdict: Verdict,
    /// All examples.
    pub overall: PairedTest,
    /// Tasks with at least two examples.
    pub tasks: Vec<(u64, PairedTest)>,
}

/// Acceptance of a change by a test of non-inferiority on held-out examples.
///
/// The change has to show that it does no harm: it is accepted if the upper 95 % bound of the mean
/// difference of losses is at most `tolerance`, so that few examples accept nothing. Besides, it is
/// rejected if a single task is shown to be worse by more than the tolerance. What is tolerated
/// adds up over many changes: those that are only made for a gain have to show one.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Gate {
    /// Rise of the mean loss that is tolerated, in nats.
    pub tolerance: f64,
    /// True if the bound of all examples has to be below 0: a gain is shown. A single task may
    /// still lose as much as is tolerated.
    pub needs_gain: bool,
    /// Smallest number of held-out examples.
    pub min_examples: usize,
}

impl Default for Gate {
    fn default() -> Self {
        Self { tolerance: 0.01, needs_gain: false, min_examples: 30 }
    }
}

impl Gate {
    /// Checks the settings.
    ///
    /// # Errors
    /// [`Error::Setting`] for a tolerance that is negative or not finite, or fewer than 8 examples,
    /// below which the quantile of t is not accurate.
    pub fn check(&self) -> Result<()> {
        let refuse = |name, value: String, range| Err(Error::Setting { name, value, range });
        if !(self.tolerance >= 0.0 && self.tolerance.is_finite()) {
            return refuse("tolerance", self.tolerance.to_string(), "at least 0");
        }
        match self.min_examples >= 8 {
            true => Ok(()),
            false => refuse("min_examples", self.min_examples.to_string(), "at least 8"),
        }
    }

    /// Judges losses of held-out examples; `None` if there are fewer than `min_examples`.
    ///
    /// # Errors
    /// [`Error::NotFinite`]; as [`check`](Self::check).
    pub fn judge(&self, pairs: &[LossPair]) -> Result<Option<GateReport>> {
        self.check()?;
        if pairs.len() < self.min_examples {
            return Ok(None);
        }
        let overall = PairedTest::new(pairs)?;
        let mut by_task: BTreeMap<u64, Vec<LossPair>> = BTreeMap::new();
        for pair in pairs {
            by_task.entry(pair.task).or_default().push(*pair);
        }
        let mut tasks = Vec::new();
        for (task, pairs) in by_task {
            if pairs.len() >= 2 {
                tasks.push((task, PairedTest::new(&pairs)?));
            }
        }
        let is_worse = |test: &PairedTest| test.examples >= 8 && test.bounds.0 > self.tolerance;
        let most = if self.needs_gain { 0.0 } else { self.tolerance };
        let verdict = match tasks.iter().find(|(_, test)| is_worse(test)) {
            Some((task, test)) => Verdict::TaskWorse { task: *task, lower: test.bounds.0 },
            None if overall.bounds.1 > most => Verdict::NotShownHarmless { upper: overall.bounds.1 },
            None => Verdict::Accepted,
        };
        Ok(Some(GateReport { verdict, overall, tasks }))
    }
}

impl PairedTest {
    /// Compares at least two pairs.
    ///
    /// # Errors
    /// [`Error::Empty`] for fewer pairs, [`Error::NotFinite`] for a loss.
    pub fn new(pairs: &[LossPair]) -> Result<Self> {
        if pairs.len() < 2 {
            return Err(Error::Empty { what: "set of loss pairs: need 2" });
        }
        if !pairs.iter().all(|pair| pair.before.is_finite() && pair.after.is_finite()) {
            return Err(Error::NotFinite { what: "held-out loss" });
        }
        let n = pairs.len() as f64;
        let mean_of = |value: fn(&LossPair) -> f64| pairs.iter().map(value).sum::<f64>() / n;
        let (before, after) = (mean_of(|pair| pair.before), mean_of(|pair| pair.after));
        let mean = mean_of(|pair| pair.after - pair.before);
        let squares: f64 = pairs.iter().map(|pair| (pair.after - pair.before - mean).powi(2)).sum();
        let standard_error = (squares / (n - 1.0) / n).sqrt();
        let margin = student_95(n - 1.0) * standard_error;
        Ok(Self {
            examples: pairs.len(),
            before,
            after,
            standard_error,
            bounds: (mean - margin, mean + margin),
        })
    }

    /// Mean difference `after - before`.
    pub fn difference(&self) -> f64 {
        f64::midpoint(self.bounds.0, self.bounds.1)
    }
}

/// Quantile 0.95 of Student's t by the expansion in `1 / freedom` (Abramowitz and Stegun 26.7.5);
/// within 0.1 % from 7 degrees on.
fn student_95(freedom: f64) -> f64 {
    let z = Z_95;
    let first = (z.powi(3) + z) / 4.0;
    let second = (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / 96.0;
    let third = (3.0 * z.powi(7) + 19.0 * z.powi(5) + 17.0 * z.powi(3) - 15.0 * z) / 384.0;
    z + first / freedom + second / freedom.powi(2) + third / freedom.powi(3)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    fn pairs(n: usize, task: u64, difference: impl Fn(usize) -> f64) -> Vec<LossPair> {
        (0..n).map(|i| LossPair { task, before: 2.0, after: 2.0 + difference(i) }).collect()
    }

    fn verdict(pairs: &[LossPair]) -> Verdict {
        Gate::default().judge(pairs).expect("finite").expect("enough").verdict
    }

    #[test]
    fn quantiles_of_t_are_those_of_tables() {
        for (freedom, expected) in [(7.0, 1.8946), (10.0, 1.8125), (29.0, 1.6991), (120.0, 1.6577)] {
            let found = student_95(freedom);
            assert!((found / expected - 1.0).abs() < 1e-3, "{freedom}: {found}");
        }
    }

    #[test]
    fn changes_pass_only_when_shown_harmless() {
        assert_eq!(verdict(&pairs(100, 0, |_| -0.1)), Verdict::Accepted);
        assert_eq!(verdict(&pairs(100, 0, |_| 0.009)), Verdict::Accepted);
        assert!(matches!(verdict(&pairs(100, 0, |_| 0.011)), Verdict::TaskWorse { .. }));
        // No difference on average, but too noisy to tell.
        let noisy = pairs(40, 0, |i| if i % 2 == 0 { 1.0 } else { -1.0 });
        assert!(matches!(verdict(&noisy), Verdict::NotShownHarmless { .. }));
        assert_eq!(Gate::default().judge(&pairs(29, 0, |_| -1.0)).expect("finite"), None);
    }

    #[test]
    fn a_change_for_a_gain_has_to_show_one() {
        let gate = Gate { needs_gain: true, ..Gate::default() };
        let verdict = |pairs: &[LossPair]| gate.judge(pairs).expect("finite").expect("enough").verdict;
        assert!(matches!(verdict(&pairs(100, 0, |_| 0.001)), Verdict::NotShownHarmless { .. }));
        let mut both = pairs(100, 0, |i| -0.1 + 0.01 * (i % 3) as f64);
        both.extend(pairs(20, 1, |_| 0.009));
        assert_eq!(verdict(&both), Verdict::Accepted, "a task may lose what is tolerated");
        both.extend(pairs(20, 2, |_| 0.011));
        assert!(matches!(verdict(&both), Verdict::TaskWorse { task: 2, .. }));
    }

    #[test]
    fn a_gain_of_one_task_does_not_pay_for_another() {
        let mut both = pairs(100, 0, |_| -0.5);
        both.extend(pairs(20, 1, |i| 0.3 + 0.01 * (i % 3) as f64));
        assert!(matches!(verdict(&both), Verdict::TaskWorse { task: 1, .. }));
    }

    /// A change that is worse by the tolerance passes in 5 % of cases.
    #[test]
    fn the_level_of_the_test_is_its_nominal_one() {
        let mut random = Random::new(3);
        let mut normal = || {
            let radius = (-2.0 * (1.0 - random.uniform()).ln()).sqrt();
            radius * (std::f64::consts::TAU * random.uniform()).cos()
        };
        let passed = (0..2_000)
            .filter(|_| {
                let noise: Vec<f64> = (0..30).map(|_| 0.01 + 0.2 * normal()).collect();
                verdict(&pairs(30, 0, |i| noise[i])) == Verdict::Accepted
            })
            .count();
        // Binomial around 100 with deviation 10.
        assert!((60..140).contains(&passed), "{passed}");
    }

    #[test]
    fn losses_that_are_not_finite_and_bad_settings_are_errors() {
        let bad = [LossPair { task: 0, before: 1.0, after: f64::NAN }; 40];
        assert!(matches!(Gate::default().judge(&bad), Err(Error::NotFinite { .. })));
        assert!(Gate { tolerance: -1.0, ..Gate::default() }.check().is_err());
        assert!(Gate { min_examples: 7, ..Gate::default() }.check().is_err());
    }
}
