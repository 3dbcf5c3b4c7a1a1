//! Wrong files and wrong input: one clear line, exit code 1, nothing on standard output.

use std::fs;
use std::path::Path;

use crate::program::{
    argument, command, data, default_model, finish, repository, run, run_with_input, tiny_model,
};

/// Every way to give the program a model file.
fn with_model(path: &str) -> [Vec<&str>; 7] {
    [
        vec!["generate", "hello", "--model", path],
        vec!["chat", "--model", path],
        vec!["generate", "hello", "--json", "--model", path],
        vec!["inspect", path],
        vec!["tokenize", "hello", "--model", path],
        vec!["bench", "--model", path],
        vec!["doctor", "--model", path],
    ]
}

#[track_caller]
fn refused(path: &Path, pieces: &[&str]) {
    for arguments in with_model(argument(path)) {
        run(&arguments).fails_with(1, &[pieces, &[argument(path)]].concat());
    }
}

#[test]
fn a_missing_file() {
    refused(Path::new("/nonexistent/model.gguf"), &["No such file"]);
}

#[test]
fn a_folder_without_a_model() {
    let directory = tempfile::tempdir().unwrap();
    refused(directory.path(), &["it has no config.json"]);
}

#[test]
fn a_truncated_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("cut.gguf");
    let whole = fs::read(tiny_model()).unwrap();
    for length in [whole.len() - 1, whole.len() / 2, 1000, 20, 4, 2] {
        fs::write(&path, &whole[..length]).unwrap();
        refused(&path, &[]);
    }
}

#[test]
fn an_empty_file() {
    let file = tempfile::NamedTempFile::new().unwrap();
    refused(file.path(), &[]);
}

#[test]
fn something_else_than_gguf() {
    refused(&data("README.md"), &["GGUF"]);
}

#[test]
fn an_unsupported_architecture() {
    let path = repository("crates/gguf-rs-lite/tests/data/malformed/architecture_unknown.gguf");
    run(&["generate", "hello", "--model", argument(&path)]).fails_with(1, &["architecture", "not supported"]);
    run(&["doctor", "--model", argument(&path)]).fails_with(1, &["architecture", "not supported"]);
    // `inspect` still reads it.
    assert!(run(&["inspect", argument(&path)]).text().contains("general.architecture"));
}

#[test]
fn every_malformed_file_is_refused_by_inspect_or_shown() {
    let folder = repository("crates/gguf-rs-lite/tests/data/malformed");
    let manifest: serde_json::Value =
        serde_json::from_slice(&fs::read(folder.join("manifest.json")).unwrap()).unwrap();
    let cases = manifest["cases"].as_array().unwrap();
    assert!(cases.len() > 50);
    for case in cases {
        let path = folder.join(case["file"].as_str().unwrap());
        let run = run(&["inspect", "--json", argument(&path)]);
        match case["verdict"].as_str().unwrap() {
            "reject" => drop(run.failure(1)),
            "accept" => drop(run.json()),
            // Either is fine, but nothing else.
            _ if run.succeeded() => drop(run.json()),
            _ => drop(run.failure(1)),
        }
    }
}

#[test]
fn a_prompt_longer_than_the_context() {
    let long = "one two three four five six seven eight nine ten ".repeat(10);
    run(&["generate", "--context", "32", &long])
        .fails_with(1, &["context holds 32", "raise --context (the model allows 4096)"]);
    let longer = "word ".repeat(5000);
    run_with_input(&["generate"], longer.as_bytes()).fails_with(1, &["4096"]);
}

#[test]
fn a_budget_that_is_used_up() {
    let prompt = "one two three four five six seven eight nine ten ".repeat(60);
    let run = run(&["generate", "--kv-budget", "4MiB", "--kv", "f16", &prompt]);
    run.fails_with(1, &["the KV cache is full: need 512.0 KiB, 0 B of 4.0 MiB free", "raise --kv-budget"]);
    assert!(!run.failure(1).contains("page"));
    crate::program::run(&["generate", "--kv-budget", "9999999GiB", "hello"])
        .fails_with(1, &["cannot reserve", "lower --kv-budget"]);
    crate::program::run(&["generate", "--kv-budget", "1KiB", "hello"])
        .fails_with(1, &["--kv-budget 1.0 KiB is too small", "at least 512KiB"]);
}

