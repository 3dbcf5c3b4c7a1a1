//! Samples of a run beside a peer: medians, spreads and ratios, as JSON and as a table for a document.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use serde::Serialize;
use serde_json::{Value, json};

use super::machine::Machine;
use super::peer::{Footprint, Plan, Sample, Setting};
use crate::{Error, Result, Workspace};

const DOCUMENT: &str = "docs/performance.md";
const BEGIN: &str = "<!-- bench:peer:begin -->\n";
const END: &str = "<!-- bench:peer:end -->";

/// All samples so far, one row per model, test, thread count and depth.
pub(super) struct Report {
    machine: Machine,
    rows: Vec<Row>,
    footprints: Vec<(String, Footprint)>,
}

struct Row {
    model: String,
    test: String,
    threads: usize,
    depth: usize,
    kv: String,
    ours: Samples,
    ours_cpu: Samples,
    /// By setting, in the order in which they ran.
    peer: Vec<(String, Samples)>,
}

/// Tokens per second, one per round.
#[derive(Clone, Default, Serialize)]
struct Samples(Vec<f64>);

impl Samples {
    /// Median; the mean of the two middle samples of an even number.
    fn median(&self) -> Option<f64> {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        match sorted.len() {
            0 => None,
            n if n % 2 == 1 => Some(sorted[middle]),
            _ => Some((sorted[middle - 1] + sorted[middle]) / 2.0),
        }
    }

    fn min(&self) -> f64 {
        self.0.iter().copied().fold(f64::INFINITY, f64::min)
    }

    fn max(&self) -> f64 {
        self.0.iter().copied().fold(f64::NEG_INFINITY, f64::max)
    }

    /// `31.2 (30.9-31.5)`, or a dash without samples.
    fn cell(&self) -> String {
        match self.median() {
            Some(median) => format!("{median:.1} ({:.1}-{:.1})", self.min(), self.max()),
            None => "-".to_owned(),
        }
    }

    fn json(&self) -> Value {
        match self.median() {
            Some(median) => {
                json!({ "median": median, "min": self.min(), "max": self.max(), "samples": self.0 })
            }
            None => Value::Null,
        }
    }
}

impl Row {
    /// The peer's setting with the best median.
    fn best(&self) -> Option<(&str, f64)> {
        let medians = self.peer.iter().filter_map(|(name, samples)| Some((name.as_str(), samples.median()?)));
        medians.max_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// Our median over the peer's best median.
    fn ratio(&self) -> Option<f64> {
        Some(self.ours.median()? / self.best()?.1)
    }

    fn json(&self) -> Value {
        let peer: Value = self.peer.iter().map(|(name, samples)| (name.clone(), samples.json())).collect();
        json!({
            "model": self.model, "test": self.test, "threads": self.threads, "depth": self.depth,
            "kv": self.kv, "tokens_per_s": self.ours.json(), "tokens_per_cpu_s": self.ours_cpu.json(),
            "peer_tokens_per_s": peer, "ratio_to_best_peer": self.ratio(),
        })
    }
}

impl Report {
    pub(super) fn new(machine: Machine) -> Self {
        Self { machine, rows: Vec::new(), footprints: Vec::new() }
    }

    pub(super) fn add_ours(&mut self, plan: &Plan, (samples, footprint): (Vec<Sample>, Footprint)) {
        for sample in samples {
            let row = self.row(plan, sample.test);
            row.ours.0.push(sample.tokens_per_s);
            row.ours_cpu.0.extend(sample.tokens_per_cpu_s);
        }
        let model = plan.model_name();
        self.footprints.retain(|(name, _)| *name != model);
        self.footprints.push((model, footprint));
    }

    pub(super) fn add_peer(&mut self, plan: &Plan, setting: &Setting, samples: Vec<Sample>) {
        for sample in samples {
            let peer = &mut self.row(plan, sample.test).peer;
            let at = peer.iter().position(|(name, _)| *name == setting.name).unwrap_or_else(|| {
                peer.push((setting.name.clone(), Samples::default()));
                peer.len() - 1
            });
            peer[at].1.0.push(sample.tokens_per_s);
        }
    }

    fn row(&mut self, plan: &Plan, test: String) -> &mut Row {
        let model = plan.model_name();
        let same = |row: &Row| {
            row.model == model && row.test == test && row.threads == plan.threads && row.depth == plan.depth
        };
        let at = self.rows.iter().position(same).unwrap_or_else(|| {
            self.rows.push(Row {
                model: model.clone(),
                test: test.clone(),
                threads: plan.threads,
                depth: plan.depth,
                kv: plan.kv.clone(),
                ours: Samples::default(),
                ours_cpu: Samples::default(),
                peer: Vec::new(),
            });
            self.rows.len() - 1
        });
        &mut self.rows[at]
    }

