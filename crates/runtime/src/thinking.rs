//! Thinking of one generation: its phase, its tokens, and its budget.

use ruvllm_text::TokenId;
use ruvllm_text::reasoning::{Phase, ReasoningFormat, ReasoningParser};
use ruvllm_text::tokenizer::EncodeOptions;
use serde_json::{Map, Value};

use crate::codec::TextCodec;
use crate::error::{Error, Result};
use crate::request::{GenerateRequest, Prompt};
use crate::tools::{Scope, ToolError};

/// Tokens at the end of a prompt whose text tells the phase that the output begins in.
const PROMPT_END: usize = 24;

/// Switches of chat templates that a budget of 0 turns off: those of Qwen, GLM, SmolLM and EXAONE,
/// and that of DeepSeek and Granite.
const SWITCHES: [&str; 2] = ["enable_thinking", "thinking"];

/// Thinking of one generation, token by token.
#[derive(Debug, Clone)]
pub(crate) struct Thinking {
    format: ReasoningFormat,
    /// Phase that the output begins in.
    first: Phase,
    parser: ReasoningParser,
    /// The markers that are one token of the vocabulary.
    open: Option<TokenId>,
    close: Option<TokenId>,
    /// Tokens that end the thinking and, unless a constraint decides about it, begin the answer.
    closing: Vec<TokenId>,
    budget: Option<usize>,
    /// Tokens of the thinking so far, without its markers.
    tokens: usize,
    /// True once the closing tokens were forced.
    is_forced: bool,
}

impl Thinking {
    /// The thinking of a request behind this prompt; `None` for a model that does not think. A
    /// budget of 0 closes thinking that the prompt has opened, at the prompt's end; so does a
    /// constraint where the vocabulary has no token that ends it. A constraint on all messages
    /// decides what follows the thinking.
    ///
    /// # Errors
    /// [`Error::Encode`]; [`Error::Tools`] if a constraint on all messages has to begin within one.
    pub(crate) fn new(
        codec: &TextCodec,
        request: &GenerateRequest,
        prompt: &mut Vec<TokenId>,
        scope: Scope,
    ) -> Result<Option<Self>> {
        let Some(format) = Self::format_of(codec, request) else { return Ok(None) };
        let tokenizer = codec.tokenizer();
        let options = EncodeOptions { add_special: false, parse_special: true };
        let closing = if scope == Scope::Messages { format.close() } else { format.forced_close() };
        let closing = tokenizer.encode(closing, options).map_err(Error::Encode)?;
        let end = &prompt[prompt.len().saturating_sub(PROMPT_END)..];
        let mut first = format.phase_after(&tokenizer.decode(end, false).map_err(Error::Encode)?);
        if scope == Scope::Messages && first != Phase::Start {
            return Err(Error::Tools(ToolError::OpenMessage));
        }
        let [open, close] = [format.open(), format.close()].map(|marker| tokenizer.token_to_id(marker));
        let must_close = request.thinking_budget == Some(0) || (scope != Scope::None && close.is_none());
        if first == Phase::Thinking && must_close {
            prompt.extend_from_slice(&closing);
            first = Phase::Answer;
        }
        Ok(Some(Self {
            format,
            first,
            parser: ReasoningParser::new(format, first),
            open,
            close,
            closing,
            budget: request.thinking_budget,
            tokens: 0,
            is_forced: false,
        }))
    }

    /// Format of a request's thinking: its own, or that of the chat template in a conversation.
    pub(crate) fn format_of(codec: &TextCodec, request: &GenerateRequest) -> Option<ReasoningFormat> {
        request.reasoning_format.or_else(|| match &request.prompt {
            Prompt::Chat { .. } => ReasoningFormat::of_template(codec.chat_template().ok()?.source()),
            Prompt::Text(_) | Prompt::Tokens(_) => None,
        })
    }

    /// Format, and the phase that the output begins in.
    pub(crate) fn start(&self) -> (ReasoningFormat, Phase) {
        (self.format, self.first)
    }

    /// Reads the text that a token makes certain, which may be empty.
    pub(crate) fn read(&mut self, text: &str) {
        let before = self.parser.phase();
        self.parser.push(text, &mut |_, _| ());
        if before == Phase::Thinking && self.parser.phase() == Phase::Thinking {
            self.tokens += 1;
        }
    }

    /// Phase behind the last token.
    pub(crate) fn phase(&self) -> Phase {
        self.parser.phase()
    }

    /// Number of tokens of the thinking so far, without its markers.
    pub(crate) fn tokens(&self) -> usize {
        self.tokens
    }

    /// The closing tokens, once the budget is used up within the thinking; else nothing.
    pub(crate) fn closing(&mut self) -> &[TokenId] {
        let is_used_up = self.budget.is_some_and(|budget| self.tokens >= budget);
        if self.phase() != Phase::Thinking || !is_used_up {
            return &[];
        }
        self.is_forced = true;
        &self.closing
    }

    /// The marker that a model may still want to write behind thinking whose end was forced.
    pub(crate) fn excluded(&self) -> Option<TokenId> {
        self.close.filter(|_| self.is_forced && self.phase() == Phase::Answer)
    }

    /// Token that begins thinking, or a message.
    pub(crate) fn open(&self) -> Option<TokenId> {
        self.open
    }

    /// True if a constraint can wait for the end of the thinking: its markers are tokens, so that
    /// no token belongs to both.
    pub(crate) fn has_borders(&self) -> bool {
        self.open.is_some() && self.close.is_some()
    }

    /// True if every output begins with [`open`](Self::open).
    pub(crate) fn needs_opening(&self) -> bool {
        self.format.has_headers()
    }
}

/// Variables of the chat template: those of the request, and without a budget for thinking the
/// switches that turn it off.
pub(crate) fn variables_of(request: &GenerateRequest) -> Map<String, Value> {
    let mut variables = request.template_variables.clone();
    if request.thinking_budget == Some(0) {
        for name in SWITCHES {
            variables.entry(name).or_insert(Value::Bool(false));
        }
    }
    variables
}
