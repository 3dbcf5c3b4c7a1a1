//! Streaming parser of thinking.

use super::format::{Headers, Phase, ReasoningFormat};
use crate::tool_call::open_suffix;

/// Longest header of a message, in bytes: longer ones are text.
const HEADER_BYTES: usize = 256;

/// Part of an output that a piece of its text belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The thinking.
    Thinking,
    /// The answer.
    Answer,
    /// Neither: markers, headers, and white space beside them.
    Marker,
}

/// Receiver of decided text.
type Sink<'s> = &'s mut dyn FnMut(Part, &str);

/// Position of the parser.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Before a marker or text; white space is undecided. `closed`: behind thinking that has ended.
    Open { closed: bool },
    /// Within a header, which `held` begins with.
    Header,
    /// Within thinking; `fresh` until its first character that is no white space.
    Thinking { fresh: bool },
    /// Between two messages.
    Between,
    /// Within the answer.
    Answer,
}

/// Splits generated text, piece by piece, into thinking and answer.
///
/// The result depends on the text alone, not on its division into pieces. Text that may be part of
/// a marker is held back until that is decided. Thinking begins where the output does: the same
/// text further back in the answer is text. White space between thinking and markers, and before
/// the answer behind them, belongs to neither; an output without thinking is unchanged.
///
/// # Examples
/// ```
/// use ruvllm_text::reasoning::{Part, Phase, ReasoningFormat, ReasoningParser};
///
/// let mut parser = ReasoningParser::new(ReasoningFormat::THINK, Phase::Start);
/// let (mut thinking, mut answer) = (String::new(), String::new());
/// let mut sink = |part: Part, text: &str| match part {
///     Part::Thinking => thinking.push_str(text),
///     Part::Answer => answer.push_str(text),
///     Part::Marker => {}
/// };
/// for piece in ["<think>\nTwo and", " two.\n</th", "ink>\n\nFour."] {
///     parser.push(piece, &mut sink);
/// }
/// parser.finish(&mut sink);
/// assert_eq!((thinking.as_str(), answer.as_str()), ("Two and two.", "Four."));
/// ```
#[derive(Debug, Clone)]
pub struct ReasoningParser {
    format: ReasoningFormat,
    state: State,
    /// Text that is not decided.
    held: String,
}

impl ReasoningParser {
    /// A parser of one output, which begins in this phase.
    #[must_use]
    pub fn new(format: ReasoningFormat, phase: Phase) -> Self {
        let state = match phase {
            Phase::Start => State::Open { closed: false },
            Phase::Thinking => State::Thinking { fresh: true },
            // Behind a marker of the prompt, white space is no part of the answer.
            Phase::Answer => State::Open { closed: true },
        };
        Self { format, state, held: String::new() }
    }

    /// Phase that the text so far has led to. After the end of the output,
    /// [`Phase::Thinking`] tells that the thinking is unfinished.
    #[must_use]
    pub fn phase(&self) -> Phase {
        match self.state {
            // Between messages the next one is not known yet, and the thinking has ended.
            State::Open { closed: false } | State::Header | State::Between => Phase::Start,
            State::Thinking { .. } => Phase::Thinking,
            State::Open { closed: true } | State::Answer => Phase::Answer,
        }
    }

    /// Takes the next piece of text and gives what it makes certain to `sink`.
    pub fn push(&mut self, text: &str, sink: Sink<'_>) {
        self.held.push_str(text);
        while self.step(sink) {}
    }

    /// Ends the output.
    pub fn finish(&mut self, sink: Sink<'_>) {
        if self.state == (State::Open { closed: true }) {
            let space = self.held.len() - self.held.trim_start().len();
            self.release(space, Part::Marker, sink);
        }
        let part = match self.state {
            State::Thinking { .. } => Part::Thinking,
            State::Header | State::Between => Part::Marker,
            State::Open { .. } | State::Answer => Part::Answer,
        };
        self.release(self.held.len(), part, sink);
    }

    /// Moves past one decided part of the held text; false if nothing more is decided.
    fn step(&mut self, sink: Sink<'_>) -> bool {
        match (self.state, self.format.headers) {
            (State::Open { closed }, _) => self.step_open(closed, sink),
            (State::Thinking { fresh }, _) => self.step_thinking(fresh, sink),
            (State::Header, Some(headers)) => self.step_header(headers, sink),
            (State::Between, Some(headers)) => self.step_between(headers, sink),
            (State::Answer, Some(_)) => self.step_message(sink),
            (State::Answer | State::Header | State::Between, None) => {
                self.release(self.held.len(), Part::Answer, sink);
                false
            }
        }
    }

