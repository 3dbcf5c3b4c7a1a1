//! `ruvllm sona train --loss distill`: a draft model learns from its model.

use std::fs;
use std::path::{Path, PathBuf};

use crate::program::{Run, argument, command, default_model, finish, repository, tiny_model};

struct Home {
    folder: tempfile::TempDir,
}

impl Home {
    /// Folder with 24 sentences.
    fn new() -> Self {
        let home = Self { folder: tempfile::tempdir().unwrap() };
        let places = ["Lisse", "Haren", "Brielle", "Vlist", "Ommen", "Zwolle", "Ede"];
        let line = |number: usize| {
            let place = places[number % places.len()];
            let text = format!("In the harbour of {place} the red ferry number {number} leaves at nine.");
            format!("{}\n", serde_json::json!({ "text": text }))
        };
        fs::write(home.path("data.jsonl"), (0..24).map(line).collect::<String>()).unwrap();
        home
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn train(&self, out: &str, rest: &[&str]) -> Run {
        let (model, data, out) =
            (repository("models/draft-q8_0.gguf"), self.path("data.jsonl"), self.path(out));
        let paths = ["--model", argument(&model), "--data", argument(&data), "--out", argument(&out)];
        let sizes = ["--rank", "2", "--batch", "4", "--split", "0.3"];
        let arguments = [&["sona", "train"][..], &paths, &sizes, rest].concat();
        finish(&arguments, command(&arguments).env("RUVLLM_HOME", self.folder.path()).output().unwrap())
    }
}

fn weights(out: &Path) -> Vec<u8> {
    fs::read(out.join("adapter_model.safetensors")).unwrap()
}

#[test]
fn a_draft_model_learns_from_its_model() {
    let (home, teacher) = (Home::new(), default_model());
    let distill = ["--loss", "distill", "--teacher", argument(&teacher), "--steps", "10"];
    let document = home.train("one", &[&distill[..], &["--threads", "1", "--json"]].concat()).json();
    assert_eq!(document["loss_function"], "distill");
    let held_out = |name: &str| {
        let change = &document["held_out"][name];
        let [before, after] = ["before", "after"].map(|when| change[when].as_f64());
        (before.unwrap_or_else(|| panic!("{name}: {document}")), after.unwrap())
    };
    let ((kl, less), (accepted, more)) = (held_out("kl"), held_out("acceptance"));
    assert!(less < kl && more > accepted && (0.0..1.0).contains(&more), "{document}");
    let (_, same) = held_out("same_argmax");
    assert!((0.0..=1.0).contains(&same), "{document}");
    let [before, after] = ["perplexity_before", "perplexity_after"].map(|name| document[name].as_f64());
    assert!(before.is_some() && after.is_some(), "{document}");

    let text = home.train("two", &[&distill[..], &["--threads", "2"]].concat()).text().to_owned();
    assert!(
        text.contains("perplexity") && text.contains(", kl ") && text.contains(", same argmax "),
        "{text}"
    );
    assert_eq!(weights(&home.path("one")), weights(&home.path("two")), "threads change no bit");

    // The teacher's share and the temperature change the result.
    let soft = ["--temperature", "2", "--teacher-share", "1"];
    home.train("soft", &[&distill[..], &soft].concat()).text();
    assert_ne!(weights(&home.path("one")), weights(&home.path("soft")));
}

#[test]
fn teachers_and_flags_that_do_not_fit_are_one_clear_error() {
    let (home, teacher, tiny) = (Home::new(), default_model(), tiny_model());
    let train = |rest: &[&str]| home.train("out", &[&["--steps", "1"][..], rest].concat());
    let distill = |rest: &[&str]| train(&[&["--loss", "distill"][..], rest].concat());
    distill(&[]).fails_with(2, &["--loss", "--teacher"]);
    distill(&["--teacher", "absent.gguf"]).fails_with(1, &["absent.gguf"]);
    distill(&["--teacher", argument(&home.path("data.jsonl"))]).fails_with(1, &["data.jsonl"]);
    distill(&["--teacher", argument(&tiny)]).fails_with(2, &["--teacher", "tokens", "8192"]);
    let teacher = ["--teacher", argument(&teacher)];
    for temperature in ["0", "-1", "nan"] {
        distill(&[&teacher[..], &["--temperature", temperature]].concat()).fails_with(2, &["--temperature"]);
    }
    for share in ["1.5", "-0.1", "nan"] {
        distill(&[&teacher[..], &[&format!("--teacher-share={share}")]].concat())
            .fails_with(2, &["--teacher-share", "0 to 1"]);
    }
    train(&teacher).fails_with(2, &["--teacher", "--loss distill"]);
    train(&["--teacher-share", "0.5"]).fails_with(2, &["--teacher-share", "--loss distill"]);
    train(&["--temperature", "2"]).fails_with(2, &["--temperature"]);
    train(&[&["--loss", "preference"][..], &teacher].concat()).fails_with(2, &["--teacher"]);
    assert!(!home.path("out").exists());
}
