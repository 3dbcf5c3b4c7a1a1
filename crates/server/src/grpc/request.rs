//! Messages as the requests of the HTTP API, which check and complete them.

use ruvllm::{GenerateRequest, Prompt, ToolChoice};
use serde_json::Value;

use super::proto::generate_request::{Constraint, Prompt as ProtoPrompt};
use super::proto::{self, tokenize_request};
use crate::api_error::ApiError;
use crate::limits::is_too_deep;
use crate::native::tokens::TokenizeRequest;
use crate::openai::chat::{CallParam, ChatMessage, ChatRequest, Content, FunctionParam};
use crate::openai::completions::Prompts;
use crate::openai::embeddings::EmbeddingsRequest;
use crate::openai::{AdapterField, Common, OneOrMany, Target};

/// Most log-probabilities of other tokens at a position, as in the HTTP API.
const MOST_LOGPROBS: u32 = 20;

/// Fields that the HTTP API has too, with the checks of its values.
pub(super) fn common(message: &proto::GenerateRequest, depth: usize) -> Result<Common, ApiError> {
    let number = |value: Option<u32>| value.map(|value| value as usize);
    let adapter = |adapter: &proto::Adapter| AdapterField {
        name: adapter.name.clone(),
        scale: adapter.scale.unwrap_or(1.0),
    };
    let (json_schema, grammar) = match &message.constraint {
        Some(Constraint::JsonSchema(text)) => (Some(json("json_schema", text, depth)?), None),
        Some(Constraint::Grammar(text)) => (None, Some(text.clone())),
        None => (None, None),
    };
    let bias = |(token, bias): (&u32, &f32)| (token.to_string(), *bias);
    Ok(Common {
        model: message.model.clone(),
        stream: Some(true),
        stream_options: None,
        n: number(message.n),
        max_tokens: number(message.max_tokens),
        max_completion_tokens: None,
        stop: Some(OneOrMany(message.stop.clone())),
        seed: message.seed.map(|seed| seed as i64),
        temperature: message.temperature,
        top_p: message.top_p,
        presence_penalty: message.presence_penalty,
        frequency_penalty: message.frequency_penalty,
        logit_bias: Some(message.logit_bias.iter().map(bias).collect()),
        top_k: number(message.top_k),
        min_p: message.min_p,
        typical_p: message.typical_p,
        repeat_penalty: message.repeat_penalty,
        repeat_last_n: number(message.repeat_last_n),
        top_n_sigma: message.top_n_sigma,
        dry_multiplier: message.dry_multiplier,
        dry_base: message.dry_base,
        dry_allowed_length: number(message.dry_allowed_length),
        xtc_probability: message.xtc_probability,
        xtc_threshold: message.xtc_threshold,
        ignore_eos: message.ignore_eos,
        cache_prompt: message.cache_prompt,
        grammar,
        json_schema,
        adapters: Some(message.adapters.iter().map(adapter).collect()),
        session: message.session.clone(),
        priority: message.priority,
    })
}

/// The engine's request for a message.
///
/// # Errors
/// 400 for a message without a prompt, and for values out of range.
pub(super) fn generate(
    target: &Target<'_>,
    message: &proto::GenerateRequest,
    common: &Common,
    depth: usize,
) -> Result<GenerateRequest, ApiError> {
    let mut request = match &message.prompt {
        Some(ProtoPrompt::Text(text)) => common.request(target, Prompt::Text(text.clone()))?,
        Some(ProtoPrompt::Tokens(tokens)) => common.request(target, Prompt::Tokens(tokens.ids.clone()))?,
        Some(ProtoPrompt::Chat(chat)) => {
            let mut request = chat_request(chat, depth)?.generate_request(target, common)?;
            request.tool_choice = tool_choice(chat.tool_choice.as_deref());
            request
        }
        None => {
            let message = "the request has no prompt: set text, chat or tokens";
            return Err(ApiError::invalid_param("text", message));
        }
    };
    request.logprobs = match message.logprobs {
        Some(top) if top > MOST_LOGPROBS => {
            let message = format!("logprobs is {top}, expected at most {MOST_LOGPROBS}");
            return Err(ApiError::invalid_param("logprobs", message));
        }
        top => top.map(|top| top as usize),
    };
    Ok(request)
}

