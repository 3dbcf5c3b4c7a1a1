//! Output restricted to a language: `--json-schema`, `--grammar`, `--regex`, `--choices`.

use std::path::Path;

use crate::program::{Run, argument, run, run_with_input};

const PROMPT: &str = "Once upon a time, there was a little fox";

/// A run whose output has a language, at a temperature where a small model says anything.
fn constrained(arguments: &[&str]) -> Run {
    run(&[&["generate", "--temperature", "1.5", "--seed", "3", "-n", "200"], arguments, &[PROMPT]].concat())
}

/// Path of a new file with `text`.
fn written(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    std::fs::write(&path, text).unwrap();
    argument(&path).to_owned()
}

#[test]
fn output_follows_schemas_grammars_expressions_and_choices() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| written(folder.path(), name, text);
    let schema = r#"{"type": "object", "properties": {"n": {"type": "integer", "minimum": 3, "maximum": 5}},
        "required": ["n"], "additionalProperties": false}"#;
    let schema_file = file("number.json", schema);
    let document = constrained(&["--json-schema", &schema_file, "--json"]).json();
    assert_eq!(document["finish_reason"], "stop");
    let value: serde_json::Value = serde_json::from_str(document["text"].as_str().unwrap()).unwrap();
    assert!((3..=5).contains(&value["n"].as_i64().unwrap()), "{value}");
    let piped = run_with_input(
        &["generate", "--json-schema", "-", "--temperature", "1.5", "--seed", "3", "-n", "200", PROMPT],
        schema.as_bytes(),
    );
    assert_eq!(piped.text().trim_end(), document["text"].as_str().unwrap());

    let lark = file("colors", "start: \"red\" | \"blue\"");
    let gbnf = file("colours", "root ::= \"red\" | \"blue\"\n");
    for arguments in [&["--grammar", &lark][..], &["--grammar-file", &gbnf], &["--choices", "red,blue"]] {
        let text = constrained(arguments).text().trim_end().to_owned();
        assert!(["red", "blue"].contains(&text.as_str()), "{arguments:?}: {text}");
    }
    let text = constrained(&["--regex", "[0-9]{2}:[0-9]{2}"]).text().trim_end().to_owned();
    assert!(text.len() == 5 && text.as_bytes()[2] == b':', "{text}");
    assert!(constrained(&["--json-object"]).text().starts_with('{'));
}

#[test]
fn faults_of_output_languages_name_the_flag() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| written(folder.path(), name, text);
    let not = file("not.json", r#"{"properties": {"a": {"not": {}}}}"#);
    let no_json = file("no.json", "{");
    let gbnf = file("a.gbnf", "root ::= x");
    let lark = file("a.lark", "start: \"a");
    for (arguments, code, pieces) in [
        (&["--json-schema", &not][..], 1, ["--json-schema: ", "keyword `not` at #/properties/a"]),
        (&["--json-schema", &no_json], 1, ["--json-schema: ", "is not JSON"]),
        (&["--json-schema", "absent.json"], 1, ["absent.json", ""]),
        (&["--grammar", &gbnf], 1, ["--grammar: ", "line 1, column 10"]),
        (&["--regex", "a("], 1, ["--regex", "unclosed group"]),
        (&["--grammar", &lark], 1, ["--grammar", "1(10): lexer error"]),
        (&["--choices", "a,"], 1, ["--choices: ", "choice 2 is empty"]),
        (&["--regex", "a", "--choices", "b"], 2, ["--regex", "--choices"]),
        (&["--json-object", "--json-schema", &not], 2, ["--json-object", "--json-schema"]),
    ] {
        run(&[&["generate", PROMPT], arguments].concat()).fails_with(code, &pieces);
    }
    run_with_input(&["generate", "--json-schema", "-"], b"{}")
        .fails_with(2, &["--json-schema", "standard input"]);
}

#[test]
fn chats_answer_in_their_language() {
    let chat = ["chat", "--temperature", "1.5", "--seed", "3", "-n", "50", "--json", "--choices", "red,blue"];
    let document =
        run_with_input(&chat, b"Hello\n/set output regex [0-9]{3}\nAnd now?\n").json_and_warnings().0;
    let answers: Vec<&str> = document["messages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|message| message["content"].as_str().unwrap())
        .collect();
    assert!(["red", "blue"].contains(&answers[1]), "{answers:?}");
    assert!(answers[3].len() == 3 && answers[3].bytes().all(|byte| byte.is_ascii_digit()), "{answers:?}");
    assert_eq!(document["settings"]["output"], "regex [0-9]{3}");
    run_with_input(&["chat", "--json-schema", "-"], b"{}")
        .fails_with(2, &["--json-schema", "standard input"]);
}
