//! Search for schemas whose every value would be infinite.

use std::collections::HashSet;

use serde_json::{Map, Value};

/// The first reference whose target has no finite value, such as an object that requires a property
/// of its own kind. The schemas are rewritten ones.
pub(super) fn endless<'d>(root: &'d Value, definitions: &'d Map<String, Value>) -> Option<&'d str> {
    let mut finite: HashSet<&str> = HashSet::new();
    let all = || definitions.iter().map(|(name, schema)| (name.as_str(), schema)).chain([("#", root)]);
    loop {
        let found: Vec<&str> = all()
            .filter(|(name, schema)| !finite.contains(name) && ends(schema, &finite))
            .map(|(name, _)| name)
            .collect();
        if found.is_empty() {
            // Definitions that the root does not need may stay.
            return (!finite.contains("#"))
                .then(|| all().find(|(name, _)| !finite.contains(name)).map_or("#", |(name, _)| name));
        }
        finite.extend(found);
    }
}

/// True if the schema has a finite value, as far as the references known to have one show.
fn ends(schema: &Value, finite: &HashSet<&str>) -> bool {
    let Value::Object(map) = schema else { return true };
    let list = |name: &str| map.get(name).and_then(Value::as_array).map(Vec::as_slice);
    let target = map.get("$ref").and_then(Value::as_str);
    let target = target.map(|reference| reference.rsplit('/').next().unwrap_or(reference));
    let only = |kind: &str| match map.get("type") {
        Some(Value::Array(names)) => names.iter().all(|name| name == kind),
        Some(name) => name == kind,
        None => false,
    };
    let required = || {
        let names = list("required").unwrap_or_default().iter().filter_map(Value::as_str);
        names.filter_map(|name| map.get("properties")?.get(name)).all(|schema| ends(schema, finite))
    };
    let items = || {
        let least = map.get("minItems").and_then(Value::as_u64).unwrap_or(0) as usize;
        let first = list("prefixItems").unwrap_or_default();
        let rest = map.get("items").filter(|_| least > first.len());
        first.iter().take(least).chain(rest).all(|schema| ends(schema, finite))
    };
    target.is_none_or(|name| finite.contains(name))
        && list("anyOf").is_none_or(|options| options.iter().any(|option| ends(option, finite)))
        && list("allOf").is_none_or(|parts| parts.iter().all(|part| ends(part, finite)))
        && (!only("object") || required())
        && (!only("array") || items())
}
