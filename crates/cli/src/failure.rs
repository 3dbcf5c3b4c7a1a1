//! A failed run: one line on standard error and, with `--json`, one document on standard output.

use std::io::{self, Write};
use std::process::ExitCode;

use serde::Serialize;

use crate::console;
use crate::error::{Error, is_adapter_usage, is_server_usage};
use crate::output;

/// Exit code of a usage error.
pub(crate) const USAGE: u8 = 2;

/// A failure as the program reports it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// Category, one of the words that `ruvllm --help` lists.
    pub(crate) kind: &'static str,
    /// The failure on one line, with its causes.
    pub(crate) message: String,
    /// Next step, where it is known.
    pub(crate) hint: Option<String>,
    /// Exit code.
    pub(crate) code: u8,
}

/// The JSON document: `{"error": {"kind", "message", "hint"}}`.
#[derive(Serialize)]
struct Document<'a> {
    error: Body<'a>,
}

#[derive(Serialize)]
struct Body<'a> {
    kind: &'static str,
    message: &'a str,
    hint: Option<&'a str>,
}

impl From<&Error> for Failure {
    fn from(error: &Error) -> Self {
        Self { kind: kind(error), message: error.line(), hint: hint(error), code: error.exit_code() }
    }
}

impl Failure {
    /// Writes the failure and returns the exit code. `also` follows the message on standard error.
    pub(crate) fn report(&self, json: bool, also: &str) -> ExitCode {
        // If standard error is closed, the exit code still reports the failure.
        let _ = writeln!(io::stderr(), "{} {}{also}", console::error_label(), self.message);
        if json {
            let Self { kind, message, hint, .. } = self;
            // If standard output is closed, the line above has reported the failure.
            let _ = output::write_json(&Document { error: Body { kind, message, hint: hint.as_deref() } });
        }
        ExitCode::from(self.code)
    }
}

/// Categories of failures: the words of `kind`.
#[cfg(test)]
const KINDS: [&str; 13] = [
    USAGE_KIND,
    CONFIG,
    NOT_FOUND,
    MODEL,
    CHAT_TEMPLATE,
    ADAPTER,
    PACK,
    INPUT,
    CONTEXT,
    MEMORY,
    OUTPUT,
    HUB,
    ENGINE,
];

/// Flags and values that the command line does not take; exit code 2.
const USAGE_KIND: &str = "usage";
/// The configuration file; exit code 2.
const CONFIG: &str = "config";
/// No file or stored model of this name.
const NOT_FOUND: &str = "model_not_found";
/// A model file that cannot be read or run.
const MODEL: &str = "invalid_model";
/// A chat template that is absent or fails.
const CHAT_TEMPLATE: &str = "chat_template";
/// An adapter that cannot be read or is of another model.
const ADAPTER: &str = "invalid_adapter";
/// A pack of kernels that cannot be read, verified or used.
const PACK: &str = "invalid_pack";
/// A prompt, text, list of tokens, script or file of the user.
const INPUT: &str = "invalid_input";
/// More tokens than the context holds.
const CONTEXT: &str = "context_exceeded";
/// The KV cache is full, or its budget too small.
const MEMORY: &str = "out_of_memory";
/// A result that could not be written, or would replace another.
const OUTPUT: &str = "output";
/// The store of models or the hub.
const HUB: &str = "hub";
/// Options that this engine or machine does not support, and all other errors.
const ENGINE: &str = "engine";

