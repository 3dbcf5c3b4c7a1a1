//! `ruvllm witness`: logs of requests.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ruvllm_witness::{AdapterUse, Content, Entry, Options, Outcome, PrivateKey, Writer};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::program::{argument, fields, run};

/// A log of four requests, the key that signed it, and their folder.
struct Log {
    folder: TempDir,
    path: PathBuf,
    public_key: PathBuf,
}

impl Log {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let key = folder.path().join("key");
        let made = run(&["witness", "key", argument(&key), "--json"]).json();
        let public_key = folder.path().join("key.pub");
        assert_eq!((&made["private_key"], &made["public_key"]), (&json!(key), &json!(public_key)));
        let path = folder.path().join("log");
        let key = PrivateKey::load(&key).unwrap();
        assert_eq!(made["key_id"], key.public_key().id().to_string());
        let writer = Writer::open(&path, Options { key: Some(key), ..Options::default() }).unwrap();
        entries().iter().for_each(|entry| writer.record(entry).unwrap());
        writer.close().unwrap();
        Self { folder, path, public_key }
    }

    fn file(&self) -> PathBuf {
        self.path.join("witness-00000001.jsonl")
    }

    fn verify(&self, flags: &[&str]) -> crate::program::Run {
        let base = ["witness", "verify", argument(&self.path), "--public-key", argument(&self.public_key)];
        run(&[&base, flags].concat())
    }
}

fn entries() -> [Entry; 4] {
    let base = |n: u64| Entry {
        request_id: format!("req-{n}"),
        tenant: "acme/web".to_owned(),
        endpoint: "/v1/completions".to_owned(),
        prompt_tokens: n,
        ..Entry::default()
    };
    [
        Entry {
            key: Some("ci".to_owned()),
            model: Some("small".to_owned()),
            fingerprint: Some("abc".to_owned()),
            adapters: vec![AdapterUse { name: "poet".to_owned(), version: Some("2".to_owned()), scale: 0.5 }],
            parameters: [("seed".to_owned(), Value::from(1))].into_iter().collect(),
            prompt: Some(Content::with_text("=1+1, \"x\"".to_owned())),
            outputs: vec![Content::hashed("2")],
            cached_tokens: 1,
            output_tokens: 2,
            queue_ms: Some(Duration::from_micros(1500)),
            ttft_ms: Some(Duration::from_millis(3)),
            total_ms: Some(Duration::from_millis(4)),
            outcome: Outcome::Finished(vec!["stop".to_owned()]),
            ..base(1)
        },
        Entry { outcome: Outcome::Failed("overloaded".to_owned()), ..base(2) },
        Entry { outcome: Outcome::Cancelled, shortened: true, ..base(3) },
        Entry { tenant: "other".to_owned(), ..base(4) },
    ]
}

#[test]
fn valid_logs_verify() {
    let log = Log::new();
    let text = log.verify(&[]).text().to_owned();
    assert!(text.starts_with("valid: 4 requests, 8 lines in 1 file, 2 checkpoints with valid sig"), "{text}");
    let document = log.verify(&["--json"]).json();
    assert_eq!((&document["valid"], &document["signatures"]), (&json!(true), &json!("verified")));
    assert_eq!((&document["last_checkpoint_seq"], &document["uncovered_count"]), (&json!(8), &json!(0)));
    let chain_only = run(&["witness", "verify", argument(&log.path)]).text().to_owned();
    assert!(chain_only.contains("signatures not verified (--public-key)"), "{chain_only}");
    let copy = log.path.join("checkpoint.json");
    log.verify(&["--checkpoint", argument(&copy)]).text();
}

#[test]
fn damage_is_a_line_with_its_place_and_code_1() {
    let log = Log::new();
    let original = fs::read_to_string(log.file()).unwrap();
    fs::write(log.file(), original.replace("req-2", "req-x")).unwrap();
    let (stdout, code) = output_and_code(&log.verify(&[]));
    let expected =
        "witness-00000001.jsonl line 5 (sequence number 5): altered: its bytes do not have its hash\n";
    assert_eq!((stdout.as_str(), code), (expected, 1));
    let (stdout, code) = output_and_code(&log.verify(&["--json"]));
    let document: Value = serde_json::from_str(&stdout).unwrap();
    crate::schema::check_as("witness-verify", &document);
    assert_eq!((&document["valid"], code), (&json!(false), 1));
    let finding = &document["findings"][0];
    assert_eq!(
        (&finding["kind"], &finding["line"], &finding["seq"]),
        (&json!("altered"), &json!(5), &json!(5))
    );

    let lines: Vec<&str> = original.lines().collect();
    fs::write(log.file(), lines[..6].join("\n") + "\n").unwrap();
    let (stdout, _) = output_and_code(&log.verify(&[]));
    assert_eq!(stdout, "checkpoint.json: the log ends at 6, before the checkpoint 8: lines were removed\n");
}

/// Standard output and exit code of a run that says nothing on standard error.
fn output_and_code(run: &crate::program::Run) -> (String, i32) {
    let (code, stdout, stderr) = run.parts();
    assert_eq!(stderr, "");
    (stdout.to_owned(), code.unwrap())
}

