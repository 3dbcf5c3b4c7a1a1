//! `ruvllm run`: a chat with a model, or one answer, after a pull if need be.

use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use super::chat::{self, ChatArgs};
use super::generate::{self, Choices};
use super::offer;
use crate::error::{Error, Result};

/// Text below the flags.
pub(crate) const HELP: &str = "\
With PROMPT, one answer to it; without PROMPT, one answer to the text of standard input; at a terminal, a conversation
as with `ruvllm chat`. A model that is not here yet is pulled at a terminal; a script gets an error that names the
command to pull it with.

JSON: {text, tokens, ...} as `ruvllm generate` prints it for one answer, {messages, settings, turns, load_ms} as
`ruvllm chat` does for a conversation.

Examples:
  ruvllm run org/repo-GGUF
  ruvllm run small \"Why is the sky blue?\"
  ruvllm run model.gguf < question.txt";

/// Flags of the command. Its texts stand in the table of commands: a flattened struct brings its
/// own.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// GGUF file, HF folder, pulled model, or ORG/REPO[/FILE] on the Hugging Face hub
    #[arg(value_name = "MODEL", conflicts_with = "model")]
    run_model: PathBuf,

    /// The message; several words are joined by spaces
    #[arg(value_name = "PROMPT")]
    words: Vec<String>,

    #[command(flatten)]
    chat: ChatArgs,
}

pub(crate) fn run(mut args: RunArgs, json: bool) -> Result<ExitCode> {
    offer::pulled_model(&args.run_model)?;
    args.chat.generation.model.model = Some(args.run_model);
    let ChatArgs { ref system, max_tokens, ref generation, ref recall, .. } = args.chat;
    if args.words.is_empty() && io::stdin().is_terminal() {
        return chat::run(&args.chat, json);
    }
    if args.chat.session.is_some() {
        let reason = "one answer belongs to no session; leave out the prompt, or use `ruvllm chat --session`";
        return Err(Error::Conflict { flag: "--session", reason: reason.to_owned() });
    }
    let words = (!args.words.is_empty()).then(|| args.words.join(" "));
    let language = generation.output.language(words.is_some())?;
    let tools = generation.tools.read(words.is_some())?;
    let text = generate::text_of(words.as_deref())?;
    let system = recall.system(system.as_deref(), &text, json)?;
    let prompt = generate::message(system.as_deref(), text)?;
    let request = generate::request_for(prompt, max_tokens.0, generation, language, tools.as_ref());
    generate::answer(request, tools.as_ref(), Choices::ONE, generation, json)
}
