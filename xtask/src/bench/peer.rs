//! The two engines as command lines: how to ask each for the same test, how to read its answer.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::Value;

use crate::process::CommandLine;
use crate::{Error, Result, Workspace};

/// The tests of one model with one thread count.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) model: PathBuf,
    pub(super) prompt: Vec<usize>,
    pub(super) generate: Vec<usize>,
    pub(super) depth: usize,
    pub(super) threads: usize,
    pub(super) kv: String,
}

/// One measured test.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Sample {
    /// `pp512` or `tg64`.
    pub(super) test: String,
    /// Wall-clock tokens per second.
    pub(super) tokens_per_s: f64,
    /// Tokens per second of the process's own CPU time, times threads; absent if the program does not say.
    pub(super) tokens_per_cpu_s: Option<f64>,
}

/// What a run of this engine says beside its tests.
#[derive(Clone, Debug, Default)]
pub(super) struct Footprint {
    pub(super) load_ms: Option<f64>,
    pub(super) resident_bytes: Option<u64>,
    pub(super) anonymous_bytes: Option<u64>,
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, threads {}, depth {}", self.model_name(), self.threads, self.depth)
    }
}

impl Plan {
    /// The model's file name without folders and extension.
    pub(super) fn model_name(&self) -> String {
        self.model.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned())
    }

    /// The flags that both programs spell the same way, one repetition each.
    fn common_args(&self) -> Vec<String> {
        let list = |values: &[usize]| values.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
        [
            ("-p", list(&self.prompt)),
            ("-n", list(&self.generate)),
            ("-d", self.depth.to_string()),
            ("-t", self.threads.to_string()),
            ("-r", "1".to_owned()),
        ]
        .into_iter()
        .flat_map(|(flag, value)| [flag.to_owned(), value])
        .collect()
    }

    /// The model by absolute path, as both programs run in the workspace's root.
    fn model_path(&self) -> PathBuf {
        std::path::absolute(&self.model).unwrap_or_else(|_| self.model.clone())
    }
}

/// This workspace's own program.
pub(super) struct Ruvllm {
    program: PathBuf,
    workspace: Workspace,
}

impl Ruvllm {
    /// The program without building it, for showing commands.
    pub(super) fn unbuilt(workspace: &Workspace) -> Self {
        Self { program: workspace.path("target/release/ruvllm"), workspace: workspace.clone() }
    }

    /// A program that exists already.
    pub(super) fn at(workspace: &Workspace, program: &Path) -> Result<Self> {
        let program = std::path::absolute(program).map_err(Error::io("find", program))?;
        Ok(Self { program, workspace: workspace.clone() })
    }

    /// Builds the release program and finds where cargo put it.
    pub(super) fn build(workspace: &Workspace) -> Result<Self> {
        #[derive(Deserialize)]
        struct Message {
            executable: Option<PathBuf>,
        }
        let command = CommandLine::cargo(workspace)
            .args(["build", "--release", "--package", "ruvllm-cli", "--bin", "ruvllm"])
            .args(["--message-format", "json-render-diagnostics"]);
        let output = command.output_with_progress()?;
        let mut executables =
            output.lines().filter_map(|line| serde_json::from_str::<Message>(line).ok()?.executable);
        let program = executables.next_back().ok_or_else(|| Error::MissingField {
            command: command.display(),
            field: "executable".to_owned(),
        })?;
        Ok(Self { program, workspace: workspace.clone() })
    }

    pub(super) fn command(&self, plan: &Plan) -> CommandLine {
        CommandLine::new(&self.program, self.workspace.root())
            .args(["bench", "--json", "--kv", &plan.kv, "--model"])
            .args([plan.model_path()])
            .args(plan.common_args())
    }

