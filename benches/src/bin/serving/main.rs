//! Load generator for servers with `/v1/completions`: tokens per second, time to the first
//! token and time between tokens, of concurrent streams; servers take turns within a run. A table
//! goes to standard output, a JSON document to the file of `--json`.
//!
//! ```text
//! serving --server ruvllm=http://127.0.0.1:8080 --server llama=http://127.0.0.1:8081
//!     [--key KEY] [--model NAME] [--streams 1,4,16,64] [--prompts short,shared] [--requests 2]
//!     [--tokens 64] [--rounds 3] [--end-tokens 0,2] [--cold] [--overhead SECONDS] [--json FILE]
//!     [--soak MINUTES --pid PID [--idle CONNECTIONS] [--rate CALLS_PER_SECOND]]
//!     [--connections COUNT --pid PID]
//! serving --program ruvllm --endurance 10000 [--streams 32] [--program-model ARGUMENTS]
//!     [--program-serve ARGUMENTS] [--json FILE]
//! ```
//!
//! Every stream is a thread with a connection of its own that sends its requests one after
//! another. `shared` prompts begin with the same 1,000 tokens; before the first measurement of a
//! server one request fills its prefix cache, unless `--cold` is given. `--overhead` measures
//! `GET /health` and requests of one token instead, alone and beside each number of streams.
//! `--soak` makes a mix of calls, some of which are cancelled or refused, and samples the memory of
//! the first server's process. `--connections` opens so many idle ones and does the same.
//!
//! `--endurance` starts a server of its own, `PROGRAM serve` with both lists of arguments (divided
//! by spaces; those of the model and device are for `PROGRAM generate` too), sends so many requests
//! from so many clients and samples memory of process and GPU. Three greedy texts are compared with
//! those of `generate`, before and after.

mod endurance;
mod http;
mod idle;
mod load;
mod report;
mod soak;

use std::fmt::Write as _;
use std::process::ExitCode;
use std::str::FromStr;

use endurance::Endurance;
use load::{Load, Server};
use serde_json::{Value, json};
use soak::Soak;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Sentences of a shared prefix, which have about 1,000 tokens.
const SENTENCES: usize = 72;

/// Kind of prompts.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Prompt {
    /// Some words, different ones for each request.
    Short,
    /// The same 1,000 tokens, then words of its own.
    Shared,
}

impl Prompt {
    fn name(self) -> &'static str {
        match self {
            Self::Short => "short",
            Self::Shared => "shared",
        }
    }

    /// Text of the request with this number.
    pub(crate) fn text(self, round: usize, number: usize) -> String {
        let own = format!("Tell story {number} of book {round}.");
        match self {
            Self::Short => own,
            Self::Shared => {
                const PLACES: [&str; 7] = ["river", "hill", "town", "field", "harbour", "mill", "forest"];
                let mut text = String::new();
                for at in 0..SENTENCES {
                    let (from, to) = (PLACES[at % 7], PLACES[(at * 3 + at / 7) % 7]);
                    let _ = write!(text, "On day {at} they walked from the {from} to the {to}. ");
                }
                text + &own
            }
        }
    }
}

impl FromStr for Prompt {
    type Err = String;

    fn from_str(name: &str) -> std::result::Result<Self, String> {
        match name {
            "short" => Ok(Self::Short),
            "shared" => Ok(Self::Shared),
            _ => Err(format!("unknown prompts {name:?}; there are short, shared")),
        }
    }
}

/// Settings of a run.
struct Settings {
    servers: Vec<Server>,
    streams: Vec<usize>,
    prompts: Vec<Prompt>,
    requests: usize,
    tokens: usize,
    rounds: usize,
    end_tokens: Vec<u32>,
    cold: bool,
    overhead: Option<f64>,
    soak: Option<Soak>,
    /// Idle connections and the process that is watched.
    connections: Option<(usize, u32)>,
    endurance: Option<Endurance>,
    json: Option<String>,
}

