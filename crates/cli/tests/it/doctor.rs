//! `doctor`.

use std::fs;
use std::path::Path;

use gguf_rs_lite::{Gguf, TensorInfo, TensorType, Writer};

use crate::program::{argument, command, fields, finish, repository, run, run_with_input, tiny_model};

#[test]
fn the_document_has_the_documented_fields() {
    let document = run(&["doctor", "--json"]).json();
    assert_eq!(
        fields(&document),
        ["version", "cpu", "memory", "isa", "threads", "model", "plan", "adapters", "settings"]
    );
    assert_eq!(document["version"], env!("CARGO_PKG_VERSION"));
    assert!(document["cpu"]["cores"].as_u64().unwrap() >= 1);
    assert_eq!(fields(&document["isa"]), ["chosen", "chosen_by", "available"]);
    assert_eq!(
        fields(&document["model"]),
        ["name", "origin", "architecture", "parameters", "active_parameters", "weights_bytes", "context"]
    );
    assert_eq!(document["model"]["origin"], "built into the program");
    assert_eq!(document["model"]["parameters"], 29_368_832);
    if cfg!(target_os = "linux") {
        assert!(document["memory"]["total_bytes"].as_u64().unwrap() > 0);
    }
}

#[test]
fn the_human_form_says_what_would_change_the_choice() {
    let run = run(&["doctor"]);
    for piece in ["instruction set", "cores", "memory", "RUVLLM_ISA", "--threads", "base-q8_0"] {
        assert!(run.text().contains(piece), "{piece} is not in {}", run.text());
    }
}

#[test]
fn the_human_form_fits_80_columns() {
    for flags in [&[][..], &["--kv", "tiered:hot=256,warm=kivi4,cold=kivi2", "--kv-budget", "2MiB"]] {
        let run = run(&[&["doctor"], flags].concat());
        let long: Vec<&str> = run.text().lines().filter(|line| line.chars().count() > 80).collect();
        assert!(long.is_empty(), "{long:#?}");
    }
}

#[test]
fn the_plan_says_what_is_chosen_and_why() {
    let document = run(&["doctor", "--json"]).json();
    let plan = &document["plan"];
    assert_eq!(
        fields(plan),
        [
            "threads",
            "context",
            "kv",
            "kv_budget",
            "repacked",
            "sequence_bytes",
            "slack_bytes",
            "state_bytes",
            "warnings",
        ]
    );
    for choice in ["threads", "context", "kv", "kv_budget", "repacked"] {
        assert_eq!(fields(&plan[choice]), ["value", "reason"], "{choice}");
    }
    assert_eq!((&plan["context"]["value"], &plan["kv"]["value"]), (&4096.into(), &"f16".into()));
    assert_eq!(plan["threads"]["value"], document["threads"]);
    assert_eq!(plan["repacked"]["value"], false);

    let flags = ["--context", "100", "--threads", "3", "--kv", "tiered", "--kv-budget", "64MiB"];
    let asked = run(&[&["doctor", "--json"], &flags[..]].concat()).json();
    let values = ["context", "threads", "kv", "kv_budget"].map(|name| asked["plan"][name]["value"].clone());
    assert_eq!(serde_json::json!(values), serde_json::json!([100, 3, "tiered", 64 << 20]));
    for name in ["context", "threads", "kv", "kv_budget"] {
        assert_eq!(asked["plan"][name]["reason"], "asked for");
    }
}

#[test]
fn doctor_refuses_what_generate_refuses() {
    for flags in [
        &["-c", "99999999"][..],
        &["-c", "5000"],
        &["--kv", "tiered:warm=nuq3"],
        &["--kv-budget", "1KiB"],
        &["--kv-budget", "9999999GiB"],
        &["--threads", "99999999"],
    ] {
        let generate = run(&[&["generate", "hello", "-n", "1"], flags].concat());
        for more in [&[][..], &["--json"]] {
            let doctor = run(&[&["doctor"], flags, more].concat());
            if more.is_empty() {
                assert_eq!(doctor.failure(1), generate.failure(1));
            } else {
                assert!(!doctor.succeeded());
            }
        }
    }
}

#[test]
fn budget_too_small_for_a_full_context_is_warned_of_with_remedies() {
    let warnings = |flags: &[&str]| {
        let document = run(&[&["doctor", "--json"], flags].concat()).json();
        let list = document["plan"]["warnings"].as_array().unwrap().clone();
        list.into_iter()
            .filter(|warning| warning.as_str().unwrap().contains("--kv-budget"))
            .collect::<Vec<_>>()
    };
    assert!(warnings(&[]).is_empty());
    let narrow = warnings(&["--kv-budget", "1MiB"]);
    let [narrow] = &narrow[..] else { panic!("{narrow:?}") };
    let narrow = narrow.as_str().unwrap();
    for piece in ["--kv-budget 1.0 MiB", "of 4096 tokens", "raise it to 40MiB", "--context "] {
        assert!(narrow.contains(piece), "{piece} is not in {narrow}");
    }
    // Both remedies work.
    let context = narrow.rsplit(' ').next().unwrap();
    assert!(warnings(&["--kv-budget", "1MiB", "--context", context]).is_empty());
    assert!(warnings(&["--kv-budget", "40MiB"]).is_empty());
    let text = run(&["doctor"]);
    assert!(text.text().contains("full context: 32.0 MiB and 8.0 MiB of slack"), "{}", text.text());
}

