//! Keys and values as a caller of the model sees them: growth, memory, truncation, tiers and the
//! full cache.

use ruvllm_kv_cache::Error as KvError;
use ruvllm_memory::{PagePool, PoolConfig};
use ruvllm_models::{Error, KvFormat, LogitsRows, Model, Segment, Sequence, Workspace};
use ruvllm_text::TokenId;

use crate::fixtures::{self, Expected, TINY, bits};

fn step(model: &Model, cache: &mut Sequence, tokens: &[TokenId]) -> Result<Vec<f32>, Error> {
    let compute = fixtures::compute();
    let mut workspace = Workspace::new();
    let segment = Segment::new(&compute, tokens, cache, LogitsRows::Last)?;
    model.forward(&compute, &mut workspace, [segment]).map(<[f32]>::to_vec)
}

#[test]
fn memory_follows_the_length_in_blocks() {
    let model = fixtures::model("tiny/llama/model-F16.gguf");
    let config = model.config();
    for (format, value_bits) in [(KvFormat::F32, 32), (KvFormat::F16, 16), (KvFormat::BF16, 16)] {
        let block_bytes = 2 * config.n_layers * config.kv_dim() * 32 * value_bits / 8;
        let mut cache = fixtures::new_cache(&model, format, 200).expect("a cache");
        assert_eq!((cache.bytes(), cache.len(), cache.capacity()), (0, 0, 200));
        for (n_tokens, blocks) in [(1, 1), (31, 1), (1, 2), (100, 5), (35, 6)] {
            step(&model, &mut cache, &vec![7; n_tokens]).expect("it fits");
            assert_eq!(cache.bytes(), blocks * block_bytes, "{} tokens", cache.len());
        }
        cache.truncate(65).expect("nothing was released");
        assert_eq!((cache.len(), cache.bytes()), (65, 3 * block_bytes));
        cache.clear();
        assert_eq!((cache.is_empty(), cache.bytes()), (true, 0));
    }
}

#[test]
fn a_truncated_cache_continues_as_if_the_rest_had_never_been() {
    let model = fixtures::model("tiny/llama/model-F32.gguf");
    let tokens = Expected::read("tiny/llama").prompt("long");
    for keep in [1, 31, 32, 33, 128] {
        let mut fresh = fixtures::new_cache(&model, KvFormat::F16, 256).expect("a cache");
        step(&model, &mut fresh, &tokens[..keep]).expect("it fits");
        let expected = step(&model, &mut fresh, &[5, 6, 7]).expect("it fits");

        let mut cache = fixtures::new_cache(&model, KvFormat::F16, 256).expect("a cache");
        step(&model, &mut cache, &tokens).expect("it fits");
        cache.truncate(keep).expect("nothing was released");
        let found = step(&model, &mut cache, &[5, 6, 7]).expect("it fits");
        assert_eq!(bits(&found), bits(&expected), "kept {keep} tokens");
    }
}

#[test]
fn a_full_cache_is_an_error_and_stays_usable() {
    let model = fixtures::model("tiny/llama/model-F32.gguf");
    let mut cache = fixtures::new_cache(&model, KvFormat::F32, 70).expect("a cache");
    step(&model, &mut cache, &[1; 60]).expect("it fits");
    let error = step(&model, &mut cache, &[1; 11]).expect_err("one token too many");
    assert!(matches!(error, Error::KvCache(KvError::Full { len: 60, tokens: 11, capacity: 70 })), "{error}");
    assert_eq!(error.to_string(), "the cache holds 60 of 70 tokens, 11 more do not fit");
    assert_eq!(cache.len(), 60);
    step(&model, &mut cache, &[1; 10]).expect("it fits exactly");
    assert!(matches!(step(&model, &mut cache, &[1]), Err(Error::KvCache(KvError::Full { len: 70, .. }))));
}

#[test]
fn capacities_beyond_the_model_are_refused() {
    let model = fixtures::model("tiny/llama/model-F32.gguf");
    for capacity in [0, 513, usize::MAX] {
        let error = fixtures::new_cache(&model, KvFormat::F32, capacity).expect_err("no such cache");
        assert!(matches!(error, Error::CacheCapacity { context_length: 512, .. }), "{error}");
    }
    fixtures::new_cache(&model, KvFormat::F32, 512).expect("the whole context");
}

#[test]
fn quantized_caches_are_smaller_and_want_whole_groups() {
    let model = fixtures::model("tiny/mistral/model-F16.gguf");
    let config = model.config();
    let values = 2 * config.n_layers * config.kv_dim() * 32;
    // A scale (and a minimum) in 16 bits for 32 values.
    for (format, bits_of_32) in [(KvFormat::Q8, 32 * 8 + 16), (KvFormat::Q4, 32 * 4 + 2 * 16)] {
        let mut cache = fixtures::new_cache(&model, format, 200).expect("a cache");
        let logits = step(&model, &mut cache, &[3, 1, 4, 1, 5]).expect("it fits");
        assert!(logits.iter().all(|x| x.is_finite()));
        assert_eq!(cache.bytes(), values * bits_of_32 / 32 / 8, "{format}");
    }
    let small = fixtures::model("tiny/llama/model-F16.gguf");
    for format in [KvFormat::Q8, KvFormat::Q4] {
        let error = fixtures::new_cache(&small, format, 200).expect_err("heads of 16 values");
        let expected =
            format!("keys and values in {format} need heads of a multiple of 32 values, these have 16");
        assert_eq!(error.to_string(), expected);
    }
}

