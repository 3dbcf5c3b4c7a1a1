//! Damage of logs, which verification finds.

use std::collections::BTreeMap;
use std::fs;
use std::sync::LazyLock;

use proptest::prelude::*;

use super::{append, check, check_valid, faults, files, key, lay_out};
use crate::digest::Digest;
use crate::{Fault, PrivateKey, VerifyOptions, line, verify};

type Files = BTreeMap<String, Vec<u8>>;
/// Lines with the names of their files.
type Lines = Vec<(String, Vec<u8>)>;

/// A closed log of several files, written by two processes.
static LOG: LazyLock<Files> = LazyLock::new(|| {
    let folder = tempfile::tempdir().unwrap();
    append(folder.path(), 0..11);
    append(folder.path(), 11..23);
    let report = check_valid(folder.path());
    assert!(report.files >= 3 && report.requests == 23 && report.checkpoints >= 4, "{report:?}");
    assert_eq!((report.uncovered(), report.dropped), (0, 0));
    files(folder.path())
});

/// A change of a log. Numbers are taken modulo what there is.
#[derive(Debug, Clone)]
enum Change {
    Flip {
        file: usize,
        at: usize,
        mask: u8,
    },
    Cut {
        file: usize,
        at: usize,
    },
    RemoveBytes {
        file: usize,
        at: usize,
        n: usize,
    },
    Insert {
        file: usize,
        at: usize,
        bytes: Vec<u8>,
    },
    RemoveLine {
        at: usize,
    },
    RepeatLine {
        from: usize,
        to: usize,
    },
    SwapLines {
        one: usize,
        two: usize,
    },
    RemoveFile {
        file: usize,
    },
    SwapFiles {
        one: usize,
        two: usize,
    },
    /// Changes an entry and computes all later hashes anew, without the key.
    Forge {
        at: usize,
        copies_checkpoint: bool,
    },
}

fn changes() -> impl Strategy<Value = Change> {
    let n = || any::<usize>();
    prop_oneof![
        (n(), n(), 1..=255_u8).prop_map(|(file, at, mask)| Change::Flip { file, at, mask }),
        (n(), n()).prop_map(|(file, at)| Change::Cut { file, at }),
        (n(), n(), 1..2000_usize).prop_map(|(file, at, n)| Change::RemoveBytes { file, at, n }),
        (n(), n(), prop::collection::vec(any::<u8>(), 1..80)).prop_map(|(file, at, bytes)| Change::Insert {
            file,
            at,
            bytes
        }),
        n().prop_map(|at| Change::RemoveLine { at }),
        (n(), n()).prop_map(|(from, to)| Change::RepeatLine { from, to }),
        (n(), n()).prop_map(|(one, two)| Change::SwapLines { one, two }),
        n().prop_map(|file| Change::RemoveFile { file }),
        (n(), n()).prop_map(|(one, two)| Change::SwapFiles { one, two }),
        (n(), any::<bool>()).prop_map(|(at, copies_checkpoint)| Change::Forge { at, copies_checkpoint }),
    ]
}

/// Lines of all files of the log, with the names of these.
fn lines(files: &Files) -> Lines {
    let log = files.iter().filter(|(name, _)| name.ends_with(".jsonl"));
    log.flat_map(|(name, bytes)| {
        bytes.split_inclusive(|&byte| byte == b'\n').map(|line| (name.clone(), line.to_vec()))
    })
    .collect()
}

/// The files of these lines, with the checkpoint of `files`.
fn of_lines(files: &Files, lines: &[(String, Vec<u8>)]) -> Files {
    let mut changed: Files = files.keys().map(|name| (name.clone(), Vec::new())).collect();
    changed.insert("checkpoint.json".to_owned(), files["checkpoint.json"].clone());
    for (name, line) in lines {
        changed.get_mut(name).unwrap().extend(line);
    }
    changed
}

/// The log with another tenant in a request, and all hashes from there on computed anew.
fn forge(files: &Files, at: usize, copies_checkpoint: bool) -> Files {
    let mut lines = lines(files);
    let is_request =
        |(_, line): &&mut (String, Vec<u8>)| line.windows(18).any(|part| part == b"\"kind\":\"request\",\"");
    let mut requests: Vec<_> = lines.iter_mut().filter(is_request).collect();
    let n = at % requests.len();
    let text = String::from_utf8(requests[n].1.clone()).unwrap();
    requests[n].1 = text.replace("org/team", "org/evil").into_bytes();
    let mut prev = Digest::ZERO;
    let mut last_checkpoint = files["checkpoint.json"].clone();
    for (index, (_, line)) in lines.iter_mut().enumerate() {
        let text = str::from_utf8(line).unwrap();
        let body = text.split_once("\"kind\"").unwrap().1.rsplit_once(",\"hash\"").unwrap().0;
        let body = format!("{{\"kind\"{body}}}");
        let mut sealed = Vec::new();
        prev = line::seal(index as u64 + 1, prev, body.as_bytes(), &mut sealed);
        *line = sealed;
        if body.contains("\"kind\":\"checkpoint\"") {
            last_checkpoint.clone_from(line);
        }
    }
    let mut forged = of_lines(files, &lines);
    if copies_checkpoint {
        forged.insert("checkpoint.json".to_owned(), last_checkpoint);
    }
    forged
}