#[test]
fn what_is_planned_is_what_is_done() {
    let plan = run(&["doctor", "--json"]).json()["plan"].clone();
    let bench = run(&["bench", "-p", "0", "-n", "1", "--repetitions", "1", "--json"]).json();
    assert_eq!(bench["results"][0]["threads"], plan["threads"]["value"]);
    let stats = run_with_input(&["chat"], b"/stats\n");
    let (_, said) = stats.text_and_notes();
    let context = plan["context"]["value"].to_string();
    assert!(said.contains(&format!("of {context} tokens")) && said.contains("as f16"), "{said}");
}

/// Writes the header of the tiny model with one more tensor of about `bytes`. The data are a hole
/// in the file; tensors that are read with the header (RoPE factors) are left out.
fn write_hollow_model(path: &Path, bytes: u64) {
    let tiny = Gguf::open(tiny_model()).unwrap();
    let row = 1 << 20;
    let extra = TensorInfo::new("extra.weight", [row, bytes / 4 / row + 1], TensorType::F32).unwrap();
    let tensors = || tiny.tensors().filter(|tensor| tensor.name != "rope_freqs.weight");
    let data: u64 = tensors().map(TensorInfo::bytes).sum::<u64>() + extra.bytes();
    let mut head = Vec::new();
    Writer::new(&mut head, tiny.metadata(), tensors().cloned().chain([extra])).unwrap();
    fs::write(path, &head).unwrap();
    let file = fs::File::options().write(true).open(path).unwrap();
    file.set_len(head.len() as u64 + data + row).unwrap();
}

#[cfg(target_os = "linux")]
#[test]
fn a_model_larger_than_the_machine_is_said_with_numbers() {
    let memory = run(&["doctor", "--json"]).json()["memory"]["total_bytes"].as_u64().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("huge.gguf");
    write_hollow_model(&path, 2 * memory);
    let run = run(&["doctor", "--model", argument(&path)]);
    for piece in ["warning: the weights take", "the memory is", "ruvllm quantize"] {
        assert!(run.text().contains(piece), "{piece} is not in {}", run.text());
    }
}

#[test]
fn the_environment_decides_and_is_named() {
    let arguments = ["doctor", "--json"];
    let forced = finish(&arguments, command(&arguments).env("RUVLLM_ISA", "scalar").output().unwrap()).json();
    assert_eq!(forced["isa"]["chosen"], "scalar");
    assert_eq!(forced["isa"]["chosen_by"], "RUVLLM_ISA");
    assert_eq!(forced["cpu"]["features_used"], serde_json::json!([]));
    let free = finish(&arguments, command(&arguments).env_remove("RUVLLM_ISA").output().unwrap()).json();
    assert_eq!(free["isa"]["chosen_by"], "detection");
    finish(&arguments, command(&arguments).env("RUVLLM_ISA", "mmx").output().unwrap())
        .fails_with(1, &["mmx"]);
}

#[test]
fn another_model_is_described() {
    let tiny = tiny_model();
    let document = run(&["doctor", "--json", "--model", argument(&tiny)]).json();
    assert_eq!(document["model"]["origin"], "--model");
    assert_eq!(document["model"]["architecture"], "llama");
    let arguments = ["doctor", "--json"];
    let output = command(&arguments).env("RUVLLM_MODEL", &tiny).output().unwrap();
    assert_eq!(finish(&arguments, output).json()["model"]["origin"], "RUVLLM_MODEL");
}

#[test]
fn adapters_of_the_store_are_counted() {
    let home = tempfile::tempdir().unwrap();
    let doctor = |more: &[&str]| {
        let arguments = [&["doctor"], more].concat();
        finish(&arguments, command(&arguments).env("RUVLLM_HOME", home.path()).output().unwrap())
    };
    let none = doctor(&["--json"]).json()["adapters"].clone();
    assert_eq!(
        fields(&none),
        ["hot_adapters", "warm_adapters", "store", "stored", "stored_bytes", "damaged"]
    );
    assert_eq!((none["hot_adapters"].as_u64(), none["stored"].as_u64()), (Some(100), Some(0)));
    let lora = repository("crates/models/tests/data/lora/r1_qv");
    let model = tiny_model();
    let add = ["adapter", "add", "poet", argument(&lora), "--model", argument(&model)];
    finish(&add, command(&add).env("RUVLLM_HOME", home.path()).output().unwrap()).text();
    fs::write(home.path().join("adapters/cut.ruvlora"), b"cut").unwrap();
    let one = doctor(&["--json"]).json()["adapters"].clone();
    assert_eq!((one["stored"].as_u64(), one["damaged"].as_u64()), (Some(1), Some(1)));
    assert!(one["stored_bytes"].as_u64().unwrap() > 0);
    let run = doctor(&[]);
    for piece in ["100 hot (F16)", "1 adapter,", "1 damaged file"] {
        assert!(run.text().contains(piece), "{piece} is not in {}", run.text());
    }
    assert!(run.text().lines().all(|line| line.chars().count() <= 80), "{}", run.text());
}
