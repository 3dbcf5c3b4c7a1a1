//! Quality and memory of KV-cache policies: perplexity over bytes per token, retrieval, bytes of
//! sequences.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::kv_eval::{KvPart, KvQualityArgs, eval};
use super::machine::Machine;
use super::{kv_bytes, kv_passkey, kv_rows, programs, report, section};
use xtask::Workspace;
use xtask::process::CommandLine;

use crate::{Error, Result, plots};

const PAGE: &str = "docs/kv-cache.md";
const SECTION: &str = "kv-quality";

/// Baseline policy.
const BASELINE: &str = "f16";

/// Policies measured without `--kv`. With `hot=0` all tokens but the sinks and the last block are
/// in the named format, which isolates the format; the others are practical settings.
const POLICIES: [&str; 25] = [
    "f16",
    "q8",
    "q4",
    "tiered",
    "tiered:hot=0,sink=0,warm=kivi4,cold=off",
    "tiered:hot=0,warm=kivi4,cold=off",
    "tiered:hot=0,warm=kivi4,cold=off,squat=on",
    "tiered:hot=0,warm=kivi4-g64,cold=off",
    "tiered:hot=0,warm=q4,cold=off",
    "tiered:hot=0,warm=q4,cold=off,rotate=on",
    "tiered:hot=0,warm=k4v2,cold=off",
    "tiered:hot=0,warm=k4v2,cold=off,squat=on",
    "tiered:hot=0,warm=nuq3,cold=off",
    "tiered:hot=256,warm=nuq3,cold=off",
    "tiered:hot=0,warm=turbo3,cold=off",
    "tiered:hot=256,warm=turbo3,cold=off",
    "tiered:hot=0,sink=0,warm=kivi2,cold=off",
    "tiered:hot=0,warm=kivi2,cold=off",
    "tiered:hot=0,warm=kivi2,cold=off,squat=on",
    "tiered:hot=256,warm=kivi2,cold=off",
    "tiered:hot=256,warm=kivi2,cold=off,squat=on",
    "tiered:hot=256,sink=0,warm=kivi2,cold=off",
    "tiered:hot=256,warm=k4v2,cold=off",
    "tiered:hot=256,sink=0,warm=k4v2,cold=off",
    "tiered:hot=256,warm=kivi4,warm_tokens=1024,cold=kivi2",
];

/// Output of `ruvllm eval perplexity --json`.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(super) struct Measured {
    pub(super) perplexity: f64,
    pub(super) nll: f64,
    pub(super) tokens: usize,
    pub(super) kv_bytes_per_token: f64,
}

/// One policy.
#[derive(Clone, Debug, Serialize)]
struct Point {
    policy: String,
    #[serde(flatten)]
    measured: Measured,
}

/// Measures the selected parts (default: all), and writes their sections of `docs/kv-cache.md`,
/// unless told not to.
///
/// # Errors
/// If the program cannot be built or fails, its output is unexpected, or a file cannot be written.
pub fn kv_quality(workspace: &Workspace, args: &KvQualityArgs) -> Result<()> {
    let wants = |part| args.only.is_empty() || args.only.contains(&part);
    if wants(KvPart::Bytes) {
        kv_bytes::kv_bytes(workspace, args.no_record)?;
    }
    if !wants(KvPart::Perplexity) && !wants(KvPart::Passkey) {
        return Ok(());
    }
    let program = match &args.program {
        Some(program) => program.clone(),
        None => programs::build(workspace, "ruvllm-cli", "ruvllm")?,
    };
    if wants(KvPart::Perplexity) {
        perplexity(workspace, &program, args)?;
    }
    if wants(KvPart::Passkey) {
        kv_passkey::kv_passkey(workspace, &program, args)?;
    }
    Ok(())
}

