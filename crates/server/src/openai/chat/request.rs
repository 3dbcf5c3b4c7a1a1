//! The request of a chat completion.

use ruvllm::crates::text::chat::ChatInput;
use ruvllm::serde_json::{Map, Value};
use ruvllm::{Constraint, GenerateRequest, Prompt, ToolChoice};
use serde::Deserialize;
use utoipa::ToSchema;

use super::message::{ChatMessage, messages_of};
use crate::api_error::ApiError;
use crate::openai::{Common, Target};

/// Most variables of a chat template.
const MOST_VARIABLES: usize = 32;

/// Most bytes of these variables as JSON.
const VARIABLE_BYTES: usize = 64 << 10;

/// Most log-probabilities of other tokens at a position.
const MOST_TOP_LOGPROBS: usize = 20;

/// Fields of chat completions besides [`Common`].
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct ChatRequest {
    pub(crate) messages: Vec<ChatMessage>,
    pub(crate) tools: Option<Vec<Value>>,
    pub(crate) tool_choice: Option<Value>,
    pub(crate) parallel_tool_calls: Option<bool>,
    pub(crate) response_format: Option<ResponseFormat>,
    pub(crate) logprobs: Option<bool>,
    pub(crate) top_logprobs: Option<usize>,
    /// Most tokens of thinking before the answer; 0 = no thinking. The other names are those of
    /// vLLM and llama.cpp's server.
    #[serde(alias = "thinking_token_budget", alias = "thinking_budget_tokens")]
    pub(crate) thinking_budget: Option<usize>,
    /// Variable of the chat template, for example `low`; `none` is a budget of 0.
    pub(crate) reasoning_effort: Option<String>,
    /// Variables of the chat template, for example `enable_thinking`.
    #[schema(value_type = Option<Object>)]
    pub(crate) chat_template_kwargs: Option<Map<String, Value>>,
}

/// Sets the variable of the chat template for the effort of thinking; `none` is a budget of 0.
pub(crate) fn set_effort(request: &mut GenerateRequest, effort: Option<&str>) {
    match effort {
        None => {}
        Some("none") => request.thinking_budget = Some(0),
        Some(effort) => {
            request.template_variables.entry("reasoning_effort").or_insert_with(|| effort.into());
        }
    }
}

/// Form of the answer.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct ResponseFormat {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) json_schema: Option<JsonSchemaFormat>,
    /// Schema beside the type, as llama.cpp's server takes it.
    pub(crate) schema: Option<Value>,
}

/// Schema of the answer. `strict` changes nothing: the output fits the schema in any case.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct JsonSchemaFormat {
    pub(crate) schema: Option<Value>,
}

impl ChatRequest {
    /// The engine's request.
    ///
    /// # Errors
    /// 400 for values out of range.
    pub(crate) fn generate_request(
        &self,
        target: &Target<'_>,
        common: &Common,
    ) -> Result<GenerateRequest, ApiError> {
        let messages = messages_of(&self.messages, target.app.limits().items)?;
        let tools = self.tools.clone().filter(|tools| !tools.is_empty()).map(Value::Array);
        let prompt = Prompt::Chat { messages, tools };
        let mut request = common.request(target, prompt)?;
        choose_tools(&mut request, self.tool_choice.as_ref(), self.parallel_tool_calls)?;
        request.template_variables = self.template_variables()?;
        request.thinking_budget = self.thinking_budget;
        set_effort(&mut request, self.reasoning_effort.as_deref());
        request.logprobs = self.logprobs()?;
        if let Some(format) = &self.response_format
            && let Some(constraint) = format.constraint()?
        {
            request.constraint = Some(constraint);
        }
        Ok(request)
    }

    fn logprobs(&self) -> Result<Option<usize>, ApiError> {
        let top = top_logprobs(self.top_logprobs)?;
        match self.logprobs.unwrap_or(false) {
            true => Ok(Some(top)),
            false if top > 0 => {
                Err(ApiError::invalid_param("top_logprobs", "top_logprobs needs logprobs: true"))
            }
            false => Ok(None),
        }
    }

    fn template_variables(&self) -> Result<Map<String, Value>, ApiError> {
        const PARAM: &str = "chat_template_kwargs";
        let Some(variables) = &self.chat_template_kwargs else { return Ok(Map::new()) };
        if variables.len() > MOST_VARIABLES {
            let message = format!("{} variables, expected at most {MOST_VARIABLES}", variables.len());
            return Err(ApiError::invalid_param(PARAM, message));
        }
        if let Some(name) = variables.keys().find(|name| ChatInput::FIXED.contains(&name.as_str())) {
            let message = format!("the variable {name:?} is set by the server; leave it out");
            return Err(ApiError::invalid_param(format!("{PARAM}.{name}"), message));
        }
        let bytes = Value::Object(variables.clone()).to_string().len();
        if bytes > VARIABLE_BYTES {
            let message = format!("the variables have {bytes} bytes, expected at most {VARIABLE_BYTES}");
            return Err(ApiError::invalid_param(PARAM, message));
        }
        Ok(variables.clone())
    }
}

/// Sets the tools that the answer may call.
///
/// # Errors
/// 400 for a choice that is none.
pub(crate) fn choose_tools(
    request: &mut GenerateRequest,
    choice: Option<&Value>,
    parallel: Option<bool>,
) -> Result<(), ApiError> {
    if let Some(choice) = choice {
        let choice = ToolChoice::from_json(choice);
        request.tool_choice =
            choice.map_err(|error| ApiError::invalid_param("tool_choice", error.to_string()))?;
    }
    request.parallel_tool_calls = parallel.unwrap_or(true);
    Ok(())
}

/// Number of most likely tokens at each position: 0 where the field is absent.
///
/// # Errors
/// 400 for more than 20.
pub(crate) fn top_logprobs(top: Option<usize>) -> Result<usize, ApiError> {
    match top.unwrap_or(0) {
        top @ 0..=MOST_TOP_LOGPROBS => Ok(top),
        top => {
            let message = format!("top_logprobs is {top}, expected at most {MOST_TOP_LOGPROBS}");
            Err(ApiError::invalid_param("top_logprobs", message))
        }
    }
}

impl ResponseFormat {
    /// The constraint; `None` for text.
    ///
    /// # Errors
    /// 400 for an unknown type and an unusable schema.
    pub(crate) fn constraint(&self) -> Result<Option<Constraint>, ApiError> {
        let nested = self.json_schema.as_ref().and_then(|format| format.schema.as_ref());
        let schema = nested.or(self.schema.as_ref());
        match (self.kind.as_str(), schema) {
            ("text", _) => Ok(None),
            ("json_object", None) => Ok(Some(Constraint::json())),
            ("json_object" | "json_schema", Some(schema)) => {
                let param = "response_format.json_schema.schema";
                let constraint = Constraint::json_schema(schema);
                constraint.map(Some).map_err(|error| ApiError::invalid_param(param, error.to_string()))
            }
            ("json_schema", None) => {
                let param = "response_format.json_schema";
                Err(ApiError::invalid_param(param, "a response format json_schema needs a schema"))
            }
            (kind, _) => {
                let message = format!("{kind:?} is unknown, expected text, json_object or json_schema");
                Err(ApiError::invalid_param("response_format.type", message))
            }
        }
    }
}
