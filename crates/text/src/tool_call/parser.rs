//! Streaming parser of tool calls.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::elements::{Elements, Step, Tags, is_space, open_suffix};
use super::format::ToolCallFormat;
use super::object::{Effect, ObjectScan, arguments_of};
use super::scan::{Place, ValueScan};
use super::types::ArgumentTypes;

/// Longest function name in a marker, in bytes: longer ones are text.
const NAME_BYTES: usize = 256;
/// Between name and arguments in [`ToolCallFormat::MistralArgs`].
const ARGS: &str = "[ARGS]";
/// Before the name in [`ToolCallFormat::QwenXml`].
const FUNCTION: &str = "<function=";
/// Between name and arguments in [`ToolCallFormat::Harmony`].
const MESSAGE: &str = "<|message|>";
/// Before an id, which some Mistral models write behind the name.
const CALL_ID: &str = "[CALL_ID]";

/// A complete call.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ToolCall {
    /// Identifier, unique in the answer: results refer to it.
    pub id: String,
    /// Name of the function.
    pub name: String,
    /// Arguments: the text of a JSON object, as the model wrote it, or made of the elements that it
    /// wrote.
    pub arguments: String,
}

impl ToolCall {
    /// The arguments as a JSON object.
    #[must_use]
    pub fn arguments_value(&self) -> Map<String, Value> {
        serde_json::from_str(&self.arguments).unwrap_or_default()
    }
}

/// Piece of parsed output.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ToolCallEvent {
    /// Text outside of calls.
    Content(String),
    /// A call begins.
    Begin {
        /// Number of the call in the answer, from 0 on.
        index: usize,
        /// Its identifier.
        id: String,
        /// Name of the function.
        name: String,
    },
    /// The next characters of a call's arguments. All of them joined are a JSON object.
    Arguments {
        /// Number of the call.
        index: usize,
        /// The characters.
        delta: String,
    },
    /// A call is complete.
    End {
        /// Number of the call.
        index: usize,
    },
    /// A call that has begun is not valid JSON, or the output ended within it. There is no
    /// [`End`](Self::End) then.
    Invalid {
        /// Number of the call.
        index: usize,
    },
}

/// Text and calls of a whole output.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ParsedOutput {
    /// Text outside of calls.
    pub content: String,
    /// Complete calls.
    pub calls: Vec<ToolCall>,
    /// Calls that began and are not valid, for example because the output was cut: function name
    /// and the part of the arguments that is there.
    pub invalid: Vec<(String, String)>,
}

impl ParsedOutput {
    /// Adds an event.
    pub fn push(&mut self, event: ToolCallEvent) {
        match event {
            ToolCallEvent::Content(text) => self.content.push_str(&text),
            ToolCallEvent::Begin { id, name, .. } => {
                self.calls.push(ToolCall { id, name, arguments: String::new() });
            }
            ToolCallEvent::Arguments { delta, .. } => {
                if let Some(call) = self.calls.last_mut() {
                    call.arguments.push_str(&delta);
                }
            }
            ToolCallEvent::End { .. } => {}
            ToolCallEvent::Invalid { .. } => {
                self.invalid.extend(self.calls.pop().map(|call| (call.name, call.arguments)));
            }
        }
    }
}

/// Position of the parser.
#[derive(Debug, Clone)]
enum State {
    /// Outside of calls, looking for the opening.
    Text,
    /// Behind the opening, before the object, array or name.
    Open,
    /// Within the name of [`ToolCallFormat::FunctionTag`], [`ToolCallFormat::MistralArgs`] and
    /// [`ToolCallFormat::Harmony`].
    Name,
    /// Within `{"name": ..., "arguments": ...}`.
    Object(Box<ObjectScan>),
    /// Within arguments that stand alone.
    Bare(ValueScan),
    /// Before the end of the name of a format with elements.
    Head,
    /// Behind that name.
    Elements(Box<Elements>),
    /// Behind a call.
    Close,
    /// Behind the fault of a call that has begun: nothing up to its end is content.
    Skip,
}

