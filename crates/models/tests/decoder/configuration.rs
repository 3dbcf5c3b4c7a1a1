//! Configuration read from a file, and refusals: each wrong value gives one clear error.

use gguf_rs_lite::{Gguf, TensorInfo, TensorType, Value};
use ruvllm_kernels::rope::{RopeLayout, RopeScaling};
use ruvllm_models::{Activation, Error, Model, ModelConfig, Window};

use crate::fixtures::{self, rewrite};

fn llama() -> Gguf {
    fixtures::gguf("tiny/llama/model-F16.gguf")
}

fn load_error(gguf: &Gguf) -> Error {
    Model::load(gguf, &mut |_| ()).expect_err("refused")
}

/// The error when `key` is replaced by `value`, or removed.
fn error_with(key: &str, value: Option<Value>) -> String {
    let gguf = rewrite(&llama(), |metadata, _| match value {
        Some(value) => drop(metadata.insert(key, value)),
        None => drop(metadata.remove(key)),
    });
    load_error(&gguf).to_string()
}

#[test]
fn the_fixtures_are_read_as_written() {
    let config = ModelConfig::from_checkpoint(&llama()).expect("valid");
    assert_eq!(config.architecture, "llama");
    assert_eq!(config.name.as_deref(), Some("ruvllm-tiny-llama"));
    assert_eq!((config.model_dim, config.ffn_dim, config.n_layers), (64, 176, 3));
    assert_eq!((config.n_heads, config.n_kv_heads, config.head_dim), (4, 2, 16));
    assert_eq!((config.vocab_size, config.context_length), (570, 512));
    assert_eq!(config.norm_eps, 1e-5);
    assert_eq!(config.rope.rotary_dim, 16);
    assert_eq!(config.rope.frequency_divisors.as_ref().map(Vec::len), Some(8));
    assert_eq!(config.decoder.rope_layout, RopeLayout::Interleaved);
    assert_eq!(config.decoder.attention_scale, 0.25);
    assert_eq!(config.decoder.window, Window::Full);
    assert_eq!(config.decoder.activation, Activation::SwiGlu);

    let yarn =
        ModelConfig::from_checkpoint(&fixtures::gguf("tiny/llama_yarn/model-F32.gguf")).expect("valid");
    assert!(matches!(yarn.rope.scaling, RopeScaling::Yarn { original_context: 64, .. }), "{:?}", yarn.rope);
    let mistral =
        ModelConfig::from_checkpoint(&fixtures::gguf("tiny/mistral/model-F16.gguf")).expect("valid");
    assert_eq!((mistral.model_dim, mistral.n_heads, mistral.head_dim), (64, 4, 32));
}

#[test]
fn optional_keys_have_their_usual_defaults() {
    let gguf = rewrite(&llama(), |metadata, _| {
        for key in
            ["attention.key_length", "attention.value_length", "rope.dimension_count", "rope.freq_base"]
        {
            metadata.remove(&format!("llama.{key}")).expect("the fixture has it");
        }
        metadata.remove("llama.vocab_size");
        metadata.insert("llama.attention.sliding_window", 0u32);
        metadata.insert("llama.rope.scaling.type", "linear");
        metadata.insert("llama.rope.scaling.factor", 4.0f32);
    });
    let config = ModelConfig::from_checkpoint(&gguf).expect("valid");
    assert_eq!((config.head_dim, config.rope.rotary_dim, config.vocab_size), (16, 16, 570));
    assert_eq!(config.decoder.window, Window::Full);
    assert!(matches!(config.rope.scaling, RopeScaling::Linear { .. }));
    let same = rewrite(&llama(), |metadata, _| drop(metadata.remove("llama.attention.head_count_kv")));
    assert_eq!(ModelConfig::from_checkpoint(&same).expect("valid").n_kv_heads, 4, "as many as query heads");
}

