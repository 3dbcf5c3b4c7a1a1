//! Command line.

use std::path::PathBuf;

use ruvllm_gpu::{AdapterChoice, KvFormat, Selection};

/// Parsed flags.
pub(crate) struct Args {
    /// Adapter to open.
    pub(crate) selection: Selection,
    /// Small shapes and few repetitions, for software adapters.
    pub(crate) quick: bool,
    /// Tries tiles instead of measuring the chosen ones.
    pub(crate) sweep: bool,
    /// Format of keys and values in attention and steps.
    pub(crate) kv: KvFormat,
    /// Parts to run; empty: all.
    parts: Vec<String>,
    /// File for the figures.
    pub(crate) json: Option<PathBuf>,
    /// Memory budget in bytes.
    pub(crate) budget: u64,
}

impl Args {
    /// Parses the arguments after the program's name.
    pub(crate) fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let selection = Selection::default();
        let mut args = Self {
            selection,
            quick: false,
            sweep: false,
            kv: KvFormat::F16,
            parts: Vec::new(),
            json: None,
            budget: 32 << 30,
        };
        while let Some(word) = words.next() {
            match word.as_str() {
                "--adapter" => {
                    args.selection.adapter = adapter(&words.next().ok_or("--adapter needs a value")?);
                }
                "--software" => args.selection.software = true,
                "--quick" => args.quick = true,
                "--sweep" => args.sweep = true,
                "--kv" => {
                    let name = words.next().ok_or("--kv needs a format")?;
                    let format = KvFormat::ALL.into_iter().find(|format| format.name() == name);
                    args.kv = format.ok_or_else(|| format!("--kv {name}: f16 or q8"))?;
                }
                "--part" => args.parts.push(words.next().ok_or("--part needs a name")?),
                "--json" => args.json = Some(words.next().ok_or("--json needs a file")?.into()),
                _ => {
                    return Err(format!(
                        "unknown argument {word:?}; --adapter, --software, --quick, --sweep, --kv, --part, --json"
                    ));
                }
            }
        }
        Ok(args)
    }

    /// True for a part to run.
    pub(crate) fn part(&self, name: &str) -> bool {
        self.parts.is_empty() || self.parts.iter().any(|part| part == name)
    }
}

fn adapter(value: &str) -> AdapterChoice {
    value.parse().map_or_else(|_| AdapterChoice::Name(value.to_owned()), AdapterChoice::Index)
}