fn changed(files: &Files, change: &Change) -> Files {
    let mut changed = files.clone();
    let names: Vec<String> = files.keys().cloned().collect();
    let name = |file: usize| &names[file % names.len()];
    match change {
        Change::Flip { file, at, mask } => {
            let bytes = changed.get_mut(name(*file)).unwrap();
            let at = at % bytes.len();
            bytes[at] ^= mask;
        }
        Change::Cut { file, at } => {
            let bytes = changed.get_mut(name(*file)).unwrap();
            bytes.truncate(at % bytes.len());
        }
        Change::RemoveBytes { file, at, n } => {
            let bytes = changed.get_mut(name(*file)).unwrap();
            let at = at % bytes.len();
            bytes.drain(at..(at + n).min(bytes.len()));
        }
        Change::Insert { file, at, bytes } => {
            let file = changed.get_mut(name(*file)).unwrap();
            let at = at % (file.len() + 1);
            file.splice(at..at, bytes.iter().copied());
        }
        Change::RemoveFile { file } => {
            changed.remove(name(*file));
        }
        Change::SwapFiles { one, two } => {
            let (one, two) = (name(*one), name(*two));
            changed.insert(one.clone(), files[two].clone());
            changed.insert(two.clone(), files[one].clone());
        }
        Change::RemoveLine { at } => {
            let mut lines = lines(files);
            lines.remove(at % lines.len());
            return of_lines(files, &lines);
        }
        Change::RepeatLine { from, to } => {
            let mut lines = lines(files);
            let (from, to) = (from % lines.len(), to % lines.len());
            let line = (lines[to].0.clone(), lines[from].1.clone());
            lines.insert(to, line);
            return of_lines(files, &lines);
        }
        Change::SwapLines { one, two } => {
            let mut lines = lines(files);
            let (one, two) = (one % lines.len(), two % lines.len());
            let line = lines[one].1.clone();
            lines[one].1 = std::mem::replace(&mut lines[two].1, line);
            return of_lines(files, &lines);
        }
        Change::Forge { at, copies_checkpoint } => return forge(files, *at, *copies_checkpoint),
    }
    changed
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_change_is_found(change in changes()) {
        let changed = changed(&LOG, &change);
        prop_assume!(changed != *LOG);
        let folder = tempfile::tempdir().unwrap();
        lay_out(folder.path(), &changed);
        let report = check(folder.path());
        prop_assert!(!report.is_valid(), "{change:?} was not found");
        prop_assert!(report.findings.len() as u64 == report.finding_count.min(100));
    }
}

#[test]
fn every_cut_behind_the_log_is_found() {
    // The last file alone: all places, while its signatures are few.
    let last = LOG.keys().rfind(|name| name.ends_with(".jsonl")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    lay_out(folder.path(), &LOG);
    for length in (0..LOG[last].len()).rev().step_by(13) {
        fs::write(folder.path().join(last), &LOG[last][..length]).unwrap();
        assert!(!check(folder.path()).is_valid(), "cut to {length} bytes");
    }
}

#[test]
fn findings_name_the_damage_and_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let all = lines(&LOG);
    let (first, second) = ("witness-00000001.jsonl", "witness-00000002.jsonl");
    let found = |files: &Files| {
        lay_out(folder.path(), files);
        let report = check(folder.path());
        faults(&report)
            .into_iter()
            .map(|(file, line, fault)| (file.to_owned(), line, fault))
            .collect::<Vec<_>>()
    };
    let at = |file: &str, line: u64, fault| (file.to_owned(), Some(line), fault);
    let with = |edit: &dyn Fn(&mut Lines)| {
        let mut lines = all.clone();
        edit(&mut lines);
        of_lines(&LOG, &lines)
    };
    assert_eq!(found(&LOG), []);
    let flipped = with(&|lines| lines[4].1[200] ^= 1);
    assert_eq!(found(&flipped), [at(first, 5, Fault::Altered)]);
    let hash_flipped = with(&|lines| {
        let end = lines[4].1.len() - 5;
        lines[4].1[end] = if lines[4].1[end] == b'0' { b'1' } else { b'0' };
    });
    assert_eq!(found(&hash_flipped), [at(first, 5, Fault::Altered)]);
    let removed = with(&|lines| drop(lines.drain(4..6)));
    assert_eq!(found(&removed), [at(first, 5, Fault::Missing { from: 5, to: 6 })]);
    let twice = with(&|lines| lines.insert(4, all[3].clone()));
    assert_eq!(found(&twice), [at(first, 5, Fault::OutOfOrder)]);
    let swapped = with(&|lines| (lines[4].1, lines[5].1) = (all[5].1.clone(), all[4].1.clone()));
    let order = [
        at(first, 5, Fault::Missing { from: 5, to: 5 }),
        at(first, 6, Fault::OutOfOrder),
        at(first, 7, Fault::Missing { from: 6, to: 6 }),
    ];
    assert_eq!(found(&swapped), order);
    let garbage = with(&|lines| lines[4].1 = b"{}\n".to_vec());
    assert_eq!(found(&garbage), [at(first, 5, Fault::NotALine)]);
    // With a right hash of its own, but that is not the one its successor has.
    let forged = with(&|lines| {
        let text = String::from_utf8(lines[4].1.clone()).unwrap();
        let body = text.split_once("\"kind\"").unwrap().1.rsplit_once(",\"hash\"").unwrap().0;
        let body = format!("{{\"kind\"{}}}", body.replace("org/team", "org/evil"));
        let mut sealed = Vec::new();
        let head: line::Head = serde_json::from_str(&text).unwrap();
        line::seal(head.seq, head.prev, body.as_bytes(), &mut sealed);
        lines[4].1 = sealed;
    });
    assert_ne!(forged, *LOG);
    assert_eq!(found(&forged), [at(first, 6, Fault::Replaced)]);
    let n_first = all.iter().filter(|(name, _)| name == first).count() as u64;
    let mut files = LOG.clone();
    files.remove(first);
    let missing = Fault::Missing { from: 1, to: n_first };
    assert_eq!(found(&files), [(first.to_owned(), None, Fault::NoFile), at(second, 1, missing)]);
    let mut files = LOG.clone();
    let checkpoint_seq = all.len() as u64;
    let last = all.last().unwrap().0.clone();
    files.get_mut(&last).unwrap().truncate(LOG[&last].len() - all.last().unwrap().1.len());
    let cut = Fault::CutTail { checkpoint_seq, last_seq: checkpoint_seq - 1 };
    assert_eq!(found(&files), [("checkpoint.json".to_owned(), None, cut)]);
}

