//! Help, version and the usage errors of every command.

use crate::program::{finish, run};

pub(crate) const COMMANDS: [&[&str]; 75] = [
    &["run"],
    &["generate"],
    &["chat"],
    &["inspect"],
    &["tokenize"],
    &["detokenize"],
    &["template"],
    &["eval", "perplexity"],
    &["eval", "kl"],
    &["eval", "passkey"],
    &["eval", "tools"],
    &["eval", "logits"],
    &["eval", "routing"],
    &["eval", "embedding"],
    &["eval", "full"],
    &["bench"],
    &["convert"],
    &["quantize"],
    &["imatrix"],
    &["calibrate-kv"],
    &["pull"],
    &["list"],
    &["show"],
    &["rm"],
    &["embed"],
    &["rerank"],
    &["adapter", "add"],
    &["adapter", "list"],
    &["adapter", "show"],
    &["adapter", "rm"],
    &["adapter", "verify"],
    &["adapter", "merge"],
    &["adapter", "extract"],
    &["session", "list"],
    &["session", "fork"],
    &["session", "rm"],
    &["sona", "feedback"],
    &["sona", "bank", "add"],
    &["sona", "bank", "learn"],
    &["sona", "bank", "list"],
    &["sona", "bank", "show"],
    &["sona", "bank", "search"],
    &["sona", "bank", "outcome"],
    &["sona", "bank", "status"],
    &["sona", "bank", "remove"],
    &["sona", "bank", "export"],
    &["sona", "bank", "import"],
    &["sona", "status"],
    &["sona", "train"],
    &["sona", "export"],
    &["sona", "forget"],
    &["sona", "consolidate"],
    &["sona", "replay"],
    &["sona", "release"],
    &["serve"],
    &["key", "new"],
    &["key", "list"],
    &["key", "rotate"],
    &["key", "rm"],
    &["witness", "verify"],
    &["witness", "show"],
    &["witness", "export"],
    &["witness", "key"],
    &["pack", "keygen"],
    &["pack", "build"],
    &["pack", "sign"],
    &["pack", "verify"],
    &["pack", "inspect"],
    &["pack", "install"],
    &["pack", "list"],
    &["pack", "rollback"],
    &["pack", "prune"],
    &["pack", "bench"],
    &["doctor"],
    &["completions"],
];

#[test]
fn help_teaches_by_example() {
    for command in COMMANDS {
        let help = run(&[command, &["--help"]].concat());
        let text = help.text();
        assert!(text.contains("Examples:"), "{command:?}: {text}");
        assert!(text.contains(&format!("  ruvllm {}", command.join(" "))), "{command:?}: {text}");
        assert!(text.contains("JSON: {"), "{command:?} does not say what --json prints");
    }
    assert!(run(&["--help"]).text().contains("generate --chat"));
}

/// Lines of a help text that are longer than `columns`.
fn long_lines(text: &str, columns: usize) -> Vec<&str> {
    text.lines().filter(|line| line.chars().count() > columns).collect()
}

#[test]
fn help_fits_the_width_of_the_terminal() {
    for command in [
        &[&[][..], &["adapter"], &["eval"], &["key"], &["pack"], &["session"], &["witness"], &["man"]],
        &COMMANDS[..],
    ]
    .concat()
    {
        let arguments = [command, &["--help"]].concat();
        let help = |columns: Option<&str>| {
            let mut program = crate::program::command(&arguments);
            match columns {
                Some(columns) => program.env("COLUMNS", columns),
                None => program.env_remove("COLUMNS"),
            };
            finish(&arguments, program.output().unwrap())
        };
        let usual = help(None);
        assert_eq!(long_lines(usual.text(), 80), [""; 0], "{command:?}");
        assert_eq!(long_lines(help(Some("80")).text(), 80), [""; 0], "{command:?}");
        let (wide, wider) = (help(Some("100")), help(Some("400")));
        assert_eq!(wide.text(), wider.text());
        assert!(wide.text().lines().count() < usual.text().lines().count(), "{command:?}");
        assert_eq!(long_lines(wide.text(), 100), [""; 0], "{command:?}");
    }
}