    /// Before a marker or text.
    fn step_open(&mut self, closed: bool, sink: Sink<'_>) -> bool {
        let open = self.format.open();
        let rest = self.held.trim_start();
        let space = self.held.len() - rest.len();
        if rest.starts_with(open) {
            let is_header = self.format.headers.is_some();
            let end = if is_header { space } else { space + open.len() };
            self.release(end, Part::Marker, sink);
            self.state = if is_header { State::Header } else { State::Thinking { fresh: true } };
            return true;
        }
        // With headers, what stands behind a message is no text either.
        if open.starts_with(rest) {
            return false;
        }
        if closed {
            self.release(space, Part::Marker, sink);
        }
        self.state = State::Answer;
        true
    }

    /// Within thinking: white space and parts of the marker are held back.
    fn step_thinking(&mut self, fresh: bool, sink: Sink<'_>) -> bool {
        if fresh {
            let space = self.held.len() - self.held.trim_start().len();
            self.release(space, Part::Marker, sink);
            if self.held.is_empty() {
                return false;
            }
        }
        let close = self.format.close();
        let found = self.held.find(close);
        let end = found.unwrap_or_else(|| self.held.len() - open_suffix(&self.held, close));
        let text = self.held[..end].trim_end().len();
        if text > 0 {
            self.release(text, Part::Thinking, sink);
            self.state = State::Thinking { fresh: false };
        }
        if found.is_some() {
            self.release(end - text + close.len(), Part::Marker, sink);
            self.state = self.behind_message();
        }
        found.is_some()
    }

    /// Within a header.
    fn step_header(&mut self, headers: Headers, sink: Sink<'_>) -> bool {
        let found = self.held.find(headers.end).filter(|&end| end <= HEADER_BYTES);
        let Some(end) = found else {
            if self.held.len() < HEADER_BYTES + headers.end.len() {
                return false;
            }
            self.release(self.format.open().len(), Part::Answer, sink);
            self.state = State::Answer;
            return true;
        };
        let header = self.held[self.format.open().len()..end].trim_start();
        let is_thinking = header.starts_with(headers.thinking);
        let recipient = self.held[..end].find(headers.recipient).filter(|_| !is_thinking);
        self.release_header(recipient, end + headers.end.len(), sink);
        self.state = if is_thinking { State::Thinking { fresh: true } } else { State::Answer };
        true
    }

    /// Gives a header away. From its recipient on it is part of a call.
    fn release_header(&mut self, recipient: Option<usize>, end: usize, sink: Sink<'_>) {
        let marker = recipient.unwrap_or(end);
        self.release(marker, Part::Marker, sink);
        self.release(end - marker, Part::Answer, sink);
    }

    /// Between two messages: the role of the next one, and the recipient of a call.
    fn step_between(&mut self, headers: Headers, sink: Sink<'_>) -> bool {
        let open = self.format.open();
        let marker = [open, headers.end].iter().filter_map(|text| Some((self.held.find(text)?, *text))).min();
        let end = marker.map_or(self.held.len(), |(at, _)| at);
        if let Some(recipient) = self.held[..end].find(headers.recipient) {
            return self.step_recipient(recipient, headers, sink);
        }
        match marker {
            Some((at, marker)) if marker == open => {
                self.release(at, Part::Marker, sink);
                self.state = State::Header;
                true
            }
            Some((at, marker)) => {
                self.release(at + marker.len(), Part::Marker, sink);
                self.state = State::Answer;
                true
            }
            None => {
                let undecided =
                    [open, headers.end, headers.recipient].map(|text| open_suffix(&self.held, text));
                let undecided = undecided.into_iter().max().unwrap_or(0);
                self.release(self.held.len() - undecided, Part::Marker, sink);
                false
            }
        }
    }

    /// Between two messages, before a recipient: the rest of a header.
    fn step_recipient(&mut self, recipient: usize, headers: Headers, sink: Sink<'_>) -> bool {
        self.release(recipient, Part::Marker, sink);
        match self.held.find(headers.end).filter(|&end| end <= HEADER_BYTES) {
            Some(end) => {
                self.release_header(Some(0), end + headers.end.len(), sink);
                self.state = State::Answer;
                true
            }
            None if self.held.len() < HEADER_BYTES + headers.end.len() => false,
            None => {
                self.release(headers.recipient.len(), Part::Marker, sink);
                true
            }
        }
    }

    /// Within a message of the answer, which a marker ends.
    fn step_message(&mut self, sink: Sink<'_>) -> bool {
        let close = self.format.close();
        let found = self.held.find(close);
        let end = found.unwrap_or_else(|| self.held.len() - open_suffix(&self.held, close));
        self.release(end, Part::Answer, sink);
        if found.is_some() {
            self.release(close.len(), Part::Marker, sink);
            self.state = self.behind_message();
        }
        found.is_some()
    }

    /// State behind the end of thinking, or of a message.
    fn behind_message(&self) -> State {
        if self.format.has_headers() { State::Between } else { State::Open { closed: true } }
    }

    /// Gives the first `bytes` of the held text away.
    fn release(&mut self, bytes: usize, part: Part, sink: Sink<'_>) {
        if bytes > 0 {
            sink(part, &self.held[..bytes]);
            self.held.drain(..bytes);
        }
    }
}
