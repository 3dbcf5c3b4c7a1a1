//! Models by reference: `pull` and `--model` with `hf://`, addresses of the hub and plain names,
//! and `show`.

use std::fs;

use crate::program::{argument, fields, tiny_model};
use crate::server::Faults;
use crate::store::{Place, SOURCE, tiny};

/// Every form of the same reference.
const FORMS: [&str; 5] = [
    "hf://org/repo",
    "hf://org/repo@main",
    "org/repo",
    "https://huggingface.co/org/repo",
    "https://huggingface.co/org/repo/tree/main",
];

#[test]
fn a_model_is_pulled_and_used_by_every_form_of_its_reference() {
    for form in FORMS {
        let place = Place::new(&[("tiny.gguf", tiny())]);
        place.run(&["pull", form]).text();
        let by_name = place.run(&["tokenize", "a", "-m", "tiny"]).text().to_owned();
        for other in FORMS {
            assert_eq!(place.run(&["tokenize", "a", "-m", other]).text(), by_name, "{form} by {other}");
        }
    }
    let place = Place::new(&[("a.gguf", tiny()), ("sub/b.gguf", tiny())]);
    let address = "https://huggingface.co/org/repo/resolve/main/sub/b.gguf?download=true";
    let document = place.run(&["pull", address, "--json"]).json();
    assert_eq!(document["source"], "hf://org/repo/sub/b.gguf@main");
    place.run(&["tokenize", "a", "-m", "hf://org/repo/sub/b.gguf"]).text();
}

#[test]
fn a_script_is_told_which_command_pulls() {
    let place = Place::new(&[("tiny.gguf", tiny())]);
    for form in FORMS {
        let command = format!("`ruvllm pull {form}`");
        for arguments in [
            &["generate", "x", "-m", form][..],
            &["chat", "-m", form],
            &["doctor", "-m", form],
            &["inspect", form],
            &["bench", "-m", form],
            &["run", form, "x"],
            &["run", form],
        ] {
            place.run(arguments).fails_with(1, &["no file or pulled model", &command]);
        }
        let arguments = ["generate", "x", "-m", form];
        let by_variable = place.command(&arguments[..2]).env("RUVLLM_MODEL", form).output().unwrap();
        crate::program::finish(&arguments, by_variable).fails_with(1, &[&command]);
        let failed = place.run(&["generate", "x", "-m", form, "--json"]);
        let error = failed.error_document();
        assert_eq!(
            (&error["kind"], &error["hint"]),
            (&"model_not_found".into(), &format!("ruvllm pull {form}").into())
        );
    }
    assert_eq!(place.hub.take_requests().len(), 0, "nothing is asked of the hub");
    // A missing file is not taken for a repository.
    place
        .run(&["generate", "x", "-m", "models/small.gguf"])
        .fails_with(1, &["models/small.gguf", "No such file"]);
}

#[test]
fn show_knows_stored_models_and_files() {
    let place = Place::new(&[("tiny.gguf", tiny())]);
    place.run(&["pull", SOURCE, "--as", "small"]).text();
    let entry = place.run(&["show", "small", "--json"]).json();
    assert_eq!(entry["source"], SOURCE);
    for name in ["small", "org/repo", SOURCE] {
        assert_eq!(place.run(&["show", name, "--json"]).json(), entry);
    }
    assert_eq!(place.run(&["info", "small"]).text(), place.run(&["show", "small"]).text());
    let path = tiny_model();
    let file = place.run(&["show", argument(&path), "--json"]).json();
    assert_eq!(fields(&file), ["version", "metadata", "parameters", "tensors"]);
    assert_eq!(place.run(&["inspect", "small", "--json"]).json(), file);
    place.run(&["show", "smal"]).fails_with(1, &["smal", "near to it is small"]);
    place.run(&["show", "/nonexistent.gguf"]).fails_with(1, &["No such file"]);
    place.run(&["show", "org/other"]).fails_with(1, &["`ruvllm pull org/other`"]);
}

#[test]
fn names_of_other_programs_list_and_remove() {
    let place = Place::new(&[("tiny.gguf", tiny())]);
    place.run(&["pull", "org/repo"]).text();
    assert_eq!(place.run(&["ls"]).text(), place.run(&["list"]).text());
    place.run(&["remove", "tiny"]).text();
    assert!(place.run(&["ls"]).text().contains("no models"));
}

#[test]
fn a_pull_that_tries_again_says_so() {
    let place = Place::new(&[("tiny.gguf", vec![7; 40_000])]);
    let busy = || Faults { statuses: [(503, Some("1"))].into(), ..Faults::default() };
    place.hub.set(busy());
    let pulled = place.run(&["pull", SOURCE]);
    let (_, notes) = pulled.text_and_notes();
    assert!(notes.starts_with("warning: ") && notes.contains("503"), "{notes:?}");
    assert!(notes.ends_with("trying again in 1.0 s (attempt 2 of 6)\n"), "{notes:?}");
    place.run(&["rm", "tiny"]).text();
    place.hub.set(busy());
    assert_eq!(place.run(&["pull", SOURCE, "--quiet"]).text_and_notes().1, "");
    fs::remove_dir_all(place.home.path()).unwrap();
}