fn main() -> ExitCode {
    match Settings::parse(std::env::args().skip(1)).and_then(|settings| run(&settings)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

impl Settings {
    fn parse(mut words: impl Iterator<Item = String>) -> Result<Self> {
        let mut settings = Self {
            servers: Vec::new(),
            streams: vec![1, 4, 16, 64],
            prompts: vec![Prompt::Short, Prompt::Shared],
            requests: 2,
            tokens: 64,
            rounds: 3,
            end_tokens: vec![0, 2],
            cold: false,
            overhead: None,
            soak: None,
            connections: None,
            endurance: None,
            json: None,
        };
        let mut endurance = Endurance {
            program: String::new(),
            model: Vec::new(),
            serve: Vec::new(),
            requests: 0,
            clients: 0,
        };
        let mut soak = Soak { minutes: 0.0, pid: 0, idle: 0, rate: 0.0 };
        let mut connections = 0;
        let (mut key, mut model) = (String::new(), "base".to_owned());
        while let Some(word) = words.next() {
            if word == "--cold" {
                settings.cold = true;
                continue;
            }
            let value = words.next().ok_or_else(|| format!("{word} without a value"))?;
            match word.as_str() {
                "--server" => {
                    let (name, url) = value.split_once('=').ok_or("--server NAME=URL")?;
                    let (name, url) = (name.to_owned(), url.to_owned());
                    settings.servers.push(Server { name, url, key: String::new(), model: String::new() });
                }
                "--key" => key = value,
                "--model" => model = value,
                "--streams" => settings.streams = list(&value)?,
                "--prompts" => settings.prompts = list(&value)?,
                "--requests" => settings.requests = value.parse()?,
                "--tokens" => settings.tokens = value.parse()?,
                "--rounds" => settings.rounds = value.parse()?,
                "--end-tokens" => settings.end_tokens = list(&value)?,
                "--overhead" => settings.overhead = Some(value.parse()?),
                "--soak" => soak.minutes = value.parse()?,
                "--pid" => soak.pid = value.parse()?,
                "--idle" => soak.idle = value.parse()?,
                "--connections" => connections = value.parse()?,
                "--rate" => soak.rate = value.parse()?,
                "--program" => endurance.program = value,
                "--program-model" => endurance.model = words_of(&value),
                "--program-serve" => endurance.serve = words_of(&value),
                "--endurance" => endurance.requests = value.parse()?,
                "--json" => settings.json = Some(value),
                _ => return Err(format!("unknown flag {word}; the head of the source lists all").into()),
            }
        }
        for server in &mut settings.servers {
            (server.key, server.model) = (key.clone(), model.clone());
        }
        settings.connections = (connections > 0).then_some((connections, soak.pid));
        settings.soak = (soak.minutes > 0.0).then_some(soak);
        if endurance.requests > 0 {
            endurance.clients = settings.streams[0];
            settings.endurance = Some(endurance);
            return Ok(settings);
        }
        if settings.servers.is_empty() { Err("no --server NAME=URL".into()) } else { Ok(settings) }
    }

    fn load(&self, streams: usize, prompt: Prompt, round: usize) -> Load {
        let (requests, tokens) = (self.requests, self.tokens);
        Load { streams, requests, tokens, prompt, end_tokens: self.end_tokens.clone(), round }
    }
}

fn words_of(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

fn list<T: FromStr>(text: &str) -> Result<Vec<T>>
where
    T::Err: std::fmt::Display,
{
    text.split(',').map(|word| word.parse().map_err(|error| format!("{word}: {error}").into())).collect()
}

fn run(settings: &Settings) -> Result<()> {
    if let Some(endurance) = &settings.endurance {
        let document = endurance::run(endurance)?;
        println!("{}", serde_json::to_string_pretty(&document)?);
        return write_json(settings, &document);
    }
    if let Some(soak) = settings.soak {
        let document = soak::run(&settings.servers[0], soak)?;
        return write_json(settings, &document);
    }
    if let Some((connections, pid)) = settings.connections {
        let document = idle::run(&settings.servers[0], pid, connections)?;
        return write_json(settings, &document);
    }
    if !settings.cold {
        for (server, prompt) in
            settings.servers.iter().flat_map(|s| settings.prompts.iter().map(move |p| (s, *p)))
        {
            let warm = Load { requests: 1, tokens: 2, ..settings.load(1, prompt, 0) };
            load::run(server, &warm).map_err(|error| format!("{}: {error}", server.name))?;
        }
    }
    let results = match settings.overhead {
        Some(seconds) => measure_overhead(settings, seconds)?,
        None => measure_load(settings)?,
    };
    let document = json!({
        "requests": settings.requests, "tokens": settings.tokens, "cold": settings.cold, "results": results,
    });
    write_json(settings, &document)
}

fn write_json(settings: &Settings, document: &Value) -> Result<()> {
    if let Some(path) = &settings.json {
        std::fs::write(path, serde_json::to_string_pretty(document)? + "\n")?;
    }
    Ok(())
}

/// Throughput and latencies; a table line for each server, number of streams and kind of prompt.
fn measure_load(settings: &Settings) -> Result<Vec<Value>> {
    println!("| prompts | streams | server | tokens/s | TTFT p50, ms | p99 | between tokens p50, ms | p99 |");
    println!("|---|---:|---|---:|---:|---:|---:|---:|");
    let mut results = Vec::new();
    for &prompt in &settings.prompts {
        for &streams in &settings.streams {
            let mut rounds = vec![Vec::new(); settings.servers.len()];
            for round in 0..settings.rounds {
                for (server, found) in settings.servers.iter().zip(&mut rounds) {
                    let load = settings.load(streams, prompt, 1 + round);
                    let measured =
                        load::run(server, &load).map_err(|error| format!("{}: {error}", server.name))?;
                    found.push(report::numbers(&measured));
                }
            }
            for (server, found) in settings.servers.iter().zip(rounds) {
                let cell = |pointer| report::spread(&found, pointer);
                println!(
                    "| {} | {streams} | {} | {} | {} | {} | {} | {} |",
                    prompt.name(),
                    server.name,
                    cell("/tokens_per_s"),
                    cell("/ttft_ms/p50"),
                    cell("/ttft_ms/p99"),
                    cell("/inter_token_ms/p50"),
                    cell("/inter_token_ms/p99"),
                );
                results.push(json!({
                    "server": server.name, "prompts": prompt.name(), "streams": streams, "rounds": found,
                }));
            }
        }
    }
    Ok(results)
}

/// Overhead of HTTP, alone and beside each number of streams.
fn measure_overhead(settings: &Settings, seconds: f64) -> Result<Vec<Value>> {
    println!("| streams | server | /health p50, ms | p99 | one token less its timings p50, ms | p99 |");
    println!("|---:|---|---:|---:|---:|---:|");
    let mut results = Vec::new();
    for streams in std::iter::once(0).chain(settings.streams.iter().copied()) {
        let mut rounds = vec![Vec::new(); settings.servers.len()];
        for round in 0..settings.rounds {
            for (server, found) in settings.servers.iter().zip(&mut rounds) {
                let load = settings.load(streams, Prompt::Short, 1 + round);
                let load = (streams > 0).then_some(&load);
                let measured = load::overhead(server, load, seconds)
                    .map_err(|error| format!("{}: {error}", server.name))?;
                found.push(report::overhead_numbers(&measured));
            }
        }
        for (server, found) in settings.servers.iter().zip(rounds) {
            let cell = |pointer| report::spread(&found, pointer);
            println!(
                "| {streams} | {} | {} | {} | {} | {} |",
                server.name,
                cell("/health_ms/p50"),
                cell("/health_ms/p99"),
                cell("/one_token_ms/p50"),
                cell("/one_token_ms/p99"),
            );
            results.push(json!({ "server": server.name, "streams": streams, "rounds": found }));
        }
    }
    Ok(results)
}
