//! `POST /v1/embeddings`.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ruvllm::{Embedding, EmbeddingRequest, Prompt};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::completions::Prompts;
use crate::api_error::ApiError;
use crate::app::App;
use crate::body::{JsonBytes, parse};
use crate::generation::{Endpoint, Ticket};

/// The request.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct EmbeddingsRequest {
    pub(crate) model: Option<String>,
    #[schema(schema_with = crate::field_schema::prompts)]
    pub(crate) input: Prompts,
    pub(crate) encoding_format: Option<EncodingFormat>,
    /// Length of the vectors; the first values of the model's, of unit length again.
    pub(crate) dimensions: Option<usize>,
    /// Cuts inputs that are too long for the model, which are refused otherwise; an addition.
    pub(crate) truncate: Option<bool>,
}

/// Vectors of the inputs, in their order.
pub(crate) struct Embedded {
    pub(crate) vectors: Vec<Vec<f32>>,
    /// Tokens of all inputs.
    pub(crate) tokens: usize,
    /// Name of the model.
    pub(crate) model: Arc<str>,
}

/// Form of the vectors.
#[derive(Debug, Clone, Copy, Default, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum EncodingFormat {
    /// A list of numbers.
    #[default]
    Float,
    /// Base64 of 32-bit floats, little-endian.
    Base64,
}

/// The list of embeddings.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct EmbeddingList {
    object: &'static str,
    data: Vec<EmbeddingObject>,
    model: String,
    usage: EmbeddingUsage,
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct EmbeddingObject {
    object: &'static str,
    index: usize,
    embedding: Vector,
}

/// Values of an embedding.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum Vector {
    Float(Vec<f32>),
    Base64(String),
}

#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct EmbeddingUsage {
    prompt_tokens: usize,
    total_tokens: usize,
}

impl EmbeddingsRequest {
    /// The engine's request.
    ///
    /// # Errors
    /// 400 for none or too many inputs, and for texts beside token ids.
    fn inputs(&self, most: usize) -> Result<EmbeddingRequest, ApiError> {
        let inputs = &self.input.0;
        if !(1..=most).contains(&inputs.len()) {
            let message = format!("there are {} inputs, expected 1 to {most}", inputs.len());
            return Err(ApiError::invalid_param("input", message));
        }
        let mut request = EmbeddingRequest::default();
        for input in inputs {
            match input {
                Prompt::Text(text) => request.texts.push(text.clone()),
                Prompt::Tokens(tokens) => request.tokens.push(tokens.clone()),
                _ => {}
            }
        }
        if !request.texts.is_empty() && !request.tokens.is_empty() {
            let message = "the list has texts and token ids; send them in separate requests";
            return Err(ApiError::invalid_param("input", message));
        }
        Ok(request)
    }

    /// Length of the vectors.
    ///
    /// # Errors
    /// 400 for 0 and for more than `most`, the model's.
    fn dimensions(&self, most: usize) -> Result<usize, ApiError> {
        match self.dimensions.unwrap_or(most) {
            dimensions if (1..=most).contains(&dimensions) => Ok(dimensions),
            dimensions => {
                let message = format!("dimensions is {dimensions}, expected 1 to {most}");
                Err(ApiError::invalid_param("dimensions", message))
            }
        }
    }
}

/// Computes embeddings of texts.
pub(crate) async fn create(
    State(app): State<Arc<App>>,
    mut ticket: Ticket,
    JsonBytes(body): JsonBytes,
) -> Result<Json<EmbeddingList>, ApiError> {
    ticket.set_endpoint(Endpoint::Embeddings);
    ticket.set_request(&body, &["input"]);
    let embedded = match parse::<EmbeddingsRequest>(&body) {
        Ok(request) => embed(&app, &mut ticket, &request).await.map(|embedded| (request, embedded)),
        Err(error) => Err(error),
    };
    let (mut ticket, (request, embedded)) = ticket.check(embedded)?;
    ticket.set_prompt_tokens(embedded.tokens);
    ticket.set_complete();
    Ok(Json(EmbeddingList::new(embedded, request.encoding_format.unwrap_or_default())))
}

/// Checks a request and computes its embeddings.
///
/// # Errors
/// As [`Embedder::embed`](ruvllm::Embedder::embed); 400 for inputs that are too long, unless they
/// are to be cut.
pub(crate) async fn embed(
    app: &App,
    ticket: &mut Ticket,
    request: &EmbeddingsRequest,
) -> Result<Embedded, ApiError> {
    let inputs = request.inputs(app.limits().items)?;
    let chosen = app.models.choose(request.model.as_deref()).await?;
    ticket.set_model(chosen.model.name());
    if chosen.adapter.is_some() {
        return Err(ApiError::invalid_param("model", "embeddings are computed without adapters"));
    }
    let embedded = chosen.model.embed(inputs).await;
    let embedded = embedded.map_err(|error| error.renamed(&[("prompt", "input")]))?;
    let dimensions = request.dimensions(embedded.dim)?;
    let mut tokens = 0;
    let mut vectors = Vec::with_capacity(embedded.embeddings.len());
    for (index, Embedding { vector, tokens: used, truncated, .. }) in
        embedded.embeddings.into_iter().enumerate()
    {
        if truncated && !request.truncate.unwrap_or(false) {
            let message = format!("the text has more tokens than the {used} that the model takes");
            return Err(ApiError::invalid_param(format!("input[{index}]"), message));
        }
        tokens += used;
        vectors.push(shortened(vector, dimensions));
    }
    Ok(Embedded { vectors, tokens, model: Arc::clone(chosen.model.name()) })
}

