//! Adapters against PEFT's own results: adapted logits, greedy tokens and merged weights, whatever
//! form the model and the adapter are in; and adapters beside one another.

use std::collections::BTreeMap;
use std::sync::Arc;

use ruvllm_adapters::{FactorFormat, LoraFile, Part, ScaledAdapter, Site};
use ruvllm_kernels::low_rank::{LowRankScratch, LowRankTerm};
use ruvllm_kernels::{Kernels, ThreadPool};
use ruvllm_memory::{PagePool, PoolConfig, Request};
use ruvllm_models::quantize::{InSitu, Recipe};
use ruvllm_models::{Error, KvFormat, LogitsRows, Model, Segment, Workspace, open_checkpoint};
use ruvllm_text::TokenId;
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

use crate::fixtures::{self, Expected, adapted_logits as logits, bits, ids, path, text};

/// Largest difference of logits from float64, which PEFT's own float32 reaches a quarter of.
const TOLERANCE: f64 = 5e-4;

/// Largest difference by format of the factors; F16 and I8 measured, with a margin of two.
const TOLERANCES: [(FactorFormat, f64); 3] =
    [(FactorFormat::F32, TOLERANCE), (FactorFormat::F16, 2e-2), (FactorFormat::I8, 8e-1)];

const ADAPTERS: [&str; 3] = ["r1_qv", "r4_all", "r16_all_rs"];

fn pool() -> PagePool {
    PagePool::new(PoolConfig { page_bytes: 512 << 10, ..PoolConfig::new(64 << 20) }).expect("a pool")
}

fn file(relative: &str) -> LoraFile {
    LoraFile::open(&path(&format!("lora/{relative}"))).expect("the adapter opens")
}

fn adapter(model: &Model, parts: &[(&LoraFile, f32)]) -> [ScaledAdapter; 1] {
    adapter_in(model, parts, FactorFormat::F32)
}

fn adapter_in(model: &Model, parts: &[(&LoraFile, f32)], format: FactorFormat) -> [ScaledAdapter; 1] {
    let parts: Vec<_> = parts.iter().map(|&(file, scale)| Part { file, scale }).collect();
    let adapter = model.adapter(&parts, format, &pool(), &Request::default()).expect("it fits the model");
    [Arc::new(adapter).into()]
}

fn floats(bytes: &[u8], dtype: Dtype) -> Vec<f64> {
    match dtype {
        Dtype::F64 => bytes.as_chunks().0.iter().map(|&bytes| f64::from_le_bytes(bytes)).collect(),
        Dtype::F32 => bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes).into()).collect(),
        other => panic!("{other:?}"),
    }
}

/// The tensors of numbers of an `expected.safetensors`.
fn expected(folder: &str) -> BTreeMap<String, Vec<f64>> {
    let bytes = std::fs::read(path(&format!("lora/{folder}/expected.safetensors"))).expect("the tensors");
    let file = SafeTensors::deserialize(&bytes).expect("a safetensors file");
    let numbers = file.iter().filter(|(_, view)| matches!(view.dtype(), Dtype::F32 | Dtype::F64));
    numbers.map(|(name, view)| (name.to_owned(), floats(view.data(), view.dtype()))).collect()
}

/// The files of an adapter: PEFT's, and what llama.cpp's converter made of it. That knows no
/// rsLoRA, so it has not the third.
fn forms(name: &str) -> impl Iterator<Item = String> {
    let gguf = format!("{name}/adapter.gguf");
    let gguf = path(&format!("lora/{gguf}")).exists().then_some(gguf);
    std::iter::once(name.to_owned()).chain(gguf)
}

/// The prompts of an adapter of the tiny Llama.
fn prompts(name: &str) -> Vec<Value> {
    let json = std::fs::read(path("lora/expected.json")).expect("expected.json");
    let json: Value = serde_json::from_slice(&json).expect("valid JSON");
    let all = json["adapters"].as_array().expect("adapters");
    let found = all.iter().find(|adapter| adapter["name"] == name).expect("the adapter");
    found["prompts"].as_array().expect("prompts").clone()
}

