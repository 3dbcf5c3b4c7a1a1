//! Tools of one request: format, constraint, and the parser of its output.

use std::borrow::Cow;
use std::sync::Arc;

use ruvllm_text::TokenId;
use ruvllm_text::tool_call::{ArgumentTypes, ToolCallFormat};

use super::choice::ToolChoice;
use super::definition::{Definition, definitions};
use super::error::ToolError;
use crate::answer::CallParser;
use crate::codec::TextCodec;
#[cfg(feature = "structured-output")]
use crate::constraint::{CallGrammar, CallTarget, Constraint};
use crate::error::{Error, Result};
use crate::request::{GenerateRequest, Prompt};

/// Tools that the output of a request may call.
pub(crate) struct RequestTools {
    format: ToolCallFormat,
    /// Types of the tools' parameters, for formats that need them.
    types: Arc<ArgumentTypes>,
    /// Language of the output; `None` if the request does not want its calls constrained.
    #[cfg(feature = "structured-output")]
    pub(crate) constraint: Option<Constraint>,
}

impl RequestTools {
    /// The tools of a request; `None` if it has none, or chooses none.
    ///
    /// # Errors
    /// [`Error::Tools`], and [`Error`]`::{NoChatTemplate, UnusableChatTemplate}`.
    pub(crate) fn new(codec: &TextCodec, request: &GenerateRequest) -> Result<Option<Self>> {
        let Some(tools) = request.tools() else {
            let is_forced = matches!(request.tool_choice, ToolChoice::Required | ToolChoice::Named(_));
            return if is_forced { Err(Error::Tools(ToolError::NoTools)) } else { Ok(None) };
        };
        let tools = definitions(tools).map_err(Error::Tools)?;
        if tools.is_empty() || request.tool_choice == ToolChoice::None {
            return Ok(None);
        }
        let chosen = chosen(tools, &request.tool_choice).map_err(Error::Tools)?;
        let format = match request.tool_format {
            Some(format) => format,
            None => {
                let unknown = || ToolError::UnknownFormat {
                    known: ToolCallFormat::ALL.map(ToolCallFormat::name).join(", "),
                };
                let source = codec.chat_template()?.tool_source();
                ToolCallFormat::of_template(source).ok_or_else(unknown).map_err(Error::Tools)?
            }
        };
        Self::with_format(codec, request, format, &chosen).map(Some)
    }

    #[cfg(feature = "structured-output")]
    fn with_format(
        codec: &TextCodec,
        request: &GenerateRequest,
        format: ToolCallFormat,
        tools: &[Definition<'_>],
    ) -> Result<Self> {
        if request.constraint.is_some() {
            return Err(Error::Tools(ToolError::TwoConstraints));
        }
        let requires_call = request.tool_choice != ToolChoice::Auto;
        if !request.constrain_tools && !requires_call {
            return Ok(Self { format, types: types(format, tools), constraint: None });
        }
        let grammar = CallGrammar {
            format,
            targets: tools
                .iter()
                .map(|tool| CallTarget { name: tool.name, parameters: tool.parameters })
                .collect(),
            requires_call,
            parallel: request.parallel_tool_calls,
        };
        let constraint =
            grammar.constraint(codec.tokenizer(), codec.sampled_ids()).map_err(|(index, source)| {
                Error::Tools(match index {
                    Some(index) => ToolError::Schema { name: tools[index].name.to_owned(), source },
                    None => ToolError::Grammar(source),
                })
            })?;
        Ok(Self { format, types: types(format, tools), constraint: Some(constraint) })
    }

    #[cfg(not(feature = "structured-output"))]
    fn with_format(
        _: &TextCodec,
        request: &GenerateRequest,
        format: ToolCallFormat,
        tools: &[Definition<'_>],
    ) -> Result<Self> {
        if request.tool_choice != ToolChoice::Auto {
            return Err(Error::Tools(ToolError::Unconstrained));
        }
        Ok(Self { format, types: types(format, tools) })
    }

    /// Tools whose calls are in a format.
    #[cfg(test)]
    pub(crate) fn of_format(format: ToolCallFormat) -> Self {
        Self {
            format,
            types: Arc::default(),
            #[cfg(feature = "structured-output")]
            constraint: None,
        }
    }

    /// The parser of calls. Identifiers of calls depend on the prompt, so that those of later
    /// turns differ, and a repeated request gives the same.
    pub(crate) fn parser(&self, prompt: &[TokenId]) -> CallParser {
        // FNV-1a.
        let hash = prompt.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, &id| {
            (hash ^ u64::from(id)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        CallParser { format: self.format, id_seed: hash, types: Arc::clone(&self.types) }
    }
}

/// Types of the tools' parameters, if arguments are text between tags.
fn types(format: ToolCallFormat, tools: &[Definition<'_>]) -> Arc<ArgumentTypes> {
    let mut types = ArgumentTypes::default();
    for tool in tools.iter().filter(|_| format.has_elements()) {
        if let Some(parameters) = tool.parameters {
            types.add(tool.name, parameters);
        }
    }
    Arc::new(types)
}

/// Text of an output that its constraint holds for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(feature = "structured-output"), expect(dead_code, reason = "such builds have no constraints"))]
pub(crate) enum Scope {
    /// There is no constraint.
    None,
    /// The answer behind the thinking.
    Answer,
    /// All messages with their headers, thinking included.
    Messages,
}

impl Scope {
    /// Scope of a request's constraint: its own, or the grammar of calls.
    #[cfg(feature = "structured-output")]
    pub(crate) fn of(request: &GenerateRequest, tools: Option<&RequestTools>) -> Self {
        match tools.filter(|tools| tools.constraint.is_some()) {
            Some(tools) if tools.format.has_messages() => Self::Messages,
            Some(_) => Self::Answer,
            None if request.constraint.is_some() => Self::Answer,
            None => Self::None,
        }
    }

    /// Scope in a build without constraints.
    #[cfg(not(feature = "structured-output"))]
    pub(crate) fn of(_: &GenerateRequest, _: Option<&RequestTools>) -> Self {
        Self::None
    }
}

/// The prompt that is encoded: without tools if none may be called.
pub(crate) fn prompt_of(request: &GenerateRequest) -> Cow<'_, Prompt> {
    match &request.prompt {
        Prompt::Chat { messages, tools: Some(_) } if request.tool_choice == ToolChoice::None => {
            Cow::Owned(Prompt::Chat { messages: messages.clone(), tools: None })
        }
        prompt => Cow::Borrowed(prompt),
    }
}

/// The tools that may be called.
fn chosen<'t>(tools: Vec<Definition<'t>>, choice: &ToolChoice) -> Result<Vec<Definition<'t>>, ToolError> {
    let ToolChoice::Named(name) = choice else { return Ok(tools) };
    match tools.iter().find(|tool| tool.name == name) {
        Some(tool) => Ok(vec![*tool]),
        None => {
            let known: Vec<&str> = tools.iter().map(|tool| tool.name).collect();
            Err(ToolError::UnknownChoice { name: name.clone(), known: known.join(", ") })
        }
    }
}
