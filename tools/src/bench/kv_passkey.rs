//! Passkey retrieval under KV-cache policies.

use std::fmt::Write as _;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::kv_eval::{KvQualityArgs, eval};
use super::machine::Machine;
use super::{report, section};
use xtask::Workspace;

use crate::{Error, Result};

const PAGE: &str = "docs/kv-cache.md";
const SECTION: &str = "kv-passkey";

/// Tokens per prompt: the range in which the built-in model retrieves keys.
const CONTEXT: usize = 1024;

/// Measured policies. With `hot=0` all tokens but the sinks and the last block are in the named
/// format.
const POLICIES: [&str; 8] = [
    "f16",
    "q8",
    "tiered",
    "tiered:hot=0,warm=kivi4,cold=off",
    "tiered:hot=0,warm=q4,cold=off,rotate=on",
    "tiered:hot=0,warm=k4v2,cold=off",
    "tiered:hot=0,warm=kivi2,cold=off",
    "tiered:hot=256,warm=kivi2,cold=off",
];

/// Output of `ruvllm eval passkey --json`.
#[derive(Debug, Deserialize)]
struct Document {
    results: Vec<Measured>,
}

/// One depth.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Measured {
    depth: f64,
    trials: usize,
    found: usize,
    nll: f64,
    nll_without: f64,
}

/// One policy.
#[derive(Clone, Debug, Serialize)]
struct Row {
    policy: String,
    depths: Vec<Measured>,
}

/// Runs the same retrieval test under each policy, writes JSON to `target/bench/` and, unless told
/// not to, the section of `docs/kv-cache.md`.
///
/// # Errors
/// If the program fails or its output is unexpected, or a file cannot be written.
pub(super) fn kv_passkey(workspace: &Workspace, program: &Path, args: &KvQualityArgs) -> Result<()> {
    let machine = Machine::describe(workspace);
    let rows = POLICIES
        .into_iter()
        .map(|policy| {
            let row = measure(workspace, program, args, policy)?;
            println!("{}", cells(&row));
            Ok(row)
        })
        .collect::<Result<Vec<_>>>()?;
    let document = json!({ "machine": machine, "command": section::this_command(), "rows": rows });
    println!("samples: {}", report::write_json(workspace, SECTION, &document)?.display());
    if args.no_record {
        return Ok(());
    }
    section::record(workspace, PAGE, SECTION, &markdown(&machine, &rows))
}

fn measure(workspace: &Workspace, program: &Path, args: &KvQualityArgs, policy: &str) -> Result<Row> {
    let command = eval(workspace, program, args, "passkey", policy, CONTEXT)
        .args(["--trials", &args.trials.to_string()]);
    let output = command.output_with_progress()?;
    let document: Document =
        serde_json::from_str(&output).map_err(|source| Error::Json { command: command.display(), source })?;
    Ok(Row { policy: policy.to_owned(), depths: document.results })
}

fn markdown(machine: &Machine, rows: &[Row]) -> String {
    let depths = rows.first().map_or(&[][..], |row| row.depths.as_slice());
    let trials = depths.first().map_or(0, |depth| depth.trials);
    let heads: String = depths.iter().map(|depth| format!(" {} |", depth.depth)).collect();
    let mut text = format!(
        "```text\n{}\n```\n\n{}.\nPrompts of {CONTEXT} tokens, {trials} keys of five digits per depth: mean of -ln p over \
         the tokens of the keys, in brackets how many keys greedy decoding finds whole; at last over all depths, and \
         where the text does not tell the key.\n\n| policy |{heads} all | without |\n|---|{}---|---|\n",
        section::this_command(),
        machine.sentence(),
        "---|".repeat(depths.len()),
    );
    for row in rows {
        let _ = writeln!(text, "{}", cells(row));
    }
    text
}

/// Cells of a table row.
fn cells(row: &Row) -> String {
    let cell = |depth: &Measured| format!(" {:.3} ({}) |", depth.nll, depth.found);
    let depths: String = row.depths.iter().map(cell).collect();
    let mean = |value: fn(&Measured) -> f64| {
        row.depths.iter().map(value).sum::<f64>() / row.depths.len().max(1) as f64
    };
    let found: usize = row.depths.iter().map(|depth| depth.found).sum();
    let trials: usize = row.depths.iter().map(|depth| depth.trials).sum();
    format!(
        "| `{}` |{depths} {:.3} ({found} of {trials}) | {:.3} |",
        row.policy,
        mean(|depth| depth.nll),
        mean(|depth| depth.nll_without)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_tell_each_depth_and_all_of_them() {
        let output = r#"{"results":[
            {"context":64,"depth":0.1,"trials":4,"found":1,"nll":2.5,"nll_without":11.0},
            {"context":64,"depth":0.9,"trials":4,"found":2,"nll":1.5,"nll_without":11.0}]}"#;
        let document: Document = serde_json::from_str(output).expect("a document");
        let rows = [Row { policy: "f16".to_owned(), depths: document.results }];
        let text = markdown(&Machine::for_tests(), &rows);
        assert!(text.contains("| policy | 0.1 | 0.9 | all | without |\n|---|---|---|---|---|"), "{text}");
        assert!(text.contains("| `f16` | 2.500 (1) | 1.500 (2) | 2.000 (3 of 8) | 11.000 |"), "{text}");
    }
}
