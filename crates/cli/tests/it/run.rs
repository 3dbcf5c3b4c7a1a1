//! `run`: one answer, a conversation, a pull at a terminal.

use std::fs;

use crate::program::{argument, default_model, finish, run, run_with_input};
use crate::store::{Place, SOURCE};

const FLAGS: [&str; 4] = ["--temperature", "0", "-n", "8"];

#[test]
fn a_prompt_gets_the_answer_of_generate_chat() {
    let model = default_model();
    let model = argument(&model);
    let generated = run(&[&["generate", "--chat", "-m", model, "Tell me a story."], &FLAGS[..]].concat());
    let of_words = run(&[&["run", model, "Tell", "me", "a story."], &FLAGS[..]].concat());
    assert_eq!(of_words.text(), generated.text());
    let of_pipe = run_with_input(&[&["run", model], &FLAGS[..]].concat(), b"Tell me a story.\n");
    assert_eq!(of_pipe.text(), generated.text());
    let document = run(&[&["run", model, "Tell me a story.", "--json"], &FLAGS[..]].concat()).json();
    assert_eq!(format!("{}\n", document["text"].as_str().unwrap()), generated.text());
    let with_system = ["run", model, "--system", "Be brief.", "Tell me a story."];
    let instructed = run(&[&with_system[..], &["--json"], &FLAGS[..]].concat()).json();
    assert!(instructed["prompt_tokens"].as_u64() > document["prompt_tokens"].as_u64());
    run(&["run", model]).fails_with(1, &["the prompt is empty"]);
    run(&["run", "nothing", "x"]).fails_with(1, &["nothing"]);
}

#[test]
fn a_stored_model_answers_by_name_and_reference() {
    let place = Place::new(&[("base.gguf", fs::read(default_model()).unwrap())]);
    place.run(&["pull", SOURCE]).text();
    let answers: Vec<String> = ["base", "org/repo", SOURCE]
        .iter()
        .map(|model| place.run(&[&["run", model, "Hello"], &FLAGS[..]].concat()).text().to_owned())
        .collect();
    assert!(answers.iter().all(|answer| *answer == answers[0]));
    let arguments = [&["run", "base"], &FLAGS[..]].concat();
    let empty = place.command(&arguments).output().unwrap();
    finish(&arguments, empty).fails_with(1, &["the prompt is empty"]);
}

#[cfg(target_os = "linux")]
#[test]
fn a_terminal_pulls_without_a_question() {
    use crate::console::at_terminal;

    let place = Place::new(&[("base.gguf", fs::read(default_model()).unwrap())]);
    let arguments = [&["run", "org/repo", "Hello"], &FLAGS[..]].concat();
    let (code, shown) = at_terminal(place.command(&arguments), "");
    assert_eq!(code, 0, "{shown}");
    assert!(shown.contains("pulling hf://org/repo") && shown.contains("pulled as base"), "{shown}");
    assert!(!shown.contains("[y/N]"), "{shown}");
    let again = place.run(&arguments);
    assert!(shown.contains(again.text().trim_end()), "{shown} lacks {again:?}");
}
