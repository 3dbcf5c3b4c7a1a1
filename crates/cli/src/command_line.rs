//! From the arguments of the process to a command: help and parser.

use std::env;
use std::ffi::OsString;
use std::process::ExitCode;

use clap::{ColorChoice, CommandFactory, FromArgMatches, ValueEnum};

use crate::cli::Cli;
use crate::console::{self, Verbosity};
use crate::help::shaped;
use crate::usage;

/// Reads the command line.
///
/// # Errors
/// The exit code, when there is nothing more to do: help and version were printed, or an error was
/// reported.
pub(crate) fn read() -> Result<Cli, ExitCode> {
    let arguments = without_help_of_help(env::args_os().collect());
    let json = has_flag(&arguments, "--json");
    console::set_color(color(&arguments));
    let mut command = shaped(Cli::command());
    let name = usage::named(&command, &arguments);
    let refused = |error: clap::Error| usage::report(&error, &name, json);
    let matches = command.try_get_matches_from_mut(&arguments).map_err(refused)?;
    let cli = Cli::from_arg_matches(&matches).map_err(refused)?;
    console::set_verbosity(verbosity(&cli));
    Ok(cli)
}

/// `help --help` and `help COMMAND --help` as they are meant.
fn without_help_of_help(mut arguments: Vec<OsString>) -> Vec<OsString> {
    if arguments.get(1).is_some_and(|first| first == "help") {
        arguments.retain(|argument| argument != "--help" && argument != "-h");
    }
    arguments
}

/// True if an option without a value is there: before the parser has run, and when it fails.
fn has_flag(arguments: &[OsString], flag: &str) -> bool {
    arguments.iter().take_while(|argument| *argument != "--").any(|argument| argument == flag)
}

/// Colour: the flag, else the environment. The parser's own messages need it, so it is found before
/// the parser runs; what is no colour is left for the parser to refuse.
fn color(arguments: &[OsString]) -> ColorChoice {
    let read = |text: &str| ColorChoice::from_str(text, false).ok();
    let mut of_flag = None;
    let mut words = arguments.iter().map(|argument| argument.to_string_lossy());
    while let Some(word) = words.next() {
        if word == "--" {
            break;
        }
        if word == "--color" {
            of_flag = words.next().and_then(|value| read(&value));
        } else if let Some(value) = word.strip_prefix("--color=") {
            of_flag = read(value);
        }
    }
    let of_environment = console::color_of_environment();
    match of_flag {
        Some(ColorChoice::Auto) => of_environment.unwrap_or(ColorChoice::Auto),
        Some(choice) => choice,
        None => of_environment.unwrap_or(ColorChoice::Auto),
    }
}

/// Verbosity of the flags, of which there is one at most.
fn verbosity(cli: &Cli) -> Verbosity {
    match (cli.quiet, cli.verbose) {
        (true, _) => Verbosity::Quiet,
        (false, true) => Verbosity::Verbose,
        (false, false) => Verbosity::Usual,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<OsString> {
        text.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn help_of_help_is_help() {
        assert_eq!(without_help_of_help(words("ruvllm help --help")), words("ruvllm help"));
        assert_eq!(without_help_of_help(words("ruvllm help chat -h")), words("ruvllm help chat"));
        assert_eq!(without_help_of_help(words("ruvllm chat -h")), words("ruvllm chat -h"));
    }

    #[test]
    fn flags_are_found_without_the_parser() {
        assert!(has_flag(&words("ruvllm chat --json"), "--json"));
        assert!(!has_flag(&words("ruvllm generate -- --json"), "--json"));
        assert_eq!(color(&words("ruvllm --color always list")), ColorChoice::Always);
        assert_eq!(color(&words("ruvllm list --color=never")), ColorChoice::Never);
    }
}
