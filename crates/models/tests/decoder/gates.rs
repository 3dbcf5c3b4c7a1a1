//! Gates over adapters: against float64, against plain scales, and rows beside one another.

use std::sync::Arc;

use proptest::prelude::*;
use ruvllm_adapters::{AdapterGate, FactorFormat, GateConfig, LoraFile, Part, ScaledAdapter, Site};
use ruvllm_memory::{PagePool, PoolConfig, Request};
use ruvllm_models::{Error, KvFormat, LogitsRows, Model, Segment, Workspace};
use ruvllm_testkit::Random;
use ruvllm_text::TokenId;

use crate::adapter_kv;
use crate::fixtures::{self, Expected, adapted_logits as logits, bits, path};
use crate::reference::{Gate, Llama, Lora};

const NAMES: [&str; 3] = ["r1_qv", "r4_all", "r16_all_rs"];

/// Largest difference of logits from float64, as of adapters without a gate.
const TOLERANCE: f64 = 5e-4;

fn adapter(model: &Model, name: &str) -> ScaledAdapter {
    let pool = PagePool::new(PoolConfig { page_bytes: 512 << 10, ..PoolConfig::new(16 << 20) });
    let file = LoraFile::open(&path(&format!("lora/{name}"))).expect("the adapter opens");
    let parts = [Part { file: &file, scale: 1.0 }];
    let adapter = model.adapter(&parts, FactorFormat::F32, &pool.expect("a pool"), &Request::default());
    Arc::new(adapter.expect("it fits the model")).into()
}

fn adapters(model: &Model) -> Vec<ScaledAdapter> {
    NAMES.map(|name| adapter(model, name)).into()
}

/// A gate of drawn weights that spread the gates of tokens.
fn gate(model: &Model, config: GateConfig, seed: u64) -> Arc<AdapterGate> {
    let (weights, biases) = drawn(model, config.n_adapters, seed);
    Arc::new(AdapterGate::new(model.adapter_base(), config, weights, biases).expect("a gate"))
}

fn drawn(model: &Model, n_adapters: usize, seed: u64) -> (Vec<f32>, Vec<f32>) {
    let base = model.adapter_base();
    let mut random = Random::new(seed);
    let mut drawn = |n: usize, by: f32| (0..n).map(|_| by * random.normal()).collect();
    (drawn(base.n_layers * n_adapters * base.model_dim, 0.3), drawn(base.n_layers * n_adapters, 0.5))
}

fn config(n_adapters: usize, top_k: Option<usize>) -> GateConfig {
    GateConfig { n_adapters, temperature: 0.7, top_k }
}

#[test]
fn gated_logits_are_those_of_float64() {
    let (compute, model) = (fixtures::compute(), fixtures::model("tiny/llama/model-F32.gguf"));
    let tokens = &Expected::read("tiny/llama").prompt("medium")[..24];
    let loras = NAMES.map(Lora::read);
    let scales = [1.5, 0.5, 1.0];
    // The reference itself: without adapters, and with one.
    let error =
        |found: &[f32], reference: Llama<'_>| fixtures::max_abs_error(found, &reference.logits(tokens));
    let plain = error(&logits(&model, &compute, &[], tokens, 24), Llama::new(vec![], None));
    let one = logits(&model, &compute, &[adapter(&model, NAMES[1])], tokens, 24);
    let one = error(&one, Llama::new(vec![(&loras[1], 1.0)], None));
    assert!(plain <= TOLERANCE && one <= TOLERANCE, "{plain:e} {one:e}");
    let mut outcomes = Vec::new();
    for (seed, top_k) in [(1, None), (2, Some(2)), (3, Some(1))] {
        let (weights, biases) = drawn(&model, 3, seed);
        let temperature = f64::from(config(3, top_k).temperature);
        let reference = Gate { weights, biases, temperature, top_k };
        let list = adapters(&model).into_iter().zip(scales);
        let list = list.map(|(scaled, scale)| ScaledAdapter { scale, ..scaled }).collect();
        let list = gate(&model, config(3, top_k), seed).over(list).expect("three adapters");
        let found = logits(&model, &compute, &list, tokens, 24);
        let scaled = loras.iter().zip(scales).map(|(lora, scale)| (lora, f64::from(scale))).collect();
        let error = error(&found, Llama::new(scaled, Some(&reference)));
        println!("top_k {top_k:?}: {error:.1e}");
        assert!(error <= TOLERANCE, "top_k {top_k:?}: off by {error:e}");
        outcomes.push(bits(&found));
    }
    assert!(outcomes[0] != outcomes[1] && outcomes[1] != outcomes[2]);
}

