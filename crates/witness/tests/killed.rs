//! A process that is killed while it writes loses no entry that it knew to be in the log.

use std::env;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};

use ruvllm_witness::{
    Content, Entry, Event, Filter, LogReader, Options, PrivateKey, VerifyOptions, Writer, verify,
};

const FOLDER: &str = "WITNESS_KILL_FOLDER";
const TEST: &str = "killed_writers_lose_no_written_entry";

fn options() -> Options {
    Options { key: Some(PrivateKey::from_bytes(&[7; 32])), max_file_bytes: 4 << 20, ..Options::default() }
}

fn requests(folder: &Path) -> Vec<String> {
    let filter = Filter { requests_only: true, ..Filter::default() };
    let lines = LogReader::open(folder, filter).expect("a log").map(|line| line.expect("a line"));
    let id = |event| if let Event::Request(entry) = event { entry.request_id } else { String::new() };
    lines.map(|line| id(line.event)).collect()
}

/// Work of the killed process: entries with long texts, and a report of each that is in the log.
fn write_until_killed(folder: &Path) -> ! {
    let n_before = requests(folder).len();
    let writer = Writer::open(folder, options()).expect("a log");
    for n in n_before.. {
        let prompt = Some(Content::with_text("x".repeat(n % 7 * 100_000)));
        writer.record(&Entry { request_id: n.to_string(), prompt, ..Entry::default() }).expect("room");
        if n % 3 == 0 {
            writer.flush().expect("written");
            println!("\nsafe {n}");
        }
    }
    unreachable!("killed before")
}

/// The last entry that the process said is in the log.
fn last_safe(said: &str) -> Option<usize> {
    let numbers = said.lines().filter_map(|line| line.strip_prefix("safe "));
    numbers.filter_map(|n| n.parse().ok()).next_back()
}

#[test]
fn killed_writers_lose_no_written_entry() {
    if let Some(folder) = env::var_os(FOLDER) {
        write_until_killed(folder.as_ref());
    }
    let folder = tempfile::tempdir().expect("a folder");
    drop(Writer::open(folder.path(), options()).expect("a log"));
    let keys = vec![PrivateKey::from_bytes(&[7; 32]).public_key()];
    let valid = VerifyOptions { keys, ..VerifyOptions::default() };
    for round in 0..6 {
        let mut child = Command::new(env::current_exe().expect("this program"))
            .args(["--exact", TEST, "--nocapture"])
            .env(FOLDER, folder.path())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let mut output = BufReader::new(child.stdout.take().expect("its output"));
        let mut said = String::new();
        let begin = requests(folder.path()).len();
        while last_safe(&said).is_none_or(|safe| safe < begin + round * 5) {
            assert!(output.read_line(&mut said).expect("its output") > 0, "the writer ended by itself");
        }
        child.kill().expect("a process to kill");
        child.wait().expect("its end");
        output.read_to_string(&mut said).expect("its output");
        let safe = last_safe(&said).expect("an entry in the log");
        let killed = verify(folder.path(), &valid).expect("a log");
        assert!(killed.findings.iter().all(|found| found.fault.name() == "torn"), "{killed:?}");

        drop(Writer::open(folder.path(), options()).expect("the log goes on"));
        let report = verify(folder.path(), &valid).expect("a log");
        assert!(report.is_valid() && report.uncovered() == 0, "{report:?}");
        let requests = requests(folder.path());
        assert!(requests.len() > safe, "{safe} was safe, {} are there", requests.len());
        assert!(requests.iter().enumerate().all(|(n, id)| *id == n.to_string()), "{requests:?}");
    }
}
