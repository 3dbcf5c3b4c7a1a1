//! Routers: names behind which one of several arms answers a request (ADR-0094).
//!
//! An arm is a model with adapter and KV policy. Static rules choose it; for tenants that learn, a
//! bandit of their own does, as soon as their feedback has shown which arm is better.

mod choose;
mod tenants;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use ruvllm::KvPolicy;
use ruvllm::crates::sona::Error as SonaError;
use ruvllm::crates::sona::routing::{
    self, ArmFigures, Condition, RewardFormula, RouterSettings, Rules, Strategy,
};

use self::tenants::Tenants;
use crate::config::{Config, ConfigError, Router};
use crate::models::ModelEntry;

/// A model with adapter and KV policy.
#[derive(Debug, Clone)]
pub(crate) struct Arm {
    pub(crate) name: Arc<str>,
    pub(crate) model: String,
    pub(crate) adapter: Option<String>,
    pub(crate) kv: Option<KvPolicy>,
}

/// The routers of a server.
#[derive(Default)]
pub(crate) struct Routers(Vec<Arc<ModelRouter>>);

/// One router with what each tenant has taught it.
pub(crate) struct ModelRouter {
    name: Arc<str>,
    /// Arms in the order of their names.
    arms: Vec<Arm>,
    rules: Rules,
    /// Name of the model whose embeddings tell prompts apart.
    embedder: String,
    /// Settings of tenants' routers but for the embedding.
    settings: RouterSettings,
    /// Folder of what tenants teach; `None` if nothing learns.
    folder: Option<PathBuf>,
    tenants: Mutex<Tenants>,
    /// Held while files are written or removed, so that what was forgotten stays so.
    files: Mutex<()>,
}

/// A router as its tenant sees it.
pub(crate) struct RouterFigures {
    pub(crate) arms: Vec<(Arm, ArmFigures)>,
    pub(crate) default: Arc<str>,
    pub(crate) policies: usize,
}

/// Reward of an arm.
pub(crate) struct ArmReward {
    pub(crate) router: Arc<str>,
    pub(crate) arm: Arc<str>,
    pub(crate) reward: f64,
}

/// Checks the names of routers against those of these models.
///
/// # Errors
/// [`ConfigError::Invalid`].
pub(crate) fn check(config: &Config, models: &[ModelEntry]) -> Result<(), ConfigError> {
    let names: Vec<&str> = models.iter().map(|model| model.name.as_str()).collect();
    let aliases = models.iter().flat_map(|model| &model.aliases);
    let adapters = models.iter().flat_map(|model| model.adapters.iter().map(|(name, _)| name));
    config.check_routers(&names, &aliases.chain(adapters).map(String::as_str).collect::<Vec<_>>())
}

/// The models with what arms need: the KV policies that requests name, and the name of a router as
/// one of its default model, for requests that generate nothing.
pub(crate) fn with_arms(mut models: Vec<ModelEntry>, config: &Config) -> Vec<ModelEntry> {
    for router in config.routers.iter().map(|router| ModelRouter::new(router, None)) {
        for arm in &router.arms {
            let Some(model) = models.iter_mut().find(|model| model.name == arm.model) else { continue };
            let policies = &mut model.options.request_kv;
            policies.extend(arm.kv.filter(|kv| !policies.contains(kv)));
        }
        let default = models.iter_mut().find(|model| model.name == router.default_arm().model);
        default.into_iter().for_each(|model| model.aliases.push(router.name.to_string()));
    }
    models
}

impl Routers {
    /// The routers of a checked configuration.
    pub(crate) fn new(config: &Config) -> Self {
        let folder = config.learning.folder.as_deref();
        Self(config.routers.iter().map(|router| Arc::new(ModelRouter::new(router, folder))).collect())
    }

    /// All routers.
    pub(crate) fn all(&self) -> &[Arc<ModelRouter>] {
        &self.0
    }

    /// The router of a name.
    pub(crate) fn find(&self, name: &str) -> Option<&Arc<ModelRouter>> {
        self.0.iter().find(|router| &*router.name == name)
    }

