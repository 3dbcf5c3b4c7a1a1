//! Long entries, filters, and files that nobody of good will has written.

use std::fs;

use proptest::prelude::*;
use serde_json::{Map, Value};

use super::{append, check_valid, entry, options};
use crate::{
    AdapterUse, Content, Entry, Error, Event, Filter, LogReader, MAX_LINE_BYTES, Outcome, Refusal,
    VerifyOptions, Writer, verify,
};

fn lines(folder: &std::path::Path, filter: Filter) -> Vec<crate::Line> {
    LogReader::open(folder, filter).unwrap().map(Result::unwrap).collect()
}

#[test]
fn entries_come_back_as_they_were() {
    let folder = tempfile::tempdir().unwrap();
    let full = Entry {
        key: Some("key".to_owned()),
        model: Some("m\n\"\u{1}".to_owned()),
        fingerprint: Some("f".to_owned()),
        adapters: vec![AdapterUse { name: "a".to_owned(), version: Some("3".to_owned()), scale: 0.5 }],
        parameters: [("seed".to_owned(), Value::from(u64::MAX)), ("kind".to_owned(), Value::from("x"))]
            .into_iter()
            .collect(),
        prompt: Some(Content::with_text("Gr\u{fc}\u{df}e".to_owned())),
        outputs: vec![Content::hashed(""), Content::hashed("x")],
        cached_tokens: 1,
        output_tokens: u64::MAX,
        queue_ms: Some(std::time::Duration::from_micros(1)),
        ttft_ms: Some(std::time::Duration::from_secs(3600)),
        ..entry(1)
    };
    let cancelled = Entry { outcome: Outcome::Cancelled, ..Entry::default() };
    let failed = Entry { outcome: Outcome::Failed("overloaded".to_owned()), ..Entry::default() };
    let entries = [full, cancelled, failed];
    let writer = Writer::open(folder.path(), options()).unwrap();
    entries.iter().for_each(|entry| writer.record(entry).unwrap());
    writer.close().unwrap();
    let read = lines(folder.path(), Filter { requests_only: true, ..Filter::default() });
    let read: Vec<Event> = read.into_iter().map(|line| line.event).collect();
    assert_eq!(read, entries.map(|entry| Event::Request(Box::new(entry))));
}

#[test]
fn entries_that_are_too_long_lose_their_texts() {
    let folder = tempfile::tempdir().unwrap();
    let writer = Writer::open(folder.path(), options()).unwrap();
    let text = "x".repeat(MAX_LINE_BYTES);
    let long = Entry { prompt: Some(Content::with_text(text.clone())), ..entry(1) };
    writer.record(&long).unwrap();
    let parameters: Map<String, Value> =
        [("long".to_owned(), Value::from(text.clone()))].into_iter().collect();
    writer.record(&Entry { parameters, ..entry(2) }).unwrap();
    let refused = writer.record(&Entry { request_id: text, ..entry(3) });
    assert!(matches!(refused, Err(Refusal::TooLong { bytes }) if bytes > MAX_LINE_BYTES));
    // One byte less than the limit.
    let fits = Entry { request_id: "x".repeat(MAX_LINE_BYTES - 1000), ..entry(4) };
    writer.record(&fits).unwrap();
    writer.close().unwrap();
    assert_eq!(check_valid(folder.path()).requests, 3);
    let read = lines(folder.path(), Filter { requests_only: true, ..Filter::default() });
    let Event::Request(first) = &read[0].event else { panic!() };
    let expected = Content::hashed(&"x".repeat(MAX_LINE_BYTES));
    assert_eq!((first.shortened, first.prompt.as_ref()), (true, Some(&expected)));
    let Event::Request(second) = &read[1].event else { panic!() };
    assert!(second.shortened && second.parameters.is_empty());
}

#[test]
fn filters_select_by_time_tenant_and_request() {
    let folder = tempfile::tempdir().unwrap();
    append(folder.path(), 0..6);
    let count = |filter| lines(folder.path(), filter).len();
    let filter = Filter::default;
    assert!(count(filter()) > 6);
    assert_eq!(count(Filter { requests_only: true, ..filter() }), 6);
    for (tenant, n) in [("org", 6), ("org/team1", 3), ("org/team", 0), ("or", 0), ("", 0)] {
        assert_eq!(count(Filter { tenant: Some(tenant.to_owned()), ..filter() }), n, "{tenant}");
    }
    assert_eq!(count(Filter { request_id: Some("request-3".to_owned()), ..filter() }), 1);
    let all = lines(folder.path(), filter());
    let (first, last) = (all[0].time, all.last().unwrap().time);
    assert_eq!(count(Filter { since: Some(first), ..filter() }), all.len());
    assert_eq!(count(Filter { until: Some(first), ..filter() }), 0);
    let later = "9999-01-01".parse().unwrap();
    assert_eq!(count(Filter { since: Some(later), ..filter() }), 0);
    assert!(count(Filter { since: Some(last), until: Some(later), ..filter() }) > 0);
}

#[test]
fn readers_go_on_behind_damage() {
    let folder = tempfile::tempdir().unwrap();
    append(folder.path(), 0..4);
    let path = folder.path().join("witness-00000001.jsonl");
    let mut bytes = fs::read(&path).unwrap();
    let feed = bytes.iter().position(|&byte| byte == b'\n').unwrap();
    bytes.splice(feed..feed, *b"}");
    fs::write(&path, bytes).unwrap();
    let read: Vec<_> = LogReader::open(folder.path(), Filter::default()).unwrap().collect();
    assert!(matches!(&read[0], Err(Error::Line { line: 1, .. })), "{:?}", read[0]);
    assert!(read[1..].iter().all(Result::is_ok) && read.len() > 5);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_a_report(log in prop::collection::vec(any::<u8>(), 0..400), copy in "\\PC{0,40}", is_json in any::<bool>()) {
        let folder = tempfile::tempdir().unwrap();
        let mut log = log;
        if is_json {
            // Values of a line, without bounds.
            let n = u64::from_le_bytes(std::array::from_fn(|at| log.get(at).copied().unwrap_or(255)));
            let body = format!("{{\"kind\":\"dropped\",\"time\":\"2026-11-23\",\"elapsed_ms\":{n},\"count\":{n}}}");
            for seq in [n, u64::MAX, 0] {
                crate::line::seal(seq, crate::Digest::ZERO, body.as_bytes(), &mut log);
            }
        }
        fs::write(folder.path().join("witness-00000001.jsonl"), &log).unwrap();
        fs::write(folder.path().join("checkpoint.json"), copy).unwrap();
        let report = verify(folder.path(), &VerifyOptions::default()).unwrap();
        prop_assert!(!report.is_valid());
        report.findings.iter().for_each(|found| assert!(!found.to_string().is_empty()));
        LogReader::open(folder.path(), Filter::default()).unwrap().for_each(drop);
        prop_assert!(Writer::open(folder.path(), options()).is_err());
    }
}
