//! Router of one tenant behind a server: decisions that wait for their outcome, and the policies
//! that single outcomes have shown to be good.

use std::collections::VecDeque;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::arm::Arm;
use super::bits;
use super::features::Prompt;
use super::policies::{PolicyStore, SavedPolicies};
use super::router::{Decision, Router, RouterSettings};
use super::saved::SavedRouter;
use crate::error::{Error, Result};

/// Largest number of decisions that wait for their outcome; the oldest is forgotten first.
pub const MAX_OPEN: usize = 1024;
/// Largest number of policies.
const MAX_POLICIES: usize = 256;
/// Cosine similarity of embeddings from which a policy holds for a prompt.
const SIMILAR: f32 = 0.95;
/// Quality from which on an outcome makes a policy.
const LEARNED_QUALITY: f64 = 0.7;
/// Version of [`SavedTenantRouter`].
const VERSION: u32 = 1;

/// A [`Router`] with what lies between a request and its feedback.
///
/// The router needs some ten rewards of an arm until it is sure; a [`PolicyStore`] bridges that
/// time: an arm whose answer was good is preferred for prompts that are nearly the same, as the
/// router's opinion while it is unsure, and between arms that are as good.
///
/// Memory: that of the router, and at most 1,024 contexts and 256 embeddings of up to 64 values.
#[derive(Debug)]
pub struct TenantRouter {
    tenant: String,
    embedder: String,
    router: Router,
    policies: PolicyStore<Policy>,
    open: VecDeque<OpenDecision>,
    figures: Vec<ArmFigures>,
}

/// An arm with the quality of its latest answer.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Policy {
    arm: u32,
    quality: f32,
}

/// A decision whose outcome is not known.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct OpenDecision {
    request: String,
    arm: u32,
    #[serde(with = "bits")]
    context: Vec<f64>,
    /// Time of the answer, once it is complete.
    latency: Option<Duration>,
}

/// Counts of an arm.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct ArmFigures {
    /// Decisions for it.
    pub decisions: u64,
    /// Rewards of these.
    pub rewards: u64,
    /// Sum of the rewards, each 0 to 1.
    pub reward_sum: f64,
}

impl ArmFigures {
    /// Mean reward; absent without one.
    pub fn mean_reward(&self) -> Option<f64> {
        (self.rewards > 0).then(|| self.reward_sum / self.rewards as f64)
    }
}

/// A decision that was rewarded.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rewarded {
    /// Index of its arm.
    pub arm: usize,
    /// The reward, 0 to 1.
    pub reward: f64,
}

impl TenantRouter {
    /// Makes a router that has learned nothing, for embeddings of the model `embedder`, by name or
    /// digest.
    ///
    /// # Errors
    /// As [`Router::new`].
    pub fn new(
        tenant: impl Into<String>,
        embedder: impl Into<String>,
        settings: RouterSettings,
        arms: Vec<Arm>,
    ) -> Result<Self> {
        Self::with_router(tenant.into(), embedder.into(), Router::new(settings, arms)?)
    }

    fn with_router(tenant: String, embedder: String, router: Router) -> Result<Self> {
        let settings = router.settings();
        let dim = settings.embedding_dim.min(settings.projection);
        Ok(Self {
            tenant,
            embedder,
            policies: PolicyStore::new(dim, MAX_POLICIES, 1)?,
            open: VecDeque::new(),
            figures: vec![ArmFigures::default(); router.arms().len()],
            router,
        })
    }

    /// The router.
    pub fn router(&self) -> &Router {
        &self.router
    }

    /// Model of the embeddings, as the caller names it.
    pub fn embedder(&self) -> &str {
        &self.embedder
    }

    /// Values of an embedding.
    pub fn embedding_dim(&self) -> usize {
        self.router.settings().embedding_dim
    }

    /// Counts by arm.
    pub fn figures(&self) -> &[ArmFigures] {
        &self.figures
    }

    /// Number of policies of single outcomes.
    pub fn policies(&self) -> usize {
        self.policies.len(&self.tenant)
    }

    /// Chooses an arm for a request among those that `permitted` accepts, and keeps the decision
    /// for its outcome. A request that is decided again replaces its decision.
    ///
    /// # Errors
    /// As [`Router::choose`].
    pub fn decide(
        &mut self,
        request: &str,
        prompt: &Prompt<'_>,
        permitted: impl Fn(usize) -> bool,
    ) -> Result<Decision> {
        let context = self.router.encode(prompt)?;
        let embedding = Router::embedding_of(&context);
        let found = self.policies.nearest(&self.tenant, &embedding, SIMILAR)?;
        let opinion = found.map(|found| {
            let mut opinion = vec![0.0; self.figures.len()];
            let preferred = opinion.get_mut(found.policy.arm as usize);
            preferred.into_iter().for_each(|value| *value = found.policy.quality * found.similarity);
            opinion
        });
        let decision = self.router.choose_in(context, prompt, permitted, opinion.as_deref())?;
        self.figures[decision.arm].decisions += 1;
        self.open.retain(|open| open.request != request);
        if self.open.len() >= MAX_OPEN {
            self.open.pop_front();
        }
        self.open.push_back(OpenDecision {
            request: request.to_owned(),
            arm: decision.arm as u32,
            context: decision.context.to_vec(),
            latency: None,
        });
        Ok(decision)
    }

