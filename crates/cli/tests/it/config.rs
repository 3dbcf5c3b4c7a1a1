//! Configuration file: precedence, errors, and its report in `doctor`.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;
use tempfile::TempDir;

use crate::program::{Run, argument, command, finish, run, tiny_model};

/// A configuration file in a folder of its own.
struct Configured {
    folder: TempDir,
}

impl Configured {
    fn new(text: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("ruvllm")).unwrap();
        fs::write(folder.path().join("ruvllm/config.toml"), text).unwrap();
        Self { folder }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("ruvllm/config.toml")
    }

    fn run_in(&self, arguments: &[&str], variables: &[(&str, &str)]) -> Run {
        let mut program = command(arguments);
        program
            .env_remove("RUVLLM_CONFIG")
            .env_remove("RUVLLM_ISA")
            .env("XDG_CONFIG_HOME", self.folder.path());
        program.envs(variables.iter().copied());
        finish(arguments, program.output().unwrap())
    }

    fn run(&self, arguments: &[&str]) -> Run {
        self.run_in(arguments, &[])
    }
}

/// Value and source of a setting in the document of `doctor`.
#[track_caller]
fn setting<'a>(document: &'a Value, name: &str) -> (Option<&'a str>, &'a str) {
    let values = document["settings"]["values"].as_array().unwrap();
    let setting = values.iter().find(|setting| setting["name"] == name).unwrap();
    (setting["value"].as_str(), setting["source"].as_str().unwrap())
}

#[test]
fn flag_goes_before_environment_before_file_before_default() {
    let tiny = tiny_model();
    let text = format!("model = \"{}\"\nisa = \"scalar\"\nthreads = 2\nkv = 'f32'\n", argument(&tiny));
    let configured = Configured::new(&text);
    let document = configured.run(&["doctor", "--json"]).json();
    assert_eq!(document["model"]["name"], argument(&tiny));
    assert_eq!(document["model"]["origin"], "the configuration file");
    assert_eq!(document["plan"]["kv"]["value"], "f32");
    assert_eq!(document["threads"], 2);
    assert_eq!(document["settings"]["file"], argument(&configured.path()));
    assert_eq!(setting(&document, "model"), (Some(argument(&tiny)), "file"));
    assert_eq!(setting(&document, "threads"), (Some("2"), "file"));
    assert_eq!(setting(&document, "isa"), (Some("scalar"), "file"));
    assert_eq!(setting(&document, "temperature"), (Some("0.8"), "default"));
    assert_eq!(setting(&document, "context"), (None, "default"));

    let of_store = "no-such-model";
    let variables = [("RUVLLM_ISA", "scalar"), ("RUVLLM_MODEL", of_store)];
    configured.run_in(&["doctor"], &variables).fails_with(1, &[of_store]);
    let flags = ["doctor", "--json", "-t", "1", "-m", argument(&tiny)];
    let document = configured.run_in(&flags, &variables).json();
    assert_eq!(document["threads"], 1);
    assert_eq!(setting(&document, "threads"), (Some("1"), "flag"));
    assert_eq!(setting(&document, "model"), (Some(argument(&tiny)), "flag"));
    assert_eq!(setting(&document, "isa"), (Some("scalar"), "environment"));
    let text = configured.run(&["doctor"]);
    let text = text.text();
    assert!(text.contains(&format!("(configuration file: {})", configured.path().display())), "{text}");
    assert!(text.lines().any(|line| line.starts_with("  threads ") && line.ends_with(" file")), "{text}");
}

#[test]
fn the_file_changes_what_commands_do() {
    let prompt = "Once upon a time";
    let configured = Configured::new("temperature = 0\nmax-tokens = 3\nseed = 7");
    let greedy = configured.run(&["generate", "--json", prompt]).json();
    assert_eq!(greedy["tokens"].as_array().unwrap().len(), 3);
    assert_eq!(greedy, {
        let mut same = run(&["generate", "--json", "--temp", "0", "-n", "3", prompt]).json();
        same["timings"] = greedy["timings"].clone();
        same
    });
    let longer = configured.run(&["generate", "--json", "-n", "5", prompt]).json();
    assert_eq!(longer["tokens"].as_array().unwrap().len(), 5);
    // A flag of the file does not conflict with one of the command line.
    let quiet = Configured::new("quiet = true");
    quiet.run(&["list", "--verbose"]).text();
}

#[test]
fn measurements_take_the_model_alone() {
    let tiny = tiny_model();
    let configured = Configured::new(&format!("kv = \"q8\"\nthreads = 64\nmodel = \"{}\"", argument(&tiny)));
    let document = configured.run(&["bench", "-p", "4", "-n", "0", "-r", "1", "--json"]).json();
    assert_eq!(document["results"][0]["kv"], "f16");
    assert_ne!(document["results"][0]["threads"], 64);
}

#[test]
fn faults_are_one_line_with_their_place() {
    for (text, pieces) in [
        ("temprature = 1", &["config.toml:1:", "`temprature` is no setting", "`temperature`"][..]),
        ("threads = 2\n\ntop-p = 1.5", &["config.toml:3:", "top-p is \"1.5\"", "from 0 to 1"]),
        ("kv = \"tired\"", &["config.toml:1:", "tired", "f16"]),
        ("color = \"pink\"", &["config.toml:1:", "auto", "never"]),
        ("quiet = 3", &["config.toml:1:", "true or false"]),
        ("context = {}", &["config.toml:1:", "one value"]),
        ("threads", &["config.toml:1:"]),
        ("stop = \"x\"", &["config.toml:1:", "`stop` is no setting"]),
    ] {
        let configured = Configured::new(text);
        configured.run(&["generate", "x"]).fails_with(2, pieces);
        configured.run(&["list"]).fails_with(2, pieces);
        // Help and usage errors work all the same.
        configured.run(&["generate", "--help"]).text();
        configured.run(&["list", "--no-such-flag"]).fails_with(2, &["--no-such-flag"]);
    }
}

#[test]
fn the_variable_names_another_file_or_none() {
    let configured = Configured::new("nonsense");
    configured.run_in(&["list"], &[("RUVLLM_CONFIG", "")]).text();
    let other = configured.folder.path().join("other.toml");
    fs::write(&other, "threads = 1").unwrap();
    let document = configured.run_in(&["doctor", "--json"], &[("RUVLLM_CONFIG", argument(&other))]).json();
    assert_eq!(setting(&document, "threads"), (Some("1"), "file"));
    configured
        .run_in(&["list"], &[("RUVLLM_CONFIG", "/nonexistent.toml")])
        .fails_with(1, &["/nonexistent.toml"]);
}