/// Largest difference of `found`, of all positions, from `expected`, of some.
fn error(found: &[f32], positions: &[u32], expected: &[f64]) -> f64 {
    let vocab_size = expected.len() / positions.len();
    let rows: Vec<f32> = positions
        .iter()
        .flat_map(|&position| &found[position as usize * vocab_size..][..vocab_size])
        .copied()
        .collect();
    fixtures::max_abs_error(&rows, expected)
}

#[test]
fn adapted_logits_are_those_of_peft() {
    let compute = fixtures::compute();
    for source in ["tiny/llama/model-F32.gguf", "tiny/llama/hf"] {
        let checkpoint = open_checkpoint(path(source)).expect("the model opens");
        let model = Model::load(&*checkpoint, &mut |_| ()).expect("the model loads");
        for name in ADAPTERS {
            let expected = expected(name);
            for form in forms(name) {
                for (format, tolerance) in TOLERANCES {
                    let adapter = adapter_in(&model, &[(&file(&form), 1.0)], format);
                    for prompt in prompts(name) {
                        let found = logits(&model, &compute, &adapter, &ids(&prompt["ids"]), 64);
                        let expected = &expected[&format!("{}.logits_f64", text(&prompt["name"]))];
                        let error = error(&found, &ids(&prompt["positions"]), expected);
                        let what = format!("{source} {form} {format:?} {}", prompt["name"]);
                        println!("{what}: {error:.1e}");
                        assert!(error <= tolerance, "{what}: off by {error:e}");
                    }
                }
            }
        }
    }
}

#[test]
fn greedy_tokens_are_those_of_peft() {
    let compute = fixtures::compute();
    let model = fixtures::model("tiny/llama/model-F32.gguf");
    for name in ADAPTERS {
        let adapter = adapter(&model, &[(&file(name), 1.0)]);
        for prompt in prompts(name) {
            let (mut tokens, expected) = (ids(&prompt["ids"]), ids(&prompt["greedy"]));
            let n_prompt = tokens.len();
            let mut cache =
                fixtures::new_cache(&model, KvFormat::F32, n_prompt + expected.len()).expect("a cache");
            let mut workspace = Workspace::new();
            while tokens.len() < n_prompt + expected.len() {
                let next = &tokens[cache.len()..];
                let segment = Segment::new(&compute, next, &mut cache, LogitsRows::Last).expect("room");
                let segments = [segment.with_adapters(&adapter)];
                let row = model.forward(&compute, &mut workspace, segments).expect("a step");
                tokens.push(compute.kernels.argmax(row).expect("finite logits") as TokenId);
            }
            assert_eq!(tokens[n_prompt..], expected, "{name} {}", prompt["name"]);
        }
    }
}

/// Joint projections, ranks and scales by pattern, logits, layers without, 16 bits.
#[test]
fn adapters_of_other_families_are_those_of_peft() {
    let compute = fixtures::compute();
    for family in ["phi3", "gemma2", "qwen3"] {
        let model = fixtures::model(&format!("tiny/{family}/model-F32.gguf"));
        for form in forms(family) {
            // llama.cpp's converter loses scales by pattern or root and Gemma's logits; its files
            // then mean something else.
            let lossy = form.ends_with(".gguf") && family != "phi3";
            let tensors = if lossy { "expected-gguf" } else { "expected" };
            let bytes =
                std::fs::read(path(&format!("lora/{family}/{tensors}.safetensors"))).expect("the tensors");
            let tensors = SafeTensors::deserialize(&bytes).expect("a safetensors file");
            let integers = |name: &str| -> Vec<u32> {
                let data = tensors.tensor(name).expect("it is there");
                data.data().as_chunks().0.iter().map(|&bytes| i32::from_le_bytes(bytes) as u32).collect()
            };
            let adapter = adapter(&model, &[(&file(&form), 1.0)]);
            let found = logits(&model, &compute, &adapter, &integers("tokens"), 16);
            let expected = tensors.tensor("logits").expect("it is there");
            let expected = floats(expected.data(), expected.dtype());
            let error = error(&found, &integers("positions"), &expected);
            assert!(error <= TOLERANCE, "{form}: off by {error:e}");
        }
    }
}

