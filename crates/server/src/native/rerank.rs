//! `POST /v1/rerank`, with the fields of Jina's and Cohere's interfaces.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use ruvllm::{RankedDocument, RerankRequest};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::api_error::ApiError;
use crate::app::App;
use crate::body::{JsonBytes, parse};
use crate::generation::{Endpoint, Ticket};

/// A query and documents to rank.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct RerankBody {
    pub(crate) model: Option<String>,
    query: String,
    documents: Vec<RerankDocument>,
    /// Instruction that says which documents are relevant, for models that take one; an addition.
    instruction: Option<String>,
    /// Maximum number of results; default: all documents.
    top_n: Option<usize>,
    /// Adds the text of each document.
    return_documents: Option<bool>,
    /// Gives the model's outputs in place of scores from 0 to 1; an addition.
    raw_scores: Option<bool>,
}

/// Text of a document.
#[derive(Debug, Clone, Deserialize, Serialize, ToSchema)]
#[serde(untagged, expecting = "expected a text or an object with a `text`")]
pub(crate) enum RerankDocument {
    Text(String),
    Object(RerankDocumentText),
}

/// A document as an object.
#[derive(Debug, Clone, Deserialize, Serialize, ToSchema)]
pub(crate) struct RerankDocumentText {
    text: String,
}

/// The ranking.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RerankReply {
    object: &'static str,
    model: String,
    /// The most relevant first.
    results: Vec<RerankResult>,
    usage: RerankUsage,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RerankResult {
    index: usize,
    relevance_score: f32,
    #[serde(skip_serializing_if = "Option::is_none")]
    document: Option<RerankDocumentText>,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RerankUsage {
    prompt_tokens: usize,
    total_tokens: usize,
}

impl RerankDocument {
    fn into_text(self) -> String {
        match self {
            Self::Text(text) | Self::Object(RerankDocumentText { text }) => text,
        }
    }
}

/// Ranks documents by their relevance to a query.
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    mut ticket: Ticket,
    JsonBytes(body): JsonBytes,
) -> Result<Json<RerankReply>, ApiError> {
    ticket.set_endpoint(Endpoint::Rerank);
    ticket.set_request(&body, &["query", "documents", "instruction"]);
    let ranked = match parse::<RerankBody>(&body) {
        Ok(request) => rank(&app, &mut ticket, request).await,
        Err(error) => Err(error),
    };
    let (mut ticket, reply) = ticket.check(ranked)?;
    ticket.set_prompt_tokens(reply.usage.total_tokens);
    ticket.set_complete();
    Ok(Json(reply))
}

