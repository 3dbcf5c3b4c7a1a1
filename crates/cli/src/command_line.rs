//! Parsing of the command line: help, configuration file, arguments.

use std::env;
use std::ffi::OsString;
use std::process::ExitCode;

use clap::parser::ValueSource;
use clap::{ArgMatches, ColorChoice, CommandFactory, FromArgMatches, ValueEnum};

use crate::cli::{Cli, Command};
use crate::config::{self, Config};
use crate::console::{self, Verbosity};
use crate::failure::Failure;
use crate::help::shaped;
use crate::usage;

/// Parses the command line, with the settings of the configuration file as defaults.
///
/// # Errors
/// The exit code, if the program ends here: help or version was printed, or an error was reported.
pub(crate) fn read() -> Result<Cli, ExitCode> {
    let arguments = without_help_of_help(env::args_os().collect());
    let json = has_flag(&arguments, "--json");
    let config = Config::of_environment();
    console::set_color(color(&arguments, config.as_ref().ok()));
    let mut command = shaped(Cli::command());
    let name = usage::named(&command, &arguments);
    // An unusable file is reported after parsing, so that help works without it.
    let config = config.and_then(|config| {
        command = config.apply(command.clone())?;
        Ok(config)
    });
    let refused = |error: clap::Error| usage::report(&error, &name, json);
    let matches = command.try_get_matches_from_mut(&arguments).map_err(refused)?;
    let cli = Cli::from_arg_matches(&matches).map_err(refused)?;
    let config = match config {
        Ok(config) => config,
        Err(_) if matches!(cli.command, Command::Completions(_) | Command::Man(_)) => Config::default(),
        Err(error) => return Err(Failure::from(&error).report(json, "")),
    };
    console::set_verbosity(verbosity(&cli, &matches));
    config::install(config.resolved(&command, &matches));
    Ok(cli)
}

/// Drops `--help` from `help --help` and `help COMMAND --help`.
fn without_help_of_help(mut arguments: Vec<OsString>) -> Vec<OsString> {
    if arguments.get(1).is_some_and(|first| first == "help") {
        arguments.retain(|argument| argument != "--help" && argument != "-h");
    }
    arguments
}

/// True if a flag without a value is given; works before the parser runs and when it fails.
fn has_flag(arguments: &[OsString], flag: &str) -> bool {
    arguments.iter().take_while(|argument| *argument != "--").any(|argument| argument == flag)
}

/// Colour setting: flag, else environment, else file. It is read before the parser runs, whose own
/// messages need it; the parser then rejects invalid values.
fn color(arguments: &[OsString], config: Option<&Config>) -> ColorChoice {
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
        None => of_environment.or_else(|| read(config?.value("color")?)).unwrap_or(ColorChoice::Auto),
    }
}

/// Verbosity; the command line takes precedence over the file.
fn verbosity(cli: &Cli, matches: &ArgMatches) -> Verbosity {
    let is_given = |id| matches.value_source(id) == Some(ValueSource::CommandLine);
    match (cli.quiet, cli.verbose) {
        (true, true) if is_given("quiet") => Verbosity::Quiet,
        (_, true) => Verbosity::Verbose,
        (true, false) => Verbosity::Quiet,
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
        assert_eq!(color(&words("ruvllm --color always list"), None), ColorChoice::Always);
        assert_eq!(color(&words("ruvllm list --color=never"), None), ColorChoice::Never);
    }
}
