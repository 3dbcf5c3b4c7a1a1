//! Engines as command lines: commands for the same tests, parsers of their output.

mod json_lines;
mod lbench;
mod llama_bench;
mod ruvllm;

use serde_json::Value;

use super::kv::Kv;
use super::plan::{Plan, Test};
use xtask::Workspace;
use xtask::process::CommandLine;

use crate::{Error, Result};

pub(super) use json_lines::JsonLines;
pub(super) use lbench::Lbench;
pub(super) use llama_bench::LlamaBench;
pub(super) use ruvllm::Ruvllm;

/// A measured engine.
pub(super) trait Engine {
    /// Name in tables. Two programs that drive the same engine have the same name.
    fn name(&self) -> &str;

    /// Settings for this plan; empty if the engine cannot run it.
    fn settings(&self, plan: &Plan) -> Vec<Setting>;

    /// Commands that together run the plan once.
    fn commands(&self, plan: &Plan, setting: &Setting) -> Vec<CommandLine>;

    /// Parses the output of a command.
    ///
    /// # Errors
    /// If the output is not in the program's format.
    fn read(&self, command: &CommandLine, output: &str) -> Result<Outcome>;

    /// Runs the plan once.
    ///
    /// # Errors
    /// If a program cannot be started, fails, or prints something unknown.
    fn run(&self, plan: &Plan, setting: &Setting) -> Result<Outcome> {
        let mut all = Outcome::default();
        for command in self.commands(plan, setting) {
            let outcome = self.read(&command, &command.output()?)?;
            all.samples.extend(outcome.samples);
            all.footprint = outcome.footprint;
        }
        Ok(all)
    }
}

/// A setting of an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Setting {
    /// Name in tables; empty for the only setting.
    pub(super) name: String,
    args: Vec<String>,
}

impl Setting {
    fn only() -> Self {
        Self::new("", &[])
    }

    fn new(name: &str, args: &[&str]) -> Self {
        Self { name: name.to_owned(), args: args.iter().map(|&arg| arg.to_owned()).collect() }
    }

    /// Combines two settings.
    fn and(&self, other: &Self) -> Self {
        let names = [&self.name, &other.name].map(String::as_str);
        let names: Vec<&str> = names.into_iter().filter(|name| !name.is_empty()).collect();
        Self { name: names.join(", "), args: self.args.iter().chain(&other.args).cloned().collect() }
    }
}

/// One measured test.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Sample {
    pub(super) test: Test,
    pub(super) threads: usize,
    /// Wall-clock tokens per second.
    pub(super) tokens_per_s: f64,
    /// Tokens per second of the process's own CPU time during the test, times threads; absent if
    /// the program does not say, or can only say it together with loading.
    pub(super) tokens_per_cpu_s: Option<f64>,
}

/// Load time and memory as reported by a program.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Footprint {
    pub(super) load_ms: Option<f64>,
    pub(super) resident_bytes: Option<f64>,
    pub(super) anonymous_bytes: Option<f64>,
}

/// Result of one run.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Outcome {
    pub(super) samples: Vec<Sample>,
    pub(super) footprint: Footprint,
}

/// Parses `--peer NAME=PATH`.
///
/// # Errors
/// [`Error::UnknownPeer`] for another name or no path; when the program does not run.
pub(super) fn peer(workspace: &Workspace, argument: &str) -> Result<Box<dyn Engine>> {
    match argument.split_once('=') {
        Some(("llama-bench", path)) => Ok(Box::new(LlamaBench::new(workspace, path.as_ref())?)),
        Some(("lbench", path)) => Ok(Box::new(Lbench::new(workspace, path.as_ref()))),
        Some(("json", path)) => Ok(Box::new(JsonLines::new(workspace, path.as_ref()))),
        _ => Err(Error::UnknownPeer { name: argument.to_owned() }),
    }
}

/// Every combination of repacking, flash attention and, where several types of llama.cpp stand
/// beside one of ours, the type of keys and values. Quantized values need flash attention in
/// llama.cpp, so that there is one choice less with them.
///
/// `repack` and `flash` are the arguments for on and off; `None` where the program offers no
/// choice.
fn llama_settings(kv: Kv, repack: Option<[&[&str]; 2]>, flash: Option<[&[&str]; 2]>) -> Vec<Setting> {
    let choices = |names: [&str; 2], args: Option<[&[&str]; 2]>| -> Vec<Setting> {
        args.map_or_else(
            || vec![Setting::only()],
            |args| names.into_iter().zip(args).map(|(name, args)| Setting::new(name, args)).collect(),
        )
    };
    let repack = choices(["repack", "no repack"], repack);
    let names = kv.llama_names();
    let mut settings = Vec::new();
    for &name in names {
        let said = if names.len() > 1 { name } else { "" };
        let of_type = Setting::new(said, &["-ctk", name, "-ctv", name]);
        let mut flash = choices(["fa on", "fa off"], flash);
        if matches!(name, "q8_0" | "q4_0") {
            flash.truncate(1);
        }
        for repack in &repack {
            settings.extend(flash.iter().map(|flash| of_type.and(repack).and(flash)));
        }
    }
    settings
}

