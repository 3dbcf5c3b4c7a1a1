//! A report as tables for a document.

use std::fmt::Write as _;

use super::engine::Footprint;
use super::plan::Test;
use super::report::{Key, ModelReport, Report, Row};
use super::samples::{Samples, Spread};

const HEAD: &str = "| model | KV | depth | test | threads | ruvllm t/s | peer | its t/s | ratio | ruvllm t/CPU s \
    | its t/CPU s | ratio | of the limit |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|\n";

/// The whole section.
pub(super) fn markdown(report: &Report) -> String {
    let mut text = format!(
        "```text\n{}\n```\n\n{}.\n{} interleaved rounds; t/s is tokens per second of wall-clock time, t/CPU s tokens \
         per second of the process's own CPU time, times threads: median (least-most). A ratio is of the medians, with \
         the extremes of the ratios within a round, to the peer's best setting for that row, which is named.\n\n{HEAD}",
        report.command,
        report.machine.sentence(),
        report.rounds()
    );
    for row in &report.rows {
        add_row(&mut text, row);
    }
    add_limits(&mut text, &report.rows);
    add_models(&mut text, &report.models);
    text
}

/// One line per peer.
fn add_row(text: &mut String, row: &Row) {
    let engines = row.engines();
    if engines.is_empty() {
        add_line(text, row, None);
    }
    for engine in engines {
        add_line(text, row, Some(engine));
    }
}

fn add_line(text: &mut String, row: &Row, engine: Option<&str>) {
    let Key { model, kv, depth, test, threads } = &row.key;
    let wall = engine.and_then(|engine| row.best(engine, |rates| &rates.wall));
    let cpu = engine.and_then(|engine| row.best(engine, |rates| &rates.cpu));
    let peer = match wall {
        Some(lane) if lane.setting.is_empty() => lane.engine.clone(),
        Some(lane) => format!("{}: {}", lane.engine, lane.setting),
        None => "-".to_owned(),
    };
    // Names the best setting by CPU time if it is another one.
    let other = match (wall, cpu) {
        (Some(wall), Some(cpu)) if wall.setting != cpu.setting => format!(" {}", cpu.setting),
        _ => String::new(),
    };
    let cell = |samples: Option<&Samples>| samples.map_or_else(|| "-".to_owned(), Samples::cell);
    let ratio = |ratio: Option<Spread>| ratio.map_or_else(|| "-".to_owned(), |r| r.bold_cell(2));
    let _ = writeln!(
        text,
        "| {model} | {} | {depth} | {test} | {threads} | {} | {peer} | {} | {} | {} | {}{other} | {} | {} |",
        kv.name(),
        row.ours.wall.cell(),
        cell(wall.map(|lane| &lane.rates.wall)),
        ratio(wall.and_then(|lane| row.ours.wall.ratio(&lane.rates.wall))),
        row.ours.cpu.cell(),
        cell(cpu.map(|lane| &lane.rates.cpu)),
        ratio(cpu.and_then(|lane| row.ours.cpu.ratio(&lane.rates.cpu))),
        share(row),
    );
}

/// `281 GOP/s, 31 %`.
fn share(row: &Row) -> String {
    let Some((rate, share)) = row.rate_and_share() else { return "-".to_owned() };
    let rate = match row.key.test {
        Test::Prefill(_) => format!("{rate:.0} GOP/s"),
        Test::Decode(_) => format!("{rate:.1} GB/s"),
    };
    share.map_or_else(|| rate.clone(), |share| format!("{rate}, {:.0} %", 100.0 * share))
}

/// Adds the limits behind the shares: one line per limit and thread count, over all rounds.
fn add_limits(text: &mut String, rows: &[Row]) {
    let mut limits: Vec<(usize, &str, Samples)> = Vec::new();
    for row in rows.iter().filter(|row| !row.share.limit_name.is_empty()) {
        let (threads, name) = (row.key.threads, row.share.limit_name.as_str());
        match limits.iter_mut().find(|(t, n, _)| (*t, *n) == (threads, name)) {
            Some((_, _, samples)) => samples.0.extend(&row.share.limit.0),
            None => limits.push((threads, name, row.share.limit.clone())),
        }
    }
    limits.sort_by_key(|(threads, name, _)| (*threads, *name));
    let line = |(threads, name, samples): &(usize, &str, Samples)| {
        let unit = if *name == "read" { "GB/s" } else { "GOP/s" };
        let spread = samples.spread().map_or_else(String::new, |spread| spread.cell(0));
        format!("{name} with {threads} thread{}: {spread} {unit}", if *threads == 1 { "" } else { "s" })
    };
    if !limits.is_empty() {
        let lines: Vec<String> = limits.iter().map(line).collect();
        let _ = writeln!(
            text,
            "\nThe machine's limits, measured in every round before each model: {}.",
            lines.join("; ")
        );
    }
}

/// Adds loading and memory: this engine, and the minimum of the peers.
fn add_models(text: &mut String, models: &[ModelReport]) {
    let number = |value: Option<f64>, unit: f64| {
        value.map_or_else(|| "-".to_owned(), |value| format!("{:.0}", value / unit))
    };
    let mib = |bytes| number(bytes, 1_048_576.0);
    text.push_str(
        "\n| model | load ms | resident MiB | of it anonymous MiB | the peers' least load ms | least resident MiB |\n\
         |---|---|---|---|---|---|\n",
    );
    for ModelReport { name, ours, peers } in models {
        let least = |field: fn(&Footprint) -> Option<f64>| {
            peers.iter().filter_map(|(_, _, footprint)| field(footprint)).min_by(f64::total_cmp)
        };
        let _ = writeln!(
            text,
            "| {name} | {} | {} | {} | {} | {} |",
            number(ours.load_ms, 1.0),
            mib(ours.resident_bytes),
            mib(ours.anonymous_bytes),
            number(least(|f| f.load_ms), 1.0),
            mib(least(|f| f.resident_bytes)),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::report;
    use super::*;

    #[test]
    fn every_row_names_the_best_setting_and_its_share() {
        let text = markdown(&report());
        assert!(text.starts_with("```text\ncargo xtask bench\n```\n"), "{text}");
        let row = "| m | f16 | 0 | tg64 | 1 | 10.0 (9.0-11.0) | llama.cpp: a | 7.0 (6.0-8.0) | **1.43** (1.38-1.50) \
            | 10.5 (9.5-11.5) | 9.0 (8.0-10.0) c | **1.17** (1.15-1.19) | 10.0 GB/s, 50 % |\n";
        assert!(text.contains(row), "{text}");
        assert!(text.contains("each model: read with 1 thread: 20 (20-20) GB/s."), "{text}");
        assert!(text.contains("| m | - | - | - | - | - |"), "{text}");
    }

    #[test]
    fn rows_have_as_many_cells_as_the_head() {
        let text = markdown(&report());
        let tables: Vec<&str> = text.split("\n\n").filter(|part| part.starts_with('|')).collect();
        assert_eq!(tables.len(), 2);
        for table in tables {
            let cells = |line: &str| line.matches('|').count();
            let head = table.lines().next().map(cells);
            assert!(table.lines().all(|line| Some(cells(line)) == head), "{table}");
        }
    }
}
