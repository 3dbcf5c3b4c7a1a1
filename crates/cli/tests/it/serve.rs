//! `ruvllm serve`: what it serves, its signals and its refusals.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::program::{argument, command, json_document, repository, run, tiny_model};
use crate::schema;

/// A running server, which is killed at the end of a test.
struct Served {
    child: Child,
    document: Value,
}

impl Served {
    fn start(flags: &[&str]) -> Self {
        Self::of(command(&[&["serve", "--port", "0", "--json", "--quiet", "--threads", "1"], flags].concat()))
    }

    fn of(mut program: Command) -> Self {
        program.stderr(Stdio::inherit());
        Self::with_errors(program)
    }

    /// As [`of`](Self::of), with the standard error of `program`.
    fn with_errors(mut program: Command) -> Self {
        let mut child = program.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let document = json_document(&line);
        schema::check_as("serve", &document);
        Self { child, document }
    }

    fn address(&self) -> &str {
        self.document["address"].as_str().unwrap().strip_prefix("http://").unwrap()
    }

    fn connect(&self) -> std::io::Result<TcpStream> {
        let stream = TcpStream::connect(self.address())?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        Ok(stream)
    }

    /// Status and text of a request on a connection of its own; 0 without an answer.
    fn request(&self, method: &str, path: &str, headers: &str, body: &str) -> (u16, String) {
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-type: application/json\r\n\
             content-length: {length}\r\n{headers}\r\n{body}"
        );
        let mut text = String::new();
        let exchange = self.connect().and_then(|mut stream| {
            stream.write_all(request.as_bytes())?;
            stream.read_to_string(&mut text)
        });
        let status = text.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)?.parse().ok());
        (exchange.ok().and(status).unwrap_or(0), text)
    }

    fn send(&self, signal: &str) {
        assert!(
            Command::new("kill").args([signal, &self.child.id().to_string()]).status().unwrap().success()
        );
    }

    /// Limits the length of files that the server writes, as a disk does; `None` is no limit.
    #[cfg(target_os = "linux")]
    fn limit_files(&self, bytes: Option<u64>) {
        use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap());
        let limit = Rlimit { current: bytes, maximum: getrlimit(Resource::Fsize).maximum };
        prlimit(pid, Resource::Fsize, limit).unwrap();
    }

    fn exit_code(mut self) -> Option<i32> {
        let mut code = None;
        eventually("the server does not end", || {
            code = self.child.try_wait().unwrap();
            code.is_some()
        });
        code.unwrap().code()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[track_caller]
fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(20), "{what}");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_model_of_a_flag_is_served_under_its_names() {
    let tiny = tiny_model();
    let server = Served::start(&["-m", argument(&tiny), "--alias", "gpt-4o"]);
    assert_eq!(server.document["models"][0]["name"], "model-F32");
    assert_eq!(server.document["models"][0]["aliases"][0], "gpt-4o");
    let body = r#"{"model": "gpt-4o", "prompt": "Once", "max_tokens": 2}"#;
    let (status, text) = server.request("POST", "/v1/completions", "", body);
    assert_eq!(status, 200, "{text}");
    assert_eq!(server.request("GET", "/v1/models", "", "").0, 200);
    assert!(server.request("GET", "/v1/models", "", "").1.contains("model-F32"));
    server.send("-TERM");
    assert_eq!(server.exit_code(), Some(0));
}

#[test]
fn a_reranker_is_served() {
    let model = repository("crates/models/tests/data/rerank/xlm_roberta/converted.gguf");
    let server = Served::start(&["-m", argument(&model)]);
    let body = r#"{"query": "where did the cat sit", "documents": ["The cat sat on the mat.", ""], "top_n": 1,
                   "return_documents": true, "raw_scores": true}"#;
    let (status, text) = server.request("POST", "/v1/rerank", "", body);
    let reply: Value = serde_json::from_str(text.split("\r\n\r\n").nth(1).unwrap()).unwrap();
    // The logit of transformers.
    let score = reply["results"][0]["relevance_score"].as_f64().unwrap();
    assert!(status == 200 && (score - 0.431_709_838).abs() < 1e-5, "{text}");
    assert_eq!(reply["results"][0]["document"]["text"], "The cat sat on the mat.");
    let body = r#"{"prompt": "Once", "max_tokens": 2}"#;
    let (status, text) = server.request("POST", "/v1/completions", "", body);
    assert!(status == 400 && text.contains("generates no text"), "{text}");
}

