//! JSON Schemas, checked and rewritten so that the grammar engine enforces all that they assert.
//!
//! The engine ignores keywords that it does not know, refuses others without their place, and reads
//! some in its own way. The rewritten schema has only keywords that it enforces as 2020-12 defines
//! them: references point into one table of definitions, `oneOf` of exclusive schemas is `anyOf`,
//! patterns and formats are in the engine's syntax, and numbers without bounds get some.

mod exclusive;
mod finite;
mod format;
mod keywords;
mod numbers;
mod object;
mod pattern;
mod references;

use serde_json::{Map, Value, json};

use self::references::References;
use super::error::ConstraintError;

/// Deepest nesting of schemas, and of values in `enum` and `const`.
const NESTING: usize = 64;
/// Most values (objects, arrays, strings, ...) in a schema and all that it refers to.
const VALUES: usize = 200_000;
/// Name of the definition of any value.
const ANY: &str = "any";
/// White space between the elements of the output: at most two spaces, or a line break with
/// indentation. Without a limit, a model can go on with white space to the end of the context.
const WHITE_SPACE: &str = r"\x20{1,2}|\r?\n[\x20\t]{0,40}";
/// Letters after a backslash in strings. Without `u`, each text has one form, so that a name cannot
/// be written in a second way beside a property of that name.
const ESCAPES: &str = "nrbtf\\\"";

/// The rewritten form of a schema.
///
/// # Errors
/// [`ConstraintError::UnsupportedKeyword`], [`ConstraintError::InvalidSchema`],
/// [`ConstraintError::TooLarge`].
pub(super) fn normalize(schema: &Value) -> Result<String, ConstraintError> {
    check_size(schema)?;
    let mut writer = Writer {
        references: References::new(schema),
        uses_any: false,
        uses_number: Vec::new(),
        fills: !intersects(schema),
    };
    let mut definitions = Map::new();
    let mut root = Value::Null;
    let mut next = 0;
    while let Some((path, source)) = writer.references.definition(next) {
        let place = Place { path, depth: 0, in_place: true, definition: next };
        let written = writer.schema(source, &place)?;
        match next {
            0 => root = written,
            _ => {
                definitions.insert(references::name(next), written);
            }
        }
        next += 1;
    }
    writer.references.check_cycles()?;
    if writer.uses_any {
        definitions.insert(ANY.to_owned(), any());
    }
    for kind in numbers::KINDS.into_iter().filter(|kind| writer.uses_number.contains(kind)) {
        definitions.insert(kind.to_owned(), numbers::definition(kind));
    }
    if let Some(name) = finite::endless(&root, &definitions) {
        return Err(ConstraintError::InvalidSchema {
            path: writer.references.path(name),
            reason: "every value is infinite; make a property or item on the way optional".to_owned(),
        });
    }
    Ok(document(root, definitions))
}

/// The schema of any object.
pub(super) fn any_object() -> String {
    let mut definitions = Map::new();
    definitions.insert(ANY.to_owned(), any());
    document(json!({"type": "object", "additionalProperties": any_reference()}), definitions)
}

/// The text of a schema with its definitions and the options of the engine.
fn document(root: Value, definitions: Map<String, Value>) -> String {
    let mut document = match root {
        Value::Object(map) => map,
        // The engine looks for its options in an object.
        other => Map::from_iter([("allOf".to_owned(), json!([other]))]),
    };
    document.insert("$defs".to_owned(), Value::Object(definitions));
    let options = json!({"whitespace_pattern": WHITE_SPACE, "json_allowed_escapes": ESCAPES});
    document.insert("x-guidance".to_owned(), options);
    Value::Object(document).to_string()
}

/// The definition of any value: as the engine's own, with bounded numbers.
fn any() -> Value {
    json!({"anyOf": [
        {"type": ["null", "boolean"]},
        numbers::definition("number"),
        {"type": "string"},
        {"type": "array", "items": any_reference()},
        {"type": "object", "additionalProperties": any_reference()},
    ]})
}

fn any_reference() -> Value {
    json!({"$ref": format!("#/$defs/{ANY}")})
}

/// Place of a schema in the document.
#[derive(Clone)]
struct Place {
    /// JSON pointer, as a URI fragment.
    path: String,
    depth: usize,
    /// True if it applies to the same value as its definition does.
    in_place: bool,
    /// Number of the definition that it is in.
    definition: usize,
}

