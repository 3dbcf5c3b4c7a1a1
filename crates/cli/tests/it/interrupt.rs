//! Ctrl-C during a generation. Linux only: the tests read `/proc` to know when the program handles
//! it.
#![cfg(target_os = "linux")]

use std::fs;
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::program::{command, json_document};

const ENDLESS: [&str; 8] =
    ["generate", "-n", "4000", "--logit-bias", "0=-inf", "--logit-bias", "2=-inf", "Once upon a time"];

/// Bits of signals in the masks of `/proc/PID/status`.
const HANGUP: u64 = 1;
const INTERRUPT: u64 = 1 << 1;
const TERMINATE: u64 = 1 << 14;

/// True if a signal is in the mask `set`, a field of `/proc/PID/status`.
fn has_signal(child: &Child, set: &str, signal: u64) -> bool {
    let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix(set)?.strip_prefix(':')).map(str::trim);
    mask.and_then(|mask| u64::from_str_radix(mask, 16).ok()).is_some_and(|mask| mask & signal != 0)
}

fn send(child: &Child, signal: &str) {
    assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
}

fn interrupt(child: &Child) {
    send(child, "-INT");
}

#[test]
fn the_text_so_far_stays_and_the_code_is_130() {
    let mut child = command(&ENDLESS).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut text = vec![0; 8];
    stdout.read_exact(&mut text).unwrap();
    interrupt(&child);
    stdout.read_to_end(&mut text).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    assert!(output.stderr.is_empty());
    let text = String::from_utf8(text).expect("whole characters only");
    assert!(text.ends_with('\n'), "the shell's prompt starts on a line of its own");
}

/// Waits until the process handles Ctrl-C.
fn wait_until_it_listens(child: &Child) {
    wait_until_it_handles(child, INTERRUPT);
}

