//! `ruvllm witness export`: entries of a log as JSON Lines or CSV.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, ValueEnum};
use ruvllm_witness::{Entry, Line};
use serde::Serialize;

use super::selection::SelectionArgs;
use super::show::outcome;
use crate::error::{Error, Result};
use crate::output;
use crate::result_file::{Destination, Readers};

const HELP: &str = "\
JSON Lines are the lines of the log, byte for byte, so that each can be verified by its hash. CSV has a header and one
row per entry; text that a spreadsheet would take for a formula begins with an apostrophe. The file appears as a whole,
readable for its owner alone. The lines are not verified; `ruvllm witness verify` does that.

JSON: {output, format, entry_count, bytes}

Examples:
  ruvllm witness export /var/lib/ruvllm/witness november.jsonl --since 2026-11-01 --until 2026-12-01
  ruvllm witness export /var/lib/ruvllm/witness acme.csv --tenant acme";

/// Export entries of a witness log as JSON Lines or CSV
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct ExportArgs {
    /// Folder of the log
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,

    /// The file to write (- = standard output)
    #[arg(value_name = "OUT")]
    output: PathBuf,

    /// Format [default: csv if OUT ends in .csv, else jsonl]
    #[arg(long, value_name = "FORMAT")]
    format: Option<Format>,

    #[command(flatten)]
    selection: SelectionArgs,

    /// Replace OUT if it exists
    #[arg(long)]
    force: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum Format {
    Jsonl,
    Csv,
}

/// The JSON document.
#[derive(Serialize)]
struct Document<'a> {
    output: &'a Path,
    format: Format,
    entry_count: u64,
    bytes: u64,
}

const COLUMNS: [&str; 22] = [
    "seq",
    "time",
    "request_id",
    "tenant",
    "key",
    "endpoint",
    "model",
    "fingerprint",
    "adapters",
    "parameters",
    "prompt_sha256",
    "prompt_bytes",
    "prompt",
    "output_sha256",
    "output",
    "prompt_tokens",
    "cached_tokens",
    "output_tokens",
    "queue_ms",
    "ttft_ms",
    "total_ms",
    "outcome",
];

pub(crate) fn run(args: &ExportArgs, json: bool) -> Result<()> {
    let is_stdout = args.output == Path::new("-");
    if json && is_stdout {
        return Err(Error::StdoutTwice);
    }
    let is_csv = args.output.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("csv"));
    let format = args.format.unwrap_or(if is_csv { Format::Csv } else { Format::Jsonl });
    let destination = Destination::find_text(&args.output, args.force)?;
    let mut written = Written::default();
    destination.write_with(Readers::Owner, &mut |out| written.write(args, format, &destination, out))?;
    let Written { entries, bytes } = written;
    if json {
        return output::write_json(&Document { output: &args.output, format, entry_count: entries, bytes });
    }
    if !is_stdout {
        let count = if entries == 1 { "entry" } else { "entries" };
        let text = format!("{}: {entries} {count}, {}\n", args.output.display(), output::bytes(bytes));
        output::write_text(&text)?;
    }
    Ok(())
}

/// Amount written.
#[derive(Default)]
struct Written {
    entries: u64,
    bytes: u64,
}

impl Written {
    fn write(
        &mut self,
        args: &ExportArgs,
        format: Format,
        destination: &Destination,
        out: &mut dyn Write,
    ) -> Result<()> {
        let failed = |source| destination.failed(source);
        if format == Format::Csv {
            self.line(&COLUMNS.join(","), out).map_err(failed)?;
        }
        args.selection.entries(&args.folder, |line, entry| {
            self.entries += 1;
            let text = if format == Format::Csv { row(&line, entry) } else { line.text };
            self.line(&text, out).map_err(failed)
        })
    }

    fn line(&mut self, text: &str, out: &mut dyn Write) -> io::Result<()> {
        self.bytes += text.len() as u64 + 1;
        out.write_all(text.as_bytes())?;
        out.write_all(b"\n")
    }
}

/// A row of CSV (RFC 4180).
fn row(line: &Line, entry: &Entry) -> String {
    let text = |text: &Option<String>| cell(text.as_deref().unwrap_or_default());
    let ms = |time: Option<Duration>| {
        time.map_or_else(String::new, |time| output::rounded(time.as_secs_f64() * 1e3).to_string())
    };
    let adapters: Vec<String> = entry
        .adapters
        .iter()
        .map(|adapter| {
            let version = adapter.version.as_ref().map(|version| format!(":{version}")).unwrap_or_default();
            format!("{}{version}@{}", adapter.name, adapter.scale)
        })
        .collect();
    // Numbers and texts of a parsed line have a JSON form.
    let parameters = serde_json::to_string(&entry.parameters).unwrap_or_default();
    let prompt = entry.prompt.as_ref();
    let digests: Vec<String> = entry.outputs.iter().map(|output| output.sha256.to_string()).collect();
    let texts: Vec<&str> = entry.outputs.iter().filter_map(|output| output.text.as_deref()).collect();
    [
        line.seq.to_string(),
        line.time.to_string(),
        cell(&entry.request_id),
        cell(&entry.tenant),
        text(&entry.key),
        cell(&entry.endpoint),
        text(&entry.model),
        text(&entry.fingerprint),
        cell(&adapters.join(" ")),
        cell(&parameters),
        prompt.map_or_else(String::new, |prompt| prompt.sha256.to_string()),
        prompt.map_or_else(String::new, |prompt| prompt.bytes.to_string()),
        text(&prompt.and_then(|prompt| prompt.text.clone())),
        digests.join(" "),
        cell(&texts.join("\n")),
        entry.prompt_tokens.to_string(),
        entry.cached_tokens.to_string(),
        entry.output_tokens.to_string(),
        ms(entry.queue_ms),
        ms(entry.ttft_ms),
        ms(entry.total_ms),
        cell(&outcome(&entry.outcome)),
    ]
    .join(",")
}

/// A text as a cell. Tenants, ids and prompts are texts of users: none may become a formula.
fn cell(text: &str) -> String {
    let guard = if text.starts_with(['=', '+', '-', '@', '\t', '\r']) { "'" } else { "" };
    if text.contains(['"', ',', '\n', '\r']) {
        return format!("\"{guard}{}\"", text.replace('"', "\"\""));
    }
    format!("{guard}{text}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_quoted_and_never_formulas() {
        for (text, expected) in [
            ("", ""),
            ("plain text", "plain text"),
            ("a,b", "\"a,b\""),
            ("say \"x\"\n", "\"say \"\"x\"\"\n\""),
            ("=1+1", "'=1+1"),
            ("@SUM(A1,A2)", "\"'@SUM(A1,A2)\""),
            ("-2", "'-2"),
        ] {
            assert_eq!(cell(text), expected);
        }
    }
}
