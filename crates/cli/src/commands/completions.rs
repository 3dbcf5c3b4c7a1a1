//! `ruvllm completions`: a completion script for a shell.

use clap::{Args, Command};
use clap_complete::Shell;
use clap_complete::aot::generate;

use crate::error::Result;
use crate::output;

const HELP: &str = "\
The script goes to standard output. Bash: into a file of the folder
~/.local/share/bash-completion/completions, named ruvllm. Zsh: into a file _ruvllm of a folder of $fpath. Fish: into
~/.config/fish/completions/ruvllm.fish. With --json as well, JSON: {shell, script}

Examples:
  ruvllm completions bash > ~/.local/share/bash-completion/completions/ruvllm
  ruvllm completions zsh > ~/.zfunc/_ruvllm
  source <(ruvllm completions bash)";

/// Print a completion script for a shell
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct CompletionsArgs {
    /// Shell that reads the script
    #[arg(value_enum)]
    shell: Shell,
}

/// The JSON document.
#[derive(serde::Serialize)]
struct Document {
    shell: String,
    script: String,
}

/// Prints the script of `command`, the table of commands.
pub(crate) fn run(args: &CompletionsArgs, command: &mut Command, json: bool) -> Result<()> {
    let mut script = Vec::new();
    generate(args.shell, command, command.get_name().to_owned(), &mut script);
    let script = String::from_utf8_lossy(&script).into_owned();
    if json {
        return output::write_json(&Document { shell: args.shell.to_string(), script });
    }
    output::write_text(&script).map(|_| ())
}
