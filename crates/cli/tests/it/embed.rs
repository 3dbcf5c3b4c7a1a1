//! `embed`.

use std::fs;

use serde_json::Value;

use crate::program::{argument, fields, repository, run, run_with_input, tiny_model};

const TEXTS: [&str; 2] = ["The cat sat on the mat.", ""];

fn bert() -> String {
    argument(&repository("crates/models/tests/data/encoder/bert")).to_owned()
}

fn values(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect()
}

#[test]
fn the_json_document_has_a_vector_for_each_text() {
    let bert = bert();
    let document = run(&["embed", "--json", "--model", &bert, TEXTS[0], TEXTS[1]]).json();
    assert_eq!(fields(&document), ["dim", "pooling", "normalized", "complete", "embeddings"]);
    assert_eq!(
        (&document["dim"], &document["pooling"], &document["normalized"]),
        (&32.into(), &"mean".into(), &true.into())
    );
    let embeddings = document["embeddings"].as_array().unwrap();
    assert_eq!(embeddings.len(), 2);
    for (embedding, tokens) in embeddings.iter().zip([9, 2]) {
        assert_eq!(fields(embedding), ["embedding", "tokens", "truncated"]);
        assert_eq!((&embedding["tokens"], &embedding["truncated"]), (&tokens.into(), &false.into()));
        let vector = values(&embedding["embedding"]);
        let length: f64 = vector.iter().map(|value| value * value).sum();
        assert!(vector.len() == 32 && (length - 1.0).abs() < 1e-6, "{length}");
    }
}

#[test]
fn lines_of_a_file_and_of_standard_input_are_texts() {
    let bert = bert();
    let arguments = run(&["embed", "--model", &bert, TEXTS[0], TEXTS[1], "a"]);
    let lines: Vec<&str> = arguments.text().lines().collect();
    assert!(lines.len() == 3 && lines.iter().all(|line| line.split(' ').count() == 32));
    let input = format!("{}\r\n{}\na", TEXTS[0], TEXTS[1]);
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(&file, &input).unwrap();
    let file = run(&["embed", "--model", &bert, "--file", argument(file.path())]);
    assert_eq!(file.text(), arguments.text());
    for more in [&[][..], &["-"], &["--file", "-"]] {
        let run = run_with_input(&[&["embed", "--model", &bert], more].concat(), input.as_bytes());
        assert_eq!(run.text(), arguments.text());
    }
}

#[test]
fn flags_go_before_what_the_files_say() {
    let bert = bert();
    let long = "the cat sat on the mat ".repeat(20);
    let embed = |flags: &[&str]| run(&[&["embed", "--json", "--model", &bert, &long], flags].concat()).json();
    let all = embed(&[]);
    assert_eq!(
        (&all["embeddings"][0]["tokens"], &all["embeddings"][0]["truncated"]),
        (&24.into(), &true.into())
    );
    let few = embed(&["--max-tokens", "8", "--pooling", "cls", "--no-normalize"]);
    assert_eq!((&few["pooling"], &few["normalized"]), (&"cls".into(), &false.into()));
    assert_eq!(few["embeddings"][0]["tokens"], 8);
    let text = run(&["embed", "--model", &bert, &long]);
    assert!(text.text_and_notes().1.contains("text 1 has more than 24 tokens"));
}

#[test]
fn a_decoder_embeds_too() {
    let tiny = tiny_model();
    let embed = |pooling: &str| {
        run(&["embed", "--json", "--pooling", pooling, "--model", argument(&tiny), "Once upon"]).json()
    };
    let (mean, last) = (embed("mean"), embed("last"));
    assert_eq!(mean["dim"], last["dim"]);
    assert_ne!(mean["embeddings"], last["embeddings"]);
}