/// `W + s B A`, row by row, from what the adapter makes of the unit vectors.
#[test]
fn merged_weights_are_those_of_peft() {
    let weights = std::fs::read(path("tiny/llama/hf/model.safetensors")).expect("the weights");
    let weights = SafeTensors::deserialize(&weights).expect("a safetensors file");
    let model = fixtures::model("tiny/llama/model-F32.gguf");
    let (kernels, threads) = (Kernels::detect().expect("kernels"), ThreadPool::single());
    let modules = [
        ("self_attn.q_proj", Site::AttentionInput, 0),
        ("self_attn.k_proj", Site::AttentionInput, 1),
        ("self_attn.v_proj", Site::AttentionInput, 2),
        ("self_attn.o_proj", Site::AttentionOutput, 0),
        ("mlp.gate_proj", Site::FeedForwardInput, 0),
        ("mlp.up_proj", Site::FeedForwardInput, 1),
        ("mlp.down_proj", Site::FeedForwardOutput, 0),
    ];
    for name in ADAPTERS {
        let (expected, [scaled]) = (expected(name), adapter(&model, &[(&file(name), 1.0)]));
        let mut compared = 0;
        for (module, site, target) in modules {
            let module = format!("model.layers.0.{module}");
            let Some(merged) = expected.get(&format!("merged.{module}.weight")) else { continue };
            compared += 1;
            let low_rank = scaled.adapter.at(0, site).expect("it is changed");
            let n_inputs = low_rank.shape().inputs();
            let unit: Vec<f32> =
                (0..n_inputs * n_inputs).map(|i| f32::from(u8::from(i % (n_inputs + 1) == 0))).collect();
            let base = weights.tensor(&format!("{module}.weight")).expect("the base");
            let base = floats(base.data(), base.dtype());
            let n_outputs = low_rank.shape().outputs(target).expect("it is changed");
            let mut changes =
                [0, 1, 2].map(|target| vec![0.0; n_inputs * low_rank.shape().outputs(target).unwrap_or(0)]);
            let term = LowRankTerm { rows: 0..n_inputs, scale: 1.0, gates: &[], update: low_rank };
            let mut outs = changes.each_mut().map(|change| &mut change[..]);
            kernels.add_low_rank(&threads, &unit, &[term], &mut outs, &mut LowRankScratch::default());
            for (input, change) in changes[target].chunks_exact(n_outputs).enumerate() {
                for output in 0..n_outputs {
                    // The model has the halves of a head interleaved.
                    let head_dim = model.config().head_dim;
                    let (head, at) = (output / head_dim * head_dim, output % head_dim);
                    let turned = head + 2 * (at % (head_dim / 2)) + at / (head_dim / 2);
                    let row = if target < 2 && site == Site::AttentionInput { turned } else { output };
                    let at = output * n_inputs + input;
                    let error = (base[at] + f64::from(change[row]) - merged[at]).abs();
                    assert!(error <= 1e-6, "{name} {module} [{output}, {input}]: off by {error:e}");
                }
            }
        }
        assert_eq!(compared, if name == "r1_qv" { 2 } else { 7 });
    }
}

#[test]
fn sequences_of_one_batch_have_their_own_adapters() {
    let tokens = Expected::read("tiny/llama").prompt("long");
    for recipe in [None, Some("q8_0")] {
        let gguf = fixtures::gguf("tiny/llama/model-F16.gguf");
        let model = match recipe {
            None => Model::load(&gguf, &mut |_| ()),
            Some(name) => {
                let recipe = Recipe::from_name(name).expect("a recipe");
                Model::load(
                    &InSitu::new(&gguf, recipe, &ThreadPool::single()).expect("it quantizes"),
                    &mut |_| (),
                )
            }
        };
        let model = model.expect("it loads");
        let all = adapter(&model, &[(&file("r4_all"), 1.0)]);
        let some = adapter(&model, &[(&file("r1_qv"), 0.5)]);
        let warm = adapter_in(&model, &[(&file("r16_all_rs"), 1.0)], FactorFormat::I8);
        let scaled = |[of]: &[ScaledAdapter; 1], scale| ScaledAdapter { scale, ..of.clone() };
        let both = [scaled(&all, 0.7), scaled(&warm, -0.25)];
        let other_scales = [scaled(&all, 0.7), scaled(&warm, 0.5)];
        // Runs of one adapter, of none, of several, and rows that are not at the beginning.
        let owners: [&[ScaledAdapter]; 8] = [&all, &[], &some, &both, &some, &all, &other_scales, &warm];
        let lengths = [7, 20, 1, 5, 30, 3, 2, 1];
        for compute in fixtures::all_computes() {
            let mut caches: Vec<_> = lengths
                .iter()
                .map(|_| fixtures::new_cache(&model, KvFormat::F32, 64).expect("a cache"))
                .collect();
            let segments: Vec<_> = caches
                .iter_mut()
                .zip(lengths)
                .zip(owners)
                .map(|((cache, n), adapters)| {
                    let tokens = &tokens[n..2 * n];
                    let segment = Segment::new(&compute, tokens, cache, LogitsRows::Last).expect("room");
                    segment.with_adapters(adapters)
                })
                .collect();
            let mut workspace = Workspace::new();
            let together = model.forward(&compute, &mut workspace, segments).expect("a step");
            let vocab_size = model.config().vocab_size;
            for (index, (row, n)) in together.chunks_exact(vocab_size).zip(lengths).enumerate() {
                let alone = logits(&model, &compute, owners[index], &tokens[n..2 * n], 4);
                assert!(
                    bits(row) == bits(&alone[(n - 1) * vocab_size..]),
                    "{}, sequence {index} differs from itself alone",
                    compute.kernels.isa()
                );
            }
        }
    }
}

