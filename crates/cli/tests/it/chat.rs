//! Scripted `chat`: turns, commands, files, errors, full context.

use std::fs;

use serde_json::{Value, json};

use crate::program::{Run, argument, fields, run_with_input};

/// Short greedy answers.
const GREEDY: [&str; 5] = ["chat", "--temperature", "0", "--max-tokens", "24"];

const FRANCE: &str = "What is the capital of France?";
const PARIS: &str = "The capital of France is Paris.";

fn chat(arguments: &[&str], lines: &[&str]) -> Run {
    run_with_input(&[&GREEDY[..], arguments].concat(), (lines.join("\n") + "\n").as_bytes())
}

/// The JSON document of a script, whatever its commands say.
fn document(arguments: &[&str], lines: &[&str]) -> Value {
    chat(&[arguments, &["--json"]].concat(), lines).json_and_warnings().0
}

fn count(value: &Value) -> u64 {
    value.as_u64().unwrap()
}

#[test]
fn each_line_is_answered_on_a_line_of_its_own() {
    let run = chat(&[], &[FRANCE, "", "Tell me about a cat."]);
    let lines: Vec<&str> = run.text().lines().collect();
    assert!(lines.len() >= 2 && lines[0] == PARIS, "{lines:?}");
}

#[test]
fn the_document_has_the_documented_fields_and_later_turns_compute_what_is_new() {
    // Drafts depend on measured times, and so does the field that counts them.
    let flags = ["--system", "Be brief.", "--speculation", "off"];
    let document = document(&flags, &[FRANCE, "Tell me about a cat.", "And a dog?"]);
    assert_eq!(fields(&document), ["messages", "settings", "turns", "load_ms"]);
    let roles: Vec<&str> = document["messages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|message| message["role"].as_str().unwrap())
        .collect();
    assert_eq!(roles, ["system", "user", "assistant", "user", "assistant", "user", "assistant"]);
    let turns = document["turns"].as_array().unwrap();
    assert_eq!(turns.len(), 3);
    for turn in turns {
        let names =
            ["prompt_tokens", "cached_tokens", "tokens", "finish_reason", "forgotten_messages", "timings"];
        assert_eq!(fields(turn), names);
    }
    assert_eq!(turns[0]["cached_tokens"], 0);
    for pair in turns.windows(2) {
        // The previous prompt and its answer, except the token sampled last.
        let known = count(&pair[0]["prompt_tokens"]) + count(&pair[0]["tokens"]);
        assert!(count(&pair[1]["cached_tokens"]) + 1 >= known, "{pair:?}");
        assert!(count(&pair[1]["cached_tokens"]) < count(&pair[1]["prompt_tokens"]));
    }
}

#[test]
fn answers_are_those_of_a_conversation_that_is_computed_from_its_beginning() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("talk.json");
    let save = format!("/save {}", argument(&file));
    let load = format!("/load {}", argument(&file));
    let questions = [FRANCE, "Tell me about a cat.", "And a dog?"];
    let whole = document(&[], &questions);
    document(&[], &[questions[0], questions[1], &save]);
    let resumed = document(&[], &[&load, questions[2]]);
    assert_eq!(resumed["turns"].as_array().unwrap().len(), 1);
    assert_eq!(resumed["turns"][0]["cached_tokens"], 0);
    assert_eq!(resumed["messages"], whole["messages"]);
    let saved: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    assert_eq!(saved["messages"].as_array().unwrap()[..], whole["messages"].as_array().unwrap()[..4]);
    assert_eq!(saved["settings"]["max_tokens"], 24);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside the file");
}

#[test]
fn drafts_are_counted() {
    let run = chat(&["--json", "--speculation", "4"], &[FRANCE, FRANCE, "/stats"]);
    let (document, said) = run.json_and_warnings();
    let turns = document["turns"].as_array().unwrap();
    // The same answer again is foretold by the first one.
    let counts = &turns[1]["speculation"];
    assert_eq!(fields(counts), ["drafted_tokens", "accepted_tokens"]);
    let accepted = count(&counts["accepted_tokens"]);
    assert!(0 < accepted && accepted <= count(&counts["drafted_tokens"]), "{counts}");
    assert!(said.contains(&format!("{accepted} of {} drafts accepted", counts["drafted_tokens"])), "{said}");
}

