//! Simulated worlds: requests whose best arm is known, so that regret can be computed.
//!
//! Rewards are 0 or 1. `examples/router_regret.rs` prints regrets over worlds and seeds.

use super::router::{Decision, Reason, Router};
use super::vector::normalized;
use super::{Arm, Prompt};
use crate::error::Result;
use crate::random::Random;

/// Settings of [`World::kinds`].
#[derive(Debug, Clone, PartialEq)]
pub struct Kinds {
    /// Kinds of requests, equally frequent.
    pub kinds: usize,
    /// Arms.
    pub arms: usize,
    /// Values of an embedding.
    pub dim: usize,
    /// Deviation of an embedding's values from those of its kind, whose own deviation is 1.
    pub noise: f32,
    /// Deviation of a part that all embeddings share, as those of language models do.
    pub common: f32,
    /// Range of the probability of success of an arm at a kind.
    pub success: (f64, f64),
    /// Probability of success of the best arm of a kind: arm `k` modulo the arms at kind `k`;
    /// `None` = none stands out.
    pub best: Option<f64>,
}

impl Default for Kinds {
    /// Six kinds and four arms, which succeed with 0.1 to 0.5, the best with 0.85.
    fn default() -> Self {
        Self { kinds: 6, arms: 4, dim: 16, noise: 0.4, common: 0.0, success: (0.1, 0.5), best: Some(0.85) }
    }
}

/// A request, and the probability of success of each arm at it.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// Embedding of the prompt.
    pub embedding: Vec<f32>,
    /// Probabilities by arm.
    pub success: Vec<f64>,
}

/// Expected rewards lost against the best arm of each request, summed.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub struct Regret {
    /// Of the router.
    pub router: f64,
    /// Of random choice.
    pub random: f64,
    /// Of arm 0, which static rules without a condition choose.
    pub rules: f64,
    /// Of the one arm with the largest sum of rewards.
    pub fixed: f64,
    /// Decisions of the router that explored.
    pub explored: usize,
}

/// A world, seeded: equal seeds give equal requests and rewards.
#[derive(Debug, Clone)]
pub struct World {
    form: Form,
    arms: usize,
    dim: usize,
    random: Random,
}

#[derive(Debug, Clone)]
enum Form {
    /// Centre and probabilities by kind, and the noise around centres.
    Kinds { kinds: Vec<Request>, noise: f32 },
    /// Probability of arm `a`: 0.5 plus the product of its weights and the unit embedding.
    Linear { weights: Vec<Vec<f64>> },
}

impl World {
    /// A world of kinds of requests.
    pub fn kinds(settings: &Kinds, seed: u64) -> Self {
        let &Kinds { kinds, arms, dim, noise, common, success: (low, high), best } = settings;
        let mut random = Random::new(seed);
        let shared: Vec<f32> = (0..dim).map(|_| common * random.normal() as f32).collect();
        let centres: Vec<Vec<f32>> =
            (0..kinds).map(|_| shared.iter().map(|value| value + random.normal() as f32).collect()).collect();
        let request = |(kind, embedding): (usize, Vec<f32>)| {
            let mut success: Vec<f64> = (0..arms).map(|_| low + (high - low) * random.uniform()).collect();
            if let (Some(best), Some(of_best)) = (best, success.get_mut(kind % arms.max(1))) {
                *of_best = best;
            }
            Request { embedding, success }
        };
        let kinds = centres.into_iter().enumerate().map(request).collect();
        Self { form: Form::Kinds { kinds, noise }, arms, dim, random }
    }

    /// A world in which rewards are linear in the embedding, with normal weights of deviation
    /// `gain`; probabilities end at 0.02 and 0.98.
    pub fn linear(arms: usize, dim: usize, gain: f64, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let weights = (0..arms).map(|_| (0..dim).map(|_| gain * random.normal()).collect()).collect();
        Self { form: Form::Linear { weights }, arms, dim, random }
    }

