//! Command line.

use ruvllm::Precision;
use ruvllm::crates::adapters::Projection;

use crate::Failure;

/// Target modules of the adapters.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Modules {
    All,
    QueriesAndValues,
}

impl Modules {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::All => "all modules",
            Self::QueriesAndValues => "queries and values",
        }
    }

    pub(crate) fn projections(self) -> &'static [Projection] {
        use Projection::{AttentionOutput, Down, Gate, Key, Query, Up, Value};
        match self {
            Self::All => &[Query, Key, Value, AttentionOutput, Gate, Up, Down],
            Self::QueriesAndValues => &[Query, Value],
        }
    }
}

/// Settings of a run.
#[derive(Debug)]
pub(crate) struct Args {
    pub(crate) model: String,
    pub(crate) adapters: usize,
    pub(crate) files: usize,
    pub(crate) modules: Modules,
    pub(crate) rank: usize,
    pub(crate) hot: usize,
    pub(crate) warm: usize,
    pub(crate) precision: Precision,
    /// Exponent of the Zipf law; 0 = uniform.
    pub(crate) exponent: f64,
    pub(crate) in_flight: usize,
    /// Prompt tokens of a request; `new`: generated ones.
    pub(crate) prompt: usize,
    pub(crate) new: usize,
    pub(crate) seconds: f64,
    pub(crate) rounds: usize,
    pub(crate) replace_per_second: f64,
    /// KV budget in MiB.
    pub(crate) kv_budget: Option<usize>,
    pub(crate) threads: Option<usize>,
    pub(crate) check: bool,
}

impl Args {
    pub(crate) fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, Failure> {
        let mut args = Self {
            model: String::new(),
            adapters: 1000,
            files: 100,
            modules: Modules::All,
            rank: 8,
            hot: 100,
            warm: 1000,
            precision: Precision::Tiered,
            exponent: 1.0,
            in_flight: 16,
            prompt: 32,
            new: 32,
            seconds: 30.0,
            rounds: 3,
            replace_per_second: 0.0,
            kv_budget: None,
            threads: None,
            check: false,
        };
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
            match word.as_str() {
                "--adapters" => args.adapters = value()?.parse::<usize>()?.max(1),
                "--files" => args.files = value()?.parse::<usize>()?.max(1),
                "--modules" => args.modules = modules(&value()?)?,
                "--rank" => args.rank = value()?.parse::<usize>()?.max(1),
                "--hot" => args.hot = value()?.parse()?,
                "--warm" => args.warm = value()?.parse()?,
                "--precision" => args.precision = precision(&value()?)?,
                "--exponent" => args.exponent = value()?.parse()?,
                "--in-flight" => args.in_flight = value()?.parse::<usize>()?.max(1),
                "--prompt" => args.prompt = value()?.parse::<usize>()?.max(1),
                "--new" => args.new = value()?.parse::<usize>()?.max(2),
                "--seconds" => args.seconds = value()?.parse()?,
                "--rounds" => args.rounds = value()?.parse::<usize>()?.max(1),
                "--replace-per-second" => args.replace_per_second = value()?.parse()?,
                "--kv-budget" => args.kv_budget = Some(value()?.parse()?),
                "--threads" => args.threads = Some(value()?.parse()?),
                "--check" => args.check = true,
                other if other.starts_with('-') => return Err(format!("unknown option {other}").into()),
                other => args.model = other.into(),
            }
        }
        if args.model.is_empty() {
            return Err("usage: adapter-load MODEL [OPTIONS]; see the head of the source".into());
        }
        args.files = args.files.min(args.adapters);
        Ok(args)
    }
}

fn modules(text: &str) -> Result<Modules, Failure> {
    match text {
        "all" => Ok(Modules::All),
        "qv" => Ok(Modules::QueriesAndValues),
        other => Err(format!("unknown modules {other}: use all or qv").into()),
    }
}

fn precision(text: &str) -> Result<Precision, Failure> {
    match text {
        "tiered" => Ok(Precision::Tiered),
        "f16" => Ok(Precision::F16),
        "i8" => Ok(Precision::I8),
        other => Err(format!("unknown precision {other}: use tiered, f16 or i8").into()),
    }
}
