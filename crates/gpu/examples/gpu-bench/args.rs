//! Command line.

use std::path::PathBuf;

use ruvllm_gpu::{AdapterChoice, Selection};

/// Parsed flags.
pub(crate) struct Args {
    /// The adapter.
    pub(crate) selection: Selection,
    /// Small shapes and few repetitions, for software adapters.
    pub(crate) quick: bool,
    /// Tries tiles instead of measuring the chosen ones.
    pub(crate) sweep: bool,
    /// File for the figures.
    pub(crate) json: Option<PathBuf>,
    /// Memory budget in bytes.
    pub(crate) budget: u64,
}

impl Args {
    /// Parses the arguments after the program's name.
    pub(crate) fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let selection = Selection::default();
        let mut args = Self { selection, quick: false, sweep: false, json: None, budget: 8 << 30 };
        while let Some(word) = words.next() {
            match word.as_str() {
                "--adapter" => {
                    args.selection.adapter = adapter(&words.next().ok_or("--adapter needs a value")?);
                }
                "--software" => args.selection.software = true,
                "--quick" => args.quick = true,
                "--sweep" => args.sweep = true,
                "--json" => args.json = Some(words.next().ok_or("--json needs a file")?.into()),
                _ => {
                    return Err(format!(
                        "unknown argument {word:?}; --adapter, --software, --quick, --sweep, --json"
                    ));
                }
            }
        }
        Ok(args)
    }
}

fn adapter(value: &str) -> AdapterChoice {
    value.parse().map_or_else(|_| AdapterChoice::Name(value.to_owned()), AdapterChoice::Index)
}
