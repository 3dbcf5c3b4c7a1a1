//! Router: a contextual bandit over arms with static rules beneath it.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::arm::{Arm, Rules};
use super::features::{CHEAP_FEATURES, Encoder, MAX_PROJECTION, Prompt};
use super::linear::{Estimate, LinearArm, Regression};
use super::reward::RewardFormula;
use crate::error::{Error, Result};
use crate::random::Random;

/// Largest number of arms.
pub const MAX_ARMS: usize = 256;
/// Explorations that may follow one another after a time without any, behind the warm-up.
const EXPLORATION_BURST: f64 = 16.0;
/// Largest [`RouterSettings::warm_up`].
pub(super) const MAX_WARM_UP: f64 = 1e6;
/// Difference of expected rewards below which an opinion decides between two arms.
const TIE: f64 = 0.02;

/// Choice of the arm to explore.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Strategy {
    /// LinUCB with disjoint arms (Li, Chu, Langford and Schapire 2010): the largest sum of the
    /// mean and some deviations.
    LinUcb,
    /// Linear Thompson sampling (Agrawal and Goyal 2013): the largest of one draw per arm.
    Thompson,
}

/// Settings of a [`Router`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RouterSettings {
    /// Choice of the arm to explore.
    pub strategy: Strategy,
    /// Values of the prompts' embeddings.
    pub embedding_dim: usize,
    /// Largest number of values kept of an embedding, 1 to [`MAX_PROJECTION`].
    pub projection: usize,
    /// Norm of the embedding within the context; other features are 0 to 1.
    pub embedding_scale: f64,
    /// Seed of the projection and of Thompson sampling.
    pub seed: u64,
    /// Weight of the ridge penalty, above 0.
    pub ridge: f64,
    /// Factor on the weight of old rewards per new one, above 0.5 to 1.
    pub discount: f64,
    /// Probability that a confidence interval holds the expected reward, 0.5 to below 1.
    pub confidence: f64,
    /// Standard deviations of the mean by which [`Strategy::LinUcb`] is optimistic, 0 to 10;
    /// [`Strategy::Thompson`] draws with half of them.
    pub exploration: f64,
    /// Explorations that a new router may make at once, 0 to 1,000,000.
    pub warm_up: u32,
    /// Largest share of decisions that explore behind the warm-up, 0 to 1: at most this share of
    /// any number of consecutive decisions plus 16.
    pub exploration_share: f64,
    /// Decisions since the latest reward from which on none explores: who rates nothing would only
    /// get worse answers.
    pub patience: u32,
    /// Share of the deviation without data above which an arm is unsure, 0 to 1.
    pub max_uncertainty: f64,
    /// Rewards below which an arm is unsure.
    pub min_samples: u64,
    /// Probability from which a classifier's opinion counts, 0 to 1.
    pub min_opinion: f32,
    /// Formula of [`Router::reward`].
    pub reward: RewardFormula,
    /// Choice while all arms are unsure.
    pub rules: Rules,
}

impl RouterSettings {
    /// Default settings for embeddings of `embedding_dim` values.
    pub fn new(embedding_dim: usize) -> Self {
        Self {
            strategy: Strategy::LinUcb,
            embedding_dim,
            projection: MAX_PROJECTION,
            embedding_scale: 2.0,
            seed: 0,
            ridge: 1.0,
            discount: 0.9995,
            confidence: 0.9,
            exploration: 1.0,
            warm_up: 400,
            exploration_share: 0.1,
            patience: 100,
            max_uncertainty: 0.9,
            min_samples: 10,
            min_opinion: 0.6,
            reward: RewardFormula::default(),
            rules: Rules::default(),
        }
    }

