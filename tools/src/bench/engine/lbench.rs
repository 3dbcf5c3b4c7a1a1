//! `lbench`: a driver of llama.cpp's library that prints the CPU time of every test beside its wall
//! time, both without loading. It fills deep caches by copying the state of 512 computed tokens, as
//! speed does not depend on their values.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{Engine, Outcome, Sample, Setting, count, json_lines, llama_settings, number, test};
use crate::bench::plan::{Plan, absolute, list};
use xtask::Workspace;
use xtask::process::CommandLine;

use crate::Result;

/// Tokens whose state is copied.
const FILL: usize = 512;

pub(in crate::bench) struct Lbench {
    program: PathBuf,
    workspace: Workspace,
}

impl Lbench {
    pub(in crate::bench) fn new(workspace: &Workspace, path: &Path) -> Self {
        Self { program: absolute(path), workspace: workspace.clone() }
    }
}

impl Engine for Lbench {
    fn name(&self) -> &'static str {
        "llama.cpp"
    }

    /// A name of its own separates samples of two drivers of the library.
    fn settings(&self, plan: &Plan) -> Vec<Setting> {
        let settings =
            llama_settings(plan.kv, Some([&[], &["-norepack"]]), Some([&["-fa", "1"], &["-fa", "0"]]));
        let named = |setting: Setting| Setting { name: format!("{} (lbench)", setting.name), ..setting };
        settings.into_iter().map(named).collect()
    }

    /// One command per pair of a prompt length and a number of generated tokens: the program takes
    /// one of each.
    fn commands(&self, plan: &Plan, setting: &Setting) -> Vec<CommandLine> {
        let depth = plan.depth.to_string();
        let pair = |i: usize| {
            let tokens = |of: &[usize]| of.get(i).copied().unwrap_or(0).to_string();
            let command = CommandLine::new(&self.program, self.workspace.root())
                .args([plan.model_path()])
                .args(["-p", &tokens(&plan.prompt), "-n", &tokens(&plan.generate), "-d", &depth, "-r", "1"])
                .args(["-t", &list(&plan.threads)])
                .args(&setting.args);
            let can_copy = plan.depth > 0 && plan.depth.is_multiple_of(FILL);
            if can_copy { command.args(["-fastfill"]) } else { command }
        };
        (0..plan.prompt.len().max(plan.generate.len())).map(pair).collect()
    }

    fn read(&self, command: &CommandLine, output: &str) -> Result<Outcome> {
        let mut outcome = Outcome::default();
        for line in json_lines(output) {
            if line["mem"] == "end" {
                let bytes = |field: &str| line[field].as_f64().map(|mib| mib * 1_048_576.0);
                outcome.footprint.resident_bytes = bytes("VmRSS_MiB");
                outcome.footprint.anonymous_bytes = bytes("RssAnon_MiB");
            } else if let Some(seconds) = line["load_wall_s"].as_f64() {
                outcome.footprint.load_ms = Some(seconds * 1e3);
            } else if line["test"] != Value::Null {
                outcome.samples.push(Sample {
                    test: test(&line["test"], command)?,
                    threads: count(&line["t"], command, "t")?,
                    tokens_per_s: number(&line["tps"], command, "tps")?,
                    tokens_per_cpu_s: line["tps_cpu"].as_f64(),
                });
            }
        }
        Ok(outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{plan, read, sample, shown};
    use super::*;
    use crate::bench::kv::Kv;

    #[test]
    fn commands_pair_the_tests_and_copy_deep_caches() {
        let peer = Lbench::new(&Workspace::at("/w"), Path::new("/p/lbench"));
        let deep = Plan { prompt: vec![128, 512], depth: 4096, kv: Kv::Q8, ..plan() };
        assert_eq!(
            shown(&peer, &deep)[..2],
            [
                "/p/lbench /m/llama-1b-Q8_0.gguf -p 128 -n 64 -d 4096 -r 1 -t 1,2 -ctk q8_0 -ctv q8_0 -fa 1 -fastfill",
                "/p/lbench /m/llama-1b-Q8_0.gguf -p 512 -n 0 -d 4096 -r 1 -t 1,2 -ctk q8_0 -ctv q8_0 -fa 1 -fastfill",
            ]
        );
        assert!(!shown(&peer, &Plan { depth: 100, ..plan() })[0].contains("-fastfill"));
    }

    #[test]
    fn answers_are_read_with_their_cpu_time() {
        let output = r#"{"model":"m","bytes":1,"params":1,"load_wall_s":0.25,"load_cpu_s":0.1}
{"mem":"after_load","VmRSS_MiB":5,"RssAnon_MiB":1}
{"prefill":4096,"t":2,"wall":1.0,"cpu":2.0,"tps_cpu":8.0}
{"test":"pp512","d":0,"t":2,"wall":1.0,"cpu":2.0,"tps":512.0,"tps_cpu":500.5}
{"mem":"end","VmHWM_MiB":9,"VmRSS_MiB":8,"RssAnon_MiB":2}
"#;
        let outcome = read(&Lbench::new(&Workspace::at("/w"), Path::new("x")), output).expect("an outcome");
        assert_eq!(outcome.samples, [sample("pp512", 2, 512.0, Some(500.5))]);
        assert_eq!(outcome.footprint.load_ms, Some(250.0));
        assert_eq!(outcome.footprint.anonymous_bytes, Some(2.0 * 1_048_576.0));
    }
}