#[test]
fn entries_are_shown_and_selected() {
    let log = Log::new();
    let show = |flags: &[&str]| run(&[&["witness", "show", argument(&log.path)], flags].concat());
    let text = show(&[]).text().to_owned();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 4);
    for piece in ["acme/web", "req-1", "/v1/completions", "small", "1+2", "4.0 ms", "stop"] {
        assert!(lines[0].contains(piece), "{piece}: {text}");
    }
    assert!(lines[1].ends_with("error: overloaded") && lines[2].ends_with("cancelled"), "{text}");
    let ids = |flags: &[&str]| -> Vec<String> {
        let document = show(&[flags, &["--json"]].concat()).json();
        let entries = document["entries"].as_array().unwrap();
        entries.iter().map(|entry| entry["request_id"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(ids(&[]), ["req-1", "req-2", "req-3", "req-4"]);
    assert_eq!(ids(&["--last", "2"]), ["req-3", "req-4"]);
    assert_eq!(ids(&["--tenant", "acme"]), ["req-1", "req-2", "req-3"]);
    assert_eq!(ids(&["--request", "req-2"]), ["req-2"]);
    assert_eq!(ids(&["--until", "2026-01-01"]), [""; 0]);
    assert_eq!(show(&["--since", "9998-01-01"]).text(), "no entries\n");
    let document = show(&["--json"]).json();
    let texts = fs::read_to_string(log.file()).unwrap();
    assert_eq!(document["entries"][0], serde_json::from_str::<Value>(texts.lines().nth(3).unwrap()).unwrap());
    show(&["--since", "yesterday"]).fails_with(2, &["--since", "expected a UTC time"]);
}

#[test]
fn entries_are_exported_as_lines_and_as_csv() {
    let log = Log::new();
    let out = |name: &str| log.folder.path().join(name);
    let export = |path: &Path, flags: &[&str]| {
        run(&[&["witness", "export", argument(&log.path), argument(path)], flags].concat())
    };
    let document = export(&out("a.jsonl"), &["--tenant", "acme", "--json"]).json();
    assert_eq!(fields(&document), ["output", "format", "entry_count", "bytes"]);
    let lines = fs::read_to_string(out("a.jsonl")).unwrap();
    let texts = fs::read_to_string(log.file()).unwrap();
    let of_log: Vec<&str> = texts.lines().skip(3).take(3).collect();
    assert_eq!(lines.lines().collect::<Vec<_>>(), of_log, "byte for byte");
    assert_eq!(document["bytes"], lines.len());
    let text = export(&out("b.csv"), &[]).text().to_owned();
    let csv = fs::read_to_string(out("b.csv")).unwrap();
    assert!(text.ends_with(&format!("b.csv: 4 entries, {} B\n", csv.len())), "{text}");
    let rows: Vec<&str> = csv.lines().collect();
    assert!(rows[0].starts_with("seq,time,request_id,tenant,key,endpoint,model"), "{csv}");
    assert!(
        rows[1].contains(",poet:2@0.5,\"{\"\"seed\"\":1}\",") && rows[1].contains("\"'=1+1, \"\"x\"\"\""),
        "{csv}"
    );
    assert!(rows[1].ends_with(",1,1,2,1.5,3,4,stop"), "{csv}");
    assert_eq!(rows.len(), 5);
    export(&out("b.csv"), &[]).fails_with(1, &["b.csv exists", "--force"]);
    export(&out("b.csv"), &["--force", "--format", "jsonl"]).text();
    assert!(fs::read_to_string(out("b.csv")).unwrap().starts_with('{'));
    let to_stdout = export(Path::new("-"), &["--tenant", "acme"]);
    assert_eq!(to_stdout.text(), lines);
    export(Path::new("-"), &["--json"]).fails_with(2, &["standard output"]);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(fs::metadata(out("a.jsonl")).unwrap().permissions().mode() & 0o777, 0o600);
    }
}

#[test]
fn damaged_lines_are_left_out_with_a_warning() {
    let log = Log::new();
    let mut texts = fs::read_to_string(log.file()).unwrap();
    texts.insert_str(0, "{}\nx\n");
    fs::write(log.file(), texts).unwrap();
    let shown = run(&["witness", "show", argument(&log.path)]);
    let (text, notes) = shown.text_and_notes();
    assert_eq!(text.lines().count(), 4);
    assert!(notes.contains("2 damaged lines left out; the first: witness-00000001.jsonl line 1"), "{notes}");
}

#[test]
fn faults_name_the_file() {
    let log = Log::new();
    let none = log.folder.path().join("none");
    for command in ["verify", "show"] {
        run(&["witness", command, argument(&none)]).fails_with(1, &["cannot list", "none"]);
    }
    run(&["witness", "export", argument(&none), argument(&log.folder.path().join("out"))])
        .fails_with(1, &["cannot list", "none"]);
    assert!(!log.folder.path().join("out").exists());
    let (private, public) = (log.folder.path().join("key"), argument(&log.public_key));
    run(&["witness", "key", argument(&private)]).fails_with(1, &["cannot create", "key"]);
    let verify = ["witness", "verify", argument(&log.path), "--public-key"];
    run(&[&verify[..], &[argument(&private)]].concat()).fails_with(1, &["no public Ed25519 key"]);
    run(&[&verify[..], &[public, "--checkpoint", argument(&none)]].concat())
        .fails_with(1, &["cannot read", "none"]);
    let made = run(&["witness", "key", argument(&log.folder.path().join("second"))]);
    assert!(made.text().starts_with("key ") && made.text().contains("second.pub"));
    let empty = tempfile::tempdir().unwrap();
    let (stdout, code) = output_and_code(&run(&["witness", "verify", argument(empty.path())]));
    assert_eq!((stdout.as_str(), code), ("witness-00000001.jsonl: the file is missing\n", 1));
}
