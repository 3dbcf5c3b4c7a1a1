//! Verbosity, colour and width of the terminal; each holds for a whole run.

use std::env;
use std::io::{self, IsTerminal};
use std::sync::OnceLock;

use clap::ColorChoice;
use clap::builder::styling::{AnsiColor, Style};
use terminal_size::{Width, terminal_size};

/// Columns of output and help texts without a terminal and without `COLUMNS`.
const COLUMNS: usize = 80;

/// Set once, before the parser runs: its messages have colours.
static COLOR: OnceLock<ColorChoice> = OnceLock::new();

/// Set once, when the command line has been read.
static VERBOSITY: OnceLock<Verbosity> = OnceLock::new();

/// Amount of text on standard error. Errors are always written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verbosity {
    /// Errors alone: no progress, notes and warnings.
    Quiet,
    /// Also progress at a terminal, notes and warnings.
    Usual,
    /// Also the plan and the timings, whether or not standard error is a terminal.
    Verbose,
}

/// Sets the colour of the run; the first call counts.
pub(crate) fn set_color(color: ColorChoice) {
    let _ = COLOR.set(color);
}

/// Sets the verbosity of the run; the first call counts.
pub(crate) fn set_verbosity(verbosity: Verbosity) {
    let _ = VERBOSITY.set(verbosity);
}

/// Columns of the terminal; without one, of the variable `COLUMNS`, else 80.
pub(crate) fn columns() -> usize {
    let of_terminal = || terminal_size().map(|(Width(columns), _)| usize::from(columns));
    let of_environment = || env::var("COLUMNS").ok()?.parse().ok().filter(|columns| *columns > 0);
    of_terminal().or_else(of_environment).unwrap_or(COLUMNS)
}

/// True if progress, notes and warnings are not wanted.
pub(crate) fn is_quiet() -> bool {
    VERBOSITY.get() == Some(&Verbosity::Quiet)
}

/// True if `--verbose` asks for plan and timings.
pub(crate) fn is_verbose() -> bool {
    VERBOSITY.get() == Some(&Verbosity::Verbose)
}

/// True if standard output takes colours.
pub(crate) fn colors_stdout() -> bool {
    is_colored(io::stdout().is_terminal())
}

/// `error:`, red where standard error takes colours.
pub(crate) fn error_label() -> String {
    label("error:", AnsiColor::Red)
}

/// `warning:`, yellow where standard error takes colours.
pub(crate) fn warning_label() -> String {
    label("warning:", AnsiColor::Yellow)
}

fn label(text: &str, color: AnsiColor) -> String {
    if !is_colored(io::stderr().is_terminal()) {
        return text.to_owned();
    }
    let style: Style = color.on_default().bold();
    format!("{style}{text}{style:#}")
}

/// Colour of the environment: never where `NO_COLOR` has a value (<https://no-color.org>).
pub(crate) fn color_of_environment() -> Option<ColorChoice> {
    env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty()).then_some(ColorChoice::Never)
}

fn is_colored(is_terminal: bool) -> bool {
    match COLOR.get().copied().unwrap_or(ColorChoice::Auto) {
        ColorChoice::Always => true,
        ColorChoice::Never => false,
        ColorChoice::Auto => is_terminal && env::var_os("TERM").is_none_or(|term| term != "dumb"),
    }
}
