//! The request of a response.

use ruvllm::{GenerateRequest, Prompt};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use utoipa::ToSchema;

use super::input::{InputItem, conversation};
use crate::api_error::ApiError;
use crate::openai::chat::{Content, ResponseFormat, choose_tools, set_effort, top_logprobs};
use crate::openai::{Common, Target};

/// Value of `include` that asks for log-probabilities. Others have no effect.
const LOGPROBS: &str = "message.output_text.logprobs";

/// Fields of responses besides [`Common`].
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct ResponsesRequest {
    #[schema(schema_with = crate::field_schema::items)]
    input: Content<InputItem>,
    instructions: Option<String>,
    tools: Option<Vec<FunctionTool>>,
    tool_choice: Option<Value>,
    parallel_tool_calls: Option<bool>,
    text: Option<TextConfig>,
    /// Further parts of the reply: `message.output_text.logprobs`.
    include: Option<Vec<String>>,
    /// Most likely tokens at each position, with `include`.
    top_logprobs: Option<usize>,
    max_output_tokens: Option<usize>,
    previous_response_id: Option<Value>,
    conversation: Option<Value>,
    prompt: Option<Value>,
    background: Option<bool>,
    reasoning: Option<ReasoningParam>,
    /// Most tokens of thinking before the answer; 0 = no thinking.
    thinking_budget: Option<usize>,
}

/// Settings of thinking.
#[derive(Debug, Clone, Default, Deserialize, Serialize, ToSchema)]
pub(crate) struct ReasoningParam {
    /// Variable `reasoning_effort` of the chat template; `none` is a budget of 0.
    effort: Option<String>,
    /// Repeated; thinking is sent as it is.
    summary: Option<String>,
}

/// A function that the model may call. `strict` changes nothing: arguments fit the schema in any
/// case.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct FunctionTool {
    #[serde(rename = "type")]
    kind: String,
    name: Option<String>,
    description: Option<String>,
    parameters: Option<Value>,
}

/// Form of the answer.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct TextConfig {
    format: Option<ResponseFormat>,
}

/// Fields that the response repeats as they were sent.
#[derive(Debug, Deserialize)]
pub(crate) struct Echo {
    pub(super) instructions: Option<String>,
    pub(super) max_output_tokens: Option<usize>,
    pub(super) metadata: Option<Map<String, Value>>,
    pub(super) reasoning: Option<ReasoningParam>,
    pub(super) text: Option<Value>,
    pub(super) tool_choice: Option<Value>,
    pub(super) tools: Option<Vec<Value>>,
    pub(super) top_logprobs: Option<usize>,
    pub(super) user: Option<String>,
}

/// Gives fields of the chat completions their names in this interface.
pub(crate) fn renamed(error: ApiError) -> ApiError {
    error.renamed(&[
        ("messages", "input"),
        ("prompt", "input"),
        ("response_format.json_schema", "text.format"),
        ("response_format", "text.format"),
    ])
}

impl ResponsesRequest {
    /// The common fields as this interface has them.
    ///
    /// # Errors
    /// 400 for fields that need stored responses.
    pub(crate) fn common(&self, common: Common) -> Result<Common, ApiError> {
        let stored = [
            ("previous_response_id", self.previous_response_id.is_some()),
            ("conversation", self.conversation.is_some()),
            ("prompt", self.prompt.is_some()),
            ("background", self.background == Some(true)),
        ];
        if let Some((param, _)) = stored.iter().find(|(_, is_set)| *is_set) {
            let message = format!("{param} is not supported: responses are not kept; send the whole input");
            return Err(ApiError::invalid_param(*param, message));
        }
        let max_tokens = self.max_output_tokens;
        Ok(Common { n: None, max_completion_tokens: None, max_tokens, ..common })
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
        let most = target.app.limits().items;
        let messages = conversation(self.instructions.as_deref(), &self.input, most);
        let tools = self.tools.iter().flatten().enumerate().map(|(index, tool)| tool.definition(index));
        let tools = tools.collect::<Result<Vec<_>, _>>()?;
        let tools = (!tools.is_empty()).then_some(Value::Array(tools));
        let prompt = Prompt::Chat { messages: messages.map_err(renamed)?, tools };
        let mut request = common.request(target, prompt)?;
        choose_tools(&mut request, self.tool_choice.as_ref(), self.parallel_tool_calls)?;
        request.thinking_budget = self.thinking_budget;
        let effort = self.reasoning.as_ref().and_then(|reasoning| reasoning.effort.as_deref());
        set_effort(&mut request, effort);
        let top = top_logprobs(self.top_logprobs)?;
        request.logprobs = self.include.iter().flatten().any(|part| part == LOGPROBS).then_some(top);
        let format = self.text.as_ref().and_then(|text| text.format.as_ref());
        let constraint = format.map(ResponseFormat::constraint).transpose().map_err(renamed)?;
        request.constraint = constraint.flatten().or(request.constraint);
        Ok(request)
    }
}

impl FunctionTool {
    /// The tool in the form of the chat completions.
    ///
    /// # Errors
    /// 400 for tools that run on OpenAI's servers, and those without a name.
    fn definition(&self, index: usize) -> Result<Value, ApiError> {
        if self.kind != "function" {
            let message = format!("the tool type {:?} is not supported, expected function", self.kind);
            return Err(ApiError::invalid_param(format!("tools[{index}].type"), message));
        }
        let Some(name) = &self.name else {
            return Err(ApiError::invalid_param(format!("tools[{index}].name"), "the function has no name"));
        };
        let mut function = json!({"name": name});
        if let Some(description) = &self.description {
            function["description"] = description.as_str().into();
        }
        if let Some(parameters) = &self.parameters {
            function["parameters"] = parameters.clone();
        }
        Ok(json!({"type": "function", "function": function}))
    }
}
