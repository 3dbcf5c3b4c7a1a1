//! Parser of chat entries: messages of one or several lines, and `/` commands.

use std::path::PathBuf;

use crate::error::{Error, Result};

/// Delimiter before and after a message of several lines.
const FENCE: &str = "\"\"\"";

/// Parsed entry.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// White space only.
    Nothing,
    /// Text for the model.
    Message(String),
    /// Command to the program.
    Command(Command),
}

/// Command to the program.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Command {
    /// Lists all commands, or explains one.
    Help(Option<&'static CommandHelp>),
    /// Shows the system prompt, or sets it; an empty one removes it.
    System(Option<String>),
    /// Generates the last answer again.
    Regenerate,
    /// Drops the last message and its answer.
    Undo,
    Clear,
    Save(PathBuf),
    Load(PathBuf),
    /// Shows all settings, or sets one.
    Set(Option<(String, String)>),
    /// Shows all adapters, or selects some.
    Adapter(Option<String>),
    Stats,
    Exit,
}

/// Names and help texts of a command.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CommandHelp {
    /// Names, the usual one first.
    names: &'static [&'static str],
    /// Arguments.
    value: &'static str,
    /// Effect, for the list of commands.
    effect: &'static str,
    /// Details, for `/help COMMAND`.
    details: &'static str,
}

/// All commands, in the order of the list.
static COMMANDS: [CommandHelp; 12] = [
    CommandHelp {
        names: &["/help"],
        value: "[COMMAND]",
        effect: "this list, or more about a command",
        details: "Example: /help set",
    },
    CommandHelp {
        names: &["/regenerate"],
        value: "",
        effect: "answers the last message again",
        details: "The last answer is dropped. Another seed is drawn unless /set seed N has set one; with a seed, or with \
                  temperature 0, the answer is the same.",
    },
    CommandHelp {
        names: &["/undo"],
        value: "",
        effect: "drops the last message and its answer",
        details: "Repeated, it goes back message by message. Instructions and settings stay.",
    },
    CommandHelp {
        names: &["/clear", "/reset"],
        value: "",
        effect: "begins a new conversation",
        details: "Instructions, settings and adapters stay.",
    },
    CommandHelp {
        names: &["/system"],
        value: "[TEXT|off]",
        effect: "sets the instructions before the conversation; alone: shows them",
        details: "The instructions hold from the next answer on; off removes them.",
    },
    CommandHelp {
        names: &["/set"],
        value: "[NAME VALUE]",
        effect: "changes a setting; alone: shows all",
        details: "off removes a seed, all stop texts or all logit biases. /set stop TEXT adds a stop text, and a JSON \
                  array replaces them: /set stop [\"\\n\\n\", \"END\"]. /set logit_bias 42=-inf forbids token 42.",
    },
    CommandHelp {
        names: &["/adapter"],
        value: "[NAME[@SCALE].. | NAME=PATH[@SCALE] | off]",
        effect: "changes the model; alone: shows the adapters",
        details: "NAME=PATH reads a LoRA adapter, NAME uses one that was read before; the scale is 1 without @SCALE.",
    },
    CommandHelp {
        names: &["/save"],
        value: "FILE",
        effect: "writes messages and settings to a JSON file",
        details: "A new file is readable for its user alone. A file that is no saved conversation is not replaced.",
    },
    CommandHelp {
        names: &["/load"],
        value: "FILE",
        effect: "goes on with the conversation in such a file",
        details: "Messages and settings are those of the file. A plain JSON list of messages works, too.",
    },
    CommandHelp {
        names: &["/stats"],
        value: "",
        effect: "tokens and times of the last answer, room in the context",
        details: "Known tokens were computed for an earlier message and not again.",
    },
    CommandHelp {
        names: &["/exit", "/bye"],
        value: "",
        effect: "ends the program, as Ctrl-D does",
        details: "Nothing is saved but the messages of a --session: see /save.",
    },
    CommandHelp {
        names: &["\"\"\""],
        value: "",
        effect: "before and behind a message of several lines",
        details: "Everything between the two is one message, lines that begin with / included.",
    },
];

impl CommandHelp {
    /// Finds a command by name, with or without its `/`.
    fn find(name: &str) -> Option<&'static Self> {
        COMMANDS.iter().find(|command| {
            command.names.iter().any(|known| *known == name || known.strip_prefix('/') == Some(name))
        })
    }

    /// Name and arguments.
    fn usage(&self) -> String {
        format!("{} {}", self.names.join(", "), self.value).trim_end().to_owned()
    }

    /// Text of `/help COMMAND`.
    fn text(&self) -> String {
        format!("{}\n  {}\n  {}\n", self.usage(), self.effect, self.details)
    }
}

