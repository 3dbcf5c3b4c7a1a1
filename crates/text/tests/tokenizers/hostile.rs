//! Invalid metadata and definitions: each gives an error that names the fault, never a panic.

use gguf_rs_lite::{Array, Metadata, Value};
use proptest::prelude::*;
use ruvllm_text::{
    Error,
    tokenizer::{EncodeOptions, Tokenizer},
};

use super::{
    FROM_JSON, Failure, data,
    rules::{sentence_piece, strings, unigram, word_piece},
};

/// Byte-level vocabulary of four tokens.
fn byte_level() -> Metadata {
    let mut metadata = Metadata::new();
    metadata.insert("tokenizer.ggml.model", Value::String("gpt2".to_owned()));
    metadata.insert("tokenizer.ggml.pre", Value::String("gpt-2".to_owned()));
    metadata.insert("tokenizer.ggml.tokens", strings(["a", "b", "ab", "<|end|>"]));
    metadata.insert("tokenizer.ggml.token_type", Value::Array(Array::I32(vec![1, 1, 1, 3])));
    metadata.insert("tokenizer.ggml.merges", strings(["a b"]));
    metadata
}

fn small() -> Metadata {
    sentence_piece(&[
        ("<unk>", 2, 0.0),
        ("<s>", 3, 0.0),
        ("</s>", 3, 0.0),
        ("a", 1, -1.0),
        ("<0x0A>", 6, 0.0),
    ])
}

