//! Model of a command: `--model`, `RUVLLM_MODEL`, configuration file, else the built-in model.
//!
//! A name is a path, or else a model of the store, by its name there or a reference to the hub.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use gguf_rs_lite::Gguf;
use ruvllm::ModelSource;
use ruvllm_hub::{ModelReference, Store, StoredModel};
use ruvllm_models::{Checkpoint, open_checkpoint};

use crate::built_in;
use crate::config;
pub(crate) use crate::config::MODEL_VARIABLE;
use crate::error::{Error, Result};

/// The model of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ModelChoice {
    /// The one inside the program, if this build has one.
    BuiltIn,
    /// A file or folder.
    File {
        /// Path of the model.
        path: PathBuf,
        /// The flag or variable that named it.
        origin: &'static str,
    },
}

impl ModelChoice {
    /// Chooses by `--model`, the environment and the configuration file. A name that is neither a
    /// path nor in the store is left for [`Self::check`] to reject.
    pub(crate) fn new(flag: Option<&Path>) -> Self {
        match Self::of(flag, env::var_os(MODEL_VARIABLE), config::model()) {
            Self::File { path, origin } => match from_store(&path) {
                Some(Ok(model)) => Self::File { path: model.path, origin },
                _ => Self::File { path, origin },
            },
            other => other,
        }
    }

    /// Chooses among the three values. An empty variable counts as absent, so that `RUVLLM_MODEL=`
    /// switches it off.
    fn of(flag: Option<&Path>, variable: Option<OsString>, file: Option<PathBuf>) -> Self {
        let variable = variable.filter(|path| !path.is_empty());
        let (path, origin) = match (flag, variable, file) {
            (Some(path), _, _) => (path.to_owned(), "--model"),
            (None, Some(path), _) => (path.into(), MODEL_VARIABLE),
            (None, None, Some(path)) => (path, "the configuration file"),
            (None, None, None) => return Self::BuiltIn,
        };
        Self::File { path, origin }
    }

    /// Hub reference of the choice, if it is one whose model is not in the store.
    pub(crate) fn not_pulled(&self) -> Option<ModelReference> {
        let Self::File { path, .. } = self else { return None };
        let reference = reference(path)?;
        let missing =
            from_store(path)?.is_err_and(|error| matches!(error, ruvllm_hub::Error::UnknownModel { .. }));
        missing.then_some(reference)
    }

    /// Name of the model in messages.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::BuiltIn => built_in::model().map_or("no model", |model| model.name).to_owned(),
            Self::File { path, .. } => path.display().to_string(),
        }
    }

    /// Origin of the choice, for a person.
    pub(crate) fn origin(&self) -> &'static str {
        match self {
            Self::BuiltIn => "built into the program",
            Self::File { origin, .. } => origin,
        }
    }

    /// Source of the model for the engine; one that does not load for a choice that
    /// [`check`](Self::check) refuses.
    pub(crate) fn source(&self) -> ModelSource {
        match self {
            Self::BuiltIn => match built_in::model() {
                Some(model) => model.source(),
                None => ModelSource::Static { name: self.name(), bytes: &[] },
            },
            Self::File { path, .. } => ModelSource::Path(path.clone()),
        }
    }

    /// Rejects a name that is neither a file, a folder nor a model of the store, and the built-in
    /// model in a build without one.
    ///
    /// # Errors
    /// [`Error::NotPulled`], [`Error::NoSuchModel`], [`Error::NoModel`].
    pub(crate) fn check(&self) -> Result<()> {
        let Self::File { path, .. } = self else {
            return built_in::model().map(drop).ok_or(Error::NoModel);
        };
        if self.not_pulled().is_some() {
            return Err(Error::NotPulled { reference: path.display().to_string() });
        }
        match from_store(path) {
            Some(Err(source)) => Err(Error::NoSuchModel { path: path.clone(), source }),
            _ => Ok(()),
        }
    }

    /// Opens the container only: metadata and tensor list, no weights.
    ///
    /// # Errors
    /// As [`Self::check`]; a path that is unreadable, or neither a valid GGUF file nor a Hugging
    /// Face folder.
    pub(crate) fn open(&self) -> Result<Box<dyn Checkpoint>> {
        self.check()?;
        let opened = match self {
            Self::BuiltIn => Gguf::from_static(built_in::model().map_or(&[], |model| model.bytes))
                .map(|gguf| Box::new(gguf) as Box<dyn Checkpoint>)
                .map_err(ruvllm_models::Error::from),
            Self::File { path, .. } => open_checkpoint(path),
        };
        opened.map_err(|source| Error::Open { path: self.name(), source })
    }
}

/// Looks up a stored model by name or reference; `None` for an existing file and for other paths.
fn from_store(path: &Path) -> Option<Result<StoredModel, ruvllm_hub::Error>> {
    let name = path.to_str()?;
    let is_name = !name.contains(['/', '\\']);
    let is_meant = is_name || reference(path).is_some() || name.starts_with("hf://");
    (is_meant && !path.exists()).then(|| Store::from_env()?.get(name))
}

/// Parses `path` as a hub reference. `ORG/REPO` counts as one only if nothing suggests a missing
/// file: no extension of a model file, no existing folder `ORG`.
fn reference(path: &Path) -> Option<ModelReference> {
    let text = path.to_str()?;
    let reference = ModelReference::from_user(text).ok()?;
    if text.contains("://") {
        return Some(reference);
    }
    let is_file = ["gguf", "json", "safetensors"]
        .iter()
        .any(|ending| path.extension().is_some_and(|found| found.eq_ignore_ascii_case(ending)));
    let in_folder = path.components().next().is_some_and(|first| Path::new(&first).exists());
    (reference.file().is_none() && !is_file && !in_folder && !path.exists()).then_some(reference)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flag_goes_before_the_variable_and_the_variable_before_the_built_in_model() {
        let file = |path: &str, origin| ModelChoice::File { path: path.into(), origin };
        let of = |flag: Option<&str>, variable: Option<&str>, file: Option<&str>| {
            ModelChoice::of(flag.map(Path::new), variable.map(OsString::from), file.map(PathBuf::from))
        };
        assert_eq!(of(None, None, None), ModelChoice::BuiltIn);
        assert_eq!(of(None, Some(""), None), ModelChoice::BuiltIn);
        assert_eq!(of(None, Some(""), Some("c")), file("c", "the configuration file"));
        assert_eq!(of(None, Some("v"), Some("c")), file("v", MODEL_VARIABLE));
        assert_eq!(of(Some("f"), Some("v"), Some("c")), file("f", "--model"));
    }

    #[test]
    fn references_are_told_from_missing_files() {
        let is_reference = |text: &str| reference(Path::new(text)).is_some();
        for text in ["hf://a/b", "hf://a/b/c.gguf@v1", "https://huggingface.co/a/b", "org-x/repo-GGUF"] {
            assert!(is_reference(text), "{text}");
        }
        // `src` is a folder here.
        for text in ["small", "src/model", "a/b.gguf", "a/b/c", "/a/b", "./a/b", "../a/b", "https://x/a/b"] {
            assert!(!is_reference(text), "{text}");
        }
    }

    #[cfg(feature = "builtin-model")]
    #[test]
    fn the_built_in_model_opens() {
        assert!(ModelChoice::BuiltIn.open().is_ok());
    }

    #[cfg(not(feature = "builtin-model"))]
    #[test]
    fn a_build_without_a_model_asks_for_one() {
        let error = ModelChoice::BuiltIn.open().map(drop).expect_err("there is none");
        assert!(error.to_string().contains("--model"), "{error}");
    }
}
