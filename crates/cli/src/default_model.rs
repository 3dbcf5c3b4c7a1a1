//! Model of a command: `--model`, else `RUVLLM_MODEL`, else the small model inside the program.
//!
//! A name is a path, or else a model of the store.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use gguf_rs_lite::Gguf;
use ruvllm::ModelSource;
use ruvllm_default_model as built_in;
use ruvllm_hub::{Store, StoredModel};
use ruvllm_models::{Checkpoint, open_checkpoint};

use crate::error::{Error, Result};

/// Environment variable that names a model file when `--model` is absent.
pub(crate) const MODEL_VARIABLE: &str = "RUVLLM_MODEL";

/// The model of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ModelChoice {
    /// The one inside the program.
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
    /// The choice for a value of `--model` and the environment. A name that the store does not know
    /// either is left for [`Self::check`] to refuse.
    pub(crate) fn new(flag: Option<&Path>) -> Self {
        match Self::of(flag, env::var_os(MODEL_VARIABLE)) {
            Self::File { path, origin } => match from_store(&path) {
                Some(Ok(model)) => Self::File { path: model.path, origin },
                _ => Self::File { path, origin },
            },
            other => other,
        }
    }

    /// The choice for both values. An empty variable counts as absent, so that `RUVLLM_MODEL=`
    /// switches it off.
    fn of(flag: Option<&Path>, variable: Option<OsString>) -> Self {
        match (flag, variable) {
            (Some(path), _) => Self::File { path: path.to_owned(), origin: "--model" },
            (None, Some(path)) if !path.is_empty() => {
                Self::File { path: path.into(), origin: MODEL_VARIABLE }
            }
            _ => Self::BuiltIn,
        }
    }

    /// Name of the model in messages.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::BuiltIn => built_in::NAME.to_owned(),
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

    /// Source of the model for the engine.
    pub(crate) fn source(&self) -> ModelSource {
        match self {
            Self::BuiltIn => ModelSource::Static { name: built_in::NAME.to_owned(), bytes: built_in::gguf() },
            Self::File { path, .. } => ModelSource::Path(path.clone()),
        }
    }

    /// Refuses a name that neither a file, a folder nor a model of the store has.
    ///
    /// # Errors
    /// [`Error::NoSuchModel`].
    pub(crate) fn check(&self) -> Result<()> {
        let Self::File { path, .. } = self else { return Ok(()) };
        match from_store(path) {
            Some(Err(source)) => Err(Error::NoSuchModel { path: path.clone(), source }),
            _ => Ok(()),
        }
    }

    /// Opens the container only: metadata and tensor list, no weights.
    ///
    /// # Errors
    /// As [`Self::check`]; what is unreadable, or neither a well-formed GGUF file nor a Hugging
    /// Face folder.
    pub(crate) fn open(&self) -> Result<Box<dyn Checkpoint>> {
        self.check()?;
        let opened = match self {
            Self::BuiltIn => Gguf::from_static(built_in::gguf())
                .map(|gguf| Box::new(gguf) as Box<dyn Checkpoint>)
                .map_err(ruvllm_models::Error::from),
            Self::File { path, .. } => open_checkpoint(path),
        };
        opened.map_err(|source| Error::Open { path: self.name(), source })
    }
}

/// Stored model of the name `path`; `None` for an existing file and for a path that is no name.
fn from_store(path: &Path) -> Option<Result<StoredModel, ruvllm_hub::Error>> {
    let name = path.to_str()?;
    let is_name = name.starts_with("hf://") || !name.contains(['/', '\\']);
    (is_name && !path.exists()).then(|| Store::from_env()?.get(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flag_goes_before_the_variable_and_the_variable_before_the_built_in_model() {
        let file = |path: &str, origin| ModelChoice::File { path: path.into(), origin };
        assert_eq!(ModelChoice::of(None, None), ModelChoice::BuiltIn);
        assert_eq!(ModelChoice::of(None, Some("".into())), ModelChoice::BuiltIn);
        assert_eq!(ModelChoice::of(None, Some("v".into())), file("v", MODEL_VARIABLE));
        assert_eq!(ModelChoice::of(Some(Path::new("f")), Some("v".into())), file("f", "--model"));
    }

    #[test]
    fn the_built_in_model_opens() {
        assert!(ModelChoice::BuiltIn.open().is_ok());
    }
}
