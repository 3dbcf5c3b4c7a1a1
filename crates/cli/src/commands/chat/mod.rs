//! `ruvllm chat`: a conversation with the model, by hand or from a script.

mod adapters;
mod completion;
mod dialogue;
mod entry;
mod memory;
mod saved;
mod script;
mod session;
mod settings;
mod step;
mod terminal;
mod tool_use;
mod transcript;
mod window;

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use ruvllm::Message;

use self::adapters::Adapters;
use self::dialogue::Dialogue;
use self::memory::Memory;
use self::session::Session;
use self::settings::Settings;
use self::step::Chat;
use self::tool_use::ToolUse;
use crate::args::{self, GenerationArgs, OrDefault};
use crate::commands::load;
use crate::commands::sona::bank::recall::RecallArgs;
use crate::default_model::ModelChoice;
use crate::device::{Defaults, Device};
use crate::error::{Error, Result};
use crate::output;
use crate::session_store::{OpenSession, SessionId, SessionStore};
use crate::signal::Interrupts;
use crate::tools::{Confirmation, Executor};

const HELP: &str = "\
At a terminal: a line editor with history; /help lists the commands, Tab completes commands, settings, files and
adapters. /regenerate answers the last message again, /undo drops it with its answer, /clear begins anew. A message
may take several lines: end a line with a backslash, or put \"\"\" before and behind all of them. Ctrl-C stops an answer,
what there is of it stays; twice at an empty prompt it leaves, as Ctrl-D and /bye do. The history is in
ruvllm/chat-history in the user's state folder.

Elsewhere: one message per line, commands and blocks as at the terminal; the answers go to standard output, what
commands say to standard error. Ctrl-C stops the answer and the program, with exit code 130. An answer that ends because
the context is full is reported on standard error; the conversation goes on, and the exit code is 1.

Each answer computes only what is new. When the conversation outgrows the context, its oldest turns are not sent any
more, until half of the context is free; the instructions always are. /save writes all messages, /load sends what has
room. A saved file is readable for its user alone; one that is replaced keeps its permissions.

With --session ID the conversation goes on where the session of this name ended, also after a restart: messages are
written after each answer, keys and values as with --prefix-cache on. Settings are those of the flags; --system
replaces the instructions of the session. The files are readable for their user alone, in ruvllm/sessions in the
user's state folder. `ruvllm session` lists, copies and removes sessions.

With --tools the model may call functions, and --exec runs them: COMMAND NAME,
with the arguments as JSON on its standard input; what it prints is the
result. A failure, or --exec-timeout, is told to the model. Each call is asked
for at the terminal; --yes runs all, and elsewhere nothing runs without it.
After 8 answers with calls in a row the next message goes on.

Thinking of reasoning models is dimmed at a terminal and left out elsewhere; --thinking show, fold or hide decides.
--thinking-budget N forces the answer after N tokens of thinking, 0 turns it off. Messages keep it as reasoning_content:
the model's chat template decides where it is sent again.

With --bank NAME (`ruvllm sona bank`) the best lesson for the first message stands in the system message of the whole
conversation, so that earlier keys and values stay valid; a line on standard error says which one. /clear and /load
begin another request for `ruvllm sona bank outcome`. Lessons are not saved with the messages.

JSON: {messages: [{role, content}], settings, session, turns: [{prompt_tokens, cached_tokens, tokens, reasoning_tokens, finish_reason,
seed, forgotten_messages, speculation: {drafted_tokens, accepted_tokens}, timings: {ttft_ms, prefill_tok_s,
decode_tok_s}}], load_ms}; session is there with --session, speculation
where tokens were drafted

Examples:
  ruvllm chat
  ruvllm chat --system \"Answer in one sentence.\" --temperature 0.2
  ruvllm chat --session story
  ruvllm chat --bank work
  ruvllm chat --adapter poet=poet-lora --adapter facts=facts-lora.gguf@0.5
  ruvllm chat --adapter law-lora --adapter code-lora --adapter-gate gate.safetensors
  ruvllm chat --tools tools.json --exec ./run-tool
  printf 'Hello\\nAnd now?\\n' | ruvllm chat --json";

