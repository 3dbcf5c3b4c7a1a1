//! Vocabularies, adapters and weights.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::Expected::{Error, Success};
use super::{Files, check, check_command};
use crate::program::{argument, command, repository, tiny_model};

/// A tokenizer definition of words with these steps.
fn words(normalizer: &Value, pre_tokenizer: &Value) -> String {
    json!({
        "version": "1.0",
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "model": {"type": "WordLevel", "vocab": {"[UNK]": 0, "z": 1}, "unk_token": "[UNK]"},
    })
    .to_string()
}

fn split(pattern: &str) -> Value {
    json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false})
}

#[test]
fn definitions_of_tokenizers_that_grow_are_refused() {
    let files = Files::new();
    let replace =
        |content: String| json!({"type": "Replace", "pattern": {"String": "a"}, "content": content});
    let sequence = |steps: Vec<Value>| json!({"type": "Sequence", "normalizers": steps});
    let word_piece = |most: usize| {
        json!({"version": "1.0", "model": {"type": "WordPiece", "unk_token": "u", "continuing_subword_prefix": "##",
               "max_input_chars_per_word": most, "vocab": {"u": 0}}})
    };
    let text = "a".repeat(100_000);
    for (name, definition, text, piece) in [
        (
            "normalizers that multiply",
            words(&sequence((0..10).map(|_| replace("a".repeat(500))).collect()), &Value::Null),
            "aaaaaaaaaaaaaaaaaaaaaaaaaaaa",
            "times as long",
        ),
        (
            "a normalizer of 1000 letters for one",
            words(&replace("b".repeat(1000)), &Value::Null),
            &text,
            "makes a text",
        ),
        ("a pattern of 10,000 letters", words(&Value::Null, &split(r"(\pL{100}){100}")), &text, "compiling"),
        ("a pattern with a reference", words(&Value::Null, &split(r"(?:(a+)+)\1b|z")), &text, "pattern"),
        ("words of a million letters", word_piece(1_000_000).to_string(), &text, "max_input_chars_per_word"),
        ("deep JSON", "[".repeat(100_000), &text, "cannot use the tokenizer"),
    ] {
        let path = files.write("tokenizer.json", definition);
        check(name, &["tokenize", "--model", argument(&path), text], Error(piece));
    }
    let path = files.path("tokenizer.json");
    fs::File::create(&path).unwrap().set_len(1 << 40).unwrap();
    check("a sparse file", &["tokenize", "--model", argument(&path), "a"], Error("larger than"));
}

/// Beyond some 1.1 million characters the text was silently cut in other ways.
#[test]
fn long_texts_are_tokenized() {
    let files = Files::new();
    let input = files.write("text", "word ".repeat(300_000));
    let folder = repository("crates/text/tests/data/tokenizers");
    for name in ["bpe_gpt2/vocab.gguf", "bpe_gpt2/tokenizer.json"] {
        let model = folder.join(name);
        let command = command(&["tokenize", "--no-special", "--model", argument(&model)]);
        let ids = check_command(name, &command, &input, Success(""));
        let ids: Vec<&str> = ids.split_whitespace().collect();
        let period = ids.len() / 300_000;
        assert!(ids.len() >= 300_000, "{name}: {} ids", ids.len());
        // From the second word on all words tokenize alike: each follows a space.
        let (second, last) = (&ids[2 * period..3 * period], &ids[ids.len() - 2 * period..ids.len() - period]);
        assert_eq!(second, last, "{name}");
    }
}