/// Splits generated text, piece by piece, into content and tool calls.
///
/// The result depends on the text alone, not on its division into pieces. Text that may be the
/// beginning of a call is held back until that is decided; white space around calls is dropped.
/// Text that looks like a call but has no valid name and arguments is content; a call that turns
/// out to be invalid after its arguments have begun ends with [`ToolCallEvent::Invalid`].
///
/// # Examples
/// ```
/// use ruvllm_text::tool_call::{ToolCallEvent, ToolCallFormat, ToolCallParser};
///
/// let mut parser = ToolCallParser::new(ToolCallFormat::Hermes);
/// let mut events = Vec::new();
/// for piece in ["Let me see.<tool", "_call>{\"name\": \"now\", \"arguments\": {\"zone\": \"U", "TC\"}}</tool_call>"] {
///     parser.push(piece, &mut events);
/// }
/// parser.finish(&mut events);
/// assert_eq!(events[0], ToolCallEvent::Content("Let me see.".to_owned()));
/// assert!(matches!(&events[1], ToolCallEvent::Begin { index: 0, name, .. } if name == "now"));
/// let arguments: String = events
///     .iter()
///     .filter_map(|event| match event {
///         ToolCallEvent::Arguments { delta, .. } => Some(delta.as_str()),
///         _ => None,
///     })
///     .collect();
/// assert_eq!(arguments, "{\"zone\": \"UTC\"}");
/// ```
#[derive(Debug, Clone)]
pub struct ToolCallParser {
    format: ToolCallFormat,
    id_seed: u64,
    state: State,
    /// Text that is not decided: white space, part of a marker, a call before its arguments.
    held: String,
    /// Name, or the text of bare arguments.
    text: String,
    /// Calls that have begun.
    calls: usize,
    /// True between the beginning of a call and its end.
    in_call: bool,
    /// Within the brackets of a Mistral array.
    in_array: bool,
    /// Types of arguments that are text between tags.
    types: Arc<ArgumentTypes>,
}

impl ToolCallParser {
    /// A parser of one answer.
    #[must_use]
    pub fn new(format: ToolCallFormat) -> Self {
        // Llama's calls need no opening.
        let state = if format == ToolCallFormat::Llama { State::Open } else { State::Text };
        Self {
            format,
            id_seed: 0,
            state,
            held: String::new(),
            text: String::new(),
            calls: 0,
            in_call: false,
            in_array: false,
            types: Arc::default(),
        }
    }

    /// Sets the types of arguments that are text between tags
    /// ([`ToolCallFormat::has_elements`]). Without them, text that is JSON is read as such, also
    /// for a parameter whose values are strings.
    #[must_use]
    pub fn with_argument_types(mut self, types: Arc<ArgumentTypes>) -> Self {
        self.types = types;
        self
    }

    /// Sets the number that identifiers are computed from: answers of one conversation need
    /// different ones.
    #[must_use]
    pub fn with_id_seed(mut self, seed: u64) -> Self {
        self.id_seed = seed;
        self
    }

    /// Parses a whole output.
    #[must_use]
    pub fn parse(mut self, text: &str) -> ParsedOutput {
        let mut events = Vec::new();
        self.push(text, &mut events);
        self.finish(&mut events);
        let mut output = ParsedOutput::default();
        events.into_iter().for_each(|event| output.push(event));
        output
    }

    /// Takes the next piece of text and appends what it makes certain to `events`.
    pub fn push(&mut self, text: &str, events: &mut Vec<ToolCallEvent>) {
        text.chars().for_each(|c| self.take(c, events));
    }

    /// Ends the output.
    pub fn finish(&mut self, events: &mut Vec<ToolCallEvent>) {
        match std::mem::replace(&mut self.state, State::Text) {
            State::Object(object) if self.in_call && object.is_whole() => self.end_call(events),
            _ if self.in_call => self.invalid(events),
            State::Close | State::Skip => {}
            _ if self.calls > 0 && self.held.trim().is_empty() => {}
            _ => self.release(events),
        }
        self.held.clear();
    }

