//! Command line.

use std::path::PathBuf;

use crate::Failure;
use crate::check::CHECK_CONTEXT;

/// Settings of a run.
#[derive(Debug)]
pub(crate) struct Args {
    pub(crate) model: PathBuf,
    pub(crate) adapter: Option<String>,
    pub(crate) software: bool,
    /// Depth in tokens of the second series.
    pub(crate) depth: usize,
    context: Option<usize>,
    /// Number of runs; the median is reported.
    pub(crate) runs: usize,
    /// Prompt tokens of a measurement; `tokens`: decoded tokens.
    pub(crate) prompt: usize,
    pub(crate) tokens: usize,
    pub(crate) check: bool,
    /// Threads of the engine.
    pub(crate) threads: Option<usize>,
    pub(crate) json: Option<PathBuf>,
}

impl Args {
    pub(crate) fn parse(words: impl Iterator<Item = String>) -> Result<Self, Failure> {
        let mut args = Self {
            model: PathBuf::new(),
            adapter: None,
            software: false,
            depth: 4096,
            context: None,
            runs: 5,
            prompt: 512,
            tokens: 64,
            check: true,
            threads: None,
            json: None,
        };
        let mut words = words.peekable();
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
            match word.as_str() {
                "--adapter" => args.adapter = Some(value()?),
                "--software" => args.software = true,
                "--depth" => args.depth = value()?.parse()?,
                "--context" => args.context = Some(value()?.parse()?),
                "--runs" => args.runs = value()?.parse::<usize>()?.max(1),
                "--prompt" => args.prompt = value()?.parse::<usize>()?.max(1),
                "--tokens" => args.tokens = value()?.parse::<usize>()?.max(2),
                "--no-check" => args.check = false,
                "--threads" => args.threads = Some(value()?.parse()?),
                "--json" => args.json = Some(value()?.into()),
                other if other.starts_with('-') => return Err(format!("unknown option {other}").into()),
                other => args.model = other.into(),
            }
        }
        if args.model.as_os_str().is_empty() {
            return Err("usage: gpu-run MODEL.gguf [options]; see the top of its source".into());
        }
        Ok(args)
    }

    /// Context length for the longest measurement.
    pub(crate) fn context(&self) -> usize {
        let longest = self.depth + self.prompt.max(self.tokens) + 32;
        self.context.unwrap_or(longest).max(CHECK_CONTEXT)
    }
}