#[test]
fn configurations_of_adapters_are_bounded() {
    let files = Files::new();
    let many: serde_json::Map<String, Value> =
        (0..700).map(|i| (format!(r"x{i}@(\pL{{30}}){{5}}"), json!(2))).collect();
    let names: serde_json::Map<String, Value> = (0..200_000).map(|i| (format!("m{i}"), json!(2))).collect();
    for (name, configuration) in [
        ("patterns that grow", json!({"rank_pattern": many})),
        ("200,000 patterns", json!({"rank_pattern": names})),
        ("modules as a pattern that grows", json!({"target_modules": r"x@(\pL{30}){50}"})),
        ("a field of 500,000 values", json!({"rank_pattern": {"a": vec![0; 500_000]}})),
    ] {
        let mut configuration = configuration;
        for (key, value) in [("peft_type", json!("LORA")), ("r", json!(2)), ("lora_alpha", json!(8))] {
            configuration[key] = value;
        }
        let folder = files.path("adapter");
        files.write("adapter/adapter_config.json", configuration.to_string());
        files.write("adapter/adapter_model.safetensors", no_tensors());
        let adapter = format!("a={}", argument(&folder));
        let model = tiny_model();
        let arguments = ["generate", "-n", "1", "--model", argument(&model), "--adapter", &adapter, "a"];
        check(name, &arguments, Error("adapter"));
    }
}

/// A safetensors file without tensors.
fn no_tensors() -> Vec<u8> {
    [&2u64.to_le_bytes()[..], b"{}"].concat()
}

#[test]
fn rotary_parameters_without_meaning_are_refused() {
    let files = Files::new();
    for (key, value) in [
        ("llama.rope.freq_base", 0.0),
        ("llama.rope.freq_base", 1e-30),
        ("llama.rope.freq_base", f32::INFINITY),
        ("llama.rope.scaling.factor", 0.0),
        ("llama.rope.scaling.factor", 1e-30),
        ("llama.rope.scaling.factor", 1e30),
        ("llama.rope.scaling.factor", f32::NAN),
    ] {
        let model = files.model("model.gguf", |metadata| {
            metadata.insert("llama.rope.scaling.type", "linear".to_owned());
            metadata.insert(key, value);
        });
        check(
            &format!("{key} {value}"),
            &["generate", "-n", "1", "--model", argument(&model), "a"],
            Error("rope"),
        );
    }
    let config = fs::read(repository("crates/models/tests/data/tiny/llama/hf/config.json")).unwrap();
    let folder = repository("crates/models/tests/data/tiny/llama/hf");
    for value in [0.0, 1e-300, 1e300] {
        let mut config: Value = serde_json::from_slice(&config).unwrap();
        config["rope_scaling"] = json!({"rope_type": "linear", "factor": value});
        files.write("hf/config.json", config.to_string());
        for name in ["model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
            fs::copy(folder.join(name), files.path("hf").join(name)).unwrap();
        }
        let model = files.path("hf");
        check(
            &format!("factor {value:e}"),
            &["generate", "-n", "1", "--model", argument(&model), "a"],
            Error("factor"),
        );
    }
}

#[test]
fn model_files_that_state_more_than_they_have_are_refused() {
    let files = Files::new();
    let whole = fs::read(tiny_model()).unwrap();
    let cut = files.write("cut.gguf", &whole[..whole.len() / 2]);
    let header = |tensors: u64, keys: u64| {
        [b"GGUF", &3u32.to_le_bytes()[..], &tensors.to_le_bytes(), &keys.to_le_bytes()].concat()
    };
    let tensors = files.write("tensors.gguf", header(1 << 60, 0));
    let keys = files.write("keys.gguf", header(0, 1 << 60));
    let sparse = files.path("sparse.gguf");
    fs::copy(tiny_model(), &sparse).unwrap();
    fs::OpenOptions::new().write(true).open(&sparse).unwrap().set_len(1 << 40).unwrap();
    for (path, mmap) in [(&cut, true), (&cut, false), (&tensors, true), (&keys, true), (&tensors, false)] {
        let mut arguments = vec!["generate", "-n", "1", "--model", argument(path), "a"];
        arguments.extend((!mmap).then_some("--no-mmap"));
        check(&format!("{} {mmap}", path.display()), &arguments, Error(""));
    }
    // Bytes after the tensors are not read.
    check("a sparse file", &["generate", "-n", "1", "--model", argument(&sparse), "a"], Success(""));
    let none: &Path = Path::new("/dev/zero");
    check("no file", &["generate", "-n", "1", "--model", argument(none), "a"], Error("/dev/zero"));
}
