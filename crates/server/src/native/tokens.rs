//! `POST /tokenize` and `POST /detokenize`.

use std::sync::Arc;

use axum::extract::State;
use ruvllm::crates::text::tokenizer::EncodeOptions;
use ruvllm::{Prompt, TokenId, Tokenizer};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::api_error::ApiError;
use crate::app::App;
use crate::body::Json;
use crate::models::LoadedModel;
use crate::openai::chat::{ChatMessage, messages_of};

/// A text, or a conversation for the chat template.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub(crate) struct TokenizeRequest {
    pub(crate) model: Option<String>,
    pub(crate) content: Option<String>,
    /// Conversation in place of `content`; the other fields but `with_pieces` have no effect then.
    pub(crate) messages: Option<Vec<ChatMessage>>,
    pub(crate) tools: Option<Vec<Value>>,
    /// Adds BOS and EOS as the model's rules say.
    pub(crate) add_special: Option<bool>,
    /// Takes special tokens that are written in the text as such; default: true.
    pub(crate) parse_special: Option<bool>,
    /// Adds the text of each token.
    pub(crate) with_pieces: Option<bool>,
}

/// Token ids.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Tokens {
    tokens: Vec<Token>,
}

/// A token id, alone or with its text.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum Token {
    Id(u32),
    WithPiece { id: u32, piece: Piece },
}

/// Text of a token, or its bytes if these are no text.
#[derive(Debug, Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum Piece {
    Text(String),
    Bytes(Vec<u8>),
}

/// Token ids to make a text of.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct DetokenizeRequest {
    model: Option<String>,
    #[schema(value_type = Vec<u32>)]
    tokens: Vec<TokenId>,
}

/// A text.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = DetokenizedText)]
pub(crate) struct Text {
    content: String,
}

impl Piece {
    fn new(tokenizer: &Tokenizer, token: TokenId) -> Self {
        let bytes = tokenizer.token_bytes(token).unwrap_or_default();
        String::from_utf8(bytes).map_or_else(|error| Self::Bytes(error.into_bytes()), Self::Text)
    }
}

/// `POST /tokenize`
pub(crate) async fn tokenize(
    State(app): State<Arc<App>>,
    Json(request): Json<TokenizeRequest>,
) -> Result<axum::Json<Tokens>, ApiError> {
    let with_pieces = request.with_pieces.unwrap_or(false);
    let (model, ids) = encode(&app, request).await?;
    let tokenizer = model.tokenizer();
    let token = |id| match with_pieces {
        true => Token::WithPiece { id, piece: Piece::new(tokenizer, id) },
        false => Token::Id(id),
    };
    Ok(axum::Json(Tokens { tokens: ids.into_iter().map(token).collect() }))
}

/// Model of a request, and the token ids of its text or conversation.
///
/// # Errors
/// 400 unless there is one of both.
pub(crate) async fn encode(
    app: &App,
    request: TokenizeRequest,
) -> Result<(Arc<LoadedModel>, Vec<TokenId>), ApiError> {
    let TokenizeRequest { model, content, messages, tools, .. } = request;
    let model = app.models.choose(model.as_deref()).await?.model;
    let ids = match (content, messages) {
        (Some(content), None) => {
            let options = EncodeOptions {
                add_special: request.add_special.unwrap_or(false),
                parse_special: request.parse_special.unwrap_or(true),
            };
            let model = Arc::clone(&model);
            let encode = move || model.tokenizer().encode(&content, options);
            // A long text takes milliseconds.
            let encoded = tokio::task::spawn_blocking(encode).await;
            let encoded = encoded.map_err(|panic| ApiError::internal(&panic))?;
            encoded.map_err(|error| ApiError::invalid_param("content", error.to_string()))?
        }
        (None, Some(messages)) => {
            let messages = messages_of(&messages, app.limits().items)?;
            model.encode(Prompt::Chat { messages, tools: tools.map(Value::Array) }).await?
        }
        _ => return Err(ApiError::invalid_param("content", "send either content or messages")),
    };
    Ok((model, ids))
}

/// `POST /detokenize`
pub(crate) async fn detokenize(
    State(app): State<Arc<App>>,
    Json(request): Json<DetokenizeRequest>,
) -> Result<axum::Json<Text>, ApiError> {
    let content = decode(&app, request.model.as_deref(), &request.tokens).await?;
    Ok(axum::Json(Text { content }))
}

/// Text of token ids.
///
/// # Errors
/// 400 for ids that the model does not have.
pub(crate) async fn decode(app: &App, model: Option<&str>, tokens: &[TokenId]) -> Result<String, ApiError> {
    let model = app.models.choose(model).await?.model;
    let text = model.tokenizer().decode(tokens, false);
    text.map_err(|error| ApiError::invalid_param("tokens", error.to_string()))
}