impl Place {
    /// The place of a part under a keyword, and under a name or number there.
    fn inner(&self, keyword: &str, name: Option<&str>, in_place: bool) -> Self {
        let mut path = format!("{}/{keyword}", self.path);
        if let Some(name) = name {
            path.push('/');
            path.push_str(&name.replace('~', "~0").replace('/', "~1"));
        }
        Self { path, depth: self.depth + 1, in_place: self.in_place && in_place, definition: self.definition }
    }

    fn invalid(&self, reason: impl Into<String>) -> ConstraintError {
        ConstraintError::InvalidSchema { path: self.path.clone(), reason: reason.into() }
    }

    fn unsupported(&self, keyword: &str, remedy: impl Into<String>) -> ConstraintError {
        ConstraintError::UnsupportedKeyword {
            keyword: keyword.to_owned(),
            path: self.path.clone(),
            remedy: remedy.into(),
        }
    }
}

/// Rewrites the schemas of one document.
struct Writer<'s> {
    references: References<'s>,
    uses_any: bool,
    /// Kinds of numbers whose definitions are used.
    uses_number: Vec<&'static str>,
    /// True if places where any value may stand get the definition of any value, with its bounded
    /// numbers. Where schemas are intersected it could not be resolved.
    fills: bool,
}

impl<'s> Writer<'s> {
    fn schema(&mut self, schema: &'s Value, place: &Place) -> Result<Value, ConstraintError> {
        if place.depth > NESTING {
            return Err(place.invalid(format!("more than {NESTING} nested schemas")));
        }
        match schema {
            Value::Bool(true) => Ok(self.any_value()),
            Value::Bool(false) => Ok(Value::Bool(false)),
            Value::Object(map) => self.object(map, place),
            _ => Err(place.invalid("a schema is an object, true or false")),
        }
    }

    /// The schema of any value.
    fn any_value(&mut self) -> Value {
        if !self.fills {
            return Value::Bool(true);
        }
        self.uses_any = true;
        any_reference()
    }

    /// The schemas of a list.
    fn list(
        &mut self,
        value: &'s Value,
        keyword: &str,
        in_place: bool,
        place: &Place,
    ) -> Result<Vec<Value>, ConstraintError> {
        let items = value.as_array().filter(|items| !items.is_empty());
        let Some(items) = items else {
            return Err(place.invalid(format!("{keyword} is a list of at least one schema")));
        };
        let inner = |i: usize| place.inner(keyword, Some(&i.to_string()), in_place);
        items.iter().enumerate().map(|(i, item)| self.schema(item, &inner(i))).collect()
    }
}

/// Checks the number of values and their nesting, without recursion.
fn check_size(schema: &Value) -> Result<(), ConstraintError> {
    // Each level of schemas is two of values: the keyword and the part.
    let deepest = 2 * NESTING + 2;
    let mut open = vec![(schema, 0)];
    let mut size = 0;
    while let Some((value, depth)) = open.pop() {
        size += 1;
        if depth > deepest {
            let reason = format!("values nested more than {deepest} deep");
            return Err(ConstraintError::InvalidSchema { path: "#".to_owned(), reason });
        }
        match value {
            Value::Array(items) => open.extend(items.iter().map(|item| (item, depth + 1))),
            Value::Object(map) => open.extend(map.values().map(|item| (item, depth + 1))),
            _ => {}
        }
        if size + open.len() > VALUES {
            return Err(ConstraintError::TooLarge {
                source_kind: "schema",
                unit: "values or more",
                size: size + open.len(),
                limit: VALUES,
            });
        }
    }
    Ok(())
}

/// True if anywhere in the document several schemas may apply to one array or object.
fn intersects(document: &Value) -> bool {
    let mut open = vec![document];
    while let Some(value) = open.pop() {
        match value {
            Value::Array(items) => open.extend(items),
            Value::Object(map) => {
                let has = |name: &&&str| map.contains_key(**name);
                let applied = ["anyOf", "oneOf", "allOf", "$ref"].iter().filter(has).count();
                let siblings = [
                    "properties",
                    "required",
                    "additionalProperties",
                    "patternProperties",
                    "items",
                    "prefixItems",
                    "minItems",
                    "maxItems",
                    "minProperties",
                    "maxProperties",
                ];
                let has_siblings = siblings.iter().any(|name| map.contains_key(*name));
                let all = map.get("allOf").and_then(Value::as_array).map_or(0, Vec::len);
                if applied > 1 || all > 1 || (applied == 1 && has_siblings) {
                    return true;
                }
                open.extend(map.values());
            }
            _ => {}
        }
    }
    false
}

#[cfg(test)]
mod tests;
