//! Routing: model, adapter, KV policy and MicroLoRA per request, and named routes.
//!
//! - [`Router`]: a contextual bandit (LinUCB or linear Thompson sampling) over [`Arm`]s, with
//!   static [`Rules`] beneath it. `linear.rs` and `inverse.rs` hold its regression.
//! - [`Classifier`]: a FastGRNN over the embeddings of a prompt's chunks, which predicts each
//!   arm's probability of success: an opinion for the router.
//! - [`SemanticRouter`]: named routes and agents by examples and keywords.
//! - [`PolicyStore`]: policies of tenants, found again by embedding.
//! - [`TenantRouter`]: a router with the decisions that wait for their outcome and the policies of
//!   single outcomes; `file.rs` keeps it on the disk.
//! - [`simulated`]: worlds in which the regret of a router is known.

mod arm;
pub(crate) mod bits;
mod classifier;
mod features;
#[cfg(feature = "store")]
mod file;
mod inverse;
mod linear;
mod policies;
mod reward;
mod router;
mod saved;
mod semantic;
pub mod simulated;
mod tenant;
#[cfg(test)]
mod tests;
pub(crate) mod vector;

pub use arm::{Arm, Condition, Rules};
pub use classifier::{Classifier, ClassifierSettings, SavedClassifier};
pub use features::{MAX_PROJECTION, Prompt};
pub use policies::{Found, PolicyStore, SavedPolicies};
pub use reward::RewardFormula;
pub use router::{Decision, MAX_ARMS, Reason, Router, RouterSettings, Score, Strategy};
pub use saved::{ROUTER_VERSION, SavedRouter};
pub use semantic::{
    ExactScan, Nearest, Neighbour, NoRoute, Ranked, Route, Routed, SemanticRouter, SemanticSettings,
};
pub use tenant::{ArmFigures, MAX_OPEN, Rewarded, SavedTenantRouter, TenantRouter};
