//! Agreement of engine, candle and independent reference logits.

use ruvllm::{CandleBackend, CandleOptions, InferenceBackend, TokenId};
use serde_json::json;

use crate::support::{
    Case, Expected, FAMILIES, Variant, Weight, candle, difference, folder, logits, max_abs_error, native,
};

/// Largest error of a logit: float32 transformers' own is up to 9.4e-5. The same bound holds for
/// the engine.
const TOLERANCE: f64 = 5e-4;

/// A tiny model without the limits of candle's context, so that long prompts fit.
fn without_limits(name: &str) -> Variant {
    let variant = Variant::of(name);
    match name {
        "mistral" => variant.with(json!({ "sliding_window": null })),
        "gemma2" => variant.with(json!({ "sliding_window": 512 })),
        // Applies the short factors at all positions.
        "phi3" => variant.with(json!({ "original_max_position_embeddings": 1024 })),
        _ => variant,
    }
}

/// Prompt and greedy continuation of a case, truncated to the context.
fn within(case: &Case, context: usize) -> Vec<TokenId> {
    case.tokens.iter().chain(&case.greedy).copied().take(context).collect()
}

#[test]
fn native_and_candle_backends_agree() {
    for name in FAMILIES {
        let candle = candle(&folder(name));
        let native = native(&folder(name), candle.context_length());
        assert_eq!(native.context_length(), candle.context_length(), "{name}");
        let mut compared = 0;
        for case in Expected::of(name).cases("f32") {
            let tokens = within(&case, candle.context_length());
            for at_once in [0, case.tokens.len().min(tokens.len())] {
                let error = difference(&native, &candle, &tokens, at_once);
                println!("{name} {} of {} tokens, {at_once} at once: {error:.2e}", case.name, tokens.len());
                assert!(error <= TOLERANCE, "{name} {}: logits differ by {error}", case.name);
                compared += tokens.len();
            }
        }
        assert!(compared > 80, "{name}: {compared} tokens");
    }
}

#[test]
fn native_and_candle_backends_agree_over_long_prompts() {
    for name in FAMILIES {
        let variant = without_limits(name);
        let candle = candle(variant.path());
        let native = native(variant.path(), candle.context_length());
        let cases = Expected::of(name).cases("f32");
        let long = cases.iter().find(|case| case.name == "long").expect("a long prompt");
        assert!(long.tokens.len() + 32 <= candle.context_length(), "{name}: {}", candle.context_length());
        let tokens = within(long, candle.context_length());
        for at_once in [0, long.tokens.len()] {
            let error = difference(&native, &candle, &tokens, at_once);
            println!("{name} of {} tokens, {at_once} at once: {error:.2e}", tokens.len());
            assert!(error <= TOLERANCE, "{name}: logits differ by {error}");
        }
    }
}

#[test]
fn candle_agrees_with_the_reference_where_it_goes() {
    for name in FAMILIES {
        let candle = candle(&folder(name));
        let mut compared = 0;
        for case in Expected::of(name).cases("f32") {
            compared += compare(&candle, name, &case);
        }
        assert!(compared >= 5, "{name}: {compared} positions");
    }
    // The reference without the window, for all lengths.
    let candle = candle(without_limits("mistral").path());
    for case in Expected::of("mistral").cases("f32_nowindow") {
        assert_eq!(compare(&candle, "mistral without window", &case), case.positions.len());
    }
}

/// Compares logits at a case's positions within the context, and greedy tokens; returns the number
/// of positions.
fn compare(candle: &CandleBackend, name: &str, case: &Case) -> usize {
    let vocab_size = candle.config().vocab_size;
    let tokens = within(case, candle.context_length());
    let all = logits(candle, &tokens, 0);
    let rows: Vec<&[f32]> = all.chunks_exact(vocab_size).collect();
    let mut compared = 0;
    let is_long = name == "phi3" && case.tokens.len() > candle.context_length();
    for (&position, expected) in case.positions.iter().zip(case.logits.chunks_exact(vocab_size)) {
        // Sequences beyond the original context use other RoPE factors from the first token on.
        if position >= tokens.len() || is_long {
            continue;
        }
        let error = max_abs_error(rows[position], expected.iter().copied());
        println!("{name} {} at {position}: {error:.2e}", case.name);
        assert!(error <= TOLERANCE, "{name} {} at {position}: logits differ by {error}", case.name);
        compared += 1;
    }
    // Greedy tokens within the context: each is the argmax of the row before it.
    if !is_long {
        for at in case.tokens.len()..tokens.len() {
            let row = rows[at - 1];
            let best = (0..vocab_size).max_by(|&a, &b| row[a].total_cmp(&row[b])).expect("logits");
            assert_eq!(best as TokenId, tokens[at], "{name} {}: greedy token at {at}", case.name);
        }
    }
    compared
}

