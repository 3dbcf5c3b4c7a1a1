//! Success rates of two arms, their difference, and its confidence interval.

use serde::{Deserialize, Serialize};

/// Normal quantile of the intervals: 95 %, two-sided.
const Z: f64 = 1.959_963_984_540_054;

/// Successes among trials with a clear outcome.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trials {
    /// Successes.
    pub wins: u64,
    /// Trials.
    pub trials: u64,
}

impl Trials {
    /// Success rate; `None` without trials.
    pub fn rate(&self) -> Option<f64> {
        (self.trials > 0).then(|| self.wins as f64 / self.trials as f64)
    }

    /// 95 % score interval of the rate (Wilson, 1927); `None` without trials.
    pub fn interval(&self) -> Option<(f64, f64)> {
        let (p, n) = (self.rate()?, self.trials as f64);
        let z2 = Z * Z / n;
        let centre = (p + z2 / 2.0) / (1.0 + z2);
        let half = Z / (1.0 + z2) * (p * (1.0 - p) / n + z2 / (4.0 * n)).sqrt();
        Some(((centre - half).max(0.0), (centre + half).min(1.0)))
    }
}

/// Success rate with memory minus the rate of the control arm.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Uplift {
    /// Requests with memory.
    pub with: Trials,
    /// Requests of the control arm.
    pub without: Trials,
    /// Difference of the rates, -1 to 1.
    pub difference: f64,
    /// Lower end of the 95 % interval of the difference.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

impl Uplift {
    /// Difference with Newcombe's interval of two score intervals (Statistics in Medicine 17, 1998,
    /// method 10); `None` until both arms have a trial.
    pub fn new(with: Trials, without: Trials) -> Option<Self> {
        let (p, q) = (with.rate()?, without.rate()?);
        let ((p_low, p_high), (q_low, q_high)) = (with.interval()?, without.interval()?);
        let difference = p - q;
        let low = difference - (p - p_low).hypot(q_high - q);
        let high = difference + (p_high - p).hypot(q - q_low);
        Some(Self { with, without, difference, low, high })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trials(wins: u64, trials: u64) -> Trials {
        Trials { wins, trials }
    }

    /// Example of Newcombe's article: 56 of 70 against 48 of 80, interval 0.0524 to 0.3339.
    #[test]
    fn the_interval_is_that_of_the_article() {
        let uplift = Uplift::new(trials(56, 70), trials(48, 80)).unwrap();
        assert!((uplift.difference - 0.2).abs() < 1e-12);
        assert!((uplift.low - 0.0524).abs() < 5e-5 && (uplift.high - 0.3339).abs() < 5e-5, "{uplift:?}");
    }

    /// Wilson's interval of 81 of 263: 0.2553 to 0.3662 (Newcombe, same volume, table I).
    #[test]
    fn the_score_interval_is_that_of_the_article() {
        let (low, high) = trials(81, 263).interval().unwrap();
        assert!((low - 0.2553).abs() < 5e-5 && (high - 0.3662).abs() < 5e-5, "{low} {high}");
    }

    #[test]
    fn without_trials_there_is_no_value() {
        assert_eq!(Uplift::new(trials(3, 4), trials(0, 0)), None);
        assert_eq!(trials(0, 0).rate(), None);
        let all = Uplift::new(trials(1, 1), trials(0, 1)).unwrap();
        assert!(all.low >= -1.0 && all.high <= 1.0 && all.low < 0.0, "{all:?}");
    }
}