    pub(super) fn run(&self, plan: &Plan) -> Result<(Vec<Sample>, Footprint)> {
        let command = self.command(plan);
        let document = json(&command)?;
        let results = array(&document["results"], &command, "results")?;
        let sample = |result: &Value| {
            Ok(Sample {
                test: text(&result["test"], &command, "results[].test")?,
                tokens_per_s: number(&result["tokens_per_s"]["median"], &command, "tokens_per_s.median")?,
                tokens_per_cpu_s: result["tokens_per_cpu_s"]["median"].as_f64(),
            })
        };
        let samples = results.iter().map(sample).collect::<Result<_>>()?;
        let footprint = Footprint {
            load_ms: document["load_ms"].as_f64(),
            resident_bytes: document["resident_bytes"].as_u64(),
            anonymous_bytes: document["anonymous_bytes"].as_u64(),
        };
        Ok((samples, footprint))
    }
}

/// llama.cpp's own benchmark program.
pub(super) struct LlamaBench {
    program: PathBuf,
    workspace: Workspace,
    settings: Vec<Setting>,
}

/// One way to run the peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Setting {
    /// For column headings.
    pub(super) name: String,
    args: Vec<String>,
}

impl LlamaBench {
    /// Asks the program which settings it offers.
    pub(super) fn new(workspace: &Workspace, path: &str) -> Result<Self> {
        let program = std::path::absolute(path).map_err(Error::io("find", path))?;
        let help = CommandLine::new(&program, workspace.root()).args(["--help"]).output()?;
        Ok(Self { program, workspace: workspace.clone(), settings: settings(&help) })
    }

    pub(super) fn settings(&self) -> &[Setting] {
        &self.settings
    }

    pub(super) fn command(&self, plan: &Plan, setting: &Setting) -> CommandLine {
        CommandLine::new(&self.program, self.workspace.root())
            .args(["-o", "json", "-ctk", &plan.kv, "-ctv", &plan.kv, "-m"])
            .args([plan.model_path()])
            .args(plan.common_args())
            .args(&setting.args)
    }

    pub(super) fn run(&self, plan: &Plan, setting: &Setting) -> Result<Vec<Sample>> {
        let command = self.command(plan, setting);
        let document = json(&command)?;
        let results = array(&document, &command, "results")?;
        let sample = |result: &Value| {
            let (prompt, generate) = (result["n_prompt"].as_u64(), result["n_gen"].as_u64());
            let test = match (prompt, generate) {
                (Some(prompt), Some(0)) => format!("pp{prompt}"),
                (Some(0), Some(generate)) => format!("tg{generate}"),
                _ => return Err(missing(&command, "n_prompt and n_gen")),
            };
            let tokens_per_s = number(&result["avg_ts"], &command, "avg_ts")?;
            Ok(Sample { test, tokens_per_s, tokens_per_cpu_s: None })
        };
        results.iter().map(sample).collect()
    }
}

/// Every combination of repacking and flash attention that the help text offers.
fn settings(help: &str) -> Vec<Setting> {
    let mut settings = vec![Setting { name: String::new(), args: Vec::new() }];
    let mut offer = |flag: &str, choices: [(&str, &str); 2]| {
        let with = |setting: &Setting, (name, value): (&str, &str)| Setting {
            name: if setting.name.is_empty() { name.to_owned() } else { format!("{}, {name}", setting.name) },
            args: setting.args.iter().cloned().chain([flag.to_owned(), value.to_owned()]).collect(),
        };
        settings = settings.iter().flat_map(|setting| choices.map(|choice| with(setting, choice))).collect();
    };
    if help.contains("--repack <0|1>") {
        offer("--repack", [("repack", "1"), ("no repack", "0")]);
    }
    if help.contains("--flash-attn <on|off") {
        offer("-fa", [("fa off", "off"), ("fa on", "on")]);
    } else if help.contains("--flash-attn") {
        offer("-fa", [("fa off", "0"), ("fa on", "1")]);
    }
    if settings[0].name.is_empty() {
        "default".clone_into(&mut settings[0].name);
    }
    settings
}

fn json(command: &CommandLine) -> Result<Value> {
    serde_json::from_str(&command.output()?)
        .map_err(|source| Error::Json { command: command.display(), source })
}

