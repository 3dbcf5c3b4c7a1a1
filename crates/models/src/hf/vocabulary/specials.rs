//! Special tokens of a folder: which ids they have, and which are put around every text.

use std::collections::BTreeMap;

use gguf_rs_lite::Metadata;
use ruvllm_text::TokenId;
use serde_json::Value;

use super::{Added, as_id};
use crate::error::Result;
use crate::hf::fields::Fields;

/// Names of special tokens in the files, and in metadata keys.
const NAMES: [(&str, &str); 7] = [
    ("bos", "bos"),
    ("eos", "eos"),
    ("unk", "unknown"),
    // The format spells it so.
    ("sep", "seperator"),
    ("pad", "padding"),
    ("cls", "cls"),
    ("mask", "mask"),
];

/// The files that speak of special tokens.
pub(super) struct Specials<'a> {
    pub(super) config: &'a Fields<'a>,
    /// `tokenizer_config.json`.
    pub(super) settings: &'a Fields<'a>,
    /// `tokenizer.json`.
    pub(super) definition: Option<&'a Fields<'a>>,
    pub(super) added: &'a BTreeMap<usize, Added>,
    /// The tokens that end an answer.
    pub(super) ends: &'a [TokenId],
}

impl Specials<'_> {
    pub(super) fn write(&self, rows: usize, metadata: &mut Metadata) -> Result<()> {
        let mut eos = None;
        for (name, key) in NAMES {
            if let Some(id) = self.id(name).filter(|&id| id < rows) {
                metadata.insert(format!("tokenizer.ggml.{key}_token_id"), id as u32);
                eos = if name == "eos" { Some(id) } else { eos };
            }
        }
        // The format has room for one end of a turn beside the end of the text.
        let others = self.ends.iter().find(|&&id| (id as usize) < rows && Some(id as usize) != eos);
        if let Some(&end) = others {
            metadata.insert("tokenizer.ggml.eot_token_id", end);
        }
        for (name, first, of_encoders) in [("bos", true, "cls"), ("eos", false, "sep")] {
            let Some(add) = self.is_added(name, first)? else { continue };
            metadata.insert(format!("tokenizer.ggml.add_{name}_token"), add);
            // Readers look up the id of a token that is added.
            let stand_in = self.id(of_encoders).filter(|&id| add && self.id(name).is_none() && id < rows);
            if let Some(id) = stand_in {
                metadata.insert(format!("tokenizer.ggml.{name}_token_id"), id as u32);
            }
        }
        Ok(())
    }

    /// The text of a special token, which some files wrap in an object.
    fn text(&self, name: &str) -> Option<&str> {
        match self.settings.get(&format!("{name}_token"))? {
            Value::String(text) => Some(text),
            other => other["content"].as_str(),
        }
    }

    fn id(&self, name: &str) -> Option<usize> {
        let text = self.text(name);
        let named = text.and_then(|text| self.added.iter().find(|(_, token)| token.text == text));
        match named {
            Some((&id, _)) => Some(id),
            None => as_id(self.config.get(&format!("{name}_token_id"))?),
        }
    }

    /// Returns true if texts begin (`first`) or end with a special token; `None` if the files do
    /// not say.
    fn is_added(&self, name: &str, first: bool) -> Result<Option<bool>> {
        let processor = self.definition.and_then(|definition| definition.get("post_processor"));
        if let Some(token) = processor.and_then(|processor| edge_token(processor, first)) {
            return Ok(Some(self.text(name).is_none_or(|text| text == token)));
        }
        let named = self.settings.flag(&format!("add_{name}_token"))?;
        // A definition that adds nothing adds nothing; without one the reader's own rules hold.
        Ok(named.or(self.definition.map(|_| false)))
    }
}

/// The special token that a post-processor puts before or after a single text.
fn edge_token(processor: &Value, first: bool) -> Option<&str> {
    if let Some(parts) = processor["processors"].as_array() {
        return parts.iter().find_map(|part| edge_token(part, first));
    }
    let single = processor["single"].as_array().filter(|single| single.len() > 1)?;
    let edge = if first { single.first() } else { single.last() };
    edge?["SpecialToken"]["id"].as_str()
}
