//! Rate of matrix products over the number of activation rows, for every weight format.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use serde_json::json;

use super::limits::Limits;
use super::machine::Machine;
use super::{programs, report, section};
use xtask::Workspace;
use xtask::process::CommandLine;

use crate::{Result, plots};

const SECTION: &str = "batch-curve";
/// Columns of the table beside the figure.
const SHOWN: [usize; 8] = [1, 2, 4, 8, 16, 32, 128, 512];

/// One measured point.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
struct Point {
    format: String,
    arithmetic: String,
    rows: usize,
    cols: usize,
    batch: usize,
    gop_s: f64,
}

/// Measures with one thread, writes JSON to `target/bench/` and, unless told not to, the section of
/// the page of this machine in `docs/performance`, and draws it.
///
/// # Errors
/// If a program cannot be built or fails, or a file cannot be written.
pub(super) fn batch_curve(workspace: &Workspace, no_record: bool) -> Result<()> {
    let program = programs::build(workspace, "ruvllm-benches", "batch_curve")?;
    let machine = Machine::describe(workspace);
    println!("about five seconds per format and shape, two shapes");
    let mut lines = Vec::new();
    CommandLine::new(&program, workspace.root()).args(["1"]).run_lines(|line| {
        println!("{line}");
        lines.push(line.to_owned());
    })?;
    let limits = lines.iter().find_map(|line| Limits::parse(line));
    let points: Vec<Point> = lines.iter().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let document = json!({ "machine": machine, "points": points });
    println!("samples: {}", report::write_json(workspace, SECTION, &document)?.display());
    if no_record {
        return Ok(());
    }
    let text = markdown(&machine, limits.as_ref(), &points);
    section::record_speed(workspace, &machine, SECTION, &text)?;
    plots::plots(workspace)
}

fn title(point: &Point) -> String {
    format!("weights {} x {}, one thread", point.rows, point.cols)
}

fn markdown(machine: &Machine, limits: Option<&Limits>, points: &[Point]) -> String {
    let mut text = format!(
        "```text\n{}\n```\n\n{}.\nBillions of operations per second (two per multiply-add) of one thread, best of a few \
         runs per point; the weights come from memory.\n",
        section::this_command(),
        machine.sentence()
    );
    if let Some(limits) = limits {
        let peaks = limits.fma.iter().chain(&limits.int8);
        let peaks: Vec<String> = peaks.map(|peak| format!("{:.0} ({})", peak.gop_s, peak.name)).collect();
        let _ = writeln!(
            text,
            "The limits of one thread: {:.1} GB/s read; {} billions of operations per second.",
            limits.read_gb_s,
            peaks.join(", ")
        );
    }
    text.push_str("\n![Rate over batch size for every block format](../plots/batch-curve.svg)\n");
    let mut titles: Vec<String> = points.iter().map(title).collect();
    titles.dedup();
    for shape in titles {
        add_table(&mut text, &shape, points.iter().filter(|point| title(point) == shape));
    }
    text
}

fn add_table<'a>(text: &mut String, title: &str, points: impl Iterator<Item = &'a Point>) {
    let mut formats: Vec<&str> = Vec::new();
    let mut rates = BTreeMap::new();
    for point in points {
        if !formats.contains(&point.format.as_str()) {
            formats.push(&point.format);
        }
        rates.insert((point.format.as_str(), point.batch), point.gop_s);
    }
    let heads: String = SHOWN.iter().map(|batch| format!(" batch {batch} |")).collect();
    let _ = writeln!(text, "\n| {title} |{heads}\n|---|{}", "---|".repeat(SHOWN.len()));
    for format in formats {
        let _ = write!(text, "| {format} |");
        for batch in SHOWN {
            let rate =
                rates.get(&(format, batch)).map_or_else(|| "-".to_owned(), |rate| format!("{rate:.0}"));
            let _ = write!(text, " {rate} |");
        }
        text.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn points() -> Vec<Point> {
        let point = |format: &str, cols, batch| Point {
            format: format.to_owned(),
            arithmetic: "int8".to_owned(),
            rows: 64,
            cols,
            batch,
            gop_s: 10.0 * batch as f64,
        };
        [64, 256]
            .into_iter()
            .flat_map(|cols| ["A", "B"].map(|format| [1, 2, 512].map(|batch| point(format, cols, batch))))
            .flatten()
            .collect()
    }

    #[test]
    fn the_table_shows_what_was_measured_and_nothing_else() {
        let text = markdown(&Machine::for_tests(), None, &points());
        assert!(text.contains("| A | 10 | 20 | - | - | - | - | - | 5120 |"), "{text}");
        assert_eq!(text.matches("| weights 64 x").count(), 2);
    }

    #[test]
    fn lines_of_the_program_are_read() {
        let line = r#"{"format":"Q8_0","arithmetic":"int8","rows":2048,"cols":2048,"batch":3,"gop_s":61.50}"#;
        let point: Point = serde_json::from_str(line).expect("a point");
        assert_eq!((point.format.as_str(), point.batch, point.gop_s), ("Q8_0", 3, 61.5));
    }
}
