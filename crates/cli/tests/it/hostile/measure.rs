//! Peak memory and CPU time of one run of the program.
//!
//! The system reports both only for ended children, all of them together. So each run is the only
//! child of a separate process, which is this test executable again.

use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};
use std::{env, fs};

use nix::sys::resource::{UsageWho, getrusage};
use serde_json::{Value, json};

use crate::program::command;

/// Memory limit of a run in bytes.
const MEMORY: u64 = 256 << 20;

/// CPU time limit of a run in seconds, user and system. It tells runs that end from runs that go
/// on and on: several times what the slowest case takes, as programs on one core slow each other.
const CPU_SECONDS: f64 = 30.0;

/// Time after which a run counts as hanging. It bounds the test, not the program.
const HANGS_AFTER: Duration = Duration::from_secs(120);

/// Variable with the file of the run to measure.
const JOB: &str = "RUVLLM_MEASURED_RUN";

/// A run of the program that has ended.
#[derive(Debug)]
pub(super) struct Measured {
    /// `None` if a signal ended it.
    code: Option<i64>,
    stdout: String,
    stderr: String,
    cpu_seconds: f64,
    peak_bytes: u64,
}

/// Runs the program to its end in a separate process. It has the variables that `command` sets, and
/// `input` on standard input.
pub(super) fn measured(command: &Command, input: &Path) -> Measured {
    let folder = tempfile::tempdir().unwrap();
    let job = folder.path().join("job");
    let arguments: Vec<&str> = command.get_args().map(|argument| argument.to_str().unwrap()).collect();
    fs::write(
        &job,
        json!({"program": command.get_program().to_str(), "arguments": arguments, "input": input})
            .to_string(),
    )
    .unwrap();
    let mut outer = Command::new(env::current_exe().unwrap());
    outer.args(["--exact", "hostile::measure::runs_are_measured", "--test-threads", "1"]).env(JOB, &job);
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => outer.env(name, value),
            None => outer.env_remove(name),
        };
    }
    let output = outer.stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let result: Value = serde_json::from_slice(&fs::read(job).unwrap()).unwrap();
    let text = |name: &str| result[name].as_str().unwrap().to_owned();
    Measured {
        code: result["code"].as_i64(),
        stdout: text("stdout"),
        stderr: text("stderr"),
        cpu_seconds: result["cpu_seconds"].as_f64().unwrap(),
        peak_bytes: result["peak_bytes"].as_u64().unwrap(),
    }
}

/// Body of the process in between: runs the job and replaces its file with the result.
fn run_job(path: &Path) {
    let job: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    let [stdout, stderr] = ["stdout", "stderr"].map(|name| path.with_extension(name));
    let arguments = job["arguments"].as_array().unwrap().iter().map(|argument| argument.as_str().unwrap());
    let mut child = Command::new(job["program"].as_str().unwrap())
        .args(arguments)
        .env_remove(JOB)
        .stdin(fs::File::open(job["input"].as_str().unwrap()).unwrap())
        .stdout(fs::File::create(&stdout).unwrap())
        .stderr(fs::File::create(&stderr).unwrap())
        .spawn()
        .unwrap();
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if start.elapsed() > HANGS_AFTER {
            child.kill().unwrap();
        }
        sleep(Duration::from_millis(5));
    };
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN).unwrap();
    let cpu = [usage.user_time(), usage.system_time()];
    let result = json!({
        "code": status.code(),
        "stdout": String::from_utf8_lossy(&fs::read(stdout).unwrap()),
        "stderr": String::from_utf8_lossy(&fs::read(stderr).unwrap()),
        "cpu_seconds": cpu.map(|time| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6).iter().sum::<f64>(),
        "peak_bytes": usage.max_rss() * 1024,
    });
    fs::write(path, result.to_string()).unwrap();
}

impl Measured {
    /// Checks that no signal ended the run, and its memory and CPU time.
    #[track_caller]
    fn is_bounded(&self, case: &str) {
        assert!(self.code.is_some(), "{case}: ended by a signal: {self:?}");
        assert!(self.peak_bytes <= MEMORY, "{case}: {} MiB", self.peak_bytes >> 20);
        assert!(self.cpu_seconds <= CPU_SECONDS, "{case}: {} s of CPU time", self.cpu_seconds);
    }

    /// The run failed with exit code 1 and one line that contains `piece`.
    #[track_caller]
    pub(super) fn fails_with(&self, case: &str, piece: &str) {
        self.is_bounded(case);
        assert_eq!(self.code, Some(1), "{case}: {self:?}");
        // With `--json` the same failure is a document.
        let is_document = self.stdout.starts_with("{\"error\":{") && self.stdout.lines().count() == 1;
        assert!(self.stdout.is_empty() || is_document, "{case}: {self:?}");
        let line = self.stderr.strip_suffix('\n').unwrap_or_default();
        let is_one_line = line.starts_with("error: ") && !line.contains('\n') && line.len() < 600;
        assert!(is_one_line && line.contains(piece), "{case}: {piece:?} is not in {:?}", self.stderr);
    }

    /// The run succeeded, with `piece` on standard error or nothing there.
    #[track_caller]
    pub(super) fn succeeds_with(&self, case: &str, piece: &str) -> &str {
        self.is_bounded(case);
        assert_eq!(self.code, Some(0), "{case}: {self:?}");
        assert!(
            self.stderr.contains(piece) && (!piece.is_empty() || self.stderr.is_empty()),
            "{case}: {self:?}"
        );
        &self.stdout
    }
}

#[test]
fn runs_are_measured() {
    if let Some(path) = env::var_os(JOB) {
        return run_job(path.as_ref());
    }
    let run = |arguments: &[&str]| measured(&command(arguments), Path::new("/dev/null"));
    let version = run(&["--version"]);
    assert!(version.succeeds_with("the version", "").starts_with("ruvllm "));
    assert!((1 << 19..64 << 20).contains(&version.peak_bytes), "{version:?}");
    let generate = run(&["generate", "-n", "8", "a"]);
    generate.succeeds_with("a text", "");
    assert!(generate.cpu_seconds > version.cpu_seconds && generate.peak_bytes > version.peak_bytes);
    run(&["inspect", "/nonexistent"]).fails_with("no file", "No such file");
}
