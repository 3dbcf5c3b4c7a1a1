//! Task boundaries from the loss: a sequential test for a rise of its mean.

use crate::error::{Error, Result};

/// Largest standardized deviation of one loss: a single outlier is no boundary.
const LARGEST: f64 = 4.0;

/// Settings of [`Boundary`], in standard deviations of the loss.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct BoundarySettings {
    /// Rise that is tolerated, half of the smallest rise to be found.
    pub tolerance: f64,
    /// Sum of deviations above the tolerance at which a boundary is reported.
    pub threshold: f64,
    /// Losses from which mean and deviation are known at first.
    pub warm_up: u32,
    /// Losses over which mean and deviation are averaged later, exponentially.
    pub memory: u32,
}

impl Default for BoundarySettings {
    /// Rises of one standard deviation are found after fewer than 40 losses on average, of two
    /// after fewer than 12; there is less than one false alarm in 10,000 normal losses (asserted in
    /// the tests of this file).
    fn default() -> Self {
        Self { tolerance: 0.5, threshold: 12.0, warm_up: 50, memory: 500 }
    }
}

/// Page-Hinkley test (Page 1954, Hinkley 1971) for a rise of the mean loss.
///
/// It sums deviations of the losses from their running mean, in running standard deviations, less
/// the tolerance, and reports a boundary where the sum exceeds its minimum by the threshold. A fall
/// of the loss, which learning causes, is no boundary. Feed it losses of one kind, e.g. the mean
/// loss of each trajectory before learning from it.
#[derive(Debug, Clone)]
pub struct Boundary {
    settings: BoundarySettings,
    seen: u32,
    mean: f64,
    variance: f64,
    /// Sum of deviations above its minimum so far.
    excess: f64,
}

impl Boundary {
    /// A test without observations.
    ///
    /// # Errors
    /// [`Error::Setting`] for a negative tolerance, a threshold that is not positive, a warm-up
    /// below 2, or a memory below the warm-up.
    pub fn new(settings: BoundarySettings) -> Result<Self> {
        let BoundarySettings { tolerance, threshold, warm_up, memory } = settings;
        let refuse = |name, value: String, range| Err(Error::Setting { name, value, range });
        if !(tolerance >= 0.0 && tolerance.is_finite()) {
            return refuse("tolerance", tolerance.to_string(), "at least 0");
        }
        if !(threshold > 0.0 && threshold.is_finite()) {
            return refuse("threshold", threshold.to_string(), "above 0");
        }
        if warm_up < 2 {
            return refuse("warm_up", warm_up.to_string(), "at least 2");
        }
        if memory < warm_up {
            return refuse("memory", memory.to_string(), "at least warm_up");
        }
        Ok(Self { settings, seen: 0, mean: 0.0, variance: 0.0, excess: 0.0 })
    }

    /// Adds a loss; true at a boundary, after which the test starts anew.
    ///
    /// # Errors
    /// [`Error::NotFinite`]; the loss is not added then.
    pub fn push(&mut self, loss: f64) -> Result<bool> {
        if !loss.is_finite() {
            return Err(Error::NotFinite { what: "loss" });
        }
        if self.seen >= self.settings.warm_up {
            // Equal losses have no deviation: any rise is large then.
            let deviation = self.variance.sqrt().max(self.mean.abs() * 1e-9).max(f64::MIN_POSITIVE);
            let standardized = ((loss - self.mean) / deviation).clamp(-LARGEST, LARGEST);
            self.excess = (self.excess + standardized - self.settings.tolerance).max(0.0);
            if self.excess > self.settings.threshold {
                self.restart();
                return Ok(true);
            }
        }
        self.seen = self.seen.saturating_add(1);
        let weight = 1.0 / f64::from(self.seen.min(self.settings.memory));
        let change = loss - self.mean;
        self.mean += weight * change;
        self.variance = (1.0 - weight) * (self.variance + weight * change * change);
        Ok(false)
    }

    /// Forgets all losses, e.g. where the caller knows of a boundary.
    pub fn restart(&mut self) {
        (self.seen, self.mean, self.variance, self.excess) = (0, 0.0, 0.0, 0.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    /// Standard normal (Box and Muller 1958).
    fn normal(random: &mut Random) -> f64 {
        let radius = (-2.0 * (1.0 - random.uniform()).ln()).sqrt();
        radius * (std::f64::consts::TAU * random.uniform()).cos()
    }

    fn boundary() -> Boundary {
        Boundary::new(BoundarySettings::default()).expect("the defaults")
    }

    /// Losses of mean 3 and deviation 0.7.
    fn alarms(losses: usize, seed: u64, draw: impl Fn(&mut Random) -> f64) -> usize {
        let (mut test, mut random) = (boundary(), Random::new(seed));
        (0..losses).filter(|_| test.push(3.0 + 0.7 * draw(&mut random)).expect("finite")).count()
    }

    #[test]
    fn false_alarms_are_rarer_than_one_in_10_000() {
        let count: usize = (0..20).map(|seed| alarms(20_000, seed, normal)).sum();
        assert!(count < 40, "{count} alarms in 400,000 losses");
        // A long right tail, as losses have: exponential.
        let exponential = |random: &mut Random| -(1.0 - random.uniform()).ln();
        let count: usize = (0..20).map(|seed| alarms(20_000, seed, exponential)).sum();
        assert!(count < 400, "{count} alarms in 400,000 exponential losses");
    }

    /// Mean delay of 200 streams with a rise after 300 losses.
    fn mean_delay(rise: f64) -> f64 {
        let delay = |seed: u64| {
            let (mut test, mut random) = (boundary(), Random::new(1_000 + seed));
            for _ in 0..300 {
                test.push(normal(&mut random)).expect("finite");
            }
            let found = (1..2_000).find(|_| test.push(rise + normal(&mut random)).expect("finite"));
            f64::from(found.expect("a boundary"))
        };
        (0..200).map(delay).sum::<f64>() / 200.0
    }

    #[test]
    fn delay_falls_with_the_rise() {
        let (one, two, three) = (mean_delay(1.0), mean_delay(2.0), mean_delay(3.0));
        assert!(one < 40.0 && two < 12.0 && three < 8.0, "{one} {two} {three}");
        assert!(three < two && two < one);
    }

    #[test]
    fn falls_and_single_outliers_are_no_boundaries() {
        let (mut test, mut random) = (boundary(), Random::new(7));
        for index in 0..3_000 {
            let outlier = if index % 100 == 99 { 1e6 } else { 0.0 };
            let loss = 5.0 / (1.0 + f64::from(index) / 500.0) + 0.1 * normal(&mut random) + outlier;
            assert!(!test.push(loss).expect("finite"), "at {index}");
        }
    }

    #[test]
    fn equal_losses_are_no_boundary_and_a_rise_from_them_is() {
        let mut test = boundary();
        assert!((0..1_000).all(|_| !test.push(2.0).expect("finite")));
        let found = (1..10).find(|_| test.push(2.5).expect("finite"));
        assert!(found.is_some_and(|after| after <= 5), "{found:?}");
        assert!(matches!(test.push(f64::NAN), Err(Error::NotFinite { .. })));
    }

    #[test]
    fn bad_settings_are_errors() {
        let bad = |change: fn(&mut BoundarySettings)| {
            let mut settings = BoundarySettings::default();
            change(&mut settings);
            Boundary::new(settings).is_err()
        };
        assert!(bad(|settings| settings.tolerance = f64::NAN));
        assert!(bad(|settings| settings.threshold = 0.0));
        assert!(bad(|settings| settings.warm_up = 1));
        assert!(bad(|settings| settings.memory = 10));
    }
}