    fn check(&self, arms: usize) -> Result<()> {
        let fail = |name, value: f64, range| Err(Error::Setting { name, value: value.to_string(), range });
        if !(1..=MAX_ARMS).contains(&arms) {
            return fail("number of arms", arms as f64, "1 to 256");
        }
        if !(1..=MAX_PROJECTION).contains(&self.projection) {
            return fail("projection", self.projection as f64, "1 to 64");
        }
        if self.embedding_dim == 0 {
            return fail("embedding_dim", 0.0, "above 0");
        }
        for (name, value, low, high, range) in [
            ("embedding_scale", self.embedding_scale, 1e-3, 1e3, "0.001 to 1000"),
            ("ridge", self.ridge, 1e-6, 1e6, "0.000001 to 1000000"),
            ("discount", self.discount, 0.5, 1.0, "0.5 to 1"),
            ("confidence", self.confidence, 0.5, 1.0 - 1e-9, "0.5 to below 1"),
            ("exploration", self.exploration, 0.0, 10.0, "0 to 10"),
            ("warm_up", f64::from(self.warm_up), 0.0, MAX_WARM_UP, "0 to 1000000"),
            ("exploration_share", self.exploration_share, 0.0, 1.0, "0 to 1"),
            ("max_uncertainty", self.max_uncertainty, 0.0, 1.0, "0 to 1"),
            ("min_opinion", f64::from(self.min_opinion), 0.0, 1.0, "0 to 1"),
        ] {
            if !(low..=high).contains(&value) {
                return fail(name, value, range);
            }
        }
        if self.rules.largest_arm() >= arms {
            return fail("arm of a rule", self.rules.largest_arm() as f64, "an index of the arms");
        }
        self.reward.check()
    }

    pub(super) fn regression(&self) -> Regression {
        Regression { ridge: self.ridge, discount: self.discount }
    }
}

/// Reason of a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub enum Reason {
    /// No other arm is permitted.
    OnlyArm,
    /// Largest expected reward of the arms that are sure.
    Best,
    /// As good as the best one, and preferred by the opinion.
    Tie,
    /// Exploration within its share.
    Explored,
    /// All arms are unsure, and the opinion is not.
    Opinion,
    /// All arms are unsure: the static rules decide.
    Rule,
}

/// Expected reward of one arm.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Score {
    /// Expected reward.
    pub mean: f64,
    /// Half-width of its confidence interval.
    pub width: f64,
    /// Deviation of the mean as a share of that without data, 0 to 1.
    pub uncertainty: f64,
    /// Value by which arms are explored: an upper bound or a draw.
    pub optimistic: f64,
    /// Rewards observed.
    pub samples: u64,
}

/// A decision with its explanation.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Decision {
    /// Index of the chosen arm.
    pub arm: usize,
    /// Reason of the choice.
    pub reason: Reason,
    /// Index of the arm that the static rules choose.
    pub rule_arm: usize,
    /// Scores by arm; absent for arms that are not permitted.
    pub scores: Vec<Option<Score>>,
    /// Context of the decision, for [`Router::learn`].
    pub context: Box<[f64]>,
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reason = match self.reason {
            Reason::OnlyArm => "only arm",
            Reason::Best => "best",
            Reason::Tie => "tie, by opinion",
            Reason::Explored => "explored",
            Reason::Opinion => "unsure, by opinion",
            Reason::Rule => "unsure, by rule",
        };
        write!(f, "arm {} ({reason})", self.arm)?;
        for (arm, score) in self.scores.iter().enumerate() {
            if let Some(Score { mean, width, samples, .. }) = score {
                write!(f, "; {arm}: {mean:.3} ± {width:.3} of {samples}")?;
            }
        }
        Ok(())
    }
}

/// Chooses an arm per request and learns from rewards. One router serves one tenant.
///
/// Its memory is constant: per arm, with contexts of `d` values, `d (d + 7) / 2` numbers of eight
/// bytes. Decisions keep their own context, so that nothing waits here for a reward that does not
/// come.
#[derive(Debug, Clone)]
pub struct Router {
    pub(super) settings: RouterSettings,
    pub(super) arms: Vec<Arm>,
    pub(super) models: Vec<LinearArm>,
    pub(super) observations: u64,
    /// Explorations that may be made now.
    pub(super) credit: f64,
    /// Decisions since the latest reward.
    pub(super) unrewarded: u32,
    pub(super) random: Random,
    encoder: Encoder,
    /// Standard deviations of noise in half a confidence interval.
    quantile: f64,
}

impl Router {
    /// Makes a router that has learned nothing.
    ///
    /// # Errors
    /// [`Error::Setting`] names a setting out of range.
    pub fn new(settings: RouterSettings, arms: Vec<Arm>) -> Result<Self> {
        settings.check(arms.len())?;
        let RouterSettings { embedding_dim, projection, embedding_scale, seed, .. } = settings;
        let encoder = Encoder::new(embedding_dim, projection, embedding_scale, seed);
        let model = LinearArm::new(encoder.dim(), settings.regression());
        // Bound of sub-Gaussian noise.
        let quantile = (2.0 * (2.0 / (1.0 - settings.confidence)).ln()).sqrt();
        Ok(Self {
            models: vec![model; arms.len()],
            observations: 0,
            credit: f64::from(settings.warm_up),
            unrewarded: 0,
            random: Random::new(!seed),
            encoder,
            quantile,
            settings,
            arms,
        })
    }

