//! Arguments as elements, `<parameter=name>text</parameter>`, character by character.

use super::format::ToolCallFormat;
use super::scan::ValueScan;
use super::types::ArgumentType;

/// Longest name of a parameter in bytes.
const NAME_BYTES: usize = 256;

/// Tags of a format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tags {
    /// Before and behind the name of a parameter.
    pub(super) name: (&'static str, &'static str),
    /// Before its text; empty if the name's tag is.
    pub(super) open: &'static str,
    /// Behind its text.
    pub(super) close: &'static str,
    /// Behind all of them.
    pub(super) end: &'static str,
    /// True if a line break behind the opening and one before the closing are no part of the text.
    pub(super) has_lines: bool,
}

impl Tags {
    /// Tags of a format; `None` if its arguments are JSON.
    pub(super) fn of(format: ToolCallFormat) -> Option<Self> {
        match format {
            ToolCallFormat::QwenXml => Some(Self {
                name: ("<parameter=", ">"),
                open: "",
                close: "</parameter>",
                end: "</function>",
                has_lines: true,
            }),
            ToolCallFormat::Glm => Some(Self {
                name: ("<arg_key>", "</arg_key>"),
                open: "<arg_value>",
                close: "</arg_value>",
                end: "</tool_call>",
                has_lines: false,
            }),
            _ => None,
        }
    }
}

/// Effect of a character.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Undecided text, or part of the arguments.
    Goes,
    /// The first parameter, or the end, is certain: this is a call.
    Begins,
    /// The arguments are complete.
    Ends,
    Fault,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expect {
    /// A parameter or the end.
    Item,
    Name,
    /// The tag before the text.
    Open,
    Text,
}

/// Reader of the parameters of one call; writes them as a JSON object.
#[derive(Debug, Clone)]
pub(super) struct Elements {
    tags: Tags,
    expect: Expect,
    /// Undecided characters of a tag, a name or a text.
    held: String,
    kind: ArgumentType,
    /// Parameters so far.
    count: usize,
    /// True at the beginning of a text.
    is_first: bool,
    has_begun: bool,
}

impl Elements {
    pub(super) fn new(tags: Tags) -> Self {
        Self {
            tags,
            expect: Expect::Item,
            held: String::new(),
            kind: ArgumentType::Any,
            count: 0,
            is_first: false,
            has_begun: false,
        }
    }

    /// Takes the next character; JSON that it makes certain is appended to `json`. `type_of` gives
    /// the type of a parameter.
    pub(super) fn push(
        &mut self,
        c: char,
        json: &mut String,
        type_of: &dyn Fn(&str) -> ArgumentType,
    ) -> Step {
        match self.expect {
            Expect::Item => self.push_item(c, json),
            Expect::Name => self.push_name(c, json, type_of),
            Expect::Open => self.push_open(c),
            Expect::Text => {
                self.push_text(c, json);
                Step::Goes
            }
        }
    }

    fn push_item(&mut self, c: char, json: &mut String) -> Step {
        if self.held.is_empty() && is_space(c) {
            return Step::Goes;
        }
        self.held.push(c);
        if self.held == self.tags.end {
            json.push_str(if self.count == 0 { "{}" } else { "}" });
            return Step::Ends;
        }
        if self.held == self.tags.name.0 {
            self.held.clear();
            self.expect = Expect::Name;
            let begins = !std::mem::replace(&mut self.has_begun, true);
            return if begins { Step::Begins } else { Step::Goes };
        }
        let goes_on = self.tags.end.starts_with(&self.held) || self.tags.name.0.starts_with(&self.held);
        if goes_on { Step::Goes } else { Step::Fault }
    }

    fn push_name(&mut self, c: char, json: &mut String, type_of: &dyn Fn(&str) -> ArgumentType) -> Step {
        self.held.push(c);
        let Some(name) = self.held.strip_suffix(self.tags.name.1) else {
            let is_text = c != '\n' && self.held.len() <= NAME_BYTES;
            return if is_text { Step::Goes } else { Step::Fault };
        };
        let name = name.trim();
        if name.is_empty() || name.contains(['<', '>']) {
            return Step::Fault;
        }
        self.kind = type_of(name);
        json.push_str(if self.count == 0 { "{" } else { ", " });
        json.push_str(&serde_json::Value::from(name).to_string());
        json.push_str(": ");
        self.count += 1;
        self.held.clear();
        self.is_first = true;
        self.expect = if self.tags.open.is_empty() { Expect::Text } else { Expect::Open };
        Step::Goes
    }

    fn push_open(&mut self, c: char) -> Step {
        if self.held.is_empty() && is_space(c) {
            return Step::Goes;
        }
        self.held.push(c);
        if self.held == self.tags.open {
            self.held.clear();
            self.expect = Expect::Text;
            return Step::Goes;
        }
        if self.tags.open.starts_with(&self.held) { Step::Goes } else { Step::Fault }
    }

    fn push_text(&mut self, c: char, json: &mut String) {
        if std::mem::take(&mut self.is_first) {
            if self.kind == ArgumentType::Text {
                json.push('"');
            }
            if self.tags.has_lines && c == '\n' {
                return;
            }
        }
        self.held.push(c);
        let Self { tags, kind, held, .. } = self;
        let closed = held.strip_suffix(tags.close);
        // A tag in a string of JSON is text.
        let closed = closed.filter(|text| *kind != ArgumentType::Json || !ValueScan::ends_in_string(text));
        if let Some(text) = closed {
            let text = if tags.has_lines { text.strip_suffix('\n').unwrap_or(text) } else { text };
            match kind {
                ArgumentType::Text => {
                    escape(text, json);
                    json.push('"');
                }
                kind => json.push_str(&kind.json(text)),
            }
            held.clear();
            self.expect = Expect::Item;
        } else if *kind == ArgumentType::Text {
            // A line break before the closing is no part of the text.
            let tag = open_suffix(held, tags.close);
            let before = &held[..held.len() - tag];
            let kept = tag + usize::from(tags.has_lines && before.ends_with('\n'));
            let rest = held.split_off(held.len() - kept);
            escape(held, json);
            *held = rest;
        }
    }
}

/// Appends text as the inside of a JSON string.
fn escape(text: &str, json: &mut String) {
    if !text.is_empty() {
        let quoted = serde_json::Value::from(text).to_string();
        json.push_str(&quoted[1..quoted.len() - 1]);
    }
}

pub(super) fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n' | '\r')
}

/// Bytes of the longest suffix of `held` that is a proper prefix of `marker`.
pub(crate) fn open_suffix(held: &str, marker: &str) -> usize {
    let longest = held.len().min(marker.len().saturating_sub(1));
    (1..=longest).rev().find(|&n| held.as_bytes().ends_with(&marker.as_bytes()[..n])).unwrap_or(0)
}