/// Category of an error.
fn kind(error: &Error) -> &'static str {
    use ruvllm_adapters::Error as E;
    use ruvllm_kernel_packs::Error as P;
    match error {
        Error::NoModel
        | Error::NothingToMeasure
        | Error::SameFile
        | Error::StdoutTwice
        | Error::StdinTwice { .. }
        | Error::Conflict { .. } => USAGE_KIND,
        Error::Config { .. } => CONFIG,
        Error::Server(ruvllm_server::Error::Model { source, .. }) => engine_kind(source),
        Error::Server(error) if is_server_usage(error) => CONFIG,
        Error::NoSuchModel { .. } | Error::NotPulled { .. } => NOT_FOUND,
        Error::Hub(ruvllm_hub::Error::UnknownModel { .. } | ruvllm_hub::Error::Incomplete { .. }) => {
            NOT_FOUND
        }
        Error::Hub(_) => HUB,
        Error::Open { source, .. } if is_absent(source) => NOT_FOUND,
        Error::Open { .. } | Error::Model { .. } | Error::Tokenizer { .. } => MODEL,
        Error::ChatTemplate { .. } | Error::Conversation(_) => CHAT_TEMPLATE,
        Error::ContextTooLarge { .. } => CONTEXT,
        Error::Directory { .. }
        | Error::OutputExists { .. }
        | Error::NotAFile { .. }
        | Error::DanglingLink { .. }
        | Error::BinaryToTerminal
        | Error::WriteFile { .. }
        | Error::WriteStdout(_)
        | Error::NotReplaced { .. }
        | Error::SessionExists { .. }
        | Error::Witness(ruvllm_witness::Error::Io { action: "create" | "write", .. })
        | Error::SignedPack { .. }
        | Error::Pack(P::Io { action: "create" | "write" | "remove" | "lock", .. } | P::Busy { .. })
        | Error::Adapter(E::Exists { .. } | E::NotReplaced { .. } | E::Write { .. })
        | Error::Rewrite { .. } => OUTPUT,
        Error::Tokens { .. }
        | Error::ReadFile { .. }
        | Error::Imatrix { .. }
        | Error::Keys(_)
        | Error::ReadStdin(_)
        | Error::NotUtf8 { .. }
        | Error::TokenList { .. }
        | Error::EmptyPrompt
        | Error::Output { .. }
        | Error::UnfinishedMessage { .. }
        | Error::LongMessage { .. }
        | Error::ChatCommand { .. }
        | Error::NoConversation { .. }
        | Error::NoSession { .. }
        | Error::Witness(_)
        | Error::Pack(P::NotInstalled { .. } | P::NoPrevious { .. })
        | Error::Input { .. } => INPUT,
        Error::ScriptLine { source, .. } => kind(source),
        Error::Engine(error) => engine_kind(error),
        Error::Adapter(error) if is_adapter_usage(error) => USAGE_KIND,
        Error::Adapter(
            ruvllm_adapters::Error::NameTaken { .. } | ruvllm_adapters::Error::StoreWrite { .. },
        ) => OUTPUT,
        Error::Adapter(_) => ADAPTER,
        Error::Pack(_) | Error::NoSandbox => PACK,
        // Variants of other concerns, such as the kernels'.
        _ => ENGINE,
    }
}

/// Category of an error of the engine.
fn engine_kind(error: &ruvllm::Error) -> &'static str {
    use ruvllm::Error as E;
    match error {
        E::Open { source, .. } if is_absent(source) => NOT_FOUND,
        E::Open { .. } | E::Load { .. } | E::Tokenizer { .. } | E::VocabularyMismatch { .. } => MODEL,
        E::Adapter { .. } | E::AdapterBackend { .. } => ADAPTER,
        E::NoChatTemplate | E::UnusableChatTemplate { .. } | E::Chat(_) => CHAT_TEMPLATE,
        E::PromptTooLong { .. } | E::ContextTooLong { .. } => CONTEXT,
        E::EmptyPrompt
        | E::EmptyStop { .. }
        | E::Constraint(_)
        | E::DryBreaker { .. }
        | E::LogitBiasToken { .. }
        | E::TokenOutOfRange { .. }
        | E::Encode(_)
        | E::EncodeText { .. }
        | E::EmptyText { .. }
        | E::Rerank(_)
        | E::TextTooShort { .. }
        | E::ComparedVocabulary { .. }
        | E::CalibrationText { .. }
        | E::PositionOutOfRange { .. } => INPUT,
        error if error.kv_memory_short() => MEMORY,
        _ => ENGINE,
    }
}

/// True if the first I/O error among the causes is a file that does not exist.
fn is_absent(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            return error.kind() == io::ErrorKind::NotFound;
        }
        cause = error.source();
    }
    false
}

/// Next step after an error, where one is known.
fn hint(error: &Error) -> Option<String> {
    match error {
        Error::NotPulled { reference } => Some(format!("ruvllm pull {reference}")),
        Error::Engine(ruvllm::Error::PromptTooLong { .. }) => {
            Some("shorten the prompt or raise --context".to_owned())
        }
        Error::ContextTooLarge { .. } => Some("give a smaller --context".to_owned()),
        Error::OutputExists { .. } | Error::Adapter(ruvllm_adapters::Error::Exists { .. }) => {
            Some("give another name, or --force to replace it".to_owned())
        }
        error => {
            let way_out = error.way_out().map(str::to_owned);
            way_out.or_else(|| error.flag().map(|flag| format!("change {flag}")))
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn failures_have_a_category_and_a_next_step() {
        let failure = Failure::from(&Error::NotPulled { reference: "org/repo".to_owned() });
        assert_eq!((failure.kind, failure.hint.as_deref()), (NOT_FOUND, Some("ruvllm pull org/repo")));
        let error = Error::Engine(ruvllm::Error::SpillWithoutFolder);
        assert_eq!(Failure::from(&error).hint.as_deref(), Some("change --prefix-cache"));
        let (backend, name, reason) = ("gpu", "a model".to_owned(), "too wide".to_owned());
        let error = Error::Engine(ruvllm::Error::UnsupportedByBackend { backend, name, reason });
        assert_eq!(Failure::from(&error).hint.as_deref(), Some("--device cpu computes on the CPU"));
        let help = crate::cli::Cli::command().get_after_help().unwrap().to_string();
        for kind in KINDS {
            assert!(help.contains(kind), "{kind} is not documented");
            assert!(kind.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{kind}");
        }
    }
}
