//! Usage errors on one line, and the texts of help and version.
//!
//! The argument parser explains a mistake over several lines; scripts and logs want one. Help and
//! version texts are printed as they are.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Command;
use clap::error::ErrorKind;

use crate::console;
use crate::error::printable;
use crate::failure::{Failure, USAGE};
use crate::output;

/// Prints the parser's message and returns the exit code. It is 0 for help and version, 2 for a
/// usage error and for help in place of a missing command, 1 if the help could not be written.
pub(crate) fn report(error: &clap::Error, command: &str, json: bool) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let text = error.render();
            let text = if console::colors_stdout() { text.ansi().to_string() } else { text.to_string() };
            // A closed pipe is no error, as with all output.
            match output::write_exactly(&text) {
                Ok(_) => ExitCode::SUCCESS,
                Err(error) => Failure::from(&error).report(json, ""),
            }
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand if !json => {
            // If standard error is closed, the exit code still reports the error.
            let _ = error.print();
            ExitCode::from(USAGE)
        }
        _ => {
            let hint = format!("see `{command} --help`");
            let message = match error.kind() {
                ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => "a command is missing".to_owned(),
                _ => one_line(&error.render().to_string()),
            };
            let also = format!(" ({hint})");
            Failure { kind: "usage", message, hint: Some(hint), code: USAGE }.report(json, &also)
        }
    }
}

/// Joins the parts of the parser's message that matter: the mistake and its tips.
///
/// The message is paragraphs divided by empty lines: `error: ...`, `tip: ...`, `Usage: COMMAND
/// ...`, and a closing hint about `--help`.
fn one_line(message: &str) -> String {
    let paragraphs: Vec<String> =
        message.split("\n\n").map(|part| part.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    let mut line = paragraphs.first().cloned().unwrap_or_default();
    for tip in paragraphs.iter().filter(|part| part.starts_with("tip:")) {
        line.push_str("; ");
        line.push_str(tip);
    }
    printable(line.strip_prefix("error: ").unwrap_or(&line))
}

/// Name of the command in `arguments`, as far as they are valid: `ruvllm eval perplexity`.
pub(crate) fn named(command: &Command, arguments: &[OsString]) -> String {
    let mut name = command.get_name().to_owned();
    let mut command = command;
    let mut arguments = arguments.iter().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.to_str() {
            // The one global option with a value.
            Some("--color") => drop(arguments.next()),
            Some(option) if option.starts_with('-') => {}
            word => match word.and_then(|word| command.find_subcommand(word)) {
                Some(below) => {
                    name = format!("{name} {}", below.get_name());
                    command = below;
                }
                None => break,
            },
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::cli::Cli;
    use crate::help::shaped;

    #[track_caller]
    fn check(arguments: &[&str], expected: &str) {
        let arguments: Vec<OsString> =
            [&["ruvllm"], arguments].concat().into_iter().map(OsString::from).collect();
        let command = shaped(Cli::command());
        let name = named(&command, &arguments);
        let error = command.try_get_matches_from(&arguments).unwrap_err();
        assert_eq!(format!("{} (see `{name} --help`)", one_line(&error.render().to_string())), expected);
    }

    #[test]
    fn usage_errors_take_one_line() {
        check(
            &["inspect"],
            "the following required arguments were not provided: <FILE> (see `ruvllm inspect --help`)",
        );
        check(
            &["generate", "--top-kk", "1"],
            "unexpected argument '--top-kk' found; tip: a similar argument exists: '--top-k' (see `ruvllm generate --help`)",
        );
        check(
            &["generate", "--kv", "tired"],
            "invalid value 'tired' for '--kv <POLICY>': unknown key/value policy \"tired\": use f32, f16, bf16, q8, q4, kivi4, nuq3, turbo3, kivi2, two of them as in q8+q4 or k4v2, or tiered (see `ruvllm generate --help`)",
        );
        check(
            &["--color", "never", "-q", "eval", "passkey", "--trials", "0"],
            "invalid value '0' for '--trials <N>': expected a whole number of at least 1 (see `ruvllm eval passkey --help`)",
        );
        check(&["ls", "-x"], "unexpected argument '-x' found (see `ruvllm list --help`)");
    }

    #[test]
    fn negative_numbers_are_values() {
        check(
            &["generate", "--top-p", "-0.5", "x"],
            "invalid value '-0.5' for '--top-p <P>': expected a number from 0 to 1 (see `ruvllm generate --help`)",
        );
        check(
            &["bench", "-n", "-1"],
            "invalid value '-1' for '--n-gen <N,..>': expected a whole number, 0 or more (see `ruvllm bench --help`)",
        );
        check(
            &["eval", "passkey", "--file", "x", "--seed", "abc"],
            "invalid value 'abc' for '--seed <SEED>': expected a whole number from 0 to 2^64 - 1 (see `ruvllm eval passkey --help`)",
        );
    }
}
