//! Processes that are killed, or that may not write any more, lose nothing that was flushed.

#![cfg(all(unix, feature = "store"))]

use std::env;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use ruvllm_sona::store::{NewSnapshot, SnapshotKind, StoreOptions};
use ruvllm_sona::trajectory::Trajectory;
use ruvllm_sona::{Error, LearningStore, Recorder, RecorderOptions};

const FILE: &str = "SONA_STORE_FILE";

fn open(path: &Path) -> LearningStore {
    LearningStore::open(path, StoreOptions { cache_bytes: 4 << 20, ..StoreOptions::default() })
        .expect("a store")
}

fn trajectory(number: u64) -> Trajectory {
    Trajectory {
        request_id: number.to_string(),
        tenant: "t".to_owned(),
        model_digest: "m".to_owned(),
        prompt_tokens: vec![number as u32; 500],
        ..Trajectory::default()
    }
}

fn count(store: &LearningStore) -> u64 {
    let stored = store.trajectories("t", None, usize::MAX).expect("a store");
    assert!(stored.iter().enumerate().all(|(n, stored)| stored.trajectory == trajectory(n as u64)));
    stored.len() as u64
}

/// Runs this test program again for one test, on a store.
fn child(test: &str, path: &Path, shell: &str) -> Command {
    let mut command = Command::new("sh");
    let program = env::current_exe().expect("this program");
    command.args(["-c", &format!("{shell} exec \"$0\" --exact {test} --nocapture")]).arg(program);
    command.env(FILE, path).stdout(Stdio::piped());
    command
}

/// Work of the killed process.
fn record_until_killed(path: &Path) -> ! {
    let store = open(path);
    let first = count(&store);
    let recorder = Recorder::start(store.clone(), RecorderOptions::default()).expect("a thread");
    for number in first.. {
        recorder.record(trajectory(number)).expect("room");
        if number % 3 == 0 {
            recorder.flush().expect("a store");
            let bytes = vec![number as u8; 50_000];
            let snapshot = NewSnapshot {
                tenant: "t",
                adapter: "a",
                kind: SnapshotKind::Clean,
                through: 0,
                bytes: &bytes,
            };
            let version = store.save_snapshot(&snapshot).expect("a store").version;
            println!("\nsafe {number} {version}");
        }
    }
    unreachable!("killed before")
}

#[test]
fn killed_recorders_lose_nothing_that_was_flushed() {
    if let Some(path) = env::var_os(FILE) {
        record_until_killed(path.as_ref());
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("store");
    for round in 0..4 {
        let mut child =
            child("killed_recorders_lose_nothing_that_was_flushed", &path, "").spawn().expect("a process");
        let lines = BufReader::new(child.stdout.take().expect("its output")).lines();
        let mut safe = Vec::new();
        for line in lines {
            if let Some(numbers) = line.expect("text").strip_prefix("safe ") {
                safe.push(numbers.to_owned());
                if safe.len() == 2 + round {
                    child.kill().expect("a process to kill");
                }
            }
        }
        child.wait().expect("its end");
        let last = safe.last().expect("a flush");
        let (number, version) = last.split_once(' ').expect("two numbers");
        let (number, version) =
            (number.parse::<u64>().expect("a number"), version.parse::<u64>().expect("a number"));
        let store = open(&path);
        assert!(count(&store) > number, "{last} was safe");
        let current = store.current_snapshot("t", "a").expect("a store").expect("a snapshot");
        assert!(current.version >= version, "{last} was safe");
        store.snapshot("t", "a", current.version).expect("an intact snapshot");
    }
}

/// Work of the process whose files may not grow beyond a limit.
fn store_until_full(path: &Path) {
    let store = open(path);
    let mut number = count(&store);
    let error = loop {
        match store.add(&[trajectory(number)]) {
            Ok(_) => number += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, Error::StoreFull { .. }), "{error:?}");
    assert_eq!(count(&store), number);
    println!("\nsafe {number}");
}

#[test]
fn full_disk_keeps_what_was_stored() {
    if let Some(path) = env::var_os(FILE) {
        return store_until_full(path.as_ref());
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("store");
    drop(open(&path));
    // The limit is in blocks of 512 or 1024 bytes; the signal that comes with it is ignored.
    let shell = "trap '' XFSZ; ulimit -f 600;";
    let output = child("full_disk_keeps_what_was_stored", &path, shell).output().expect("a process");
    let said = String::from_utf8(output.stdout).expect("text");
    assert!(output.status.success(), "{said}");
    let safe = said.lines().find_map(|line| line.strip_prefix("safe ")).expect("a number");
    let store = open(&path);
    assert_eq!(count(&store).to_string(), safe);
    store.add(&[trajectory(count(&store))]).expect("room")[0].as_ref().expect("stored");
}
