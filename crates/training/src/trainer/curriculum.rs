//! A phased curriculum (Bengio et al., ICML 2009): easy examples first, all of them in the end.

use sha2::{Digest as _, Sha256};

use super::Trainer;
use crate::error::{Error, Result};
use crate::random::Random;

/// Phases of a run: phase `k` of `P` trains on the examples of phases 1 to `k`, for an equal share
/// of the steps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Curriculum {
    /// Indices of all examples, those of the first phase first.
    order: Vec<usize>,
    /// Examples of phases 1 to `k`, by phase; the last is all of them.
    ends: Vec<usize>,
}

impl Curriculum {
    /// Phases of equal size by difficulty, ascending; equal values keep the order of the data.
    ///
    /// # Errors
    /// [`Error::Setting`] for no phase, more phases than examples, and a difficulty that is NaN.
    pub fn by_difficulty(difficulty: &[f64], phases: usize) -> Result<Self> {
        let n = difficulty.len();
        if phases == 0 || phases > n {
            let value = phases.to_string();
            return Err(Error::Setting { name: "phases", value, range: "1 to the number of examples" });
        }
        if difficulty.iter().any(|value| value.is_nan()) {
            return Err(Error::Setting { name: "a difficulty", value: "NaN".to_owned(), range: "a number" });
        }
        let mut order: Vec<usize> = (0..n).collect();
        order.sort_by(|&a, &b| difficulty[a].total_cmp(&difficulty[b]));
        let end = |phase: usize| (n as u128 * phase as u128).div_ceil(phases as u128) as usize;
        Ok(Self { order, ends: (1..=phases).map(end).collect() })
    }

    /// Phases that are given: examples of the smallest number first, a phase for each number.
    ///
    /// # Errors
    /// [`Error::Setting`] without examples.
    pub fn of_phases(phases: &[usize]) -> Result<Self> {
        let mut order: Vec<usize> = (0..phases.len()).collect();
        order.sort_by_key(|&example| phases[example]);
        let ends: Vec<usize> = order
            .chunk_by(|&a, &b| phases[a] == phases[b])
            .scan(0, |end, phase| {
                *end += phase.len();
                Some(*end)
            })
            .collect();
        if ends.is_empty() {
            return Err(Error::Setting { name: "phases", value: "0".to_owned(), range: "at least 1" });
        }
        Ok(Self { order, ends })
    }

    /// Examples that each phase trains on: its own and those of the phases before.
    pub fn examples(&self) -> &[usize] {
        &self.ends
    }

    /// Checks the curriculum of a run of so many examples and steps.
    fn check(&self, n_examples: usize, steps: u64) -> Result<()> {
        if self.order.len() != n_examples {
            let (expected, found) = (n_examples, self.order.len());
            return Err(Error::Length { what: "the curriculum", expected, found });
        }
        if steps < self.ends.len() as u64 {
            let value = self.ends.len().to_string();
            return Err(Error::Setting { name: "phases", value, range: "1 to the number of steps" });
        }
        Ok(())
    }

    /// Phase of a step, from 0.
    fn phase(&self, step: u64, steps: u64) -> usize {
        let phases = self.ends.len();
        let phase = u128::from(step) * phases as u128 / u128::from(steps.max(1));
        (phase as usize).min(phases - 1)
    }

    /// First step of a phase.
    fn first_step(&self, phase: usize, steps: u64) -> u64 {
        (u128::from(steps) * phase as u128).div_ceil(self.ends.len() as u128) as u64
    }

    /// Checksum of order and phases.
    pub(super) fn digest(&self) -> String {
        let mut digest = Sha256::new();
        for &value in self.ends.iter().chain(&self.order) {
            digest.update((value as u64).to_le_bytes());
        }
        super::state::hex(&digest.finalize())
    }
}

/// Order of an epoch.
#[derive(Debug, Default)]
pub(super) struct Epoch {
    /// Phase and number of the epoch within it.
    number: (usize, u64),
    /// Its examples; empty before the first epoch.
    order: Vec<usize>,
}