#[test]
fn a_forger_without_the_key_is_found_by_signatures_alone() {
    let folder = tempfile::tempdir().unwrap();
    lay_out(folder.path(), &forge(&LOG, 12, true));
    // The chain itself is sound.
    assert!(verify(folder.path(), &VerifyOptions::default()).unwrap().is_valid());
    let report = check(folder.path());
    assert!(report.findings.iter().all(|found| found.fault == Fault::Signature(key().public_key().id())));
    assert!(report.checkpoints > 0 && report.last_checkpoint < report.findings[0].seq, "{report:?}");
}

#[test]
fn keys_that_are_not_given_are_unknown() {
    let folder = tempfile::tempdir().unwrap();
    lay_out(folder.path(), &LOG);
    let other = PrivateKey::from_bytes(&[8; 32]).public_key();
    let options = |keys| VerifyOptions { keys, ..VerifyOptions::default() };
    let report = verify(folder.path(), &options(vec![other.clone()])).unwrap();
    assert_eq!(report.findings[0].fault, Fault::UnknownKey(key().public_key().id()));
    assert_eq!(report.findings.last().unwrap().fault, Fault::NoCheckpoint);
    // After a change of keys, the log has checkpoints of both.
    assert!(verify(folder.path(), &options(vec![other, key().public_key()])).unwrap().is_valid());
}

#[test]
fn a_rollback_is_found_by_a_copy_of_the_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    append(&log, 0..3);
    let early = files(&log);
    append(&log, 3..6);
    let copy = folder.path().join("copy.json");
    fs::copy(log.join("checkpoint.json"), &copy).unwrap();
    let options = VerifyOptions { checkpoints: vec![copy.clone()], ..VerifyOptions::default() };
    assert!(verify(&log, &options).unwrap().is_valid());
    lay_out(&log, &early);
    assert!(check(&log).is_valid(), "a log from before is a log");
    let report = verify(&log, &options).unwrap();
    assert!(matches!(report.findings[..], [ref found] if matches!(found.fault, Fault::CutTail { .. })));
    fs::write(&copy, "{}\n").unwrap();
    assert_eq!(verify(&log, &options).unwrap().findings[0].fault, Fault::CheckpointFile);
    fs::remove_file(&copy).unwrap();
    assert!(verify(&log, &options).is_err());
}

#[test]
fn archived_files_are_left_out_by_number() {
    let folder = tempfile::tempdir().unwrap();
    let mut files = LOG.clone();
    files.remove("witness-00000001.jsonl");
    lay_out(folder.path(), &files);
    let keys = vec![key().public_key()];
    let options = VerifyOptions { keys, first_file: Some(2), ..VerifyOptions::default() };
    let report = verify(folder.path(), &options).unwrap();
    assert_eq!(report.findings, []);
    let later = verify(folder.path(), &VerifyOptions { first_file: Some(9), ..options }).unwrap();
    assert_eq!(later.findings[0].fault, Fault::NoFile);
}

#[test]
fn a_folder_without_a_log_is_no_valid_log() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(faults(&check(folder.path()))[0], ("witness-00000001.jsonl", None, Fault::NoFile));
    assert!(verify(folder.path().join("none"), &VerifyOptions::default()).is_err());
}
