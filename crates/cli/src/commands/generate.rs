//! `ruvllm generate`: continue a text or answer a message.

use std::io::{self, IsTerminal, Write};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use ruvllm::{
    Completion, EngineOptions, FinishReason, GenerateRequest, KvPolicy, KvQuality, Message, PrefixCaching,
    Prompt, SamplingParams,
};
use serde::Serialize;

use super::load;
use crate::args::{self, ComputeArgs, ModelArgs};
use crate::error::{Error, Result};
use crate::output::Reader;
use crate::{input, output, signal};

const HELP: &str = "\
The text appears as it is generated, without the prompt. With --chat the prompt is a message to the model, put
into the form that the model's chat template gives.

JSON: {text, tokens, prompt_tokens, cached_tokens, finish_reason, seed, timings: {load_ms, ttft_ms, prefill_tok_s,
decode_tok_s}}; tokens are the generated ids, prompt_tokens counts those of the prompt, finish_reason is stop,
length or cancelled, cached_tokens is how much of the prompt the prefix cache knew, and seed is there when tokens were
drawn (temperature above 0). With a quality target (--kv tiered:target=0.02) there is kv_quality: {hot_tokens, error,
samples}, how many tokens stay hot, the error that was estimated then, and how often it was sampled.

Examples:
  ruvllm generate --chat \"Tell me a story about a turtle.\"
  ruvllm generate --temperature 0 -n 64 \"Once upon a time\"
  ruvllm generate --chat --json < question.txt

With --prefix-cache on, later runs with the same model and --kv compute only where their prompt parts from earlier ones.
The files hold what the prompts say.

Ctrl-C stops the generation; what was generated stays, and the exit code is 130. A second Ctrl-C ends the program
at once.";

/// Continue a text or answer a message
// The hidden aliases are the names of llama.cpp where they differ.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct GenerateArgs {
    /// The prompt; without it or with `-`, standard input less its last line break
    prompt: Option<String>,

    /// Answer the prompt as a message instead of continuing it
    #[arg(long)]
    chat: bool,

    /// Instructions that come before the message
    #[arg(long, value_name = "TEXT", requires = "chat")]
    system: Option<String>,

    /// Most tokens to generate; 0 generates none
    #[arg(long, short = 'n', alias = "n-predict", value_name = "N", default_value = "256", value_parser = args::count)]
    max_tokens: usize,

    /// Stop before this text; repeatable
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,

    #[arg(long, value_name = "POLICY", help = args::KV_HELP, default_value = "f16", value_parser = args::kv_policy)]
    kv: KvPolicy,

    /// Most tokens of prompt and output [default: the model's, up to 4096]
    #[arg(long, short, alias = "ctx-size", value_name = "N", value_parser = args::positive)]
    context: Option<usize>,

    #[command(flatten)]
    model: ModelArgs,

    #[command(flatten)]
    compute: ComputeArgs,

    #[command(flatten)]
    prefixes: PrefixArgs,

    #[command(flatten)]
    sampling: SamplingArgs,
}

/// Whether later runs need not compute the beginning of their prompts again.
#[derive(Debug, Args)]
#[command(next_help_heading = "Prefix cache")]
struct PrefixArgs {
    /// Keep what prompts that begin alike have in common, in files
    #[arg(long, value_enum, value_name = "on|off", default_value = "off", hide_possible_values = true)]
    prefix_cache: Switch,

    /// Folder of those files [default: ruvllm/prefixes in the user's cache folder]
    #[arg(long, value_name = "DIR")]
    prefix_dir: Option<PathBuf>,

    /// Most bytes of those files; the least recently used go first
    #[arg(long, value_name = "BYTES", default_value = "4GiB", value_parser = args::bytes)]
    prefix_limit: usize,
}

/// On or off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Switch {
    On,
    Off,
}

impl PrefixArgs {
    fn caching(&self) -> Result<PrefixCaching> {
        if self.prefix_cache == Switch::Off {
            return Ok(PrefixCaching::Off);
        }
        let path = match &self.prefix_dir {
            Some(path) => path.clone(),
            None => cache_folder().ok_or(Error::NoCacheFolder)?.join("ruvllm").join("prefixes"),
        };
        Ok(PrefixCaching::Folder { path, limit_bytes: self.prefix_limit as u64 })
    }
}

