//! `ruvllm generate`: continue a text or answer a message.

mod choices;
mod document;
mod logprobs;

use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use ruvllm::{Completion, FinishReason, GenerateRequest, Message, Prompt};

pub(super) use self::choices::Choices;
use self::choices::{ChoiceArgs, Shown};
use self::document::{Contents, Document};
pub(super) use self::document::{GenerationTimings, SpeculationDocument};
use super::load;
use super::sona::bank::recall::RecallArgs;
use crate::args::{self, GenerationArgs, OrDefault, OutputLanguage};
use crate::device::Defaults;
use crate::error::{Error, Result};
use crate::output::{Reader, TextSink};
use crate::tools::{CallDocument, Tools};
use crate::{console, input, output, signal};

const HELP: &str = "\
The text appears as it is generated, without the prompt; a terminal gets it without control characters. With --chat
the prompt is a message to the model, put into the form that the model's chat template gives.

JSON: {text, tokens, prompt_tokens, cached_tokens, finish_reason, seed, timings: {load_ms, ttft_ms, prefill_tok_s,
decode_tok_s}}; tokens are the generated ids, prompt_tokens counts those of the prompt, finish_reason is stop,
length, tool_calls or cancelled, cached_tokens is how much of the prompt the prefix cache knew, and seed is there
when tokens were drawn (temperature above 0). With a quality target (--kv tiered:target=0.02) there is kv_quality:
{hot_tokens, error, samples}, how many tokens stay hot, the error that was estimated then, and how often it was
sampled. With --pressure drop-oldest there is dropped_tokens once tokens were dropped. With --tools there is
tool_calls: [{id, name, arguments}], and text is that outside of calls.
Where the model thought there are reasoning and reasoning_tokens; text is the answer. Where tokens were drafted there is
speculation: {drafted_tokens, accepted_tokens}. With --logprobs there are logprobs: [{token, text, logprob, top:
[{token, text, logprob}]}] and their mean_logprob, which --best-of gives too. With --n above 1 there is
choices: [{text, ...}] and timings: {load_ms}; each choice has the other fields and timings of its own.

Examples:
  ruvllm generate --chat \"Tell me a story about a turtle.\"
  ruvllm generate --temperature 0 -n 64 \"Once upon a time\"
  ruvllm generate --chat --json < question.txt
  ruvllm generate --adapter poet=poet-lora@0.8 \"The sea\"
  ruvllm generate --n 3 --logprobs 2 \"The capital of France is\"
  ruvllm generate --chat --tools tools.json \"Weather in Rome?\"
  ruvllm generate --chat --bank work \"Sum the invoices of March\"
  ruvllm generate --json-schema person.json \"Ann is 31 years old. As JSON:\"

With --json-schema, --grammar, --regex, --choices or --json-object only tokens that fit are sampled. Output that ends
with finish_reason stop is complete; a limit of tokens can cut it. --grammar takes llguidance's Lark and llama.cpp's GBNF,
by the end of the file's name (.lark, .gbnf) or its text. docs/structured-output.md lists the keywords of schemas.

