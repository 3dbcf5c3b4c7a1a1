//! Opens any bytes as a gate over adapters, and computes gates with it.

#![no_main]

use std::sync::{Arc, LazyLock};

use libfuzzer_sys::fuzz_target;
use ruvllm::Kernels;
use ruvllm_adapters::{AdapterGate, BaseModel, MAX_GATED};
use ruvllm_fuzz::FOLDER;

static BASE: LazyLock<Arc<BaseModel>> = LazyLock::new(|| {
    Arc::new(BaseModel {
        architecture: "llama".to_owned(),
        n_layers: 2,
        model_dim: 3,
        query_dim: 4,
        kv_dim: 2,
        head_dim: 2,
        ffn_dim: 3,
        vocab_size: 5,
        interleaved_heads: true,
        joint_attention: false,
        joint_feed_forward: false,
    })
});

static KERNELS: LazyLock<Kernels> = LazyLock::new(|| Kernels::detect().expect("kernels"));

fuzz_target!(|input: &[u8]| {
    let path = FOLDER.join("gate.safetensors");
    std::fs::write(&path, input).expect("written");
    let Ok(gate) = AdapterGate::open(&path, &BASE) else { return };
    let config = gate.config();
    assert!((1..=MAX_GATED).contains(&config.n_adapters));
    for layer in 0..BASE.n_layers {
        let mut gates = vec![f32::NAN; config.n_adapters];
        gate.gates(&KERNELS, layer, &[0.0; 3], &mut gates);
        // Biases alone, which are finite: at most as many gates as are selected, and a sum of 1.
        let selected = gates.iter().filter(|gate| **gate > 0.0).count();
        let sum: f32 = gates.iter().sum();
        assert!(sum.is_nan() || (sum - 1.0).abs() < 1e-4, "{sum}");
        assert!(selected <= config.top_k.unwrap_or(config.n_adapters));
    }
});