    fn take(&mut self, c: char, events: &mut Vec<ToolCallEvent>) {
        match self.state {
            State::Text => self.take_text(c, events),
            State::Open => self.take_open(c, events),
            State::Name => self.take_name(c, events),
            State::Object(_) => self.take_object(c, events),
            State::Bare(_) => self.take_bare(c, events),
            State::Head => self.take_head(c, events),
            State::Elements(_) => self.take_elements(c, events),
            State::Close => self.take_close(c, events),
            State::Skip => {
                self.held.push(c);
                let closing = self.format.closing();
                if !closing.is_empty() && self.held.ends_with(closing) {
                    self.held.clear();
                    self.state = State::Text;
                } else if self.held.len() > 2 * closing.len() + 4 {
                    let from = self.held.len() - open_suffix(&self.held, closing);
                    self.held.drain(..from);
                }
            }
        }
    }

    /// Outside of calls: white space and parts of the opening are held back.
    fn take_text(&mut self, c: char, events: &mut Vec<ToolCallEvent>) {
        self.held.push(c);
        let opening = self.format.opening();
        if self.held.ends_with(opening) {
            self.state = match self.format {
                ToolCallFormat::FunctionTag | ToolCallFormat::Harmony => State::Name,
                ToolCallFormat::QwenXml | ToolCallFormat::Glm => State::Head,
                _ => State::Open,
            };
            self.text.clear();
            self.in_array = false;
            return;
        }
        let marker = open_suffix(&self.held, opening);
        let before = self.held[..self.held.len() - marker].trim_end().len();
        if before > 0 {
            let released: String = self.held.drain(..before).collect();
            content(events, &released);
        }
    }

    /// Behind the opening.
    fn take_open(&mut self, c: char, events: &mut Vec<ToolCallEvent>) {
        let is_mistral = matches!(self.format, ToolCallFormat::Mistral | ToolCallFormat::MistralArgs);
        match c {
            ' ' | '\t' | '\n' | '\r' => self.held.push(c),
            '{' => {
                self.state = State::Object(Box::new(ObjectScan::new()));
                self.take_object(c, events);
            }
            '[' if is_mistral && !self.in_array => {
                self.in_array = true;
                self.held.push(c);
            }
            _ if is_mistral && !self.in_array && is_name(c) => {
                self.state = State::Name;
                self.take_name(c, events);
            }
            _ => self.refuse(c, events),
        }
    }

    /// Within a name that a marker ends.
    fn take_name(&mut self, c: char, events: &mut Vec<ToolCallEvent>) {
        let (end, behind_name): (_, &[_]) = match self.format {
            ToolCallFormat::FunctionTag => (">", &[]),
            // Channel and type of the arguments may follow.
            ToolCallFormat::Harmony => (MESSAGE, &[" ", "<|"]),
            _ => (ARGS, &[CALL_ID]),
        };
        self.text.push(c);
        if let Some(head) = self.text.strip_suffix(end) {
            let name =
                behind_name.iter().fold(head, |name, border| name.split(border).next().unwrap_or(name));
            let name = name.trim().to_owned();
            if name.is_empty() || !name.chars().all(is_name) {
                return self.refuse(c, events);
            }
            self.held.push(c);
            self.text.clear();
            self.state = State::Bare(ValueScan::default());
            // The name stays until the arguments begin.
            self.text.push_str(&name);
            return;
        }
        let is_part = is_name(c) || "[]<>|= \t".contains(c);
        if !is_part || self.text.len() > NAME_BYTES || (c == '<' && end == ">") {
            return self.refuse(c, events);
        }
        self.held.push(c);
    }

