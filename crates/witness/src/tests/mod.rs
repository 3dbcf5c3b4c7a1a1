//! Tests over whole logs.

mod damage;
mod faults;
mod full;
mod limits;
mod resume;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::{Content, Entry, Fault, Options, Outcome, PrivateKey, Report, VerifyOptions, Writer, verify};

/// The key of the logs.
fn key() -> PrivateKey {
    PrivateKey::from_bytes(&[7; 32])
}

/// Options for small files and frequent checkpoints.
fn options() -> Options {
    Options {
        key: Some(key()),
        batch_time: Duration::from_millis(2),
        max_file_bytes: 3000,
        checkpoint_lines: 5,
        ..Options::default()
    }
}

fn entry(n: usize) -> Entry {
    Entry {
        request_id: format!("request-{n}"),
        tenant: format!("org/team{}", n % 2),
        endpoint: "/v1/completions".to_owned(),
        prompt: Some(Content::hashed(&format!("prompt {n}"))),
        prompt_tokens: n as u64,
        total_ms: Some(Duration::from_micros(1234)),
        outcome: Outcome::Finished(vec!["stop".to_owned()]),
        ..Entry::default()
    }
}

/// Appends entries, each in a batch of its own.
fn append(folder: &Path, entries: std::ops::Range<usize>) {
    let writer = Writer::open(folder, options()).unwrap();
    for n in entries {
        writer.record(&entry(n)).unwrap();
        writer.flush().unwrap();
    }
    writer.close().unwrap();
}

fn check(folder: &Path) -> Report {
    verify(folder, &VerifyOptions { keys: vec![key().public_key()], ..VerifyOptions::default() }).unwrap()
}

#[track_caller]
fn check_valid(folder: &Path) -> Report {
    let report = check(folder);
    assert_eq!(report.findings, [], "{report:?}");
    report
}

/// Names and places of the faults.
fn faults(report: &Report) -> Vec<(&str, Option<u64>, Fault)> {
    report.findings.iter().map(|found| (found.file.as_str(), found.line, found.fault.clone())).collect()
}

/// The files of a folder that belong to a log.
fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let named = entries.map(|entry| (entry.file_name().into_string().unwrap(), entry.path()));
    named
        .filter(|(name, _)| name.starts_with("witness-") || name == "checkpoint.json")
        .map(|(name, path)| (name, fs::read(path).unwrap()))
        .collect()
}

/// Replaces the files of a log.
fn lay_out(folder: &Path, files: &BTreeMap<String, Vec<u8>>) {
    for entry in fs::read_dir(folder).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    for (name, bytes) in files {
        fs::write(folder.join(name), bytes).unwrap();
    }
}

/// Polls a state, for 20 s at most.
#[track_caller]
fn wait_until(mut state: impl FnMut() -> bool) {
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    while !state() {
        assert!(std::time::Instant::now() < deadline, "the state was not reached");
        std::thread::yield_now();
    }
}