/// The folder for what a user's programs can do without, as the XDG base directories say.
fn cache_folder() -> Option<PathBuf> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")))
}

/// How the next token is chosen.
#[derive(Debug, Args)]
#[command(next_help_heading = "Sampling")]
struct SamplingArgs {
    /// Randomness; 0 always takes the likeliest token
    #[arg(long, alias = "temp", value_name = "T", default_value = "0.8", value_parser = args::non_negative)]
    temperature: f32,

    /// Choose among the K likeliest tokens; 0 = off
    #[arg(long, value_name = "K", default_value = "40", value_parser = args::count)]
    top_k: usize,

    /// Choose among the likeliest tokens that together reach P; 1 = off
    #[arg(long, value_name = "P", default_value = "0.95", value_parser = args::fraction)]
    top_p: f32,

    /// Leave out tokens below P times the likeliest one; 0 = off
    #[arg(long, value_name = "P", default_value = "0.05", value_parser = args::fraction)]
    min_p: f32,

    /// Choose among the most typical tokens up to P; 1 = off
    #[arg(long, value_name = "P", default_value = "1", value_parser = args::fraction)]
    typical_p: f32,

    /// Make recent tokens less likely by this factor; 1 = off
    #[arg(long, value_name = "X", default_value = "1", value_parser = args::above_zero)]
    repeat_penalty: f32,

    /// How many recent tokens the penalties look at
    #[arg(long, value_name = "N", default_value = "64", value_parser = args::count)]
    repeat_last_n: usize,

    /// Subtract X from scores of recent tokens; 0 = off
    #[arg(long, value_name = "X", default_value = "0", value_parser = args::finite, allow_negative_numbers = true)]
    presence_penalty: f32,

    /// The same for each time the token occurs; 0 = off
    #[arg(long, value_name = "X", default_value = "0", value_parser = args::finite, allow_negative_numbers = true)]
    frequency_penalty: f32,

    /// Add VALUE to a token's score, -inf forbids it; repeatable
    #[arg(long, value_name = "ID=VALUE", value_parser = args::logit_bias)]
    logit_bias: Vec<(u32, f32)>,

    /// Makes the choices repeatable [default: another one each time]
    #[arg(long, short, value_name = "N")]
    seed: Option<u64>,
}

impl SamplingArgs {
    fn params(&self) -> SamplingParams {
        SamplingParams {
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            typical_p: self.typical_p,
            repeat_penalty: self.repeat_penalty,
            repeat_last_n: self.repeat_last_n,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            logit_bias: self.logit_bias.iter().copied().collect(),
            seed: self.seed,
        }
    }
}

/// The JSON document.
#[derive(Serialize)]
struct Document<'a> {
    text: &'a str,
    tokens: &'a [u32],
    prompt_tokens: usize,
    cached_tokens: usize,
    finish_reason: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    seed: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    kv_quality: Option<KvQualityDocument>,
    timings: TimingsDocument,
}

/// What became of a quality target.
#[derive(Serialize)]
struct KvQualityDocument {
    hot_tokens: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<f32>,
    samples: usize,
}

/// Timings of the JSON document; what was not measured is absent.
#[derive(Serialize)]
struct TimingsDocument {
    load_ms: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    ttft_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prefill_tok_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    decode_tok_s: Option<f64>,
}

pub(crate) fn run(args: &GenerateArgs, json: bool) -> Result<ExitCode> {
    let request = request(args)?;
    let options = EngineOptions {
        context: args.context,
        prefixes: args.prefixes.caching()?,
        ..args.compute.options(args.kv)
    };
    let engine = load::engine(&args.model, options)?;
    let model_context = engine.config().context_length;
    if let Some(asked) = args.context.filter(|asked| *asked > model_context) {
        return Err(Error::ContextTooLarge { asked, model_context });
    }
    let cancel = signal::cancel_on_interrupt();
    let mut sink = Sink { streams: !json, failure: None, reader_left: false, ends_line: true };
    let completion = engine.generate(&request, &cancel, &mut |text| sink.push(text))?;
    if let Some(error) = sink.failure {
        return Err(error);
    }
    for warning in engine.take_prefix_warnings() {
        output::warn(&warning);
    }
    let load_ms = engine.load_time().as_secs_f64() * 1e3;
    if json {
        output::write_json(&document(&completion, load_ms, args.sampling.temperature > 0.0))?;
    } else if !sink.reader_left {
        if !sink.ends_line {
            output::write_text("\n")?;
        }
        report(&completion, load_ms);
    }
    let interrupted = completion.finish_reason == FinishReason::Cancelled && !sink.reader_left;
    Ok(if interrupted { ExitCode::from(signal::INTERRUPTED) } else { ExitCode::SUCCESS })
}

