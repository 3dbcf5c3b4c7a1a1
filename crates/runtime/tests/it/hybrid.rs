//! Models with layers that keep a state instead of keys and values (ADR-0119).

use std::fs;
use std::path::Path;

use ruvllm::{Completion, Engine, GenerateRequest, PrefixCaching, Prompt, Speculation};
use ruvllm_testkit::model_data;
use serde_json::json;

use crate::common::{complete, greedy, load, tiny_options};

/// Folders with gated `DeltaNet`, alone and with experts, and with short convolutions.
const FORMS: [&str; 3] = ["qwen35", "qwen35moe", "lfm2"];

/// Copies a form's folder, which has no tokenizer, and adds one of single letters.
fn folder(name: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for file in ["config.json", "model.safetensors"] {
        fs::copy(model_data("forms").join(name).join(file), folder.path().join(file)).expect("a copy");
    }
    let special = |id: usize, content: &str| {
        json!({
            "id": id, "content": content, "special": true,
            "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
        })
    };
    let names = ["<pad>", "<s>", "</s>"];
    let letters = ('a'..='z').chain('A'..='Z').chain('0'..='9').map(String::from);
    let vocabulary: serde_json::Map<String, serde_json::Value> = names
        .iter()
        .map(ToString::to_string)
        .chain(letters)
        .enumerate()
        .map(|(id, token)| (token, json!(id)))
        .collect();
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null,
        "added_tokens": names.iter().enumerate().map(|(id, name)| special(id, name)).collect::<Vec<_>>(),
        "pre_tokenizer": { "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true },
        "post_processor": null,
        "decoder": { "type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true },
        "model": { "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                   "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
                   "vocab": vocabulary, "merges": [] },
    });
    fs::write(folder.path().join("tokenizer.json"), tokenizer.to_string()).expect("a file");
    folder
}

fn engine(folder: &Path) -> Engine {
    load(folder.to_owned(), &tiny_options().with_prefixes(PrefixCaching::Memory))
}

/// Ids of a text, another one for each seed.
fn ids(seed: u32, n: u32) -> Vec<u32> {
    (0..n).map(|i| 3 + (i * 17 + i * i * (seed + 1)) % 60).collect()
}

fn request(tokens: &[u32]) -> GenerateRequest {
    greedy(Prompt::Tokens(tokens.to_vec()), 12).with_ignore_eos(true)
}

/// A completion of an engine that has seen nothing else.
fn alone(folder: &Path, tokens: &[u32]) -> Completion {
    complete(&engine(folder), &request(tokens))
}

#[test]
fn conversations_go_on_and_others_are_computed_anew() {
    for name in FORMS {
        let folder = folder(name);
        let engine = engine(folder.path());
        let first = ids(1, 70);
        let answer = complete(&engine, &request(&first).with_session("talk"));
        assert_eq!(answer.tokens, alone(folder.path(), &first).tokens, "{name}");
        // The sequence holds the beginning of the next prompt.
        let longer = [&first[..], &answer.tokens, &ids(2, 9)].concat();
        let next = complete(&engine, &request(&longer).with_session("talk"));
        assert!(next.cached_tokens >= first.len(), "{name}: {} cached", next.cached_tokens);
        assert_eq!(next.tokens, alone(folder.path(), &longer).tokens, "{name}");
        // Of a prompt that differs before its end, nothing can be kept.
        let other = [&first[..64], &ids(3, 20)].concat();
        let changed = complete(&engine, &request(&other).with_session("talk"));
        assert_eq!(changed.cached_tokens, 0, "{name}");
        assert_eq!(changed.tokens, alone(folder.path(), &other).tokens, "{name}");
        // Without a session, prefixes are not shared either.
        assert_eq!(complete(&engine, &request(&longer)).cached_tokens, 0, "{name}");
    }
}

#[test]
fn several_sequences_and_choices_are_those_of_one_alone() {
    for name in FORMS {
        let folder = folder(name);
        let engine = engine(folder.path());
        let prompts: Vec<Vec<u32>> = (0..5).map(|seed| ids(seed, 20 + 13 * seed)).collect();
        let handles: Vec<_> =
            prompts.iter().map(|prompt| engine.submit(request(prompt)).expect("a handle")).collect();
        for (handle, prompt) in handles.into_iter().zip(&prompts) {
            let found = handle.wait().expect("a completion");
            assert_eq!(found.tokens, alone(folder.path(), prompt).tokens, "{name}");
        }
    }
}

#[test]
fn drafts_prefixes_and_adapters_of_attention_are_left_out() {
    for name in FORMS {
        let folder = folder(name);
        let engine = engine(folder.path());
        // A text that repeats itself, for which drafts would be found.
        let prompt = ids(4, 12).repeat(6);
        let drafted = complete(&engine, &request(&prompt).with_speculation(Speculation::Fixed(4)));
        assert_eq!(drafted.tokens, alone(folder.path(), &prompt).tokens, "{name}");
        assert_eq!(engine.step_statistics().drafted_tokens, 0, "{name}");
        assert_eq!(engine.adapter_base().query_dim, 0, "{name}");
        assert!(engine.plan().state_bytes > 0, "{name}");
    }
}