/// Gives the field of an error the name that it has in the message.
pub(super) fn renamed(error: ApiError, message: &proto::GenerateRequest) -> ApiError {
    let prompt = match &message.prompt {
        Some(ProtoPrompt::Tokens(_)) => "tokens.ids",
        Some(ProtoPrompt::Chat(_)) => "chat",
        _ => "text",
    };
    let constraint = match &message.constraint {
        Some(Constraint::Grammar(_)) => "grammar",
        _ => "json_schema",
    };
    error.renamed(&[
        ("prompt", prompt),
        ("messages", "chat.messages"),
        ("tools", "chat.tools"),
        ("tool_choice", "chat.tool_choice"),
        ("response_format", constraint),
    ])
}

fn chat_request(chat: &proto::Chat, depth: usize) -> Result<ChatRequest, ApiError> {
    Ok(ChatRequest {
        messages: messages(chat),
        tools: tools(chat, depth)?,
        tool_choice: None,
        parallel_tool_calls: chat.parallel_tool_calls,
        response_format: None,
        logprobs: None,
        top_logprobs: None,
        chat_template_kwargs: None,
        reasoning_effort: None,
        thinking_budget: None,
    })
}

fn tool_choice(choice: Option<&str>) -> ToolChoice {
    match choice {
        None | Some("auto") => ToolChoice::Auto,
        Some("none") => ToolChoice::None,
        Some("required") => ToolChoice::Required,
        Some(name) => ToolChoice::Named(name.to_owned()),
    }
}

fn messages(chat: &proto::Chat) -> Vec<ChatMessage> {
    let call = |call: &proto::ToolCall| CallParam {
        id: Some(call.id.clone()),
        function: FunctionParam { name: call.name.clone(), arguments: call.arguments.clone().into() },
    };
    let message = |message: &proto::ChatMessage| ChatMessage {
        role: message.role.clone(),
        content: Some(Content::Text(message.content.clone())),
        name: message.name.clone(),
        tool_calls: Some(message.tool_calls.iter().map(call).collect()),
        tool_call_id: message.tool_call_id.clone(),
        reasoning_content: message.reasoning_content.clone(),
        reasoning: None,
    };
    chat.messages.iter().map(message).collect()
}

/// Tools of a chat.
///
/// # Errors
/// 400 for a text that is no list.
fn tools(chat: &proto::Chat, depth: usize) -> Result<Option<Vec<Value>>, ApiError> {
    let Some(text) = &chat.tools else { return Ok(None) };
    match json("tools", text, depth)? {
        Value::Array(tools) => Ok(Some(tools)),
        _ => Err(ApiError::invalid_param("tools", "is no list of tools")),
    }
}

/// The JSON value of a field.
///
/// # Errors
/// 400 for text that is no JSON, or nested too deep.
fn json(field: &str, text: &str, depth: usize) -> Result<Value, ApiError> {
    if is_too_deep(text.as_bytes(), depth) {
        let message = format!("is nested deeper than {depth} levels, the limit here");
        return Err(ApiError::invalid_param(field, message).with_code("invalid_json"));
    }
    serde_json::from_str(text).map_err(|error| {
        ApiError::invalid_param(field, format!("is no valid JSON: {error}")).with_code("invalid_json")
    })
}

/// The request for embeddings.
pub(super) fn embed(message: &proto::EmbedRequest) -> EmbeddingsRequest {
    let texts = message.texts.iter().map(|text| Prompt::Text(text.clone()));
    let tokens = message.tokens.iter().map(|tokens| Prompt::Tokens(tokens.ids.clone()));
    EmbeddingsRequest {
        model: message.model.clone(),
        input: Prompts(texts.chain(tokens).collect()),
        encoding_format: None,
        dimensions: message.dimensions.map(|dimensions| dimensions as usize),
        truncate: Some(message.truncate),
    }
}

/// The request to encode a text or a conversation.
///
/// # Errors
/// 400 for tools that are no list.
pub(super) fn tokenize(message: proto::TokenizeRequest, depth: usize) -> Result<TokenizeRequest, ApiError> {
    let mut request = TokenizeRequest {
        model: message.model,
        add_special: Some(message.add_special),
        parse_special: message.parse_special,
        ..TokenizeRequest::default()
    };
    match message.input {
        Some(tokenize_request::Input::Text(text)) => request.content = Some(text),
        Some(tokenize_request::Input::Chat(chat)) => {
            request.tools = tools(&chat, depth)?;
            request.messages = Some(messages(&chat));
        }
        None => return Err(ApiError::invalid_param("text", "the request has no input: set text or chat")),
    }
    Ok(request)
}
