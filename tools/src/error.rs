//! Errors of the tools.

use std::path::PathBuf;

/// Result with this package's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Errors of the tools.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A program, a file or the workspace failed.
    #[error(transparent)]
    Xtask(#[from] xtask::Error),
    /// A program's output is not the expected JSON document.
    #[error("the output of `{command}` is not the expected JSON")]
    Json {
        /// The command line.
        command: String,
        /// Error of the JSON parser.
        #[source]
        source: serde_json::Error,
    },
    /// A program's JSON output lacks a field.
    #[error("the output of `{command}` has no {field}")]
    MissingField {
        /// The command line.
        command: String,
        /// The missing field.
        field: String,
    },
    /// A document lacks a marker pair.
    #[error("{} has no `{marker}` marker pair", path.display())]
    NoMarker {
        /// The document.
        path: PathBuf,
        /// The marker's name.
        marker: String,
    },
    /// Rows cannot be added to a table of another run.
    #[error("--add: {reason}; measure all policies again, without --add")]
    OtherRun {
        /// The difference.
        reason: String,
    },
    /// A table lacks a number that a plot shows.
    #[error("{place} has no {figure}")]
    NoFigure {
        /// Page and section.
        place: String,
        /// Row and column.
        figure: String,
    },
    /// A plot could not be drawn.
    #[error("cannot draw a plot")]
    Draw(#[from] plotters::drawing::DrawingAreaErrorKind<std::io::Error>),
    /// Unknown peer.
    #[error("unknown peer `{name}`; known: llama-bench=PATH, lbench=PATH, json=PATH")]
    UnknownPeer {
        /// Value of `--peer`.
        name: String,
    },
    /// A comparison with a peer needs a model.
    #[error("--peer needs at least one --model FILE; `cargo xtask gen-model` makes one")]
    NoModel,
    /// The KV cache refused a policy.
    #[error("cannot count what `{policy}` takes")]
    KvCache {
        /// The policy.
        policy: String,
        /// Error of the KV cache.
        #[source]
        source: ruvllm_kv_cache::Error,
    },
    /// The page pool could not be created.
    #[error("cannot make a page pool")]
    Pool(#[source] ruvllm_memory::Error),
    /// A model file could not be read.
    #[error("cannot read the model {}", path.display())]
    ReadModel {
        /// The file.
        path: PathBuf,
        /// Error of the GGUF reader.
        #[source]
        source: gguf_rs_lite::Error,
    },
    /// A folder has no vocabulary with texts and ids.
    #[error("{} has no NAME.gguf with NAME.gguf.inp and NAME.gguf.out", folder.display())]
    NoGoldens {
        /// The folder.
        folder: PathBuf,
    },
    /// Token ids or prompts differ from the goldens.
    #[error("{faults}")]
    GoldensDiffer {
        /// The first text of each vocabulary, or each conversation.
        faults: String,
    },
    /// A folder has no chat templates.
    #[error("{} has no chat templates (*.jinja)", folder.display())]
    NoTemplates {
        /// The folder.
        folder: PathBuf,
    },
    /// Perplexity with adapters could not be measured.
    #[error("cannot measure adapters")]
    AdapterQuality {
        /// Error of the model, an adapter, a text or a merge.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A model file could not be written.
    #[error("cannot write the model {}", path.display())]
    Gguf {
        /// The file.
        path: PathBuf,
        /// Error of the GGUF writer.
        #[source]
        source: gguf_rs_lite::Error,
    },
}

impl Error {
    /// Wraps an I/O error with the action and the path.
    pub(crate) fn io(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let wrap = xtask::Error::io(action, path);
        move |source| Self::Xtask(wrap(source))
    }
}
