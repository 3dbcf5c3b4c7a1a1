//! This workspace's own program.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{Engine, Footprint, Outcome, Sample, Setting, count, json, missing, number, test};
use crate::bench::plan::{Plan, absolute};
use crate::bench::programs;
use xtask::Workspace;
use xtask::process::CommandLine;

use crate::Result;

pub(in crate::bench) struct Ruvllm {
    program: PathBuf,
    workspace: Workspace,
}

impl Ruvllm {
    /// The program without a build, for printing commands.
    pub(in crate::bench) fn unbuilt(workspace: &Workspace) -> Self {
        Self { program: workspace.path("target/release/ruvllm"), workspace: workspace.clone() }
    }

    /// An existing program.
    pub(in crate::bench) fn at(workspace: &Workspace, program: &Path) -> Self {
        Self { program: absolute(program), workspace: workspace.clone() }
    }

    /// Builds the release program.
    pub(in crate::bench) fn build(workspace: &Workspace) -> Result<Self> {
        let program = programs::build(workspace, "ruvllm-cli", "ruvllm")?;
        Ok(Self { program, workspace: workspace.clone() })
    }
}

impl Engine for Ruvllm {
    fn name(&self) -> &'static str {
        "ruvllm"
    }

    fn settings(&self, _plan: &Plan) -> Vec<Setting> {
        vec![Setting::only()]
    }

    fn commands(&self, plan: &Plan, _setting: &Setting) -> Vec<CommandLine> {
        // The program fills the cache with the first thread count, and the largest is the fastest.
        let mut plan = plan.clone();
        plan.threads.sort_unstable_by(|a, b| b.cmp(a));
        let command = CommandLine::new(&self.program, self.workspace.root())
            .args(["bench", "--json", "--kv", plan.kv.name(), "--model"])
            .args([plan.model_path()])
            .args(plan.common_args());
        vec![command]
    }

    fn read(&self, command: &CommandLine, output: &str) -> Result<Outcome> {
        let document = json(command, output)?;
        let results = document["results"].as_array().ok_or_else(|| missing(command, "results"))?;
        let sample = |result: &Value| {
            Ok(Sample {
                test: test(&result["test"], command)?,
                threads: count(&result["threads"], command, "threads")?,
                tokens_per_s: number(&result["tokens_per_s"]["median"], command, "tokens_per_s.median")?,
                tokens_per_cpu_s: result["tokens_per_cpu_s"]["median"].as_f64(),
            })
        };
        let mut samples = results.iter().map(sample).collect::<Result<Vec<_>>>()?;
        samples.sort_by_key(|sample| sample.threads);
        let footprint = Footprint {
            load_ms: document["load_ms"].as_f64(),
            resident_bytes: document["resident_bytes"].as_f64(),
            anonymous_bytes: document["anonymous_bytes"].as_f64(),
        };
        Ok(Outcome { samples, footprint })
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{plan, read, sample, shown};
    use super::*;
    use crate::Error;

    #[test]
    fn the_command_asks_for_the_plan() {
        let shown = shown(&Ruvllm::unbuilt(&Workspace::at("/w")), &plan());
        let end = "bench --json --kv f16 --model /m/llama-1b-Q8_0.gguf -p 512 -n 64 -d 0 -t 2,1 -r 1";
        assert!(shown.len() == 1 && shown[0].ends_with(end), "{shown:?}");
    }

    #[test]
    fn answers_are_read_and_gaps_are_errors() {
        let output = r#"{"results":[{"test":"pp512","threads":2,"tokens_per_s":{"median":40.5},
            "tokens_per_cpu_s":{"median":42.0}}],"load_ms":12.5,"resident_bytes":1000}"#;
        let ours = Ruvllm::unbuilt(&Workspace::at("/w"));
        let outcome = read(&ours, output).expect("an outcome");
        assert_eq!(outcome.samples, [sample("pp512", 2, 40.5, Some(42.0))]);
        let footprint =
            Footprint { load_ms: Some(12.5), resident_bytes: Some(1000.0), anonymous_bytes: None };
        assert_eq!(outcome.footprint, footprint);
        let gap = read(&ours, r#"{"results":[{"test":"pp512","threads":1}]}"#);
        assert!(matches!(gap, Err(Error::MissingField { .. })));
        assert!(matches!(read(&ours, "no JSON"), Err(Error::Json { .. })));
    }
}
