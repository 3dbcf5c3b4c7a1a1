//! Compliance of JSON answers with a schema, as a share instead of a verdict.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use crate::error::Result;

use super::{Sample, Score, Scorer};

/// Deepest nesting of schemas, references included.
const MAX_DEPTH: usize = 64;
/// Most schemas applied to one answer: bounds schemas whose alternatives multiply.
const MAX_STEPS: usize = 100_000;
/// Keywords that require nothing.
const ANNOTATIONS: &[&str] = &[
    "$schema",
    "$id",
    "$defs",
    "$comment",
    "definitions",
    "title",
    "description",
    "default",
    "examples",
    "deprecated",
    "readOnly",
    "writeOnly",
];

/// Share of the requirements of the sample's JSON Schema that the text satisfies; text that is no
/// JSON scores 0. A code fence around the JSON is accepted.
///
/// Requirements are: to be JSON, and each assertion of `type`, `enum`, `const`, `required`,
/// `minimum`, `maximum`, `minLength`, `maxLength`, `minItems`, `maxItems` and
/// `additionalProperties`, through `properties`, `items`, `allOf`, `anyOf` and `oneOf` (the best
/// branch) and local `$ref`. A missing property fails all requirements below it. Other keywords are
/// counted as `ignored_keywords` and named in the note. A score of 1 with ignored keywords is no
/// proof of validity; constrained decoding or a validator is.
#[derive(Debug, Clone, Copy, Default)]
pub struct SchemaCompliance;

impl Scorer for SchemaCompliance {
    fn name(&self) -> &'static str {
        "schema"
    }

    fn score(&self, sample: &Sample<'_>) -> Result<Score> {
        let Some(schema) = sample.schema else { return Ok(Score::absent("no schema")) };
        let parsed = serde_json::from_str::<Value>(without_fence(sample.text));
        let mut check = Check { root: schema, steps: 0, tally: Tally::default() };
        let is_json = parsed.is_ok();
        check.tally.add(is_json, || match &parsed {
            Err(error) => format!("no JSON: {error}"),
            Ok(_) => String::new(),
        });
        if check.apply(schema, parsed.as_ref().ok(), "$", 0).is_none() {
            return Ok(Score::absent(
                "the schema is no schema, refers to none, or its alternatives multiply",
            ));
        }
        let Tally { satisfied, total, fault, ignored } = check.tally;
        let evidence = vec![
            ("satisfied", satisfied as f64),
            ("requirements", total as f64),
            ("ignored_keywords", ignored.len() as f64),
        ];
        let ignored = (!ignored.is_empty())
            .then(|| format!("ignored: {}", ignored.into_iter().collect::<Vec<_>>().join(", ")));
        Ok(Score::new(satisfied as f64 / total as f64, evidence).with_note(fault.or(ignored)))
    }
}

/// Content of a text that is one code fence; other texts unchanged.
fn without_fence(text: &str) -> &str {
    let text = text.trim();
    text.strip_prefix("```")
        .and_then(|rest| rest.strip_suffix("```"))
        .and_then(|rest| rest.split_once('\n'))
        .map_or(text, |(_, content)| content)
}

/// Requirements counted so far.
#[derive(Debug, Clone, Default)]
struct Tally {
    satisfied: usize,
    total: usize,
    /// The first requirement that failed.
    fault: Option<String>,
    ignored: BTreeSet<String>,
}

impl Tally {
    fn add(&mut self, is_satisfied: bool, fault: impl FnOnce() -> String) {
        self.total += 1;
        if is_satisfied {
            self.satisfied += 1;
        } else if self.fault.is_none() {
            self.fault = Some(fault());
        }
    }
}

struct Check<'a> {
    root: &'a Value,
    steps: usize,
    tally: Tally,
}

