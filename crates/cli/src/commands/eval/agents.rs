//! Commands that measure routing to agents, and the embeddings beneath it.

use clap::Args;

use super::routing::{self, CasesArgs, Parts};
use crate::error::Result;

const ROUTING_HELP: &str = "\
A router is taught 8 texts for each of 13 agents and routes 104 others. Routers: keywords alone; examples by the
similarity of embeddings; both; and the same with hashed words, which know no meaning, in place of the model. A route
with an equal score counts as ranked above the right one. Latency is that of routing without the embedding.

--data FILE has cases of your own: {agents: [{name, description, keywords, train}], outside_train, outside_test, cases:
[{text, agent, not, form, difficulty}]}; not is the agent that a case is most easily mistaken for, its hard negative.

JSON: {model, agents, cases, routers: [{router, accuracy, top3_accuracy, mrr, ndcg_at_3, hard_negative_accuracy,
hard_negative_margin, coverage, accuracy_of_routed, outside_rejected, by_agent, by_form, by_difficulty, latency,
embedding_latency}]}

Examples:
  ruvllm eval routing
  ruvllm eval routing --model all-MiniLM-L6-v2 --json";

const EMBEDDING_HELP: &str = "\
Each test text looks for the train texts of its agent: nearest right, among three, mean reciprocal rank, NDCG of ten;
clusters of all texts: purity by k-means, silhouette; hard negatives: nearer to its own agent's mean than to that of the
agent that it is most easily mistaken for, and by how much. Latency is that of embedding a text. --data as for
`ruvllm eval routing`.

JSON: {model, agents, cases, embeddings: [{embedding, dim, cases, nearest_accuracy, top3_accuracy, mrr, ndcg_at_10,
purity, silhouette, hard_negative_accuracy, hard_negative_margin, latency}]}

Examples:
  ruvllm eval embedding
  ruvllm eval embedding --model all-MiniLM-L6-v2";

const FULL_HELP: &str = "\
`ruvllm eval routing` and `ruvllm eval embedding` in one.

JSON: {model, agents, cases, routers, embeddings} as those commands print them

Examples:
  ruvllm eval full
  ruvllm eval full --data cases.json --json";

/// Accuracy of routing requests to agents
#[derive(Debug, Args)]
#[command(after_help = ROUTING_HELP)]
pub(crate) struct RoutingArgs {
    #[command(flatten)]
    cases: CasesArgs,
}

/// Quality of embeddings: retrieval, clusters, hard negatives
#[derive(Debug, Args)]
#[command(after_help = EMBEDDING_HELP)]
pub(crate) struct EmbeddingArgs {
    #[command(flatten)]
    cases: CasesArgs,
}

/// Routing and embeddings
#[derive(Debug, Args)]
#[command(after_help = FULL_HELP)]
pub(crate) struct FullArgs {
    #[command(flatten)]
    cases: CasesArgs,
}

pub(crate) fn routing(args: &RoutingArgs, json: bool) -> Result<()> {
    routing::run(&args.cases, Parts::Routing, json)
}

pub(crate) fn embedding(args: &EmbeddingArgs, json: bool) -> Result<()> {
    routing::run(&args.cases, Parts::Embedding, json)
}

pub(crate) fn full(args: &FullArgs, json: bool) -> Result<()> {
    routing::run(&args.cases, Parts::Full, json)
}
