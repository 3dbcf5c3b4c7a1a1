//! Verifies, reads and continues a witness log of any bytes. A log that is valid goes on and stays
//! valid; complete lines stay as they are, whatever the log.

#![no_main]

use std::fs;
use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use ruvllm_fuzz::{FOLDER, config_and_weights};
use ruvllm_witness::{Digest, Entry, Filter, LogReader, Options, PrivateKey, VerifyOptions, Writer, verify};

static ROOT: LazyLock<PathBuf> = LazyLock::new(|| FOLDER.join("witness"));
const MOST_FILES: usize = 4;

/// The key of the seeds.
fn key() -> PrivateKey {
    PrivateKey::from_bytes(&[7; 32])
}

/// Path of a file by its place.
fn path(index: usize) -> PathBuf {
    ROOT.join(format!("witness-{:08}.jsonl", index + 1))
}

/// The bytes up to the last line feed.
fn complete(bytes: &[u8]) -> &[u8] {
    &bytes[..bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1)]
}

/// Flags of an input: hashes, and hashes of predecessors, are computed anew.
const SEALS: u8 = 1;
const CHAINS: u8 = 2;

/// The lines with right hashes, so that an input gets behind their check.
fn sealed(file: &[u8], flags: u8, prev: &mut Digest) -> Vec<u8> {
    const PREV: &[u8] = b"\"prev\":\"";
    let mut out = Vec::new();
    for line in file.split_inclusive(|&byte| byte == b'\n') {
        let body = line.strip_suffix(b"\n").and_then(|line| line.len().checked_sub(75).map(|at| &line[..at]));
        let Some(mut body) = body.map(<[u8]>::to_vec).filter(|_| flags & SEALS != 0) else {
            out.extend(line);
            continue;
        };
        let at = body.windows(PREV.len()).position(|part| part == PREV).map(|at| at + PREV.len());
        if let Some(old) = at.and_then(|at| body.get_mut(at..at + 64)).filter(|_| flags & CHAINS != 0) {
            old.copy_from_slice(prev.to_string().as_bytes());
        }
        *prev = Digest::of(&body);
        out.extend(body);
        out.extend(format!(",\"hash\":\"{prev}\"}}\n").into_bytes());
    }
    out
}

fuzz_target!(|input: &[u8]| {
    let Some((&flags, input)) = input.split_first() else { return };
    let Some((checkpoint, log)) = config_and_weights(input) else { return };
    let _ = fs::remove_dir_all(&*ROOT);
    fs::create_dir(&*ROOT).expect("a folder");
    // No line has this byte, which is not UTF-8.
    let mut prev = Digest::ZERO;
    let files = log.split(|&byte| byte == 0xff).take(MOST_FILES);
    let files: Vec<Vec<u8>> = files.map(|file| sealed(file, flags, &mut prev)).collect();
    for (index, file) in files.iter().enumerate() {
        fs::write(path(index), file).expect("a file");
    }
    if !checkpoint.is_empty() {
        fs::write(ROOT.join("checkpoint.json"), checkpoint).expect("a file");
    }

    let chain_only = verify(&*ROOT, &VerifyOptions::default()).expect("a report");
    let options = VerifyOptions { keys: vec![key().public_key()], ..VerifyOptions::default() };
    let report = verify(&*ROOT, &options).expect("a report");
    assert!(report.finding_count >= chain_only.finding_count);
    assert_eq!(report.is_valid(), report.findings.is_empty());
    let n_lines = LogReader::open(&*ROOT, Filter::default()).expect("a log").filter(Result::is_ok).count();
    assert!(!report.is_valid() || n_lines as u64 == report.lines);

    let settings = Options { key: Some(key()), batch_time: Duration::ZERO, ..Options::default() };
    match Writer::open(&*ROOT, settings) {
        Err(error) => assert!(!report.is_valid(), "{error}"),
        Ok(writer) => {
            writer.record(&Entry::default()).expect("room");
            writer.close().expect("written");
            let continued = verify(&*ROOT, &options).expect("a report");
            assert!(continued.is_valid() || !report.is_valid(), "{continued:?}");
            assert!(continued.requests > report.requests || !continued.is_valid());
            for (index, file) in files.iter().enumerate() {
                let now = fs::read(path(index)).expect("a file");
                assert!(now.starts_with(complete(file)), "a complete line has changed");
            }
        }
    }
});
