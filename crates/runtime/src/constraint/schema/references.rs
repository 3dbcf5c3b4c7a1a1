//! References of a schema: each target becomes a definition under a name of its own.

use std::collections::HashMap;

use serde_json::Value;

use super::super::error::ConstraintError;
use super::Place;

/// The schemas that a document's references point at, numbered; the document is number 0.
pub(super) struct References<'s> {
    document: &'s Value,
    anchors: HashMap<&'s str, &'s Value>,
    definitions: Vec<Definition<'s>>,
    by_pointer: HashMap<String, usize>,
}

struct Definition<'s> {
    path: String,
    source: &'s Value,
    /// Definitions that apply to the same value.
    in_place: Vec<usize>,
}

/// Name of a definition in the rewritten schema.
pub(super) fn name(number: usize) -> String {
    format!("d{number}")
}

impl<'s> References<'s> {
    pub(super) fn new(document: &'s Value) -> Self {
        let mut anchors = HashMap::new();
        let mut open = vec![document];
        while let Some(value) = open.pop() {
            match value {
                Value::Array(items) => open.extend(items),
                Value::Object(map) => {
                    if let Some(Value::String(anchor)) = map.get("$anchor") {
                        anchors.insert(anchor.as_str(), value);
                    }
                    open.extend(map.values());
                }
                _ => {}
            }
        }
        let root = Definition { path: "#".to_owned(), source: document, in_place: Vec::new() };
        let by_pointer = HashMap::from([("#".to_owned(), 0)]);
        Self { document, anchors, definitions: vec![root], by_pointer }
    }

    /// Place and source of a definition, if there are so many.
    pub(super) fn definition(&self, number: usize) -> Option<(String, &'s Value)> {
        self.definitions.get(number).map(|definition| (definition.path.clone(), definition.source))
    }

    /// Place of the definition with a name of the rewritten schema.
    pub(super) fn path(&self, written: &str) -> String {
        let number = (0..self.definitions.len()).find(|&number| name(number) == written).unwrap_or(0);
        self.definitions[number].path.clone()
    }

    /// The schema that a reference points at.
    pub(super) fn find(&self, reference: &str) -> Option<&'s Value> {
        let fragment = decode_percent(reference.strip_prefix('#')?)?;
        match fragment.strip_prefix('/') {
            None if fragment.is_empty() => Some(self.document),
            None => self.anchors.get(fragment.as_str()).copied(),
            Some(_) => self.document.pointer(&fragment),
        }
    }

    /// The reference of the rewritten schema for one at `place`.
    pub(super) fn rewrite(&mut self, reference: &str, place: &Place) -> Result<String, ConstraintError> {
        if !reference.starts_with('#') {
            let remedy = format!("put the target of {reference:?} into $defs and refer to #/$defs/NAME");
            return Err(place.unsupported("$ref", remedy));
        }
        let Some(source) = self.find(reference) else {
            return Err(place.invalid(format!("$ref {reference:?} points at nothing in the schema")));
        };
        let number = match self.by_pointer.get(reference) {
            Some(&number) => number,
            None => {
                let number = self.definitions.len();
                let path = reference.to_owned();
                self.definitions.push(Definition { path, source, in_place: Vec::new() });
                self.by_pointer.insert(reference.to_owned(), number);
                number
            }
        };
        if place.in_place {
            self.definitions[place.definition].in_place.push(number);
        }
        Ok(if number == 0 { "#".to_owned() } else { format!("#/$defs/{}", name(number)) })
    }

    /// Checks that no definition applies itself to the same value: that would say nothing.
    pub(super) fn check_cycles(&self) -> Result<(), ConstraintError> {
        // Definitions without open references are removed one after the other; a rest is a cycle.
        let mut users = vec![Vec::new(); self.definitions.len()];
        for (user, definition) in self.definitions.iter().enumerate() {
            definition.in_place.iter().for_each(|&used| users[used].push(user));
        }
        let mut open: Vec<usize> =
            self.definitions.iter().map(|definition| definition.in_place.len()).collect();
        let mut ready: Vec<usize> = (0..open.len()).filter(|&number| open[number] == 0).collect();
        while let Some(number) = ready.pop() {
            for &user in &users[number] {
                open[user] -= 1;
                if open[user] == 0 {
                    ready.push(user);
                }
            }
        }
        match open.iter().position(|&rest| rest > 0) {
            None => Ok(()),
            Some(number) => Err(ConstraintError::InvalidSchema {
                path: self.definitions[number].path.clone(),
                reason: "the schema refers to itself for the same value".to_owned(),
            }),
        }
    }
}

/// Decodes `%XX` of a URI fragment.
fn decode_percent(fragment: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(fragment.len());
    let mut rest = fragment.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let (hex, after) = rest.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(std::str::from_utf8(hex).ok()?, 16).ok()?);
        rest = after;
    }
    String::from_utf8(bytes).ok()
}
