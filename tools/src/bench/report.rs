//! Samples of a comparison: one row per model, KV type, depth, test and thread count.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

use super::engine::{Footprint, Outcome, Sample};
use super::kv::Kv;
use super::limits::Limits;
use super::machine::Machine;
use super::model::ModelFacts;
use super::plan::{Plan, Test};
use super::samples::Samples;
use xtask::Workspace;

use crate::{Error, Result};

/// A setting is dropped if its rate is below this share of another setting of its engine
/// everywhere.
const HOPELESS: f64 = 0.9;

/// All samples so far.
pub(super) struct Report {
    pub(super) machine: Machine,
    pub(super) command: String,
    pub(super) rows: Vec<Row>,
    pub(super) models: Vec<ModelReport>,
}

/// Results reported once per model.
pub(super) struct ModelReport {
    pub(super) name: String,
    pub(super) ours: Footprint,
    /// Engine, setting, footprint of the last run.
    pub(super) peers: Vec<(String, String, Footprint)>,
}

/// Key of a sample's row.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Key {
    pub(super) model: String,
    pub(super) kv: Kv,
    pub(super) depth: usize,
    pub(super) test: Test,
    pub(super) threads: usize,
}

/// Measurements of one key.
pub(super) struct Row {
    pub(super) key: Key,
    pub(super) ours: Rates,
    /// In order of execution.
    pub(super) peers: Vec<Lane>,
    pub(super) share: Share,
}

/// One setting of one peer.
pub(super) struct Lane {
    pub(super) engine: String,
    pub(super) setting: String,
    pub(super) rates: Rates,
}

/// Tokens per second.
#[derive(Default)]
pub(super) struct Rates {
    pub(super) wall: Samples,
    pub(super) cpu: Samples,
}

/// Reference of a rate: work per token, and limit of the machine in the same rounds.
#[derive(Default)]
pub(super) struct Share {
    /// Operations per token of a prompt, or bytes per decoded token; 0 if the file does not say.
    per_token: f64,
    /// Limit of the machine in billions per second.
    pub(super) limit: Samples,
    /// Name of the limit: an instruction, or `read`.
    pub(super) limit_name: String,
}

impl Rates {
    fn push(&mut self, sample: &Sample) {
        self.wall.0.push(sample.tokens_per_s);
        self.cpu.0.extend(sample.tokens_per_cpu_s);
    }

    fn json(&self) -> Value {
        json!({ "tokens_per_s": self.wall.json(), "tokens_per_cpu_s": self.cpu.json() })
    }
}

impl Row {
    /// Names of the peers, in order.
    pub(super) fn engines(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for lane in &self.peers {
            if !names.contains(&lane.engine.as_str()) {
                names.push(&lane.engine);
            }
        }
        names
    }

    /// Setting of `engine` with the best median of `rate`.
    pub(super) fn best(&self, engine: &str, rate: impl Fn(&Rates) -> &Samples) -> Option<&Lane> {
        let lanes = self.peers.iter().filter(|lane| lane.engine == engine);
        let medians = lanes.filter_map(|lane| Some((lane, rate(&lane.rates).median()?)));
        medians.max_by(|a, b| a.1.total_cmp(&b.1)).map(|(lane, _)| lane)
    }

    /// Billions of operations or bytes per second, and the share of the limit.
    pub(super) fn rate_and_share(&self) -> Option<(f64, Option<f64>)> {
        let rate = self.ours.wall.median()? * self.share.per_token / 1e9;
        let share = self.share.limit.median().map(|limit| rate / limit);
        (self.share.per_token > 0.0).then_some((rate, share))
    }

    fn json(&self) -> Value {
        let lane = |lane: &Lane| {
            json!({
                "engine": lane.engine, "setting": lane.setting, "rates": lane.rates.json(),
                "ratio": self.ours.wall.ratio(&lane.rates.wall).map(|ratio| ratio.json()),
                "ratio_per_cpu_s": self.ours.cpu.ratio(&lane.rates.cpu).map(|ratio| ratio.json()),
            })
        };
        let Key { model, kv, depth, test, threads } = &self.key;
        let share = self.rate_and_share();
        json!({
            "model": model, "kv": kv.name(), "depth": depth, "test": test.to_string(), "threads": threads,
            "ruvllm": self.ours.json(), "peers": self.peers.iter().map(lane).collect::<Vec<_>>(),
            "limit": { "what": self.share.limit_name, "g_per_s": self.share.limit.json() },
            "g_per_s": share.map(|(rate, _)| rate), "share_of_limit": share.and_then(|(_, share)| share),
        })
    }
}

