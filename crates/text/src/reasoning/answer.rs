//! Parser of a whole answer: thinking, text and tool calls.

use super::format::Phase;
use super::parser::{Part, ReasoningParser};
use crate::tool_call::{ParsedOutput, ToolCallEvent, ToolCallParser};

/// Piece of a parsed answer.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum AnswerEvent {
    /// Text of the thinking.
    Reasoning(String),
    /// Text outside of thinking and calls.
    Content(String),
    /// Part of a tool call; never [`ToolCallEvent::Content`].
    ToolCall(ToolCallEvent),
}

/// Thinking, text and calls of a whole output.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ParsedAnswer {
    /// Text of the thinking; `None` if the output has none.
    pub reasoning: Option<String>,
    /// True if the output ended within the thinking.
    pub is_thinking: bool,
    /// Text and calls behind the thinking.
    pub output: ParsedOutput,
}

/// Splits generated text, piece by piece, into thinking, text and tool calls. Calls are found in
/// the answer alone: those that the thinking mentions are thinking.
#[derive(Debug, Clone)]
pub struct AnswerParser {
    reasoning: Option<ReasoningParser>,
    calls: Calls,
}

/// Parser of the answer behind the thinking.
#[derive(Debug, Clone)]
struct Calls {
    parser: Option<ToolCallParser>,
    events: Vec<ToolCallEvent>,
}

impl AnswerParser {
    /// A parser of one answer. Without parts, all text is content.
    #[must_use]
    pub fn new(reasoning: Option<ReasoningParser>, tools: Option<ToolCallParser>) -> Self {
        Self { reasoning, calls: Calls { parser: tools, events: Vec::new() } }
    }

    /// True while the text is thinking.
    #[must_use]
    pub fn is_thinking(&self) -> bool {
        self.reasoning.as_ref().is_some_and(|parser| parser.phase() == Phase::Thinking)
    }

    /// Takes the next piece of text and appends what it makes certain to `events`: text of one part
    /// to the last event, if that has such text.
    pub fn push(&mut self, text: &str, events: &mut Vec<AnswerEvent>) {
        let Self { reasoning, calls } = self;
        match reasoning {
            Some(parser) => parser.push(text, &mut |part, text| calls.take(part, text, events)),
            None => calls.take(Part::Answer, text, events),
        }
    }

    /// Ends the output.
    pub fn finish(&mut self, events: &mut Vec<AnswerEvent>) {
        let Self { reasoning, calls } = self;
        if let Some(parser) = reasoning {
            parser.finish(&mut |part, text| calls.take(part, text, events));
        }
        if let Some(parser) = &mut calls.parser {
            parser.finish(&mut calls.events);
            calls.give(events);
        }
    }

    /// Parses a whole output.
    #[must_use]
    pub fn parse(mut self, text: &str) -> ParsedAnswer {
        let mut events = Vec::new();
        self.push(text, &mut events);
        self.finish(&mut events);
        let mut parsed = ParsedAnswer { is_thinking: self.is_thinking(), ..ParsedAnswer::default() };
        for event in events {
            match event {
                AnswerEvent::Reasoning(text) => parsed.reasoning.get_or_insert_default().push_str(&text),
                AnswerEvent::Content(text) => parsed.output.push(ToolCallEvent::Content(text)),
                AnswerEvent::ToolCall(event) => parsed.output.push(event),
            }
        }
        parsed
    }
}

impl Calls {
    /// Takes decided text.
    fn take(&mut self, part: Part, text: &str, events: &mut Vec<AnswerEvent>) {
        match (part, &mut self.parser) {
            (Part::Marker, _) => {}
            (Part::Thinking, _) => add(events, AnswerEvent::Reasoning(text.to_owned())),
            (Part::Answer, Some(parser)) => {
                parser.push(text, &mut self.events);
                self.give(events);
            }
            (Part::Answer, None) if text.is_empty() => {}
            (Part::Answer, None) => add(events, AnswerEvent::Content(text.to_owned())),
        }
    }

    fn give(&mut self, events: &mut Vec<AnswerEvent>) {
        for event in self.events.drain(..) {
            match event {
                ToolCallEvent::Content(text) => add(events, AnswerEvent::Content(text)),
                event => add(events, AnswerEvent::ToolCall(event)),
            }
        }
    }
}

/// Adds an event, joined with the one before if both are text of one part.
fn add(events: &mut Vec<AnswerEvent>, event: AnswerEvent) {
    use AnswerEvent::{Content, Reasoning, ToolCall};
    use ToolCallEvent::Arguments;
    match (events.last_mut(), event) {
        (Some(Reasoning(all)), Reasoning(text)) | (Some(Content(all)), Content(text)) => all.push_str(&text),
        (Some(ToolCall(Arguments { delta: all, .. })), ToolCall(Arguments { delta, .. })) => {
            all.push_str(&delta);
        }
        (_, event) => events.push(event),
    }
}