impl<'a> Check<'a> {
    /// Counts the requirements of a schema on a value, on a missing one if `None`. Returns `None`
    /// if the schema cannot be applied.
    fn apply(&mut self, schema: &'a Value, value: Option<&Value>, path: &str, depth: usize) -> Option<()> {
        self.steps += 1;
        if self.steps > MAX_STEPS || depth > MAX_DEPTH {
            return None;
        }
        let schema = match schema {
            Value::Bool(allows) => {
                if !allows {
                    self.tally.add(false, || format!("{path}: nothing is allowed here"));
                }
                return Some(());
            }
            Value::Object(schema) => schema,
            _ => return None,
        };
        for (keyword, argument) in schema {
            match keyword.as_str() {
                "properties" | "required" | "additionalProperties" => {}
                "items" => {
                    for (i, item) in value.and_then(Value::as_array).into_iter().flatten().enumerate() {
                        self.apply(argument, Some(item), &format!("{path}[{i}]"), depth + 1)?;
                    }
                }
                "$ref" => {
                    let target = argument.as_str()?.strip_prefix('#')?;
                    self.apply(self.root.pointer(target)?, value, path, depth + 1)?;
                }
                "allOf" => {
                    for part in argument.as_array()? {
                        self.apply(part, value, path, depth + 1)?;
                    }
                }
                "anyOf" | "oneOf" => self.apply_best(argument.as_array()?, value, path, depth)?,
                annotation if ANNOTATIONS.contains(&annotation) => {}
                assertion => match holds(assertion, argument, value) {
                    Some(is_satisfied) => {
                        self.tally.add(is_satisfied, || format!("{path}: {assertion} must be {argument}"));
                    }
                    None => {
                        self.tally.ignored.insert(assertion.to_owned());
                    }
                },
            }
        }
        self.apply_to_properties(schema, value, path, depth)
    }

    /// Counts the alternative of which the value satisfies the largest share.
    fn apply_best(
        &mut self,
        alternatives: &'a [Value],
        value: Option<&Value>,
        path: &str,
        depth: usize,
    ) -> Option<()> {
        let before = self.tally.clone();
        let share = |tally: &Tally| {
            let total = tally.total - before.total;
            if total == 0 { 1.0 } else { (tally.satisfied - before.satisfied) as f64 / total as f64 }
        };
        let mut best: Option<Tally> = None;
        for alternative in alternatives {
            self.tally = before.clone();
            self.apply(alternative, value, path, depth + 1)?;
            if best.as_ref().is_none_or(|best| share(&self.tally) > share(best)) {
                best = Some(self.tally.clone());
            }
        }
        self.tally = best?;
        Some(())
    }

    fn apply_to_properties(
        &mut self,
        schema: &'a Map<String, Value>,
        value: Option<&Value>,
        path: &str,
        depth: usize,
    ) -> Option<()> {
        let object = value.and_then(Value::as_object);
        // `required` says nothing of other types unless the type is required too.
        let must_be_object = object.is_some() || schema.get("type").is_some_and(|t| t == "object");
        let required: Vec<&str> = match schema.get("required") {
            Some(names) if must_be_object => names.as_array()?.iter().filter_map(Value::as_str).collect(),
            _ => Vec::new(),
        };
        for name in &required {
            let is_present = object.is_some_and(|object| object.contains_key(*name));
            self.tally.add(is_present, || format!("{path}: {name} is missing"));
        }
        let properties = schema.get("properties").map(Value::as_object);
        if properties == Some(None) {
            return None;
        }
        let properties = properties.flatten();
        for (name, property) in properties.into_iter().flatten() {
            let item = object.and_then(|object| object.get(name));
            if item.is_some() || required.contains(&name.as_str()) {
                self.apply(property, item, &format!("{path}.{name}"), depth + 1)?;
            }
        }
        let is_named = |name: &str| properties.is_some_and(|properties| properties.contains_key(name));
        if let (Some(rule), Some(object)) = (schema.get("additionalProperties"), object) {
            for (name, item) in object.iter().filter(|(name, _)| !is_named(name)) {
                self.apply(rule, Some(item), &format!("{path}.{name}"), depth + 1)?;
            }
        }
        Some(())
    }
}

