//! Refusals of the backend: each one clear error, before it computes anything.

use std::path::{Path, PathBuf};

use ruvllm::{CandleBackend, CandleDevice, CandleOptions, Error, InferenceBackend};
use safetensors::Dtype;
use serde_json::json;

use crate::support::{Variant, Weight, candle, folder, refusal};

/// Reason of the refusal of a folder.
fn reason(folder: &Path) -> String {
    match refusal(folder) {
        Error::UnsupportedByBackend { backend: "candle", name, reason } => {
            assert_eq!(name, folder.display().to_string());
            reason
        }
        other => panic!("expected a refusal, found {other:?}"),
    }
}

#[test]
fn other_architectures_are_named_with_those_that_there_are() {
    for name in ["qwen3", "gemma3"] {
        let reason = reason(&folder(name));
        assert!(reason.contains(name) && reason.contains("gemma2"), "{reason}");
    }
    let unknown = Variant::of("llama").with(json!({ "architectures": ["AbacusForCausalLM"] }));
    let error = refusal(unknown.path());
    assert!(matches!(&error, Error::Open { .. }), "{error:?}");
}

#[test]
fn rotary_scalings_that_candle_has_not_are_refused() {
    let linear = json!({ "rope_scaling": { "rope_type": "linear", "factor": 2.0 } });
    let yarn = json!({ "rope_scaling": { "rope_type": "yarn", "factor": 4.0 } });
    let llama3 = json!({ "rope_scaling": { "rope_type": "llama3", "factor": 8.0 } });
    assert!(reason(&folder("llama_yarn")).contains("`yarn`"));
    for (name, scaling, word) in [
        ("llama", &linear, "`linear`"),
        ("mistral", &yarn, "`yarn`"),
        ("mistral", &llama3, "`llama3`"),
        ("qwen2", &yarn, "`yarn`"),
        ("qwen2", &linear, "`linear`"),
        ("phi3", &linear, "`linear`"),
        ("phi3", &llama3, "`llama3`"),
        ("gemma2", &yarn, "`yarn`"),
    ] {
        let variant = Variant::of(name).with(scaling.clone());
        let reason = reason(variant.path());
        assert!(reason.contains(word), "{name}: {reason}");
    }
}

#[test]
fn contexts_end_where_candle_would_go_wrong() {
    for (name, limit, word) in [
        ("llama", 512, "made for"),
        ("mistral", 48, "window"),
        ("qwen2", 512, "made for"),
        ("phi3", 256, "LongRoPE"),
        ("gemma2", 40, "window"),
    ] {
        assert_eq!(candle(&folder(name)).context_length(), limit, "{name}");
        let load = |context| {
            let options = CandleOptions { context: Some(context), ..CandleOptions::default() };
            CandleBackend::load(folder(name), &options)
        };
        assert_eq!(load(limit).expect("within the limit").context_length(), limit, "{name}");
        assert_eq!(load(7).expect("within the limit").context_length(), 7, "{name}");
        match load(limit + 1).expect_err("beyond the limit") {
            Error::UnsupportedByBackend { reason, .. } => {
                assert!(reason.contains(word) && reason.contains(&limit.to_string()), "{name}: {reason}");
            }
            other => panic!("{name}: {other:?}"),
        }
    }
    let windowed = Variant::of("phi3").with(json!({ "sliding_window": 100 }));
    assert_eq!(candle(windowed.path()).context_length(), 100);
}

#[test]
fn widths_that_candle_derives_have_to_be_so() {
    // Heads of 32 in a model of width 4 x 16.
    let wide = |name: &str| {
        Variant::of(name).with(json!({ "head_dim": 32 })).reshard(1, |weights| {
            for weight in weights {
                let axis = ["q_proj", "k_proj", "v_proj"].iter().any(|part| weight.name.contains(part));
                if axis {
                    weight.data.extend_from_within(..);
                    weight.shape[0] *= 2;
                } else if weight.name.contains("o_proj") {
                    weight.data.extend_from_within(..);
                    weight.shape[1] *= 2;
                }
            }
        })
    };
    for name in ["llama", "qwen2"] {
        let reason = reason(wide(name).path());
        assert!(reason.contains("4 of 32") && reason.contains("64"), "{name}: {reason}");
    }
    let partial = Variant::of("llama").with(json!({ "partial_rotary_factor": 0.5, "rope_scaling": null }));
    let reason = reason(partial.path());
    assert!(reason.contains("8 of 16"), "{reason}");
}

#[test]
fn tensors_that_candle_has_no_place_for_are_not_left_out() {
    let biased = Variant::of("llama").with(json!({ "attention_bias": true })).reshard(1, |weights| {
        let bias = |layer| Weight {
            name: format!("model.layers.{layer}.self_attn.o_proj.bias"),
            dtype: Dtype::F32,
            shape: vec![64],
            data: vec![0; 4 * 64],
        };
        weights.extend([0, 1, 2].map(bias));
    });
    let reason = reason(biased.path());
    assert!(reason.contains("model.layers.0.self_attn.o_proj.bias"), "{reason}");
}

#[test]
fn damaged_folders_give_the_errors_of_the_reader() {
    let without =
        |part: &'static str| Variant::of("llama").reshard(2, move |w| w.retain(|w| !w.name.contains(part)));
    for part in ["layers.1.mlp.up_proj", "model.norm", "lm_head"] {
        let variant = without(part);
        let error = refusal(variant.path());
        let Error::Open { source, .. } = &error else { panic!("{part}: {error:?}") };
        assert!(source.to_string().contains(part), "{part}: {source}");
    }
    let empty = tempfile::tempdir().expect("a folder");
    assert!(matches!(refusal(empty.path()), Error::Open { .. }));
    assert!(matches!(refusal(Path::new("no/such/folder")), Error::Open { .. }));
    let wrong = Variant::of("llama").with(json!({ "intermediate_size": 200 }));
    assert!(matches!(refusal(wrong.path()), Error::Open { .. }));
    let cut = Variant::of("qwen2");
    let weights = cut.path().join("model.safetensors");
    let bytes = std::fs::read(&weights).expect("the weights");
    std::fs::write(&weights, &bytes[..bytes.len() / 2]).expect("written");
    assert!(matches!(refusal(cut.path()), Error::Open { .. }));
    let huge = Variant::of("qwen2").with(json!({ "vocab_size": 10 }));
    assert!(matches!(refusal(huge.path()), Error::Open { .. }));
}

#[test]
fn files_options_and_devices_that_do_not_do_are_refused() {
    let file: PathBuf = folder("llama").with_file_name("model-F32.gguf");
    assert!(reason(&file).contains("folders"));
    for options in [
        CandleOptions { context: Some(0), ..CandleOptions::default() },
        CandleOptions { prefill_chunk: 0, ..CandleOptions::default() },
    ] {
        let error = CandleBackend::load(folder("llama"), &options).expect_err("zero");
        assert!(matches!(error, Error::InvalidOption { value: 0, .. }), "{error:?}");
    }
    if cfg!(not(feature = "candle-metal")) {
        let options = CandleOptions { device: CandleDevice::Metal(0), ..CandleOptions::default() };
        let error = CandleBackend::load(folder("llama"), &options).expect_err("it was not compiled in");
        assert!(matches!(&error, Error::Backend { action, .. } if action == "open the device"), "{error:?}");
    }
}
