//! Chat templates against goldens of transformers (`tests/data/chat`), and chats that try to forge markers.

use std::{fs, path::PathBuf};

use ruvllm_models::{
    Error,
    chat::{ChatTemplate, Message},
};
use serde_json::Value;

type Failure = Box<dyn std::error::Error>;

fn data(path: &[&str]) -> PathBuf {
    PathBuf::from_iter([env!("CARGO_MANIFEST_DIR"), "tests", "data"].iter().chain(path))
}

fn goldens() -> Result<Value, Failure> {
    Ok(serde_json::from_slice(&fs::read(data(&["chat", "chat.json"]))?)?)
}

fn owned(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

fn with_variables(template: ChatTemplate, variables: &Value) -> ChatTemplate {
    let variables = variables.as_object().cloned().unwrap_or_default();
    variables.into_iter().fold(template, |template, (name, value)| template.with_variable(name, value))
}

/// Compares with a golden: a text, or an error whose wording counts for `raise_exception` only.
fn check(name: &str, rendered: Result<String, Error>, golden: &Value) {
    match (rendered, golden["text"].as_str()) {
        (Ok(text), Some(golden)) => assert_eq!(text, golden, "{name}"),
        (Ok(text), None) => panic!("{name}: expected an error, got {text:?}"),
        (Err(error), Some(_)) => panic!("{name}: {error}"),
        (Err(Error::TemplateRefused { message }), None) => assert_eq!(golden["error"], message, "{name}"),
        (Err(_), None) => assert_ne!(golden["error_type"], "TemplateError", "{name}"),
    }
}

#[test]
fn families_render_as_the_goldens() -> Result<(), Failure> {
    let goldens = goldens()?;
    let mut checked = 0;
    for (family, golden) in goldens["families"].as_object().into_iter().flatten() {
        let file = golden["template"].as_str().unwrap_or_default();
        let source = fs::read_to_string(data(&["chat", file]))?;
        for conversation in goldens["conversations"].as_array().into_iter().flatten() {
            let name = conversation["name"].as_str().unwrap_or_default();
            let Some(expected) = golden["expected"].get(name) else { continue };
            let template =
                ChatTemplate::new(&source, owned(&golden["bos_token"]), owned(&golden["eos_token"]))?;
            let template = with_variables(template, &conversation["kwargs"]);
            let messages: Vec<Message> = serde_json::from_value(conversation["messages"].clone())?;
            let tools = conversation.get("tools").filter(|tools| !tools.is_null());
            let rendered = template.render(&messages, tools, conversation["gen"] == true);
            check(&format!("{family} {name}"), rendered, expected);
            checked += 1;
        }
    }
    assert!(checked > 100, "{checked}");
    Ok(())
}

#[test]
fn snippets_render_as_the_goldens() -> Result<(), Failure> {
    let goldens = goldens()?;
    let context = &goldens["snippet_context"];
    let messages: Vec<Message> = serde_json::from_value(context["messages"].clone())?;
    let snippets = goldens["snippets"].as_array().cloned().unwrap_or_default();
    assert_eq!(snippets.len(), 30);
    for snippet in &snippets {
        let source = snippet["template"].as_str().unwrap_or_default();
        let rendered = ChatTemplate::new(source, Some("<s>".to_owned()), Some("</s>".to_owned()))
            .and_then(|template| with_variables(template, context_variables(context).as_ref()).render(&messages, None, false));
        check(snippet["name"].as_str().unwrap_or_default(), rendered, snippet);
    }
    Ok(())
}

fn context_variables(context: &Value) -> Box<Value> {
    Box::new(serde_json::json!({ "data": context["data"] }))
}
