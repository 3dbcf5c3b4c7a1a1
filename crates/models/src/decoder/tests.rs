//! Effect of low-bit keys on attention: the built-in model, real text, every layer's own queries.

use gguf_rs_lite::Gguf;
use ruvllm_kernels::attention::{AttentionScratch, AttentionShape, Mask};
use ruvllm_memory::PoolConfig;
use ruvllm_testkit::{builtin_model, workspace};
use ruvllm_text::TokenId;
use ruvllm_text::tokenizer::{EncodeOptions, Tokenizer};

use super::*;
use crate::batch::{BatchRows, LogitsRows, Span};

/// Tokens of the text, and how many of them are the prompt whose queries a cache may know.
const TOKENS: usize = 1536;
const PROMPT: usize = 1024;

/// Rows that a layer computes, RoPE applied at their positions.
struct LayerRows {
    queries: Vec<f32>,       // [TOKENS, n_heads, head_dim]
    later_queries: Vec<f32>, // [PROMPT, n_heads, head_dim], as caches see them
    keys: Vec<f32>,          // [TOKENS, n_kv_heads, head_dim]
    values: Vec<f32>,        // [TOKENS, n_kv_heads, head_dim]
}

fn pool() -> PagePool {
    PagePool::new(PoolConfig::new(64 << 20)).expect("a pool")
}

/// The built-in model and the first tokens of an English text.
fn model_and_text() -> (Model, Vec<TokenId>) {
    let gguf = Gguf::open(builtin_model()).expect("the built-in model");
    let text = std::fs::read_to_string(workspace("LICENSE-APACHE")).expect("a text");
    let tokenizer = Tokenizer::from_gguf(gguf.metadata()).expect("its tokenizer");
    let mut tokens = tokenizer.encode(&text, EncodeOptions::default()).expect("tokens");
    tokens.truncate(TOKENS);
    assert_eq!(tokens.len(), TOKENS, "the text is long enough");
    (Model::load(&gguf, &mut |_| ()).expect("the built-in model loads"), tokens)
}

/// One pass over the text, layer by layer.
fn rows_of_layers(model: &Model, compute: &Compute, tokens: &[TokenId]) -> Vec<LayerRows> {
    let store = model.kv_store(&"f32".parse().expect("a policy"), &pool()).expect("a store");
    let mut cache = model.new_sequence(&store, TOKENS).expect("the context is longer");
    let (mut batch, mut buffers) = (BatchRows::default(), Buffers::default());
    let mut segments = [Segment::new(compute, tokens, &mut cache, LogitsRows::All).expect("room")];
    batch.fill(&model.config, &segments).expect("a valid batch");
    prepare(&model.config, &mut buffers, TOKENS).expect("memory");
    let ropes = model.ropes.tables(TOKENS);
    embed(&model.config, &model.weights.embedding, &mut buffers.hidden, &segments);
    let layers = model.weights.layers.iter().enumerate();
    layers
        .map(|(layer, weights)| {
            let pass = Layer {
                config: &model.config,
                weights,
                index: layer,
                heads: model.config.heads(layer),
                cache_index: layer,
                ropes: &ropes,
                compute,
            };
            pass.forward(&mut buffers, &mut segments, &batch.all, &batch.all).expect("a dense model");
            let prompt = Span { segment: 0, row: 0, position: 0, len: PROMPT };
            let mut unused = model.new_sequence(&store, 1).expect("a sequence");
            let mut segment = Segment::new(compute, &[], &mut unused, LogitsRows::None).expect("room");
            pass.record_queries(&mut buffers, &mut segment, prompt);
            LayerRows {
                later_queries: buffers.later_queries.clone(),
                queries: buffers.queries.clone(),
                keys: buffers.keys.clone(),
                values: buffers.values.clone(),
            }
        })
        .collect()
}

/// Attention output of each layer's queries behind the prompt over keys and values stored under
/// `policy`, `[layers, n]`; and the bytes of the blocks.
fn attend(model: &Model, compute: &Compute, layers: &[LayerRows], policy: &str) -> (Vec<Vec<f32>>, usize) {
    let config = model.config();
    let store = model.kv_store(&policy.parse().expect(policy), &pool()).expect(policy);
    let mut cache = model.new_sequence(&store, TOKENS).expect("the context is longer");
    let prompt = PROMPT * config.query_dim();
    let mut step = cache.step(&compute.kernels, TOKENS).expect("room");
    for (layer, LayerRows { later_queries, keys, values, .. }) in layers.iter().enumerate() {
        step.write(&compute.kernels, layer, keys, values);
        step.observe_queries(&compute.kernels, &compute.pool, layer, config.n_heads, later_queries);
    }
    step.commit();
    cache.migrate(&compute.kernels, &compute.pool, usize::MAX);
    let reader = cache.read();
    let shape = AttentionShape {
        n_heads: config.n_heads,
        n_kv_heads: config.n_kv_heads,
        head_dim: config.head_dim,
        query_start: PROMPT,
        n_queries: TOKENS - PROMPT,
        scale: config.decoder.attention_scale,
        mask: Mask::CAUSAL,
        soft_cap: None,
        alibi: None,
    };
    let attended = layers.iter().enumerate().map(|(layer, LayerRows { queries, .. })| {
        let mut blocks = Vec::new();
        let kv = reader.view(layer, &mut blocks);
        let queries = &queries[prompt..];
        let mut out = vec![0.0; queries.len()];
        let mut scratch = AttentionScratch::new();
        compute.kernels.attention(&compute.pool, &shape, queries, &kv, &mut out, &mut scratch);
        out
    });
    (attended.collect(), store.tiers().map(|tier| tier.bytes).sum())
}

/// `|found - exact| / |exact|` of each layer.
fn relative_errors(found: &[Vec<f32>], exact: &[Vec<f32>]) -> Vec<f64> {
    let square = |x: f32| f64::from(x).powi(2);
    let error = |(found, exact): (&Vec<f32>, &Vec<f32>)| {
        let differences: f64 = found.iter().zip(exact).map(|(&x, &y)| square(x - y)).sum();
        (differences / exact.iter().map(|&x| square(x)).sum::<f64>()).sqrt()
    };
    found.iter().zip(exact).map(error).collect()
}

#[test]
fn squat_keeps_more_of_attention_than_kivi_at_equal_bytes() {
    let (model, tokens) = model_and_text();
    let compute = Compute::new(2).expect("kernels");
    let layers = rows_of_layers(&model, &compute, &tokens);
    let (exact, _) = attend(&model, &compute, &layers, "f32");
    // With values in 8 bits, the remaining error is that of keys.
    for (format, most) in [("kivi2", 1.0), ("kivi4", 1.0), ("kivi2+q8", 0.95), ("kivi4+q8", 0.95)] {
        let measure = |squat: &str| {
            let policy = format!("tiered:hot=0,sink=0,warm={format},cold=off,squat={squat}");
            let (found, bytes) = attend(&model, &compute, &layers, &policy);
            let errors = relative_errors(&found, &exact);
            let mean = errors.iter().sum::<f64>() / errors.len() as f64;
            println!("{format} squat={squat}: {mean:.4}, by layer {errors:.4?}");
            (mean, bytes)
        };
        let ((with, bytes_with), (without, bytes_without)) = (measure("on"), measure("off"));
        assert_eq!(bytes_with, bytes_without, "{format}");
        assert!(with < most * without, "{format}: an error of {with} with squat, {without} without");
    }
}