#[test]
fn help_of_help_and_of_aliases_is_help() {
    let help = run(&["--help"]);
    for arguments in [&["help"][..], &["help", "--help"], &["help", "-h"]] {
        assert_eq!(run(arguments).text(), help.text());
    }
    assert_eq!(run(&["help", "chat", "--help"]).text(), run(&["chat", "--help"]).text());
    for (alias, command) in [("ls", "list"), ("remove", "rm"), ("info", "show")] {
        assert_eq!(run(&[alias, "--help"]).text(), run(&[command, "--help"]).text());
        assert!(help.text().contains(&format!("alias: {alias}")), "{alias}");
    }
}

#[test]
fn wrong_numbers_are_told_what_is_expected() {
    for (arguments, expected) in [
        (
            &["generate", "--top-p", "-0.5", "x"][..],
            "expected a number from 0 to 1 (see `ruvllm generate --help`)",
        ),
        (&["generate", "-n", "-2", "x"], "expected a whole number, 0 or more; -1 = no limit but the context"),
        (&["generate", "-s", "abc", "x"], "expected a whole number from 0 to 2^64 - 1; -1 = another one"),
        (&["generate", "-c", "-1", "x"], "expected a whole number of at least 1; 0 = the model's"),
        (&["bench", "-n", "-1"], "expected a whole number, 0 or more (see `ruvllm bench --help`)"),
        (
            &["eval", "passkey", "-f", "x", "--seed", "-1"],
            "from 0 to 2^64 - 1 (see `ruvllm eval passkey --help`)",
        ),
    ] {
        run(arguments).fails_with(2, &["invalid value", expected]);
    }
}

#[test]
fn flags_that_contradict_each_other_are_refused() {
    run(&["embed", "--normalize", "--no-normalize", "x"])
        .fails_with(2, &["--no-normalize", "cannot be used with"]);
    run(&["list", "--quiet", "--verbose"]).fails_with(2, &["--quiet", "cannot be used with"]);
    run(&["run", "a", "-m", "b"]).fails_with(2, &["cannot be used with"]);
}