    /// The tables, as they go into the document.
    pub(super) fn markdown(&self) -> String {
        let settings: Vec<&str> = self
            .rows
            .first()
            .map_or(Vec::new(), |row| row.peer.iter().map(|(name, _)| name.as_str()).collect());
        let rounds = self.rows.iter().map(|row| row.ours.0.len()).max().unwrap_or(0);
        let mut text = format!(
            "{}.\n{rounds} interleaved rounds; tokens per second of wall-clock time: median (least-most). \
             The ratio is to llama.cpp's best setting.\n\n| model | test | depth | threads | ruvllm |",
            self.machine.sentence()
        );
        for name in &settings {
            let _ = write!(text, " llama.cpp: {name} |");
        }
        let _ = writeln!(text, " ratio |\n|---|---|---|---|---|{}---|", "---|".repeat(settings.len()));
        for row in &self.rows {
            let Row { model, test, depth, threads, .. } = row;
            let _ = write!(text, "| {model} | {test} | {depth} | {threads} | {} |", row.ours.cell());
            for name in &settings {
                let samples = row.peer.iter().find(|(other, _)| other == name).map(|(_, samples)| samples);
                let _ = write!(text, " {} |", samples.map_or_else(|| "-".to_owned(), Samples::cell));
            }
            let ratio = row.ratio().map_or_else(|| "-".to_owned(), |ratio| format!("**{ratio:.2}**"));
            let _ = writeln!(text, " {ratio} |");
        }
        text.push_str("\n| model | load ms | resident MiB | of it anonymous MiB |\n|---|---|---|---|\n");
        for (model, footprint) in &self.footprints {
            let mib = |bytes: Option<u64>| {
                bytes.map_or_else(|| "-".to_owned(), |bytes| format!("{:.0}", bytes as f64 / 1_048_576.0))
            };
            let load = footprint.load_ms.map_or_else(|| "-".to_owned(), |ms| format!("{ms:.0}"));
            let (resident, anonymous) = (mib(footprint.resident_bytes), mib(footprint.anonymous_bytes));
            let _ = writeln!(text, "| {model} | {load} | {resident} | {anonymous} |");
        }
        text
    }

    /// Writes every sample to `target/bench/`; returns the file.
    pub(super) fn write_json(&self, workspace: &Workspace) -> Result<PathBuf> {
        let footprint = |(model, footprint): &(String, Footprint)| {
            json!({
                "model": model, "load_ms": footprint.load_ms, "resident_bytes": footprint.resident_bytes,
                "anonymous_bytes": footprint.anonymous_bytes,
            })
        };
        let document = json!({
            "machine": self.machine,
            "rows": self.rows.iter().map(Row::json).collect::<Vec<_>>(),
            "models": self.footprints.iter().map(footprint).collect::<Vec<_>>(),
        });
        let folder = workspace.path("target/bench");
        fs::create_dir_all(&folder).map_err(Error::io("create", &folder))?;
        let path = folder.join(format!("peer-{}.json", crate::workspace::unix_seconds()));
        fs::write(&path, format!("{document:#}\n")).map_err(Error::io("write", &path))?;
        Ok(path)
    }

    /// Writes the tables between the markers of `docs/performance.md`.
    pub(super) fn record(&self, workspace: &Workspace) -> Result<()> {
        let path = workspace.path(DOCUMENT);
        let text = workspace.read(DOCUMENT)?;
        let new = replace_block(&text, &self.markdown())
            .ok_or_else(|| Error::NoMarker { path: path.clone(), marker: "bench:peer" })?;
        fs::write(&path, new).map_err(Error::io("write", path))?;
        println!("recorded in {DOCUMENT}");
        Ok(())
    }
}

/// `text` with what is between the markers replaced.
fn replace_block(text: &str, block: &str) -> Option<String> {
    let start = text.find(BEGIN)? + BEGIN.len();
    let end = start + text[start..].find(END)?;
    Some(format!("{}{block}{}", &text[..start], &text[end..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_of_the_sorted_samples() {
        assert_eq!(Samples(vec![3.0, 1.0, 2.0]).median(), Some(2.0));
        assert_eq!(Samples(vec![4.0, 1.0, 2.0, 3.0]).median(), Some(2.5));
        assert_eq!(Samples(vec![4.0, 1.0, 2.0]).cell(), "2.0 (1.0-4.0)");
        assert_eq!(Samples::default().median(), None);
    }

    #[test]
    fn the_ratio_is_to_the_best_setting() {
        let row = Row {
            model: "m".to_owned(),
            test: "tg64".to_owned(),
            threads: 1,
            depth: 0,
            kv: "f16".to_owned(),
            ours: Samples(vec![9.0]),
            ours_cpu: Samples::default(),
            peer: vec![("a".to_owned(), Samples(vec![6.0])), ("b".to_owned(), Samples(vec![12.0]))],
        };
        assert_eq!(row.best(), Some(("b", 12.0)));
        assert_eq!(row.ratio(), Some(0.75));
        assert_eq!(row.json()["tokens_per_cpu_s"], Value::Null, "not measured, not invented");
    }

    #[test]
    fn only_the_block_between_the_markers_changes() {
        let text = format!("head\n{BEGIN}old\n{END}\ntail\n");
        assert_eq!(replace_block(&text, "new\n"), Some(format!("head\n{BEGIN}new\n{END}\ntail\n")));
        assert_eq!(replace_block("no markers", "new\n"), None);
    }
}
