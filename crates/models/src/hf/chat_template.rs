//! Chat template of a folder: a file of its own, or a field of the tokenizer's configuration.

use std::path::Path;

use gguf_rs_lite::Metadata;
use ruvllm_text::chat::ChatTemplate;
use ruvllm_text::tokenizer::Tokenizer;
use serde_json::Value;

use super::fields::{CONFIG_BYTES, Fields, read_file, read_object};
use super::vocabulary::TOKENIZER_CONFIG;
use crate::error::{Error, Result};

/// Key of the usual template.
pub(super) const KEY: &str = "tokenizer.chat_template";
const FIELD: &str = "chat_template";

/// The chat template of a Hugging Face folder, which needs no weights.
///
/// Searched in the order of transformers: `chat_template.jinja` (with
/// `additional_chat_templates/tool_use.jinja`), `chat_template.json`, `chat_template` in
/// `tokenizer_config.json`; or else the built-in template of the style that
/// [`ChatStyle::detect`](ruvllm_text::chat::ChatStyle::detect) finds with `model_type` in
/// `config.json`.
///
/// # Errors
/// [`Error::ReadFile`], [`Error::FileTooLarge`], [`Error::TooManyValues`], [`Error::NotUtf8`],
/// [`Error::InvalidJson`] and [`Error::InvalidField`] for files that cannot be read;
/// [`Error::Text`] for a template that is absent or not valid.
pub fn folder_chat_template(folder: &Path, tokenizer: &Tokenizer) -> Result<ChatTemplate> {
    let mut metadata = Metadata::new();
    write(folder, &mut metadata)?;
    let config = read_object(&folder.join("config.json"), CONFIG_BYTES)?.unwrap_or_default();
    let text = |key: &str| config.get(key).and_then(Value::as_str).unwrap_or_default();
    let name = folder.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
    metadata.insert("general.architecture", text("model_type"));
    metadata.insert("general.name", format!("{} {name}", text("_name_or_path")));
    Ok(ChatTemplate::from_gguf(&metadata, tokenizer)?)
}

/// Adds the templates of a folder, if it has any, under the keys of GGUF.
pub(super) fn write(folder: &Path, metadata: &mut Metadata) -> Result<()> {
    // A file of its own goes before a field.
    let jinja = folder.join("chat_template.jinja");
    if let Some(bytes) = read_file(&jinja, CONFIG_BYTES)? {
        let text = String::from_utf8(bytes).map_err(|_| Error::NotUtf8 { path: jinja })?;
        metadata.insert(KEY, text);
        let tool_use = folder.join("additional_chat_templates/tool_use.jinja");
        if let Some(bytes) = read_file(&tool_use, CONFIG_BYTES)? {
            let text = String::from_utf8(bytes).map_err(|_| Error::NotUtf8 { path: tool_use })?;
            metadata.insert(format!("{KEY}.tool_use"), text);
        }
        return Ok(());
    }
    for file in ["chat_template.json", TOKENIZER_CONFIG] {
        let Some(map) = read_object(&folder.join(file), CONFIG_BYTES)? else { continue };
        let fields = Fields::new(file, &map);
        match fields.get(FIELD) {
            None => {}
            Some(Value::String(text)) => {
                metadata.insert(KEY, text.as_str());
                return Ok(());
            }
            Some(Value::Array(named)) => return write_named(&fields, named, metadata),
            Some(_) => return Err(fields.invalid(FIELD, "a text, or a list of named templates")),
        }
    }
    Ok(())
}

/// Several templates: one by default, others for tools or retrieval.
fn write_named(fields: &Fields<'_>, named: &[Value], metadata: &mut Metadata) -> Result<()> {
    let mut others: Vec<String> = Vec::new();
    for entry in named {
        let (Some(name), Some(text)) = (entry["name"].as_str(), entry["template"].as_str()) else {
            return Err(fields.invalid(FIELD, "a list of objects with a name and a template"));
        };
        if name == "default" {
            metadata.insert(KEY, text);
        } else {
            metadata.insert(format!("{KEY}.{name}"), text);
            others.push(name.to_owned());
        }
    }
    if !others.is_empty() {
        metadata.insert("tokenizer.chat_templates", others);
    }
    Ok(())
}
