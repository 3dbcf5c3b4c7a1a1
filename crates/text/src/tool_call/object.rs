//! The JSON object of a call, `{"name": ..., "arguments": ...}`, character by character.

use serde::de::IgnoredAny;

use super::scan::{Place, ValueScan};

/// Effect of a character.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    None,
    /// The name is known and the arguments begin with this character.
    Begins,
    /// The character is part of arguments that have begun.
    Argument,
    /// The object is complete.
    Ends,
    /// The call is complete, but the object is not: this character cannot follow.
    EndsEarly,
    Fault,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Expect {
    Brace,
    KeyOrEnd,
    Key,
    Colon,
    Value,
    CommaOrEnd,
}

/// Meaning of a property.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Property {
    Name,
    Arguments,
    /// Has no effect, such as `"type": "function"`.
    Other,
}

/// Reader of one call object.
#[derive(Debug, Clone)]
pub(super) struct ObjectScan {
    expect: Expect,
    value: ValueScan,
    /// Text of the current key or value.
    text: String,
    property: Property,
    name: Option<String>,
    /// Arguments that came before the name or as a string; empty if they were given away.
    arguments: Option<String>,
    /// True from the first argument that was given away.
    has_begun: bool,
}

impl ObjectScan {
    pub(super) fn new() -> Self {
        Self {
            expect: Expect::Brace,
            value: ValueScan::default(),
            text: String::new(),
            property: Property::Other,
            name: None,
            arguments: None,
            has_begun: false,
        }
    }

    /// The function's name, once it is known.
    pub(super) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Arguments that were not given away character by character: an empty object if there are
    /// none.
    pub(super) fn held_arguments(&self) -> Option<&str> {
        if self.has_begun { None } else { Some(self.arguments.as_deref().unwrap_or("{}")) }
    }

    /// True if name and arguments are complete, whatever may still follow in the object.
    pub(super) fn is_whole(&self) -> bool {
        self.expect == Expect::CommaOrEnd && self.name.is_some() && self.arguments.is_some()
    }

    /// Takes the next character.
    pub(super) fn push(&mut self, c: char) -> Effect {
        let is_space = matches!(c, ' ' | '\t' | '\n' | '\r');
        match self.expect {
            Expect::Key | Expect::Value => return self.push_text(c),
            _ if is_space => {}
            Expect::Brace if c == '{' => self.expect = Expect::KeyOrEnd,
            Expect::KeyOrEnd if c == '"' => {
                (self.expect, self.value) = (Expect::Key, ValueScan::default());
                self.text.clear();
                return self.push_text(c);
            }
            // Of the first key only; a comma before the end is forgiven.
            Expect::KeyOrEnd | Expect::CommaOrEnd if c == '}' => return self.end(),
            Expect::Colon if c == ':' => {
                (self.expect, self.value) = (Expect::Value, ValueScan::default());
                self.text.clear();
            }
            Expect::CommaOrEnd if c == ',' => self.expect = Expect::KeyOrEnd,
            // Small models forget the last brace.
            Expect::CommaOrEnd if self.is_whole() => return Effect::EndsEarly,
            _ => return Effect::Fault,
        }
        Effect::None
    }

    fn end(&self) -> Effect {
        if self.name.is_some() { Effect::Ends } else { Effect::Fault }
    }

    /// Takes a character of a key or value.
    fn push_text(&mut self, c: char) -> Effect {
        let place = self.value.push(c);
        match place {
            Place::Before => return Effect::None,
            Place::Fault => return Effect::Fault,
            Place::Behind => return if self.close() { self.push(c) } else { Effect::Fault },
            Place::Inside | Place::Last => {}
        }
        let is_first = self.text.is_empty();
        self.text.push(c);
        let is_arguments = self.expect == Expect::Value && self.property == Property::Arguments;
        if is_arguments && self.arguments.is_some() {
            return Effect::Fault;
        }
        let begins = is_arguments && is_first && c == '{' && self.name.is_some();
        self.has_begun |= begins;
        if place == Place::Last && !self.close() {
            return Effect::Fault;
        }
        match (is_arguments && self.has_begun, begins) {
            (true, true) => Effect::Begins,
            (true, false) => Effect::Argument,
            (false, _) => Effect::None,
        }
    }

    /// Ends the current key or value; false if it is not acceptable.
    fn close(&mut self) -> bool {
        if self.expect == Expect::Key {
            self.expect = Expect::Colon;
            let Ok(key) = serde_json::from_str::<String>(&self.text) else { return false };
            self.property = match key.as_str() {
                "name" => Property::Name,
                "arguments" | "parameters" => Property::Arguments,
                _ => Property::Other,
            };
            return true;
        }
        self.expect = Expect::CommaOrEnd;
        match self.property {
            Property::Name => {
                let name = serde_json::from_str::<String>(&self.text).ok().filter(|name| !name.is_empty());
                let is_first = self.name.is_none();
                self.name = name;
                is_first && self.name.is_some()
            }
            Property::Arguments => {
                self.arguments = arguments_of(&self.text);
                self.arguments.is_some()
            }
            Property::Other => serde_json::from_str::<IgnoredAny>(&self.text).is_ok(),
        }
    }
}

/// Arguments as the text of a JSON object: given so, as a string that holds one, or as null.
pub(super) fn arguments_of(text: &str) -> Option<String> {
    match text.chars().next()? {
        '{' => serde_json::from_str::<IgnoredAny>(text).ok().map(|_| text.to_owned()),
        '"' => {
            let inner = serde_json::from_str::<String>(text).ok()?;
            inner.trim_start().starts_with('{').then(|| arguments_of(inner.trim())).flatten()
        }
        _ => (text == "null").then(|| "{}".to_owned()),
    }
}