#[test]
fn the_version_is_the_package_version() {
    assert_eq!(run(&["--version"]).text(), format!("ruvllm {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn an_unknown_flag_is_one_line_and_code_2() {
    for command in COMMANDS {
        let line = run(&[command, &["--no-such-flag"]].concat()).failure(2).to_owned();
        assert!(line.contains("'--no-such-flag'"), "{line}");
        assert!(line.contains(&format!("`ruvllm {} --help`", command.join(" "))), "{line}");
    }
    run(&["no-such-command"]).fails_with(2, &["no-such-command", "`ruvllm --help`"]);
    run(&["eval", "no-such-measure"]).fails_with(2, &["no-such-measure"]);
}

#[test]
fn features_of_later_versions_are_unknown_flags() {
    let flag = "--draft-model";
    run(&["generate", flag, "x", "prompt"]).fails_with(2, &[&format!("unexpected argument '{flag}'")]);
}

#[test]
fn values_out_of_range_are_usage_errors() {
    for (flag, value) in [
        ("--temperature", "-1"),
        ("--temperature", "nan"),
        ("--top-p", "1.5"),
        ("--min-p", "-0.1"),
        ("--typical-p", "2"),
        ("--top-k", "-1"),
        ("--repeat-penalty", "0"),
        ("--presence-penalty", "inf"),
        ("--top-nsigma", "-2"),
        ("--dry-base", "0.5"),
        ("--dry-allowed-length", "0"),
        ("--dry-sequence-breaker", ""),
        ("--xtc-probability", "2"),
        ("--mirostat", "1"),
        ("--mirostat-ent", "0"),
        ("--dynatemp-range", "-1"),
        ("--samplers", "top_k;best"),
        ("--samplers", "top_k;top_k"),
        ("--logit-bias", "5"),
        ("--seed", "x"),
        ("--max-tokens", "-3"),
        ("--max-tokens", "many"),
        ("--threads", "0"),
        ("--context", "-1"),
        ("--isa", "mmx"),
        ("--kv", "f64"),
        ("--kv-budget", "1.5GiB"),
        ("--kv-budget", "0"),
        ("--pressure", "give-up"),
        ("--kv-calibration", "no such file"),
        ("--kv-calibration", "Cargo.toml"),
    ] {
        // With `=`, so that a leading minus belongs to the value.
        run(&["generate", &format!("{flag}={value}"), "prompt"])
            .fails_with(2, &[flag, "(see `ruvllm generate --help`)"]);
    }
}

#[test]
fn unknown_kv_policies_say_what_there_is() {
    for (policy, hints) in [
        ("kivi5", &["kivi5", "f32, f16, bf16, q8, q4, kivi4", "tiered"][..]),
        ("tiered:hto=256", &["hto=256", "hot=TOKENS"]),
        ("tiered:warm=q8,rotate=maybe", &["rotate=maybe", "rotate=on|off"]),
        ("tiered:target=2", &["target=2", "above 0 and at most 1"]),
        ("tiered:rotate=on", &["rotation destroys the channels", "rotate=off"]),
    ] {
        run(&["generate", "--kv", policy, "prompt"]).fails_with(2, hints);
        run(&["bench", "--kv", policy]).fails_with(2, hints);
    }
}

#[test]
fn missing_arguments_are_named() {
    run(&["inspect"]).fails_with(2, &["<FILE>"]);
    run(&["pull"]).fails_with(2, &["<REFERENCE>"]);
    run(&["rm"]).fails_with(2, &["<NAME>"]);
    run(&["run"]).fails_with(2, &["<MODEL>"]);
    run(&["show"]).fails_with(2, &["<MODEL>"]);
    run(&["eval", "perplexity"]).fails_with(2, &["--file"]);
    run(&["eval", "logits", "--tokens", "x"]).fails_with(2, &["--out"]);
    run(&["calibrate-kv", "out.kv"]).fails_with(2, &["--file"]);
    run(&["generate", "--system", "Be brief.", "prompt"]).fails_with(2, &["--chat"]);
}

#[test]
fn numbers_for_the_default_and_names_of_other_programs_work() {
    let base = ["generate", "--temp", "0", "--json"];
    let by_name =
        run(&[&base[..], &["-n", "4", "-c", "0", "-s", "-1", "-p", "Once upon a time"]].concat()).json();
    let by_place = run(&[&base[..], &["--n-predict", "4", "Once upon a time"]].concat()).json();
    assert_eq!(by_name["tokens"], by_place["tokens"]);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("prompt.txt");
    std::fs::write(&file, "Once upon a time\n").unwrap();
    let by_file = run(&[&base[..], &["-n", "4", "-f", file.to_str().unwrap()]].concat()).json();
    assert_eq!(by_file["tokens"], by_place["tokens"]);
    let all = run(&[&base[..], &["-n", "-1", "--ctx-size", "40", "Once upon a time"]].concat()).json();
    let tokens = all["prompt_tokens"].as_u64().unwrap() + all["tokens"].as_array().unwrap().len() as u64;
    // The last token of a full context is sampled but not computed.
    assert!(all["finish_reason"] == "stop" || tokens == 41, "{all}");
    run(&["generate", "-p", "x", "y"]).fails_with(2, &["cannot be used with"]);
    run(&["generate", "-s", "abc", "x"]).fails_with(2, &["expected a whole number", "-1"]);
    run(&["generate", "-n", "-2", "x"]).fails_with(2, &["expected a whole number", "-1"]);
    run(&["chat", "-n", "0"]).fails_with(2, &["at least 1", "-1"]);
}
