//! `template`.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::program::{argument, fields, repository, run, run_with_input};

fn chat_data(name: &str) -> PathBuf {
    repository("crates/text/tests/data/chat").join(name)
}

fn goldens() -> Value {
    serde_json::from_slice(&std::fs::read(chat_data("chat.json")).unwrap()).unwrap()
}

fn write(folder: &Path, name: &str, json: &Value) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, json.to_string()).unwrap();
    path
}

/// Vocabulary with the BOS and EOS of a family's goldens.
fn vocabulary(family: &str) -> PathBuf {
    let folder = match family {
        "llama3" => "bpe_llama3",
        "chatml" => "bpe_qwen2",
        "phi3" => "spm_bpe",
        _ => "spm_gemma",
    };
    repository("crates/text/tests/data/tokenizers").join(folder).join("vocab.gguf")
}

#[test]
fn prompts_are_the_goldens() {
    let goldens = goldens();
    let folder = tempfile::tempdir().unwrap();
    for family in ["llama3", "chatml", "phi3", "gemma"] {
        let golden = &goldens["families"][family];
        let template = chat_data(golden["template"].as_str().unwrap());
        for name in ["system", "unicode_and_markup", "tools", "thinking_off"] {
            let Some(expected) = golden["expected"].get(name) else { continue };
            let conversations = goldens["conversations"].as_array().unwrap();
            let conversation = conversations.iter().find(|one| one["name"] == name).unwrap();
            let messages = write(folder.path(), "messages.json", &conversation["messages"]);
            let tools = conversation.get("tools").map(|tools| write(folder.path(), "tools.json", tools));
            let model = vocabulary(family);
            let mut arguments =
                vec!["template", "--messages", argument(&messages), "--model", argument(&model)];
            if let Some(tools) = &tools {
                arguments.extend(["--tools", argument(tools)]);
            }
            if name == "thinking_off" {
                arguments.extend(["--set", "enable_thinking=false"]);
            }
            let of_file = run(&[&arguments[..], &["--template", argument(&template)]].concat());
            assert_eq!(of_file.text(), expected["text"], "{family} {name}");
            let document = run(&[&arguments[..], &["--style", family, "--json"]].concat()).json();
            assert_eq!(fields(&document), ["prompt", "style"]);
            assert_eq!(document["prompt"], expected["text"], "{family} {name}");
            assert_eq!(document["style"], family);
        }
    }
}

#[test]
fn the_models_own_template_is_the_default() {
    let messages = json!([{"role": "user", "content": "Hi"}]).to_string();
    let own = run_with_input(&["template", "--messages", "-", "--json"], messages.as_bytes()).json();
    assert_eq!(fields(&own), ["prompt"]);
    let prompt = own["prompt"].as_str().unwrap();
    assert!(prompt.ends_with("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"), "{prompt:?}");
    let shorter = run_with_input(
        &["template", "--messages", "-", "--no-generation-prompt"],
        json!({"messages": [{"role": "user", "content": "Hi"}], "tools": null}).to_string().as_bytes(),
    );
    assert_eq!(format!("{}<|im_start|>assistant\n", shorter.text()), prompt);
}

#[test]
fn a_folder_or_a_definition_is_a_model_here() {
    let folder = repository("crates/text/tests/data/tokenizers/bpe_llama3");
    let messages = json!([{"role": "user", "content": "Hi"}]).to_string();
    let prompt = |model: &Path| {
        run_with_input(
            &["template", "--messages", "-", "--model", argument(model), "--style", "llama3"],
            messages.as_bytes(),
        )
        .text()
        .to_owned()
    };
    let expected = prompt(&folder.join("vocab.gguf"));
    assert!(expected.starts_with("<|begin_of_text|>"), "{expected:?}");
    assert_eq!(prompt(&folder), expected);
    assert_eq!(prompt(&folder.join("tokenizer.json")), expected);
}

#[test]
fn an_error_of_a_template_file_shows_its_line() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let messages = br#"[{"role": "user", "content": "Hi"}]"#;
    let arguments = ["template", "--messages", "-", "--template", argument(file.path())];
    for (template, line) in [
        ("{% for m in messages %}\n  {{ m.content }\n{% endfor %}", "line 2 of"),
        ("a\n\n{{ messages[0].content | nofilter }}", "line 3 of"),
        ("{% if true %}\n{{ messages[0].foo.bar.baz }}\n{% endif %}", "line 2 of"),
    ] {
        std::fs::write(file.path(), template).unwrap();
        let text = template.lines().find(|line| line.contains("{{")).unwrap().trim();
        run_with_input(&arguments, messages)
            .fails_with(1, &[line, argument(file.path()), &format!("`{text}`")]);
    }
}

#[test]
fn wrong_files_are_one_line() {
    let messages = |text: &str| run_with_input(&["template", "--messages", "-"], text.as_bytes());
    messages("{").fails_with(1, &["invalid JSON"]);
    messages("{}").fails_with(1, &["under `messages`"]);
    messages("[{\"content\": \"x\"}]").fails_with(1, &["not a list of messages", "`role`"]);
    messages("{\"messages\": [], \"tools\": 1}").fails_with(1, &["array of tool definitions"]);
    let two_users = "[{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"user\", \"content\": \"b\"}]";
    run_with_input(&["template", "--messages", "-", "--style", "gemma"], two_users.as_bytes())
        .fails_with(1, &["cannot make a prompt", "message 2 is from the user"]);
    run(&["template", "--messages", "absent.json"]).fails_with(1, &["absent.json"]);
    run(&["template"]).fails_with(2, &["--messages"]);
    run(&["template", "--messages", "-", "--style", "x"]).fails_with(2, &["chat style `x`", "chatml, gemma"]);
    run(&["template", "--messages", "-", "--set", "x"]).fails_with(2, &["NAME=VALUE"]);
}