    /// A world with one best arm, the last one, better by `gap` than the others' 0.6 everywhere.
    pub fn one_best(arms: usize, dim: usize, gap: f64, seed: u64) -> Self {
        let mut world = Self::kinds(&Kinds { kinds: 3, arms, dim, ..Kinds::default() }, seed);
        if let Form::Kinds { kinds, .. } = &mut world.form {
            for Request { success, .. } in kinds {
                success.fill(0.6);
                success.last_mut().into_iter().for_each(|last| *last += gap);
            }
        }
        world
    }

    /// Number of arms.
    pub fn arms(&self) -> usize {
        self.arms
    }

    /// Values of an embedding.
    pub fn dim(&self) -> usize {
        self.dim
    }

    /// Next request.
    pub fn draw(&mut self) -> Request {
        let random = &mut self.random;
        match &self.form {
            Form::Kinds { kinds, noise } => {
                let Request { embedding, success } = &kinds[random.below(kinds.len())];
                let embedding = embedding.iter().map(|value| value + noise * random.normal() as f32);
                Request { embedding: embedding.collect(), success: success.clone() }
            }
            Form::Linear { weights } => {
                let embedding: Vec<f32> = (0..self.dim).map(|_| random.normal() as f32).collect();
                let unit = normalized(&embedding);
                let product = |weights: &Vec<f64>| -> f64 {
                    weights.iter().zip(&unit).map(|(weight, &value)| weight * f64::from(value)).sum()
                };
                let success = weights.iter().map(|arm| (0.5 + product(arm)).clamp(0.02, 0.98)).collect();
                Request { embedding, success }
            }
        }
    }

    /// Reward of an arm with this probability of success.
    pub fn reward(&mut self, success: f64) -> f64 {
        f64::from(u8::from(self.random.uniform() < success))
    }

    /// Gives each arm the probabilities of the one before it.
    pub fn shift(&mut self) {
        match &mut self.form {
            Form::Kinds { kinds, .. } => kinds.iter_mut().for_each(|kind| rotate(&mut kind.success)),
            Form::Linear { weights } => rotate(weights),
        }
    }

    /// Serves requests with a router, which learns from each, and sums the regret.
    ///
    /// # Errors
    /// Errors of [`Router::choose`] and [`Router::learn`], for a router of other sizes.
    pub fn serve(&mut self, router: &mut Router, requests: usize) -> Result<Regret> {
        self.serve_rated(router, requests, 1.0)
    }

    /// As [`serve`](Self::serve), with a reward for a share of the requests, 0 to 1: few users
    /// rate.
    ///
    /// # Errors
    /// As [`serve`](Self::serve).
    pub fn serve_rated(&mut self, router: &mut Router, requests: usize, rated: f64) -> Result<Regret> {
        let mut regret = Regret::default();
        let mut earned = vec![0.0; self.arms];
        let mut most = 0.0;
        for _ in 0..requests {
            let Request { embedding, success } = self.draw();
            let prompt = Prompt {
                embedding: &embedding,
                tokens: 200,
                has_tools: false,
                is_constrained: false,
                turns: 0,
            };
            let decision: Decision = router.choose(&prompt, |_| true, None)?;
            let best = success.iter().copied().fold(0.0, f64::max);
            let chosen = success.get(decision.arm).copied().unwrap_or(0.0);
            most += best;
            regret.router += best - chosen;
            regret.random += best - success.iter().sum::<f64>() / self.arms as f64;
            regret.rules += best - success.first().copied().unwrap_or(0.0);
            regret.explored += usize::from(decision.reason == Reason::Explored);
            earned.iter_mut().zip(&success).for_each(|(sum, value)| *sum += value);
            let reward = self.reward(chosen);
            if rated >= 1.0 || self.random.uniform() < rated {
                router.learn(&decision, reward)?;
            }
        }
        regret.fixed = most - earned.iter().copied().fold(0.0, f64::max);
        Ok(regret)
    }

    /// Arms by number, for a router of this world.
    pub fn arm_list(&self) -> Vec<Arm> {
        (0..self.arms).map(|arm| Arm::model(format!("model-{arm}"))).collect()
    }
}

fn rotate<T>(values: &mut [T]) {
    if !values.is_empty() {
        values.rotate_right(1);
    }
}