#[test]
fn weights_in_half_precision_and_in_shards_are_read_alike() {
    for name in FAMILIES {
        let variant =
            Variant::of(name).reshard(3, |weights| weights.iter_mut().for_each(Weight::cut_to_bf16));
        let candle = candle(variant.path());
        let native = native(variant.path(), candle.context_length());
        let tokens = &Expected::of(name).cases("f32")[0].tokens;
        let error = difference(&native, &candle, tokens, 0);
        println!("{name} in BF16: {error:.2e}");
        assert!(error <= TOLERANCE, "{name}: logits differ by {error}");
    }
}

/// Configurations in the forms of transformers 4 and 5 give the same model.
#[test]
fn configurations_of_transformers_5_are_read_alike() {
    let scaling = json!({
        "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
        "original_max_position_embeddings": 64
    });
    let variant = Variant::of("llama").edit(|map| {
        map.remove("rope_theta");
        map.remove("rope_scaling");
        map.insert("rope_parameters".to_owned(), scaling);
    });
    let (new, old) = (candle(variant.path()), candle(&folder("llama")));
    let cases = Expected::of("llama").cases("f32");
    assert_eq!(difference(&new, &old, &cases[1].tokens, 0), 0.0);
    let variant = Variant::of("mistral").edit(|map| {
        let base = map.remove("rope_theta").expect("a base");
        map.insert("rope_parameters".to_owned(), json!({ "rope_type": "default", "rope_theta": base }));
    });
    let (new, old) = (candle(variant.path()), candle(&folder("mistral")));
    assert_eq!(difference(&new, &old, &cases[0].tokens, 0), 0.0);
}

/// Details that candle has no setting for, or in another form; compared with the engine.
#[test]
fn what_candle_lacks_switches_for_comes_out_as_in_the_engine() {
    let halves = |list: &serde_json::Value| json!(list.as_array().expect("factors")[..4]);
    let variants = [
        ("another scale of queries", Variant::of("gemma2").with(json!({ "query_pre_attn_scalar": 144 }))),
        (
            "half of each head turned, with the factor of LongRoPE",
            Variant::of("phi3").edit(|map| {
                map.insert("partial_rotary_factor".to_owned(), json!(0.5));
                for key in ["long_factor", "short_factor"] {
                    let factors = halves(&map["rope_scaling"][key]);
                    map["rope_scaling"][key] = factors;
                }
            }),
        ),
        (
            "half of each head turned",
            Variant::of("phi3").with(json!({ "partial_rotary_factor": 0.5, "rope_scaling": null })),
        ),
        ("no scaling", Variant::of("phi3").with(json!({ "rope_scaling": null }))),
        ("no scaling", Variant::of("llama").with(json!({ "rope_scaling": null }))),
        (
            "a tied embedding",
            Variant::of("mistral")
                .with(json!({ "tie_word_embeddings": true }))
                .reshard(2, |weights| weights.retain(|weight| weight.name != "lm_head.weight")),
        ),
        ("a tied embedding", Variant::of("llama").with(json!({ "tie_word_embeddings": true }))),
        ("a head of its own", Variant::of("qwen2").with(json!({ "tie_word_embeddings": true }))),
        ("other caps", Variant::of("gemma2").with(json!({ "final_logit_softcapping": 20.0 }))),
    ];
    let tokens: Vec<TokenId> = (0..40).map(|i| (i * 53 + 7) % 500).collect();
    for (what, variant) in &variants {
        let candle = candle(variant.path());
        let native = native(variant.path(), candle.context_length());
        let error = difference(&native, &candle, &tokens, 20);
        println!("{what} in {}: {error:.2e}", candle.config().architecture);
        assert!(error <= TOLERANCE, "{what} in {}: logits differ by {error}", candle.config().architecture);
    }
}

#[test]
fn a_longer_context_than_the_usual_one_has_to_be_asked_for() {
    let variant = Variant::of("qwen2").with(json!({ "max_position_embeddings": 100_000 }));
    assert_eq!(candle(variant.path()).context_length(), 8192);
    let options = CandleOptions { context: Some(20_000), ..CandleOptions::default() };
    let long = CandleBackend::load(variant.path(), &options).expect("candle loads it");
    assert_eq!(long.context_length(), 20_000);
}