    /// The arms, in the order of their indices.
    pub fn arms(&self) -> &[Arm] {
        &self.arms
    }

    /// The settings.
    pub fn settings(&self) -> &RouterSettings {
        &self.settings
    }

    /// Rewards learned from, of all arms.
    pub fn observations(&self) -> u64 {
        self.observations
    }

    /// Values of a context.
    pub(super) fn dim(&self) -> usize {
        self.encoder.dim()
    }

    /// Chooses an arm among those that `permitted` accepts, by index. `opinion` has each arm's
    /// probability of success, from a [`Classifier`](super::Classifier) for example.
    ///
    /// # Errors
    /// [`Error::Dimension`] and [`Error::NotFinite`] for the embedding or the opinion,
    /// [`Error::NoArm`] if no arm is permitted. The router stays as it was.
    pub fn choose(
        &mut self,
        prompt: &Prompt<'_>,
        permitted: impl Fn(usize) -> bool,
        opinion: Option<&[f32]>,
    ) -> Result<Decision> {
        if let Some(opinion) = opinion {
            check_opinion(opinion, self.arms.len())?;
        }
        let context = self.encode(prompt)?;
        self.choose_in(context, prompt, permitted, opinion)
    }

    /// Context of a prompt.
    pub(super) fn encode(&self, prompt: &Prompt<'_>) -> Result<Box<[f64]>> {
        self.encoder.encode(prompt)
    }

    /// Part of a context that its prompt's embedding gave.
    pub(super) fn embedding_of(context: &[f64]) -> Vec<f32> {
        context.iter().skip(CHEAP_FEATURES).map(|&value| value as f32).collect()
    }

    /// As [`choose`](Self::choose), with the context of the prompt and a checked opinion.
    pub(super) fn choose_in(
        &mut self,
        context: Box<[f64]>,
        prompt: &Prompt<'_>,
        permitted: impl Fn(usize) -> bool,
        opinion: Option<&[f32]>,
    ) -> Result<Decision> {
        let rule_arm = self.settings.rules.choose(prompt, &permitted, self.arms.len()).ok_or(Error::NoArm)?;
        let scores: Vec<Option<Score>> =
            (0..self.arms.len()).map(|arm| permitted(arm).then(|| self.score(arm, &context))).collect();
        if self.credit < EXPLORATION_BURST {
            self.credit = (self.credit + self.settings.exploration_share).min(EXPLORATION_BURST);
        }
        let (arm, reason) = self.decide(&scores, rule_arm, opinion);
        self.unrewarded = self.unrewarded.saturating_add(1);
        Ok(Decision { arm, reason, rule_arm, scores, context })
    }

    fn score(&mut self, arm: usize, context: &[f64]) -> Score {
        let regression = self.settings.regression();
        let model = &self.models[arm];
        let Estimate { mean, deviation, prior, noise } =
            model.estimate(context, self.observations, regression);
        // The second term bounds the bias of the ridge penalty for weights of norm 1
        // (Abbasi-Yadkori, Pál and Szepesvári 2011).
        let width = (self.quantile * noise + self.settings.ridge.sqrt()) * deviation;
        // That bound holds for every `x`; as optimism it explores arms long known to be worse.
        let step = self.settings.exploration * noise * deviation;
        let optimistic = match self.settings.strategy {
            Strategy::LinUcb => mean + step,
            // `x' w` of weights drawn from their posterior is normal: one draw instead of `d`.
            Strategy::Thompson => mean + 0.5 * step * self.random.normal(),
        };
        Score { mean, width, uncertainty: deviation / prior, optimistic, samples: model.samples() }
    }

    fn decide(
        &mut self,
        scores: &[Option<Score>],
        rule_arm: usize,
        opinion: Option<&[f32]>,
    ) -> (usize, Reason) {
        let settings = &self.settings;
        let is_sure = |score: &Score| {
            score.samples >= settings.min_samples && score.uncertainty <= settings.max_uncertainty
        };
        if scores.iter().flatten().count() == 1 {
            return (rule_arm, Reason::OnlyArm);
        }
        let best = largest(scores, |score| is_sure(score).then_some(score.mean));
        let fallback = match (best, opinion) {
            (Some(best), opinion) => tied(scores, best, opinion, is_sure),
            (None, Some(opinion)) => by_opinion(scores, rule_arm, opinion, settings.min_opinion),
            (None, None) => (rule_arm, Reason::Rule),
        };
        let explored = largest(scores, |score| Some(score.optimistic)).unwrap_or(rule_arm);
        if explored != fallback.0 && self.credit >= 1.0 && self.unrewarded < settings.patience {
            self.credit -= 1.0;
            return (explored, Reason::Explored);
        }
        fallback
    }