With --tools (a file as chat servers take it: [{\"type\": \"function\", \"function\":
{\"name\", \"description\", \"parameters\"}}]) the model may call functions. Names
and arguments always fit the tools; each call is a line of JSON after the text.
--tool-choice required forces a call. `ruvllm chat --exec` runs calls.

With --chat the thinking of reasoning models is told apart from the answer: dimmed at a terminal, left out elsewhere;
--thinking show, fold or hide decides. --thinking-budget N forces the answer after N tokens of thinking, 0 turns it off.
--set reasoning_effort=low sets a variable of the model's chat template.

--n 3 gives three texts of one prompt, whose choice i has the seed S+i; the prompt is computed once. They are generated
together and printed one after the other, each behind a line `--- choice 1 of 3 ---`. --best-of 8 --n 2 generates eight
and prints the two with the highest mean log-probability of their tokens, the highest first. --logprobs N adds a table
behind each text. Log-probabilities are those of the model, before temperature, filters and penalties.

With --prefix-cache on, later runs with the same model and --kv compute only where their prompt parts from earlier ones.
The files are written behind the answer; the program ends when they are safe. They hold what the prompts say. With spill
only what --kv-budget has no room for is written; what earlier runs have written is found either way.
A folder that others may write to is refused without --prefix-key. With it, only files that carry a tag of the key are
used. `(umask 077; head -c 32 /dev/urandom > FILE)` makes a key; all who share the folder get a copy.

The next tokens are drafted by look-up in the text so far, and by a draft model if there is one: the built-in model has
one, others may have a --draft of the same vocabulary. The model verifies drafts several at a time, so that the text is
the same, token for token, and sooner there. Where drafts do not pay they are left out.

With --device gpu (a build with the feature `gpu`) a GPU computes: its tokens may differ from the CPU's where two are
about equally likely. --threads and --isa have no effect on it; flags that it does not have are refused. With --device
auto the CPU computes what no GPU here can, and standard error says why. On a GPU --n computes the prompt of each
choice; --best-of runs on the CPU only.

Ctrl-C stops the generation; what was generated stays, and the exit code is 130. A second Ctrl-C ends the program
at once.";

/// Generate text: continue a prompt, or answer it with --chat
// Aliases are llama.cpp's names where those differ.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct GenerateArgs {
    /// The prompt; without it or with `-`, standard input less its last line break
    #[arg(value_name = "PROMPT")]
    prompt: Option<String>,

    /// The prompt, as a flag
    #[arg(
        long = "prompt",
        short = 'p',
        value_name = "TEXT",
        conflicts_with = "prompt",
        allow_hyphen_values = true
    )]
    prompt_by_name: Option<String>,

    /// Read the prompt from a file, less its last line break
    #[arg(long, short, value_name = "FILE", conflicts_with_all = ["prompt", "prompt_by_name"])]
    file: Option<PathBuf>,

    /// Answer the prompt as a message instead of continuing it
    #[arg(long)]
    chat: bool,

    /// System message
    #[arg(long, value_name = "TEXT", requires = "chat")]
    system: Option<String>,

    /// Maximum number of tokens to generate; -1 = no limit
    #[arg(long, short = 'n', visible_alias = "n-predict", value_name = "N", default_value = "256",
        value_parser = args::tokens_or_all, allow_negative_numbers = true)]
    max_tokens: OrDefault<usize>,

    #[command(flatten)]
    generation: GenerationArgs,

    #[command(flatten)]
    choices: ChoiceArgs,

    #[command(flatten)]
    recall: RecallArgs,
}

pub(crate) fn run(args: &GenerateArgs, json: bool) -> Result<ExitCode> {
    let choices = Choices::new(&args.choices, args.generation.sampling.temperature)?;
    let (request, tools) = request(args, json)?;
    answer(request.with_logprobs(args.choices.logprobs), tools.as_ref(), choices, &args.generation, json)
}

/// Loads the model, generates the choices and prints them.
///
/// # Errors
/// Errors of loading, of the engine and of standard output.
pub(super) fn answer(
    mut request: GenerateRequest,
    tools: Option<&Tools>,
    choices: Choices,
    generation: &GenerationArgs,
    json: bool,
) -> Result<ExitCode> {
    choices.check_device(&generation.compute.device)?;
    let defaults = Defaults { gpu_sequences: Some(choices.gpu_sequences()), ..Defaults::default() };
    let model = load::generator(generation, defaults, None)?;
    let codec = model.backend().codec();
    let breakers = generation.sampling.breakers();
    request.sampling = args::with_breakers(request.sampling, &breakers, codec.tokenizer())?;
    let cancel = signal::cancel_on_interrupt();
    let sink = if json { TextSink::nowhere() } else { TextSink::stdout() };
    let mut shown = Shown {
        sink,
        thinking: generation.thinking.view(),
        codec,
        logprobs: request.logprobs.is_some() && !json,
    };
    let completions = choices.generate(&model, &request, &cancel, &mut shown)?;
    let reader = shown.sink.finish()?;
    let load_ms = model.load_time().as_secs_f64() * 1e3;
    if json {
        let contents = Contents {
            has_tools: tools.is_some(),
            drawn: generation.sampling.temperature > 0.0,
            ranked: choices.are_ranked(),
            logprobs: request.logprobs.map(|_| codec.tokenizer()),
        };
        output::write_json(&Document::new(&completions, load_ms, contents))?;
    }
    let at_terminal = !json && reader == Reader::Listening && io::stderr().is_terminal();
    if console::is_verbose() || (at_terminal && !console::is_quiet()) {
        output::note(&report(&completions, load_ms, model.gpu().map(|gpu| gpu.adapter.as_str())));
    }
    model.finish();
    let is_cut = completions.iter().any(|choice| choice.finish_reason == FinishReason::Cancelled);
    let interrupted = is_cut && reader == Reader::Listening;
    Ok(if interrupted { signal::exit_code() } else { ExitCode::SUCCESS })
}

/// Writes each call as a line of JSON behind the text.
fn show_calls(completion: &Completion, sink: &mut TextSink) -> Result<()> {
    for (at, call) in completion.tool_calls.iter().enumerate() {
        let starts_line = at > 0 || completion.content().is_empty() || completion.content().ends_with('\n');
        let line = output::json_line(&CallDocument::from(call))?;
        let separator = if starts_line { "" } else { "\n" };
        if sink.push(&format!("{separator}{line}")).is_break() {
            break;
        }
    }
    Ok(())
}