impl Report {
    pub(super) fn new(machine: Machine, command: String) -> Self {
        Self { machine, command, rows: Vec::new(), models: Vec::new() }
    }

    /// Adds results of this engine, and the limits of the same round.
    pub(super) fn add_ours(&mut self, plan: &Plan, facts: &ModelFacts, limits: &[Limits], outcome: &Outcome) {
        for sample in &outcome.samples {
            let row = self.row(plan, sample);
            row.ours.push(sample);
            let limits = limits.iter().find(|limits| limits.threads == sample.threads);
            row.share.add(plan, facts, sample.test, limits);
        }
        self.model(plan).ours = outcome.footprint.clone();
    }

    /// Adds results of a setting of a peer.
    pub(super) fn add_peer(&mut self, plan: &Plan, engine: &str, setting: &str, outcome: &Outcome) {
        let names = |e: &str, s: &str| e == engine && s == setting;
        for sample in &outcome.samples {
            let peers = &mut self.row(plan, sample).peers;
            let at = peers.iter().position(|lane| names(&lane.engine, &lane.setting)).unwrap_or_else(|| {
                let (engine, setting) = (engine.to_owned(), setting.to_owned());
                peers.push(Lane { engine, setting, rates: Rates::default() });
                peers.len() - 1
            });
            peers[at].rates.push(sample);
        }
        let peers = &mut self.model(plan).peers;
        peers.retain(|(e, s, _)| !names(e, s));
        peers.push((engine.to_owned(), setting.to_owned(), outcome.footprint.clone()));
    }

    /// True if a setting is clearly behind another of its engine in every row of the plan, by wall
    /// and by CPU time.
    pub(super) fn is_hopeless(&self, plan: &Plan, engine: &str, setting: &str) -> bool {
        let behind = |row: &Row, lane: &Lane, rate: fn(&Rates) -> &Samples| {
            let best = row.best(engine, rate).and_then(|best| rate(&best.rates).median());
            rate(&lane.rates).median().zip(best).is_none_or(|(own, best)| own < HOPELESS * best)
        };
        let of_plan = |row: &&Row| {
            row.key.model == plan.model_name() && row.key.depth == plan.depth && row.key.kv == plan.kv
        };
        let mut lanes = self.rows.iter().filter(of_plan).filter_map(|row| {
            Some((row, row.peers.iter().find(|lane| lane.engine == engine && lane.setting == setting)?))
        });
        lanes.all(|(row, lane)| behind(row, lane, |r| &r.wall) && behind(row, lane, |r| &r.cpu))
    }

    /// Maximum number of rounds of a row.
    pub(super) fn rounds(&self) -> usize {
        self.rows.iter().map(|row| row.ours.wall.0.len()).max().unwrap_or(0)
    }

    fn row(&mut self, plan: &Plan, sample: &Sample) -> &mut Row {
        let Sample { test, threads, .. } = *sample;
        let key = Key { model: plan.model_name(), kv: plan.kv, depth: plan.depth, test, threads };
        let at = self.rows.iter().position(|row| row.key == key).unwrap_or_else(|| {
            let (ours, share) = (Rates::default(), Share::default());
            self.rows.push(Row { key, ours, peers: Vec::new(), share });
            self.rows.len() - 1
        });
        &mut self.rows[at]
    }

    fn model(&mut self, plan: &Plan) -> &mut ModelReport {
        let name = plan.model_name();
        let at = self.models.iter().position(|model| model.name == name).unwrap_or_else(|| {
            self.models.push(ModelReport { name, ours: Footprint::default(), peers: Vec::new() });
            self.models.len() - 1
        });
        &mut self.models[at]
    }

    /// Writes every sample to `target/bench/`; returns the file.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(super) fn write_json(&self, workspace: &Workspace, section: &str) -> Result<PathBuf> {
        let footprint = |f: &Footprint| {
            json!({
                "load_ms": f.load_ms, "resident_bytes": f.resident_bytes, "anonymous_bytes": f.anonymous_bytes,
            })
        };
        let model = |model: &ModelReport| {
            let peer = |(engine, setting, f): &(String, String, Footprint)| json!({ "engine": engine, "setting": setting, "footprint": footprint(f) });
            let peers: Vec<Value> = model.peers.iter().map(peer).collect();
            json!({ "model": model.name, "ruvllm": footprint(&model.ours), "peers": peers })
        };
        let document = json!({
            "machine": self.machine,
            "command": self.command,
            "rows": self.rows.iter().map(Row::json).collect::<Vec<_>>(),
            "models": self.models.iter().map(model).collect::<Vec<_>>(),
        });
        write_json(workspace, section, &document)
    }
}