    /// Notes that the answer of a request is complete; false for a request without a decision.
    pub fn finish(&mut self, request: &str, latency: Duration) -> bool {
        // The latest requests end first, most of the time.
        let open = self.open.iter_mut().rev().find(|open| open.request == request);
        open.map(|open| open.latency = Some(latency)).is_some()
    }

    /// Forgets the decision of a request that has failed: it says nothing about the arm's answers.
    pub fn abandon(&mut self, request: &str) {
        self.open.retain(|open| open.request != request);
    }

    /// Arm of a request that is complete and waits for its outcome.
    pub fn answered(&self, request: &str) -> Option<usize> {
        let mut open = self.open.iter().filter(|open| open.latency.is_some());
        open.find(|open| open.request == request).map(|open| open.arm as usize)
    }

    /// Learns from the outcome of a request, -1 to 1; each counts once. `None` for a request
    /// without a decision, that is not complete, or that has had its outcome.
    ///
    /// # Errors
    /// [`Error::Input`] for an outcome that is NaN or out of range. Nothing is learned then.
    pub fn learn(&mut self, request: &str, outcome: f64) -> Result<Option<Rewarded>> {
        let Some(place) = self.open.iter().position(|open| open.request == request) else {
            return Ok(None);
        };
        let OpenDecision { arm, context, latency, .. } = &self.open[place];
        let (arm, Some(latency)) = (*arm, *latency) else { return Ok(None) };
        let reward = self.router.reward(outcome, latency)?;
        self.router.learn_in(arm as usize, context, reward)?;
        let quality = (outcome + 1.0) / 2.0;
        let embedding = Router::embedding_of(context);
        let known = self.policies.nearest(&self.tenant, &embedding, SIMILAR)?;
        // A bad answer says something about its own arm alone.
        if quality >= LEARNED_QUALITY || known.is_some_and(|found| found.policy.arm == arm) {
            self.policies.insert(&self.tenant, &embedding, Policy { arm, quality: quality as f32 })?;
        }
        self.open.remove(place);
        let figures = &mut self.figures[arm as usize];
        figures.rewards += 1;
        figures.reward_sum += reward;
        Ok(Some(Rewarded { arm: arm as usize, reward }))
    }

    /// State of the router, for any format of serde.
    pub fn save(&self) -> SavedTenantRouter {
        SavedTenantRouter {
            version: VERSION,
            embedder: self.embedder.clone(),
            embedding_dim: self.embedding_dim(),
            router: self.router.save(&self.tenant),
            policies: self.policies.save(),
            open: self.open.clone(),
            figures: self.figures.clone(),
        }
    }

    /// Restores the router of `tenant`.
    ///
    /// # Errors
    /// As [`Router::load`].
    pub fn load(
        tenant: &str,
        settings: RouterSettings,
        arms: Vec<Arm>,
        saved: SavedTenantRouter,
    ) -> Result<Self> {
        let what = "saved router";
        if saved.version != VERSION {
            return Err(Error::Version { what, found: saved.version, supported: VERSION });
        }
        let router = Router::load(settings, arms, saved.router, tenant)?;
        let (arms, context) = (router.arms().len(), router.dim());
        let mut this = Self::with_router(tenant.to_owned(), saved.embedder, router)?;
        this.policies.restore(saved.policies)?;
        let is_arm = |arm: u32| (arm as usize) < arms;
        let is_valid = saved.figures.len() == arms
            && saved.open.len() <= MAX_OPEN
            && saved.open.iter().all(|open| is_arm(open.arm) && open.context.len() == context)
            && saved.figures.iter().all(|figures| figures.reward_sum.is_finite());
        if !is_valid {
            return Err(Error::Damaged { what });
        }
        (this.open, this.figures) = (saved.open, saved.figures);
        Ok(this)
    }
}

/// State of a [`TenantRouter`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedTenantRouter {
    version: u32,
    embedder: String,
    embedding_dim: usize,
    router: SavedRouter,
    policies: SavedPolicies<Policy>,
    open: VecDeque<OpenDecision>,
    figures: Vec<ArmFigures>,
}

impl SavedTenantRouter {
    /// Values of an embedding, which [`RouterSettings::embedding_dim`] has to be.
    pub fn embedding_dim(&self) -> usize {
        self.embedding_dim
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::{Reason, Rules};

    const MODELS: [&str; 3] = ["a", "b", "c"];

    fn settings() -> RouterSettings {
        let rules = Rules { otherwise: 1, ..Rules::default() };
        RouterSettings { rules, warm_up: 0, exploration_share: 0.0, ..RouterSettings::new(2) }
    }

    fn router() -> TenantRouter {
        TenantRouter::new("team", "base", settings(), MODELS.map(Arm::model).into()).expect("valid settings")
    }

    fn prompt(embedding: &[f32]) -> Prompt<'_> {
        Prompt { embedding, tokens: 20, has_tools: false, is_constrained: false, turns: 0 }
    }