#[test]
fn tiers_take_less_memory_and_stay_close() {
    let model = fixtures::model("tiny/mistral/model-F16.gguf");
    let pool = PagePool::new(PoolConfig::new(16 << 20)).expect("a pool");
    let compute = fixtures::compute();
    let tokens: Vec<TokenId> = (0..200).map(|i| i * 7 % 250).collect();
    let run = |policy: &str| {
        let store = model.kv_store(&policy.parse().expect(policy), &pool).expect(policy);
        let mut cache = model.new_sequence(&store, 256).expect("the context");
        let mut workspace = Workspace::new();
        let mut last = Vec::new();
        for tokens in tokens.chunks(20) {
            let segment = Segment::new(&compute, tokens, &mut cache, LogitsRows::Last).expect("room");
            let logits = model.forward(&compute, &mut workspace, [segment]);
            last = logits.expect("a step").iter().map(|&logit| f64::from(logit)).collect();
            cache.migrate(&compute.kernels, &compute.pool, usize::MAX);
        }
        let logits: Vec<f32> = last.iter().map(|&logit| logit as f32).collect();
        (logits, last, cache.bytes())
    };
    let (_, exact, hot_bytes) = run("f16");
    let (tiered, _, bytes) = run("tiered:hot=32,warm=q8");
    assert!(bytes * 5 < hot_bytes * 4, "{bytes} of {hot_bytes} bytes");
    let error = fixtures::max_abs_error(&tiered, &exact);
    assert!(error > 0.0 && error < 0.05, "logits differ by {error}");
}

#[test]
fn rotated_keys_and_values_give_the_same_logits() {
    // Rotation changes rounding only, which 32-bit floats show least.
    let compute = fixtures::compute();
    for name in TINY {
        let model = fixtures::model(&format!("tiny/{name}/model-F32.gguf"));
        let tokens = Expected::read(&format!("tiny/{name}")).prompt("long");
        let plain = fixtures::all_logits(&model, &compute, KvFormat::F32, &tokens, 64);
        let pool = PagePool::new(PoolConfig::new(16 << 20)).expect("a pool");
        let store = model.kv_store(&"f32:rotate=on".parse().expect("a policy"), &pool).expect("small heads");
        let mut cache = model.new_sequence(&store, tokens.len()).expect("the context");
        let mut workspace = Workspace::new();
        let segment = Segment::new(&compute, &tokens, &mut cache, LogitsRows::All).expect("room");
        let rotated = model.forward(&compute, &mut workspace, [segment]).expect("a step");
        let expected: Vec<f64> = plain.iter().map(|&logit| f64::from(logit)).collect();
        let error = fixtures::max_abs_error(rotated, &expected);
        assert!(error < 2e-4, "{name}: logits differ by {error}");
        assert!(rotated != plain, "{name}: something was rotated");
    }
}

#[test]
fn a_probe_attends_as_its_layer_does() {
    let model = fixtures::model("tiny/gemma2/model-F16.gguf");
    let mut workspace = Workspace::new();
    let mut cache = fixtures::new_cache(&model, KvFormat::F32, 8).expect("a cache");
    for (layer, window) in [(2, Some(40)), (3, None)] {
        let compute = fixtures::compute();
        let segment = Segment::new(&compute, &[5, 6], &mut cache, LogitsRows::None).expect("room");
        let segment = segment.with_probe(Some(layer));
        model.forward(&compute, &mut workspace, [segment]).expect("a step");
        let probe = model.probe(&workspace, 0).expect("it was computed");
        let scale = model.config().decoder.attention_scale;
        let found = (probe.layer, probe.window, probe.soft_cap, probe.scale);
        assert_eq!(found, (layer, window, Some(5.0), scale));
    }
}

#[test]
fn kept_queries_are_those_of_the_last_token_of_each_segment() {
    let model = fixtures::model("tiny/llama/model-F32.gguf");
    let compute = fixtures::compute();
    let texts: [&[TokenId]; 2] = [&[5, 6, 7], &[9, 8]];
    let queries = |texts: &[&[TokenId]]| {
        let mut workspace = Workspace::new();
        assert!(model.probe(&workspace, 0).is_none(), "nothing was computed");
        let mut caches: Vec<Sequence> =
            texts.iter().map(|_| fixtures::new_cache(&model, KvFormat::F32, 8).expect("a cache")).collect();
        let segments: Vec<Segment<'_>> = texts
            .iter()
            .zip(&mut caches)
            .map(|(tokens, cache)| Segment::new(&compute, tokens, cache, LogitsRows::None).expect("room"))
            .map(|segment| segment.with_probe(Some(1)))
            .collect();
        model.forward(&compute, &mut workspace, segments).expect("a step");
        assert!(model.probe(&workspace, texts.len()).is_none(), "one for each segment");
        (0..texts.len())
            .map(|segment| {
                let probe = model.probe(&workspace, segment).expect("it was computed");
                assert_eq!((probe.layer, probe.window, probe.soft_cap), (1, None, None));
                bits(probe.query)
            })
            .collect::<Vec<_>>()
    };
    let together = queries(&texts);
    assert_eq!(together[0].len(), model.config().query_dim());
    assert_eq!(together, [queries(&texts[..1]), queries(&texts[1..])].concat());
    // The query of the last token meets its position: another one in front turns it.
    assert_ne!(queries(&[&[8]]), queries(&[&[8, 8]]));
}
