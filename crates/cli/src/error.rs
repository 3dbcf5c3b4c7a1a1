//! Errors of the program, each one line of text.
//!
//! Library errors arrive here with the thing they are about (a file, a flag); [`one_line`] joins an
//! error with its causes. Most usage errors are not here: the argument parser finds them, see
//! [`crate::usage`].

use std::path::{Path, PathBuf};

use crate::args::PrefixPlaceError;
use crate::device::DeviceError;
pub(crate) use crate::one_line::{one_line, printable};
use crate::pack_text;
use crate::units::bytes;

/// Errors of a command.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum Error {
    /// The engine could not load the model, refused a request or failed in the middle of it.
    #[error(transparent)]
    Engine(#[from] ruvllm::Error),
    /// An adapter cannot be read, merged or written.
    #[error(transparent)]
    Adapter(#[from] ruvllm_adapters::Error),
    /// A model cannot be fine-tuned.
    #[error(transparent)]
    Training(#[from] ruvllm_training::Error),
    /// A witness log cannot be read, or a key made.
    #[error(transparent)]
    Witness(#[from] ruvllm_witness::Error),
    /// A pack of kernels cannot be read, built, verified or installed.
    #[error(transparent)]
    Pack(#[from] ruvllm_kernel_packs::Error),
    /// The feature `kernel-packs` is off.
    #[error("this program has no sandbox; build it with --features kernel-packs, or omit --kernel-pack")]
    #[cfg_attr(feature = "kernel-packs", allow(dead_code))]
    NoSandbox,
    /// A pack that has a signature would get another one.
    #[error("{} is signed already; give --force to replace the signature", path.display())]
    SignedPack {
        /// Archive or folder.
        path: PathBuf,
    },
    /// The device of `--device` is absent or does not support the command.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// The server cannot start.
    #[error(transparent)]
    Server(#[from] ruvllm_server::Error),
    /// API keys cannot be read or changed.
    #[error(transparent)]
    Keys(#[from] ruvllm_server::auth::KeysError),
    /// No folder for a keys file can be derived from the environment.
    #[error("no folder for API keys: neither XDG_CONFIG_HOME nor HOME is set; name a file with --file")]
    NoKeysFolder,
    /// No place for stored prefixes, or one that cannot be used.
    #[error(transparent)]
    PrefixPlace(#[from] PrefixPlaceError),
    /// No folder for sessions can be derived from the environment.
    #[error("no folder for sessions: neither XDG_STATE_HOME nor HOME is set")]
    NoStateFolder,
    /// Another process has the session open.
    #[error(
        "session {id} is open in another chat; end it, or fork the session: `ruvllm session fork {id} NEW`"
    )]
    SessionInUse {
        /// The session.
        id: String,
    },
    /// There is no session of this id.
    #[error("there is no session {id}; `ruvllm session list` lists them")]
    NoSession {
        /// The session.
        id: String,
    },
    /// A session of this id exists.
    #[error("session {id} exists; choose another name, or remove it: `ruvllm session rm {id}`")]
    SessionExists {
        /// The session.
        id: String,
    },
    /// The model argument is neither a GGUF file nor a Hugging Face folder that can be read.
    #[error("cannot open {path}")]
    Open {
        /// The file or folder.
        path: String,
        /// Error of the reader.
        #[source]
        source: ruvllm_models::Error,
    },
    /// A file was given where a Hugging Face folder is to be read.
    #[error(
        "{} is a file, and `convert` reads a Hugging Face folder (config.json and safetensors); a GGUF file needs no \
         conversion: `quantize` changes its type", path.display()
    )]
    NotAFolder {
        /// The file.
        path: PathBuf,
    },
    /// A folder was given where a file is to be written.
    #[error("{} is a directory; name a file", path.display())]
    Directory {
        /// The folder.
        path: PathBuf,
    },
    /// Neither a file nor a model of the store has the name.
    #[error("there is no file {}", path.display())]
    NoSuchModel {
        /// The name.
        path: PathBuf,
        /// Error of the store.
        #[source]
        source: ruvllm_hub::Error,
    },
    /// The model of a reference is not in the store.
    #[error("there is no file or pulled model {reference}; `ruvllm pull {reference}` brings it from the hub")]
    NotPulled {
        /// The reference as it was written.
        reference: String,
    },
    /// A command that names no model, in a build without one.
    #[error(
        "this build of ruvllm has no model inside; name one with --model FILE, or in {}",
        crate::config::MODEL_VARIABLE
    )]
    NoModel,
    /// The configuration file is invalid.
    #[error("{}:{line}: {reason}", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// Line of the fault, counted from 1.
        line: usize,
        /// Fault and remedy.
        reason: String,
    },
    /// A model could not be pulled, found or removed.
    #[error(transparent)]
    Hub(#[from] ruvllm_hub::Error),
    /// The file is well-formed, but its model cannot be run.
    #[error("cannot run the model in {model}")]
    Model {
        /// Path, or the name of the default model.
        model: String,
        /// Error of the model loader.
        #[source]
        source: ruvllm_models::Error,
    },
    /// The model file's tokenizer cannot be used.
    #[error("cannot use the tokenizer of {model}")]
    Tokenizer {
        /// Path, or the name of the default model.
        model: String,
        /// Error of the tokenizer loader.
        #[source]
        source: ruvllm_models::Error,
    },
    /// The tokenizer refused a text or a list of ids.
    #[error("{what}")]
    Tokens {
        /// Failed action, as a message.
        what: &'static str,
        /// Error of the tokenizer.
        #[source]
        source: ruvllm_text::Error,
    },
    /// There is no usable chat template.
    #[error("cannot use the chat template; name another with --style or --template")]
    ChatTemplate {
        /// Fault of the template.
        #[source]
        source: ruvllm_models::Error,
    },
    /// A chat template of a file failed in one of its lines.
    #[error("line {line} of {}, `{text}`", path.display())]
    TemplateLine {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// Text of the line.
        text: String,
        /// Error of the template.
        #[source]
        source: Box<Error>,
    },
    /// The chat template refused the messages.
    #[error("cannot make a prompt of the messages")]
    Conversation(#[source] ruvllm_text::Error),
    /// A model could not be written in another form.
    #[error("cannot {action} {} into {}", input.display(), output.display())]
    Rewrite {
        /// `quantize` or `convert`.
        action: &'static str,
        /// The file or folder.
        input: PathBuf,
        /// The file to write.
        output: PathBuf,
        /// Error of the writer.
        #[source]
        source: Box<ruvllm_models::Error>,
    },
    /// A file is not an importance matrix, or none can be written.
    #[error("{}", path.display())]
    Imatrix {
        /// The file.
        path: PathBuf,
        /// Error of the reader or writer.
        #[source]
        source: Box<ruvllm_models::Error>,
    },
    /// Input and output are the same file.
    #[error("IN and OUT are the same file; give OUT another name")]
    SameFile,
    /// The output file exists.
    #[error("{} exists; choose another name or give --force to replace it", path.display())]
    OutputExists {
        /// The file.
        path: PathBuf,
    },
    /// A model would be written to a device or a pipe.
    #[error("{} is a device or a pipe; name a file", path.display())]
    NotAFile {
        /// The device or pipe.
        path: PathBuf,
    },
    /// A symbolic link to a file that does not exist.
    #[error("{} is a link to a file that does not exist; name the file", path.display())]
    DanglingLink {
        /// The link.
        path: PathBuf,
    },
    /// A binary result would be written to a terminal.
    #[error("standard output is a terminal: redirect it to a file or a pipe, or name a file")]
    BinaryToTerminal,
    /// JSON document and result would both go to standard output.
    #[error("--json and a result on standard output exclude each other; name a file")]
    StdoutTwice,
    /// Two values come from standard input.
    #[error("--{flag} - and the prompt both read standard input; name a file for one of them")]
    StdinTwice {
        /// The flag, without dashes.
        flag: &'static str,
    },
    /// Flags that do not go together.
    #[error("{flag}: {reason}")]
    Conflict {
        /// The flag.
        flag: &'static str,
        /// Fault and remedy.
        reason: String,
    },
    /// A language of the output that cannot be used.
    #[error("{flag}: {reason}")]
    Output {
        /// The flag.
        flag: String,
        /// Fault and remedy.
        reason: String,
    },
    /// The kernels asked for are not available.
    #[error(transparent)]
    Kernels(#[from] ruvllm_kernels::Error),
    /// A file given on the command line could not be read.
    #[error("cannot read {}", path.display())]
    ReadFile {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        #[source]
        source: std::io::Error,
    },
    /// A result file could not be written; an existing file is unchanged.
    #[error("cannot write {}", path.display())]
    WriteFile {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        #[source]
        source: std::io::Error,
    },
    /// Standard input could not be read.
    #[error("cannot read standard input")]
    ReadStdin(#[source] std::io::Error),
    /// Standard output could not be written, for another reason than a closed pipe.
    #[error("cannot write to standard output")]
    WriteStdout(#[source] std::io::Error),
    /// A text is not UTF-8.
    #[error("{origin} is not UTF-8 text: invalid byte at offset {offset}; convert it to UTF-8 first")]
    NotUtf8 {
        /// "standard input" or a path.
        origin: String,
        /// Offset of the first byte that is not part of a valid character.
        offset: usize,
    },
    /// A list of token ids is invalid.
    #[error("{origin}: {reason}; expected a JSON array of token ids, or ids separated by spaces or commas")]
    TokenList {
        /// "standard input", "the arguments" or a path.
        origin: String,
        /// Fault in the list.
        reason: String,
    },
    /// The prompt is empty.
    #[error("the prompt is empty: give text as PROMPT or on standard input")]
    EmptyPrompt,
    /// `--context` exceeds the model's context length.
    #[error("--context {asked} is more than the {model_context} tokens that the model was made for")]
    ContextTooLarge {
        /// Tokens asked for.
        asked: usize,
        /// Context length of the model in tokens.
        model_context: usize,
    },
    /// Standard input ends in the middle of a message.
    #[error(
        "the message that begins in line {line} has no end: close it with \"\"\", or leave out the last backslash"
    )]
    UnfinishedMessage {
        /// Its first line, counted from 1.
        line: usize,
    },
    /// A message exceeds the size limit.
    #[error("the message that begins in line {line} is larger than {limit} bytes")]
    LongMessage {
        /// Its first line, counted from 1.
        line: usize,
        /// Maximum size of a message in bytes.
        limit: usize,
    },
    /// An unknown `/` command, or one with wrong arguments.
    #[error("{reason}")]
    ChatCommand {
        /// Fault and remedy.
        reason: String,
    },
    /// A line of a script failed.
    #[error("line {line}")]
    ScriptLine {
        /// The line, counted from 1.
        line: usize,
        /// Error of the line.
        #[source]
        source: Box<Error>,
    },
    /// A file is no saved conversation.
    #[error("{} is no saved conversation: {reason}", path.display())]
    NoConversation {
        /// The file.
        path: PathBuf,
        /// Fault in the file.
        reason: String,
    },
    /// A file that is no saved conversation would be replaced by one.
    #[error("{} exists and is no saved conversation; choose another name", path.display())]
    NotReplaced {
        /// The file.
        path: PathBuf,
    },
    /// The line editor failed.
    #[error("cannot read from the terminal: {reason}")]
    Terminal {
        /// Message of the line editor.
        reason: String,
    },
    /// A benchmark without a test.
    #[error("there is nothing to measure: -p and -n are both 0")]
    NothingToMeasure,
    /// The contents of an input are invalid or too short.
    #[error("{origin}: {reason}")]
    Input {
        /// "standard input" or a path.
        origin: String,
        /// Fault and remedy.
        reason: String,
    },
}

impl Error {
    /// Flag to change, where the message names the library's option.
    pub(crate) fn flag(&self) -> Option<&'static str> {
        let error = match self {
            Self::Engine(error) => error,
            Self::ScriptLine { source, .. } => return source.flag(),
            _ => return None,
        };
        match error {
            ruvllm::Error::SpillWithoutFolder => Some("--prefix-cache"),
            ruvllm::Error::Constraint(ruvllm::ConstraintError::Compile { source_kind, .. }) => {
                match *source_kind {
                    "schema" => Some("--json-schema"),
                    "regex" => Some("--regex"),
                    "list of choices" => Some("--choices"),
                    _ => Some("--grammar"),
                }
            }
            error if error.kv_memory_short() => Some("--kv-budget"),
            _ => None,
        }
    }

    /// Another way, where a GPU cannot go on.
    pub(crate) fn way_out(&self) -> Option<&'static str> {
        match self {
            Self::ScriptLine { source, .. } => source.way_out(),
            Self::Engine(ruvllm::Error::UnsupportedByBackend { .. } | ruvllm::Error::Backend { .. }) => {
                Some(ON_THE_CPU)
            }
            _ => None,
        }
    }

    /// Message with the flags and commands of the program, where a library's names its own options.
    fn in_flags(&self) -> Option<String> {
        match self {
            Self::ScriptLine { line, source } => Some(format!("line {line}: {}", source.in_flags()?)),
            Self::NoSuchModel { path, source } => Some(no_such_model(path, source)),
            Self::Engine(error) => engine_in_flags(error),
            Self::Adapter(error) => adapter_in_flags(error),
            Self::Pack(error) => Some(pack_text::in_commands(&one_line(error))),
            _ => None,
        }
    }

    /// The error on one line, as [`one_line`], with the flag to change or another way.
    pub(crate) fn line(&self) -> String {
        if let Some(line) = self.in_flags() {
            return printable(&line);
        }
        let line = one_line(self);
        match self.flag().or_else(|| self.way_out()) {
            Some(flag) => format!("{line} ({flag})"),
            None => line,
        }
    }

    /// Exit code of the program: 2 for usage and configuration errors, else 1.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::NothingToMeasure
            | Self::SameFile
            | Self::StdoutTwice
            | Self::StdinTwice { .. }
            | Self::Conflict { .. }
            | Self::Config { .. } => 2,
            Self::Server(error) if is_server_usage(error) => 2,
            Self::Device(error) if error.is_usage() => 2,
            Self::Adapter(error) if is_adapter_usage(error) => 2,
            _ => 1,
        }
    }
}

