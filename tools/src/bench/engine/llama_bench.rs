//! llama.cpp's `llama-bench`. Its times exclude loading. It reports no CPU time, and that of its
//! process would include loading and warm-up, so there is none.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{Engine, Footprint, Outcome, Sample, Setting, count, json, llama_settings, missing, number};
use crate::bench::kv::Kv;
use crate::bench::plan::{Plan, Test, absolute};
use xtask::Workspace;
use xtask::process::CommandLine;

use crate::Result;

pub(in crate::bench) struct LlamaBench {
    program: PathBuf,
    workspace: Workspace,
    help: String,
}

impl LlamaBench {
    /// Detects the settings that the program offers.
    pub(in crate::bench) fn new(workspace: &Workspace, path: &Path) -> Result<Self> {
        let program = absolute(path);
        let help = CommandLine::new(&program, workspace.root()).args(["--help"]).output()?;
        Ok(Self { program, workspace: workspace.clone(), help })
    }

    /// The settings of the help text.
    fn offered(&self, kv: Kv) -> Vec<Setting> {
        let offers = |text: &str| self.help.contains(text);
        let repack: [&[&str]; 2] = [&["--repack", "1"], &["--repack", "0"]];
        let words: [&[&str]; 2] = [&["-fa", "on"], &["-fa", "off"]];
        let digits: [&[&str]; 2] = [&["-fa", "1"], &["-fa", "0"]];
        let flash = match (offers("--flash-attn <on|off"), offers("--flash-attn")) {
            (true, _) => Some(words),
            (false, true) => Some(digits),
            (false, false) => None,
        };
        llama_settings(kv, offers("--repack <0|1>").then_some(repack), flash)
    }
}

impl Engine for LlamaBench {
    fn name(&self) -> &'static str {
        "llama.cpp"
    }

    fn settings(&self, plan: &Plan) -> Vec<Setting> {
        self.offered(plan.kv)
    }

    fn commands(&self, plan: &Plan, setting: &Setting) -> Vec<CommandLine> {
        let command = CommandLine::new(&self.program, self.workspace.root())
            .args(["-o", "json", "-m"])
            .args([plan.model_path()])
            .args(plan.common_args())
            .args(&setting.args);
        vec![command]
    }

    fn read(&self, command: &CommandLine, output: &str) -> Result<Outcome> {
        let document = json(command, output)?;
        let results = document.as_array().ok_or_else(|| missing(command, "results"))?;
        let sample = |result: &Value| {
            let prompt = count(&result["n_prompt"], command, "n_prompt")?;
            let generate = count(&result["n_gen"], command, "n_gen")?;
            let test = if generate == 0 { Test::Prefill(prompt) } else { Test::Decode(generate) };
            Ok(Sample {
                test,
                threads: count(&result["n_threads"], command, "n_threads")?,
                tokens_per_s: number(&result["avg_ts"], command, "avg_ts")?,
                tokens_per_cpu_s: None,
            })
        };
        let samples = results.iter().map(sample).collect::<Result<_>>()?;
        Ok(Outcome { samples, footprint: Footprint::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{plan, read, sample, shown};
    use super::*;

    fn program(help: &str) -> LlamaBench {
        LlamaBench { program: "/p/llama-bench".into(), workspace: Workspace::at("/w"), help: help.to_owned() }
    }

    #[test]
    fn settings_are_those_the_help_offers() {
        let names = |help: &str| {
            program(help).offered(Kv::F16).into_iter().map(|setting| setting.name).collect::<Vec<_>>()
        };
        assert_eq!(names("-t, --threads <n>"), [""]);
        assert_eq!(names("-fa, --flash-attn <0|1>"), ["fa on", "fa off"]);
        let both = "-fa, --flash-attn <on|off|auto> (default: auto)\n --repack <0|1> (default: 1)";
        assert_eq!(names(both).len(), 4);
        assert_eq!(
            shown(&program(both), &plan())[3],
            "/p/llama-bench -o json -m /m/llama-1b-Q8_0.gguf -p 512 -n 64 -d 0 -t 1,2 -r 1 -ctk f16 -ctv f16 \
             --repack 0 -fa off"
        );
    }

    #[test]
    fn answers_are_read() {
        let output = r#"[{"n_prompt":512,"n_gen":0,"n_threads":1,"avg_ts":31.5},
            {"n_prompt":0,"n_gen":64,"n_threads":2,"avg_ts":9.25}]"#;
        let outcome = read(&program(""), output).expect("an outcome");
        assert_eq!(outcome.samples, [sample("pp512", 1, 31.5, None), sample("tg64", 2, 9.25, None)]);
        assert!(read(&program(""), r#"[{"n_prompt":512}]"#).is_err());
    }
}
