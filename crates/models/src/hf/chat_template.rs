//! Where folders keep their chat templates: a file of its own, or a field of the tokenizer's configuration.

use std::path::Path;

use gguf_rs_lite::Metadata;
use serde_json::Value;

use super::fields::{Fields, read_file, read_object};
use super::vocabulary::TOKENIZER_CONFIG;
use crate::error::{Error, Result};

const KEY: &str = "tokenizer.chat_template";
const FIELD: &str = "chat_template";

/// Adds the templates of a folder, if it has any, under the keys of GGUF.
pub(crate) fn write(folder: &Path, metadata: &mut Metadata) -> Result<()> {
    // A file of its own goes before a field.
    let jinja = folder.join("chat_template.jinja");
    if let Some(bytes) = read_file(&jinja)? {
        let text = String::from_utf8(bytes).map_err(|_| Error::NotUtf8 { path: jinja })?;
        metadata.insert(KEY, text);
        let tool_use = folder.join("additional_chat_templates/tool_use.jinja");
        if let Some(bytes) = read_file(&tool_use)? {
            let text = String::from_utf8(bytes).map_err(|_| Error::NotUtf8 { path: tool_use })?;
            metadata.insert(format!("{KEY}.tool_use"), text);
        }
        return Ok(());
    }
    for file in ["chat_template.json", TOKENIZER_CONFIG] {
        let Some(map) = read_object(&folder.join(file))? else { continue };
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