/// A gate without weights has the gates of its biases for all tokens: the adapters at these scales,
/// bit for bit.
#[test]
fn a_constant_gate_is_a_weighted_combination() {
    for (file, names) in [("llama", ["r4_all", "r16_all_rs"]), ("gemma2", ["gemma2", "gemma2"])] {
        let model = fixtures::model(&format!("tiny/{file}/model-F32.gguf"));
        let base = model.adapter_base();
        let n_layers = base.n_layers;
        let tokens: Vec<TokenId> = (0..20).map(|i| i * 37 % 500).collect();
        let list = || names.map(|name| adapter(&model, name));
        for top_k in [None, Some(1)] {
            let biases = [0.3f32, -0.4].repeat(n_layers);
            let weights = vec![0.0; n_layers * 2 * base.model_dim];
            let gate = Arc::new(AdapterGate::new(base, config(2, top_k), weights, biases).expect("a gate"));
            for compute in fixtures::all_computes() {
                let mut gates = [0.0; 2];
                gate.gates(&compute.kernels, 0, &vec![1.0; base.model_dim], &mut gates);
                let scaled = |scales: [f32; 2]| {
                    let scaled = list().into_iter().zip(scales);
                    scaled.map(|(of, scale)| ScaledAdapter { scale, ..of }).collect::<Vec<_>>()
                };
                let expected = scaled([0.5 * gates[0], -2.0 * gates[1]]);
                let gated = gate.over(scaled([0.5, -2.0])).expect("two adapters");
                let [found, expected] =
                    [gated, expected].map(|list| bits(&logits(&model, &compute, &list, &tokens, 7)));
                assert!(found == expected, "{file}, {top_k:?}, {}", compute.kernels.isa());
            }
        }
    }
}

#[test]
fn logits_take_the_gates_of_the_last_layer() {
    let (compute, model) = (fixtures::compute(), fixtures::model("tiny/llama/model-F32.gguf"));
    let base = model.adapter_base();
    let target = (0, base.vocab_size);
    let changed = adapter_kv::adapter(base, 0, Site::Logits, base.model_dim, target);
    let biases = (0..base.n_layers).flat_map(|layer| [0.3 * layer as f32, 0.1]).collect();
    let weights = vec![0.0; base.n_layers * 2 * base.model_dim];
    let gate = Arc::new(AdapterGate::new(base, config(2, None), weights, biases).expect("a gate"));
    let mut gates = [0.0; 2];
    gate.gates(&compute.kernels, base.n_layers - 1, &vec![0.0; base.model_dim], &mut gates);
    let gated = gate.over(vec![changed.clone(); 2]).expect("two adapters");
    let scaled = gates.map(|scale| ScaledAdapter { scale, ..changed.clone() });
    let tokens = [3, 1, 4, 1, 5];
    let run = |list: &[ScaledAdapter]| bits(&logits(&model, &compute, list, &tokens, 2));
    assert!(run(&gated) == run(&scaled) && run(&gated) != run(&[]));
}