/// Where generated text goes: to standard output piece by piece, or nowhere (the JSON document holds it).
struct Sink {
    streams: bool,
    failure: Option<Error>,
    reader_left: bool,
    /// Whether the terminal's cursor is at the start of a line.
    ends_line: bool,
}

impl Sink {
    /// Takes a piece of text; breaks when there is nobody to read the next one.
    fn push(&mut self, text: &str) -> ControlFlow<()> {
        if !self.streams || text.is_empty() {
            return ControlFlow::Continue(());
        }
        self.ends_line = text.ends_with('\n');
        match output::write_text(text) {
            Ok(Reader::Listening) => return ControlFlow::Continue(()),
            Ok(Reader::Gone) => self.reader_left = true,
            Err(error) => self.failure = Some(error),
        }
        ControlFlow::Break(())
    }
}

/// The engine's request for the command line, with the prompt read.
fn request(args: &GenerateArgs) -> Result<GenerateRequest> {
    let mut text = input::text_or_stdin(args.prompt.as_deref())?;
    if args.prompt.as_deref().is_none_or(|prompt| prompt == "-") {
        // `echo` and editors end a file with a line break that is not part of the prompt.
        let kept =
            text.strip_suffix('\n').map_or(text.len(), |line| line.strip_suffix('\r').unwrap_or(line).len());
        text.truncate(kept);
    }
    if text.is_empty() {
        return Err(Error::EmptyPrompt);
    }
    let prompt = if args.chat {
        let system = args.system.iter().map(|text| Message::new("system", text.as_str()));
        let messages = system.chain([Message::new("user", text)]).collect();
        Prompt::Chat { messages, tools: None }
    } else {
        Prompt::Text(text)
    };
    Ok(GenerateRequest {
        max_tokens: Some(args.max_tokens),
        sampling: args.sampling.params(),
        stop: args.stop.clone(),
        ..GenerateRequest::new(prompt)
    })
}

fn document(completion: &Completion, load_ms: f64, drawn: bool) -> Document<'_> {
    Document {
        text: &completion.text,
        tokens: &completion.tokens,
        prompt_tokens: completion.prompt_tokens,
        cached_tokens: completion.cached_tokens,
        finish_reason: completion.finish_reason.name(),
        seed: drawn.then_some(completion.seed),
        kv_quality: completion.kv_quality.map(|KvQuality { hot_tokens, error, samples }| KvQualityDocument {
            hot_tokens,
            error,
            samples,
        }),
        timings: TimingsDocument {
            load_ms,
            ttft_ms: completion.timings.ttft_ms,
            prefill_tok_s: completion.timings.prefill_tok_s,
            decode_tok_s: completion.timings.decode_tok_s,
        },
    }
}

/// A line about the speed for a person at a terminal.
fn report(completion: &Completion, load_ms: f64) {
    let mut stderr = io::stderr().lock();
    if !stderr.is_terminal() {
        return;
    }
    let mut parts = vec![format!("loaded in {load_ms:.0} ms")];
    if let Some(speed) = completion.timings.prefill_tok_s {
        let computed = completion.prompt_tokens - completion.cached_tokens;
        parts.push(format!("{computed} of {} prompt tokens at {speed:.1}/s", completion.prompt_tokens));
    }
    if let Some(speed) = completion.timings.decode_tok_s {
        parts.push(format!("{} tokens at {speed:.1}/s", completion.tokens.len()));
    }
    parts.push(completion.finish_reason.name().to_owned());
    // The generated text is out; a terminal that is gone now changes nothing.
    let _ = writeln!(stderr, "[{}]", parts.join(", "));
}
