//! Measures learning on held-out text and prints tables; a JSON document goes to the file of
//! `--json`. `cargo xtask bench sona` runs it.
//!
//! ```text
//! sona MODEL.gguf --general FILE [--domain NAME=TRAIN.txt:TEST.txt]...
//!     [--tools TRAIN.jsonl:TEST.jsonl]
//!     [--parts instant,background,continual,tools,ratings,deep,cost,tuning]
//!     [--steps 200] [--lessons 96] [--measured 20480] [--seeds 1] [--json FILE]
//! ```
//!
//! `instant`: the training text is streamed once as corrected answers; perplexity of the domain's
//! test text and of the general text before and after; time of updates. `background`: the same with
//! consolidation. `continual`: `lessons` lessons of each domain, one domain after the other, with
//! and without what protects former ones. `ratings`: samples are
//! rated by one property of their text. `tools`: exact calls of tools that were not taught, after
//! corrected calls. `deep`: fine-tuning by back-propagation. `cost`: decode with learning beside
//! decode without. `tuning`: a load that shifts, with fixed settings and with the tuner. Settings
//! are those of the library.

mod background;
mod cost;
mod deep;
mod instant;
mod ratings;
mod tools;
mod tuning;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use ruvllm::crates::text::tokenizer::EncodeOptions;
use ruvllm::{Engine, EngineOptions, KvPolicy, LearningOptions, TokenId};
use serde_json::{Value, json};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Parts of the measurement.
const PARTS: [&str; 8] = ["instant", "background", "continual", "tools", "ratings", "deep", "cost", "tuning"];
/// Tokens of a window of training and of measuring.
const WINDOW: usize = 512;

/// A domain: texts to learn from and to measure.
struct Domain {
    name: String,
    train: PathBuf,
    test: PathBuf,
}

struct Settings {
    model: PathBuf,
    general: PathBuf,
    domains: Vec<Domain>,
    /// Training and test calls.
    tools: Option<(PathBuf, PathBuf)>,
    parts: Vec<String>,
    steps: u64,
    /// Lessons of each domain of the continual part.
    lessons: usize,
    /// Most tokens of a measured text.
    measured: usize,
    seeds: u64,
    json: Option<PathBuf>,
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
        let model =
            words.next().ok_or("usage: sona MODEL.gguf --general FILE [--domain NAME=TRAIN:TEST]...")?;
        let mut settings = Self {
            model: model.into(),
            general: PathBuf::new(),
            domains: Vec::new(),
            tools: None,
            parts: PARTS.map(str::to_owned).to_vec(),
            steps: 200,
            lessons: 96,
            measured: 20_480,
            seeds: 1,
            json: None,
        };
        let pair = |value: &str| -> Result<(PathBuf, PathBuf)> {
            let (train, test) =
                value.split_once(':').ok_or_else(|| format!("{value}: expected TRAIN:TEST"))?;
            Ok((train.into(), test.into()))
        };
        while let Some(word) = words.next() {
            let value = words.next().ok_or_else(|| format!("{word} without a value"))?;
            match word.as_str() {
                "--general" => settings.general = value.into(),
                "--domain" => {
                    let (name, files) = value.split_once('=').ok_or("--domain NAME=TRAIN.txt:TEST.txt")?;
                    let (train, test) = pair(files)?;
                    settings.domains.push(Domain { name: name.to_owned(), train, test });
                }
                "--tools" => settings.tools = Some(pair(&value)?),
                "--parts" => settings.parts = value.split(',').map(str::to_owned).collect(),
                "--steps" => settings.steps = value.parse()?,
                "--lessons" => settings.lessons = value.parse()?,
                "--measured" => settings.measured = value.parse()?,
                "--seeds" => settings.seeds = value.parse()?,
                "--json" => settings.json = Some(value.into()),
                _ => return Err(format!("there is no {word}").into()),
            }
        }
        if let Some(unknown) = settings.parts.iter().find(|part| !PARTS.contains(&part.as_str())) {
            return Err(format!("there is no part {unknown}; {}", PARTS.join(", ")).into());
        }
        if settings.general.as_os_str().is_empty() {
            return Err("--general FILE: text of which as little as possible is to be forgotten".into());
        }
        Ok(settings)
    }

    fn has(&self, part: &str) -> bool {
        self.parts.iter().any(|of| of == part)
    }
}

fn run(settings: &Settings) -> Result<()> {
    let mut document = serde_json::Map::new();
    if settings.has("instant") {
        document.insert("instant".to_owned(), instant::run(settings)?);
    }
    if settings.has("background") {
        document.insert("background".to_owned(), background::domains(settings)?);
    }
    if settings.has("continual") {
        document.insert("continual".to_owned(), background::continual(settings)?);
    }
    if settings.has("tools")
        && let Some((train, test)) = &settings.tools
    {
        document.insert("tools".to_owned(), tools::run(settings, train, test)?);
    }
    if settings.has("ratings") {
        document.insert("ratings".to_owned(), ratings::run(settings)?);
    }
    if settings.has("deep") {
        document.insert("deep".to_owned(), deep::run(settings)?);
    }
    if settings.has("cost") {
        document.insert("cost".to_owned(), cost::run(settings)?);
    }
    if settings.has("tuning") {
        document.insert("tuning".to_owned(), tuning::run(settings)?);
    }
    if let Some(path) = &settings.json {
        std::fs::write(path, serde_json::to_string_pretty(&Value::Object(document))? + "\n")?;
    }
    Ok(())
}

/// Tokens kept at each position, as the library does.
fn candidates() -> usize {
    LearningOptions::default().candidates
}

/// The engine, with exact keys and values.
fn engine(settings: &Settings) -> Result<Engine> {
    let options = EngineOptions::default().with_kv("f32".parse::<KvPolicy>()?);
    Ok(Engine::open_with(settings.model.as_path(), &options)?)
}

fn encode(engine: &Engine, path: &Path) -> Result<Vec<TokenId>> {
    let options = EncodeOptions { add_special: false, parse_special: true };
    let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(engine.tokenizer().encode(&text, options)?)
}

fn perplexity(engine: &Engine, tokens: &[TokenId], measured: usize) -> Result<f64> {
    let go_on = &mut |_, _| ControlFlow::Continue(());
    Ok(engine.perplexity(tokens, WINDOW, Some(measured), go_on)?.perplexity)
}

/// Median and 99th percentile in milliseconds.
fn percentiles(times: &mut [Duration]) -> [f64; 2] {
    times.sort_unstable();
    [0.5, 0.99].map(|share| {
        let index = ((times.len().max(1) - 1) as f64 * share) as usize;
        times.get(index).copied().unwrap_or(Duration::ZERO).as_secs_f64() * 1e3
    })
}

/// Middle value, the upper one of two; 0 without any.
fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

/// Relative change in percent.
fn percent(before: f64, after: f64) -> f64 {
    100.0 * (after / before - 1.0)
}

/// Columns of a domain's and the general perplexity before, after, and their changes.
fn columns(before: [f64; 2], after: [f64; 2]) -> String {
    let of = |at: usize| {
        format!("{:.3} | {:.3} | {:+.2} %", before[at], after[at], percent(before[at], after[at]))
    };
    [of(0), of(1)].join(" | ")
}

/// A perplexity before and after.
fn change(before: f64, after: f64) -> Value {
    json!({ "before": before, "after": after, "percent": percent(before, after) })
}
