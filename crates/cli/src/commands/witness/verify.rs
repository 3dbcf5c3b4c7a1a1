//! `ruvllm witness verify`: hash chain, signatures and checkpoints of a log.

use std::path::{Path, PathBuf};

use clap::Args;
use ruvllm_witness::{Finding, PublicKey, Report, VerifyOptions, verify};
use serde::Serialize;

use crate::args::positive;
use crate::error::{Result, printable};
use crate::output;

const HELP: &str = "\
Finds every altered, missing, repeated or moved line, missing files, and lines that were cut off behind a checkpoint.
Each finding is a line with its place. The exit code is 1 if there is any.

Without --public-key the hash chain alone is verified, which whoever may write the log can compute anew. Give the key
from a place that they cannot write to, and --checkpoint with a copy of checkpoint.json that was kept elsewhere: it
shows that the log was not put back to an earlier state.

JSON: {folder, valid, is_open, signatures, file_count, line_count, request_count, dropped_count, checkpoint_count,
last_seq, last_checkpoint_seq, uncovered_count, first_time, last_time, findings: [{file, line, seq, kind, message}],
finding_count}; signatures is verified or not_verified; findings has at most 100.

Examples:
  ruvllm witness verify /var/lib/ruvllm/witness --public-key witness.key.pub
  ruvllm witness verify /var/lib/ruvllm/witness --json | jq .findings";

/// Verify a witness log
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct VerifyArgs {
    /// Folder of the log
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,

    /// Public key of the checkpoints; several after a change of keys
    #[arg(long, value_name = "FILE")]
    public_key: Vec<PathBuf>,

    /// Copy of checkpoint.json from another place
    #[arg(long, value_name = "FILE")]
    checkpoint: Vec<PathBuf>,

    /// Number of the first file, if older ones were archived
    #[arg(long, value_name = "N", value_parser = positive)]
    first_file: Option<usize>,
}

/// The JSON document.
#[derive(Serialize)]
struct Document<'a> {
    folder: &'a Path,
    valid: bool,
    is_open: bool,
    signatures: &'static str,
    file_count: u64,
    line_count: u64,
    request_count: u64,
    dropped_count: u64,
    checkpoint_count: u64,
    last_seq: u64,
    last_checkpoint_seq: Option<u64>,
    uncovered_count: u64,
    first_time: Option<String>,
    last_time: Option<String>,
    findings: Vec<FindingDocument<'a>>,
    finding_count: u64,
}

#[derive(Serialize)]
struct FindingDocument<'a> {
    file: &'a str,
    line: Option<u64>,
    seq: Option<u64>,
    kind: &'static str,
    message: String,
}

impl<'a> From<&'a Finding> for FindingDocument<'a> {
    fn from(finding: &'a Finding) -> Self {
        let Finding { file, line, seq, fault, .. } = finding;
        Self { file, line: *line, seq: *seq, kind: fault.name(), message: fault.to_string() }
    }
}

impl<'a> Document<'a> {
    fn new(folder: &'a Path, report: &'a Report) -> Self {
        let (first_time, last_time) = report.times.unzip();
        Self {
            folder,
            valid: report.is_valid(),
            is_open: report.is_open,
            signatures: if report.has_keys { "verified" } else { "not_verified" },
            file_count: report.files,
            line_count: report.lines,
            request_count: report.requests,
            dropped_count: report.dropped,
            checkpoint_count: report.checkpoints,
            last_seq: report.last_seq,
            last_checkpoint_seq: report.last_checkpoint,
            uncovered_count: report.uncovered(),
            first_time: first_time.map(|time| time.to_string()),
            last_time: last_time.map(|time| time.to_string()),
            findings: report.findings.iter().map(FindingDocument::from).collect(),
            finding_count: report.finding_count,
        }
    }
}

/// True if the log is valid.
pub(crate) fn run(args: &VerifyArgs, json: bool) -> Result<bool> {
    let keys = args.public_key.iter().map(|path| PublicKey::load(path)).collect::<Result<_, _>>()?;
    let first_file = args.first_file.map(|number| number as u64);
    let options = VerifyOptions { keys, first_file, checkpoints: args.checkpoint.clone() };
    let report = verify(&args.folder, &options)?;
    if json {
        output::write_json(&Document::new(&args.folder, &report))?;
    } else {
        output::write_text(&text(&report))?;
    }
    Ok(report.is_valid())
}

fn text(report: &Report) -> String {
    if !report.is_valid() {
        let mut text: String =
            report.findings.iter().map(|finding| printable(&finding.to_string()) + "\n").collect();
        let more = report.finding_count - report.findings.len() as u64;
        if more > 0 {
            text.push_str(&format!("and {more} more\n"));
        }
        return text;
    }
    let count = |n: u64, noun| output::counted(usize::try_from(n).unwrap_or(usize::MAX), noun);
    let signatures = if report.has_keys {
        format!("{} with valid signatures", count(report.checkpoints, "checkpoint"))
    } else {
        format!("{}, signatures not verified (--public-key)", count(report.checkpoints, "checkpoint"))
    };
    format!(
        "valid: {}, {} in {}, {signatures}, {} behind the last\n",
        count(report.requests, "request"),
        count(report.lines, "line"),
        count(report.files, "file"),
        count(report.uncovered(), "line"),
    )
}
