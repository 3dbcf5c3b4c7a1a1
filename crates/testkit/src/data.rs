//! Paths of committed files.

use std::path::{Path, PathBuf};

/// A file of the workspace, named from its root.
pub fn workspace(path: impl AsRef<Path>) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// Test data of `ruvllm-models`, the models that several crates run: a path below its `tests/data`.
pub fn model_data(path: impl AsRef<Path>) -> PathBuf {
    workspace("crates/models/tests/data").join(path)
}

/// The model that the program embeds.
pub fn builtin_model() -> PathBuf {
    workspace("models/base-q8_0.gguf")
}