/// Error for metadata with one key changed or removed.
fn error(mut metadata: Metadata, key: &str, value: Option<Value>) -> String {
    let key = format!("tokenizer.ggml.{key}");
    match value {
        Some(value) => metadata.insert(key, value),
        None => metadata.remove(&key),
    };
    match Tokenizer::from_gguf(&metadata) {
        Ok(_) => String::new(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn a_text_has_a_length() -> Result<(), Failure> {
    const MOST: usize = 1 << 30;
    let tokenizer = Tokenizer::from_gguf(&byte_level())?;
    // Zeros that are never written take no memory.
    let text = String::from_utf8(vec![0; MOST])?;
    let error = tokenizer.encode(&text, EncodeOptions::default()).expect_err("too long");
    assert!(matches!(error, Error::TextTooLong { bytes: MOST, limit } if limit == MOST - 1), "{error}");
    Ok(())
}

#[test]
fn files_are_read_up_to_their_limits() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("tokenizer.json");
    let config = folder.path().join("tokenizer_config.json");
    let refused = |path: &std::path::Path| match Tokenizer::from_file(path) {
        Err(Error::TokenizerIo { source, .. }) => source.kind(),
        other => panic!("{:?}", other.err()),
    };
    // Sparse: no file is read beyond its limit.
    std::fs::File::create(&path)?.set_len(1 << 40)?;
    assert_eq!(refused(&path), std::io::ErrorKind::FileTooLarge);
    std::fs::write(&path, std::fs::read(data("bpe_gpt2", "tokenizer.json"))?)?;
    Tokenizer::from_file(&path)?;
    std::fs::File::create(&config)?.set_len((4 << 20) + 1)?;
    assert_eq!(refused(&path), std::io::ErrorKind::FileTooLarge);
    #[cfg(unix)]
    assert_eq!(refused(std::path::Path::new("/dev/zero")), std::io::ErrorKind::InvalidInput);
    Ok(())
}

#[test]
fn the_small_vocabularies_themselves_are_fine() -> Result<(), Failure> {
    let tokenizer = Tokenizer::from_gguf(&byte_level())?;
    // Bytes without a token are dropped.
    assert_eq!(tokenizer.encode("ab ba!é", EncodeOptions::default())?, [2, 1, 0]);
    let tokenizer = Tokenizer::from_gguf(&small())?;
    assert_eq!(tokenizer.encode("a\n", EncodeOptions::default())?, [1, 0, 3, 4]);
    Ok(())
}

#[test]
fn absent_arrays_are_named() {
    for (metadata, keys) in
        [(byte_level(), ["model", "tokens", "merges"]), (small(), ["model", "tokens", "scores"])]
    {
        for key in keys {
            let message = error(metadata.clone(), key, None);
            assert!(message.contains(&format!("`tokenizer.ggml.{key}` is missing")), "{message}");
        }
    }
}

#[test]
fn wrong_values_are_named() {
    let text = |text: &str| Some(Value::String(text.to_owned()));
    let ints = |values: &[i32]| Some(Value::Array(Array::I32(values.to_vec())));
    let floats = |values: &[f32]| Some(Value::Array(Array::F32(values.to_vec())));
    let cases = [
        (
            byte_level(),
            "model",
            text("rwkv"),
            "tokenizer kind `rwkv` is not supported (supported: bert, gemma4, gpt2, llama, t5)",
        ),
        (byte_level(), "model", Some(Value::U32(1)), "tokenizer.ggml.model"),
        (byte_level(), "pre", text("other"), "pre-tokenizer type `other` is not known (known: a.x-4.0, "),
        (byte_level(), "tokens", Some(strings([])), "`tokenizer.ggml.tokens` is empty"),
        (byte_level(), "tokens", ints(&[1]), "tokenizer.ggml.tokens"),
        (byte_level(), "token_type", ints(&[1, 1, 1]), "an array of 3, expected 4 elements"),
        (byte_level(), "token_type", ints(&[1, 1, 6, 3]), "`tokenizer.ggml.tokens[2]` is \"ab\""),
        (byte_level(), "merges", Some(strings(["ab"])), "`tokenizer.ggml.merges[0]` is \"ab\""),
        (byte_level(), "merges", Some(strings(["a b", ""])), "`tokenizer.ggml.merges[1]` is \"\""),
        (byte_level(), "merges", Some(strings([" "])), "merges[0]"),
        (byte_level(), "merges", Some(strings(["a  b"])), "merges[0]"),
        (byte_level(), "merges", Some(strings(["a x"])), "merges[0]"),
        (
            byte_level(),
            "merges",
            Some(strings(["b a"])),
            "two tokens with a space between that join to a token",
        ),
        (byte_level(), "eos_token_id", Some(Value::U32(4)), "is 4, expected an id below 4"),
        (byte_level(), "bos_token_id", Some(Value::I32(-1)), "tokenizer.ggml.bos_token_id"),
        (byte_level(), "unknown_token_id", Some(Value::U64(u64::MAX)), "expected an id below 4"),
        (byte_level(), "eot_token_id", text("3"), "tokenizer.ggml.eot_token_id"),
        (
            byte_level(),
            "add_bos_token",
            Some(Value::Bool(true)),
            "adds a bos token, but its metadata names none",
        ),
        (
            byte_level(),
            "add_eos_token",
            Some(Value::Bool(true)),
            "adds a eos token, but its metadata names none",
        ),
        (byte_level(), "add_bos_token", Some(Value::U8(1)), "tokenizer.ggml.add_bos_token"),
        (small(), "scores", floats(&[0.0; 4]), "`tokenizer.ggml.scores` is an array of 4"),
        (
            small(),
            "scores",
            floats(&[0.0, 0.0, f32::NAN, 0.0, 0.0]),
            "`tokenizer.ggml.scores[2]` is not a number",
        ),
        (small(), "add_space_prefix", text("yes"), "tokenizer.ggml.add_space_prefix"),
        (
            unigram(),
            "precompiled_charsmap",
            text("x"),
            "`tokenizer.ggml.precompiled_charsmap` is of another type",
        ),
        (
            unigram(),
            "precompiled_charsmap",
            Some(Value::Array(Array::U8(vec![4, 0, 0, 0, 1]))),
            "5 malformed bytes",
        ),
        (unigram(), "scores", floats(&[0.0]), "`tokenizer.ggml.scores` is an array of 1"),
        (word_piece(), "tokens", Some(strings(["[CLS]", "[SEP]", "x"])), "adds a unknown token"),
        (word_piece(), "tokens", Some(strings(["[CLS]", "[UNK]", "x"])), "adds a separator token"),
        (word_piece(), "tokens", Some(strings(["[SEP]", "[UNK]", "x"])), "adds a bos token"),
    ];
    for (metadata, key, value, expected) in cases {
        let message = error(metadata, key, value);
        assert!(message.contains(expected), "{key}: {message}");
    }
}

#[test]
fn a_token_of_the_unigram_model_has_a_longest_length() {
    let longest = "a".repeat(1024);
    let tokens = |last: &str| Some(strings(["<unk>", "a", "b", "c", "d", "e", "f", last]));
    assert_eq!(error(unigram(), "tokens", tokens(&longest)), "");
    let message = error(unigram(), "tokens", tokens(&(longest + "a")));
    assert!(message.contains("tokens[7]` is a text of 1025 bytes, expected at most 1024"), "{message}");
}

#[test]
fn odd_but_valid_vocabularies() -> Result<(), Failure> {
    // Empty and repeated texts, no types, no merges, infinite scores.
    let mut metadata = byte_level();
    metadata.insert("tokenizer.ggml.tokens", strings(["", "a", "a", ""]));
    metadata.insert("tokenizer.ggml.merges", strings([]));
    metadata.remove("tokenizer.ggml.token_type");
    let tokenizer = Tokenizer::from_gguf(&metadata)?;
    assert_eq!(tokenizer.encode("aa", EncodeOptions::default())?, [1, 1]);
    assert_eq!(tokenizer.decode(&[0, 1, 2, 3], false)?, "aa");
    let infinite = [("<unk>", 2, 0.0), ("a", 1, f32::NEG_INFINITY), ("aa", 1, f32::INFINITY)];
    let tokenizer = Tokenizer::from_gguf(&sentence_piece(&infinite))?;
    assert_eq!(tokenizer.decode(&tokenizer.encode("aaa", EncodeOptions::default())?, true)?, "aaa");
    let mut untyped = small();
    untyped.remove("tokenizer.ggml.token_type");
    let tokenizer = Tokenizer::from_gguf(&untyped)?;
    assert_eq!(tokenizer.encode("a\n<s>", EncodeOptions::default())?, [1, 0, 3, 4, 1]);
    Ok(())
}

#[test]
fn definitions_that_are_no_tokenizer() {
    for json in
        ["", "{", "[]", "{}", r#"{"version": "1.0", "model": {"type": "BPE", "vocab": {}, "merges": []}}"#]
    {
        let result = Tokenizer::from_json(json.as_bytes());
        assert!(matches!(result, Err(Error::TokenizerDefinition { .. })), "{json}");
    }
    let huge =
        r#"{"version": "1.0", "model": {"type": "WordLevel", "vocab": {"a": 4000000000}, "unk_token": "a"}}"#;
    let result = Tokenizer::from_json(huge.as_bytes());
    assert!(matches!(result, Err(Error::TokenizerDefinition { .. })));
}

#[test]
fn a_configuration_that_names_an_absent_token_is_an_error() -> Result<(), Failure> {
    let json = std::fs::read(data("bpe_qwen2", "tokenizer.json"))?;
    let named =
        |config: &[u8]| Tokenizer::from_json(&json).and_then(|tokenizer| tokenizer.with_config(config));
    assert!(named(br#"{"bos_token": null, "eos_token": {"content": "<|im_end|>"}}"#)?.eos().is_some());
    assert!(
        named(br#"{"eos_token": "<|nope|>"}"#).is_err_and(|error| error.to_string().contains("<|nope|>"))
    );
    assert!(named(b"{").is_err());
    Ok(())
}

/// Definition of words with a normalizer, a pre-tokenizer and a decoder.
fn words(
    normalizer: &serde_json::Value,
    pre_tokenizer: &serde_json::Value,
    decoder: &serde_json::Value,
) -> Vec<u8> {
    let definition = serde_json::json!({
        "version": "1.0",
        "added_tokens": [{"id": 2, "content": "aaaaaaaaaaaaaaaaaaaaaaaaaaaa", "single_word": false, "lstrip": false,
                          "rstrip": false, "normalized": true, "special": false}],
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "decoder": decoder,
        "model": {"type": "WordLevel", "vocab": {"[UNK]": 0, "z": 1}, "unk_token": "[UNK]"},
    });
    definition.to_string().into_bytes()
}

/// 5.5 KB of a definition expanded 28 letters to a text that exhausted the memory.
#[test]
fn definitions_that_grow_are_refused() -> Result<(), Failure> {
    use serde_json::{Value, json};
    let none = Value::Null;
    let replace = |pattern: &str, content: String| json!({"type": "Replace", "pattern": {"String": pattern}, "content": content});
    let sequence = |steps: Vec<Value>| json!({"type": "Sequence", "normalizers": steps});
    let many = sequence((0..10).map(|_| replace("a", "a".repeat(500))).collect());
    let patterns: Vec<Value> = (0..33)
        .map(|i| json!({"type": "Split", "pattern": {"Regex": format!("x{i}")}, "behavior": "Isolated", "invert": false}))
        .collect();
    let split = |pattern: &str| json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
    let decoders = json!({"type": "Sequence", "decoders": (0..8).map(|_| replace("a", "aaaa".to_owned())).collect::<Vec<_>>()});
    for (json, expected) in [
        (words(&many, &none, &none), "times as long"),
        (words(&json!({"type": "Prepend", "prepend": "x".repeat(5000)}), &none, &none), "times as long"),
        (words(&none, &json!({"type": "Sequence", "pretokenizers": patterns}), &none), "33 patterns"),
        (words(&none, &split(r"(\pL{100}){100}"), &none), "compiling"),
        (words(&none, &split(&"a".repeat(20_000)), &none), "20000 bytes"),
        (words(&none, &none, &decoders), "the decoder can make"),
    ] {
        let message =
            Tokenizer::from_json(&json).map(|_| ()).err().map(|error| error.to_string()).unwrap_or_default();
        assert!(message.contains(expected), "{expected}: {message}");
    }
    let word_piece = serde_json::json!({"version": "1.0", "model": {"type": "WordPiece", "unk_token": "u",
        "continuing_subword_prefix": "##", "max_input_chars_per_word": 1_000_000, "vocab": {"u": 0}}});
    let message = Tokenizer::from_json(word_piece.to_string().as_bytes())
        .map(|_| ())
        .map_err(|error| error.to_string());
    assert!(message.is_err_and(|message| message.contains("max_input_chars_per_word")));

    // Below those limits the growth of a text is still limited.
    let tokenizer = Tokenizer::from_json(&words(&replace("a", "b".repeat(1000)), &none, &none))?;
    assert!(tokenizer.encode("zaz", EncodeOptions::default()).is_ok());
    let error =
        tokenizer.encode(&"a".repeat(100), EncodeOptions::default()).map_err(|error| error.to_string());
    assert!(error.as_ref().is_err_and(|error| error.contains("makes a text of")), "{error:?}");
    // A pattern that exceeds a limit is an error.
    let tokenizer = Tokenizer::from_json(&words(&none, &split(r"(?:(b+)+)\1c|z"), &none))?;
    assert!(tokenizer.encode("bbbz", EncodeOptions::default()).is_ok());
    let error = tokenizer
        .encode(&("b".repeat(60) + "z"), EncodeOptions::default())
        .map_err(|error| error.to_string());
    assert!(error.as_ref().is_err_and(|error| error.contains("pattern")), "{error:?}");
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(60 * ProptestConfig::default().cases / 256) })]

    /// A definition with some bytes changed loads or fails, and a loaded one encodes or fails.
    #[test]
    fn damaged_definitions_do_not_panic(
        folder in prop::sample::select(FROM_JSON.as_slice()),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        at_start in any::<bool>(),
    ) {
        let mut json = std::fs::read(data(folder, "tokenizer.json")).map_err(|e| TestCaseError::fail(e.to_string()))?;
        // The parts other than the vocabulary are at the start of the file.
        let range = if at_start { json.len().min(3000) } else { json.len() };
        for (at, byte) in changes {
            json[at.index(range)] = byte;
        }
        if let Ok(tokenizer) = Tokenizer::from_json(&json)
            && let Ok(ids) = tokenizer.encode("Hello <s> 123\n\n🙂", EncodeOptions::default())
        {
            let _ = tokenizer.decode(&ids, true);
        }
    }
}