#[test]
fn errors_name_the_commands_that_help() {
    run(&["generate", "--kv", "tiered:warm=nuq3", "hello"])
        .fails_with(1, &["needs a calibration", "`ruvllm calibrate-kv`", "--kv-calibration"]);
    run(&["generate", "--model", "nope", "hello"])
        .fails_with(1, &["nope is neither a file or folder nor a model of the store", "ruvllm pull"]);
    let file = argument(&tiny_model()).to_owned();
    run(&["convert", &file, "/tmp/out.gguf"]).fails_with(1, &[&file, "is a file", "Hugging Face folder"]);
}

#[test]
fn a_pressure_policy_without_its_folder() {
    let run = run(&["generate", "--pressure", "spill", "hello"]);
    run.fails_with(1, &["pressure policy spill", "folder", "(--prefix-cache)"]);
}

#[test]
fn a_context_larger_than_the_model() {
    run(&["generate", "--context", "8192", "hello"]).fails_with(1, &["8192", "4096"]);
}

#[test]
fn an_empty_prompt() {
    run(&["generate", ""]).fails_with(1, &["prompt is empty"]);
    run(&["generate", "--chat", ""]).fails_with(1, &["prompt is empty"]);
    run_with_input(&["generate", "--json"], b"").fails_with(1, &["prompt is empty"]);
    run_with_input(&["generate", "-"], b"\n").fails_with(1, &["prompt is empty"]);
}

#[test]
fn invalid_utf8_on_standard_input() {
    for arguments in [&["generate"][..], &["generate", "--json", "-"], &["tokenize"], &["detokenize"]] {
        run_with_input(arguments, b"abc\xff").fails_with(1, &["standard input", "UTF-8", "offset 3"]);
    }
    run_with_input(&["eval", "perplexity", "--file", "-"], b"\xc3\x28").fails_with(1, &["UTF-8", "offset 0"]);
}

#[test]
fn ids_that_are_none() {
    run(&["detokenize", "12", "x"]).fails_with(1, &["`x`"]);
    run(&["detokenize", "8192"]).fails_with(1, &["8192"]);
    run_with_input(&["detokenize"], b"[1, 2").fails_with(1, &["JSON"]);
}

#[test]
fn a_text_that_cannot_be_measured() {
    run(&["eval", "perplexity", "--file", "/nonexistent.txt"])
        .fails_with(1, &["/nonexistent.txt", "No such file"]);
    run_with_input(&["eval", "perplexity", "--file", "-"], b"too short").fails_with(1, &["512"]);
    let text = data("validation-prefix.txt");
    run(&["eval", "perplexity", "--context", "1", "--file", argument(&text)]).fails_with(1, &["at least 2"]);
    run(&["eval", "perplexity", "--context", "5000", "--file", argument(&text)])
        .fails_with(1, &["5000", "4096"]);
}

#[test]
fn a_text_that_hides_no_key() {
    let text = data("validation-prefix.txt");
    let passkey = |arguments: &[&str]| run(&[&["eval", "passkey"], arguments].concat());
    passkey(&["--file", "/nonexistent.txt"]).fails_with(1, &["/nonexistent.txt", "No such file"]);
    run_with_input(&["eval", "passkey", "--file", "-"], b"too short").fails_with(1, &["1024", "longer text"]);
    let with = |arguments: &[&str]| passkey(&[&["--file", argument(&text)], arguments].concat());
    with(&["--context", "5000"]).fails_with(1, &["5000", "4096"]);
    with(&["--context", "10"]).fails_with(1, &["10 tokens", "at least"]);
    with(&["--depths", "0.5,1.5"]).fails_with(2, &["--depths", "1.5"]);
    with(&["--trials", "0"]).fails_with(2, &["--trials"]);
    with(&["--context", "64,0"]).fails_with(2, &["--context"]);
}

#[test]
fn logits_that_cannot_be_had() {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().join("out.safetensors");
    let out = argument(&out);
    run_with_input(&["eval", "logits", "--tokens", "-", "--out", out], b"").fails_with(1, &["no token ids"]);
    run_with_input(&["eval", "logits", "--tokens", "-", "--out", out, "--positions", "0,3"], b"1 2 3")
        .fails_with(1, &["position 3", "2"]);
    run_with_input(&["eval", "logits", "--tokens", "-", "--out", out], b"1 8192").fails_with(1, &["8192"]);
    run_with_input(&["eval", "logits", "--tokens", "-", "--out", "/nonexistent/x.safetensors"], b"1 2")
        .fails_with(1, &["/nonexistent/x.safetensors"]);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0, "nothing may be left behind");
}