#[test]
fn statistics_say_what_was_computed() {
    let run = chat(&[], &[FRANCE, "/stats", FRANCE, "/stats"]);
    let (_, said) = run.text_and_notes();
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 4, "{said}");
    assert!(lines[0].starts_with("answer 1: 15 prompt tokens, 0 known, 15 computed at "), "{said}");
    assert!(lines[1].starts_with("context: ") && lines[1].contains("2 messages, 0 of them"), "{said}");
    // 15 and the answer's tokens are known; the end of the turn and the same question are new.
    assert!(lines[2].starts_with("answer 2: ") && lines[2].contains(" known, "), "{said}");
    let computed = lines[2].split(' ').zip(lines[2].split(' ').skip(1)).find(|(_, word)| *word == "computed");
    let computed: usize = computed.unwrap().0.parse().unwrap();
    assert!((10..=20).contains(&computed), "{said}");
}

#[test]
fn messages_of_several_lines_are_one() {
    let document = document(&[], &["one\\", "two", "\"\"\"", "three", "", "/help", "\"\"\"", " /four"]);
    let messages = document["messages"].as_array().unwrap();
    let said: Vec<&Value> = messages.iter().step_by(2).map(|message| &message["content"]).collect();
    assert_eq!(said, ["one\ntwo", "three\n\n/help", "/four"]);
}

#[test]
fn instructions_can_be_changed_and_the_conversation_forgotten() {
    let lines = ["/system Be brief.", "Hi", "/system", "/reset", FRANCE, "/system off", "/system"];
    let run = chat(&["--json"], &lines);
    let (document, said) = run.json_and_warnings();
    let notes = [
        "[instructions: Be brief.]",
        "Be brief.",
        "[new conversation; instructions and settings stay]",
        "[no instructions]",
        "[there are no instructions]",
    ];
    assert_eq!(said.lines().collect::<Vec<_>>(), notes);
    let messages =
        [json!({"role": "user", "content": FRANCE}), json!({"role": "assistant", "content": PARIS})];
    assert_eq!(document["messages"][0], messages[0]);
    assert_eq!(document["messages"].as_array().unwrap().len(), 2);
    assert_eq!(document["turns"].as_array().unwrap().len(), 2);
}

#[test]
fn settings_change_the_next_answer() {
    let document = document(&[], &["Hi", "/set max_tokens 3", "/set temperature 0.7", "/set seed 5", "Hi"]);
    let turns = document["turns"].as_array().unwrap();
    assert_eq!((&turns[1]["tokens"], &turns[1]["seed"]), (&3.into(), &5.into()));
    assert_eq!(turns[1]["finish_reason"], "length");
    assert!(turns[0].get("seed").is_none());
    assert_eq!(document["settings"]["max_tokens"], 3);
    let run = chat(&[], &["/set"]);
    let (text, said) = run.text_and_notes();
    assert!(text.is_empty() && said.contains("repeat_penalty") && said.lines().count() == 28, "{said}");
}

#[test]
fn undo_and_regenerate_go_back_one_exchange() {
    let lines =
        [FRANCE, "/regenerate", "Tell me about a cat.", "/undo", "/set temperature 0.9", "/regenerate"];
    let run = chat(&["--json"], &lines);
    let (document, said) = run.json_and_warnings();
    assert_eq!(document["messages"].as_array().unwrap().len(), 2);
    assert_eq!(document["messages"][0]["content"], FRANCE);
    let turns = document["turns"].as_array().unwrap();
    assert_eq!(turns.len(), 4, "every answer is counted");
    assert_eq!(turns[0]["tokens"], turns[1]["tokens"], "greedy answers are the same");
    assert!(turns[1]["cached_tokens"].as_u64().unwrap() > 0, "the prompt is not computed again");
    let said: Vec<&str> = said.lines().collect();
    assert!(said[0].starts_with("[temperature is 0: the answer stays the same"), "{said:?}");
    assert_eq!(said[1..], ["[last message and answer dropped; 2 messages left]", "[temperature = 0.9]"]);
    let text = chat(&[], &[FRANCE, "/undo", "/bye", "never answered"]);
    assert_eq!(text.text_and_notes().0, format!("{PARIS}\n"));
    chat(&[], &["/undo"]).fails_with(1, &["line 1", "nothing to undo"]);
    chat(&["--json"], &["/regenerate"]).fails_with(1, &["line 1", "nothing to answer again"]);
}

