//! Paths of committed test data.

use std::path::{Path, PathBuf};

/// Path of a file of the workspace, relative to its root.
pub fn workspace(path: impl AsRef<Path>) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// Path of test data of `ruvllm-models` (tiny models), relative to its `tests/data`.
pub fn model_data(path: impl AsRef<Path>) -> PathBuf {
    workspace("crates/models/tests/data").join(path)
}

/// Path of the built-in model.
pub fn builtin_model() -> PathBuf {
    workspace("models/base-q8_0.gguf")
}