#[test]
fn an_absent_instruction_set() {
    let absent = if cfg!(target_arch = "aarch64") { "avx2" } else { "neon" };
    run(&["generate", "--isa", absent, "hello"]).fails_with(1, &[absent, "not available"]);
}

#[test]
fn a_stop_text_that_is_empty() {
    run(&["generate", "--stop", "", "hello"]).fails_with(1, &["stop"]);
}

#[test]
fn a_logit_bias_beyond_the_vocabulary() {
    run(&["generate", "--logit-bias", "8192=1", "hello"]).fails_with(1, &["8192", "8191"]);
}

#[test]
fn chat_needs_a_chat_template() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("plain.gguf");
    // The same file with the key and the first marker renamed: there is neither a template nor a
    // marker that identifies a built-in style.
    let mut bytes = fs::read(default_model()).unwrap();
    for name in [&b"tokenizer.chat_template"[..], b"<|im_start|>"] {
        let places: Vec<usize> =
            (0..bytes.len() - name.len()).filter(|&at| bytes[at..].starts_with(name)).collect();
        assert!(!places.is_empty());
        places.iter().for_each(|&at| bytes[at + name.len() - 3] = b'_');
    }
    fs::write(&path, bytes).unwrap();
    run(&["generate", "--chat", "hello", "--model", argument(&path)]).fails_with(1, &["chat template"]);
    run(&["chat", "--model", argument(&path)]).fails_with(1, &["chat template"]);
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_behind_standard_output() {
    for arguments in [
        &["doctor"][..],
        &["tokenize", "hello"],
        &["generate", "--temperature", "0", "Once upon a time"],
        &["--help"],
        &["chat", "--help"],
        &["--version"],
        &["completions", "bash"],
    ] {
        let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let output = command(arguments).stdout(full).output().unwrap();
        finish(arguments, output).fails_with(1, &["standard output", "No space left"]);
    }
}

/// As with `git` and `ls`: a closed pipe means that the reader has enough.
#[test]
fn a_closed_pipe_behind_standard_output_is_no_failure() {
    for arguments in [&["--help"][..], &["--version"], &["doctor"], &["completions", "bash"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = command(arguments).stdout(writer).output().unwrap();
        assert_eq!(finish(arguments, output).text(), "");
    }
}

#[cfg(unix)]
#[test]
fn results_replace_files_alone() {
    use std::os::unix::fs::symlink;

    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    fs::write(path("file"), "").unwrap();
    symlink("file", path("link")).unwrap();
    symlink("nowhere", path("dangling")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        path("pipe"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RWXU,
        rustix::fs::Dev::default(),
    )
    .unwrap();
    let model = crate::program::tiny_model();
    let quantize = |out: &str, flags: &[&str]| {
        run(&[&["quantize", argument(&model), argument(&path(out)), "q8_0"], flags].concat())
    };
    quantize("pipe", &["--force"]).fails_with(1, &["pipe", "name a file"]);
    quantize("dangling", &["--force"]).fails_with(1, &["dangling", "does not exist"]);
    quantize("link", &[]).fails_with(1, &["link", "--force"]);
    assert!(quantize("link", &["--force"]).succeeded());
    assert!(path("link").is_symlink() && fs::metadata(path("file")).unwrap().len() > 1000);
    run(&["quantize", argument(&model), "/dev/null", "q8_0"]).fails_with(1, &["/dev/null", "name a file"]);

    let logits = |out: &str, flags: &[&str]| {
        run_with_input(&[&["eval", "logits", "--tokens", "-", "--out", out], flags].concat(), b"5 6")
    };
    assert!(logits("/dev/null", &[]).succeeded());
    logits("-", &["--json"]).fails_with(2, &["--json", "standard output"]);
    let mut left: Vec<_> =
        fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["dangling", "file", "link", "pipe"]);
}

#[test]
fn logits_go_to_standard_output() {
    let mut child = command(&["eval", "logits", "--tokens", "-", "--out", "-"]);
    let mut child =
        child.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"5 6").unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    let file = safetensors::SafeTensors::deserialize(&output.stdout).unwrap();
    assert_eq!(file.tensor("logits").unwrap().shape(), [2, 8192]);
}
