//! The keywords of one schema object.

use serde_json::{Map, Value, json};

use super::super::error::ConstraintError;
use super::exclusive::exclusive;
use super::format::{Format, format};
use super::keywords::{Keyword, keyword};
use super::{Place, Writer, numbers, pattern};

/// Most repetitions, and most characters of a string, that are counted.
const COUNT: u64 = 100_000;
/// Largest bound of numbers: the engine computes with 64-bit integers.
const LARGEST_BOUND: f64 = 9.2e18;

impl<'s> Writer<'s> {
    /// A schema object.
    pub(super) fn object(
        &mut self,
        schema: &'s Map<String, Value>,
        place: &Place,
    ) -> Result<Value, ConstraintError> {
        let mut out = Map::new();
        // Schemas that apply as well but whose keyword is taken.
        let mut also = Vec::new();
        for (name, value) in schema {
            match keyword(name) {
                Keyword::Ignored => {}
                Keyword::Refused(remedy) => return Err(place.unsupported(name, remedy)),
                Keyword::Enforced => self.keyword(name, value, schema, place, &mut out, &mut also)?,
            }
        }
        if out.is_empty() && also.is_empty() {
            return Ok(self.any_value());
        }
        let applies = ["enum", "const", "$ref", "anyOf", "allOf"].iter().any(|name| out.contains_key(*name));
        if !applies && also.is_empty() {
            let number = if self.fills { numbers::take_unrestricted(&mut out) } else { None };
            self.fill(&mut out);
            if let Some(kind) = number {
                self.uses_number.push(kind);
                let reference = json!({"$ref": format!("#/$defs/{kind}")});
                let is_alone = out.get("type").and_then(Value::as_array).is_some_and(Vec::is_empty);
                return Ok(if is_alone { reference } else { json!({"anyOf": [reference, out]}) });
            }
        }
        if !also.is_empty() {
            let all = out.entry("allOf").or_insert_with(|| json!([]));
            if let Value::Array(all) = all {
                all.extend(also);
            }
        }
        Ok(Value::Object(out))
    }

    /// Bounds and schemas of what the keywords leave open.
    fn fill(&mut self, out: &mut Map<String, Value>) {
        let allows = |out: &Map<String, Value>, kinds: &[&str]| match out.get("type") {
            None => true,
            Some(Value::Array(names)) => names.iter().any(|name| kinds.iter().any(|kind| name == kind)),
            Some(name) => kinds.iter().any(|kind| name == kind),
        };
        if allows(out, &["number", "integer"]) {
            numbers::bound(out);
        }
        if !self.fills {
            return;
        }
        for (kind, keyword) in [("object", "additionalProperties"), ("array", "items")] {
            if allows(out, &[kind]) && !out.contains_key(keyword) {
                let any = self.any_value();
                out.insert(keyword.to_owned(), any);
            }
        }
    }

    fn keyword(
        &mut self,
        name: &str,
        value: &'s Value,
        schema: &'s Map<String, Value>,
        place: &Place,
        out: &mut Map<String, Value>,
        also: &mut Vec<Value>,
    ) -> Result<(), ConstraintError> {
        let written = match name {
            "$id" if place.path == "#" => return Ok(()),
            "$id" => return Err(place.unsupported(name, "refer to schemas by #/$defs/NAME")),
            "type" => kinds(value, place)?,
            "enum" => match value.as_array() {
                Some(values) if !values.is_empty() => value.clone(),
                _ => return Err(place.invalid("enum is a list of at least one value")),
            },
            "const" => value.clone(),
            "$ref" => {
                let Some(reference) = value.as_str() else { return Err(place.invalid("$ref is a text")) };
                json!(self.references.rewrite(reference, place)?)
            }
            "anyOf" | "allOf" => Value::Array(self.list(value, name, true, place)?),
            "oneOf" => {
                let any = Value::Array(self.one_of(value, place)?);
                if schema.contains_key("anyOf") {
                    also.push(json!({"anyOf": any}));
                } else {
                    out.insert("anyOf".to_owned(), any);
                }
                return Ok(());
            }
            "properties" | "patternProperties" => self.properties(name, value, place)?,
            "items" if value.is_array() => {
                return Err(place.unsupported("items with a list", "use prefixItems"));
            }
            "items" | "additionalProperties" => self.schema(value, &place.inner(name, None, false))?,
            "prefixItems" => Value::Array(self.list(value, name, false, place)?),
            "required" => required(value, place)?,
            "uniqueItems" if value == &json!(false) => return Ok(()),
            "uniqueItems" => {
                return Err(place.unsupported(name, "leave it out and check the value afterwards"));
            }
            "minProperties" => least_properties(value, schema, place)?,
            "maxProperties" | "minItems" | "maxItems" | "minLength" | "maxLength" => {
                json!(count(name, value, place)?)
            }
            "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" | "multipleOf" => {
                number(name, value, place)?
            }
            "pattern" => return text_pattern(value, place, out),
            "format" => return text_format(value, schema, place, also, out),
            _ => return Ok(()),
        };
        out.insert(name.to_owned(), written);
        Ok(())
    }