/// Waits until a signal is in the process's mask of caught ones: it takes them one after the other.
fn wait_until_it_handles(child: &Child, signal: u64) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !has_signal(child, "SigCgt", signal) {
        assert!(Instant::now() < deadline, "the program never listened for the signal");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until the process has received Ctrl-C: SIGINT is not pending, when a second one would be
/// lost.
fn wait_until_it_has_received(child: &Child) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while has_signal(child, "ShdPnd", INTERRUPT) {
        assert!(Instant::now() < deadline, "the program never received Ctrl-C");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn the_document_is_complete_and_says_cancelled() {
    let arguments = [&ENDLESS[..], &["--json"]].concat();
    let child = command(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_until_it_listens(&child);
    interrupt(&child);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    let document = json_document(std::str::from_utf8(&output.stdout).unwrap());
    assert_eq!(document["finish_reason"], "cancelled");
}

#[test]
fn all_choices_end_and_are_in_the_document() {
    let arguments = [&ENDLESS[..], &["--json", "--n", "3"]].concat();
    let child = command(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_until_it_listens(&child);
    interrupt(&child);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    let document = json_document(std::str::from_utf8(&output.stdout).unwrap());
    let reasons: Vec<_> =
        document["choices"].as_array().unwrap().iter().map(|choice| &choice["finish_reason"]).collect();
    assert_eq!(reasons, ["cancelled"; 3]);
}

/// CPU time of the process in ticks of 10 ms. It is field 14 of `stat`; the name before it has no
/// spaces.
fn cpu_ticks(child: &Child) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
    stat.split(' ').nth(13).unwrap().parse().unwrap()
}

/// Waits until the process has used this much CPU time, in ticks of 10 ms.
pub(crate) fn wait_until_it_has_worked(child: &Child, ticks: u64) {
    while cpu_ticks(child) < ticks {
        thread::sleep(Duration::from_millis(5));
    }
}

/// Document of a measurement of a text that Ctrl-C has stopped after some of many windows.
fn stopped_measurement(measure: &str) -> Value {
    let text = crate::program::data("validation-prefix.txt");
    let arguments = ["eval", measure, "--json", "--context", "64", "--threads", "1", "--file"];
    let arguments = [&arguments[..], &[crate::program::argument(&text)]].concat();
    let child = command(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_until_it_listens(&child);
    // A second of CPU time.
    wait_until_it_has_worked(&child, cpu_ticks(&child) + 100);
    interrupt(&child);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    let document = json_document(std::str::from_utf8(&output.stdout).unwrap());
    assert_eq!(document["complete"], false);
    crate::schema::check_as(&format!("eval-{measure}"), &document);
    document
}

#[test]
fn a_perplexity_that_is_stopped_has_the_result_so_far() {
    let document = stopped_measurement("perplexity");
    assert!(
        document["tokens"].as_u64().unwrap() >= 16 && document["nll"].as_f64().unwrap() > 0.0,
        "{document}"
    );
}

#[test]
fn a_comparison_that_is_stopped_has_the_result_so_far() {
    let document = stopped_measurement("kl");
    assert!(document["positions"].as_u64().unwrap() >= 16, "{document}");
    assert_eq!(document["reference"]["kv"], "f16");
}

#[test]
fn embeddings_that_are_stopped_keep_what_is_done() {
    let text = "one two three four five six seven eight nine ten\n".repeat(2000);
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), text).unwrap();
    let arguments = ["embed", "--jsonl", "--threads", "1", "--file"];
    let arguments = [&arguments[..], &[crate::program::argument(file.path())]].concat();
    let mut child = command(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdout = std::io::BufReader::new(child.stdout.take().unwrap());
    let mut lines = String::new();
    // Results are printed while others are computed.
    std::io::BufRead::read_line(&mut stdout, &mut lines).unwrap();
    interrupt(&child);
    stdout.read_to_string(&mut lines).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    let n = lines.lines().count();
    assert!(n > 0 && n < 2000, "{n} lines");
    for (index, line) in lines.lines().enumerate() {
        let line = json_document(&format!("{line}\n"));
        assert_eq!(crate::program::fields(&line), ["index", "embedding", "tokens", "truncated"]);
        assert_eq!(line["index"], index);
    }
}

#[test]
fn a_second_time_ends_the_program_at_once() {
    // The first signal takes effect between two chunks of the prompt, and one chunk takes seconds
    // with scalar kernels.
    let prompt = "one two three four five six seven eight nine ten ".repeat(100);
    let arguments = ["generate", "--json", "--isa", "scalar", "--threads", "1", &prompt];
    let child = command(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_until_it_listens(&child);
    // Loading and encoding end long before a second.
    wait_until_it_has_worked(&child, 100);
    interrupt(&child);
    wait_until_it_has_received(&child);
    interrupt(&child);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    assert!(output.stdout.is_empty() && output.stderr.is_empty(), "{output:?}");
}

/// The program with the default action for SIGHUP: under `nohup` tests have it ignored.
fn with_default_signals(arguments: &[&str]) -> Command {
    let program = command(&[]);
    let mut reset = Command::new("env");
    reset.arg("--default-signal=HUP").arg(program.get_program()).args(arguments).stdin(Stdio::null());
    for (name, value) in program.get_envs() {
        match value {
            Some(value) => reset.env(name, value),
            None => reset.env_remove(name),
        };
    }
    reset
}

#[test]
fn requests_to_terminate_leave_the_text_and_their_code() {
    for (signal, bit, code) in [("-TERM", TERMINATE, 143), ("-HUP", HANGUP, 129)] {
        let arguments = [&ENDLESS[..], &["--json"]].concat();
        let mut program = with_default_signals(&arguments);
        let child = program.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        wait_until_it_handles(&child, bit);
        send(&child, signal);
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(code));
        let document = json_document(std::str::from_utf8(&output.stdout).unwrap());
        assert_eq!(document["finish_reason"], "cancelled");
    }
}

#[test]
fn a_hangup_that_is_ignored_stays_ignored() {
    let program = env!("CARGO_BIN_EXE_ruvllm");
    let mut child = Command::new("sh")
        .args(["-c", "trap '' HUP; exec \"$0\" \"$@\"", program])
        .args(["chat", "--temperature", "0", "-n", "4"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    wait_until_it_listens(&child);
    send(&child, "-HUP");
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"What is the capital of France?\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(output.stdout.starts_with(b"The capital of France"), "{output:?}");
}

/// Quantizing the default model to `Q2_K` on one thread without SIMD: seconds of work.
fn long_quantization(out: &str) -> Vec<String> {
    let model = crate::program::default_model();
    let words = ["quantize", model.to_str().unwrap(), out, "q2_k", "--threads", "1"];
    words.map(str::to_owned).to_vec()
}

#[test]
fn a_model_that_is_not_finished_leaves_nothing() {
    for (signal, code) in [("-INT", 130), ("-TERM", 143), ("-HUP", 129)] {
        let folder = tempfile::tempdir().unwrap();
        let words = long_quantization(folder.path().join("out.gguf").to_str().unwrap());
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let mut program = with_default_signals(&words);
        let child = program.env("RUVLLM_ISA", "scalar").stdout(Stdio::null()).spawn().unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        while fs::read_dir(folder.path()).unwrap().count() == 0 {
            assert!(Instant::now() < deadline, "no file was begun");
            thread::sleep(Duration::from_millis(1));
        }
        send(&child, signal);
        assert_eq!(child.wait_with_output().unwrap().status.code(), Some(code));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "{signal}");
    }
}

#[test]
fn a_limit_of_file_sizes_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let words = long_quantization(folder.path().join("out.gguf").to_str().unwrap());
    // In blocks of 512 bytes.
    let output = Command::new("sh")
        .args(["-c", "ulimit -f 200; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_ruvllm")])
        .args(&words)
        .output()
        .unwrap();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    crate::program::finish(&words, output).fails_with(1, &["out.gguf", "File too large"]);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}
