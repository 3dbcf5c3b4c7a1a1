//! `generate`: output forms, prompt sources, determinism, limits, closed pipes.

use std::io::Read;
use std::process::Stdio;

use crate::program::{argument, command, data, fields, finish, ids, run, run_with_input, tiny_model};

const PROMPT: &str = "Once upon a time, there was a little fox";

/// Greedy sampling with a short output.
const GREEDY: [&str; 5] = ["generate", "--temperature", "0", "--max-tokens", "12"];

fn greedy<'a>(arguments: &[&'a str]) -> Vec<&'a str> {
    [&GREEDY[..], arguments].concat()
}

#[test]
fn the_document_has_the_documented_fields() {
    // Drafts depend on measured times, and so does the field that counts them.
    let document = run(&greedy(&["--json", "--speculation", "off", PROMPT])).json();
    assert_eq!(
        fields(&document),
        ["text", "tokens", "prompt_tokens", "cached_tokens", "finish_reason", "timings"]
    );
    assert_eq!(fields(&document["timings"]), ["load_ms", "ttft_ms", "prefill_tok_s", "decode_tok_s"]);
    assert_eq!(document["finish_reason"], "length");
    let tokens = ids(&document["tokens"]);
    assert_eq!(tokens.len(), 12);
    let prompt = ids(&run(&["tokenize", "--json", PROMPT]).json()["tokens"]);
    assert_eq!(document["prompt_tokens"], prompt.len());
    let list: Vec<String> = tokens.iter().map(u32::to_string).collect();
    let arguments: Vec<&str> = ["detokenize"].into_iter().chain(list.iter().map(String::as_str)).collect();
    assert_eq!(document["text"], run(&arguments).text());
}

#[test]
fn a_quality_target_says_what_became_of_it() {
    let prompt = PROMPT.repeat(10);
    let policy = ["--kv", "tiered:hot=32,sink=0,target=0.000001", "--json", &prompt];
    let document = run(&greedy(&policy)).json();
    let quality = &document["kv_quality"];
    assert_eq!(fields(quality), ["hot_tokens", "error", "samples"]);
    assert!(quality["hot_tokens"].as_u64() > Some(32) && quality["samples"].as_u64() > Some(0), "{quality}");
}

#[test]
fn plain_text_is_the_continuation_and_a_line_break() {
    let document = run(&greedy(&["--json", PROMPT])).json();
    let text = document["text"].as_str().unwrap();
    assert!(!text.contains("Once upon"));
    assert_eq!(run(&greedy(&[PROMPT])).text(), format!("{text}\n"));
}

#[test]
fn greedy_decoding_repeats_for_any_thread_count_and_instruction_set() {
    let reference = run(&greedy(&["--json", PROMPT])).json();
    for arguments in [&["-t", "1"][..], &["-t", "3"], &["--isa", "scalar"], &["--kv", "f16"]] {
        let again = run(&greedy(&[arguments, &["--json", PROMPT]].concat())).json();
        assert_eq!(again["tokens"], reference["tokens"], "{arguments:?}");
    }
}

#[test]
fn a_seed_repeats_the_draws() {
    let draw = |seed: &str| {
        run(&["generate", "--temperature", "1.5", "-n", "16", "--json", "--seed", seed, PROMPT]).json()
    };
    let first = draw("7");
    assert_eq!(first["seed"], 7);
    assert_eq!(draw("7")["tokens"], first["tokens"]);
    assert_ne!(draw("8")["tokens"], first["tokens"]);
    // An unseeded run reports the seed that repeats it.
    let unseeded = run(&["generate", "--temperature", "1.5", "-n", "16", "--json", PROMPT]).json();
    assert_eq!(draw(&unseeded["seed"].to_string())["tokens"], unseeded["tokens"]);
}

#[test]
fn the_prompt_may_come_from_standard_input() {
    let reference = run(&greedy(&[PROMPT]));
    for arguments in [greedy(&[]), greedy(&["-"])] {
        for ending in ["", "\n", "\r\n"] {
            let input = format!("{PROMPT}{ending}");
            assert_eq!(run_with_input(&arguments, input.as_bytes()).text(), reference.text(), "{ending:?}");
        }
    }
}

#[test]
fn no_tokens_is_no_text() {
    assert_eq!(run(&["generate", "--max-tokens", "0", PROMPT]).text(), "");
    let document = run(&["generate", "--max-tokens", "0", "--temperature", "0", "--json", PROMPT]).json();
    assert_eq!(document["text"], "");
    assert_eq!(document["tokens"], serde_json::json!([]));
    assert_eq!(document["finish_reason"], "length");
    // Nothing was generated, so the other timings are absent.
    assert_eq!(fields(&document["timings"]), ["load_ms"]);
}