    /// Within arguments that stand alone. Before the first brace `text` is the name.
    fn take_bare(&mut self, c: char, events: &mut Vec<ToolCallEvent>) {
        let State::Bare(scan) = &mut self.state else { return };
        let place = scan.push(c);
        if !self.in_call {
            match (place, c) {
                (Place::Before, _) => return self.held.push(c),
                (Place::Inside, '{') => {
                    let name = std::mem::take(&mut self.text);
                    self.begin(name, events);
                }
                _ => return self.refuse(c, events),
            }
        }
        match place {
            Place::Fault | Place::Behind | Place::Before => return self.refuse(c, events),
            Place::Inside | Place::Last => {}
        }
        self.text.push(c);
        self.argument(c, events);
        if place == Place::Last {
            let is_valid = arguments_of(&self.text).is_some();
            if is_valid { self.end_call(events) } else { self.invalid(events) }
        }
    }

    /// Before the end of a name that arguments as elements follow.
    fn take_head(&mut self, c: char, events: &mut Vec<ToolCallEvent>) {
        if self.text.is_empty() && is_space(c) {
            return self.held.push(c);
        }
        let head = if self.format == ToolCallFormat::QwenXml { FUNCTION } else { "" };
        // Without a head, the name ends with its line or where the first tag begins.
        let is_end = if head.is_empty() { matches!(c, '\n' | '<') } else { c == '>' };
        match self.text.strip_prefix(head) {
            Some(name) if is_end => {
                let (name, tags) = (name.trim().to_owned(), Tags::of(self.format));
                let Some(tags) = tags.filter(|_| !name.is_empty() && name.chars().all(is_name)) else {
                    return self.refuse(c, events);
                };
                self.text = name;
                self.state = State::Elements(Box::new(Elements::new(tags)));
                if c == '<' { self.take_elements(c, events) } else { self.held.push(c) }
            }
            Some(_) if self.text.len() < NAME_BYTES && (is_name(c) || " \t\r".contains(c)) => {
                self.text.push(c);
                self.held.push(c);
            }
            None if head[self.text.len()..].starts_with(c) => {
                self.text.push(c);
                self.held.push(c);
            }
            _ => self.refuse(c, events),
        }
    }

    /// Within arguments as elements; `text` is the function's name.
    fn take_elements(&mut self, c: char, events: &mut Vec<ToolCallEvent>) {
        let Self { state: State::Elements(elements), types, text, .. } = self else { return };
        let mut json = String::new();
        let step = elements.push(c, &mut json, &|parameter| types.of(text, parameter));
        match step {
            Step::Fault => return self.refuse(c, events),
            Step::Begins | Step::Ends if !self.in_call => self.begin(self.text.clone(), events),
            _ if !self.in_call => return self.held.push(c),
            _ => {}
        }
        json.chars().for_each(|c| self.argument(c, events));
        if step == Step::Ends {
            self.end_call(events);
            if self.format == ToolCallFormat::Glm {
                // The end of the arguments is that of the call.
                self.state = State::Text;
            }
        }
    }

    /// Within a call object.
    fn take_object(&mut self, c: char, events: &mut Vec<ToolCallEvent>) {
        let State::Object(object) = &mut self.state else { return };
        match object.push(c) {
            Effect::None => {
                if !self.in_call {
                    self.held.push(c);
                }
            }
            Effect::Begins => {
                let name = object.name().unwrap_or_default().to_owned();
                self.begin(name, events);
                self.argument(c, events);
            }
            Effect::Argument => self.argument(c, events),
            effect @ (Effect::Ends | Effect::EndsEarly) => {
                let name = object.name().unwrap_or_default().to_owned();
                if let Some(arguments) = object.held_arguments().map(str::to_owned) {
                    self.begin(name, events);
                    arguments.chars().for_each(|c| self.argument(c, events));
                }
                self.end_call(events);
                if effect == Effect::EndsEarly {
                    self.take(c, events);
                }
            }
            Effect::Fault => self.refuse(c, events),
        }
    }