#[test]
fn wrong_hyperparameters_are_named_with_value_and_expectation() {
    let invalid: [(&str, Value, &str); 15] = [
        ("block_count", 0u32.into(), "0, expected a whole number from 1 to 4294967295"),
        (
            "block_count",
            u32::MAX.into(),
            "4294967295, expected no more layers than the file has tensors (31)",
        ),
        ("block_count", (1u64 << 40).into(), "1099511627776, expected a whole number from 1 to 4294967295"),
        ("embedding_length", 0u32.into(), "0, expected a whole number from 1 to 1048576"),
        (
            "feed_forward_length",
            u64::MAX.into(),
            "18446744073709551615, expected a whole number from 1 to 1048576",
        ),
        ("context_length", 0u32.into(), "0, expected a whole number from 1 to 4294967295"),
        ("attention.head_count_kv", 3u32.into(), "3, expected a divisor of the 4 attention heads"),
        ("attention.key_length", 15u32.into(), "15, expected an even number"),
        ("attention.value_length", 8u32.into(), "8, expected 16, that of the keys"),
        ("attention.layer_norm_rms_epsilon", f32::NAN.into(), "NaN, expected a number above 0 and at most 1"),
        (
            "attention.layer_norm_rms_epsilon",
            (-1e-5f32).into(),
            "-0.00001, expected a number above 0 and at most 1",
        ),
        ("rope.freq_base", f32::INFINITY.into(), "inf, expected a number above 1 and at most 1e15"),
        ("rope.dimension_count", 18u32.into(), "18, expected a whole number from 1 to 16"),
        ("rope.scaling.type", "su".into(), "`su`, expected `none`, `linear`, `yarn` or `longrope`"),
        ("vocab_size", 571u32.into(), "571, expected 570, the rows of `token_embd.weight`"),
    ];
    for (suffix, value, message) in invalid {
        let key = format!("llama.{suffix}");
        assert_eq!(error_with(&key, Some(value)), format!("metadata key `{key}` is {message}"));
    }
    assert_eq!(
        error_with("llama.block_count", None),
        "metadata key `llama.block_count` is missing, expected a whole number from 1 to 4294967295"
    );
    let wrong_type = error_with("llama.block_count", Some("three".into()));
    assert!(wrong_type.contains("llama.block_count"), "{wrong_type}");
}

#[test]
fn rotary_parameters_without_meaning_are_refused() {
    let error = |kind: &str, suffix: &str, value: Value| {
        let gguf = rewrite(&llama(), |metadata, _| {
            metadata.insert("llama.rope.scaling.type", kind);
            metadata.insert(format!("llama.{suffix}"), value);
        });
        load_error(&gguf).to_string()
    };
    let (factors, magnitudes) = ("a number from 0.001 to 1000000", "a number from 0.001 to 1000");
    for (kind, suffix, expected) in [
        ("none", "rope.freq_base", "a number above 1 and at most 1e15"),
        ("none", "rope.freq_base_swa", "a number above 1 and at most 1e15"),
        ("linear", "rope.scale_linear", factors),
        ("linear", "rope.scaling.factor", factors),
        ("yarn", "rope.scaling.factor", factors),
        ("yarn", "rope.scaling.yarn_beta_fast", factors),
        ("yarn", "rope.scaling.yarn_beta_slow", factors),
        ("yarn", "rope.scaling.yarn_attn_factor", magnitudes),
        ("yarn", "rope.scaling.attn_factor", magnitudes),
    ] {
        for (value, shown) in [
            (Value::F64(1e-300), "1e-300"),
            (Value::F64(1e300), "1e300"),
            (Value::F32(0.0), "0"),
            (Value::F32(-4.0), "-4"),
            (Value::F32(1e-30), "0.000000000000000000000000000001"),
            (Value::F32(f32::NAN), "NaN"),
        ] {
            let message = format!("metadata key `llama.{suffix}` is {shown}, expected {expected}");
            assert_eq!(error(kind, suffix, value), message);
        }
        let largest = error(kind, suffix, Value::F32(f32::MAX));
        assert!(largest.ends_with(expected), "{largest}");
    }
    let multiplier = error("yarn", "rope.scaling.yarn_log_multiplier", Value::F64(1e-300));
    assert!(multiplier.ends_with("is 1e-300, expected a number from 0 to 1000"), "{multiplier}");
    for divisor in [f32::MIN_POSITIVE, 1e-30, 0.0, -1.0, f32::MAX, f32::INFINITY, f32::NAN] {
        let gguf = rewrite(&llama(), |_, tensors| {
            let tensor =
                tensors.iter_mut().find(|tensor| tensor.0 == "rope_freqs.weight").expect("it is there");
            tensor.3[4..8].copy_from_slice(&divisor.to_le_bytes());
        });
        let message = format!(
            "tensor `rope_freqs.weight` has {divisor} at index 1, expected a number from 0.001 to 1e30"
        );
        assert_eq!(load_error(&gguf).to_string(), message);
    }
}