/// Chat interactively
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct ChatArgs {
    /// System message
    #[arg(long, value_name = "TEXT")]
    pub(in crate::commands) system: Option<String>,

    /// Maximum number of tokens per answer; -1 = no limit
    #[arg(long, short = 'n', visible_alias = "n-predict", value_name = "N", default_value = "2048",
        value_parser = args::some_tokens_or_all, allow_negative_numbers = true)]
    pub(in crate::commands) max_tokens: OrDefault<usize>,

    /// Session to go on with, or to begin: letters, digits, - and _
    #[arg(long, value_name = "ID", value_parser = session_id)]
    pub(in crate::commands) session: Option<SessionId>,

    /// Neither read nor write the history of lines
    #[arg(long)]
    no_history: bool,

    /// Run tool calls: COMMAND NAME, JSON arguments on standard input
    #[arg(long, value_name = "COMMAND", requires = "tools")]
    exec: Option<PathBuf>,

    /// Run tool calls without asking
    #[arg(long, requires = "exec")]
    yes: bool,

    /// Time limit of a tool call in seconds
    #[arg(long, value_name = "SECONDS", default_value = "30", requires = "exec", value_parser = args::above_zero)]
    exec_timeout: f32,

    #[command(flatten)]
    pub(in crate::commands) generation: GenerationArgs,

    #[command(flatten)]
    pub(in crate::commands) recall: RecallArgs,
}

pub(crate) fn run(args: &ChatArgs, json: bool) -> Result<ExitCode> {
    args.recall.check()?;
    let output = args.generation.output.language(false)?;
    let by_hand = !json && io::stdin().is_terminal() && io::stdout().is_terminal();
    let tools = tool_use(args, by_hand)?;
    let defaults = Defaults { requests_have_adapters: true, ..Defaults::default() };
    let session = args.session.as_ref().map(open_session).transpose()?;
    // A GPU has no prefix cache; there only messages are kept.
    let has_prefixes = args.generation.compute.device.device == Device::Cpu;
    let prefixes = session.as_ref().filter(|_| has_prefixes).map(|(_, folder)| folder.clone());
    let model = load::generator(&args.generation, defaults, prefixes.as_deref())?;
    let context = model.backend().context_length();
    // Every message needs the template: fail now rather than at the first one.
    model.backend().codec().chat_template()?;
    let settings = Settings {
        sampling: args.generation.sampling.params(),
        breakers: args.generation.sampling.breakers(),
        max_tokens: args.max_tokens.0.unwrap_or(context),
        stop: args.generation.stop.clone(),
        output,
    };
    // At a terminal a second Ctrl-C is easily an accident and must not lose the conversation.
    let interrupts = if by_hand { Interrupts::install(3, false) } else { Interrupts::install(2, true) };
    let adapters = Adapters::new(&model, &args.generation.adapters)?;
    let memory = Memory::new(args.recall.clone(), json);
    let mut dialogue = Dialogue::new(
        &model,
        args.system.as_deref(),
        settings,
        args.generation.thinking.clone(),
        (adapters, tools, memory),
    );
    if let Some((session, _)) = session {
        if by_hand {
            let messages = session.transcript().messages().len();
            output::hint(&format!("session {}: {}", session.id(), output::counted(messages, "message")));
        }
        dialogue.resume(session);
    }
    let mut chat = Chat { dialogue, interrupts };
    let result = if by_hand {
        output::hint(&format!(
            "{} with a context of {} tokens; /help lists the commands, Ctrl-D leaves",
            ModelChoice::new(args.generation.model.model.as_deref()).name(),
            context
        ));
        terminal::run(&mut chat, !args.no_history)
    } else {
        script::run(&mut chat, json)
    };
    model.finish();
    result
}

/// Opens a session; also returns its folder for keys and values.
///
/// # Errors
/// A session that is open elsewhere, or cannot be read.
fn open_session(id: &SessionId) -> Result<(Session, PathBuf)> {
    let open = SessionStore::of_user()?.open(id)?;
    let prefixes = OpenSession::prefixes(&open);
    Ok((Session::read(open)?, prefixes))
}

/// Messages of a saved conversation.
///
/// # Errors
/// A file that cannot be read or is no saved conversation.
pub(in crate::commands) fn saved_messages(path: &Path) -> Result<Vec<Message>> {
    saved::messages(path).map(|(messages, _)| messages)
}

fn session_id(text: &str) -> Result<SessionId, String> {
    SessionId::parse(text)
}

/// Tools of the flags, and the command that runs them.
///
/// # Errors
/// A file that is no list of tools; a command whose calls nobody can be asked for.
fn tool_use(args: &ChatArgs, by_hand: bool) -> Result<Option<ToolUse>> {
    let Some(tools) = args.generation.tools.read(false)? else { return Ok(None) };
    let executor = match &args.exec {
        None => None,
        Some(_) if !args.yes && !by_hand => {
            let reason = "calls are asked for at a terminal, and there is none; --yes runs all".to_owned();
            return Err(Error::Output { flag: "--exec".to_owned(), reason });
        }
        Some(command) => Some(Executor {
            command: command.clone(),
            timeout: Duration::from_secs_f32(args.exec_timeout.min(1e6)),
            confirmation: if args.yes { Confirmation::Always } else { Confirmation::Ask },
        }),
    };
    Ok(Some(ToolUse { tools, executor }))
}