#[test]
fn adapters_add_up_and_none_is_none() {
    let compute = fixtures::compute();
    let model = fixtures::model("tiny/llama/model-F32.gguf");
    let tokens = &Expected::read("tiny/llama").prompt("medium")[..24];
    let (small, large) = (file("r1_qv"), file("r16_all_rs"));
    let run = |parts: &[(&LoraFile, f32)]| {
        let adapter = adapter(&model, parts);
        (logits(&model, &compute, &adapter, tokens, 64), *adapter[0].adapter.digest())
    };
    let base = logits(&model, &compute, &[], tokens, 64);
    let (nothing, _) = run(&[(&large, 0.0)]);
    assert_eq!(bits(&nothing), bits(&base), "at scale 0 the model is what it was");
    let (both, digest) = run(&[(&small, 1.0), (&large, 0.5)]);
    let (other_order, _) = run(&[(&large, 0.5), (&small, 1.0)]);
    let close = |a: &[f32], b: &[f32]| a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 5e-4);
    assert!(close(&both, &other_order), "the order does not matter");
    let (twice, _) = run(&[(&small, 0.5), (&large, 0.5), (&small, 0.5)]);
    assert!(close(&both, &twice), "halves add up");
    let (large_alone, other) = run(&[(&large, 0.5)]);
    assert!(!close(&both, &large_alone) && !close(&both, &base));
    assert_ne!(digest, other);
    // As scales and lists of one pass, without a sum in memory.
    let [[small], [large]] = [&small, &large].map(|file| adapter(&model, &[(file, 1.0)]));
    let list = [small, ScaledAdapter { scale: 0.5, ..large.clone() }];
    assert!(close(&both, &logits(&model, &compute, &list, tokens, 64)), "lists add up");
    let off = [ScaledAdapter { scale: 0.0, ..large }];
    assert_eq!(bits(&base), bits(&logits(&model, &compute, &off, tokens, 64)));
}

#[test]
fn adapters_of_other_models_are_refused() {
    let (llama, qwen) =
        (fixtures::model("tiny/llama/model-F32.gguf"), fixtures::model("tiny/qwen3/model-F32.gguf"));
    let file = file("r4_all");
    let parts = [Part { file: &file, scale: 1.0 }];
    let refused =
        qwen.adapter(&parts, FactorFormat::F16, &pool(), &Request::default()).expect_err("it does not fit");
    let causes = format!("{refused} {}", std::error::Error::source(&refused).expect("a cause"));
    assert!(causes.contains("it is for another model"), "{causes}");
    let adapter = adapter(&llama, &[(&file, 1.0)]);
    let mut cache = fixtures::new_cache(&qwen, KvFormat::F32, 8).expect("a cache");
    let compute = fixtures::compute();
    let segment = Segment::new(&compute, &[1, 2], &mut cache, LogitsRows::Last).expect("room");
    let mut workspace = Workspace::new();
    let refused = qwen.forward(&compute, &mut workspace, [segment.with_adapters(&adapter)]);
    assert!(matches!(refused, Err(Error::AdapterModel { segment: 0 })));
}
