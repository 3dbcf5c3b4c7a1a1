//! Adapter for any other engine, through a program that prints JSON lines.
//!
//! The program is called once per thread count, so that it may set up a pool for the whole process:
//! `PROGRAM --model FILE --kv f16 -p 128,512 -n 16 -d 0 -t 2 -r 1` (`-p 0` or `-n 0`: none). For
//! every test it prints one line with a JSON object: `test` (`pp512`, `tg16`), `threads`,
//! `tokens_per_s` (wall time, without loading), and, if it knows, `tokens_per_cpu_s` (per second of
//! CPU time of the process during the test, times threads). A line with `load_ms`, `resident_bytes`
//! or `anonymous_bytes` tells its footprint. Other lines are skipped. What it cannot run it does
//! not print, and its cell stays empty. In tables it has the name of its file.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{Engine, Footprint, Outcome, Sample, Setting, count, json_lines, number, test};
use crate::bench::plan::{Plan, absolute};
use xtask::Workspace;
use xtask::process::CommandLine;

use crate::Result;

pub(in crate::bench) struct JsonLines {
    name: String,
    program: PathBuf,
    workspace: Workspace,
}

impl JsonLines {
    pub(in crate::bench) fn new(workspace: &Workspace, path: &Path) -> Self {
        let name =
            path.file_stem().map_or_else(|| "peer".to_owned(), |stem| stem.to_string_lossy().into_owned());
        Self { name, program: absolute(path), workspace: workspace.clone() }
    }
}

impl Engine for JsonLines {
    fn name(&self) -> &str {
        &self.name
    }

    fn settings(&self, _plan: &Plan) -> Vec<Setting> {
        vec![Setting::only()]
    }

    fn commands(&self, plan: &Plan, _setting: &Setting) -> Vec<CommandLine> {
        let command = |&threads: &usize| {
            let plan = Plan { threads: vec![threads], ..plan.clone() };
            CommandLine::new(&self.program, self.workspace.root())
                .args(["--kv", plan.kv.name(), "--model"])
                .args([plan.model_path()])
                .args(plan.common_args())
        };
        plan.threads.iter().map(command).collect()
    }

    fn read(&self, command: &CommandLine, output: &str) -> Result<Outcome> {
        let mut outcome = Outcome::default();
        for line in json_lines(output) {
            if line["test"] != Value::Null {
                outcome.samples.push(Sample {
                    test: test(&line["test"], command)?,
                    threads: count(&line["threads"], command, "threads")?,
                    tokens_per_s: number(&line["tokens_per_s"], command, "tokens_per_s")?,
                    tokens_per_cpu_s: line["tokens_per_cpu_s"].as_f64(),
                });
                continue;
            }
            let Footprint { load_ms, resident_bytes, anonymous_bytes } = &mut outcome.footprint;
            for (value, field) in [
                (load_ms, "load_ms"),
                (resident_bytes, "resident_bytes"),
                (anonymous_bytes, "anonymous_bytes"),
            ] {
                *value = line[field].as_f64().or(*value);
            }
        }
        Ok(outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{plan, read, sample, shown};
    use super::*;
    use crate::Error;

    #[test]
    fn the_contract_is_one_command_per_thread_count() {
        let peer = JsonLines::new(&Workspace::at("/w"), Path::new("/p/candle-bench"));
        assert_eq!(peer.name(), "candle-bench");
        assert_eq!(
            shown(&peer, &Plan { generate: vec![], ..plan() }),
            [
                "/p/candle-bench --kv f16 --model /m/llama-1b-Q8_0.gguf -p 512 -n 0 -d 0 -t 1 -r 1",
                "/p/candle-bench --kv f16 --model /m/llama-1b-Q8_0.gguf -p 512 -n 0 -d 0 -t 2 -r 1",
            ]
        );
    }

    #[test]
    fn lines_of_the_contract_are_read_and_others_skipped() {
        let peer = JsonLines::new(&Workspace::at("/w"), Path::new("x"));
        let output = "loading...\n{\"test\":\"tg16\",\"threads\":2,\"tokens_per_s\":9.5,\"tokens_per_cpu_s\":9}\n\
            {\"load_ms\":5,\"resident_bytes\":7}\n";
        let outcome = read(&peer, output).expect("an outcome");
        assert_eq!(outcome.samples, [sample("tg16", 2, 9.5, Some(9.0))]);
        assert_eq!(outcome.footprint.resident_bytes, Some(7.0));
        assert_eq!(read(&peer, "cannot run this\n").expect("nothing"), Outcome::default());
        assert!(matches!(read(&peer, r#"{"test":"tg16"}"#), Err(Error::MissingField { .. })));
    }
}
