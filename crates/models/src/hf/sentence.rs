//! Embedding settings of a sentence-transformers folder: pooling, normalization and maximum length.

use std::path::{Component, Path};

use gguf_rs_lite::Metadata;
use serde_json::{Map, Value};

use super::fields::{CONFIG_BYTES, Fields, read_json, read_object};
use crate::error::{Error, Result};
use crate::pooling::{MAX_TOKENS, NORMALIZE, Pooling};

/// The steps from text to vector. A folder without it is no such folder.
const MODULES: &str = "modules.json";

/// Settings of the first step.
const SENTENCE: &str = "sentence_bert_config.json";

/// Names of the kinds of pooling: fields of the older files, values of `pooling_mode`.
const POOLINGS: [(&str, &str, Pooling); 3] = [
    ("pooling_mode_mean_tokens", "mean", Pooling::Mean),
    ("pooling_mode_cls_token", "cls", Pooling::Cls),
    ("pooling_mode_lasttoken", "lasttoken", Pooling::Last),
];

/// Adds what a folder says to the metadata of a model of `architecture`.
///
/// # Errors
/// [`Error::InvalidField`] for steps that are not implemented: leaving one out would give other
/// vectors.
pub(super) fn write(folder: &Path, architecture: &str, metadata: &mut Metadata) -> Result<()> {
    let path = folder.join(MODULES);
    let Some(bytes) = read_json(&path, CONFIG_BYTES)? else { return Ok(()) };
    let modules: Value =
        serde_json::from_slice(&bytes).map_err(|source| Error::InvalidJson { path, source })?;
    let map = Map::from_iter([("modules".to_owned(), modules)]);
    let fields = Fields::new(MODULES, &map);
    let invalid = || fields.invalid("modules", "a list of modules, each with a `type` and a `path`");
    let mut normalizes = false;
    for module in fields.list("modules")?.ok_or_else(invalid)? {
        let kind = module["type"].as_str().ok_or_else(invalid)?;
        match kind.rsplit('.').next().unwrap_or_default() {
            "Transformer" => {}
            "Pooling" => {
                let subfolder = module["path"].as_str().filter(|path| is_name(path)).ok_or_else(invalid)?;
                let file = format!("{subfolder}/config.json");
                let pooling = read_pooling(folder, &file)?;
                metadata.insert(format!("{architecture}.pooling_type"), pooling.number());
            }
            "Normalize" => normalizes = true,
            _ => {
                let expected = "Transformer, Pooling or Normalize: other modules are not supported";
                let (field, found) = (format!("{MODULES}: `type`"), kind.to_owned());
                return Err(Error::InvalidField { field, found, expected: expected.to_owned() });
            }
        }
    }
    metadata.insert(NORMALIZE, normalizes);
    if let Some(map) = read_object(&folder.join(SENTENCE), CONFIG_BYTES)?
        && let Some(tokens) = Fields::new(SENTENCE, &map).count("max_seq_length", 1..=u32::MAX as usize)?
    {
        metadata.insert(MAX_TOKENS, u32::try_from(tokens).unwrap_or(u32::MAX));
    }
    Ok(())
}

/// The one kind of pooling that a module's configuration names.
fn read_pooling(folder: &Path, file: &str) -> Result<Pooling> {
    const MODE: &str = "pooling_mode";
    let expected = || format!("one of {}", POOLINGS.map(|(_, name, _)| name).join(", "));
    let map = read_object(&folder.join(file), CONFIG_BYTES)?.unwrap_or_default();
    let fields = Fields::new(file, &map);
    if let Some(mode) = fields.text(MODE)? {
        let named = POOLINGS.iter().find(|(_, name, _)| *name == mode);
        return named.map(|&(_, _, pooling)| pooling).ok_or_else(|| fields.invalid(MODE, expected()));
    }
    let mut modes = Vec::new();
    for (key, value) in fields.iter() {
        if key.starts_with(MODE) && value.as_bool() == Some(true) {
            modes.push(key);
        }
    }
    match modes.as_slice() {
        [] => Err(fields.missing(MODE, expected())),
        [key] => match POOLINGS.iter().find(|(name, ..)| name == key) {
            Some(&(_, _, pooling)) => Ok(pooling),
            None => Err(fields.invalid(key, format!("false, and {}", expected()))),
        },
        [_, second, ..] => Err(fields.invalid(second, "false: vectors of one kind of pooling only")),
    }
}

/// True if a path is the name of a folder within its own.
fn is_name(path: &str) -> bool {
    let mut components = Path::new(path).components();
    matches!((components.next(), components.next()), (Some(Component::Normal(_)), None))
        && !path.contains(['\\', '\0'])
}