#[test]
fn a_stop_text_ends_the_generation_and_is_not_shown() {
    let whole = run(&greedy(&["--json", PROMPT])).json();
    let text = whole["text"].as_str().unwrap();
    let stop: String = text.chars().skip(8).take(3).collect();
    let stopped = run(&greedy(&["--json", "--stop", "never written", "--stop", &stop, PROMPT])).json();
    assert_eq!(stopped["finish_reason"], "stop");
    assert_eq!(stopped["text"], text[..text.find(&stop).unwrap()]);
}

#[test]
fn a_logit_bias_forbids_and_forces_tokens() {
    let tokens = ids(&run(&greedy(&["--json", PROMPT])).json()["tokens"]);
    let forbid = format!("{}=-inf", tokens[0]);
    let others = ids(&run(&greedy(&["--json", "--logit-bias", &forbid, PROMPT])).json()["tokens"]);
    assert!(!others.contains(&tokens[0]));
    let forced = run(&["generate", "-n", "3", "--json", "--logit-bias", "292=1e6", PROMPT]).json();
    assert_eq!(ids(&forced["tokens"]), [292; 3]);
}

#[test]
fn samplers_run_in_the_given_order() {
    let reference = run(&greedy(&["--json", PROMPT])).json();
    let drawn = |flags: &[&str]| {
        let base = ["generate", "-n", "12", "--seed", "1", "--temperature", "9", "--json", PROMPT];
        run(&[&base[..], flags].concat()).json()["tokens"].clone()
    };
    // One candidate is left, in any order that has top-k; without it many are.
    for order in ["top_k", "temperature;top_k", "xtc;temp;top-k;dry"] {
        assert_eq!(drawn(&["--top-k", "1", "--samplers", order]), reference["tokens"], "{order}");
    }
    assert_ne!(drawn(&["--top-k", "1", "--samplers", "temperature"]), reference["tokens"]);
    assert_eq!(drawn(&["--top-k", "0", "--top-nsigma", "1e-6"]), reference["tokens"]);
    assert_eq!(drawn(&["--mirostat", "2", "--mirostat-ent", "1e-6"]), reference["tokens"]);
    // The most likely token is excluded.
    let others =
        ["--samplers", "top_k;xtc", "--top-k", "2", "--xtc-probability", "1", "--xtc-threshold", "0"];
    assert_ne!(drawn(&others)[0], reference["tokens"][0]);
}

#[test]
fn dry_prevents_repetitions_up_to_a_breaker() {
    let tokens = |flags: &[&str]| {
        let base = ["generate", "--temperature", "0", "-n", "60", "--json", PROMPT];
        ids(&run(&[&base[..], flags].concat()).json()["tokens"])
    };
    let has_repeated_pair = |tokens: &[u32]| {
        let pairs: Vec<_> = tokens.windows(2).collect();
        (1..pairs.len()).any(|i| pairs[..i].contains(&pairs[i]))
    };
    let dry = ["--dry-multiplier", "1e6", "--dry-allowed-length", "1"];
    assert!(has_repeated_pair(&tokens(&[])), "the model repeats itself");
    let unbroken = tokens(&[&dry[..], &["--dry-sequence-breaker", "none"]].concat());
    assert!(!has_repeated_pair(&unbroken), "{unbroken:?}");
    let breakers = ["--dry-sequence-breaker", " ", "--dry-sequence-breaker", "e"];
    assert!(has_repeated_pair(&tokens(&[&dry[..], &breakers].concat())));
    assert_eq!(tokens(&[&dry[..], &["--dry-penalty-last-n", "0"]].concat()), tokens(&[]));
}

#[test]
fn penalties_take_negative_numbers() {
    let arguments = [
        "generate",
        "--seed",
        "1",
        "-n",
        "4",
        "--presence-penalty",
        "-0.5",
        "--frequency-penalty",
        "-1",
        PROMPT,
    ];
    assert!(!run(&arguments).text().is_empty());
}

#[test]
fn chat_answers_a_message() {
    let answer =
        run(&["generate", "--chat", "--temperature", "0", "--json", "What is the capital of France?"]).json();
    assert_eq!(answer["text"], "The capital of France is Paris.");
    assert_eq!(answer["finish_reason"], "stop");
    // `<|im_start|>user\n`, the message, `<|im_end|>\n<|im_start|>assistant\n`.
    assert_eq!(answer["prompt_tokens"], 15);
    let with_system = run(&[
        "generate",
        "--chat",
        "--system",
        "Be brief.",
        "--temperature",
        "0",
        "-n",
        "1",
        "--json",
        "Hello",
    ])
    .json();
    let without = run(&["generate", "--chat", "--temperature", "0", "-n", "1", "--json", "Hello"]).json();
    assert!(with_system["prompt_tokens"].as_u64() > without["prompt_tokens"].as_u64());
}

