//! Drafts of prediction heads (multi-token prediction): more tokens in a pass, and the same ones
//! (ADR-0130).

use std::fs;
use std::path::Path;

use ruvllm::{Engine, PrefixCaching, SamplingParams, Speculation};
use ruvllm_testkit::model_data;
use serde_json::Value;

use crate::common::{complete, load, tiny_options};
use crate::hybrid::{agrees, folder_of, ids, request};

/// Models with a head: with gated `DeltaNet`, alone and with experts; with attention and experts;
/// with latent attention.
const HEADS: [&str; 5] = ["qwen35", "qwen35moe", "qwen3next", "glm4moe", "deepseek3"];

fn folder(name: &str) -> tempfile::TempDir {
    folder_of(&model_data("prediction").join(name))
}

/// Sampling between the two likeliest tokens as equals, of which a draft is often the other one.
fn either() -> SamplingParams {
    SamplingParams::default().with_temperature(1000.0).with_top_k(2).with_top_p(1.0).with_min_p(0.0)
}

#[test]
fn drafts_of_heads_change_no_token() {
    for name in HEADS {
        let folder = folder(name);
        let engine = load(folder.path().to_owned(), &tiny_options().with_prefixes(PrefixCaching::Off));
        for (seed, tokens) in [(4, 1), (5, 4), (6, 8)] {
            let sampled = request(&ids(seed, 40)).with_sampling(either()).with_seed(7);
            let drafted = sampled.with_max_tokens(50).with_speculation(Speculation::Fixed(tokens));
            agrees(&engine, folder.path(), &drafted, 0);
        }
        let counts = engine.step_statistics();
        assert!(counts.drafted_tokens > counts.accepted_tokens, "{name}: {counts:?}");
        // The head drafts in every step: look-up alone finds something in few.
        assert!(counts.drafted_tokens > 300, "{name}: {counts:?}");
    }
}

/// Sets the values of an F16 tensor of a file to 1 where `is_one` says so of a row and column, and
/// to 0 elsewhere.
fn set(file: &mut [u8], header: &Value, name: &str, is_one: impl Fn(usize, usize) -> bool) {
    const ONE: [u8; 2] = 0x3C00_u16.to_le_bytes();
    let tensor = &header[name];
    assert_eq!(tensor["dtype"], "F16", "{name}");
    let shape: Vec<usize> = serde_json::from_value(tensor["shape"].clone()).expect("a shape");
    let [start, end]: [usize; 2] = serde_json::from_value(tensor["data_offsets"].clone()).expect("offsets");
    let columns = shape[shape.len() - 1];
    for (index, value) in file[start..end].chunks_exact_mut(2).enumerate() {
        value.copy_from_slice(if is_one(index / columns, index % columns) { &ONE } else { &[0; 2] });
    }
}

/// Changes a model so that its layers add nothing, so the next token follows from the last alone,
/// and its head foretells it: a norm of the embedding, and the model's own norm and matrix.
fn foretell(folder: &Path) {
    let path = folder.join("model.safetensors");
    let mut bytes = fs::read(&path).expect("a file");
    let length = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes")) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + length]).expect("a header");
    let file = &mut bytes[8 + length..];
    let last = ["o_proj.weight", "out_proj.weight", "down_proj.weight"];
    for name in header.as_object().expect("an object").keys() {
        if last.iter().any(|end| name.ends_with(end)) || name.contains("norm") && !name.contains("layers") {
            set(file, &header, name, |_, _| false);
        }
    }
    // The first half of the columns is that of the embedding.
    set(file, &header, "mtp.fc.weight", |row, column| row == column);
    fs::write(&path, bytes).expect("a file");
}

fn accepted(engine: &Engine, prompt: &[u32], setting: Speculation) -> [usize; 2] {
    let asked = request(prompt).with_max_tokens(60).with_speculation(setting);
    let found = complete(engine, &asked);
    [found.drafted_tokens, found.accepted_tokens]
}

#[test]
fn a_head_that_foretells_is_accepted() {
    let folder = folder("qwen35");
    foretell(folder.path());
    let options = tiny_options().with_prefixes(PrefixCaching::Off);
    let engine = load(folder.path().to_owned(), &options);
    // Sampled between two tokens, so that half of the drafts are wrong.
    let varied = request(&ids(1, 30)).with_sampling(either()).with_seed(3).with_max_tokens(60);
    let varied = varied.with_speculation(Speculation::Fixed(2));
    agrees(&engine, folder.path(), &varied, 0);
    for tokens in [1, 3, 8] {
        let [drafted, accepted] =
            accepted(&engine, &ids(tokens, 20 + tokens), Speculation::Fixed(tokens as usize));
        assert!(drafted > 20 && 10 * accepted >= 9 * drafted, "{accepted} of {drafted}");
    }
    // Several at once, in one pass of the head.
    let many: Vec<_> = (0..4)
        .map(|seed| {
            let asked = request(&ids(seed, 12 + 9 * seed)).with_max_tokens(40);
            engine.submit(asked.with_speculation(Speculation::Fixed(4))).expect("a handle")
        })
        .collect();
    for handle in many {
        let found = handle.wait().expect("text");
        let [drafted, accepted] = [found.drafted_tokens, found.accepted_tokens];
        assert!(drafted > 20 && 10 * accepted >= 9 * drafted, "{accepted} of {drafted}");
    }
    let without = load(folder.path().to_owned(), &options.with_draft_head(false));
    let off = accepted(&without, &ids(2, 9), Speculation::Fixed(8));
    let on = accepted(&engine, &ids(2, 9), Speculation::Fixed(8));
    assert!(on[1] > off[1], "{on:?} with the head, {off:?} without");
}