impl Trainer<'_, '_> {
    /// Sets the curriculum of the run, before its first step or [`resume`](Self::resume): the state
    /// of a run with another one is refused. The phase of a step follows from its number.
    ///
    /// # Errors
    /// [`Error::Length`] unless it has the examples of the objective; [`Error::Setting`] for fewer
    /// steps than phases, and behind the first step.
    pub fn set_curriculum(&mut self, curriculum: Option<Curriculum>) -> Result<()> {
        if self.steps() > 0 {
            let value = "set".to_owned();
            return Err(Error::Setting { name: "the curriculum", value, range: "set before the first step" });
        }
        if let Some(curriculum) = &curriculum {
            curriculum.check(self.objective.n_examples(), self.config.steps)?;
        }
        self.curriculum = curriculum;
        self.epoch = Epoch::default();
        Ok(())
    }

    /// Examples of a step: each epoch of a phase is a permutation of the phase's examples that
    /// follows from the seed, the phase and the epoch's number.
    pub(super) fn examples_of(&mut self, step: u64) -> Vec<usize> {
        let (phase, first, n) = match &self.curriculum {
            None => (0, 0, self.objective.n_examples()),
            Some(curriculum) => {
                let phase = curriculum.phase(step, self.config.steps);
                (phase, curriculum.first_step(phase, self.config.steps), curriculum.ends[phase])
            }
        };
        let per_step = (self.config.batch * self.config.accumulate) as u64;
        let mut chosen = Vec::with_capacity(per_step as usize);
        for at in (step - first) * per_step..(step - first + 1) * per_step {
            let number = (phase, at / n as u64);
            if self.epoch.order.is_empty() || self.epoch.number != number {
                let stream = number.1 ^ (phase as u64).rotate_right(16);
                let order = Random::stream(self.config.seed, stream).permutation(n);
                self.epoch = Epoch { number, order };
            }
            let example = self.epoch.order[(at % n as u64) as usize];
            chosen.push(self.curriculum.as_ref().map_or(example, |curriculum| curriculum.order[example]));
        }
        chosen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_ascend_by_difficulty() {
        let found = Curriculum::by_difficulty(&[3.0, 1.0, 2.0, 1.0, 5.0], 2).expect("phases");
        assert_eq!((found.order.as_slice(), found.examples()), (&[1, 3, 2, 0, 4][..], &[3, 5][..]));
        let given = Curriculum::of_phases(&[7, 2, 7, 2, 4]).expect("phases");
        assert_eq!((given.order.as_slice(), given.examples()), (&[1, 3, 4, 0, 2][..], &[2, 3, 5][..]));
        for phases in [0, 3] {
            assert!(matches!(Curriculum::by_difficulty(&[1.0, 2.0], phases), Err(Error::Setting { .. })));
        }
        assert!(matches!(Curriculum::by_difficulty(&[1.0, f64::NAN], 1), Err(Error::Setting { .. })));
        assert!(matches!(Curriculum::of_phases(&[]), Err(Error::Setting { .. })));
    }

    #[test]
    fn phases_have_equal_shares_of_the_steps() {
        for (steps, phases) in [(10, 3), (9, 3), (3, 3), (200, 7), (5, 1)] {
            let curriculum = Curriculum::by_difficulty(&[0.0; 20], phases).expect("phases");
            let mut shares = vec![0; phases];
            for step in 0..steps {
                let phase = curriculum.phase(step, steps);
                assert!(curriculum.first_step(phase, steps) <= step);
                shares[phase] += 1;
            }
            let (least, most) = (shares.iter().min(), shares.iter().max());
            assert!(most.zip(least).is_some_and(|(most, least)| most - least <= 1), "{shares:?}");
            assert!((1..phases).all(|phase| {
                let first = curriculum.first_step(phase, steps);
                curriculum.phase(first, steps) == phase && curriculum.phase(first - 1, steps) == phase - 1
            }));
            assert!(curriculum.check(20, steps).is_ok() && curriculum.check(19, steps).is_err());
            assert!(curriculum.check(20, phases as u64 - 1).is_err());
        }
    }
}
