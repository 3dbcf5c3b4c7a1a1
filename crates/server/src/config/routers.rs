//! `[[routers]]`: names in requests behind which one of several arms answers (ADR-0094).

use std::collections::BTreeMap;

use ruvllm::KvPolicy;
use ruvllm::crates::sona::routing::MAX_ARMS;
use serde::{Deserialize, Serialize};

use super::check::{Checked, Fault, is_name, require};
use super::{Config, Seconds};

/// `[[routers]]`: a name in requests, for each of which one of its arms is chosen.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Router {
    /// Name in requests.
    pub name: String,
    /// Arm that answers where no rule holds and nothing is learned.
    pub default: String,
    /// Model whose embeddings tell prompts apart; absent: that of the default arm.
    pub embedder: Option<String>,
    /// Arms by name.
    pub arms: BTreeMap<String, Arm>,
    /// Rules, of which the first that holds decides while nothing is learned.
    pub rules: Vec<Rule>,
    /// Share of the reward that depends on the time of the answer, 0 to 1.
    pub latency_weight: f64,
    /// Time of an answer that loses half of that share.
    pub target_latency_s: Seconds,
    /// Largest share of requests that try an arm other than the best, behind the warm-up, 0 to 1.
    pub exploration_share: f64,
    /// Requests of a tenant that may try other arms at once, 0 to 1,000,000.
    pub warm_up: u32,
}

impl Default for Router {
    fn default() -> Self {
        Self {
            name: String::new(),
            default: String::new(),
            embedder: None,
            arms: BTreeMap::new(),
            rules: Vec::new(),
            latency_weight: 0.3,
            target_latency_s: Seconds::new(2),
            exploration_share: 0.1,
            warm_up: 400,
        }
    }
}

/// `[routers.arms.NAME]`: a model with adapter and KV policy.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Arm {
    /// Name of the model.
    pub model: String,
    /// Name of an adapter: one of the model's, or one that the tenant has taught.
    pub adapter: Option<String>,
    /// KV-cache type, as `--kv`; absent: the model's.
    pub kv: Option<String>,
}

/// `[[routers.rules]]`: an arm, and conditions that must all hold.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Rule {
    /// Name of the arm.
    pub arm: String,
    /// Smallest number of prompt tokens.
    pub min_tokens: Option<usize>,
    /// Largest number of prompt tokens.
    pub max_tokens: Option<usize>,
    /// Tools in the request, or none.
    pub tools: Option<bool>,
    /// A grammar or schema of the output, or none.
    pub constrained: Option<bool>,
    /// Smallest number of earlier answers in the conversation.
    pub min_turns: Option<usize>,
}

/// Ranges and names within the sections.
pub(super) fn check(routers: &[Router]) -> Checked {
    for (index, router) in routers.iter().enumerate() {
        let key = |name: &str| format!("routers[{index}].{name}");
        let Router { name, default, arms, rules, .. } = router;
        // It names a folder: `..` is none of its own.
        require(is_name(name) && !name.starts_with('.'), &key("name"), || {
            format!("{name:?} is not 1 to 64 ASCII letters, digits, `.`, `_`, `-`, the first no `.`")
        })?;
        let is_new = routers[..index].iter().all(|other| other.name != *name);
        require(is_new, &key("name"), || format!("{name:?} names two routers"))?;
        require((1..=MAX_ARMS).contains(&arms.len()), &key("arms"), || {
            format!("{} arms, expected 1 to {MAX_ARMS}; [routers.arms.NAME] is one", arms.len())
        })?;
        for (arm, Arm { model, kv, .. }) in arms {
            let key = |name: &str| key(&format!("arms.{arm}{name}"));
            require(is_name(arm), &key(""), || {
                "an arm's name is 1 to 64 ASCII letters, digits, `.`, `_`, `-`".to_owned()
            })?;
            require(!model.is_empty(), &key(".model"), || "is missing; name a model".to_owned())?;
            if let Some(kv) = kv {
                let parsed = kv.parse::<KvPolicy>();
                parsed.map_err(|error| Fault { key: key(".kv"), reason: error.to_string() })?;
            }
        }
        let known = || arms.keys().map(String::as_str).collect::<Vec<_>>().join(", ");
        require(arms.contains_key(default), &key("default"), || {
            format!("{default:?} is no arm of this router; its arms are {}", known())
        })?;
        for (rule, Rule { arm, .. }) in rules.iter().enumerate() {
            require(arms.contains_key(arm), &key(&format!("rules[{rule}].arm")), || {
                format!("{arm:?} is no arm of this router; its arms are {}", known())
            })?;
        }
        for (name, share) in
            [("latency_weight", router.latency_weight), ("exploration_share", router.exploration_share)]
        {
            require((0.0..=1.0).contains(&share), &key(name), || format!("{share} is not from 0 to 1"))?;
        }
        require(router.target_latency_s > Seconds::new(0), &key("target_latency_s"), || {
            "0 leaves no time; use a number above 0".to_owned()
        })?;
        let warm_up = router.warm_up;
        require(warm_up <= 1_000_000, &key("warm_up"), || format!("{warm_up} is not from 0 to 1000000"))?;
    }
    Ok(())
}

/// Names of models and adapters that the routers need, and that none of them has.
///
/// `others` are aliases and adapters.
pub(super) fn check_models(config: &Config, models: &[&str], others: &[&str]) -> Checked {
    for (index, router) in config.routers.iter().enumerate() {
        let key = |name: &str| format!("routers[{index}].{name}");
        let is_taken = models.iter().chain(others).any(|name| *name == router.name);
        require(!is_taken, &key("name"), || {
            format!("{:?} names a model or an adapter too; rename one", router.name)
        })?;
        let models_of_arms =
            router.arms.iter().map(|(arm, Arm { model, .. })| (format!("arms.{arm}.model"), model));
        let embedder = router.embedder.iter().map(|model| ("embedder".to_owned(), model));
        for (name, model) in models_of_arms.chain(embedder) {
            let is_known = models.contains(&model.as_str());
            require(is_known, &key(&name), || {
                format!("there is no model {model:?}; there are {}", models.join(", "))
            })?;
        }
    }
    Ok(())
}
