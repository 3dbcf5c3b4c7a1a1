//! Layout of the command table for the terminal: width of help texts, colour, negative numbers.

use clap::{ColorChoice, Command};

use crate::console;

/// Columns that lines of help texts have at most, on wider terminals too.
const MOST_COLUMNS: usize = 100;

/// Fits the help texts of `command` to the terminal and lets options take negative numbers as
/// values. Their own parsers can then reject `-1` by its value, not as an unknown flag.
pub(crate) fn shaped(command: Command) -> Command {
    let color = if console::colors_stdout() { ColorChoice::Always } else { ColorChoice::Never };
    let command = each(command, &|command| {
        let after = command.get_after_help().map(|text| paragraphs(&text.to_string()));
        let command = match after {
            Some(text) => command.after_help(text),
            None => command,
        };
        command.mut_args(|arg| {
            let is_option = !arg.is_positional() && arg.get_action().takes_values();
            if is_option && !arg.is_allow_hyphen_values_set() {
                arg.allow_negative_numbers(true)
            } else {
                arg
            }
        })
    });
    command.color(color).term_width(console::columns().min(MOST_COLUMNS))
}

/// Applies `change` to a command and all its subcommands.
pub(crate) fn each(command: Command, change: &dyn Fn(Command) -> Command) -> Command {
    change(command).mut_subcommands(|below| each(below, change))
}

/// Joins each paragraph into one line, which the parser wraps at the width of the terminal.
/// Indented lines, and those that begin with a label such as `JSON:`, are kept.
fn paragraphs(text: &str) -> String {
    let mut lines: Vec<String> = Vec::new();
    for line in text.lines() {
        let is_indented = |line: &str| line.starts_with(' ');
        let begins = line.split(' ').next().is_some_and(|word| word.ends_with(':'));
        match lines.last_mut() {
            Some(last) if !line.is_empty() && !last.is_empty() && !begins => {
                if is_indented(line) || is_indented(last) {
                    lines.push(line.to_owned());
                } else {
                    last.push(' ');
                    last.push_str(line);
                }
            }
            _ => lines.push(line.to_owned()),
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paragraphs_are_joined_and_examples_are_not() {
        let text = "One\ntwo.\nJSON: {a,\nb}\n\nThree\n\nExamples:\n  x\n  y\nFour";
        assert_eq!(paragraphs(text), "One two.\nJSON: {a, b}\n\nThree\n\nExamples:\n  x\n  y\nFour");
    }
}