/// Result of one assertion; `None` for keywords that are not checked. Assertions about other types
/// hold, as JSON Schema has it; a missing value satisfies none.
fn holds(keyword: &str, argument: &Value, value: Option<&Value>) -> Option<bool> {
    let number = |f: fn(f64, f64) -> bool| {
        let bound = argument.as_f64()?;
        Some(value.is_some_and(|v| v.as_f64().is_none_or(|v| f(v, bound))))
    };
    let length = |measure: fn(&Value) -> Option<usize>, f: fn(usize, usize) -> bool| {
        let bound = usize::try_from(argument.as_u64()?).ok()?;
        Some(value.is_some_and(|v| measure(v).is_none_or(|len| f(len, bound))))
    };
    let chars = |v: &Value| v.as_str().map(|s| s.chars().count());
    let items = |v: &Value| v.as_array().map(Vec::len);
    match keyword {
        "type" => {
            let names: Vec<&str> = match argument {
                Value::String(name) => vec![name],
                Value::Array(names) => names.iter().filter_map(Value::as_str).collect(),
                _ => return None,
            };
            Some(value.is_some_and(|value| names.iter().any(|name| is_type(name, value))))
        }
        "enum" => {
            Some(value.is_some_and(|v| argument.as_array().is_some_and(|a| a.iter().any(|x| equal(x, v)))))
        }
        "const" => Some(value.is_some_and(|v| equal(argument, v))),
        "minimum" => number(|v, bound| v >= bound),
        "maximum" => number(|v, bound| v <= bound),
        "minLength" => length(chars, |len, bound| len >= bound),
        "maxLength" => length(chars, |len, bound| len <= bound),
        "minItems" => length(items, |len, bound| len >= bound),
        "maxItems" => length(items, |len, bound| len <= bound),
        _ => None,
    }
}

fn is_type(name: &str, value: &Value) -> bool {
    match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "number" => value.is_number(),
        "integer" => value.as_f64().is_some_and(|x| x.fract() == 0.0),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        _ => false,
    }
}

/// Equality in which 1 and 1.0 are one number.
fn equal(a: &Value, b: &Value) -> bool {
    a == b || (a.is_number() && b.is_number() && a.as_f64() == b.as_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn score(schema: &Value, text: &str) -> Score {
        SchemaCompliance.score(&Sample { schema: Some(schema), ..Sample::new(text) }).unwrap()
    }

    fn order() -> Value {
        json!({
            "type": "object",
            "required": ["name", "size", "items"],
            "additionalProperties": false,
            "properties": {
                "name": {"type": "string", "minLength": 1},
                "size": {"enum": ["s", "m", "l"]},
                "items": {"type": "array", "minItems": 1, "items": {"$ref": "#/$defs/item"}},
            },
            "$defs": {"item": {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}}
        })
    }

    #[test]
    fn answers_are_ordered_by_what_is_right_in_them() {
        let schema = order();
        let answers = [
            r#"{"name": "a", "size": "m", "items": [{"n": 1}]}"#,
            r#"{"name": "a", "size": "m", "items": [{"n": "1"}]}"#,
            r#"{"name": "a", "size": "x", "items": [{"n": "1"}]}"#,
            r#"{"name": "a", "size": "m"}"#,
            r#"{"name": ""}"#,
            "[]",
            "The order is a, m",
        ];
        let scores: Vec<f64> = answers.iter().map(|text| score(&schema, text).value.unwrap()).collect();
        assert_eq!(scores[0], 1.0);
        assert!(scores.windows(2).all(|pair| pair[0] > pair[1]), "{scores:?}");
        assert_eq!(scores[6], 0.0);
    }

    #[test]
    fn faults_say_where() {
        let schema = order();
        let text = "```json\n{\"name\": \"a\", \"size\": \"m\", \"items\": [{\"n\": 1}, {\"n\": 1.5}], \"x\": 1}\n```";
        let score = score(&schema, text);
        assert_eq!(score.note.as_deref(), Some("$.items[1].n: type must be \"integer\""));
        let failed = score.get("requirements").unwrap() - score.get("satisfied").unwrap();
        assert_eq!(failed, 2.0, "the type and the additional property: {score:?}");
    }

    #[test]
    fn alternatives_and_ignored_keywords() {
        let schema =
            json!({"anyOf": [{"type": "string", "pattern": "^a"}, {"type": "integer", "maximum": 5}]});
        assert_eq!(score(&schema, "3").value, Some(1.0));
        assert_eq!(score(&schema, "3").get("ignored_keywords"), Some(0.0));
        assert_eq!(score(&schema, "\"b\"").note.as_deref(), Some("ignored: pattern"));
        assert!(score(&schema, "7").value.unwrap() < 1.0);
    }

    #[test]
    fn hostile_schemas_end() {
        for schema in [
            json!({"$ref": "#"}),
            json!({"anyOf": [{"$ref": "#"}, {"$ref": "#"}]}),
            json!({"$ref": "#/nowhere"}),
            json!([1]),
            json!({"required": ["a"], "properties": {"a": {"$ref": "#"}}, "type": "object"}),
        ] {
            assert_eq!(score(&schema, "{}").value, None, "{schema}");
        }
    }
}