    /// Reward of an outcome in -1 to 1 after `latency`, by the settings' formula.
    ///
    /// # Errors
    /// [`Error::Input`] for an outcome that is NaN or out of range.
    pub fn reward(&self, outcome: f64, latency: std::time::Duration) -> Result<f64> {
        self.settings.reward.reward(outcome, latency)
    }

    /// Learns that a decision earned `reward`, 0 to 1.
    ///
    /// # Errors
    /// [`Error::Input`] for a reward that is NaN or out of range or an unknown arm,
    /// [`Error::Dimension`] and [`Error::NotFinite`] for a context that is none of this router. The
    /// router stays as it was.
    pub fn learn(&mut self, decision: &Decision, reward: f64) -> Result<()> {
        self.learn_in(decision.arm, &decision.context, reward)
    }

    /// As [`learn`](Self::learn), with arm and context of the decision.
    pub(super) fn learn_in(&mut self, arm: usize, context: &[f64], reward: f64) -> Result<()> {
        if !(0.0..=1.0).contains(&reward) {
            return Err(Error::Input { what: "reward", value: reward, range: "0 to 1" });
        }
        if context.len() != self.dim() {
            return Err(Error::Dimension { what: "context", expected: self.dim(), got: context.len() });
        }
        // Contexts of an encoder are far below this bound.
        if !context.iter().all(|v| v.abs() <= 1e4) {
            return Err(Error::NotFinite { what: "context" });
        }
        let regression = self.settings.regression();
        let Some(model) = self.models.get_mut(arm) else {
            let value = arm as f64;
            return Err(Error::Input { what: "arm", value, range: "an index of the router's arms" });
        };
        self.observations += 1;
        self.unrewarded = 0;
        model.observe(context, reward, self.observations, regression);
        Ok(())
    }
}

fn check_opinion(opinion: &[f32], arms: usize) -> Result<()> {
    if opinion.len() != arms {
        return Err(Error::Dimension { what: "opinion", expected: arms, got: opinion.len() });
    }
    if !opinion.iter().all(|v| v.is_finite()) {
        return Err(Error::NotFinite { what: "opinion" });
    }
    Ok(())
}

/// Arm with the largest key; of equal ones the first.
fn largest(scores: &[Option<Score>], key: impl Fn(&Score) -> Option<f64>) -> Option<usize> {
    let keys = scores.iter().enumerate().filter_map(|(arm, score)| Some((arm, key(score.as_ref()?)?)));
    keys.reduce(|best, other| if other.1 > best.1 { other } else { best }).map(|(arm, _)| arm)
}

/// The best arm, or the one that the opinion prefers among those as good.
fn tied(
    scores: &[Option<Score>],
    best: usize,
    opinion: Option<&[f32]>,
    is_sure: impl Fn(&Score) -> bool,
) -> (usize, Reason) {
    let (Some(opinion), Some(top)) = (opinion, scores[best]) else { return (best, Reason::Best) };
    let is_near =
        |arm: &usize| scores[*arm].is_some_and(|score| is_sure(&score) && score.mean >= top.mean - TIE);
    let near = (0..scores.len()).filter(is_near);
    let preferred = near.fold(best, |a, b| if opinion[b] > opinion[a] { b } else { a });
    (preferred, if preferred == best { Reason::Best } else { Reason::Tie })
}

/// The arm that the opinion prefers, if its probability suffices, else that of the rules.
fn by_opinion(scores: &[Option<Score>], rule_arm: usize, opinion: &[f32], least: f32) -> (usize, Reason) {
    let permitted = (0..scores.len()).filter(|&arm| scores[arm].is_some());
    let preferred = permitted.fold(rule_arm, |a, b| if opinion[b] > opinion[a] { b } else { a });
    if preferred != rule_arm && opinion[preferred] >= least {
        (preferred, Reason::Opinion)
    } else {
        (rule_arm, Reason::Rule)
    }
}
