//! The model store through the program: pull, list, info, rm, and `--model NAME`.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::program::{Run, argument, command, fields, finish, tiny_model};
use crate::server::{FakeHub, Faults, noise, sha256};

pub(crate) const SOURCE: &str = "hf://org/repo";

/// A hub, and a store in its own folder.
pub(crate) struct Place {
    pub(crate) hub: FakeHub,
    pub(crate) home: TempDir,
}

impl Place {
    pub(crate) fn new(files: &[(&str, Vec<u8>)]) -> Self {
        Self { hub: FakeHub::start(files), home: tempfile::tempdir().unwrap() }
    }

    /// The program with this store and hub, without variables that point elsewhere.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = command(arguments);
        for name in [
            "HF_TOKEN",
            "HF_TOKEN_PATH",
            "HF_HUB_OFFLINE",
            "ALL_PROXY",
            "all_proxy",
            "HTTPS_PROXY",
            "https_proxy",
            "HTTP_PROXY",
            "http_proxy",
        ] {
            command.env_remove(name);
        }
        command.env("RUVLLM_HOME", self.home.path()).env("HF_HOME", self.home.path().join("hf"));
        command.env("HF_ENDPOINT", self.hub.endpoint());
        command
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Run {
        finish(arguments, self.command(arguments).output().unwrap())
    }
}

pub(crate) fn tiny() -> Vec<u8> {
    fs::read(tiny_model()).unwrap()
}

