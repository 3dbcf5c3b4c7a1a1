//! Latent attention: files, memory, and bad input. The logits are compared in `forms`.

use gguf_rs_lite::Value;
use ruvllm_kv_cache::KvPolicy;
use ruvllm_memory::PoolConfig;
use ruvllm_models::{Checkpoint, Model, PagePool};
use serde_json::json;

use crate::hybrids::check_bits;
use crate::mixtures::{changed, folder, form};
use crate::support::{Copy, Weight};

#[test]
fn no_bit_depends_on_files_chunks_batches_or_instruction_sets() {
    for name in ["deepseek2", "deepseek3", "mistral4"] {
        check_bits(name);
    }
}

/// One latent and one rotated key per token, whatever the number of heads.
#[test]
fn the_cache_keeps_latents_alone() {
    let model = Model::load(&folder("deepseek3"), &mut |_| ()).expect("it loads");
    let shape = model.config().kv_shape();
    assert_eq!((shape.n_kv_heads, shape.head_dim, shape.values_are_keys), (1, 24 + 8, true));
    let pool = PagePool::new(PoolConfig::new(32 << 20)).expect("a pool");
    let store = |policy: &str| model.kv_store(&policy.parse::<KvPolicy>().expect("a policy"), &pool);
    assert_eq!(store("f16").expect("a store").sequence_bytes(32), 3 * 32 * (24 + 8) * 2);
    store("tiered").expect("a store of tiers");
    store("nuq3").expect_err("a calibration is for values too");
}

#[test]
fn configurations_of_other_attention_are_refused() {
    for (field, value, expected) in [
        ("rope_interleave", json!(false), "rope_interleave"),
        ("qk_rope_head_dim", json!(7), "an even number"),
        ("kv_lora_rank", json!(null), "kv_lora_rank"),
        ("v_head_dim", json!(0), "v_head_dim"),
        ("qk_nope_head_dim", json!(13), "q_b_proj"),
        ("v_head_dim", json!(17), "o_proj"),
        ("q_lora_rank", json!(null), "q_a_layernorm"),
    ] {
        let copy = Copy::of_folder(&form("deepseek3"));
        copy.set(field, value);
        let refused = copy.open().map(|_| ()).expect_err(field).to_string();
        assert!(refused.contains(expected), "{field}: {refused}");
    }
}

#[test]
fn weights_of_other_attention_are_refused() {
    let refused = |change: &dyn Fn(&mut Vec<Weight>)| {
        let copy = Copy::of_folder(&form("deepseek3"));
        let mut weights = copy.weights();
        change(&mut weights);
        copy.write("model.safetensors", &weights);
        copy.open().map(|_| ()).expect_err("refused").to_string()
    };
    for part in ["layers.1.self_attn.kv_b_proj.weight", "layers.0.self_attn.kv_a_layernorm.weight"] {
        let found = refused(&|weights| weights.retain(|weight| !weight.name.ends_with(part)));
        assert!(found.contains(part), "{found}");
        let found = refused(&|weights| {
            let weight = weights.iter_mut().find(|weight| weight.name.ends_with(part)).expect("a tensor");
            let rows = weight.shape[0];
            weight.data.truncate(weight.data.len() / rows * (rows - 1));
            weight.shape[0] -= 1;
        });
        assert!(found.contains(part), "{found}");
    }
}

#[test]
fn keys_of_other_attention_are_refused() {
    for (key, value, expected) in [
        ("attention.head_count_kv", 4_u32, "convert the model again"),
        ("attention.key_length", 40, "the latent and the rotated key"),
        ("attention.value_length", 32, "expected 24"),
        ("attention.key_length_mla", 8, "more than the 8 rotated"),
        ("attention.value_length_mla", 0, "value_length_mla"),
        ("attention.q_lora_rank", 19, "attn_q_a"),
        ("rope.dimension_count", 6, "the latent and the rotated key"),
    ] {
        let change = |value: Value| {
            changed("deepseek3", |metadata, _| drop(metadata.insert(format!("deepseek2.{key}"), value)))
        };
        let found = change(value.into()).expect_err(key);
        assert!(found.contains(expected), "{key}: {found}");
    }
}

/// llama.cpp stops at a file of this architecture with a temperature and no length.
#[test]
fn the_length_of_the_temperature_is_written() {
    let read =
        |key: &str| folder("mistral4").metadata().get_u64(&format!("mistral4.{key}")).expect("a number");
    assert_eq!(read("attention.temperature_length"), Some(12));
    assert_eq!(read("rope.scaling.original_context_length"), Some(12));
}
