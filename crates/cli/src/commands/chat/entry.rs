//! Chat entries: messages, over several lines if need be, and commands.

use std::path::PathBuf;

use crate::error::{Error, Result};

/// Stands before and behind a message of several lines.
const FENCE: &str = "\"\"\"";

/// Parsed entry.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// White space only.
    Nothing,
    /// Text for the model.
    Message(String),
    /// Something for the program.
    Command(Command),
}

/// Command to the program itself.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Command {
    Help,
    /// Shows the system prompt, or sets another one; an empty one is none.
    System(Option<String>),
    Reset,
    Save(PathBuf),
    Load(PathBuf),
    /// Shows all settings, or sets one.
    Set(Option<(String, String)>),
    /// Shows all adapters, or says which to use.
    Adapter(Option<String>),
    Stats,
    Exit,
}

/// Names of the commands with what follows them and what they do.
const COMMANDS: [(&str, &str, &str); 9] = [
    ("/help", "", "this list"),
    ("/system", "[TEXT|off]", "instructions that come before the conversation; alone: shows them"),
    ("/reset", "", "forgets the conversation; the instructions stay"),
    ("/save", "FILE", "writes messages and settings to a JSON file"),
    ("/load", "FILE", "goes on with the conversation in such a file"),
    ("/set", "[NAME VALUE]", "changes a setting; alone: shows all"),
    (
        "/adapter",
        "[NAME[@SCALE].. | NAME=PATH[@SCALE] | off]",
        "changes the model; alone: shows the adapters",
    ),
    ("/stats", "", "tokens and times of the last answer, room in the context"),
    ("/exit", "", "ends the program, as Ctrl-D does"),
];

/// The names alone.
pub(super) fn command_names() -> impl Iterator<Item = &'static str> {
    COMMANDS.iter().map(|(name, _, _)| *name)
}

/// Text of `/help`.
pub(super) fn help() -> String {
    let row = |(name, value, effect): (&str, &str, &str)| {
        vec![format!("{name} {value}").trim_end().to_owned(), effect.to_owned()]
    };
    format!(
        "{}\nA message may take several lines: end a line with a backslash, or put {FENCE} before and behind all of them. A \
         space before a / makes it part of a message. Ctrl-C stops an answer.\n",
        crate::output::table(&COMMANDS.map(row), &[])
    )
}

/// True if `text`, all lines so far, is a whole entry.
pub(super) fn is_complete(text: &str) -> bool {
    match text.trim_start().strip_prefix(FENCE) {
        Some(rest) => rest.trim_end().ends_with(FENCE),
        None => !text.ends_with('\\'),
    }
}

/// Reads a whole entry. Its lines end in `\n`, the last one may do without.
///
/// # Errors
/// [`Error::ChatCommand`] for a `/` that begins no command, or one that takes something else.
pub(super) fn parse(text: &str) -> Result<Entry> {
    if let Some(rest) = text.trim_start().strip_prefix(FENCE) {
        let rest = rest.trim_end();
        let inner = rest.strip_suffix(FENCE).unwrap_or(rest);
        let inner = inner.strip_prefix('\n').unwrap_or(inner);
        let inner = inner.strip_suffix('\n').unwrap_or(inner);
        return Ok(if inner.is_empty() { Entry::Nothing } else { Entry::Message(inner.to_owned()) });
    }
    let text = text.replace("\\\n", "\n");
    if text.starts_with('/') {
        return command(text.trim_end()).map(Entry::Command);
    }
    let text = text.trim();
    Ok(if text.is_empty() { Entry::Nothing } else { Entry::Message(text.to_owned()) })
}

