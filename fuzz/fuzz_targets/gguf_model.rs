//! Loads any bytes as a GGUF file of a decoder or an encoder, and computes a few tokens with it.

#![no_main]

use std::hint::black_box;
use std::sync::LazyLock;

use gguf_rs_lite::Gguf;
use libfuzzer_sys::fuzz_target;
use ruvllm_memory::{PagePool, PoolConfig};
use ruvllm_models::{
    Compute, Encoder, EncoderWorkspace, KvFormat, LogitsRows, Model, Segment, Workspace, is_encoder,
};

/// Tokens of the prompt, in two passes.
const PROMPT: [u32; 5] = [3, 1, 4, 1, 5];

static COMPUTE: LazyLock<Compute> = LazyLock::new(|| Compute::new(1).expect("kernels"));

static POOL: LazyLock<PagePool> = LazyLock::new(|| PagePool::new(PoolConfig::new(64 << 20)).expect("a pool"));

fuzz_target!(|file: &[u8]| {
    let Ok(gguf) = Gguf::from_owner(file.to_vec()) else { return };
    if is_encoder(gguf.metadata()) {
        if let Ok(encoder) = Encoder::load(&gguf, &mut |_| ()) {
            let _ = black_box(encoder.forward(&COMPUTE, &mut EncoderWorkspace::new(), &[&PROMPT]));
        }
        return;
    }
    let Ok(model) = Model::load(&gguf, &mut |_| ()) else { return };
    let Ok(store) = model.kv_store(&KvFormat::F32.into(), &POOL) else { return };
    let Ok(mut cache) = model.new_sequence(&store, PROMPT.len()) else { return };
    let mut workspace = Workspace::new();
    for tokens in PROMPT.chunks(3) {
        let Ok(segment) = Segment::new(&COMPUTE, tokens, &mut cache, LogitsRows::Last) else { return };
        if black_box(model.forward(&COMPUTE, &mut workspace, [segment])).is_err() {
            return;
        }
    }
    assert_eq!(cache.len(), PROMPT.len());
});