#[test]
fn an_encoder_with_matrices_behind_its_pooling_is_served() {
    let model = repository("crates/models/tests/data/embed/gemma/converted.gguf");
    let server = Served::start(&["-m", argument(&model)]);
    let body = r#"{"input": ["cat", "The cat sat on."]}"#;
    let (status, text) = server.request("POST", "/v1/embeddings", "", body);
    let reply: Value = serde_json::from_str(text.split("\r\n\r\n").nth(1).unwrap()).unwrap();
    // The vector of transformers.
    let vector = reply["data"][1]["embedding"].as_array().unwrap();
    let error = |(value, expected): (&Value, f64)| (value.as_f64().unwrap() - expected).abs();
    let worst =
        vector.iter().zip([-0.096_504_856, 0.019_250_659, 0.179_986_510]).map(error).fold(0.0, f64::max);
    assert!(status == 200 && vector.len() == 16 && worst < 1e-6, "{text}");
}

#[test]
fn keys_are_rotated_by_sighup() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys.toml");
    let keys = argument(&path);
    let bearer = |text: &str| format!("authorization: Bearer {}\r\n", text.trim());
    let former = bearer(run(&["key", "new", "one", "--file", keys]).text());
    let server = Served::start(&["-m", argument(&tiny_model()), "--api-keys", keys]);
    let status = |key: &str| server.request("GET", "/v1/models", key, "").0;
    assert_eq!((status(&former), status("")), (200, 401));
    let next = bearer(run(&["key", "rotate", "one", "--file", keys]).text());
    assert_eq!(status(&next), 401);
    server.send("-HUP");
    eventually("the former key is accepted", || status(&former) == 401);
    assert_eq!(status(&next), 200);
    // A file with a fault changes nothing; the server goes on.
    fs::write(&path, "nonsense").unwrap();
    server.send("-HUP");
    server.send("-HUP");
    assert_eq!(status(&next), 200);
}

/// Configuration of the tiny model with adapters: their names in requests and in the store.
fn with_adapters(adapters: &[(&str, &str)]) -> String {
    let lines: String = adapters.iter().map(|(name, stored)| format!("{name} = '{stored}'\n")).collect();
    format!("[[models]]\nname = 'tiny'\npath = '{}'\n[models.adapters]\n{lines}", tiny_model().display())
}

