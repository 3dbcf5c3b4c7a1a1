//! Fisher information as a moving average during training (EWC++).

use crate::continual::fisher::{Fisher, SquareSum};
use crate::error::{Error, Result};

/// Moving average of squared gradients: no pass over the data at the end of a task (Chaudhry et al.
/// 2018, RWalk, section 4.1).
///
/// `F_t = rate * F_hat + (1 - rate) * F_(t-1)`, where `F_hat` is the mean over the last `window`
/// examples. As in the paper's code, `rate` multiplies the *new* estimate; that code has 0.9 and 10
/// steps, so that its average spans few windows. The average starts at 0 and is divided by
/// `1 - (1 - rate)^t`, which that code is not: after few windows it would be too small.
#[derive(Debug, Clone)]
pub struct RunningFisher {
    rate: f64,
    window: u64,
    average: Vec<f64>,
    /// `(1 - rate)^t` after `t` windows.
    bias: f64,
    sum: SquareSum,
}

impl RunningFisher {
    /// An average of `len` parameters without data.
    ///
    /// # Errors
    /// [`Error::Setting`] for a rate outside (0, 1] or a window of 0.
    pub fn new(len: usize, rate: f64, window: u64) -> Result<Self> {
        if !(rate > 0.0 && rate <= 1.0) {
            return Err(Error::Setting {
                name: "rate",
                value: rate.to_string(),
                range: "above 0, at most 1",
            });
        }
        if window == 0 {
            return Err(Error::Setting { name: "window", value: "0".to_owned(), range: "at least 1" });
        }
        Ok(Self { rate, window, average: vec![0.0; len], bias: 1.0, sum: SquareSum::new(len) })
    }

    /// Adds the gradient of one example; not of a batch, whose mean has smaller squares.
    ///
    /// # Errors
    /// [`Error::Dimension`], [`Error::NotFinite`]; nothing is added then.
    pub fn push(&mut self, gradient: &[f32]) -> Result<()> {
        self.sum.push(gradient)?;
        if self.sum.examples() == self.window {
            let rate = self.rate;
            for (average, mean) in self.average.iter_mut().zip(self.sum.take_means()) {
                *average = rate * mean + (1.0 - rate) * *average;
            }
            self.bias *= 1.0 - rate;
        }
        Ok(())
    }

    /// The average without its bias towards 0.
    ///
    /// # Errors
    /// [`Error::Empty`] before the first full window.
    pub fn estimate(&self) -> Result<Fisher> {
        if self.bias == 1.0 {
            return Err(Error::Empty { what: "moving average of the Fisher information" });
        }
        let scale = 1.0 / (1.0 - self.bias);
        Fisher::from_values(self.average.iter().map(|average| (average * scale) as f32).collect())
    }

    /// Starts from nothing, for the next task.
    pub fn reset(&mut self) {
        *self = Self {
            average: vec![0.0; self.average.len()],
            bias: 1.0,
            sum: SquareSum::new(self.average.len()),
            ..*self
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constant_gradients_have_their_square_from_the_first_window_on() {
        for rate in [0.9, 0.01] {
            let mut running = RunningFisher::new(2, rate, 3).expect("settings");
            assert!(matches!(running.estimate(), Err(Error::Empty { .. })));
            for n in 1..=30 {
                running.push(&[2.0, -0.5]).expect("a gradient");
                if n >= 3 {
                    let fisher = running.estimate().expect("a window");
                    assert!((fisher.values()[0] - 4.0).abs() < 1e-5, "{rate} {n} {fisher:?}");
                    assert!((fisher.values()[1] - 0.25).abs() < 1e-6);
                }
            }
        }
    }

    #[test]
    fn the_rate_multiplies_the_new_estimate() {
        let mut running = RunningFisher::new(1, 0.9, 1).expect("settings");
        running.push(&[1.0]).expect("a gradient");
        running.push(&[3.0]).expect("a gradient");
        // 0.9 * 9 + 0.1 * 0.9 * 1 over 1 - 0.01.
        let expected = (0.9 * 9.0 + 0.1 * 0.9) / 0.99;
        assert!((f64::from(running.estimate().expect("two").values()[0]) - expected).abs() < 1e-5);
    }

    #[test]
    fn bad_gradients_and_settings_are_errors() {
        assert!(RunningFisher::new(1, 0.0, 1).is_err());
        assert!(RunningFisher::new(1, f64::NAN, 1).is_err());
        assert!(RunningFisher::new(1, 0.5, 0).is_err());
        let mut running = RunningFisher::new(1, 0.5, 1).expect("settings");
        assert!(matches!(running.push(&[1.0, 2.0]), Err(Error::Dimension { .. })));
        assert!(matches!(running.push(&[f32::INFINITY]), Err(Error::NotFinite { .. })));
        assert!(running.estimate().is_err());
        running.push(&[1.0]).expect("a gradient");
        running.reset();
        assert!(running.estimate().is_err());
    }
}