    /// Behind a call: its closing, the next one, or text.
    fn take_close(&mut self, c: char, events: &mut Vec<ToolCallEvent>) {
        let is_space = matches!(c, ' ' | '\t' | '\n' | '\r');
        let closing = self.format.closing();
        self.held.push(c);
        if !closing.is_empty() {
            let rest = self.held.trim_start();
            if rest == closing {
                self.held.clear();
                self.state = State::Text;
            } else if !closing.starts_with(rest) {
                self.reread(events);
            }
            return;
        }
        match c {
            _ if is_space => {}
            ';' if self.format == ToolCallFormat::Llama => self.held.clear(),
            ',' if self.in_array => {
                self.held.clear();
                self.state = State::Open;
            }
            '{' if self.format == ToolCallFormat::Llama => {
                self.held.pop();
                self.state = State::Open;
                self.take_open(c, events);
            }
            ']' if self.in_array => {
                self.held.clear();
                self.in_array = false;
                self.state = State::Text;
            }
            _ => self.reread(events),
        }
    }

    /// Reads held characters as text.
    fn reread(&mut self, events: &mut Vec<ToolCallEvent>) {
        self.state = State::Text;
        let held = std::mem::take(&mut self.held);
        held.chars().for_each(|c| self.take_text(c, events));
    }

    /// The text is no call, or not any more: before its arguments all of it is content.
    fn refuse(&mut self, c: char, events: &mut Vec<ToolCallEvent>) {
        if self.in_call {
            self.invalid(events);
            return self.take(c, events);
        }
        self.state = State::Text;
        // White space stays held back, since a call may follow.
        if !self.held.trim().is_empty() {
            self.release(events);
        }
        self.take_text(c, events);
    }

    /// Gives away all that is held back.
    fn release(&mut self, events: &mut Vec<ToolCallEvent>) {
        content(events, &self.held);
        self.held.clear();
    }

    fn begin(&mut self, name: String, events: &mut Vec<ToolCallEvent>) {
        // Only white space can be before the marker: the rest is content already.
        self.held.clear();
        let index = self.calls;
        self.calls += 1;
        self.in_call = true;
        events.push(ToolCallEvent::Begin { index, id: self.id(index), name });
    }

    fn argument(&mut self, c: char, events: &mut Vec<ToolCallEvent>) {
        if let Some(ToolCallEvent::Arguments { delta, .. }) = events.last_mut() {
            return delta.push(c);
        }
        events.push(ToolCallEvent::Arguments { index: self.calls - 1, delta: c.to_string() });
    }

    fn end_call(&mut self, events: &mut Vec<ToolCallEvent>) {
        events.push(ToolCallEvent::End { index: self.calls - 1 });
        self.leave(State::Close);
    }

    fn invalid(&mut self, events: &mut Vec<ToolCallEvent>) {
        events.push(ToolCallEvent::Invalid { index: self.calls - 1 });
        self.leave(State::Skip);
    }

    fn leave(&mut self, state: State) {
        self.in_call = false;
        self.text.clear();
        self.held.clear();
        self.state = state;
    }

    /// Identifier of a call: nine letters and digits, as templates of Mistral demand.
    fn id(&self, index: usize) -> String {
        const LETTERS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
        let mut number = mix(self.id_seed.wrapping_add(mix(index as u64 + 1)));
        let letters = (0..9).map(|_| {
            let letter = LETTERS[(number % 62) as usize];
            number /= 62;
            char::from(letter)
        });
        match self.format {
            ToolCallFormat::Mistral | ToolCallFormat::MistralArgs => letters.collect(),
            _ => "call_".chars().chain(letters).collect(),
        }
    }
}

/// Characters of function names.
fn is_name(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | ':' | '/')
}

/// Appends text to the content.
fn content(events: &mut Vec<ToolCallEvent>, text: &str) {
    match events.last_mut() {
        _ if text.is_empty() => {}
        Some(ToolCallEvent::Content(content)) => content.push_str(text),
        _ => events.push(ToolCallEvent::Content(text.to_owned())),
    }
}

/// Finalizer of the generator SplitMix64 (Steele, Lea, Flood 2014).
fn mix(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
