//! Logs that go on after a restart, and logs that do not.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use super::{append, check, check_valid, files, lay_out, options, wait_until};
use crate::{Error, Event, Filter, LogReader, Timestamp, Writer, folder};

type Files = BTreeMap<String, Vec<u8>>;

/// Requests in the log, in its order.
fn requests(folder: &Path) -> Vec<String> {
    let filter = Filter { requests_only: true, ..Filter::default() };
    let id = |event| if let Event::Request(entry) = event { entry.request_id } else { unreachable!() };
    LogReader::open(folder, filter).unwrap().map(|line| id(line.unwrap().event)).collect()
}

fn ids(numbers: std::ops::Range<usize>) -> Vec<String> {
    numbers.map(|n| format!("request-{n}")).collect()
}

#[test]
fn logs_go_on_after_restarts() {
    let folder = tempfile::tempdir().unwrap();
    for from in [0, 4, 8] {
        append(folder.path(), from..from + 4);
    }
    let report = check_valid(folder.path());
    assert_eq!((report.requests, requests(folder.path())), (12, ids(0..12)));
    let lines = LogReader::open(folder.path(), Filter::default()).unwrap().map(Result::unwrap);
    let starts = lines.filter(|line| matches!(line.event, Event::Start(_))).count();
    assert_eq!(starts, 3);
}

#[test]
fn a_line_that_a_kill_has_cut_is_moved_and_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let name = "witness-00000001.jsonl";
    let (options, path) = (|| crate::Options { key: None, ..options() }, folder.path().join(name));
    let writer = Writer::open(folder.path(), options()).unwrap();
    writer.record(&super::entry(0)).unwrap();
    writer.record(&super::entry(1)).unwrap();
    writer.close().unwrap();
    let original = files(folder.path());
    let whole = &original[name];
    let last = whole[..whole.len() - 1].iter().rposition(|&byte| byte == b'\n').unwrap() + 1;
    for length in [last + 1, (last + whole.len()) / 2, whole.len() - 1] {
        lay_out(folder.path(), &original);
        fs::write(&path, &whole[..length]).unwrap();
        let cut = check(folder.path());
        assert!(cut.findings.iter().any(|found| found.fault.name() == "torn"), "{cut:?}");
        Writer::open(folder.path(), options()).unwrap().close().unwrap();
        let lines: Vec<_> =
            LogReader::open(folder.path(), Filter::default()).unwrap().map(Result::unwrap).collect();
        let Event::Start(start) = &lines.last().unwrap().event else { panic!("{lines:?}") };
        let torn = start.torn.as_ref().unwrap();
        assert_eq!(torn.bytes as usize, length - last);
        assert_eq!(fs::read(folder.path().join(&torn.moved_to)).unwrap(), &whole[last..length]);
        assert_eq!(requests(folder.path()), ids(0..1), "complete lines stay");
    }
}

#[test]
fn a_kill_at_any_byte_leaves_a_log_that_goes_on() {
    // The first line of a file that has just begun included: the files as they grew.
    let folder = tempfile::tempdir().unwrap();
    append(folder.path(), 0..8);
    let original = files(folder.path());
    let n_files = original.len() - 1;
    for number in 1..=n_files as u64 {
        let name = folder::file_name(number);
        let whole = &original[&name];
        for length in (0..whole.len()).step_by(97).chain([1, 2]) {
            let mut at_kill = original.clone();
            at_kill.retain(|other, _| *other <= name && other != "checkpoint.json");
            at_kill.insert(name.clone(), whole[..length].to_vec());
            lay_out(folder.path(), &at_kill);
            let n_complete = requests(folder.path()).len();
            append(folder.path(), n_complete..n_complete + 1);
            check_valid(folder.path());
            assert_eq!(requests(folder.path()), ids(0..n_complete + 1), "{name} cut to {length} bytes");
        }
    }
}

