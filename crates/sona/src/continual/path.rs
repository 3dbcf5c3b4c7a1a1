//! Path integral of RWalk: contribution of each parameter to the fall of the loss.

use crate::error::{Error, Result};

/// Damping of the denominator, as in the paper's code.
const EPSILON: f64 = 1e-3;

/// Scores of parameters along the path of training (Chaudhry et al. 2018, section 4.2).
///
/// Over each interval of steps, `s_i += max(0, sum(-g_i * delta_i) / (1/2 F_i D_i^2 + eps))`, where
/// `g` is the gradient of the loss without penalty, `delta` the change of a step, `D` that of the
/// interval and `F` the running Fisher information. At the end of a task the score is averaged with
/// that of the tasks before, which replaces both.
#[derive(Debug, Clone)]
pub struct PathIntegral {
    interval: u64,
    steps: u64,
    /// `sum(-g_i * delta_i)` and `D_i` of the open interval.
    fall: Vec<f64>,
    moved: Vec<f64>,
    task: Vec<f64>,
    former: Option<Vec<f64>>,
}

impl PathIntegral {
    /// Scores of `len` parameters, updated every `interval` steps.
    ///
    /// # Errors
    /// [`Error::Setting`] for an interval of 0.
    pub fn new(len: usize, interval: u64) -> Result<Self> {
        if interval == 0 {
            return Err(Error::Setting { name: "interval", value: "0".to_owned(), range: "at least 1" });
        }
        let zeros = vec![0.0; len];
        let (fall, moved) = (zeros.clone(), zeros.clone());
        Ok(Self { interval, steps: 0, fall, moved, task: zeros, former: None })
    }

    /// Adds a step: the gradient of the loss without penalty, the change of the parameters and the
    /// Fisher information at that time.
    ///
    /// # Errors
    /// [`Error::Dimension`], [`Error::NotFinite`]; nothing is added then.
    pub fn push(&mut self, gradient: &[f32], change: &[f32], fisher: &[f32]) -> Result<()> {
        let expected = self.task.len();
        for (what, values) in
            [("gradient", gradient), ("change of the parameters", change), ("Fisher information", fisher)]
        {
            if values.len() != expected {
                return Err(Error::Dimension { what, expected, got: values.len() });
            }
            if !values.iter().all(|value| value.is_finite()) {
                return Err(Error::NotFinite { what });
            }
        }
        for (index, (&gradient, &change)) in gradient.iter().zip(change).enumerate() {
            self.fall[index] -= f64::from(gradient) * f64::from(change);
            self.moved[index] += f64::from(change);
        }
        self.steps += 1;
        if self.steps == self.interval {
            self.steps = 0;
            for (index, &fisher) in fisher.iter().enumerate() {
                let fall = std::mem::take(&mut self.fall[index]);
                let moved = std::mem::take(&mut self.moved[index]);
                let score = fall / (0.5 * f64::from(fisher) * moved * moved + EPSILON);
                self.task[index] += score.max(0.0);
            }
        }
        Ok(())
    }

    /// Ends a task: averages its scores with those of the tasks before and returns them. An open
    /// interval is dropped.
    pub fn finish_task(&mut self) -> Vec<f32> {
        let len = self.task.len();
        let task = std::mem::replace(&mut self.task, vec![0.0; len]);
        self.fall.fill(0.0);
        self.moved.fill(0.0);
        self.steps = 0;
        let scores = match self.former.take() {
            None => task,
            Some(former) => former.iter().zip(&task).map(|(former, task)| (former + task) / 2.0).collect(),
        };
        let result = scores.iter().map(|&score| score as f32).collect();
        self.former = Some(scores);
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_are_those_of_the_formula() {
        let mut path = PathIntegral::new(2, 2).expect("settings");
        let fisher = [2.0, 2.0];
        path.push(&[1.0, 1.0], &[-0.1, 0.1], &fisher).expect("a step");
        path.push(&[0.5, 1.0], &[-0.2, 0.1], &fisher).expect("a step");
        let scores = path.finish_task();
        // Fall 0.1 + 0.1, moved 0.3; the second parameter raised the loss.
        let expected = 0.2 / (0.5 * 2.0 * 0.09 + 1e-3);
        assert!((f64::from(scores[0]) - expected).abs() < 1e-4, "{scores:?}");
        assert_eq!(scores[1], 0.0);
        // The second task has none: the average replaces the score, and again.
        assert!((path.finish_task()[0] - scores[0] / 2.0).abs() < 1e-6);
        assert!((path.finish_task()[0] - scores[0] / 4.0).abs() < 1e-6);
    }

    #[test]
    fn a_bad_step_adds_nothing() {
        let mut path = PathIntegral::new(1, 1).expect("settings");
        assert!(matches!(path.push(&[1.0], &[1.0, 1.0], &[1.0]), Err(Error::Dimension { .. })));
        assert!(matches!(path.push(&[f32::NAN], &[1.0], &[1.0]), Err(Error::NotFinite { .. })));
        assert_eq!(path.finish_task(), [0.0]);
        assert!(PathIntegral::new(1, 0).is_err());
    }
}