/// Segments with one gate, with another, with several, with none, and with gated adapters beside
/// others, in one batch.
#[test]
fn sequences_of_one_batch_have_their_own_gates() {
    let tokens = Expected::read("tiny/llama").prompt("long");
    let model = fixtures::model("tiny/llama/model-F16.gguf");
    let list = adapters(&model);
    let [all, top, one] = [(3, None), (3, Some(1)), (1, None)].map(|(n, top_k)| {
        gate(&model, config(n, top_k), 7 + n as u64).over(list[..n].to_vec()).expect("adapters")
    });
    let mixed = [&all[1..], &[list[0].clone()], &top[..]].concat();
    let off: Vec<_> = top.iter().map(|scaled| ScaledAdapter { scale: 0.0, ..scaled.clone() }).collect();
    let owners: [&[ScaledAdapter]; 9] = [&all, &[], &top, &mixed, &all, &list, &one, &off, &top[1..]];
    let lengths = [7, 20, 1, 5, 30, 3, 2, 1, 9];
    let wanted = [LogitsRows::Last, LogitsRows::At(&[0, 2]), LogitsRows::All, LogitsRows::Tail(2)];
    let wanted_of = |n: usize| wanted[if n > 2 { n % 4 } else { 0 }];
    for compute in fixtures::all_computes() {
        let cache = |_: &usize| fixtures::new_cache(&model, KvFormat::F32, 64).expect("a cache");
        let mut caches: Vec<_> = lengths.iter().map(cache).collect();
        let segments: Vec<_> = caches
            .iter_mut()
            .zip(lengths)
            .zip(owners)
            .map(|((cache, n), adapters)| {
                let segment = Segment::new(&compute, &tokens[n..2 * n], cache, wanted_of(n));
                segment.expect("room").with_adapters(adapters)
            })
            .collect();
        let mut workspace = Workspace::new();
        let together = model.forward(&compute, &mut workspace, segments).expect("a step");
        let vocab_size = model.config().vocab_size;
        let mut rows = together.chunks_exact(vocab_size);
        for (index, (adapters, n)) in owners.into_iter().zip(lengths).enumerate() {
            let alone = logits(&model, &compute, adapters, &tokens[n..2 * n], 1);
            let at: Vec<usize> = match wanted_of(n) {
                LogitsRows::All => (0..n).collect(),
                LogitsRows::At(rows) => rows.to_vec(),
                LogitsRows::Tail(rows) => (n - rows..n).collect(),
                _ => vec![n - 1],
            };
            for row in at {
                let found = rows.next().expect("a row");
                let expected = &alone[row * vocab_size..][..vocab_size];
                let what = || format!("{}, sequence {index}, token {row}", compute.kernels.isa());
                assert!(bits(found) == bits(expected), "{} differs from itself alone", what());
            }
        }
        assert!(rows.next().is_none());
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 24 * ProptestConfig::default().cases / 256, failure_persistence: None, ..ProptestConfig::default()
    })]

    /// Any gate, list and steps: a token gets what it gets in a step of its own.
    #[test]
    fn tokens_have_the_gates_that_they_have_alone(
        seed in any::<u64>(),
        n_adapters in 1usize..4,
        top_k in prop::option::of(1usize..4),
        scales in prop::array::uniform3(-2f32..2.0),
        tokens in prop::collection::vec(0u32..570, 1..24),
        chunk in 2usize..24,
    ) {
        let (compute, model) = (fixtures::compute(), fixtures::model("tiny/llama/model-F32.gguf"));
        let list = adapters(&model).into_iter().zip(scales);
        let list: Vec<_> = list.map(|(of, scale)| ScaledAdapter { scale, ..of }).take(n_adapters).collect();
        let gate = gate(&model, config(n_adapters, top_k.map(|top_k| top_k.min(n_adapters))), seed);
        let list = gate.over(list).expect("its adapters");
        let [found, expected] = [chunk, 1].map(|chunk| bits(&logits(&model, &compute, &list, &tokens, chunk)));
        prop_assert!(found == expected);
    }
}

#[test]
fn gates_of_other_models_are_refused() {
    let (llama, qwen) =
        (fixtures::model("tiny/llama/model-F32.gguf"), fixtures::model("tiny/qwen3/model-F32.gguf"));
    let list = gate(&llama, config(3, None), 1).over(adapters(&llama)).expect("three adapters");
    let other = [ScaledAdapter { gate: list[1].gate.clone(), ..adapter(&qwen, "qwen3") }];
    let mut cache = fixtures::new_cache(&qwen, KvFormat::F32, 8).expect("a cache");
    let compute = fixtures::compute();
    let segment = Segment::new(&compute, &[1, 2], &mut cache, LogitsRows::Last).expect("room");
    let mut workspace = Workspace::new();
    let refused = qwen.forward(&compute, &mut workspace, [segment.with_adapters(&other)]);
    assert!(matches!(refused, Err(Error::AdapterModel { segment: 0 })));
}