    /// Decides with one arm permitted, and gives the outcome.
    fn teach(router: &mut TenantRouter, id: &str, embedding: &[f32], arm: usize, outcome: f64) {
        router.decide(id, &prompt(embedding), |other| other == arm).expect("a decision");
        assert!(router.finish(id, Duration::from_secs(1)));
        let rewarded = router.learn(id, outcome).expect("an outcome").expect("its reward");
        assert_eq!(rewarded.arm, arm);
    }

    #[test]
    fn one_good_answer_makes_a_policy_and_a_bad_one_ends_it() {
        let mut router = router();
        let decide = |router: &mut TenantRouter, embedding: &[f32]| {
            let decision = router.decide("x", &prompt(embedding), |_| true).expect("a decision");
            (decision.arm, decision.reason)
        };
        assert_eq!(decide(&mut router, &[1.0, 0.0]), (1, Reason::Rule));
        teach(&mut router, "1", &[1.0, 0.0], 2, 1.0);
        assert_eq!(decide(&mut router, &[1.0, 0.05]), (2, Reason::Opinion));
        assert_eq!(decide(&mut router, &[0.0, 1.0]), (1, Reason::Rule), "another kind of prompt");
        teach(&mut router, "2", &[1.0, 0.0], 0, -1.0);
        assert_eq!(decide(&mut router, &[1.0, 0.0]), (2, Reason::Opinion), "another arm failed");
        teach(&mut router, "3", &[1.0, 0.0], 2, -1.0);
        assert_eq!(decide(&mut router, &[1.0, 0.0]), (1, Reason::Rule));
        assert_eq!(router.policies(), 1);
    }

    #[test]
    fn outcomes_count_once_and_only_of_complete_requests() {
        let mut router = router();
        router.decide("1", &prompt(&[1.0, 0.0]), |_| true).expect("a decision");
        assert_eq!((router.answered("1"), router.learn("1", 1.0).expect("valid")), (None, None));
        assert!(router.finish("1", Duration::ZERO) && !router.finish("2", Duration::ZERO));
        assert_eq!(router.answered("1"), Some(1));
        let error = router.learn("1", f64::NAN).expect_err("no outcome").to_string();
        assert_eq!(error, "outcome is NaN; it must be -1 to 1");
        assert_eq!(router.learn("1", 1.0).expect("valid"), Some(Rewarded { arm: 1, reward: 1.0 }));
        assert_eq!((router.answered("1"), router.learn("1", 1.0).expect("valid")), (None, None));
        let figures = ArmFigures { decisions: 1, rewards: 1, reward_sum: 1.0 };
        assert_eq!((router.figures()[1], figures.mean_reward()), (figures, Some(1.0)));
        router.decide("3", &prompt(&[1.0, 0.0]), |_| true).expect("a decision");
        router.abandon("3");
        assert!(!router.finish("3", Duration::ZERO));
    }

    #[test]
    fn open_decisions_are_bounded() {
        let mut router = router();
        for id in 0..=MAX_OPEN {
            router.decide(&id.to_string(), &prompt(&[1.0, 0.0]), |_| true).expect("a decision");
        }
        assert!(!router.finish("0", Duration::ZERO) && router.finish("1", Duration::ZERO));
        assert_eq!(router.open.len(), MAX_OPEN);
        router.decide("1", &prompt(&[1.0, 0.0]), |_| true).expect("a decision");
        assert_eq!((router.open.len(), router.answered("1")), (MAX_OPEN, None));
    }

    #[test]
    fn restored_routers_go_on_and_foreign_ones_are_refused() {
        let mut router = router();
        teach(&mut router, "1", &[1.0, 0.0], 2, 1.0);
        router.decide("open", &prompt(&[0.6, 0.8]), |_| true).expect("a decision");
        router.finish("open", Duration::from_millis(700));
        let text = serde_json::to_string(&router.save()).expect("JSON");
        let saved = || serde_json::from_str::<SavedTenantRouter>(&text).expect("its state");
        let load = |tenant: &str, count: usize, saved| {
            TenantRouter::load(
                tenant,
                settings(),
                MODELS[..count].iter().copied().map(Arm::model).collect(),
                saved,
            )
        };
        let mut restored = load("team", 3, saved()).expect("its own state");
        assert_eq!(restored.save(), router.save());
        assert_eq!(restored.learn("open", 0.5).expect("valid"), router.learn("open", 0.5).expect("valid"));
        assert_eq!(restored.save(), router.save());
        assert!(matches!(load("other", 3, saved()), Err(Error::Foreign { of: "tenant", .. })));
        assert!(matches!(load("team", 2, saved()), Err(Error::Foreign { .. })));
        let mut damaged = saved();
        damaged.open[0].arm = 3;
        assert!(matches!(load("team", 3, damaged), Err(Error::Damaged { .. })));
        let mut newer = saved();
        newer.version = 2;
        assert!(matches!(load("team", 3, newer), Err(Error::Version { found: 2, .. })));
    }
}