#[test]
fn a_blank_line_keeps_its_place() {
    // The built-in model adds no tokens of its own: a blank line has no vector.
    let input = b"Once upon\n\na time\n\n";
    let lines = run_with_input(&["embed"], input);
    let (text, warnings) = lines.text_and_notes();
    let lines: Vec<&str> = text.split('\n').collect();
    assert_eq!(
        lines.iter().map(|line| line.is_empty()).collect::<Vec<_>>(),
        [false, true, false, true, true]
    );
    assert_eq!(
        warnings.lines().collect::<Vec<_>>(),
        [2, 4].map(|line| format!("warning: line {line} is blank and has no vector; its result is empty"))
    );
    let document = run_with_input(&["embed", "--json"], input).json_and_warnings().0;
    let embeddings = document["embeddings"].as_array().unwrap();
    assert_eq!((embeddings.len(), &embeddings[1]["embedding"]), (4, &Value::Null));
    // The other results equal those of arguments.
    let arguments = run(&["embed", "--json", "Once upon", "a time"]).json();
    assert_eq!([&embeddings[0], &embeddings[2]], [&arguments["embeddings"][0], &arguments["embeddings"][1]]);
}

#[test]
fn json_lines_have_one_text_each() {
    let bert = bert();
    let input = "the cat\na dog\n\n".repeat(50);
    let lines = run_with_input(&["embed", "--model", &bert, "--jsonl"], input.as_bytes());
    let document = run_with_input(&["embed", "--model", &bert, "--json"], input.as_bytes()).json();
    assert_eq!(lines.text().lines().count(), 150);
    for (index, line) in lines.text().lines().enumerate() {
        let mut line: Value = serde_json::from_str(line).unwrap();
        assert_eq!(line["index"], index);
        crate::schema::check_as("embed-line", &line);
        line.as_object_mut().unwrap().shift_remove("index");
        assert_eq!(line, document["embeddings"][index]);
    }
    run(&["embed", "--json", "--jsonl", "a"]).fails_with(2, &["--jsonl", "--json"]);
    // An error names the index among all texts.
    let many = ["a"; 70].iter().copied().chain([""]).collect::<Vec<_>>();
    let failed = crate::program::command(&[&["embed"], &many[..]].concat()).output().unwrap();
    assert!(String::from_utf8_lossy(&failed.stderr).contains("text 71 is empty"), "{failed:?}");
}

#[test]
fn encoders_with_rotary_positions_embed_too() {
    for (name, architecture, dim) in
        [("modernbert", "modern-bert", 24), ("gemma", "gemma-embedding", 16), ("nomic", "nomic-bert", 32)]
    {
        let folder = repository("crates/models/tests/data/embed").join(name);
        let file = folder.join("converted.gguf");
        let embed = |model| run(&["embed", "--json", "--model", argument(model), TEXTS[0]]).json();
        let document = embed(&folder);
        assert_eq!((&document["dim"], &document["normalized"]), (&dim.into(), &true.into()), "{name}");
        assert_eq!(document["embeddings"], embed(&file)["embeddings"], "{name}");
        let document = run(&["inspect", "--json", argument(&folder)]).json();
        assert_eq!(document["metadata"]["general.architecture"], architecture);
        run(&["doctor", "--model", argument(&file)]).fails_with(1, &[architecture, "is an encoder"]);
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    let bert = bert();
    run(&["embed", "--pooling", "cls", "text"])
        .fails_with(1, &["pooling cls needs an encoder", "mean or last"]);
    run(&["embed", "--pooling", "max", "text"]).fails_with(2, &["mean, last, cls"]);
    run(&["embed", ""]).fails_with(1, &["text 1 is empty"]);
    run_with_input(&["embed", "--model", &bert], b"").fails_with(1, &["standard input", "no text"]);
    run_with_input(&["embed", "--model", &bert], b"a\n\xff").fails_with(1, &["UTF-8", "offset 2"]);
    run(&["embed", "--model", &bert, "--max-tokens", "2", "a"]).fails_with(1, &["max_tokens is 2"]);
    run(&["embed", "--model", &bert, "--file", "x", "a"]).fails_with(2, &["--file"]);
    run(&["generate", "--model", &bert, "hello"]).fails_with(1, &["is an encoder", "`embed`"]);
}