    /// The router that has decided a request of a tenant, with the arm that has answered it, unless
    /// the outcome is known already.
    pub(crate) fn answered(&self, tenant: &str, request: &str) -> Option<(Arc<ModelRouter>, Arm)> {
        self.0.iter().find_map(|router| {
            let mut tenants = router.tenants.lock();
            let known = router.known(&mut tenants, tenant).inspect_err(|error| router.fault(tenant, error));
            let arm = known.ok()??.router.answered(request)?;
            Some((Arc::clone(router), router.arms[arm].clone()))
        })
    }

    /// Forgets what a tenant has taught.
    ///
    /// # Errors
    /// [`SonaError::File`] for a file that cannot be removed.
    pub(crate) fn forget(&self, tenant: &str) -> Result<(), SonaError> {
        self.0.iter().try_for_each(|router| router.forget(tenant))
    }

    /// Writes what has changed, of all routers, every `interval`.
    pub(crate) async fn save_changed(&self, interval: Duration) {
        if self.0.iter().all(|router| router.folder.is_none()) {
            return;
        }
        loop {
            tokio::time::sleep(interval).await;
            for router in &self.0 {
                let router = Arc::clone(router);
                let _ = tokio::task::spawn_blocking(move || router.save()).await;
            }
        }
    }

    /// Writes what has changed now.
    pub(crate) fn save(&self) {
        self.0.iter().for_each(|router| router.save());
    }
}

impl ModelRouter {
    fn new(config: &Router, folder: Option<&Path>) -> Self {
        let arms: Vec<Arm> = config.arms.iter().map(|(name, arm)| Arm::new(name, arm)).collect();
        // The configuration was checked: all names are those of arms.
        let index = |name: &str| arms.iter().position(|arm| &*arm.name == name).unwrap_or(0);
        let rules = config.rules.iter().map(|rule| {
            let condition = Condition {
                min_tokens: rule.min_tokens,
                max_tokens: rule.max_tokens,
                has_tools: rule.tools,
                is_constrained: rule.constrained,
                min_turns: rule.min_turns,
            };
            (condition, index(&rule.arm))
        });
        let rules = Rules { rules: rules.collect(), otherwise: index(&config.default) };
        let reward = RewardFormula {
            latency_weight: config.latency_weight,
            target: config.target_latency_s.duration(),
        };
        // Rewards come long after their decisions: Thompson sampling spreads these meanwhile, where
        // LinUCB would give all of them to one arm.
        let settings = RouterSettings {
            strategy: Strategy::Thompson,
            warm_up: config.warm_up,
            exploration_share: config.exploration_share,
            reward,
            rules: rules.clone(),
            ..RouterSettings::new(1)
        };
        Self {
            name: config.name.as_str().into(),
            embedder: config.embedder.clone().unwrap_or_else(|| arms[rules.otherwise].model.clone()),
            folder: folder.map(|folder| folder.join("routers").join(&config.name)),
            arms,
            rules,
            settings,
            tenants: Mutex::default(),
            files: Mutex::default(),
        }
    }

    /// Name in requests.
    pub(crate) fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// The arm without rules.
    pub(crate) fn default_arm(&self) -> &Arm {
        &self.arms[self.rules.otherwise]
    }

    /// Arms for the bandit, which are told apart by their names.
    fn bandit_arms(&self) -> Vec<routing::Arm> {
        let arm = |arm: &Arm| routing::Arm {
            model: arm.name.to_string(),
            adapter: arm.adapter.clone(),
            kv_policy: arm.kv.as_ref().map(ToString::to_string),
            micro_lora: false,
        };
        self.arms.iter().map(arm).collect()
    }
}

impl Arm {
    fn new(name: &str, config: &crate::config::Arm) -> Self {
        Self {
            name: name.into(),
            model: config.model.clone(),
            adapter: config.adapter.clone(),
            // The configuration was checked.
            kv: config.kv.as_deref().and_then(|kv| kv.parse().ok()),
        }
    }
}
