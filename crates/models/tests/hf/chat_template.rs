//! The files of a folder that a chat template is searched in.

use std::fs;

use ruvllm_models::{Error, folder_chat_template};
use ruvllm_text::chat::ChatStyle;
use ruvllm_text::tokenizer::Tokenizer;
use serde_json::Value;

use crate::support::tiny;

#[test]
fn templates_of_a_folder_are_found_where_transformers_looks() -> Result<(), Box<dyn std::error::Error>> {
    let tokenizer = Tokenizer::from_file(&tiny("qwen2").join("hf/tokenizer.json"))?;
    let directory = tempfile::tempdir()?;
    let folder = directory.path();
    let render = |tools: Option<&Value>| {
        let template = folder_chat_template(folder, &tokenizer)?;
        Ok::<_, Error>((template.style(), template.render(&[], tools, false)?))
    };
    assert_eq!(render(None)?.0, Some(ChatStyle::ChatMl));
    let list = r#"{"chat_template": [{"name": "default", "template": "list"}, {"name": "tool_use", "template": "tools"}]}"#;
    fs::write(folder.join("tokenizer_config.json"), list)?;
    assert_eq!(render(None)?, (None, "list".to_owned()));
    assert_eq!(render(Some(&serde_json::json!([])))?.1, "tools");
    fs::write(folder.join("tokenizer_config.json"), r#"{"chat_template": "text"}"#)?;
    assert_eq!(render(None)?.1, "text");
    fs::write(folder.join("chat_template.json"), r#"{"chat_template": "json"}"#)?;
    assert_eq!(render(None)?.1, "json");
    fs::write(folder.join("chat_template.jinja"), "file {{ eos_token }}")?;
    assert!(render(None)?.1.starts_with("file <|"));
    fs::write(folder.join("chat_template.jinja"), [0xFF])?;
    assert!(matches!(render(None), Err(Error::NotUtf8 { .. })));
    fs::remove_file(folder.join("chat_template.jinja"))?;
    fs::write(folder.join("chat_template.json"), "{")?;
    assert!(matches!(render(None), Err(Error::InvalidJson { .. })));
    Ok(())
}