impl EmbeddingList {
    fn new(embedded: Embedded, format: EncodingFormat) -> Self {
        let Embedded { vectors, tokens, model } = embedded;
        let object = |(index, vector): (usize, Vec<f32>)| {
            let embedding = match format {
                EncodingFormat::Float => Vector::Float(vector),
                EncodingFormat::Base64 => Vector::Base64(base64_of(&vector)),
            };
            EmbeddingObject { object: "embedding", index, embedding }
        };
        Self {
            object: "list",
            data: vectors.into_iter().enumerate().map(object).collect(),
            model: model.to_string(),
            usage: EmbeddingUsage { prompt_tokens: tokens, total_tokens: tokens },
        }
    }
}

/// The first values of a vector, scaled to unit length if that leaves any out.
fn shortened(mut vector: Vec<f32>, dimensions: usize) -> Vec<f32> {
    if dimensions < vector.len() {
        vector.truncate(dimensions);
        let length = vector.iter().map(|&value| f64::from(value).powi(2)).sum::<f64>().sqrt();
        if length > 0.0 {
            vector.iter_mut().for_each(|value| *value = (f64::from(*value) / length) as f32);
        }
    }
    vector
}

fn base64_of(vector: &[f32]) -> String {
    let bytes: Vec<u8> = vector.iter().flat_map(|value| value.to_le_bytes()).collect();
    STANDARD.encode(bytes)
}

#[cfg(test)]
mod tests {
    use ruvllm::EngineOptions;
    use serde_json::{Value, json};

    use super::*;
    use crate::testing::{Reply, app_of, post, router_of, send_to};

    fn ask(extra: Value) -> Reply {
        let mut body = json!({"model": "base", "input": "The sun"});
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        post("/v1/embeddings", body)
    }

    fn vector(reply: &Value, index: usize) -> Vec<f32> {
        let values = reply["data"][index]["embedding"].as_array().unwrap();
        values.iter().map(|value| value.as_f64().unwrap() as f32).collect()
    }

    #[test]
    fn vectors_are_the_same_for_texts_ids_and_both_formats() {
        let reply = ask(json!({"input": ["The moon", "The sun"]}));
        assert_eq!(reply.status, 200, "{}", reply.text);
        let reply = reply.json();
        assert_eq!((&reply["object"], &reply["data"][1]["index"]), (&json!("list"), &json!(1)));
        let tokens = reply["usage"]["prompt_tokens"].as_u64().unwrap();
        assert_eq!(reply["usage"]["total_tokens"].as_u64(), Some(tokens));
        let values = vector(&reply, 1);
        assert_eq!(vector(&ask(json!({})).json(), 0), values);

        let ids = post("/tokenize", json!({"content": "The sun", "add_special": true})).json();
        let both = ask(json!({"input": [ids["tokens"], ids["tokens"]]})).json();
        assert_eq!((vector(&both, 0), vector(&both, 1)), (values.clone(), values.clone()));
        assert_eq!(vector(&ask(json!({"input": ids["tokens"]})).json(), 0), values);

        let encoded = ask(json!({"encoding_format": "base64"})).json();
        let bytes = STANDARD.decode(encoded["data"][0]["embedding"].as_str().unwrap()).unwrap();
        assert_eq!(bytes, values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>());
    }

    #[test]
    fn shorter_vectors_have_unit_length() {
        let (whole, short) = (ask(json!({})).json(), ask(json!({"dimensions": 8})).json());
        let (whole, short) = (vector(&whole, 0), vector(&short, 0));
        let length: f32 = short.iter().map(|value| value * value).sum();
        assert!(short.len() == 8 && (length - 1.0).abs() < 1e-5, "{length}");
        let ratio = whole[0] / short[0];
        assert!(whole.iter().zip(&short).all(|(a, b)| (a - b * ratio).abs() < 1e-5));
    }

    #[test]
    fn faults_are_named() {
        let long = "word ".repeat(20_000);
        let faults = [
            (json!({"input": []}), "input"),
            (json!({"input": 3}), "input"),
            (json!({"input": [[1], "text"]}), "input"),
            (json!({"input": [[4_000_000_000_u32]]}), "input"),
            (json!({"input": long}), "input[0]"),
            (json!({"dimensions": 0}), "dimensions"),
            (json!({"dimensions": 100_000}), "dimensions"),
            (json!({"encoding_format": "int8"}), "encoding_format"),
        ];
        for (fields, param) in faults {
            let reply = ask(fields);
            assert_eq!(reply.status, 400, "{}", reply.text);
            assert_eq!(reply.json()["error"]["param"], param, "{}", reply.text);
        }
        let short = router_of(app_of(EngineOptions::default().with_context(256)));
        let body = json!({"model": "base", "input": long, "truncate": true});
        assert_eq!(send_to(short, "POST", "/v1/embeddings", Some(body)).status, 200);
    }
}