/// Builds the request from the flags; reads the prompt.
fn request(args: &GenerateArgs, json: bool) -> Result<(GenerateRequest, Option<Tools>)> {
    let argument = args.prompt.as_deref().or(args.prompt_by_name.as_deref());
    let stdin_is_free = match &args.file {
        Some(path) => path.as_os_str() != "-",
        None => argument.is_some_and(|text| text != "-"),
    };
    let language = args.generation.output.language(stdin_is_free)?;
    let tools = args.generation.tools.read(stdin_is_free)?;
    if tools.is_some() && !args.chat {
        let reason = "tools belong to a conversation; add --chat".to_owned();
        return Err(Error::Output { flag: "--tools".to_owned(), reason });
    }
    let text = match &args.file {
        Some(path) => without_line_end(input::file_text(path)?),
        None => text_of(argument)?,
    };
    let prompt = if args.chat {
        let system = args.recall.system(args.system.as_deref(), &text, json)?;
        message(system.as_deref(), text)?
    } else {
        args.recall.refuse("items stand in the system message of a conversation; add --chat")?;
        Prompt::Text(not_empty(text)?)
    };
    Ok((request_for(prompt, args.max_tokens.0, &args.generation, language, tools.as_ref()), tools))
}

/// Text of an argument; if absent or `-`, standard input without its last line break.
///
/// # Errors
/// Standard input that cannot be read or is not UTF-8.
pub(super) fn text_of(argument: Option<&str>) -> Result<String> {
    let text = input::text_or_stdin(argument)?;
    Ok(if argument.is_none_or(|prompt| prompt == "-") { without_line_end(text) } else { text })
}

/// Removes a final line break: `echo` and editors add one that is not part of the prompt.
fn without_line_end(mut text: String) -> String {
    let kept =
        text.strip_suffix('\n').map_or(text.len(), |line| line.strip_suffix('\r').unwrap_or(line).len());
    text.truncate(kept);
    text
}

fn not_empty(text: String) -> Result<String> {
    if text.is_empty() { Err(Error::EmptyPrompt) } else { Ok(text) }
}

/// Chat prompt of one user message, after the system prompt if there is one.
///
/// # Errors
/// An empty message.
pub(super) fn message(system: Option<&str>, text: String) -> Result<Prompt> {
    let system = system.iter().map(|text| Message::new("system", *text));
    let messages = system.chain([Message::new("user", not_empty(text)?)]).collect();
    Ok(Prompt::Chat { messages, tools: None })
}

/// Builds the request for a prompt with the flags of `generation`.
pub(super) fn request_for(
    prompt: Prompt,
    max_tokens: Option<usize>,
    generation: &GenerationArgs,
    language: Option<OutputLanguage>,
    tools: Option<&Tools>,
) -> GenerateRequest {
    let request = GenerateRequest::new(prompt)
        .with_max_tokens(max_tokens)
        .with_sampling(generation.sampling.params())
        .with_stop(generation.stop.clone())
        .with_constraint(language.map(|language| language.constraint));
    let request = generation.thinking.apply(request);
    match tools {
        Some(tools) => tools.apply(request, true),
        None => request,
    }
}

/// One line with load time, speed and finish reason, for the user.
fn report(completions: &[Completion], load_ms: f64, gpu: Option<&str>) -> String {
    let mut parts = vec![format!("loaded in {load_ms:.0} ms")];
    parts.extend(gpu.map(str::to_owned));
    let [completion] = completions else {
        let tokens = completions.iter().map(|choice| choice.tokens.len()).sum();
        parts.push(output::counted(completions.len(), "choice"));
        parts.push(output::counted(tokens, "token"));
        return format!("[{}]", parts.join(", "));
    };
    if let Some(speed) = completion.timings.prefill_tok_s {
        let computed = completion.prompt_tokens - completion.cached_tokens;
        parts.push(format!("{computed} of {} prompt tokens at {speed:.1}/s", completion.prompt_tokens));
    }
    if let Some(speed) = completion.timings.decode_tok_s {
        parts.push(format!("{} tokens at {speed:.1}/s", completion.tokens.len()));
    }
    if completion.drafted_tokens > 0 {
        parts
            .push(format!("{} of {} drafts accepted", completion.accepted_tokens, completion.drafted_tokens));
    }
    if completion.reasoning_tokens > 0 {
        parts.push(format!("{} of them thinking", completion.reasoning_tokens));
    }
    parts.push(completion.finish_reason.name().to_owned());
    format!("[{}]", parts.join(", "))
}
