//! Group-relative policy optimization (GRPO; Shao et al., `DeepSeekMath`, arXiv 2402.03300).

use super::{Batch, BatchLoss, Objective};
use crate::batch::Sequence;
use crate::error::{Error, Result};
use crate::lora::Lora;
use crate::pass::Backprop;

/// A sampled answer and its reward.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// Prompt, which the mask leaves out, and answer.
    pub sequence: Sequence,
    /// Reward, a finite number.
    pub reward: f64,
}

/// Sampling of answers from the current model, and their rewards.
pub trait Rollout {
    /// Number of training prompts, at least 1.
    fn n_prompts(&self) -> usize;

    /// Number of held-out prompts.
    fn n_held_out(&self) -> usize;

    /// Samples `count` answers for each of some prompts, those of a prompt one after another. Equal
    /// arguments give equal answers.
    ///
    /// # Errors
    /// Errors of the implementation as [`Error::Other`].
    fn sample(
        &mut self,
        lora: &Lora,
        prompts: &[usize],
        is_held_out: bool,
        count: usize,
        seed: u64,
    ) -> Result<Vec<Answer>>;

    /// Settings of sampling and of the reward, as text.
    fn settings(&self) -> String;

    /// Checksum of all prompts.
    fn data_digest(&self) -> [u8; 32];
}

/// A roll-out that outlives its objective.
impl<R: Rollout + ?Sized> Rollout for &mut R {
    fn n_prompts(&self) -> usize {
        (**self).n_prompts()
    }

    fn n_held_out(&self) -> usize {
        (**self).n_held_out()
    }

    fn sample(
        &mut self,
        lora: &Lora,
        prompts: &[usize],
        is_held_out: bool,
        count: usize,
        seed: u64,
    ) -> Result<Vec<Answer>> {
        (**self).sample(lora, prompts, is_held_out, count, seed)
    }

    fn settings(&self) -> String {
        (**self).settings()
    }

    fn data_digest(&self) -> [u8; 32] {
        (**self).data_digest()
    }
}

/// Settings of [`GroupRelative`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RewardConfig {
    /// Answers sampled for each prompt, at least 2.
    pub group: usize,
    /// Weight of the KL penalty toward the model without adapter.
    pub beta: f64,
    /// Seed of the answers.
    pub seed: u64,
}

/// Tells seeds of measurements from those of validation.
const MEASURED: u64 = 0x6d65_6173_7572_6564;

/// Tells seeds of a curriculum from those of validation.
const RANKED: u64 = 0x7261_6e6b_6564_0000;

/// GRPO with one optimizer step per batch of samples.
///
/// Maximizes the mean over answers `o` of `1/|o| sum_t (rho_t A - beta KL_t)`. Samples are used for
/// one step: the ratio `rho_t` of policies is 1, its clipping never binds, and its gradient is `A`
/// times that of the log-probability. `A` are the rewards normalized within the group of a prompt
/// ([`advantages`]). `KL_t = e^d - d - 1` with `d` the log-probability under the model alone minus
/// that of the policy: the unbiased, non-negative estimator k3 of Schulman
/// (<http://joschu.net/blog/kl-approx.html>).
pub struct GroupRelative<R> {
    rollout: R,
    config: RewardConfig,
}

impl<R: Rollout> GroupRelative<R> {
    /// Objective over the prompts of a roll-out.
    ///
    /// # Errors
    /// [`Error::Setting`]; [`Error::NothingScored`] without prompts.
    pub fn new(rollout: R, config: RewardConfig) -> Result<Self> {
        if config.group < 2 {
            let value = config.group.to_string();
            return Err(Error::Setting { name: "the group", value, range: "at least 2 answers" });
        }
        if !(config.beta >= 0.0 && config.beta.is_finite()) {
            return Err(Error::Setting {
                name: "beta",
                value: config.beta.to_string(),
                range: "0 or positive",
            });
        }
        if rollout.n_prompts() == 0 {
            return Err(Error::NothingScored { what: "the training data" });
        }
        Ok(Self { rollout, config })
    }

    /// Mean reward of a group of answers to each held-out prompt; `None` without any.
    ///
    /// The answers are others than those of validation: the factors that a run keeps are chosen by
    /// the rewards of those, which are therefore too high.
    ///
    /// # Errors
    /// Errors of the roll-out.
    pub fn measure(&mut self, lora: &Lora) -> Result<Option<f64>> {
        self.held_out(lora, !self.config.seed ^ MEASURED)
    }

    fn held_out(&mut self, lora: &Lora, seed: u64) -> Result<Option<f64>> {
        let prompts: Vec<usize> = (0..self.rollout.n_held_out()).collect();
        if prompts.is_empty() {
            return Ok(None);
        }
        let answers = self.rollout.sample(lora, &prompts, true, self.config.group, seed)?;
        Ok(Some(answers.iter().map(|answer| answer.reward).sum::<f64>() / answers.len().max(1) as f64))
    }
}