/// Writes `target/bench/NAME-SECONDS.json`; returns the file.
///
/// # Errors
/// If the file cannot be written.
pub(super) fn write_json(workspace: &Workspace, name: &str, document: &Value) -> Result<PathBuf> {
    let folder = workspace.path("target/bench");
    fs::create_dir_all(&folder).map_err(Error::io("create", &folder))?;
    let path = folder.join(format!("{name}-{}.json", xtask::unix_seconds()));
    fs::write(&path, format!("{document:#}\n")).map_err(Error::io("write", &path))?;
    Ok(path)
}

impl Share {
    fn add(&mut self, plan: &Plan, facts: &ModelFacts, test: Test, limits: Option<&Limits>) {
        let (work, tokens) = match test {
            Test::Prefill(n) => (facts.prefill_ops(n, plan.depth), n),
            Test::Decode(n) => (facts.decode_bytes(n, plan.depth, plan.kv), n),
        };
        self.per_token = work / tokens.max(1) as f64;
        let limit = limits.and_then(|limits| match test {
            Test::Prefill(_) => limits.best(facts.is_quantized).map(|p| (p.gop_s, p.name.clone())),
            Test::Decode(_) => Some((limits.read_gb_s, "read".to_owned())),
        });
        if let Some((rate, name)) = limit {
            self.limit.0.push(rate);
            self.limit_name = name;
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::bench::limits::Peak;

    pub(in crate::bench) fn plan() -> Plan {
        Plan {
            model: PathBuf::from("/m/m.gguf"),
            prompt: vec![],
            generate: vec![64],
            depth: 0,
            threads: vec![1],
            kv: Kv::F16,
        }
    }

    fn outcome(wall: f64, cpu: Option<f64>) -> Outcome {
        let sample = Sample { test: Test::Decode(64), threads: 1, tokens_per_s: wall, tokens_per_cpu_s: cpu };
        Outcome { samples: vec![sample], footprint: Footprint::default() }
    }

    /// Two rounds with a peer that has three settings.
    pub(in crate::bench) fn report() -> Report {
        let mut report = Report::new(Machine::for_tests(), "cargo xtask bench".to_owned());
        let fma = vec![Peak { name: "vfmadd".to_owned(), gop_s: 100.0 }];
        let limits = Limits { threads: 1, read_gb_s: 20.0, fma, int8: vec![] };
        for round in [0.0, 2.0] {
            let ours = outcome(9.0 + round, Some(9.5 + round));
            report.add_ours(&plan(), &ModelFacts::for_tests(), std::slice::from_ref(&limits), &ours);
            report.add_peer(&plan(), "llama.cpp", "a", &outcome(6.0 + round, None));
            report.add_peer(&plan(), "llama.cpp", "b", &outcome(4.0 + round, None));
            report.add_peer(&plan(), "llama.cpp", "c", &outcome(5.0 + round, Some(8.0 + round)));
        }
        report
    }

    #[test]
    fn the_best_setting_is_chosen_for_each_kind_of_time() {
        let report = report();
        let row = &report.rows[0];
        assert_eq!((report.rows.len(), report.rounds(), row.engines()), (1, 2, vec!["llama.cpp"]));
        let best =
            |rate: fn(&Rates) -> &Samples| row.best("llama.cpp", rate).map(|lane| lane.setting.as_str());
        assert_eq!(best(|rates| &rates.wall), Some("a"));
        assert_eq!(best(|rates| &rates.cpu), Some("c"));
        assert_eq!(row.json()["peers"][0]["rates"]["tokens_per_cpu_s"], Value::Null);
    }

    #[test]
    fn only_clear_losers_are_given_up() {
        let report = report();
        let is_hopeless = |setting| report.is_hopeless(&plan(), "llama.cpp", setting);
        assert!(!is_hopeless("a"), "best by wall time");
        assert!(is_hopeless("b"), "5 of 7 tokens per second, no CPU time");
        assert!(!is_hopeless("c"), "best by CPU time");
    }

    #[test]
    fn a_decoded_token_is_a_share_of_the_read_limit() {
        let report = report();
        let (rate, share) = report.rows[0].rate_and_share().expect("a known model");
        let bytes = ModelFacts::for_tests().decode_bytes(64, 0, Kv::F16) / 64.0;
        assert!((rate - 10.0 * bytes / 1e9).abs() < 1e-9);
        assert_eq!(share, Some(rate / 20.0));
    }
}