#[test]
fn a_model_is_pulled_listed_used_and_removed() {
    let place = Place::new(&[("tiny.F32.gguf", tiny())]);
    assert!(place.run(&["list"]).text().contains("no models"));
    let document = place.run(&["pull", SOURCE, "--as", "small", "--json"]).json();
    assert_eq!(
        fields(&document),
        [
            "name",
            "source",
            "commit",
            "path",
            "bytes",
            "complete",
            "pulled_unix",
            "file_count",
            "unverified_file_count",
            "downloaded_bytes",
            "freed_bytes"
        ]
    );
    assert_eq!(document["downloaded_bytes"], tiny().len());
    let path = document["path"].as_str().unwrap().to_owned();
    assert_eq!(fs::read(&path).unwrap(), tiny());

    let again = place.run(&["pull", SOURCE, "--as", "other"]);
    assert!(again.text().starts_with("other: 1 file, "), "{again:?}");
    assert!(again.text().contains("(0 B downloaded)"), "{again:?}");

    let list = place.run(&["list", "--json"]).json();
    let names: Vec<&str> =
        list["models"].as_array().unwrap().iter().map(|m| m["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["other", "small"]);
    assert!(place.run(&["list"]).text().lines().all(|line| line.contains("now") && line.ends_with(SOURCE)));
    let info = place.run(&["info", "small", "--json"]).json();
    assert_eq!(info["files"][0]["sha256"], sha256(&tiny()));
    assert!(place.run(&["info", "small"]).text().contains(&sha256(&tiny())));

    let generate = |model: &str| {
        let arguments = ["generate", "a", "-n", "4", "--temperature", "0", "--model", model];
        place.run(&arguments).text().to_owned()
    };
    assert_eq!(generate("small"), generate(&path));
    let by_variable = place.command(&["tokenize", "a"]).env("RUVLLM_MODEL", "small").output().unwrap();
    assert_eq!(finish(&["tokenize"], by_variable).text(), place.run(&["tokenize", "a", "-m", &path]).text());
    place.run(&["inspect", "other"]).text();

    assert_eq!(place.run(&["rm", "small"]).text(), "small removed, 0 B freed\n");
    assert_eq!(place.run(&["rm", "other", "--json"]).json()["freed_bytes"], tiny().len());
    assert!(!Path::new(&path).exists());
    assert!(place.run(&["list", "--json"]).json()["models"].as_array().unwrap().is_empty());
}

#[test]
fn a_file_goes_before_a_name() {
    let place = Place::new(&[("tiny.gguf", tiny())]);
    place.run(&["pull", SOURCE, "--as", "thing"]).text();
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("thing"), "no model").unwrap();
    let output = place.command(&["inspect", "thing"]).current_dir(folder.path()).output().unwrap();
    finish(&["inspect", "thing"], output).fails_with(1, &["thing", "GGUF"]);
}

#[test]
fn unknown_models_come_with_near_names() {
    let place = Place::new(&[("tiny.gguf", tiny())]);
    place
        .run(&["generate", "x", "-m", "tiny"])
        .fails_with(1, &["tiny is neither a file", "the store", "empty"]);
    place.run(&["pull", SOURCE]).text();
    for arguments in [
        &["generate", "x", "-m", "tinny"][..],
        &["doctor", "-m", "tinny"],
        &["inspect", "tinny"],
        &["bench", "-m", "tinny"],
    ] {
        place.run(arguments).fails_with(1, &["tinny is neither a file", "near to it is tiny"]);
    }
    place.run(&["info", "tinny"]).fails_with(1, &["tinny", "near to it is tiny"]);
    place.run(&["rm", "tinny"]).fails_with(1, &["tinny", "near to it is tiny"]);
}

#[test]
fn wrong_references_are_usage_errors() {
    let place = Place::new(&[]);
    for reference in ["org", "hf://org", "hf://org/repo/../x", "https://example.org/org/repo"] {
        place.run(&["pull", reference]).fails_with(2, &[reference, "hf://ORG/REPO[/FILE]"]);
    }
    place.run(&["pull", SOURCE, "--as", "../x"]).fails_with(1, &["../x", "letters"]);
    place.run(&["pull", SOURCE]).fails_with(1, &["org/repo", "no GGUF file"]);
    place.run(&["pull", "hf://org/other"]).fails_with(1, &["not found", "org/other"]);
}

#[test]
fn the_token_is_looked_for_in_the_usual_places() {
    let place = Place::new(&[("tiny.gguf", tiny())]);
    place.hub.set(Faults { token: Some("hf_right"), ..Faults::default() });
    let token = place.home.path().join("hf").join("token");
    place.run(&["pull", SOURCE]).fails_with(1, &["token", "HF_TOKEN", argument(&token)]);
    let wrong = place.command(&["pull", SOURCE]).env("HF_TOKEN", "hf_wrong").output().unwrap();
    let wrong = finish(&["pull"], wrong);
    wrong.fails_with(1, &["that in HF_TOKEN was refused"]);
    assert!(!format!("{wrong:?}").contains("hf_wrong"));
    fs::create_dir(token.parent().unwrap()).unwrap();
    fs::write(&token, "hf_right\n").unwrap();
    place.run(&["pull", SOURCE]).text();
    assert!(
        place
            .hub
            .take_requests()
            .iter()
            .all(|request| { !request.to_storage || !request.headers.contains_key("authorization") })
    );
}

#[test]
fn offline_is_said() {
    let place = Place::new(&[("tiny.gguf", tiny())]);
    let offline = || {
        let output = place.command(&["pull", SOURCE]).env("HF_HUB_OFFLINE", "1").output().unwrap();
        finish(&["pull", SOURCE], output)
    };
    offline().fails_with(1, &["HF_HUB_OFFLINE", SOURCE]);
    place.run(&["pull", SOURCE]).text();
    assert!(offline().text().contains("0 B downloaded"));
}

#[test]
fn a_wrong_checksum_is_one_line() {
    let place = Place::new(&[("tiny.gguf", tiny())]);
    place.hub.set(Faults { wrong_bytes: true, ..Faults::default() });
    place.run(&["pull", SOURCE]).fails_with(1, &["tiny.gguf", "SHA-256", &sha256(&tiny())]);
    place.run(&["inspect", "tiny"]).fails_with(1, &["not complete", "hf://org/repo"]);
    assert!(place.run(&["list"]).text().contains("not complete"));
}

#[test]
fn files_without_validators_are_called_unverified() {
    let place = Place::new(&[("tiny.gguf", tiny())]);
    place.hub.set(Faults { has_no_validators: true, ..Faults::default() });
    assert!(place.run(&["pull", SOURCE]).text().contains("\nunverified: tiny.gguf "));
    assert!(place.run(&["info", "tiny"]).text().ends_with(&format!("{} unverified\n", sha256(&tiny()))));
    assert_eq!(place.run(&["info", "tiny", "--json"]).json()["files"][0]["unverified"], true);
    assert_eq!(place.run(&["pull", SOURCE, "--json"]).json()["unverified_file_count"], 1);
}

#[test]
fn an_endpoint_with_a_password_is_refused() {
    let place = Place::new(&[("tiny.gguf", tiny())]);
    let endpoint = place.hub.endpoint().replace("http://", "http://me:SECRET@");
    let output = place.command(&["pull", SOURCE]).env("HF_ENDPOINT", endpoint).output().unwrap();
    let run = finish(&["pull"], output);
    run.fails_with(1, &["HF_ENDPOINT", "name or a password", "HF_TOKEN"]);
    assert!(!format!("{run:?}").contains("SECRET"));
}

#[test]
fn a_damaged_entry_is_one_line() {
    let place = Place::new(&[("tiny.gguf", tiny())]);
    place.run(&["pull", SOURCE, "--as", "good"]).text();
    place.run(&["pull", SOURCE, "--as", "bad"]).text();
    fs::write(place.home.path().join("models/manifests/bad.json"), "{\"a\u{1b}").unwrap();
    let list = place.run(&["list"]);
    let lines: Vec<&str> = list.text().lines().collect();
    assert!(lines[0].starts_with("bad ") && lines[0].contains("damaged"), "{lines:?}");
    assert!(lines[0].ends_with("`ruvllm rm bad`") && lines[1].starts_with("good "), "{lines:?}");
    let document = place.run(&["list", "--json"]).json();
    assert_eq!(
        (&document["models"][0]["name"], &document["damaged"][0]["name"]),
        (&"good".into(), &"bad".into())
    );
    place.run(&["info", "good"]).text();
    place.run(&["inspect", "good"]).text();
    place.run(&["info", "bad"]).fails_with(1, &["bad.json is damaged", "remove the model"]);
    place.run(&["pull", SOURCE, "--as", "bad"]).fails_with(1, &["bad.json is damaged"]);
    place.run(&["pull", SOURCE, "--as", "other"]).text();
    place.run(&["rm", "other"]).text();
    assert_eq!(place.run(&["rm", "bad"]).text(), "bad removed, 0 B freed\n");
    place.run(&["pull", SOURCE, "--as", "bad"]).text();
}

#[test]
fn a_killed_pull_goes_on_where_it_was() {
    const BYTES: usize = 40 << 20;
    let bytes = noise(BYTES, 1);
    let place = Place::new(&[("m.gguf", bytes.clone())]);
    place.hub.set(Faults { trickle: Some((Duration::from_millis(20), 64 << 10)), ..Faults::default() });
    let mut child =
        place.command(&["pull", SOURCE]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    // The state of the download is first written after half a second.
    let state = place.home.path().join("models/files/org--repo/c0ffee/m.gguf.part.json");
    let deadline = Instant::now() + Duration::from_secs(60);
    while !state.exists() {
        assert!(Instant::now() < deadline && child.try_wait().unwrap().is_none(), "nothing was recorded");
        thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let state: serde_json::Value = serde_json::from_slice(&fs::read(state).unwrap()).unwrap();
    let recorded: u64 = state["done"].as_array().unwrap().iter().map(|done| done.as_u64().unwrap()).sum();
    assert!(recorded > 0 && recorded < BYTES as u64);
    assert!(place.run(&["list"]).text().contains("not complete"));

    place.hub.set(Faults::default());
    let document = place.run(&["pull", SOURCE, "--json"]).json();
    assert_eq!(document["downloaded_bytes"], BYTES as u64 - recorded);
    assert!(fs::read(document["path"].as_str().unwrap()).unwrap() == bytes, "other bytes than the hub's");
}