#[test]
fn other_architectures_are_refused_by_name() {
    assert_eq!(
        error_with("general.architecture", Some("gpt2".into())),
        "architecture `gpt2` is not supported (supported: deepseek2, exaone4, falcon-h1, gemma{,2,3,3n,4}, \
         glm4{,moe}, gpt-oss, granite{,hybrid,moe}, lfm2, llama{,4}, mistral{3,4}, nemotron_h{,_moe}, \
         olmo{2,e}, phi{3,moe}, qwen{2,2moe,3,35,35moe,3moe,3next}, smollm3)"
    );
    assert_eq!(
        error_with("general.architecture", None),
        "metadata key `general.architecture` is missing, expected one of deepseek2, exaone4, falcon-h1, \
         gemma{,2,3,3n,4}, glm4{,moe}, gpt-oss, granite{,hybrid,moe}, lfm2, llama{,4}, mistral{3,4}, \
         nemotron_h{,_moe}, olmo{2,e}, phi{3,moe}, qwen{2,2moe,3,35,35moe,3moe,3next}, smollm3"
    );
}

#[test]
fn wrong_tensors_are_named() {
    let gguf = rewrite(&llama(), |_, tensors| tensors.retain(|tensor| tensor.0 != "blk.1.ffn_up.weight"));
    assert_eq!(load_error(&gguf).to_string(), "tensor `blk.1.ffn_up.weight` is missing");

    let gguf = rewrite(&llama(), |_, tensors| {
        tensors.push(("blk.1.attn_q_norm.weight".into(), vec![16], TensorType::F32, vec![0; 64]));
    });
    assert_eq!(
        load_error(&gguf).to_string(),
        "tensor `blk.1.attn_q_norm.weight` is not part of a `llama` model as this version knows it"
    );

    let gguf = rewrite(&llama(), |_, tensors| {
        let tensor =
            tensors.iter_mut().find(|tensor| tensor.0 == "blk.2.attn_k.weight").expect("it is there");
        tensor.1 = vec![32, 64];
    });
    assert_eq!(
        load_error(&gguf).to_string(),
        "tensor `blk.2.attn_k.weight` has shape [32, 64], expected [64, 32] (columns first)"
    );

    let gguf = rewrite(&llama(), |_, tensors| {
        let tensor =
            tensors.iter_mut().find(|tensor| tensor.0 == "blk.0.ffn_gate.weight").expect("it is there");
        tensor.2 = TensorType::I16;
    });
    assert_eq!(
        load_error(&gguf).to_string(),
        "tensor `blk.0.ffn_gate.weight` has type I16, which is not supported \
         (supported: F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, \
         IQ4_NL, IQ4_XS, MXFP4, IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S, IQ1_S, IQ1_M, TQ1_0, TQ2_0)"
    );

    let gguf = rewrite(&llama(), |_, tensors| {
        let tensor = tensors.iter_mut().find(|tensor| tensor.0 == "rope_freqs.weight").expect("it is there");
        tensor.3[4..8].copy_from_slice(&0f32.to_le_bytes());
    });
    assert_eq!(
        load_error(&gguf).to_string(),
        "tensor `rope_freqs.weight` has 0 at index 1, expected a number from 0.001 to 1e30"
    );
}

#[test]
fn progress_covers_every_tensor_once() {
    let gguf = llama();
    let mut reports = Vec::new();
    Model::load(&gguf, &mut |progress| {
        reports.push((progress.tensor.to_owned(), progress.tensors_done, progress.bytes_done));
        assert_eq!(progress.tensors_total, 31);
    })
    .expect("it loads");
    let bytes_total: u64 = gguf.tensors().map(TensorInfo::bytes).sum();
    assert_eq!(reports.len(), 31);
    assert!(reports.iter().enumerate().all(|(index, report)| report.1 == index + 1));
    assert_eq!(reports.last().expect("a report").2, bytes_total);
}

#[test]
fn weights_stay_in_the_mapped_file() {
    let bytes = Model::load(&llama(), &mut |_| {}).expect("it loads").weight_bytes();
    assert!(bytes.shared > 400_000 && bytes.private < 16_384, "{bytes:?}");
}