/// Measures each policy on the same text, writes JSON to `target/bench/` and, unless told not to,
/// the section of `docs/kv-cache.md`, and draws it.
fn perplexity(workspace: &Workspace, program: &Path, args: &KvQualityArgs) -> Result<()> {
    let machine = Machine::describe(workspace);
    let calibration = args.calibrate.as_ref().map(|text| calibrate(workspace, program, args, text));
    let calibration = calibration.transpose()?;
    let asked = args.kv.iter().map(String::as_str);
    let can_run = |policy: &&str| calibration.is_some() || !needs_calibration(policy);
    let usual = POLICIES.into_iter().filter(|_| args.kv.is_empty()).filter(can_run);
    let mut points: Vec<Point> = Vec::new();
    for policy in [BASELINE].into_iter().chain(asked).chain(usual) {
        if points.iter().all(|point| point.policy != policy) {
            points.push(measure(workspace, program, args, policy, calibration.as_deref())?);
            let Measured { perplexity, kv_bytes_per_token, .. } = &points[points.len() - 1].measured;
            println!("{policy}: perplexity {perplexity:.4}, {kv_bytes_per_token:.0} bytes per token");
        }
    }
    let document = json!({ "machine": machine, "command": section::this_command(), "points": points });
    println!("samples: {}", report::write_json(workspace, SECTION, &document)?.display());
    if args.no_record {
        return Ok(());
    }
    let mut text = markdown(&machine, args.context, &points);
    if args.add {
        let recorded = section::recorded(workspace, PAGE, SECTION)?;
        text = kv_rows::added(&recorded, &text, &POLICIES).map_err(|reason| Error::OtherRun { reason })?;
    }
    section::record(workspace, PAGE, SECTION, &text)?;
    plots::plots(workspace)
}

/// True if a policy has a tier that needs a calibration.
fn needs_calibration(policy: &str) -> bool {
    policy.contains("nuq3")
}

/// Calibrates the model; the file is in `target/bench/`.
fn calibrate(workspace: &Workspace, program: &Path, args: &KvQualityArgs, text: &Path) -> Result<PathBuf> {
    let folder = workspace.path("target/bench");
    fs::create_dir_all(&folder).map_err(Error::io("create", &folder))?;
    let out = folder.join("calibration.kv");
    let mut command = CommandLine::new(program, workspace.root()).args(["calibrate-kv", "--force"]).args([
        "--file".as_ref(),
        text.as_os_str(),
        out.as_os_str(),
    ]);
    if let Some(model) = &args.model {
        command = command.args(["--model".as_ref(), model.as_os_str()]);
    }
    println!("{}", command.output_with_progress()?.trim_end());
    Ok(out)
}

fn measure(
    workspace: &Workspace,
    program: &Path,
    args: &KvQualityArgs,
    policy: &str,
    calibration: Option<&Path>,
) -> Result<Point> {
    let mut command = eval(workspace, program, args, "perplexity", policy, args.context);
    if let Some(calibration) = calibration.filter(|_| needs_calibration(policy)) {
        command = command.args(["--kv-calibration".as_ref(), calibration.as_os_str()]);
    }
    if let Some(limit) = args.limit {
        command = command.args(["--limit", &limit.to_string()]);
    }
    let output = command.output_with_progress()?;
    let measured =
        serde_json::from_str(&output).map_err(|source| Error::Json { command: command.display(), source })?;
    Ok(Point { policy: policy.to_owned(), measured })
}

/// Increase of the perplexity over the baseline, in percent.
fn increase(points: &[Point], point: &Point) -> f64 {
    (point.measured.perplexity / points[0].measured.perplexity - 1.0) * 100.0
}

fn markdown(machine: &Machine, context: usize, points: &[Point]) -> String {
    let baseline = &points[0].measured;
    let mut text = format!(
        "```text\n{}\n```\n\n{}.\nWindows of {context} tokens, {} tokens scored; bytes are those allocated at the end of a \
         window, everything counted.\n\n| policy | perplexity | nll | above {BASELINE} | bytes per token | {BASELINE} : this \
         |\n|---|---|---|---|---|---|\n",
        section::this_command(),
        machine.sentence(),
        baseline.tokens,
    );
    for point in points {
        let measured = &point.measured;
        let _ = writeln!(
            text,
            "| `{}` | {:.4} | {:.5} | {:+.3} % | {:.0} | {:.2} |",
            point.policy,
            measured.perplexity,
            measured.nll,
            increase(points, point),
            measured.kv_bytes_per_token,
            baseline.kv_bytes_per_token / measured.kv_bytes_per_token,
        );
    }
    text.push_str("\n![Perplexity over bytes per token](plots/kv-quality.svg)\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points() -> Vec<Point> {
        let point = |policy: &str, perplexity: f64, kv_bytes_per_token| Point {
            policy: policy.to_owned(),
            measured: Measured { perplexity, nll: perplexity.ln(), tokens: 4095, kv_bytes_per_token },
        };
        vec![point("f16", 10.0, 4096.0), point("tiered:warm=q4", 10.5, 1024.0)]
    }

    #[test]
    fn rows_compare_with_the_baseline() {
        let text = markdown(&Machine::for_tests(), 4096, &points());
        assert!(text.contains("| `tiered:warm=q4` | 10.5000 | 2.35138 | +5.000 % | 1024 | 4.00 |"), "{text}");
    }
}
