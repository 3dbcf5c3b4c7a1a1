//! Usage errors on one line.
//!
//! The argument parser explains a mistake over several lines; scripts and logs want one. Help and
//! version texts are printed as they are.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::error::ErrorKind;

use crate::error::printable;

/// Exit code of a usage error.
const USAGE: u8 = 2;

/// Prints what the parser has to say and gives the exit code: 0 for help and version, 2 for a usage
/// error.
pub(crate) fn report(error: &clap::Error) -> ExitCode {
    // A closed pipe or terminal leaves nobody to tell; the exit code still says what happened.
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let _ = error.print();
            ExitCode::SUCCESS
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            ExitCode::from(USAGE)
        }
        _ => {
            let _ = writeln!(io::stderr(), "{}", one_line(&error.render().to_string()));
            ExitCode::from(USAGE)
        }
    }
}

/// Joins the parts of the parser's message: the mistake, its tips, and which help to read.
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
    let command = paragraphs
        .iter()
        .find_map(|part| part.strip_prefix("Usage: "))
        .map(|usage| {
            let is_name = |word: &&str| {
                word.chars().all(|c| c.is_ascii_lowercase() || c == '-') && !word.starts_with('-')
            };
            usage.split(' ').take_while(is_name).collect::<Vec<_>>().join(" ")
        })
        .filter(|command| !command.is_empty())
        .unwrap_or_else(|| "ruvllm".to_owned());
    line.push_str(&format!(" (see `{command} --help`)"));
    printable(&line)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::Cli;

    #[track_caller]
    fn check(arguments: &[&str], expected: &str) {
        let error = Cli::try_parse_from([&["ruvllm"], arguments].concat()).unwrap_err();
        let line = one_line(&error.render().to_string());
        assert_eq!(line, expected);
    }

    #[test]
    fn usage_errors_take_one_line() {
        check(
            &["inspect"],
            "error: the following required arguments were not provided: <FILE> (see `ruvllm inspect --help`)",
        );
        check(
            &["generate", "--top-kk", "1"],
            "error: unexpected argument '--top-kk' found; tip: a similar argument exists: '--top-k' (see `ruvllm generate --help`)",
        );
        check(
            &["generate", "--kv", "tired"],
            "error: invalid value 'tired' for '--kv <POLICY>': unknown key/value policy \"tired\": use f32, f16, bf16, q8, q4, kivi4, nuq3, kivi2, two of them as in q8+q4 or k4v2, or tiered (see `ruvllm --help`)",
        );
    }
}
