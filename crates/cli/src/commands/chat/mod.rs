//! `ruvllm chat`: a conversation with the model, by hand or from a script.

mod adapters;
mod dialogue;
mod entry;
mod saved;
mod script;
mod settings;
mod terminal;
mod window;

use std::io::{self, IsTerminal};
use std::process::ExitCode;

use clap::Args;
use ruvllm::FinishReason;

use self::adapters::Adapters;
use self::dialogue::{Dialogue, Outcome};
use self::entry::Command;
use self::settings::Settings;
use crate::args::{self, GenerationArgs};
use crate::commands::load;
use crate::error::Result;
use crate::output::{self, Reader, TextSink};
use crate::signal::Interrupts;

const HELP: &str = "\
At a terminal: a line editor with history; /help lists the commands. A message may take several lines: end a line with
a backslash, or put \"\"\" before and behind all of them. Ctrl-C stops an answer, what there is of it stays; twice at an
empty prompt it leaves, as Ctrl-D does. The history is in ruvllm/chat-history in the user's state folder.

Elsewhere: one message per line, commands and blocks as at the terminal; the answers go to standard output, what
commands say to standard error. Ctrl-C stops the answer and the program, with exit code 130.

Each answer computes only what is new. When the conversation outgrows the context, its oldest turns are not sent any
more, until half of the context is free; the instructions always are. /save writes all messages, /load sends what has
room.

JSON: {messages: [{role, content}], settings, turns: [{prompt_tokens, cached_tokens, tokens, finish_reason, seed,
forgotten_messages, timings: {ttft_ms, prefill_tok_s, decode_tok_s}}], load_ms}

Examples:
  ruvllm chat
  ruvllm chat --system \"Answer in one sentence.\" --temperature 0.2
  ruvllm chat --adapter poet=poet-lora --adapter facts=facts-lora.gguf@0.5
  printf 'Hello\\nAnd now?\\n' | ruvllm chat --json";

/// Talk with the model
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct ChatArgs {
    /// Instructions that come before the conversation
    #[arg(long, value_name = "TEXT")]
    system: Option<String>,

    /// Most tokens of an answer
    #[arg(long, short = 'n', alias = "n-predict", value_name = "N", default_value = "2048", value_parser = args::positive)]
    max_tokens: usize,

    /// Neither read nor write the history of lines
    #[arg(long)]
    no_history: bool,

    #[command(flatten)]
    generation: GenerationArgs,
}

/// A conversation and what stops its answers.
struct Chat<'e> {
    dialogue: Dialogue<'e>,
    interrupts: Interrupts,
}

/// What follows a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    GoOn,
    Leave,
}

pub(crate) fn run(args: &ChatArgs, json: bool) -> Result<ExitCode> {
    let engine = args.generation.engine()?;
    // Without a template nothing can be said: better now than after the first message.
    engine.chat_template()?;
    let settings = Settings {
        sampling: args.generation.sampling.params(),
        max_tokens: args.max_tokens,
        stop: args.generation.stop.clone(),
    };
    let by_hand = !json && io::stdin().is_terminal() && io::stdout().is_terminal();
    // By hand two presses are easily too many, and would lose the conversation.
    let interrupts = if by_hand { Interrupts::install(3, false) } else { Interrupts::install(2, true) };
    let adapters = Adapters::new(&engine, args.generation.adapters.adapters.clone())?;
    let dialogue = Dialogue::new(&engine, args.system.as_deref(), settings, adapters);
    let mut chat = Chat { dialogue, interrupts };
    let result = if by_hand {
        output::note(&format!(
            "{} with a context of {} tokens; /help lists the commands, Ctrl-D leaves",
            args.generation.model_name(),
            engine.context_length()
        ));
        terminal::run(&mut chat, !args.no_history)
    } else {
        script::run(&mut chat, json)
    };
    load::finish_prefixes(&engine);
    result
}

impl Chat<'_> {
    /// Answers a message into `sink`, says what is unusual about the answer, and whether somebody still reads.
    fn answer(&mut self, text: String, mut sink: TextSink) -> Result<(Outcome, Reader)> {
        let cancel = self.interrupts.begin();
        let outcome = self.dialogue.answer(text, &cancel, &mut |text| sink.push(text));
        self.interrupts.end();
        let reader = sink.finish()?;
        let outcome = outcome?;
        if outcome.forgotten_messages > 0 {
            output::note(&format!(
                "[the context is full: the {} oldest messages are not sent any more]",
                outcome.forgotten_messages
            ));
        }
        Ok((outcome, reader))
    }

    /// Does what a command asks for and says so on standard error.
    fn obey(&mut self, command: Command) -> Result<Step> {
        let dialogue = &mut self.dialogue;
        match command {
            Command::Help => output::note(&entry::help()),
            Command::System(None) => match dialogue.system() {
                Some(text) => output::note(text),
                None => output::note("[there are no instructions]"),
            },
            Command::System(Some(text)) => dialogue.set_system(&text),
            Command::Reset => dialogue.reset(),
            Command::Save(path) => {
                let n = dialogue.save(&path)?;
                output::note(&format!("[{n} messages saved]"));
            }
            Command::Load(path) => {
                let n = dialogue.load(&path)?;
                output::note(&format!("[{n} messages loaded]"));
            }
            Command::Set(None) => output::note(&dialogue.settings.table()),
            Command::Set(Some((name, value))) => dialogue.settings.set(&name, &value)?,
            Command::Adapter(None) => output::note(&dialogue.adapters.table()),
            Command::Adapter(Some(text)) => dialogue.adapters.choose(&text)?,
            Command::Stats => output::note(&dialogue.statistics()),
            Command::Exit => return Ok(Step::Leave),
        }
        Ok(Step::GoOn)
    }
}

/// What a person should know about an answer that did not end by itself.
fn remark(outcome: &Outcome) -> Option<&'static str> {
    match outcome.finish {
        FinishReason::Stop => None,
        FinishReason::Cancelled if outcome.taken_back => {
            Some("[stopped before it began; the message is taken back]")
        }
        FinishReason::Cancelled => Some("[stopped]"),
        FinishReason::Length if outcome.context_full => Some("[cut off: the context is full]"),
        FinishReason::Length => Some("[cut off: /set max_tokens N allows more]"),
    }
}