/// Checks a request and ranks its documents.
async fn rank(app: &App, ticket: &mut Ticket, body: RerankBody) -> Result<RerankReply, ApiError> {
    let (count, most) = (body.documents.len(), app.limits().items);
    if !(1..=most).contains(&count) {
        let message = format!("there are {count} documents, expected 1 to {most}");
        return Err(ApiError::invalid_param("documents", message));
    }
    let chosen = app.models.choose(body.model.as_deref()).await?;
    ticket.set_model(chosen.model.name());
    if chosen.adapter.is_some() {
        return Err(ApiError::invalid_param("model", "documents are ranked without adapters"));
    }
    let texts: Vec<String> = body.documents.into_iter().map(RerankDocument::into_text).collect();
    let shown = body.return_documents.unwrap_or(false).then(|| texts.clone());
    let request =
        RerankRequest::new(body.query, texts).with_instruction(body.instruction).with_top_n(body.top_n);
    let ranked = chosen.model.rerank(request).await;
    let ranked = ranked.map_err(|error| error.renamed(&[("input", "documents")]))?;
    let raw = body.raw_scores.unwrap_or(false);
    let result = |document: RankedDocument| RerankResult {
        index: document.index,
        relevance_score: if raw { document.logit } else { document.score() },
        document: shown.as_ref().map(|texts| RerankDocumentText { text: texts[document.index].clone() }),
    };
    Ok(RerankReply {
        object: "list",
        model: chosen.model.name().to_string(),
        results: ranked.results.into_iter().map(result).collect(),
        usage: RerankUsage { prompt_tokens: ranked.tokens, total_tokens: ranked.tokens },
    })
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;

    use axum::Router;
    use ruvllm::{EngineOptions, ModelSource};
    use serde_json::{Value, json};

    use crate::app::{App, RequestLimits};
    use crate::models::{ModelEntry, ModelSet};
    use crate::testing::{Reply, built_in, router_of, send_to};

    /// A reranker, an encoder without a head, and the built-in model.
    fn router() -> Router {
        static ROUTER: OnceLock<Router> = OnceLock::new();
        let make = || {
            let options = EngineOptions::default().with_threads(1).with_kv_budget(64 << 20);
            let source = |path: &str| ModelSource::Path(ruvllm_testkit::model_data(path));
            let entries = [
                ("ranker", source("rerank/bert")),
                ("decoder", source("rerank/qwen3")),
                ("encoder", source("encoder/bert")),
                ("base", built_in()),
            ];
            let entries = entries.map(|(name, source)| ModelEntry::new(name, source, options.clone()));
            router_of(App::new(ModelSet::new(entries.into(), None), RequestLimits::default()))
        };
        ROUTER.get_or_init(make).clone()
    }

    fn ask(more: Value) -> Reply {
        let documents = ["The cat sat on the mat.", "A turtle told a story about the world.", ""];
        let mut body = json!({"model": "ranker", "query": "where did the cat sit", "documents": documents});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        send_to(router(), "POST", "/v1/rerank", Some(body))
    }

    /// Indices and scores.
    fn results(reply: &Reply) -> Vec<(u64, f64)> {
        let reply = reply.json();
        let result =
            |result: &Value| (result["index"].as_u64().unwrap(), result["relevance_score"].as_f64().unwrap());
        reply["results"].as_array().unwrap().iter().map(result).collect()
    }

    #[test]
    fn documents_are_ranked_with_scores_of_the_reference() {
        // Logits of `expected.json` beside the model.
        let logits =
            [(1, 0.212_461_078_529_756_74), (2, -0.308_030_573_312_386_7), (0, -0.686_765_267_867_226_5)];
        let reply = ask(json!({}));
        assert_eq!(reply.status, 200, "{}", reply.text);
        for ((index, score), (place, logit)) in results(&reply).into_iter().zip(logits) {
            let expected = 1.0 / (1.0 + f64::exp(-logit));
            assert!(index == place && (score - expected).abs() < 1e-5, "{}", reply.text);
        }
        let usage = json!({"prompt_tokens": 50, "total_tokens": 50});
        assert_eq!((&reply.json()["usage"], &reply.json()["model"]), (&usage, &json!("ranker")));
        assert!(reply.json()["results"][0].get("document").is_none());
        for ((_, score), (_, logit)) in results(&ask(json!({"raw_scores": true}))).into_iter().zip(logits) {
            assert!((score - logit).abs() < 1e-5, "{score}");
        }
    }

    #[test]
    fn the_best_come_with_their_texts() {
        let documents =
            json!([{"text": "The cat sat on the mat."}, "A turtle told a story about the world."]);
        let reply = ask(json!({"documents": documents, "top_n": 1, "return_documents": true}));
        assert_eq!(reply.status, 200, "{}", reply.text);
        assert_eq!(results(&reply).len(), 1);
        let text = "A turtle told a story about the world.";
        assert_eq!(reply.json()["results"][0]["document"], json!({"text": text}));
        assert_eq!(results(&ask(json!({"top_n": 10}))).len(), 3);
    }

    #[test]
    fn decoders_take_an_instruction() {
        // Scores of `expected.json` beside the model; keys and values of 16 bits or less.
        let reply = ask(json!({"model": "decoder"}));
        assert_eq!(reply.status, 200, "{}", reply.text);
        let expected = [(2, 0.633_758_801), (1, 0.616_191_465), (0, 0.083_257_669)];
        for ((index, score), (place, expected)) in results(&reply).into_iter().zip(expected) {
            assert!(index == place && (score - expected).abs() < 1e-2, "{}", reply.text);
        }
        let told = ask(json!({"model": "decoder", "instruction": "Find a story of an animal"}));
        assert_eq!(told.status, 200, "{}", told.text);
        assert_ne!(results(&told), results(&reply));
    }

    #[test]
    fn faults_are_named() {
        for (fields, param) in [
            (json!({"documents": []}), "documents"),
            (json!({"documents": "text"}), "documents"),
            (json!({"documents": [{"title": "a"}]}), "documents"),
            (json!({"documents": vec!["a"; 5000]}), "documents"),
            (json!({"query": " "}), "query"),
            (json!({"query": "cat ".repeat(100)}), "query"),
            (json!({"query": 3}), "query"),
            (json!({"top_n": 0}), "top_n"),
            (json!({"instruction": "find"}), "instruction"),
            (json!({"model": "decoder", "query": "cat ".repeat(400)}), "query"),
            (json!({"model": "decoder", "instruction": 1}), "instruction"),
            (json!({"model": "base"}), "model"),
            (json!({"model": "encoder"}), "model"),
        ] {
            let reply = ask(fields.clone());
            assert_eq!(reply.status, 400, "{fields}: {}", reply.text);
            let found = reply.json()["error"]["param"].as_str().unwrap_or_default().to_owned();
            assert!(found.starts_with(param), "{fields}: {}", reply.text);
        }
        let reply = ask(json!({"model": "base"}));
        assert!(reply.text.contains("is no reranker: it generates text"), "{}", reply.text);
        // A reranker computes nothing else.
        let body = json!({"model": "ranker", "input": "a cat"});
        let reply = send_to(router(), "POST", "/v1/embeddings", Some(body));
        assert!(reply.status == 400 && reply.text.contains("`rerank`"), "{}", reply.text);
        assert_eq!(reply.json()["error"]["param"], "model");
    }
}
