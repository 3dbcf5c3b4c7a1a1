//! Loading of a command's model: engine, embedder, or only tokenizer and chat template.

use std::path::{Path, PathBuf};

use ruvllm::{Embedder, EngineOptions, InferenceBackend, TokenId};
use ruvllm_models::folder_chat_template;
use ruvllm_text::chat::ChatTemplate;
use ruvllm_text::tokenizer::{EncodeOptions, Tokenizer};

use super::offer;
use crate::args::{GenerationArgs, ModelArgs};
use crate::default_model::ModelChoice;
pub(crate) use crate::device::engine;
use crate::device::{Defaults, Loaded, details, warn};
use crate::error::{Error, Result};
use crate::output;
use crate::progress::Progress;

/// Loads the model of a command that generates text on its device, with its adapters. `session` is
/// the folder for keys and values of a session.
///
/// # Errors
/// As [`DeviceArgs::load`](crate::device::DeviceArgs::load), and a `--context` beyond the model's.
pub(crate) fn generator(args: &GenerationArgs, defaults: Defaults, session: Option<&Path>) -> Result<Loaded> {
    let options = args.options(session)?;
    let context = options.context;
    let model = args.compute.device.load(&args.model, &args.adapters, options, defaults)?;
    check_context(context, model.backend().config().context_length)?;
    Ok(model)
}

/// Rejects a context length beyond the model's.
///
/// # Errors
/// [`Error::ContextTooLarge`].
pub(crate) fn check_context(asked: Option<usize>, model_context: usize) -> Result<()> {
    match asked.filter(|asked| *asked > model_context) {
        Some(asked) => Err(Error::ContextTooLarge { asked, model_context }),
        None => Ok(()),
    }
}

/// Loads the model of a command, decoder or encoder, for embeddings; otherwise as [`engine`].
///
/// # Errors
/// As [`engine`].
pub(crate) fn embedder(model: &ModelArgs, options: EngineOptions) -> Result<Embedder> {
    let choice = offer::model(model.model.as_deref())?;
    let mut progress = Progress::bytes(format!("loading {}", choice.name()));
    let embedder = Embedder::load(&choice.source(), &options, &mut |step| {
        progress.update(step.bytes_done, step.bytes_total);
    })?;
    if let Some(engine) = embedder.engine() {
        warn(engine);
        output::detail(&details(engine, &choice.name()));
    }
    Ok(embedder)
}

/// Loads the tokenizer of a command's model, without weights. A `tokenizer.json`, or a folder that
/// has one, is also accepted.
///
/// # Errors
/// A file that cannot be read or has no supported tokenizer.
pub(crate) fn tokenizer(model: &ModelArgs) -> Result<Tokenizer> {
    let choice = offer::model(model.model.as_deref())?;
    let failed = |source| Error::Tokenizer { model: choice.name(), source };
    match tokenizer_json(&choice) {
        Some(path) => Tokenizer::from_file(&path).map_err(Into::into),
        None => choice.open()?.tokenizer(),
    }
    .map_err(failed)
}

/// Loads the chat template of a command's model, without weights.
///
/// # Errors
/// As [`tokenizer`]; a template that is absent or not valid.
pub(crate) fn chat_template(model: &ModelArgs) -> Result<ChatTemplate> {
    let choice = offer::model(model.model.as_deref())?;
    let failed = |source| Error::Tokenizer { model: choice.name(), source };
    let template = match tokenizer_json(&choice) {
        Some(path) => {
            let tokenizer = Tokenizer::from_file(&path).map_err(|error| failed(error.into()))?;
            folder_chat_template(path.parent().unwrap_or(Path::new("")), &tokenizer)
        }
        None => {
            let checkpoint = choice.open()?;
            let tokenizer = checkpoint.tokenizer().map_err(failed)?;
            ChatTemplate::from_gguf(checkpoint.metadata(), &tokenizer).map_err(Into::into)
        }
    };
    template.map_err(|source| Error::ChatTemplate { source })
}

/// Path of a `tokenizer.json` that is chosen itself, or by a folder that has it but no model.
fn tokenizer_json(choice: &ModelChoice) -> Option<PathBuf> {
    let ModelChoice::File { path, .. } = choice else { return None };
    let in_folder = path.join("tokenizer.json");
    let is_bare = in_folder.is_file() && !path.join("config.json").exists();
    if is_json(path) { Some(path.clone()) } else { is_bare.then_some(in_folder) }
}

/// Encodes a text for a measurement: without BOS and EOS, as `tokenize --no-special` does.
///
/// # Errors
/// A text that the tokenizer rejects.
pub(crate) fn encode_plain(model: &dyn InferenceBackend, text: &str) -> Result<Vec<TokenId>> {
    let options = EncodeOptions { add_special: false, parse_special: true };
    model
        .codec()
        .tokenizer()
        .encode(text, options)
        .map_err(|source| Error::Tokens { what: "cannot tokenize the text", source })
}

fn is_json(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json"))
}