    /// The schemas of `oneOf`, of which no two have a value in common.
    fn one_of(&mut self, value: &'s Value, place: &Place) -> Result<Vec<Value>, ConstraintError> {
        let written = self.list(value, "oneOf", true, place)?;
        let options = value.as_array().map(Vec::as_slice).unwrap_or_default();
        let resolve = |reference: &str| self.references.find(reference);
        for (i, a) in options.iter().enumerate() {
            for (j, b) in options.iter().enumerate().skip(i + 1) {
                if !exclusive(a, b, &resolve) {
                    let remedy = format!(
                        "alternatives {i} and {j} may have a value in common; use anyOf, or give them a required \
                         property with different constants"
                    );
                    return Err(place.unsupported("oneOf", remedy));
                }
            }
        }
        Ok(written)
    }

    fn properties(
        &mut self,
        keyword: &str,
        value: &'s Value,
        place: &Place,
    ) -> Result<Value, ConstraintError> {
        let Some(properties) = value.as_object() else {
            return Err(place.invalid(format!("{keyword} is an object")));
        };
        let mut out = Map::new();
        for (name, schema) in properties {
            let inner = place.inner(keyword, Some(name), false);
            let written = self.schema(schema, &inner)?;
            let name = match keyword {
                "patternProperties" => translated(name, &inner, "patternProperties")?,
                _ => name.clone(),
            };
            if out.insert(name, written).is_some() {
                return Err(inner.invalid("two patterns say the same"));
            }
        }
        Ok(Value::Object(out))
    }
}

fn kinds(value: &Value, place: &Place) -> Result<Value, ConstraintError> {
    const KINDS: [&str; 7] = ["null", "boolean", "integer", "number", "string", "array", "object"];
    let is_kind = |name: &Value| name.as_str().is_some_and(|name| KINDS.contains(&name));
    let is_list = value.as_array().is_some_and(|names| !names.is_empty() && names.iter().all(is_kind));
    if is_kind(value) || is_list {
        return Ok(value.clone());
    }
    Err(place.invalid(format!("type is one of {}, or a list of them", KINDS.join(", "))))
}

fn required(value: &Value, place: &Place) -> Result<Value, ConstraintError> {
    let is_list = value.as_array().is_some_and(|names| names.iter().all(Value::is_string));
    if is_list { Ok(value.clone()) } else { Err(place.invalid("required is a list of names")) }
}

/// A number of items, properties or characters.
fn count(name: &str, value: &Value, place: &Place) -> Result<u64, ConstraintError> {
    let whole = value.as_u64().or_else(|| {
        let float = value.as_f64().filter(|float| float.fract() == 0.0 && (0.0..9e15).contains(float))?;
        Some(float as u64)
    });
    match whole {
        Some(count) if count <= COUNT => Ok(count),
        // More than is counted is as good as no limit.
        Some(_) if name.starts_with("max") => Ok(COUNT),
        Some(count) => {
            Err(place.unsupported(name, format!("{count} is above {COUNT}, the most that is counted")))
        }
        None => Err(place.invalid(format!("{name} is a whole number of at least 0"))),
    }
}

/// Properties beyond those required can repeat a name, so that only one is certain to count.
fn least_properties(
    value: &Value,
    schema: &Map<String, Value>,
    place: &Place,
) -> Result<Value, ConstraintError> {
    let least = count("minProperties", value, place)?;
    let names: std::collections::HashSet<&str> = schema
        .get("required")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    if least > names.len() as u64 + 1 {
        let remedy =
            format!("{least} is more than the {} required properties and one; require more", names.len());
        return Err(place.unsupported("minProperties", remedy));
    }
    Ok(json!(least))
}

fn number(name: &str, value: &Value, place: &Place) -> Result<Value, ConstraintError> {
    if value.is_boolean() {
        return Err(place.unsupported(&format!("{name} with true or false"), "give the bound itself"));
    }
    let Some(number) = value.as_f64() else { return Err(place.invalid(format!("{name} is a number"))) };
    if name == "multipleOf" && number <= 0.0 {
        return Err(place.invalid("multipleOf is above 0"));
    }
    if number.abs() > LARGEST_BOUND {
        return Err(place.unsupported(name, format!("{value} is beyond {LARGEST_BOUND:e}; leave it out")));
    }
    Ok(value.clone())
}

/// A pattern in the engine's syntax.
fn translated(text: &str, place: &Place, keyword: &str) -> Result<String, ConstraintError> {
    pattern::translate(text).map_err(|construct| {
        place.unsupported(keyword, format!("{construct} cannot be generated; rewrite {text:?}"))
    })
}

fn text_pattern(value: &Value, place: &Place, out: &mut Map<String, Value>) -> Result<(), ConstraintError> {
    let Some(text) = value.as_str() else { return Err(place.invalid("pattern is a text")) };
    out.insert("pattern".to_owned(), json!(translated(text, place, "pattern")?));
    Ok(())
}

/// Applies a format: as the engine's own, or as a pattern of strings beside the schema's.
fn text_format(
    value: &Value,
    schema: &Map<String, Value>,
    place: &Place,
    also: &mut Vec<Value>,
    out: &mut Map<String, Value>,
) -> Result<(), ConstraintError> {
    let Some(name) = value.as_str() else { return Err(place.invalid("format is a text")) };
    match format(name) {
        Format::Ignored => {}
        Format::Refused => {
            return Err(place.unsupported(&format!("format {name}"), "state it as a pattern"));
        }
        Format::Engine => {
            out.insert("format".to_owned(), value.clone());
        }
        Format::Pattern(pattern) if schema.contains_key("pattern") => also.push(json!({"pattern": pattern})),
        Format::Pattern(pattern) => {
            out.insert("pattern".to_owned(), json!(pattern));
        }
    }
    Ok(())
}