/// The JSON objects among the lines of `output`; other lines are skipped.
fn json_lines(output: &str) -> impl Iterator<Item = Value> {
    output.lines().filter_map(|line| serde_json::from_str(line).ok()).filter(Value::is_object)
}

fn json(command: &CommandLine, output: &str) -> Result<Value> {
    serde_json::from_str(output).map_err(|source| Error::Json { command: command.display(), source })
}

fn missing(command: &CommandLine, field: &str) -> Error {
    Error::MissingField { command: command.display(), field: field.to_owned() }
}

fn number(value: &Value, command: &CommandLine, field: &str) -> Result<f64> {
    value.as_f64().ok_or_else(|| missing(command, field))
}

fn count(value: &Value, command: &CommandLine, field: &str) -> Result<usize> {
    value.as_u64().and_then(|n| usize::try_from(n).ok()).ok_or_else(|| missing(command, field))
}

fn test(value: &Value, command: &CommandLine) -> Result<Test> {
    value.as_str().and_then(Test::parse).ok_or_else(|| missing(command, "test"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::{Path, PathBuf};

    pub(super) fn plan() -> Plan {
        let model = PathBuf::from("/m/llama-1b-Q8_0.gguf");
        Plan { model, prompt: vec![512], generate: vec![64], depth: 0, threads: vec![1, 2], kv: Kv::F16 }
    }

    pub(super) fn shown(engine: &dyn Engine, plan: &Plan) -> Vec<String> {
        let settings = engine.settings(plan);
        settings.iter().flat_map(|s| engine.commands(plan, s)).map(|command| command.display()).collect()
    }

    pub(super) fn read(engine: &dyn Engine, output: &str) -> Result<Outcome> {
        engine.read(&CommandLine::new("program", Path::new(".")), output)
    }

    pub(super) fn sample(test: &str, threads: usize, tokens_per_s: f64, per_cpu_s: Option<f64>) -> Sample {
        let test = Test::parse(test).expect("the name of a test");
        Sample { test, threads, tokens_per_s, tokens_per_cpu_s: per_cpu_s }
    }

    #[test]
    fn quantized_values_leave_only_flash_attention() {
        let names = |kv, repack, flash| -> Vec<String> {
            llama_settings(kv, repack, flash).into_iter().map(|setting| setting.name).collect()
        };
        let (repack, flash): ([&[&str]; 2], [&[&str]; 2]) =
            ([&[], &["-norepack"]], [&["-fa", "1"], &["-fa", "0"]]);
        assert_eq!(
            names(Kv::F16, Some(repack), Some(flash)),
            ["repack, fa on", "repack, fa off", "no repack, fa on", "no repack, fa off"]
        );
        assert_eq!(names(Kv::Q8, Some(repack), Some(flash)), ["repack, fa on", "no repack, fa on"]);
        assert_eq!(names(Kv::F16, None, None), [""]);
        assert_eq!(
            llama_settings(Kv::Q4, Some(repack), Some(flash))[1].args,
            ["-ctk", "q4_0", "-ctv", "q4_0", "-norepack", "-fa", "1"]
        );
        let tiered = names(Kv::Tiered, None, Some(flash));
        assert_eq!(tiered, ["f16, fa on", "f16, fa off", "q8_0, fa on", "q4_0, fa on"]);
    }

    #[test]
    fn unknown_peers_are_refused_by_name() {
        for argument in ["llama-bench", "candle=x", ""] {
            let Err(error) = peer(&Workspace::at("/w"), argument) else { panic!("{argument} is no peer") };
            assert!(matches!(error, Error::UnknownPeer { .. }), "{error}");
        }
    }

    #[test]
    fn outcomes_of_all_commands_are_joined() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("peer");
        let script = "#!/bin/sh\nwhile [ \"$1\" != -t ]; do shift; done\n\
            echo '{\"test\":\"tg8\",\"threads\":'\"$2\"',\"tokens_per_s\":5}'\n";
        std::fs::write(&path, script).expect("a script");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("permissions");
        let engine = JsonLines::new(&Workspace::at(dir.path()), &path);
        let outcome = engine.run(&plan(), &Setting::only()).expect("an outcome");
        assert_eq!(outcome.samples, [sample("tg8", 1, 5.0, None), sample("tg8", 2, 5.0, None)]);
    }
}