fn missing(command: &CommandLine, field: &str) -> Error {
    Error::MissingField { command: command.display(), field: field.to_owned() }
}

fn number(value: &Value, command: &CommandLine, field: &str) -> Result<f64> {
    value.as_f64().ok_or_else(|| missing(command, field))
}

fn text(value: &Value, command: &CommandLine, field: &str) -> Result<String> {
    value.as_str().map(str::to_owned).ok_or_else(|| missing(command, field))
}

fn array<'a>(value: &'a Value, command: &CommandLine, field: &str) -> Result<&'a Vec<Value>> {
    value.as_array().ok_or_else(|| missing(command, field))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Plan {
        let model = PathBuf::from("/m/llama-1b-Q8_0.gguf");
        Plan { model, prompt: vec![512], generate: vec![64], depth: 0, threads: 2, kv: "f16".to_owned() }
    }

    /// A program that prints `output` whatever it is asked.
    fn script(dir: &Path, output: &str) -> PathBuf {
        use std::os::unix::fs::PermissionsExt as _;
        let path = dir.join("program");
        std::fs::write(&path, format!("#!/bin/sh\ncat <<'END'\n{output}\nEND\n")).expect("a script");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("permissions");
        path
    }

    #[test]
    fn settings_are_those_the_help_offers() {
        let names = |help: &str| settings(help).into_iter().map(|setting| setting.name).collect::<Vec<_>>();
        assert_eq!(names("-t, --threads <n>"), ["default"]);
        assert_eq!(names("-fa, --flash-attn <0|1>"), ["fa off", "fa on"]);
        let both = "-fa, --flash-attn <on|off|auto> (default: auto)\n --repack <0|1> (default: 1)";
        assert_eq!(names(both), ["repack, fa off", "repack, fa on", "no repack, fa off", "no repack, fa on"]);
        assert_eq!(settings(both)[3].args, ["--repack", "0", "-fa", "on"]);
    }

    #[test]
    fn answers_of_the_peer_are_read() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let output = r#"[{"n_prompt":512,"n_gen":0,"avg_ts":31.5},{"n_prompt":0,"n_gen":64,"avg_ts":9.25}]"#;
        let workspace = Workspace::at(dir.path());
        let path = script(dir.path(), output);
        let peer = LlamaBench::new(&workspace, &path.to_string_lossy()).expect("a peer");
        let samples = peer.run(&plan(), &peer.settings()[0]).expect("samples");
        let of =
            |test: &str, tokens_per_s| Sample { test: test.to_owned(), tokens_per_s, tokens_per_cpu_s: None };
        assert_eq!(samples, [of("pp512", 31.5), of("tg64", 9.25)]);
    }

    #[test]
    fn answers_of_this_engine_are_read_and_gaps_are_errors() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let output = r#"{"results":[{"test":"pp512","tokens_per_s":{"median":40.5},
            "tokens_per_cpu_s":{"median":42.0}}],"load_ms":12.5,"resident_bytes":1000}"#;
        let workspace = Workspace::at(dir.path());
        let ours = Ruvllm { program: script(dir.path(), output), workspace: workspace.clone() };
        let (samples, footprint) = ours.run(&plan()).expect("samples");
        assert_eq!((samples[0].tokens_per_s, samples[0].tokens_per_cpu_s), (40.5, Some(42.0)));
        assert_eq!((footprint.load_ms, footprint.anonymous_bytes), (Some(12.5), None));

        let ours = Ruvllm { program: script(dir.path(), r#"{"results":[{"test":"pp512"}]}"#), workspace };
        assert!(matches!(ours.run(&plan()), Err(Error::MissingField { .. })));
    }

    #[test]
    fn both_programs_get_the_same_test() {
        let workspace = Workspace::at("/w");
        let ours = Ruvllm::unbuilt(&workspace).command(&plan()).display();
        assert!(ours.ends_with("--model /m/llama-1b-Q8_0.gguf -p 512 -n 64 -d 0 -t 2 -r 1"), "{ours}");
    }
}
