//! The request of a message.

use ruvllm::{GenerateRequest, Prompt, ToolChoice};
use serde::Deserialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

use super::message::{Block, MessageParam, conversation};
use crate::api_error::ApiError;
use crate::app::App;
use crate::openai::chat::{Content, ResponseFormat};
use crate::openai::{Common, OneOrMany, Target};

/// Fields of messages besides [`Common`], which has those of the same name: `model`, `max_tokens`,
/// `stream`, `temperature`, `top_p`, `top_k`, and the additions.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct MessagesRequest {
    messages: Vec<MessageParam>,
    #[schema(schema_with = crate::field_schema::blocks)]
    system: Option<Content<Block>>,
    tools: Option<Vec<ToolParam>>,
    tool_choice: Option<ToolChoiceParam>,
    stop_sequences: Option<Vec<String>>,
    output_config: Option<OutputConfig>,
    thinking: Option<ThinkingParam>,
}

/// Thinking before the answer.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct ThinkingParam {
    /// `enabled`, `adaptive` or `disabled`.
    #[serde(rename = "type")]
    kind: String,
    /// Most tokens of thinking.
    budget_tokens: Option<usize>,
}

/// A tool with a schema of its input.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct ToolParam {
    #[serde(rename = "type")]
    kind: Option<String>,
    name: String,
    description: Option<String>,
    input_schema: Option<Value>,
}

#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct ToolChoiceParam {
    /// `auto`, `any`, `tool` or `none`.
    #[serde(rename = "type")]
    kind: String,
    name: Option<String>,
    disable_parallel_tool_use: Option<bool>,
}

#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct OutputConfig {
    format: Option<ResponseFormat>,
}

/// Gives fields of the chat completions their names in this interface.
pub(crate) fn renamed(error: ApiError) -> ApiError {
    error.renamed(&[
        ("stop", "stop_sequences"),
        ("prompt", "messages"),
        ("response_format.json_schema", "output_config.format"),
        ("response_format", "output_config.format"),
    ])
}

impl MessagesRequest {
    /// The common fields as this interface has them.
    ///
    /// # Errors
    /// 400 without `max_tokens`.
    pub(crate) fn common(&self, common: Common) -> Result<Common, ApiError> {
        if common.max_tokens.unwrap_or(0) == 0 {
            let message = "the field is required, at least 1";
            return Err(ApiError::invalid_param("max_tokens", message));
        }
        let stop = self.stop_sequences.clone().map(OneOrMany);
        Ok(Common { n: None, max_completion_tokens: None, stop, ..common })
    }

    /// The conversation with its tools.
    ///
    /// # Errors
    /// 400 for messages and tools that cannot be used.
    pub(crate) fn prompt(&self, app: &App) -> Result<Prompt, ApiError> {
        let messages = conversation(self.system.as_ref(), &self.messages, app.limits().items)?;
        let tools = self.tools.iter().flatten().enumerate().map(|(index, tool)| tool.definition(index));
        let tools = tools.collect::<Result<Vec<_>, _>>()?;
        Ok(Prompt::Chat { messages, tools: (!tools.is_empty()).then_some(Value::Array(tools)) })
    }

    /// The engine's request.
    ///
    /// # Errors
    /// 400 for values out of range.
    pub(crate) fn generate_request(
        &self,
        target: &Target<'_>,
        common: &Common,
    ) -> Result<GenerateRequest, ApiError> {
        let prompt = self.prompt(target.app)?;
        let mut request = common.request(target, prompt).map_err(renamed)?;
        if let Some(choice) = &self.tool_choice {
            request.tool_choice = choice.tool_choice()?;
            request.parallel_tool_calls = !choice.disable_parallel_tool_use.unwrap_or(false);
        }
        if let Some(thinking) = &self.thinking {
            request.thinking_budget = thinking.budget()?;
        }
        let format = self.output_config.as_ref().and_then(|config| config.format.as_ref());
        if let Some(constraint) =
            format.map(ResponseFormat::constraint).transpose().map_err(renamed)?.flatten()
        {
            request.constraint = Some(constraint);
        }
        Ok(request)
    }
}

impl ToolParam {
    /// The tool in the form of the chat completions.
    ///
    /// # Errors
    /// 400 for tools that run on Anthropic's servers.
    fn definition(&self, index: usize) -> Result<Value, ApiError> {
        if let Some(kind) = self.kind.as_deref().filter(|&kind| kind != "custom") {
            let message = format!("the tool type {kind:?} is not supported, expected custom");
            return Err(ApiError::invalid_param(format!("tools[{index}].type"), message));
        }
        let Some(schema) = &self.input_schema else {
            let message = "the field is required";
            return Err(ApiError::invalid_param(format!("tools[{index}].input_schema"), message));
        };
        let Self { name, description, .. } = self;
        let mut function = json!({"name": name, "parameters": schema});
        if let Some(description) = description {
            function["description"] = description.as_str().into();
        }
        Ok(json!({"type": "function", "function": function}))
    }
}

impl ThinkingParam {
    /// Most tokens of thinking; `None` for no limit.
    fn budget(&self) -> Result<Option<usize>, ApiError> {
        match self.kind.as_str() {
            "enabled" | "adaptive" => Ok(self.budget_tokens),
            "disabled" => Ok(Some(0)),
            kind => {
                let message = format!("{kind:?} is unknown, expected enabled, adaptive or disabled");
                Err(ApiError::invalid_param("thinking.type", message))
            }
        }
    }
}

impl ToolChoiceParam {
    fn tool_choice(&self) -> Result<ToolChoice, ApiError> {
        match (self.kind.as_str(), &self.name) {
            ("auto", _) => Ok(ToolChoice::Auto),
            ("any", _) => Ok(ToolChoice::Required),
            ("none", _) => Ok(ToolChoice::None),
            ("tool", Some(name)) => Ok(ToolChoice::Named(name.clone())),
            ("tool", None) => {
                Err(ApiError::invalid_param("tool_choice.name", "the choice of a tool has no name"))
            }
            (kind, _) => {
                let message = format!("{kind:?} is unknown, expected auto, any, tool or none");
                Err(ApiError::invalid_param("tool_choice.type", message))
            }
        }
    }
}