/// Names of the commands that begin with `/`, aliases included.
pub(super) fn command_names() -> impl Iterator<Item = &'static str> {
    COMMANDS.iter().flat_map(|command| command.names).copied().filter(|name| name.starts_with('/'))
}

/// Text of `/help`, or of `/help COMMAND`.
pub(super) fn help(command: Option<&CommandHelp>) -> String {
    if let Some(command) = command {
        return command.text();
    }
    let row = |command: &CommandHelp| vec![command.usage(), command.effect.to_owned()];
    let rows: Vec<Vec<String>> = COMMANDS.iter().map(row).collect();
    format!(
        "{}\nA line that ends with a backslash goes on in the next one. A space before a / makes it part of a message. \
         Ctrl-C stops an answer.\n",
        crate::output::table(&rows, &[])
    )
}

/// True if `text`, all lines so far, is a whole entry.
pub(super) fn is_complete(text: &str) -> bool {
    match text.trim_start().strip_prefix(FENCE) {
        Some(rest) => rest.trim_end().ends_with(FENCE),
        None => !text.ends_with('\\'),
    }
}

/// Parses a whole entry. Its lines end in `\n`, which the last one may lack.
///
/// # Errors
/// [`Error::ChatCommand`] for an unknown command or wrong arguments.
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
    let unknown = |name: &str| {
        let shown: String = name.chars().take(24).collect();
        let reason =
            format!("there is no command {shown}: /help lists them, a space before the / makes it a message");
        Error::ChatCommand { reason }
    };
    let known = CommandHelp::find(name).filter(|_| name.starts_with('/')).ok_or_else(|| unknown(name))?;
    let file = || (!rest.is_empty()).then(|| PathBuf::from(rest));
    let command = match known.names[0] {
        "/help" if rest.is_empty() => Some(Command::Help(None)),
        "/help" => Some(Command::Help(Some(CommandHelp::find(rest).ok_or_else(|| unknown(rest))?))),
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
        "/regenerate" => Some(Command::Regenerate),
        "/undo" => Some(Command::Undo),
        "/clear" => Some(Command::Clear),
        "/stats" => Some(Command::Stats),
        _ => Some(Command::Exit),
    };
    let usage = || format!("use {}", format!("{name} {}", known.value).trim_end());
    command.ok_or_else(|| Error::ChatCommand { reason: usage() })
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
        assert_eq!(command("/help\n"), Command::Help(None));
        for name in ["set", "/set"] {
            assert_eq!(command(&format!("/help {name}")), Command::Help(CommandHelp::find("/set")));
        }
        assert_eq!(command("/regenerate"), Command::Regenerate);
        assert_eq!(command("/undo"), Command::Undo);
        assert_eq!((command("/clear"), command("/reset")), (Command::Clear, Command::Clear));
        assert_eq!(command("/system"), Command::System(None));
        assert_eq!(
            command("/system Be brief.\\\nBe kind."),
            Command::System(Some("Be brief.\nBe kind.".into()))
        );
        assert_eq!(command("/system off"), Command::System(Some(String::new())));
        assert_eq!(command("/save  my file.json "), Command::Save("my file.json".into()));
        assert_eq!(command("/load x"), Command::Load("x".into()));
        assert_eq!(command("/set"), Command::Set(None));
        assert_eq!(command("/set stop  a b"), Command::Set(Some(("stop".into(), "a b".into()))));
        assert_eq!(command("/adapter"), Command::Adapter(None));
        assert_eq!(command("/adapter poet@0.5 facts"), Command::Adapter(Some("poet@0.5 facts".into())));
        assert_eq!(command("/stats"), Command::Stats);
        assert_eq!((command("/exit"), command("/bye")), (Command::Exit, Command::Exit));
    }

    #[test]
    fn what_is_no_command_says_what_to_do() {
        assert!(refusal("/hepl").contains("no command /hepl") && refusal("/hepl").contains("/help"));
        assert!(refusal("/").contains("space before"));
        assert!(refusal("/help hepl").contains("no command hepl"));
        assert_eq!(refusal("/save"), "use /save FILE");
        assert_eq!(refusal("/set top_k"), "use /set [NAME VALUE]");
        assert_eq!(refusal("/reset everything"), "use /reset");
        assert!(refusal(&format!("/{}", "x".repeat(10_000))).len() < 200);
    }

    #[test]
    fn help_names_every_command() {
        let text = help(None);
        assert!(command_names().all(|name| text.contains(name)), "{text}");
        for command in &COMMANDS {
            let text = help(Some(command));
            assert!(text.contains(command.names[0]) && text.lines().count() == 3, "{text}");
        }
    }
}