impl<R: Rollout> Objective for GroupRelative<R> {
    fn label(&self) -> &'static str {
        "KL penalty - mean reward"
    }

    fn n_examples(&self) -> usize {
        self.rollout.n_prompts()
    }

    fn add_gradients(
        &mut self,
        backprop: &mut Backprop<'_>,
        lora: &Lora,
        batch: &Batch<'_>,
        gradients: &mut [f32],
    ) -> Result<BatchLoss> {
        let RewardConfig { group, beta, seed } = self.config;
        let seed = seed.wrapping_add(batch.step.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let answers = self.rollout.sample(lora, batch.examples, false, group, seed)?;
        if answers.len() != group * batch.examples.len() {
            let (expected, found) = (group * batch.examples.len(), answers.len());
            return Err(Error::Length { what: "the answers", expected, found });
        }
        let n = answers.len() as f64;
        let mut reward = 0.0;
        let mut weights = Vec::with_capacity(answers.len());
        for group in answers.chunks(group) {
            let rewards: Vec<f64> = group.iter().map(|answer| answer.reward).collect();
            reward += rewards.iter().sum::<f64>() / n;
            weights.extend(advantages(&rewards));
        }
        let mut loss = -reward;
        let per_pass = batch.per_pass.max(1);
        for (answers, weights) in answers.chunks(per_pass).zip(weights.chunks(per_pass)) {
            let sequences: Vec<&Sequence> = answers.iter().map(|answer| &answer.sequence).collect();
            let base = (beta > 0.0).then(|| backprop.log_probabilities(None, &sequences)).transpose()?;
            let mut pass = backprop.forward(lora, &sequences)?;
            let policy = pass.log_probabilities();
            let mut coefficients = vec![0.0; policy.tokens().len()];
            for (range, advantage) in policy.sequences().iter().zip(weights) {
                let scale = 1.0 / (n * range.len().max(1) as f64);
                for at in range.clone() {
                    let d = base
                        .as_ref()
                        .map_or(0.0, |base| f64::from(base.tokens()[at]) - f64::from(policy.tokens()[at]));
                    let penalty = d.exp() - d - 1.0;
                    loss += beta * penalty * scale;
                    // The derivative of e^d - d - 1 with respect to the policy is 1 - e^d.
                    coefficients[at] = ((beta * (1.0 - d.exp()) - advantage) * scale) as f32;
                }
            }
            pass.backward(&coefficients, gradients)?;
        }
        let tokens = answers.iter().map(|answer| answer.sequence.tokens.len()).sum();
        Ok(BatchLoss { loss, tokens, reward: Some(reward) })
    }

    fn validate(&mut self, _: &mut Backprop<'_>, lora: &Lora, _: usize) -> Result<Option<f64>> {
        Ok(self.held_out(lora, !self.config.seed)?.map(|reward| -reward))
    }

    /// Negative mean reward of a group of answers to each prompt.
    fn difficulty(&mut self, _: &mut Backprop<'_>, lora: &Lora, _: usize) -> Result<Vec<f64>> {
        let RewardConfig { group, seed, .. } = self.config;
        let prompts: Vec<usize> = (0..self.rollout.n_prompts()).collect();
        let answers = self.rollout.sample(lora, &prompts, false, group, !seed ^ RANKED)?;
        let mean =
            |group: &[Answer]| group.iter().map(|answer| answer.reward).sum::<f64>() / group.len() as f64;
        Ok(answers.chunks(group).map(|group| -mean(group)).collect())
    }

    fn settings(&self) -> String {
        format!("reward {:?} {}", self.config, self.rollout.settings())
    }

    fn data_digest(&self) -> [u8; 32] {
        self.rollout.data_digest()
    }
}

/// Rewards of a group minus their mean, divided by their standard deviation; 0 if all are equal.
pub fn advantages(rewards: &[f64]) -> Vec<f64> {
    let n = rewards.len().max(1) as f64;
    let mean = rewards.iter().sum::<f64>() / n;
    let deviation = (rewards.iter().map(|reward| (reward - mean).powi(2)).sum::<f64>() / n).sqrt();
    let is_flat = deviation <= 1e-9 * mean.abs().max(1e-9);
    rewards.iter().map(|reward| if is_flat { 0.0 } else { (reward - mean) / deviation }).collect()
}

#[cfg(test)]
mod tests {
    use super::advantages;

    #[test]
    fn advantages_have_mean_0_and_deviation_1() {
        let found = advantages(&[1.0, 0.0, 0.0, 1.0]);
        assert_eq!(found, [1.0, -1.0, -1.0, 1.0]);
        assert_eq!(advantages(&[0.3; 3]), [0.0; 3], "nothing to learn from equal rewards");
        assert!(advantages(&[]).is_empty());
    }
}
