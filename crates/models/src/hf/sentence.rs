//! Settings of a sentence-transformers folder: pooling, normalization and maximum length of an
//! embedding model, answers of a reranker.

use std::path::{Component, Path};

use gguf_rs_lite::Metadata;
use ruvllm_text::TokenId;
use serde_json::{Map, Value};

use super::dense::MAX_DENSE;
use super::family::Family;
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

/// The architecture of rerankers with answers: scores of others have another form in llama.cpp.
pub(super) const ANSWERS_OF: &str = "qwen3";

/// The token ids whose logits are compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Answers {
    pub(super) yes: TokenId,
    pub(super) no: TokenId,
}

/// Result of a folder's steps.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Modules {
    /// The folder lists no steps.
    None,
    /// A vector, behind the matrices in these subfolders.
    Embedding {
        /// In the order in which they are applied.
        dense: Vec<String>,
    },
    /// The logits of two answers, compared.
    Score(Answers),
}

impl Modules {
    /// Subfolders of the matrices behind the pooling.
    pub(super) fn dense(&self) -> &[String] {
        match self {
            Self::Embedding { dense } => dense,
            Self::None | Self::Score(_) => &[],
        }
    }
}

/// Adds what a folder says to the metadata of a model.
///
/// # Errors
/// [`Error::InvalidField`] for steps that are not implemented: leaving one out would give other
/// vectors or scores.
pub(super) fn write(folder: &Path, family: &Family, metadata: &mut Metadata) -> Result<Modules> {
    let path = folder.join(MODULES);
    let Some(bytes) = read_json(&path, CONFIG_BYTES)? else { return Ok(Modules::None) };
    let modules: Value =
        serde_json::from_slice(&bytes).map_err(|source| Error::InvalidJson { path, source })?;
    let map = Map::from_iter([("modules".to_owned(), modules)]);
    let fields = Fields::new(MODULES, &map);
    let invalid = || fields.invalid("modules", "a list of modules, each with a `type` and a `path`");
    let (mut normalizes, mut dense, mut answers) = (false, Vec::new(), None);
    let file = |module| subfolder(module).map(|path| format!("{path}/config.json")).ok_or_else(invalid);
    for module in fields.list("modules")?.ok_or_else(invalid)? {
        let kind = module["type"].as_str().ok_or_else(invalid)?;
        match kind.rsplit('.').next().unwrap_or_default() {
            "Transformer" => {}
            "Pooling" => {
                let pooling = read_pooling(folder, &file(module)?)?;
                metadata.insert(format!("{}.pooling_type", family.architecture), pooling.number());
            }
            "Dense" if family.may_project() && !normalizes && dense.len() < MAX_DENSE => {
                dense.push(subfolder(module).ok_or_else(invalid)?.to_owned());
            }
            "Normalize" => normalizes = true,
            "LogitScore" if family.architecture == ANSWERS_OF => {
                answers = Some(read_answers(folder, &file(module)?)?);
            }
            _ => {
                let expected = match family.may_project() {
                    true => "Transformer, Pooling, up to two of Dense, Normalize, in this order",
                    false => {
                        "Transformer, Pooling, Normalize, or LogitScore of a Qwen 3: other modules are not \
                         supported"
                    }
                };
                let (field, found) = (format!("{MODULES}: `type`"), kind.to_owned());
                return Err(Error::InvalidField { field, found, expected: expected.to_owned() });
            }
        }
    }
    if answers.is_none() {
        metadata.insert(NORMALIZE, normalizes);
    }
    if let Some(map) = read_object(&folder.join(SENTENCE), CONFIG_BYTES)?
        && let Some(tokens) = Fields::new(SENTENCE, &map).count("max_seq_length", 1..=u32::MAX as usize)?
    {
        metadata.insert(MAX_TOKENS, u32::try_from(tokens).unwrap_or(u32::MAX));
    }
    Ok(answers.map_or(Modules::Embedding { dense }, Modules::Score))
}

/// The subfolder of a module.
fn subfolder(module: &Value) -> Option<&str> {
    module["path"].as_str().filter(|path| is_name(path))
}

/// The two answers that a module's configuration names.
fn read_answers(folder: &Path, file: &str) -> Result<Answers> {
    let map = read_object(&folder.join(file), CONFIG_BYTES)?.unwrap_or_default();
    let fields = Fields::new(file, &map);
    let id = |key: &str| {
        let expected = "the id of a token: scores compare two answers";
        let id = fields.count(key, 0..=u32::MAX as usize)?.ok_or_else(|| fields.missing(key, expected))?;
        u32::try_from(id).map_err(|_| fields.invalid(key, expected))
    };
    Ok(Answers { yes: id("true_token_id")?, no: id("false_token_id")? })
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