#[test]
fn the_first_command_tells_of_a_turtle() {
    // Seeded, so that the test is repeatable; all else as a new user types it.
    for seed in ["1", "2", "3"] {
        let story = run(&["generate", "--chat", "Tell me a story about a turtle.", "--seed", seed]);
        let text = story.text();
        assert!(text.to_lowercase().contains("turtle"), "{text}");
        assert!(text.split_whitespace().count() > 40, "{text}");
    }
}

#[test]
fn the_context_limits_prompt_and_output_together() {
    let document = run(&["generate", "--temperature", "0", "--context", "16", "--json", PROMPT]).json();
    assert_eq!(document["finish_reason"], "length");
    let total = document["prompt_tokens"].as_u64().unwrap() + ids(&document["tokens"]).len() as u64;
    // The last token is sampled but takes no room in the context.
    assert_eq!(total, 17);
}

#[test]
fn a_closed_pipe_ends_the_generation_quietly() {
    // Without the end tokens only the closed pipe can end this one in time.
    let arguments = ["generate", "-n", "4000", "--logit-bias", "0=-inf", "--logit-bias", "2=-inf", PROMPT];
    let mut child = command(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut start = [0; 10];
    child.stdout.take().unwrap().read_exact(&mut start).unwrap();
    let run = finish(&arguments, child.wait_with_output().unwrap());
    assert_eq!(run.text(), "");
}

#[test]
fn a_closed_pipe_is_no_error_of_any_command() {
    let tiny = tiny_model();
    for arguments in [
        vec!["inspect", argument(&tiny)],
        vec!["inspect", "--json", argument(&tiny)],
        vec!["tokenize", "hello"],
        vec!["doctor"],
        vec!["generate", "--json", "-n", "1", "hello"],
        vec!["--help"],
    ] {
        let mut child = command(&arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let run = finish(&arguments, child.wait_with_output().unwrap());
        assert_eq!(run.text(), "");
    }
}

#[test]
fn text_arrives_while_it_is_generated() {
    let arguments = ["generate", "-n", "2000", "--logit-bias", "0=-inf", "--logit-bias", "2=-inf", PROMPT];
    let mut child = command(&arguments).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut byte = [0];
    stdout.read_exact(&mut byte).unwrap();
    assert!(child.try_wait().unwrap().is_none(), "the text came only at the end");
    drop(stdout);
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_prompt_file_may_be_piped_whole() {
    let text = std::fs::read_to_string(data("validation-prefix.txt")).unwrap();
    let prompt: String = text.chars().take(2000).collect();
    let document = run_with_input(&greedy(&["--json"]), prompt.as_bytes()).json();
    assert!(document["prompt_tokens"].as_u64().unwrap() > 300);
}

#[test]
fn stored_prefixes_outlive_the_program() {
    let folder = tempfile::tempdir().unwrap();
    let prompt = PROMPT.repeat(8);
    let arguments = |extra: &[&str]| -> Vec<String> {
        let all = [extra, &["--json", &prompt]].concat();
        greedy(&all).into_iter().map(str::to_owned).collect()
    };
    let run_owned = |arguments: Vec<String>| run(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    let dir = folder.path().to_str().unwrap();
    let on = ["--prefix-cache", "on", "--prefix-dir", dir];
    let plain = run_owned(arguments(&[])).json();
    let first = run_owned(arguments(&on)).json();
    let second = run_owned(arguments(&on)).json();
    assert_eq!((&plain["cached_tokens"], &first["cached_tokens"]), (&0.into(), &0.into()));
    assert!(second["cached_tokens"].as_u64().unwrap() >= 32, "{second}");
    assert_eq!(second["tokens"], plain["tokens"]);

    // `spill` also finds files that `on` has written.
    let spill = run_owned(arguments(&["--prefix-cache", "spill", "--prefix-dir", dir])).json();
    assert_eq!(spill["cached_tokens"], second["cached_tokens"]);
    assert_eq!(spill["tokens"], plain["tokens"]);
    let other = tempfile::tempdir().unwrap();
    let empty = other.path().to_str().unwrap();
    let unwritten = run_owned(arguments(&["--prefix-cache", "spill", "--prefix-dir", empty])).json();
    assert_eq!(unwritten["cached_tokens"], 0);
    assert_eq!(std::fs::read_dir(empty).unwrap().count(), 0, "the memory was not short");

    // Damaged files are reported on standard error and computed again. All are damaged: the order
    // in the folder is not the order of lookup, and the last file holds generated tokens, which the
    // prompt never reaches.
    for entry in std::fs::read_dir(folder.path()).unwrap() {
        let file = entry.unwrap().path();
        let mut bytes = std::fs::read(&file).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(&file, bytes).unwrap();
    }
    let third = run_owned(arguments(&on));
    let (document, warnings) = third.json_and_warnings();
    assert!(warnings.starts_with("warning: ignored"), "{warnings}");
    assert_eq!(document["tokens"], plain["tokens"]);
}