#[test]
fn logs_whose_end_was_changed_are_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    append(folder.path(), 0..2);
    let (original, name) = (files(folder.path()), "witness-00000001.jsonl");
    let whole = &original[name];
    let refused = |change: &dyn Fn(&mut Files)| {
        let mut changed = original.clone();
        change(&mut changed);
        lay_out(folder.path(), &changed);
        let error = Writer::open(folder.path(), options()).map(drop).unwrap_err();
        assert_eq!(files(folder.path()), changed, "nothing was written");
        error
    };
    let last = whole[..whole.len() - 1].iter().rposition(|&byte| byte == b'\n').unwrap() + 1;
    let cut = refused(&|files| files.get_mut(name).unwrap().truncate(last));
    assert!(matches!(cut, Error::CutTail { checkpoint_seq, last_seq, .. } if last_seq + 1 == checkpoint_seq));
    assert!(matches!(refused(&|files| drop(files.remove(name))), Error::CutTail { last_seq: 0, .. }));
    let flip = |files: &mut Files| {
        let bytes = files.get_mut(name).unwrap();
        let at = bytes.len() - 100;
        bytes[at] ^= 1;
    };
    let mut endless = Vec::new();
    let body = br#"{"kind":"new","time":"2026-11-24","elapsed_ms":0}"#;
    crate::line::seal(u64::MAX, crate::Digest::ZERO, body, &mut endless);
    let overlong: Vec<u8> = vec![b'x'; 5 << 20].into_iter().chain([b'\n']).collect();
    let changes: [&dyn Fn(&mut Files); 6] = [
        &flip,
        &|files| drop(files.insert(name.to_owned(), endless.clone())),
        &|files| files.get_mut("checkpoint.json").unwrap().truncate(50),
        &|files| drop(files.insert(name.to_owned(), overlong.clone())),
        // Begun without its predecessor.
        &|files| drop(files.insert("witness-00000007.jsonl".to_owned(), Vec::new())),
        &|files| drop(files.insert("checkpoint.json".to_owned(), whole[..last].to_vec())),
    ];
    for change in changes {
        let error = refused(change);
        assert!(matches!(error, Error::Damaged { .. }), "{error}");
    }
}
#[test]
fn a_log_has_one_writer_and_closes_when_dropped() {
    let folder = tempfile::tempdir().unwrap();
    let writer = Writer::open(folder.path(), options()).unwrap();
    assert!(matches!(Writer::open(folder.path(), options()), Err(Error::InUse { .. })));
    assert!(check(folder.path()).is_open);
    writer.record(&super::entry(0)).unwrap();
    drop(writer);
    let report = check_valid(folder.path());
    assert_eq!((report.requests, report.is_open, report.uncovered()), (1, false, 0));
}

#[test]
fn checkpoints_follow_lines_by_number_and_by_time() {
    let folder = tempfile::tempdir().unwrap();
    let long = std::time::Duration::from_secs(3600);
    let by_number =
        crate::Options { checkpoint_after: long, checkpoint_lines: 3, max_file_bytes: 1 << 20, ..options() };
    let writer = Writer::open(folder.path(), by_number).unwrap();
    for n in 0..5 {
        writer.record(&super::entry(n)).unwrap();
        writer.flush().unwrap();
    }
    // One of the start, one behind the third entry.
    wait_until(|| check(folder.path()).checkpoints == 2);
    assert_eq!(check_valid(folder.path()).uncovered(), 2);
    drop(writer);
    let by_time =
        crate::Options { checkpoint_after: options().batch_time, checkpoint_lines: 1000, ..options() };
    let writer = Writer::open(folder.path(), by_time).unwrap();
    writer.record(&super::entry(5)).unwrap();
    wait_until(|| check(folder.path()).requests == 6 && check(folder.path()).uncovered() == 0);
    writer.close().unwrap();
    check_valid(folder.path());
}

#[test]
fn clocks_that_jump_do_not_change_the_order() {
    let folder = tempfile::tempdir().unwrap();
    let times = std::sync::Mutex::new(["2026-01-01", "2020-01-01", "2031-01-01"].into_iter().cycle());
    let now = move || times.lock().unwrap().next().unwrap().parse::<Timestamp>().unwrap();
    let writer =
        Writer::open_with(folder.path(), options(), Box::new(folder::open_file), Box::new(now)).unwrap();
    for n in 0..9 {
        writer.record(&super::entry(n)).unwrap();
    }
    writer.close().unwrap();
    check_valid(folder.path());
    assert_eq!(requests(folder.path()), ids(0..9));
    let lines = LogReader::open(folder.path(), Filter::default()).unwrap().map(Result::unwrap);
    let lines: Vec<_> = lines.map(|line| (line.seq, line.elapsed_ms)).collect();
    assert!(lines.iter().enumerate().all(|(index, line)| line.0 == index as u64 + 1), "{lines:?}");
}
