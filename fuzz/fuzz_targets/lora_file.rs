//! Opens any bytes as an adapter, and loads it for a small model.
//!
//! The input is a GGUF file, or the length of a configuration in two bytes, the configuration, and
//! a weight file.

#![no_main]

use std::fs;
use std::hint::black_box;
use std::sync::{Arc, LazyLock};

use libfuzzer_sys::fuzz_target;
use ruvllm_adapters::{Adapter, BaseModel, FactorFormat, LoraFile, Part};
use ruvllm_fuzz::{FOLDER, config_and_weights};
use ruvllm_memory::{PagePool, PoolConfig, Request};

static POOL: LazyLock<PagePool> = LazyLock::new(|| PagePool::new(PoolConfig::new(64 << 20)).expect("a pool"));

static BASE: LazyLock<Arc<BaseModel>> = LazyLock::new(|| {
    Arc::new(BaseModel {
        architecture: "llama".to_owned(),
        n_layers: 2,
        model_dim: 2,
        query_dim: 4,
        kv_dim: 2,
        head_dim: 2,
        ffn_dim: 3,
        vocab_size: 5,
        interleaved_heads: true,
        joint_attention: true,
        joint_feed_forward: true,
    })
});

fuzz_target!(|input: &[u8]| {
    let opened = if input.starts_with(b"GGUF") {
        let path = FOLDER.join("adapter.gguf");
        fs::write(&path, input).expect("written");
        LoraFile::open(&path)
    } else {
        let Some((config, weights)) = config_and_weights(input) else { return };
        fs::write(FOLDER.join("adapter_config.json"), config).expect("written");
        fs::write(FOLDER.join("adapter_model.safetensors"), weights).expect("written");
        LoraFile::open(&FOLDER)
    };
    let Ok(file) = opened else { return };
    assert!(!file.updates().is_empty());
    let parts = [Part { file: &file, scale: 0.5 }, Part { file: &file, scale: -1.0 }];
    for format in FactorFormat::ALL {
        if let Ok(adapter) = Adapter::new(&BASE, &parts, format, &POOL, &Request::default()) {
            assert!(adapter.bytes() > 0);
            black_box(adapter.digest());
        }
    }
});