fn command(text: &str) -> Result<Command> {
    let (name, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
    let rest = rest.trim();
    let Some(&(name, value, _)) = COMMANDS.iter().find(|(known, _, _)| *known == name) else {
        let shown: String = name.chars().take(24).collect();
        let reason =
            format!("there is no command {shown}: /help lists them, a space before the / makes it a message");
        return Err(Error::ChatCommand { reason });
    };
    let file = || (!rest.is_empty()).then(|| PathBuf::from(rest));
    let command = match name {
        "/system" if rest.is_empty() => Some(Command::System(None)),
        "/system" => Some(Command::System(Some(if rest == "off" { "" } else { rest }.to_owned()))),
        "/save" => file().map(Command::Save),
        "/load" => file().map(Command::Load),
        "/set" if rest.is_empty() => Some(Command::Set(None)),
        "/set" => rest
            .split_once(char::is_whitespace)
            .map(|(name, value)| Command::Set(Some((name.to_owned(), value.trim().to_owned())))),
        "/adapter" => Some(Command::Adapter((!rest.is_empty()).then(|| rest.to_owned()))),
        _ if !rest.is_empty() => None,
        "/help" => Some(Command::Help),
        "/reset" => Some(Command::Reset),
        "/stats" => Some(Command::Stats),
        _ => Some(Command::Exit),
    };
    command
        .ok_or_else(|| Error::ChatCommand { reason: format!("use {}", format!("{name} {value}").trim_end()) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(text: &str) -> Entry {
        assert!(is_complete(text), "{text:?}");
        parse(text).unwrap()
    }

    fn refusal(text: &str) -> String {
        parse(text).unwrap_err().to_string()
    }

    #[test]
    fn a_line_is_a_message_less_the_space_around_it() {
        assert_eq!(message("  hello there \n"), Entry::Message("hello there".into()));
        assert_eq!(message(" /etc is a folder"), Entry::Message("/etc is a folder".into()));
        assert_eq!(message(" \t\n"), Entry::Nothing);
        assert_eq!(message(""), Entry::Nothing);
    }

    #[test]
    fn lines_go_on_after_a_backslash() {
        assert!(!is_complete("one\\"));
        assert!(!is_complete("one\\\ntwo\\"));
        assert_eq!(message("one\\\ntwo\\\nthree"), Entry::Message("one\ntwo\nthree".into()));
        assert_eq!(message("a \\ b"), Entry::Message("a \\ b".into()));
    }

    #[test]
    fn a_block_is_taken_as_it_is() {
        for open in ["\"\"\"", "\"\"\"\n", " \"\"\"text", "\"\"\"\n/help\n", "\"\"\" a \"\"\" b"] {
            assert!(!is_complete(open), "{open:?}");
        }
        let block = "\"\"\"\n  /indented\\\n\n\"quoted\"\n\"\"\"";
        assert_eq!(message(block), Entry::Message("  /indented\\\n\n\"quoted\"".into()));
        assert_eq!(message("\"\"\"one line\"\"\" "), Entry::Message("one line".into()));
        assert_eq!(message("\"\"\"\"\"\""), Entry::Nothing);
        assert_eq!(message("\"\"\"\n\"\"\""), Entry::Nothing);
    }

    #[test]
    fn pasted_lines_stay_together() {
        assert_eq!(message("one\ntwo"), Entry::Message("one\ntwo".into()));
    }

    #[test]
    fn commands_are_read_with_what_they_take() {
        let command = |text: &str| match parse(text).unwrap() {
            Entry::Command(command) => command,
            other => panic!("{other:?}"),
        };
        assert_eq!(command("/help\n"), Command::Help);
        assert_eq!(command("/system"), Command::System(None));
        assert_eq!(
            command("/system Be brief.\\\nBe kind."),
            Command::System(Some("Be brief.\nBe kind.".into()))
        );
        assert_eq!(command("/system off"), Command::System(Some(String::new())));
        assert_eq!(command("/reset"), Command::Reset);
        assert_eq!(command("/save  my file.json "), Command::Save("my file.json".into()));
        assert_eq!(command("/load x"), Command::Load("x".into()));
        assert_eq!(command("/set"), Command::Set(None));
        assert_eq!(command("/set stop  a b"), Command::Set(Some(("stop".into(), "a b".into()))));
        assert_eq!(command("/adapter"), Command::Adapter(None));
        assert_eq!(command("/adapter poet@0.5 facts"), Command::Adapter(Some("poet@0.5 facts".into())));
        assert_eq!(command("/stats"), Command::Stats);
        assert_eq!(command("/exit"), Command::Exit);
    }

    #[test]
    fn what_is_no_command_says_what_to_do() {
        assert!(refusal("/hepl").contains("no command /hepl") && refusal("/hepl").contains("/help"));
        assert!(refusal("/").contains("space before"));
        assert_eq!(refusal("/save"), "use /save FILE");
        assert_eq!(refusal("/set top_k"), "use /set [NAME VALUE]");
        assert_eq!(refusal("/reset everything"), "use /reset");
        assert!(refusal(&format!("/{}", "x".repeat(10_000))).len() < 200);
    }

    #[test]
    fn help_names_every_command() {
        let text = help();
        assert!(command_names().all(|name| text.contains(name)), "{text}");
    }
}