/// Message for a name that is neither a path nor a model of the store.
fn no_such_model(path: &Path, source: &ruvllm_hub::Error) -> String {
    let path = path.display();
    match source {
        ruvllm_hub::Error::UnknownModel { name, there_is } if name.starts_with("hf://") => {
            format!("{path} is not in the store ({there_is}): `ruvllm pull {path}` brings it")
        }
        ruvllm_hub::Error::UnknownModel { there_is, .. } => format!(
            "{path} is neither a file or folder nor a model of the store ({there_is}); `ruvllm list` shows the \
             models, `ruvllm pull` brings one"
        ),
        source => format!("{path} is no file or folder: {}", one_line(source)),
    }
}

/// True for a merge or gate that the flags make impossible.
pub(crate) fn is_adapter_usage(error: &ruvllm_adapters::Error) -> bool {
    use ruvllm_adapters::Error as E;
    matches!(
        error,
        E::MergeInputs { .. } | E::MergeParameter { .. } | E::BaseNeeded { .. } | E::GateAdapters { .. }
    )
}

/// True for a server that its settings make impossible.
pub(crate) fn is_server_usage(error: &ruvllm_server::Error) -> bool {
    use ruvllm_server::Error as E;
    matches!(error, E::Config(_) | E::Keys(_) | E::Public { .. } | E::Tls { .. })
}

