//! The cache as a caller sees it: growth, memory, truncation and the full cache.

use ruvllm_models::{BLOCK_TOKENS, Error, KvCache, KvFormat, LogitsRows, Model, Segment, TokenId, Workspace};

use crate::fixtures::{self, Expected, bits};

fn step(model: &Model, cache: &mut KvCache, tokens: &[TokenId]) -> Result<Vec<f32>, Error> {
    let compute = fixtures::compute();
    let mut workspace = Workspace::new();
    let mut segment = Segment { tokens, cache, logits: LogitsRows::Last };
    model.forward(&compute, &mut workspace, std::slice::from_mut(&mut segment)).map(<[f32]>::to_vec)
}

#[test]
fn memory_follows_the_length_in_blocks() {
    let model = fixtures::model("tiny/llama/model-F16.gguf");
    let config = model.config();
    for (format, value_bits) in [(KvFormat::F32, 32), (KvFormat::F16, 16), (KvFormat::BF16, 16)] {
        let block_bytes = 2 * config.n_layers * config.kv_dim() * BLOCK_TOKENS * value_bits / 8;
        let mut cache = model.new_cache(format, 200).expect("a cache");
        assert_eq!((cache.bytes(), cache.len(), cache.capacity()), (0, 0, 200));
        for (n_tokens, blocks) in [(1, 1), (63, 1), (1, 2), (100, 3), (35, 4)] {
            step(&model, &mut cache, &vec![7; n_tokens]).expect("it fits");
            assert_eq!(cache.bytes(), blocks * block_bytes, "{} tokens", cache.len());
        }
        cache.truncate(65);
        assert_eq!((cache.len(), cache.bytes()), (65, 4 * block_bytes));
        cache.release_unused();
        assert_eq!(cache.bytes(), 2 * block_bytes);
        cache.truncate(80);
        assert_eq!(cache.len(), 65, "truncation never adds tokens");
        cache.clear();
        cache.release_unused();
        assert_eq!((cache.is_empty(), cache.bytes()), (true, 0));
    }
}

#[test]
fn a_truncated_cache_continues_as_if_the_rest_had_never_been() {
    let model = fixtures::model("tiny/llama/model-F32.gguf");
    let tokens = Expected::read("tiny/llama").prompt("long");
    for keep in [1, 63, 64, 65, 128] {
        let mut fresh = model.new_cache(KvFormat::F16, 256).expect("a cache");
        step(&model, &mut fresh, &tokens[..keep]).expect("it fits");
        let expected = step(&model, &mut fresh, &[5, 6, 7]).expect("it fits");

        let mut cache = model.new_cache(KvFormat::F16, 256).expect("a cache");
        step(&model, &mut cache, &tokens).expect("it fits");
        cache.truncate(keep);
        let found = step(&model, &mut cache, &[5, 6, 7]).expect("it fits");
        assert_eq!(bits(&found), bits(&expected), "kept {keep} tokens");
    }
}

#[test]
fn a_full_cache_is_an_error_and_stays_usable() {
    let model = fixtures::model("tiny/llama/model-F32.gguf");
    let mut cache = model.new_cache(KvFormat::F32, 70).expect("a cache");
    step(&model, &mut cache, &[1; 60]).expect("it fits");
    let error = step(&model, &mut cache, &[1; 11]).expect_err("one token too many");
    assert!(matches!(error, Error::CacheFull { len: 60, tokens: 11, capacity: 70 }), "{error}");
    assert_eq!(error.to_string(), "the cache holds 60 of 70 tokens, 11 more do not fit");
    assert_eq!(cache.len(), 60);
    step(&model, &mut cache, &[1; 10]).expect("it fits exactly");
    assert!(matches!(step(&model, &mut cache, &[1]), Err(Error::CacheFull { len: 70, .. })));
}

#[test]
fn capacities_beyond_the_model_are_refused() {
    let model = fixtures::model("tiny/llama/model-F32.gguf");
    for capacity in [0, 513, usize::MAX] {
        let error = model.new_cache(KvFormat::F32, capacity).expect_err("no such cache");
        assert!(matches!(error, Error::CacheCapacity { context_length: 512, .. }), "{error}");
    }
    model.new_cache(KvFormat::F32, 512).expect("the whole context");
}

#[test]
fn quantized_caches_are_smaller_and_want_whole_groups() {
    let model = fixtures::model("tiny/mistral/model-F16.gguf");
    let config = model.config();
    let values = 2 * config.n_layers * config.kv_dim() * BLOCK_TOKENS;
    // A scale (and a minimum) in 16 bits for 32 values.
    for (format, bits_of_32) in [(KvFormat::Q8, 32 * 8 + 16), (KvFormat::Q4, 32 * 4 + 2 * 16)] {
        let mut cache = model.new_cache(format, 200).expect("a cache");
        let logits = step(&model, &mut cache, &[3, 1, 4, 1, 5]).expect("it fits");
        assert!(logits.iter().all(|x| x.is_finite()));
        assert_eq!((cache.format(), cache.bytes()), (format, values * bits_of_32 / 32 / 8));
    }
    let small = fixtures::model("tiny/llama/model-F16.gguf");
    for format in [KvFormat::Q8, KvFormat::Q4] {
        let error = small.new_cache(format, 200).expect_err("heads of 16 values");
        let expected =
            format!("keys and values in {format} need heads of a multiple of 32 values, these have 16");
        assert_eq!(error.to_string(), expected);
    }
}
