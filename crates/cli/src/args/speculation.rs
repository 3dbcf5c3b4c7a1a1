//! Flags of speculative decoding.

use std::convert::Infallible;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use ruvllm::{EngineOptions, ModelSource, Speculation};
use ruvllm_hub::Store;

use super::engine::ModelArgs;
use crate::built_in::{self, BuiltIn};
use crate::default_model::ModelChoice;
use crate::error::Result;

/// Part of a model's size up to which a stored model counts as its draft.
const DRAFT_PART: u64 = 4;

/// Options of speculative decoding.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Speculative decoding")]
pub(crate) struct SpeculationArgs {
    /// Draft model with the same vocabulary; auto: the model's own head for drafts, else a small
    /// model beside it or in the store, not on a GPU
    #[arg(long, value_name = "MODEL|auto|off", default_value = "auto", value_parser = draft)]
    draft: Draft,

    /// Tokens drafted per step: auto = as it pays, off, or 1 to 8; the text stays the same
    #[arg(long, value_name = "auto|off|N", default_value_t)]
    speculation: Speculation,
}

/// Options of speculative decoding for measurements, where it is off unless asked for.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Speculative decoding")]
pub(crate) struct MeasuredSpeculationArgs {
    /// With --parallel: draft model with the same vocabulary
    #[arg(long, value_name = "MODEL|auto|off", requires = "parallel", value_parser = draft)]
    draft: Option<Draft>,

    /// With --parallel: tokens drafted per step [default: off; auto with --draft]
    #[arg(long, value_name = "auto|off|N", requires = "parallel")]
    speculation: Option<Speculation>,
}

impl MeasuredSpeculationArgs {
    /// Drafts per step.
    pub(crate) fn setting(&self) -> Speculation {
        let unless_set = if self.draft.is_some() { Speculation::Auto } else { Speculation::Off };
        self.speculation.unwrap_or(unless_set)
    }

    /// Engine options of these flags for a model.
    ///
    /// # Errors
    /// As [`SpeculationArgs::apply`].
    pub(crate) fn apply(&self, options: EngineOptions, model: &ModelArgs) -> Result<EngineOptions> {
        let draft = self.draft.clone().unwrap_or(Draft::Auto);
        SpeculationArgs { draft, speculation: self.setting() }.apply(options, model)
    }
}

/// The draft model.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Draft {
    Auto,
    Off,
    Model(PathBuf),
}

/// Parses `auto`, `off` or a model. A file of such a name is `./off`.
fn draft(text: &str) -> Result<Draft, Infallible> {
    Ok(match text {
        "auto" => Draft::Auto,
        "off" => Draft::Off,
        _ => Draft::Model(text.into()),
    })
}

impl SpeculationArgs {
    /// These flags with another `--draft`.
    pub(crate) fn with_draft(&self, text: &str) -> Self {
        let Ok(draft) = draft(text);
        Self { draft, speculation: self.speculation }
    }

    /// Engine options of these flags for a model.
    ///
    /// # Errors
    /// A draft that is neither a path nor in the store.
    pub(crate) fn apply(&self, options: EngineOptions, model: &ModelArgs) -> Result<EngineOptions> {
        let options = options.with_speculation(self.speculation);
        Ok(match &self.draft {
            _ if self.speculation == Speculation::Off => options.with_draft_head(false),
            Draft::Off => options.with_draft_head(false),
            Draft::Auto => options.with_draft_candidates(candidates(model)),
            Draft::Model(path) => {
                let choice = ModelChoice::new(Some(path));
                choice.check()?;
                options.with_draft(choice.source())
            }
        })
    }
}

/// Models that may draft for a model: the built-in draft, files `draft*.gguf` beside it, small
/// models of the store. The engine takes the first one with the model's vocabulary.
fn candidates(model: &ModelArgs) -> Vec<ModelSource> {
    let mut candidates: Vec<_> = built_in::draft().into_iter().map(BuiltIn::source).collect();
    if let ModelChoice::File { path, .. } = ModelChoice::new(model.model.as_deref()) {
        candidates.extend(beside(&path).into_iter().map(ModelSource::Path));
        let most = size(&path) / DRAFT_PART;
        let stored = Store::from_env().and_then(|store| store.list()).unwrap_or_default();
        let small =
            stored.into_iter().filter(|other| other.is_complete && (1..=most).contains(&other.bytes()));
        candidates.extend(small.map(|other| ModelSource::Path(other.path)));
    }
    candidates
}

/// Files `draft*.gguf` in the folder of a model file, in the order of their names.
fn beside(model: &Path) -> Vec<PathBuf> {
    let folder = if model.is_dir() { Some(model) } else { model.parent() };
    let folder = folder.map(|folder| if folder == Path::new("") { Path::new(".") } else { folder });
    let Some(Ok(entries)) = folder.map(fs::read_dir) else { return Vec::new() };
    let is_draft = |path: &PathBuf| {
        let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        name.starts_with("draft") && name.ends_with(".gguf") && path != model
    };
    let mut found: Vec<PathBuf> =
        entries.filter_map(|entry| entry.ok().map(|entry| entry.path())).filter(is_draft).collect();
    found.sort_unstable();
    found
}

/// Bytes of a model file, or of the files of a folder.
fn size(model: &Path) -> u64 {
    let bytes = |path: &Path| fs::metadata(path).map_or(0, |found| found.len());
    match fs::read_dir(model) {
        Ok(entries) => entries.filter_map(|entry| entry.ok().map(|entry| bytes(&entry.path()))).sum(),
        Err(_) => bytes(model),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drafts_are_models_or_words() {
        assert_eq!(draft("auto"), Ok(Draft::Auto));
        assert_eq!(draft("off"), Ok(Draft::Off));
        assert_eq!(draft("./off"), Ok(Draft::Model("./off".into())));
    }

    #[test]
    fn a_draft_lies_beside_its_model() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models");
        let draft = folder.join("draft-q8_0.gguf");
        assert_eq!(beside(&folder.join("base-q8_0.gguf")).as_slice(), std::slice::from_ref(&draft));
        assert!(beside(&draft).is_empty(), "no model drafts for itself");
        assert!(size(&draft) > 5_000_000);
    }
}
