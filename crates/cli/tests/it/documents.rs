//! The list of published schemas: one for each command.

use std::collections::BTreeMap;
use std::fs;

use serde_json::Value;

use crate::program::run;
use crate::schema;

/// Checks that a schema has a title and that every object says if it is closed.
fn check_form(schema: &Value, place: &str) {
    let closed = schema.get("additionalProperties");
    assert!(closed.is_some() || schema["type"] != "object", "{place} does not say which fields it has");
    for (name, schema) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
        check_form(schema, &format!("{place}.{name}"));
    }
    if let Some(items) = schema.get("items") {
        check_form(items, place);
    }
}

#[test]
fn every_command_has_a_schema() {
    let mut schemas = BTreeMap::new();
    for entry in fs::read_dir(schema::folder()).unwrap() {
        let path = entry.unwrap().path();
        let schema: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
        assert!(schema["title"].is_string());
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        check_form(&schema, &name);
        schemas.insert(name, schema);
    }
    // Lines that name a command, below the first heading of the help.
    let commands = |arguments: &[&str]| {
        let help = run(&[arguments, &["--help"]].concat()).text().to_owned();
        let list = help.split_once("Commands:\n").unwrap().1.split("\n\n").next().unwrap().to_owned();
        let name = |line: &str| line.strip_prefix("  ")?.split([' ', ',']).next().map(str::to_owned);
        list.lines().filter_map(name).filter(|name| !name.is_empty() && name != "help").collect::<Vec<_>>()
    };
    for command in commands(&[]) {
        match command.as_str() {
            "sona" => {
                let has = |name: String| assert!(schemas.contains_key(&name), "{name} has no schema");
                commands(&["sona"])
                    .iter()
                    .filter(|name| *name != "bank")
                    .for_each(|name| has(format!("sona-{name}")));
                commands(&["sona", "bank"]).iter().for_each(|name| has(format!("sona-bank-{name}")));
            }
            group @ ("adapter" | "eval" | "key" | "pack" | "session" | "witness") => commands(&[group])
                .iter()
                .for_each(|name| assert!(schemas.contains_key(&format!("{group}-{name}")), "{name}")),
            // `chat` or `generate` with a model that it pulls first.
            "run" => {}
            name => assert!(schemas.contains_key(name), "{name} has no schema"),
        }
    }
}
