//! Evaluation of routing and embeddings on a labelled set of texts.
//!
//! [`evaluate_routing`] teaches a [`SemanticRouter`](crate::routing::SemanticRouter) the train
//! split of a [`DataSet`] and measures the test split; [`evaluate_embedding`] measures the
//! embeddings alone. Both work over any [`Embed`](crate::model::Embed).

mod data;
mod embedding;
mod metrics;
mod routing;
#[cfg(test)]
mod tests;

pub use data::{Agent, Case, DataSet, Difficulty, Example, Form};
pub use embedding::{EmbeddingReport, evaluate_embedding};
pub use metrics::{Latency, ndcg, purity, reciprocal_rank, silhouette};
pub use routing::{RoutingReport, Share, evaluate_routing};
