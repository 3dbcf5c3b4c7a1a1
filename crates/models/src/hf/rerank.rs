//! Decoders that rank documents: a prompt asks about a query and a document, and the rows of two
//! answers in the output matrix score the last state.
//!
//! Folders that sentence-transformers 5.4 wrote name the answers in a module `LogitScore`, and
//! their chat template has the roles `query` and `document`. Older ones are those of a language
//! model: as for llama.cpp's converter (`conversion/qwen.py`), the title of their card or their
//! name tells.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use gguf_rs_lite::TensorInfo;
use ruvllm_text::TokenId;
use ruvllm_text::chat::{ChatTemplate, Message};

use super::HfFolder;
use super::origin::{Change, Origin, Slice, Tensor};
use super::sentence::{ANSWERS_OF, Answers, Modules};
use crate::error::{Error, Result};
use crate::pooling::RANKS;
use crate::ranking::{LABELS, RERANK_TEMPLATE, SCORES, TEMPLATE_KEY, is_rerank_template};
use crate::tensor_names::output_name;

/// Part of the names of published models, in lower case.
const NAME: &str = "qwen3-reranker";

/// Key of the names of templates beside the usual one.
const TEMPLATE_NAMES: &str = "tokenizer.chat_templates";

/// Bytes of a model card that may hold its title, behind its metadata.
const CARD_BYTES: u64 = 1 << 16;

/// Adds what makes a reranker of a folder that is one: the tensor that scores, and the keys that
/// llama.cpp reads.
///
/// # Errors
/// [`Error::NoAnswerToken`]; [`Error::InvalidField`] for answers beyond the vocabulary, and other
/// answers than `yes` and `no` without a template that asks for them.
pub(super) fn complete(folder: &mut HfFolder, modules: &Modules) -> Result<()> {
    let (answers, template) = match modules {
        &Modules::Score(answers) => (answers, template_for(folder, answers)?),
        Modules::None if is_named_reranker(folder) => (usual_answers(folder)?, RERANK_TEMPLATE.to_owned()),
        Modules::None | Modules::Embedding { .. } => return Ok(()),
    };
    let rows = folder.vocab_size();
    if let Some(&id) = [answers.yes, answers.no].iter().find(|&&id| id as usize >= rows) {
        let field = "1_LogitScore/config.json: `true_token_id`, `false_token_id`".to_owned();
        let expected = format!("ids of the {rows} tokens of the model");
        return Err(Error::InvalidField { field, found: id.to_string(), expected });
    }
    let tensor = score_rows(folder, answers)?;
    folder.by_name.insert(SCORES.to_owned(), folder.tensors.len());
    folder.tensors.push(tensor);
    let metadata = &mut folder.metadata;
    metadata.insert(format!("{ANSWERS_OF}.pooling_type"), RANKS);
    metadata.insert(format!("{ANSWERS_OF}.{LABELS}"), ["yes", "no"].map(str::to_owned).to_vec());
    let mut names = metadata.get_strings(TEMPLATE_NAMES)?.unwrap_or_default().to_vec();
    names.retain(|name| name != "rerank");
    names.push("rerank".to_owned());
    metadata.insert(TEMPLATE_NAMES, names);
    metadata.insert(TEMPLATE_KEY, template);
    Ok(())
}

/// The tokens `yes` and `no`.
fn usual_answers(folder: &HfFolder) -> Result<Answers> {
    let tokenizer = super::Checkpoint::tokenizer(folder)?;
    let id = |token: &'static str| tokenizer.token_to_id(token).ok_or(Error::NoAnswerToken { token });
    Ok(Answers { yes: id("yes")?, no: id("no")? })
}

/// The two rows of the matrix that makes the logits.
fn score_rows(folder: &HfFolder, answers: Answers) -> Result<Tensor> {
    let name = output_name(folder.tensors.iter().map(|tensor| &tensor.info));
    let missing = || Error::MissingTensor { name: name.to_owned() };
    let Some(Tensor { info, origin: Origin::Stored(stored, Change::None) }) = folder.find(name) else {
        return Err(missing());
    };
    let [columns, rows] = info.dims[..] else { return Err(missing()) };
    let row_bytes = stored.byte_len() / (rows as usize).max(1);
    let row = |id: TokenId| {
        let start = id as usize * row_bytes;
        Slice { bytes: start..start + row_bytes, ..Slice::whole(stored) }
    };
    let info = TensorInfo::new(SCORES, [columns, 2], info.tensor_type)?;
    Ok(Tensor { info, origin: Origin::Stacked(vec![row(answers.yes), row(answers.no)]) })
}

/// The prompt of a folder with modules: that of its chat template, or the usual one for the usual
/// answers.
fn template_for(folder: &HfFolder, answers: Answers) -> Result<String> {
    if let Some(template) = template_of_roles(folder) {
        return Ok(template);
    }
    if answers == usual_answers(folder)? {
        return Ok(RERANK_TEMPLATE.to_owned());
    }
    let expected = "a template of the roles `query` and `document`: the model has answers of its own";
    let (field, found) = ("chat_template".to_owned(), "another template".to_owned());
    Err(Error::InvalidField { field, found, expected: expected.to_owned() })
}

/// The prompt of a chat template with the roles of a query and a document, around their
/// placeholders; `None` for other templates.
fn template_of_roles(folder: &HfFolder) -> Option<String> {
    let source = folder.metadata.get_str(super::chat_template::KEY).ok()??;
    let template = ChatTemplate::new(source, None, None).ok()?;
    let messages = [Message::new("query", "{query}"), Message::new("document", "{document}")];
    template.render(&messages, None, true).ok().filter(|prompt| is_rerank_template(prompt))
}

/// True if the names or the card of a folder of a language model say that it ranks.
fn is_named_reranker(folder: &HfFolder) -> bool {
    if folder.metadata.get_str("general.architecture").ok().flatten() != Some(ANSWERS_OF) {
        return false;
    }
    let named = folder.config.fields().get("_name_or_path").and_then(serde_json::Value::as_str);
    let is_name = |name: &str| name.to_lowercase().contains(NAME);
    named.is_some_and(is_name) || names_of(&folder.path).iter().any(|name| is_name(name)) || {
        let mut card = Vec::new();
        let read = File::open(folder.path.join("README.md"))
            .and_then(|file| file.take(CARD_BYTES).read_to_end(&mut card));
        let text = String::from_utf8_lossy(&card).to_lowercase();
        read.is_ok()
            && text.lines().any(|line| line.strip_prefix("# ").is_some_and(|title| title.starts_with(NAME)))
    }
}

/// The name of a folder, and those of the two around it that name a repository, as in the caches of
/// models: `models--ORG--REPO/snapshots/COMMIT`.
fn names_of(folder: &Path) -> Vec<String> {
    let path = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    let name = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
    let around = path.ancestors().skip(1).take(2).filter_map(name).filter(|name| name.contains("--"));
    name(&path).into_iter().chain(around).collect()
}