#[test]
fn adapters_follow_the_configuration_at_sighup() {
    let folder = tempfile::tempdir().unwrap();
    let in_store = |arguments: &[&str]| {
        let mut program = command(arguments);
        program.env("RUVLLM_HOME", folder.path());
        program
    };
    let tiny = tiny_model();
    for (name, lora) in [("small", "r1_qv"), ("large", "r4_all")] {
        let source = repository("crates/models/tests/data/lora").join(lora);
        let arguments = ["adapter", "add", name, argument(&source), "--model", argument(&tiny)];
        assert!(in_store(&arguments).output().unwrap().status.success());
    }
    let config = folder.path().join("server.toml");
    fs::write(&config, with_adapters(&[("poet", "small")])).unwrap();
    let flags = ["serve", "--port", "0", "--json", "--quiet", "--threads", "1", "--config"];
    let server = Served::of(in_store(&[&flags[..], &[argument(&config)]].concat()));
    let text = |model: &str| {
        let body = format!(
            r#"{{"model": "{model}", "prompt": [5, 6, 7], "max_tokens": 1, "logprobs": 3, "temperature": 0}}"#
        );
        let (status, text) = server.request("POST", "/v1/completions", "", &body);
        let choice = text.split_once(r#""logprobs""#).and_then(|(_, rest)| rest.split_once("finish_reason"));
        (status, choice.map_or_else(String::new, |(logprobs, _)| logprobs.to_owned()))
    };
    let (first, base) = (text("poet"), text("tiny"));
    assert_eq!((first.0, base.0, text("bard").0), (200, 200, 404));
    assert_ne!(first.1, base.1);

    fs::write(&config, with_adapters(&[("poet", "large"), ("bard", "small")])).unwrap();
    server.send("-HUP");
    eventually("the new adapter is absent", || text("bard").0 == 200);
    assert_eq!(text("bard").1, first.1);
    assert_ne!(text("poet").1, first.1);

    fs::write(&config, with_adapters(&[("bard", "small")])).unwrap();
    server.send("-HUP");
    eventually("the former adapter is there", || text("poet").0 == 404);
    // A file that cannot be used leaves the others as they are.
    fs::write(&config, with_adapters(&[("bard", "absent")])).unwrap();
    server.send("-HUP");
    server.send("-HUP");
    assert_eq!(text("bard").1, first.1);
}

#[test]
fn a_killed_server_finds_its_sessions_and_a_valid_witness_log() {
    let folder = tempfile::tempdir().unwrap();
    let (sessions, log) = (folder.path().join("sessions"), folder.path().join("log"));
    let config = folder.path().join("server.toml");
    let text = format!(
        "[folders]\nsessions = '{}'\nsessions_interval_s = 0.1\n[witness]\nfolder = '{}'\nfsync = true\n\
         [[models]]\nname = 'tiny'\npath = '{}'\nkeep = true\n",
        sessions.display(),
        log.display(),
        tiny_model().display()
    );
    fs::write(&config, text).unwrap();
    let server = Served::start(&["--config", argument(&config)]);
    let body = r#"{"prompt": [5, 6, 7], "max_tokens": 4, "session": "story"}"#;
    assert_eq!(server.request("POST", "/v1/completions", "", body).0, 200);
    let is_saved = || {
        let folders = fs::read_dir(&sessions).into_iter().flatten().flatten();
        folders
            .map(|folder| folder.path().join("sessions.json"))
            .any(|index| fs::read_to_string(index).is_ok_and(|text| text.contains("\"story\"")))
    };
    eventually("the session is not written", is_saved);
    // Killed in the middle of a stream.
    let mut stream = server.connect().unwrap();
    let body = r#"{"prompt": [5, 6, 7], "max_tokens": 400, "stream": true, "ignore_eos": true}"#;
    let head = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all((head + body).as_bytes()).unwrap();
    stream.read_exact(&mut [0; 200]).unwrap();
    server.send("-KILL");
    assert_eq!(server.exit_code(), None);

    let server = Served::start(&["--config", argument(&config)]);
    let found = server.request("GET", "/v1/sessions", "", "").1;
    assert!(found.contains("\"story\""), "{found}");
    assert_eq!(server.request("POST", "/v1/completions", "", r#"{"prompt": [5], "max_tokens": 1}"#).0, 200);
    server.send("-TERM");
    assert_eq!(server.exit_code(), Some(0));
    let report = run(&["witness", "verify", argument(&log), "--json"]).json();
    assert_eq!(report["valid"], true, "{report}");
}

/// Without room on the disk the server answers; with room again, log and sessions are complete.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_loses_no_record_and_no_session() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let (sessions, log, prefixes) = (path("sessions"), path("log"), path("prefixes"));
    let text = format!(
        "[folders]\nsessions = '{}'\nsessions_interval_s = 0.1\n[witness]\nfolder = '{}'\nfsync = true\n",
        sessions.display(),
        log.display(),
    );
    fs::write(path("server.toml"), text).unwrap();
    let (config, tiny) = (path("server.toml"), tiny_model());
    let mut program = command(&["serve", "--port", "0", "--json", "--threads", "1"]);
    program.args(["-m", argument(&tiny), "--config", argument(&config)]);
    program.args(["--prefix-cache", "on", "--prefix-dir", argument(&prefixes)]);
    let mut server = Served::with_errors({
        program.stderr(Stdio::piped());
        program
    });
    let errors = server.child.stderr.take().unwrap();
    let errors = thread::spawn(move || std::io::read_to_string(errors).unwrap());

    let mut calls = 0;
    let mut ask = |session: &str| {
        let prompt: Vec<u32> = (0..70).map(|at| 5 + (at + calls) % 50).collect();
        let body = format!(r#"{{"prompt": {prompt:?}, "max_tokens": 4, "session": "{session}"}}"#);
        let (status, text) = server.request("POST", "/v1/completions", "", &body);
        assert_eq!(status, 200, "{text}");
        calls += 1;
    };
    let is_saved = |session: &str| {
        let folders = fs::read_dir(&sessions).into_iter().flatten().flatten();
        let mut indexes = folders.map(|folder| folder.path().join("sessions.json"));
        indexes.any(|index| fs::read_to_string(index).is_ok_and(|text| text.contains(session)))
    };
    ask("before");
    eventually("the session is not written", || is_saved("\"before\""));
    server.limit_files(Some(0));
    (0..5).for_each(|_| ask("during"));
    // Long enough for attempts to write all.
    thread::sleep(Duration::from_millis(1500));
    assert!(is_saved("\"before\"") && !is_saved("\"during\""));
    assert_eq!(server.request("GET", "/health", "", "").0, 200);
    server.limit_files(None);
    eventually("the session is not written", || is_saved("\"during\""));
    ask("after");
    server.send("-TERM");
    assert_eq!(server.exit_code(), Some(0));
    let errors = errors.join().unwrap();
    for line in
        ["witness log cannot be written", "log is written again", "cannot save sessions", "prefix cache"]
    {
        assert!(errors.contains(line), "{line}: {errors}");
    }
    let report = run(&["witness", "verify", argument(&log), "--json"]).json();
    assert_eq!((&report["valid"], &report["request_count"]), (&true.into(), &calls.into()), "{report}");
    let server = Served::start(&["-m", argument(&tiny), "--config", argument(&config)]);
    let found = server.request("GET", "/v1/sessions", "", "").1;
    for session in ["before", "during", "after"] {
        assert!(found.contains(&format!("\"{session}\"")), "{found}");
    }
}

#[test]
fn the_second_signal_ends_requests_that_run() {
    let server = Served::start(&["-m", argument(&tiny_model())]);
    let mut running = server.connect().unwrap();
    let head = "POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n\
                expect: 100-continue\r\ncontent-length: 10\r\n\r\n";
    running.write_all(head.as_bytes()).unwrap();
    // The handler runs: it has asked for the body.
    running.read_exact(&mut [0; 12]).unwrap();
    server.send("-INT");
    eventually("connections are accepted", || server.connect().is_err());
    server.send("-INT");
    assert_eq!(server.exit_code(), Some(0));
}

#[test]
fn a_server_without_file_descriptors_recovers() {
    let tiny = tiny_model();
    let mut program = Command::new("sh");
    let script = "ulimit -n 40; exec \"$0\" serve --port 0 --json --quiet --threads 1 -m \"$1\"";
    let usual = command(&[]);
    program.args(["-c", script, env!("CARGO_BIN_EXE_ruvllm"), argument(&tiny)]);
    for (name, value) in usual.get_envs() {
        match value {
            Some(value) => program.env(name, value),
            None => program.env_remove(name),
        };
    }
    let server = Served::of(program);
    let open: Vec<_> = (0..80).filter_map(|_| server.connect().ok()).collect();
    assert!(open.len() > 40, "{}", open.len());
    drop(open);
    eventually("the server is stuck", || server.request("GET", "/health", "", "").0 == 200);
}

#[test]
fn a_check_prints_what_would_be_served() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("server.toml");
    let tiny = tiny_model();
    let text = format!(
        "[listen]\nport = 9999\n[[models]]\nname = 'small'\npath = '{}'\nkv = 'q8'\n[[models]]\nname = 'base'\n\
         aliases = ['*']\n",
        tiny.display()
    );
    fs::write(&config, text).unwrap();
    let file = argument(&config);
    let document = run(&["serve", "--config", file, "--check", "--json"]).json();
    assert_eq!(document["address"], "http://127.0.0.1:9999");
    assert_eq!(
        (&document["models"][0]["name"], &document["models"][1]["aliases"][0]),
        (&"small".into(), &"*".into())
    );
    let output = run(&["serve", "--config", file, "--port", "1234", "--check"]);
    for piece in ["http://127.0.0.1:1234", "none: every caller", "small", "alias *"] {
        assert!(output.text().contains(piece), "{}", output.text());
    }
}

#[test]
fn faults_are_one_line_with_a_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("server.toml");
    let file = argument(&config);
    for (text, pieces) in [
        ("[listen]\nprot = 1", &["server.toml:2", "`prot`", "`port`"][..]),
        ("[limits]\nheaders = 1", &["server.toml:2", "limits.headers", "8 to 1000"]),
        ("[keys]\nfile = '/nonexistent'", &["/nonexistent", "ruvllm key new"]),
        ("[tls]\nkey = 'a'", &["server.toml:2", "tls.key", "--tls-certificate"]),
        ("[[models]]\nkv = 'tired'", &["models.kv", "tired"]),
    ] {
        fs::write(&config, text).unwrap();
        run(&["serve", "--config", file, "--check"]).fails_with(2, pieces);
    }
    run(&["serve", "--tls-key", "a", "--check"]).fails_with(2, &["--tls-key: tls.key", "--tls-certificate"]);
    run(&["serve", "--host", "0.0.0.0", "--check"]).fails_with(2, &["--api-keys", "--allow-public"]);
    run(&["serve", "--host", "0.0.0.0"]).fails_with(2, &["--api-keys", "--allow-public"]);
    run(&["serve", "--port", "70000"]).fails_with(2, &["70000"]);
    run(&["serve", "-m", "/nonexistent.gguf", "--check"]).fails_with(1, &["/nonexistent.gguf"]);
    run(&["serve", "--adapter", "a=Cargo.toml", "--check"]).failure(1);
}
