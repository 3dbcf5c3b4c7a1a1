//! Measurement plan: the tests of one model with one depth and one KV type, and their time limit.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::kv::Kv;
use super::model::ModelFacts;

/// A test and its number of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Test {
    /// Prefill of a prompt.
    Prefill(usize),
    /// Decode.
    Decode(usize),
}

impl Test {
    /// Parses `pp512` or `tg64`.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (kind, tokens) = text.split_at_checked(2)?;
        let tokens = tokens.parse().ok()?;
        match kind {
            "pp" => Some(Self::Prefill(tokens)),
            "tg" => Some(Self::Decode(tokens)),
            _ => None,
        }
    }
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Prefill(tokens) => write!(f, "pp{tokens}"),
            Self::Decode(tokens) => write!(f, "tg{tokens}"),
        }
    }
}

/// Tests of one model with one depth and one KV type. Each engine runs them as one command, so that
/// it loads the model and fills the cache once.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) model: PathBuf,
    /// Prompt lengths; none is 0.
    pub(super) prompt: Vec<usize>,
    /// Numbers of generated tokens; none is 0.
    pub(super) generate: Vec<usize>,
    pub(super) depth: usize,
    pub(super) threads: Vec<usize>,
    pub(super) kv: Kv,
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, depth {}, {} KV", self.model_name(), self.depth, self.kv.name())
    }
}

impl Plan {
    /// The model's file name without folders and extension.
    pub(super) fn model_name(&self) -> String {
        self.model.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned())
    }

    /// Absolute path of the model, because the programs run in the workspace root.
    pub(super) fn model_path(&self) -> PathBuf {
        absolute(&self.model)
    }

    /// Flags common to all programs, with one repetition.
    pub(super) fn common_args(&self) -> Vec<String> {
        [
            ("-p", list(&self.prompt)),
            ("-n", list(&self.generate)),
            ("-d", self.depth.to_string()),
            ("-t", list(&self.threads)),
            ("-r", "1".to_owned()),
        ]
        .into_iter()
        .flat_map(|(flag, value)| [flag.to_owned(), value])
        .collect()
    }

    /// Estimated duration of one round of this plan for one engine, before any measurement.
    pub(super) fn guess(&self, facts: &ModelFacts) -> Duration {
        // An average engine on one core of an average machine; the second core is free.
        const OPS_PER_S: f64 = 150e9;
        const BYTES_PER_S: f64 = 12e9;
        const START_S: f64 = 1.0;
        let prefill = |depth: usize, tokens: usize| facts.prefill_ops(tokens, depth) / OPS_PER_S;
        let decode = |tokens: usize| facts.decode_bytes(tokens, self.depth, self.kv) / BYTES_PER_S;
        let of_threads = |&threads: &usize| {
            let prompts: f64 = self.prompt.iter().map(|&tokens| prefill(self.depth, tokens)).sum();
            let generated: f64 = self.generate.iter().map(|&tokens| decode(tokens)).sum();
            (prompts + generated) / threads as f64
        };
        let load = START_S + facts.file_bytes as f64 / BYTES_PER_S;
        let seconds = load + prefill(0, self.depth) / 2.0 + self.threads.iter().map(of_threads).sum::<f64>();
        Duration::from_secs_f64(seconds)
    }
}

/// List argument of the programs: `1,2`, or `0` for none.
pub(super) fn list(values: &[usize]) -> String {
    if values.is_empty() {
        return "0".to_owned();
    }
    values.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
}

/// Absolute path, or `path` unchanged if the current folder is unknown.
pub(super) fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// `12 s`, `3 min 20 s` or `1 h 5 min`.
pub(super) fn readable(time: Duration) -> String {
    match time.as_secs() {
        seconds @ 0..60 => format!("{seconds} s"),
        seconds @ 60..3600 => format!("{} min {} s", seconds / 60, seconds % 60),
        seconds => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_have_their_usual_names() {
        assert_eq!(Test::parse("pp512"), Some(Test::Prefill(512)));
        assert_eq!(Test::parse("tg64"), Some(Test::Decode(64)));
        assert_eq!(Test::Decode(64).to_string(), "tg64");
        for text in ["", "p", "pp", "ppx", "xx5", "ü1"] {
            assert_eq!(Test::parse(text), None, "{text}");
        }
    }

    #[test]
    fn times_are_readable() {
        let of = |seconds| readable(Duration::from_secs(seconds));
        assert_eq!([of(59), of(61), of(3660)], ["59 s", "1 min 1 s", "1 h 1 min"]);
    }

    #[test]
    fn longer_tests_are_guessed_to_take_longer() {
        let facts = ModelFacts::for_tests();
        let plan = |depth, threads: &[usize]| Plan {
            model: PathBuf::from("m.gguf"),
            prompt: vec![512],
            generate: vec![64],
            depth,
            threads: threads.to_vec(),
            kv: Kv::F16,
        };
        assert!(plan(0, &[1]).guess(&facts) < plan(0, &[1, 2]).guess(&facts));
        assert!(plan(0, &[1]).guess(&facts) < plan(4096, &[1]).guess(&facts));
    }
}
