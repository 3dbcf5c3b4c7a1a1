//! The template of a model in a Hugging Face folder.

use std::path::Path;

use gguf_rs_lite::Metadata;

use super::ChatTemplate;
use crate::{Result, hf, tokenizer::Tokenizer};

impl ChatTemplate {
    /// The template of a folder as the Hugging Face hub has them, in the order in which transformers looks:
    /// `chat_template.jinja` (with `additional_chat_templates/tool_use.jinja`), `chat_template.json`, `chat_template` in
    /// `tokenizer_config.json`; or else the built-in one of the style that [`ChatStyle::detect`](super::ChatStyle::detect)
    /// finds with `model_type` in `config.json`. The folder needs no weights.
    ///
    /// # Errors
    /// [`Error::NoChatTemplate`](crate::Error::NoChatTemplate) if there is none; what is wrong with a file that cannot be
    /// read; as [`new`](Self::new) otherwise.
    pub fn from_folder(folder: &Path, tokenizer: &Tokenizer) -> Result<Self> {
        let mut metadata = Metadata::new();
        hf::write_chat_template(folder, &mut metadata)?;
        let config = hf::read_object(&folder.join("config.json"))?.unwrap_or_default();
        let text = |key: &str| config.get(key).and_then(|value| value.as_str()).unwrap_or_default();
        let name = folder.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
        metadata.insert("general.architecture", text("model_type"));
        metadata.insert("general.name", format!("{} {name}", text("_name_or_path")));
        Self::from_gguf(&metadata, tokenizer)
    }
}
