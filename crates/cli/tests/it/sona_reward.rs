//! `ruvllm sona train --loss reward`: answers that a command rates.

use std::fs;
use std::path::{Path, PathBuf};

use crate::program::{Run, argument, command, finish, run, tiny_model};

/// Rates short answers higher.
const SHORT: &str = "while read -r line; do echo \"{\\\"reward\\\": -${#line}}\"; done";

struct Home {
    folder: tempfile::TempDir,
}

impl Home {
    /// Folder with 12 prompts.
    fn new() -> Self {
        let home = Self { folder: tempfile::tempdir().unwrap() };
        let places = ["Lisse", "Haren", "Brielle", "Vlist", "Ommen", "Zwolle"];
        let line = |number: usize| {
            let prompt = format!("In the harbour of {} number {number} the", places[number % places.len()]);
            format!("{}\n", serde_json::json!({"prompt": prompt, "level": number}))
        };
        fs::write(home.path("data.jsonl"), (0..12).map(line).collect::<String>()).unwrap();
        home
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn train(&self, script: &str, out: &str, rest: &[&str]) -> Run {
        fs::write(self.path("reward.sh"), script).unwrap();
        let reward = format!("/bin/sh {}", self.path("reward.sh").display());
        let (data, out, model) = (self.path("data.jsonl"), self.path(out), tiny_model());
        let paths = [
            "sona",
            "train",
            "--model",
            argument(&model),
            "--data",
            argument(&data),
            "--out",
            argument(&out),
        ];
        let flags = ["--loss", "reward", "--reward", &reward, "--rank", "2"];
        let arguments = [&paths[..], &flags, rest].concat();
        finish(&arguments, command(&arguments).env("RUVLLM_HOME", self.folder.path()).output().unwrap())
    }
}

fn weights(out: &Path) -> Vec<u8> {
    fs::read(out.join("adapter_model.safetensors")).unwrap()
}

#[test]
fn rewards_rise_on_held_out_prompts() {
    let home = Home::new();
    let figure = home.path("reward.svg");
    let sizes = ["--split", "0.3", "--steps", "30", "--batch", "4", "--group", "8", "--max-tokens", "6"];
    let flags = [&sizes[..], &["--rate", "2e-2", "--plot", argument(&figure), "--json"]].concat();
    let document = home.train(SHORT, "short", &flags).json();
    let reward = &document["held_out"]["mean_reward"];
    let [before, after] = ["before", "after"].map(|when| reward[when].as_f64().unwrap());
    assert!(after > before + 1.0, "{document}");
    assert_eq!(document["loss_function"], "reward");
    let svg = fs::read_to_string(&figure).unwrap();
    assert_eq!(svg.matches("<polyline").count(), 3, "losses of both kinds and the reward: {svg}");
    assert!(svg.contains("mean reward</text>"));
    let again = home.train(SHORT, "again", &[&sizes[..], &["--rate", "2e-2", "--threads", "1"]].concat());
    assert!(again.text().contains(", mean reward "), "{again:?}");
    assert!(weights(&home.path("short")) == weights(&home.path("again")), "equal runs differ");
    let small = ["--steps", "3", "--batch", "2", "--group", "2", "--max-tokens", "2"];
    let phased = home.train(SHORT, "phased", &[&small[..], &["--curriculum", "--json"]].concat()).json();
    assert_eq!(phased["curriculum"], serde_json::json!({"by": "loss", "examples": [4, 8, 12]}));
}

#[test]
fn a_run_whose_command_failed_goes_on_with_the_same_bits() {
    let home = Home::new();
    let sizes = ["--steps", "22", "--batch", "1", "--group", "2", "--max-tokens", "3"];
    let whole = home.train(SHORT, "whole", &sizes);
    assert!(whole.text().contains("22 steps"), "{whole:?}");
    // Two answers a step: the command ends in the step behind the saved state.
    let fails = "n=0; while read -r line; do n=$((n + 1)); [ $n -gt 41 ] && exit 7; echo -${#line}; done";
    home.train(fails, "parts", &sizes).fails_with(1, &["exit status: 7", "answer 42", "harbour"]);
    assert!(!home.path("parts").exists(), "nothing is written");
    let rest = home.train(SHORT, "parts", &[&sizes[..], &["--resume"]].concat());
    assert!(rest.text().contains("22 steps"), "{rest:?}");
    assert!(weights(&home.path("whole")) == weights(&home.path("parts")), "the continued run differs");
    assert!(!home.path("parts.state").exists());
}

#[test]
fn bad_rewards_are_one_clear_error() {
    let home = Home::new();
    let sizes = ["--steps", "1", "--batch", "1", "--group", "2", "--max-tokens", "2"];
    let fails = |script: &str, rest: &[&str], expected: &[&str]| {
        home.train(script, "out", &[&sizes[..], rest].concat()).fails_with(1, expected);
        assert!(!home.path("out").exists(), "{script}");
    };
    let asked = |script: &str| format!("read -r line; {script}; cat > /dev/null");
    fails(&asked("echo 0.5; echo good"), &[], &["`good`", "answer 2", "NUMBER"]);
    fails(&asked("echo nan"), &[], &["`nan`", "answer 1"]);
    fails("exit 3", &[], &["exit status: 3", "answer 1", "harbour"]);
    fails("exec sleep 60", &["--reward-timeout", "0.1"], &["0.1 s", "answer 1", "--reward-timeout"]);
    fs::write(home.path("data.jsonl"), "{\"prompt\": \"a\"}\n{\"text\": \"b\"}\n").unwrap();
    fails("cat", &[], &["data.jsonl:2", "prompt"]);
    fs::write(
        home.path("data.jsonl"),
        format!("{{\"prompt\": \"a\"}}\n{{\"prompt\": \"{}\"}}\n", "long ".repeat(2000)),
    )
    .unwrap();
    fails("cat", &[], &["data.jsonl:2", "tokens", "--max-tokens"]);
    home.train("cat", "out", &["--loss", "text"]).fails_with(2, &["--loss"]);
    home.train("cat", "out", &["--group", "1"]).fails_with(2, &["--group", "2 to 128"]);
    let data = home.path("data.jsonl");
    let without = ["sona", "train", "--data", argument(&data), "--out", "x", "--loss", "reward"];
    run(&without).fails_with(2, &["--loss", "--reward"]);
    let other = ["sona", "train", "--data", argument(&data), "--out", "x", "--reward", "cat"];
    run(&other).fails_with(2, &["--reward", "--loss reward"]);
    let absent = [&without[..], &["--reward", "/no/such/program"]].concat();
    fs::write(&data, "{\"prompt\": \"a\"}\n").unwrap();
    run(&absent).fails_with(1, &["--reward", "/no/such/program"]);
}
