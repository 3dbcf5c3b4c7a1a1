//! The request of a chat completion.

use ruvllm::serde_json::Value;
use ruvllm::{Constraint, Engine, GenerateRequest, Prompt, ToolChoice};
use serde::Deserialize;
use utoipa::ToSchema;

use super::message::{ChatMessage, messages_of};
use crate::api_error::ApiError;
use crate::app::App;
use crate::auth::Caller;
use crate::openai::Common;

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
        app: &App,
        engine: &Engine,
        common: &Common,
        caller: &Caller,
        adapter: Option<String>,
    ) -> Result<GenerateRequest, ApiError> {
        let messages = messages_of(&self.messages, app.limits().items)?;
        let tools = self.tools.clone().filter(|tools| !tools.is_empty()).map(Value::Array);
        let prompt = Prompt::Chat { messages, tools };
        let mut request = common.request(app, engine, caller, adapter, prompt)?;
        if let Some(choice) = &self.tool_choice {
            let choice = ToolChoice::from_json(choice);
            request.tool_choice =
                choice.map_err(|error| ApiError::invalid_param("tool_choice", error.to_string()))?;
        }
        request.parallel_tool_calls = self.parallel_tool_calls.unwrap_or(true);
        request.logprobs = self.logprobs()?;
        if let Some(format) = &self.response_format
            && let Some(constraint) = format.constraint()?
        {
            request.constraint = Some(constraint);
        }
        Ok(request)
    }

    fn logprobs(&self) -> Result<Option<usize>, ApiError> {
        let top = self.top_logprobs.unwrap_or(0);
        if top > MOST_TOP_LOGPROBS {
            let message = format!("top_logprobs is {top}, expected at most {MOST_TOP_LOGPROBS}");
            return Err(ApiError::invalid_param("top_logprobs", message));
        }
        match self.logprobs.unwrap_or(false) {
            true => Ok(Some(top)),
            false if top > 0 => {
                Err(ApiError::invalid_param("top_logprobs", "top_logprobs needs logprobs: true"))
            }
            false => Ok(None),
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