/// Message for an error of an adapter with the program's flags; `None` if the library's will do.
fn adapter_in_flags(error: &ruvllm_adapters::Error) -> Option<String> {
    use ruvllm_adapters::Error as E;
    match error {
        E::BaseNeeded { reason } => {
            Some(format!("{reason}, which depends on the base model: add --base MODEL"))
        }
        E::GateAdapters { found, expected } => {
            Some(format!("--adapter-gate is for {expected} adapters, --adapter names {found}"))
        }
        E::MergeParameter { name: "weight" | "sum of the weights", .. } => None,
        E::MergeParameter { .. } => Some(format!("--{error}")),
        E::Exists { path } => {
            Some(format!("{} exists; choose another name or give --force to replace it", path.display()))
        }
        E::UnknownAdapter { .. } => Some(format!("{error} in the store; `ruvllm adapter list` lists them")),
        E::NameTaken { .. } => Some(format!("{error}; choose another name or give --replace")),
        _ => None,
    }
}

/// The way out of errors of a GPU.
const ON_THE_CPU: &str = "--device cpu computes on the CPU";

/// Message for an engine error with the program's flags; `None` if the library's message will do.
fn engine_in_flags(error: &ruvllm::Error) -> Option<String> {
    if let Some(shortage) = error.kv_shortage() {
        let [needed, free, total] =
            [shortage.needed_bytes, shortage.free_bytes, shortage.total_bytes].map(|n| bytes(n as u64));
        return Some(format!(
            "the KV cache is full: need {needed}, {free} of {total} free; raise --kv-budget or shorten the prompt"
        ));
    }
    match *error {
        ruvllm::Error::PromptTooLong { prompt_tokens, context, model_context } if context < model_context => {
            Some(format!(
                "the prompt has {prompt_tokens} tokens and the context holds {context}; shorten the prompt or raise \
                 --context (the model allows {model_context})"
            ))
        }
        ruvllm::Error::PromptTooLong { prompt_tokens, model_context, .. } => Some(format!(
            "the prompt has {prompt_tokens} tokens and the model was made for {model_context}; shorten the prompt"
        )),
        ruvllm::Error::KvBudget { budget, .. } => Some(format!(
            "cannot reserve {} of addresses for keys and values; lower --kv-budget",
            bytes(budget as u64)
        )),
        ruvllm::Error::KvBudgetTooSmall { budget, ref policy, least_bytes, .. } => Some(format!(
            "--kv-budget {} is too small for keys and values as {policy}; give at least {}KiB",
            bytes(budget as u64),
            least_bytes.div_ceil(1 << 10)
        )),
        ruvllm::Error::KvPolicy {
            ref policy,
            source: ruvllm_models::Error::KvCache(ruvllm_kv_cache::Error::NoCalibration { .. }),
        } => Some(format!(
            "--kv {policy} needs a calibration of the model: make one with `ruvllm calibrate-kv` and give it with \
             --kv-calibration, or use kivi4 instead of nuq3"
        )),
        ruvllm::Error::CalibrationModel => Some(
            "the file of --kv-calibration was made from another model; make one with `ruvllm calibrate-kv`"
                .to_owned(),
        ),
        ruvllm::Error::Backend { .. } => {
            let line = one_line(error);
            let named = crate::device::in_flags(&line);
            (named != line).then(|| format!("{named} ({ON_THE_CPU})"))
        }
        _ => None,
    }
}

/// Result of a command.
pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;