#[test]
fn regenerate_draws_another_seed_unless_one_is_set() {
    let seeds = |flags: &[&str]| {
        let arguments = [&["chat", "--max-tokens", "8", "--json"], flags].concat();
        let document = run_with_input(&arguments, b"Hi\n/regenerate\n").json_and_warnings().0;
        let turns = document["turns"].as_array().unwrap();
        turns.iter().map(|turn| turn["seed"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    let drawn = seeds(&[]);
    assert_ne!(drawn[0], drawn[1]);
    assert_eq!(seeds(&["--seed", "5"]), [5, 5]);
}

#[test]
fn an_answer_cut_off_by_the_context_is_reported() {
    let endless = ["--context", "64", "-n", "200", "--logit-bias", "0=-inf", "--logit-bias", "2=-inf"];
    let arguments = [&["chat", "--temperature", "0"], &endless[..]].concat();
    for json in [&[][..], &["--json"]] {
        let arguments = [&arguments, json].concat();
        let child = crate::program::start(&arguments);
        std::io::Write::write_all(&mut child.stdin.as_ref().unwrap(), b"Tell me a story.\n").unwrap();
        let output = child.wait_with_output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.starts_with("warning: line 1: the answer is cut off, the context is full"), "{said}");
        assert!(said.contains("--context") && said.lines().count() == 1, "{said}");
        assert!(!output.stdout.is_empty());
    }
    // Reaching the requested limit is no error.
    assert!(run_with_input(&["chat", "-n", "3"], b"Tell me a story.\n").succeeded());
}

#[test]
fn a_setting_is_confirmed_and_explained() {
    let lines = ["/set logit_bias 5=-inf", "/set stop []", "/set", "/help /set", "/adapter off"];
    let run = chat(&[], &lines);
    let (_, said) = run.text_and_notes();
    assert!(said.starts_with("[logit_bias = 5=-inf]\n[stop = off]\n"), "{said}");
    assert!(!said.contains("null") && said.contains("42=-inf") && said.ends_with("[no adapter]\n"), "{said}");
}

#[test]
fn help_and_exit_are_commands() {
    let run = chat(&[], &["/help", "/exit", "never answered"]);
    let (text, said) = run.text_and_notes();
    assert_eq!(text, "");
    assert!(
        ["/save FILE", "/stats", "backslash", "\"\"\""].iter().all(|piece| said.contains(piece)),
        "{said}"
    );
}

#[test]
fn what_is_wrong_in_a_line_is_said_with_its_number() {
    let folder = tempfile::tempdir().unwrap();
    let other = folder.path().join("other.txt");
    fs::write(&other, "not a conversation").unwrap();
    let (save, load) = (format!("/save {}", argument(&other)), format!("/load {}", argument(&other)));
    for (lines, pieces) in [
        (&["", "/hepl"][..], &["line 2", "/hepl", "/help"][..]),
        (&["/save"], &["line 1", "/save FILE"]),
        (&["/set top_p 2"], &["line 1", "top_p", "from 0 to 1"]),
        (&["/set heat 2"], &["heat", "temperature"]),
        (&[&save], &["other.txt", "exists", "another name"]),
        (&[&load], &["other.txt", "no saved conversation"]),
        (&["/load /no/such/file"], &["/no/such/file", "No such file"]),
        (&["\"\"\"", "never closed"], &["line 1", "\"\"\""]),
    ] {
        for arguments in [&[][..], &["--json"]] {
            chat(arguments, lines).fails_with(1, pieces);
        }
    }
    assert_eq!(fs::read_to_string(&other).unwrap(), "not a conversation");
    run_with_input(&GREEDY, b"ab\xff\n").fails_with(1, &["standard input", "UTF-8", "offset 2"]);
    let long = "one two three four five ".repeat(20);
    chat(&["--context", "64"], &[&long]).fails_with(1, &["line 1", "context holds 64", "raise --context"]);
    chat(&["--logit-bias", "99999=1"], &["Hi"]).fails_with(1, &["99999"]);
    run_with_input(&["chat", "--max-tokens", "0"], b"Hi\n").fails_with(2, &["--max-tokens", "at least 1"]);
}

#[test]
fn a_conversation_outgrows_its_context_and_goes_on() {
    let lines: Vec<String> = (0..12).map(|i| format!("Tell me about number {i}, my friend.")).collect();
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let arguments = ["--context", "320", "--system", "Be brief."];
    let run = chat(&[&arguments[..], &["--json"]].concat(), &lines);
    let (document, said) = run.json_and_warnings();
    let turns = document["turns"].as_array().unwrap();
    assert_eq!(turns.len(), 12);
    let forgotten: Vec<u64> = turns.iter().map(|turn| count(&turn["forgotten_messages"])).collect();
    let times = forgotten.iter().filter(|&&n| n > 0).count();
    assert!((1..=4).contains(&times), "half of the context is freed at once: {forgotten:?}");
    assert_eq!(said.lines().count(), times, "{said}");
    assert!(said.contains("oldest messages are not sent any more"), "{said}");
    for (turn, &n) in turns.iter().zip(&forgotten) {
        let prompt = count(&turn["prompt_tokens"]);
        assert!(prompt <= if n > 0 { 160 } else { 296 }, "{turn}");
    }
    assert_eq!(document["messages"].as_array().unwrap().len(), 25, "nothing is lost for /save");
}

#[test]
fn an_empty_script_is_an_empty_conversation() {
    assert_eq!(run_with_input(&["chat"], b"").text(), "");
    let document = run_with_input(&["chat", "--json"], b"\n\n").json();
    assert_eq!((&document["messages"], &document["turns"]), (&json!([]), &json!([])));
}

#[cfg(target_os = "linux")]
#[test]
fn an_interrupted_script_ends_with_what_there_is() {
    use std::io::{Read, Write};
    use std::process::Command;

    use crate::program::{json_document, start};

    let endless = ["chat", "-n", "4000", "--logit-bias", "0=-inf", "--logit-bias", "2=-inf"];
    for json in [false, true] {
        let arguments = [&endless[..], if json { &["--json"] } else { &[] }].concat();
        let mut child = start(&arguments);
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(b"Once upon a time\nnever read\n").unwrap();
        let mut stdout = child.stdout.take().unwrap();
        let mut text = Vec::new();
        if json {
            // A second of CPU time: the answer is in progress.
            crate::interrupt::wait_until_it_has_worked(&child, 100);
        } else {
            text.resize(8, 0);
            stdout.read_exact(&mut text).unwrap();
        }
        assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
        stdout.read_to_end(&mut text).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(130));
        let text = String::from_utf8(text).unwrap();
        if json {
            let document = json_document(&text);
            assert_eq!(document["turns"].as_array().unwrap().len(), 1);
            assert_eq!(document["turns"][0]["finish_reason"], "cancelled");
        } else {
            assert!(text.ends_with('\n'));
        }
    }
}

#[cfg(unix)]
#[test]
fn saved_conversations_are_private_and_keep_their_permissions() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("talk.json");
    let save = format!("/save {}", argument(&file));
    let mode = || fs::metadata(&file).unwrap().permissions().mode() & 0o777;
    document(&["--system", "Be brief."], &[&save]);
    assert_eq!(mode(), 0o600);
    for kept in [0o600, 0o644] {
        fs::set_permissions(&file, fs::Permissions::from_mode(kept)).unwrap();
        document(&["--system", "Be brief."], &[&save]);
        assert_eq!(mode(), kept);
    }
}

#[test]
fn settings_of_the_samplers_hold_for_the_next_answer() {
    let question = "Tell me a story about a cat, and about the cat's cat.";
    let with = |lines: &[&str]| document(&[], &[&["/set max_tokens 60"], lines, &[question]].concat());
    let (plain, changed) = (
        with(&[]),
        with(&["/set dry_multiplier 1e6", "/set dry_allowed_length 1", "/set dry_sequence_breaker none"]),
    );
    assert_ne!(changed["messages"][1], plain["messages"][1]);
    let settings = &changed["settings"];
    assert_eq!(settings["dry_multiplier"], 1e6);
    assert_eq!(settings["dry_sequence_breaker"], json!([]));
    assert_eq!(plain["settings"]["dry_sequence_breaker"], json!(["\n", ":", "\"", "*"]));
    let names = "penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature";
    assert_eq!(settings["samplers"], names);
}
