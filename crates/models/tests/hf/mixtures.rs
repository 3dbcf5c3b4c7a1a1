//! Mixtures of experts: GGUF files beside folders, bits in any batch, and bad input.

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use gguf_rs_lite::{Gguf, Metadata, TensorInfo, TensorType, Value, Writer};
use proptest::prelude::*;
use ruvllm_kernels::quant::WeightFormat;
use ruvllm_kernels::{Kernels, ThreadPool};
use ruvllm_models::quantize::{InSitu, QuantizeOptions, Recipe, convert, quantize};
use ruvllm_models::{
    Checkpoint, Compute, HfFolder, ImportanceMatrix, KvFormat, LogitsRows, Model, PagePool, Scoring, Segment,
    Workspace,
};
use serde_json::json;

use crate::support::Copy;

const MIXTURES: [&str; 20] = [
    "qwen3moe",
    "qwen3moe_fused",
    "mixtral",
    "qwen2moe",
    "olmoe",
    "gpt_oss",
    "gpt_oss_mxfp4",
    "glm4moe",
    "glm4moe_plain",
    "deepseek2",
    "deepseek3",
    "mistral4",
    "granitehybrid_moe",
    "granitemoe",
    "granitemoeshared",
    "gemma4_moe",
    "qwen3next",
    "nemotron_h_moe",
    "llama4",
    "phimoe",
];

pub(crate) fn form(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/forms").join(name)
}

pub(crate) fn folder(name: &str) -> HfFolder {
    HfFolder::open(form(name)).expect("the folder opens")
}

fn pool() -> PagePool {
    PagePool::new(ruvllm_memory::PoolConfig::new(32 << 20)).expect("a pool")
}

/// A prompt that is long enough for groups of many rows.
pub(crate) fn prompt(seed: u32, len: u32) -> Vec<u32> {
    (0..len).map(|i| 4 + (seed.wrapping_add(i).wrapping_mul(2_654_435_761) >> 8) % 68).collect()
}

/// Bits of the logits of the first of several prompts that are computed together, each in chunks.
pub(crate) fn bits(model: &Model, compute: &Compute, prompts: &[(&[u32], usize)]) -> Vec<u32> {
    let store = model.kv_store(&KvFormat::F32.into(), &pool()).expect("a store");
    let capacity = |(tokens, _): &(&[u32], usize)| model.new_sequence(&store, tokens.len());
    let mut caches: Vec<_> = prompts.iter().map(|prompt| capacity(prompt).expect("a cache")).collect();
    let mut left: Vec<Vec<&[u32]>> =
        prompts.iter().map(|(tokens, chunk)| tokens.chunks(*chunk).rev().collect()).collect();
    let (mut found, mut workspace) = (Vec::new(), Workspace::new());
    while !left[0].is_empty() {
        let mut n_first = 0;
        let segments: Vec<Segment<'_>> = caches
            .iter_mut()
            .zip(&mut left)
            .enumerate()
            .filter_map(|(i, (cache, left))| {
                let tokens = left.pop()?;
                n_first += if i == 0 { tokens.len() } else { 0 };
                Some(Segment::new(compute, tokens, cache, LogitsRows::All).expect("room"))
            })
            .collect();
        let logits = model.forward(compute, &mut workspace, segments).expect("a step");
        let first = &logits[..n_first * model.config().vocab_size];
        found.extend(first.iter().map(|logit| logit.to_bits()));
    }
    found
}

/// The same checkpoint as a GGUF file.
pub(crate) fn gguf_of(checkpoint: &dyn Checkpoint, folder: &Path) -> Gguf {
    let path = folder.join("model.gguf");
    let metadata = checkpoint.metadata().clone();
    let infos: Vec<TensorInfo> = checkpoint.tensors().cloned().collect();
    let mut writer = Writer::new(Vec::new(), &metadata, infos.clone()).expect("a valid header");
    for info in &infos {
        writer.write_tensor(info, checkpoint.data(info).expect("data").as_ref()).expect("its size");
    }
    fs::write(&path, writer.finish().expect("a complete file")).expect("written");
    Gguf::open(path).expect("it opens")
}

#[test]
fn files_compute_the_bits_of_their_folders_and_stay_mapped() {
    let compute = Compute::new(1).expect("kernels");
    let tokens = prompt(1, 60);
    for name in MIXTURES {
        let temporary = tempfile::tempdir().expect("a folder");
        let folder = folder(name);
        let gguf = gguf_of(&folder, temporary.path());
        let load = |checkpoint: &dyn Checkpoint| Model::load(checkpoint, &mut |_| ()).expect(name);
        let (from_folder, from_file) = (load(&folder), load(&gguf));
        let run = |model: &Model| bits(model, &compute, &[(&tokens, 60)]);
        assert!(run(&from_folder) == run(&from_file), "{name}");
        let experts = from_file.config().decoder.experts.clone().expect("a mixture");
        let layer = experts.layers.iter().position(|&has_experts| has_experts).expect("one");
        let tensor = gguf.tensor(&format!("blk.{layer}.ffn_down_exps.weight")).expect("a stack");
        let dims = [experts.ffn_dim, from_file.config().model_dim, experts.count];
        assert_eq!(tensor.dims, dims.map(|dim| dim as u64), "{name}");
        let router = gguf.tensor(&format!("blk.{layer}.ffn_gate_inp.weight")).expect("a router");
        assert_eq!(router.tensor_type, TensorType::F32, "{name}");
        let stacks = gguf.tensors().filter(|info| info.name.contains("_exps.")).map(TensorInfo::bytes);
        let bytes = from_file.weight_bytes();
        assert!(bytes.shared >= stacks.sum::<u64>() && bytes.private < bytes.shared / 5, "{name}: {bytes:?}");
    }
}

/// Float and 8-bit products; 130 tokens give experts more rows than row products take.
#[test]
fn batches_chunks_threads_and_instruction_sets_change_no_bit() {
    let tokens = prompt(7, 130);
    let others = [prompt(3, 25), prompt(5, 40)];
    let retyped = ThreadPool::single();
    for name in MIXTURES {
        let folder = folder(name);
        let quantized = InSitu::new(&folder, Recipe::from_name("Q8_0").expect("a recipe"), &retyped);
        let quantized = quantized.expect("it can be quantized");
        for checkpoint in [&folder as &dyn Checkpoint, &quantized] {
            let model = Model::load(checkpoint, &mut |_| ()).expect("it loads");
            let whole = bits(&model, &Compute::new(1).expect("kernels"), &[(&tokens, 130)]);
            for kernels in Kernels::available() {
                for threads in [1, 3] {
                    let compute = Compute::with(kernels, ThreadPool::new(threads).expect("threads"));
                    let what = format!("{name} {kernels:?} {threads}");
                    assert!(bits(&model, &compute, &[(&tokens, 130)]) == whole, "{what}");
                    assert!(bits(&model, &compute, &[(&tokens, 37)]) == whole, "{what} by 37");
                    let batch: [(&[u32], usize); 3] = [(&tokens, 5), (&others[0], 1), (&others[1], 3)];
                    assert!(bits(&model, &compute, &batch) == whole, "{what} in a batch");
                }
            }
        }
    }
}

/// Importance of the experts of a folder's model from a prompt.
pub(crate) fn importance(folder: &HfFolder, compute: &Compute, tokens: &[u32]) -> ImportanceMatrix {
    let model = Model::load(folder, &mut |_| ()).expect("it loads");
    let store = model.kv_store(&KvFormat::F32.into(), &pool()).expect("a store");
    let mut cache = model.new_sequence(&store, tokens.len()).expect("a cache");
    let mut workspace = Workspace::new();
    workspace.observe_inputs();
    for chunk in tokens.chunks(7) {
        let segment = Segment::new(compute, chunk, &mut cache, LogitsRows::All).expect("room");
        model.forward(compute, &mut workspace, [segment]).expect("a step");
    }
    ImportanceMatrix::new(&workspace.take_input_squares(), folder, "prompt", (1, tokens.len()))
}

/// An expert of its own importance gets the bytes that it would get as a matrix of its own, and one
/// that no token chose those of equal weights.
#[test]
fn experts_are_quantized_by_their_own_importance() {
    let compute = Compute::new(2).expect("kernels");
    let mut without = 0;
    for name in MIXTURES {
        let folder = folder(name);
        // Few tokens: some experts are chosen by none.
        let importance = importance(&folder, &compute, &prompt(2, 2));
        let temporary = tempfile::tempdir().expect("a folder");
        let gguf = gguf_of(&folder, temporary.path());
        let path = temporary.path().join("quantized.gguf");
        let options = QuantizeOptions { pure: true, importance: Some(&importance), ..Default::default() };
        let recipe = Recipe::from_name("Q4_0").expect("a recipe");
        let pool = ThreadPool::new(3).expect("threads");
        quantize(&gguf, &path, recipe, &options, &pool, &mut |_| ControlFlow::Continue(())).expect(name);
        let quantized = Gguf::open(&path).expect("it opens");
        for info in folder.tensors().filter(|info| info.name.ends_with("_exps.weight")) {
            let [cols, rows, experts] = info.dims[..] else { panic!("{name}: {info:?}") };
            let (cols, rows) = (cols as usize, rows as usize);
            let means = importance.means(&info.name).expect("an entry");
            assert_eq!(means.len(), cols * experts as usize, "{name} {}", info.name);
            let from = WeightFormat::ALL.into_iter().find(|f| f.name() == info.tensor_type.to_string());
            let data = folder.data(info).expect("data");
            let mut values = vec![0.0; cols * rows * experts as usize];
            from.expect("a format").dequantize(data.as_ref(), &mut values);
            let found = quantized.data(&info.name).expect("data");
            // Rows that are no whole blocks keep their type.
            let Some(row_bytes) = WeightFormat::Q4_0.row_bytes(cols) else { continue };
            let one = row_bytes * rows;
            for (expert, found) in found.as_bytes().chunks_exact(one).enumerate() {
                let means = &means[expert * cols..][..cols];
                let is_given = means.iter().any(|&mean| mean > 0.0);
                without += usize::from(!is_given);
                let mut expected = vec![0; one];
                let values = &values[expert * cols * rows..][..cols * rows];
                WeightFormat::Q4_0.quantize_weighted(values, is_given.then_some(means), &mut expected);
                assert!(found == expected, "{name} {} of expert {expert}", info.name);
            }
        }
    }
    assert!(without > 0, "every expert was chosen");
}

/// A copy of a form as GGUF with metadata and tensors changed, loaded.
pub(crate) fn changed(
    name: &str,
    change: impl FnOnce(&mut Metadata, &mut Vec<(TensorInfo, Vec<u8>)>),
) -> Result<Model, String> {
    changed_of(&folder(name), change)
}

/// A copy of a folder as GGUF with metadata and tensors changed, loaded.
pub(crate) fn changed_of(
    folder: &HfFolder,
    change: impl FnOnce(&mut Metadata, &mut Vec<(TensorInfo, Vec<u8>)>),
) -> Result<Model, String> {
    Model::load(&file_of(folder, change), &mut |_| ()).map_err(|error| error.to_string())
}

/// A copy of a form as GGUF with metadata and tensors changed.
pub(crate) fn changed_file(
    name: &str,
    change: impl FnOnce(&mut Metadata, &mut Vec<(TensorInfo, Vec<u8>)>),
) -> Gguf {
    file_of(&folder(name), change)
}

/// A copy of a folder as GGUF with metadata and tensors changed.
fn file_of(folder: &HfFolder, change: impl FnOnce(&mut Metadata, &mut Vec<(TensorInfo, Vec<u8>)>)) -> Gguf {
    let mut metadata = folder.metadata().clone();
    let data = |info: &TensorInfo| folder.data(info).expect("data").as_ref().to_vec();
    let mut tensors: Vec<(TensorInfo, Vec<u8>)> =
        folder.tensors().map(|info| (info.clone(), data(info))).collect();
    change(&mut metadata, &mut tensors);
    let infos = tensors.iter().map(|(info, _)| info.clone());
    let mut writer = Writer::new(Vec::new(), &metadata, infos).expect("a valid header");
    for (info, data) in &tensors {
        writer.write_tensor(info, data).expect("its size");
    }
    Gguf::from_owner(writer.finish().expect("complete")).expect("a valid file")
}

#[test]
fn counts_that_disagree_and_missing_tensors_are_named() {
    let with = |key: &str, value: u32| {
        let key = format!("qwen3moe.{key}");
        changed("qwen3moe", |metadata, _| drop(metadata.insert(key, value))).map(|_| ()).expect_err("refused")
    };
    assert_eq!(
        with("expert_used_count", 0),
        "metadata key `qwen3moe.expert_used_count` is 0, expected a whole number from 1 to 8"
    );
    assert_eq!(
        with("expert_used_count", 9),
        "metadata key `qwen3moe.expert_used_count` is 9, expected a whole number from 1 to 8"
    );
    assert_eq!(
        with("expert_count", 0),
        "metadata key `qwen3moe.expert_count` is 0, expected a whole number from 1 to 65536"
    );
    assert_eq!(
        with("expert_count", 7),
        "tensor `blk.0.ffn_gate_exps.weight` has shape [32, 24, 8], expected [32, 24, 7] (columns first)"
    );
    assert_eq!(
        with("expert_feed_forward_length", 32),
        "tensor `blk.0.ffn_gate_exps.weight` has shape [32, 24, 8], expected [32, 32, 8] (columns first)"
    );
    assert!(with("expert_gating_func", 9).contains("a whole number from 0 to 3"));
    assert!(with("expert_group_count", 3).contains("a divisor of the 8 experts"));
    let metadata = |metadata: &mut Metadata| {
        metadata.insert("qwen3moe.expert_group_count", 8_u32);
        metadata.insert("qwen3moe.expert_group_used_count", 2_u32);
    };
    let error = changed("qwen3moe", |keys, _| metadata(keys)).map(|_| ()).expect_err("too few");
    assert!(error.contains("groups that have the 3 experts of a token"), "{error}");
    for part in ["ffn_gate_exps", "ffn_up_exps", "ffn_down_exps", "ffn_gate_inp"] {
        let name = format!("blk.1.{part}.weight");
        let error = changed("qwen3moe", |_, tensors| tensors.retain(|(info, _)| info.name != name));
        assert_eq!(error.map(|_| ()), Err(format!("tensor `{name}` is missing")));
    }
    let dense = changed("qwen3moe", |metadata, _| {
        let keys: Vec<String> = metadata.iter().map(|(key, _)| key.to_owned()).collect();
        for key in keys {
            if let Some(suffix) = key.strip_prefix("qwen3moe.") {
                let value = metadata.get(&key).expect("it is there").clone();
                metadata.insert(format!("qwen3.{suffix}"), value);
            }
        }
        metadata.insert("general.architecture", "qwen3");
    });
    assert_eq!(
        dense.map(|_| ()).expect_err("not a dense model"),
        "metadata key `qwen3.expert_count` is 8, expected 0: this architecture is known without mixtures of experts"
    );
}

/// Keys of mixtures behind the name of the architecture.
const KEYS: &[&str] = &[
    "expert_count",
    "expert_used_count",
    "expert_feed_forward_length",
    "expert_shared_count",
    "leading_dense_block_count",
    "interleave_moe_layer_step",
    "nextn_predict_layers",
    "expert_shared_feed_forward_length",
    "expert_gating_func",
    "expert_weights_norm",
    "expert_weights_scale",
    "expert_group_count",
    "expert_group_used_count",
    "feed_forward_length",
];

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_keys_and_shapes_never_panic(
        name in prop::sample::select(&MIXTURES),
        changes in prop::collection::vec((prop::sample::select(KEYS), prop_oneof![
            (0_u32..10).prop_map(Value::U32),
            any::<u32>().prop_map(Value::U32),
            any::<f32>().prop_map(Value::F32),
            any::<bool>().prop_map(Value::Bool),
            Just(Value::String("x".into())),
        ]), 0..3),
        reshaped in prop::option::of((any::<prop::sample::Index>(), prop::collection::vec(0_u64..9, 0..4))),
    ) {
        let model = changed(name, |metadata, tensors| {
            let own = metadata.get_str("general.architecture").expect("a name").expect("there").to_owned();
            for (key, value) in changes {
                metadata.insert(format!("{own}.{key}"), value);
            }
            if let Some((which, dims)) = reshaped {
                let which = which.index(tensors.len());
                let (info, data) = &mut tensors[which];
                if let Ok(other) = TensorInfo::new(info.name.clone(), dims, TensorType::F32) {
                    *data = vec![0x3c; usize::try_from(other.bytes()).expect("small")];
                    *info = other;
                }
            }
        });
        if let Ok(model) = model {
            let compute = Compute::new(1).expect("kernels");
            let store = model.kv_store(&KvFormat::F32.into(), &pool()).expect("a store");
            let mut cache = model.new_sequence(&store, 8).expect("a cache");
            let segment = Segment::new(&compute, &[5, 6, 7], &mut cache, LogitsRows::Last).expect("room");
            let _ = model.forward(&compute, &mut Workspace::new(), [segment]);
        }
    }
}

#[test]
fn groups_of_experts_and_other_routers_follow_the_keys() {
    let logits = |change: &dyn Fn(&mut Metadata)| {
        let model = changed("qwen3moe", |metadata, _| change(metadata)).expect("it loads");
        bits(&model, &Compute::new(1).expect("kernels"), &[(&prompt(2, 30), 30)])
    };
    let usual = logits(&|_| ());
    let same = logits(&|metadata| {
        metadata.insert("qwen3moe.expert_group_count", 4_u32);
        metadata.insert("qwen3moe.expert_group_used_count", 4_u32);
        metadata.insert("qwen3moe.expert_gating_func", 1_u32);
        metadata.insert("qwen3moe.expert_weights_scale", 1.0_f32);
    });
    assert!(same == usual);
    for (key, value) in [("expert_gating_func", 2_u32), ("expert_used_count", 2)] {
        assert!(
            logits(&|metadata| drop(metadata.insert(format!("qwen3moe.{key}"), value))) != usual,
            "{key}"
        );
    }
    let grouped = logits(&|metadata| {
        metadata.insert("qwen3moe.expert_group_count", 4_u32);
        metadata.insert("qwen3moe.expert_group_used_count", 2_u32);
    });
    assert!(grouped != usual);
    assert!(logits(&|metadata| drop(metadata.insert("qwen3moe.expert_weights_scale", 2.5_f32))) != usual);
}

#[test]
fn routers_without_finite_logits_are_an_error_and_commit_nothing() {
    let model = changed("qwen3moe", |_, tensors| {
        let router = tensors.iter_mut().find(|(info, _)| info.name == "blk.1.ffn_gate_inp.weight");
        let (_, data) = router.expect("a router");
        data[..4].copy_from_slice(&f32::NAN.to_le_bytes());
    });
    let model = model.expect("values are not checked at load");
    let compute = Compute::new(2).expect("kernels");
    let store = model.kv_store(&KvFormat::F32.into(), &pool()).expect("a store");
    let mut cache = model.new_sequence(&store, 40).expect("a cache");
    let segment = Segment::new(&compute, &[5, 6, 7], &mut cache, LogitsRows::Last).expect("room");
    let error = model.forward(&compute, &mut Workspace::new(), [segment]).map(|_| ()).expect_err("NaN");
    assert_eq!(
        error.to_string(),
        "layer 1 cannot choose experts at position 2 of segment 0: its router gives NaN or infinity; the model file \
         or an adapter is damaged"
    );
    assert_eq!(cache.len(), 0);
}

#[test]
fn recipes_type_stacks_like_feed_forward_matrices_and_leave_routers() {
    let temporary = tempfile::tempdir().expect("a folder");
    let gguf = gguf_of(&folder("qwen2moe"), temporary.path());
    let path = temporary.path().join("quantized.gguf");
    let recipe = Recipe::from_name("Q8_0");
    let mut progress = |_: ruvllm_models::quantize::QuantizeProgress<'_>| ControlFlow::Continue(());
    convert(&gguf, &path, recipe, &ThreadPool::single(), &mut progress).expect("it converts");
    let quantized = Gguf::open(&path).expect("it opens");
    let type_of = |name: &str| quantized.tensor(name).expect(name).tensor_type;
    assert_eq!(type_of("blk.0.ffn_gate_exps.weight"), TensorType::Q8_0);
    assert_eq!(type_of("blk.1.ffn_up_exps.weight"), TensorType::Q8_0);
    assert_eq!(type_of("blk.0.ffn_gate_shexp.weight"), TensorType::Q8_0);
    assert_eq!(type_of("blk.0.ffn_gate_inp.weight"), TensorType::F32);
    assert_eq!(type_of("blk.0.ffn_gate_inp_shexp.weight"), TensorType::F32);
    // Rows of 16 values are not whole quant blocks.
    assert_eq!(type_of("blk.0.ffn_down_exps.weight"), TensorType::F16);
    assert!(Model::load(&quantized, &mut |_| ()).is_ok());
}

#[test]
fn folders_that_are_no_whole_mixture_are_refused() {
    let refused = |key: &str, value: serde_json::Value| {
        let copy = Copy::of_folder(&form("qwen2moe"));
        copy.set(key, value);
        copy.open().map(|_| ()).expect_err(key).to_string()
    };
    assert!(refused("decoder_sparse_step", json!(2)).contains("experts in every layer"));
    assert!(refused("mlp_only_layers", json!([1])).contains("experts in every layer"));
    assert!(refused("num_experts_per_tok", json!(7)).contains("num_experts_per_tok"));
    assert!(refused("num_experts_per_tok", json!(0)).contains("num_experts_per_tok"));
    assert_eq!(
        refused("num_experts", json!(7)),
        "tensor `model.layers.0.mlp.gate.weight` has shape [32, 6], expected [32, 7] (columns first)"
    );
    let copy = Copy::of_folder(&form("olmoe"));
    copy.set("clip_qkv", json!(8.0));
    assert!(copy.open().is_err_and(|error| error.to_string().contains("clip_qkv")));
}

/// Keys and tensors of llama.cpp's converter, but for the factor of cosines and sines, which it
/// computes in the place of reading it.
#[test]
fn layer_norms_biases_and_masked_softmaxes_are_of_phi_moe() {
    let folder = folder("phimoe");
    for name in ["blk.0.attn_norm.bias", "blk.1.ffn_norm.bias", "output_norm.bias", "blk.0.attn_output.bias"]
    {
        assert_eq!(folder.tensor(name).map(|info| info.dims.clone()), Some(vec![32]), "{name}");
    }
    let dims = |name: &str| folder.tensor(name).map(|info| info.dims.clone());
    assert_eq!(dims("output.bias"), Some(vec![72]));
    assert_eq!(dims("rope_factors_short.weight"), Some(vec![4]));
    let real = |key: &str| folder.metadata().get_f32(&format!("phimoe.{key}")).expect("a number");
    assert_eq!(real("rope.scaling.attn_factor"), Some(1.2));
    let model = Model::load(&folder, &mut |_| ()).expect("it loads");
    let decoder = &model.config().decoder;
    assert!(decoder.layer_norms && decoder.unusual_feature().is_some());
    assert_eq!(decoder.experts.as_ref().map(|experts| experts.router.scoring), Some(Scoring::SparseMixer));
    let run = |model: &Model| bits(model, &Compute::new(1).expect("kernels"), &[(&prompt(2, 30), 30)]);
    let usual = run(&model);
    for name in ["blk.0.attn_norm.bias", "blk.1.ffn_norm.bias", "output_norm.bias", "output.bias"] {
        let change = |_: &mut Metadata, tensors: &mut Vec<(TensorInfo, Vec<u8>)>| {
            let bias = tensors.iter_mut().find(|(info, _)| info.name == name).expect("a bias");
            bias.1.fill(0);
        };
        assert!(run(&changed("phimoe", change).expect("it loads")) != usual, "{name}");
    }
    let without = changed("phimoe", |_, tensors| tensors.retain(|(info, _)| info.name != "output_norm.bias"));
    assert_eq!(without.map(|_| ()), Err("tensor `output_norm.bias` is missing".to_owned()));
}

#[test]
fn other_routers_and_scalings_of_phi_moe_are_refused() {
    let refused = |change: &dyn Fn(&Copy)| {
        let copy = Copy::of_folder(&form("phimoe"));
        change(&copy);
        copy.open().map(|_| ()).expect_err("refused").to_string()
    };
    let scaling = |key: &'static str, value: serde_json::Value| {
        refused(&|copy| copy.edit("config.json", |config| config["rope_parameters"][key] = value.clone()))
    };
    assert!(refused(&|copy| copy.set("router_jitter_noise", json!(0.1))).contains("router_jitter_noise"));
    assert!(scaling("long_mscale", json!(1.3)).contains("1.2, the short_mscale"));
    assert!(scaling("short_mscale", json!(null)).contains("short_mscale"));
    assert!(scaling("rope_type", json!("yarn")).contains("`default` or `longrope`"));
    let without = |name: &str| {
        refused(&|copy| {
            let mut weights = copy.weights();
            weights.retain(|weight| weight.name != name);
            copy.write("model.safetensors", &weights);
        })
    };
    for name in ["model.norm.bias", "model.layers.1.post_attention_layernorm.bias", "lm_head.weight"] {
        assert!(without(name).contains(name), "{name}");
    }
    // Without its bias, logits have none.
    let copy = Copy::of_folder(&form("phimoe"));
    let mut weights = copy.weights();
    weights.retain(|weight| weight.name != "lm_head.bias");
    copy.write("model.safetensors", &weights);
    assert!(copy.open().is_ok_and(|folder| folder.tensor("output.bias").is_none()));
    let error = changed("phimoe", |metadata, _| drop(metadata.insert("phimoe.expert_used_count", 3_u32)));
    let error = error.map(|_| ()).expect_err("three experts");
    assert!(error.contains("expert_used_count") && error.contains('2'), "{error}");
}

/// Layers behind the last that predict further tokens are no layers of the model; without the rest
/// of a head they are none of a head.
#[test]
fn prediction_layers_without_a_head_are_left_out() {
    let tokens = prompt(3, 20);
    let run = |model: &Model| bits(model, &Compute::new(1).expect("kernels"), &[(&tokens, 20)]);
    let expected = run(&Model::load(&folder("glm4moe"), &mut |_| ()).expect("it loads"));
    let model = changed("glm4moe", |metadata, tensors| {
        metadata.insert("glm4moe.block_count", 4_u32);
        metadata.insert("glm4moe.nextn_predict_layers", 1_u32);
        let (norm, data) =
            tensors.iter().find(|(info, _)| info.name == "output_norm.weight").expect("a norm");
        let name = "blk.3.attn_norm.weight";
        let info = TensorInfo::new(name, norm.dims.clone(), norm.tensor_type).expect("a tensor");
        tensors.push((info, data.clone()));
    });
    let model = model.expect("it loads");
    assert!(model.prediction_head().is_none());
    assert_eq!(run(&model), expected);
    let copy = Copy::of_folder(&form("glm4moe"));
    let mut weights = copy.weights();
    let mut extra: Vec<_> =
        weights.iter().filter(|weight| weight.name.contains("layers.2.")).cloned().collect();
    extra.iter_mut().for_each(|weight| weight.name = weight.name.replace("layers.2.", "layers.3."));
    weights.append(&mut extra);
    copy.write("model.safetensors", &weights);
    assert_eq!(run(&Model::load(&copy.open().expect("it opens"), &mut |_| ()).expect("it loads")), expected);
    copy.set("num_nextn_predict_layers", json!(0));
    assert!(copy.open().is_err(), "no layer may be left over");
}

#[test]
fn leading_layers_follow_the_keys() {
    let refused = |key: &str, value: u32| {
        let key = format!("glm4moe.{key}");
        changed("glm4moe", |metadata, _| drop(metadata.insert(key, value))).map(|_| ()).expect_err("refused")
    };
    assert!(refused("leading_dense_block_count", 0).contains("blk.0."), "layer 0 has no experts");
    assert!(refused("leading_dense_block_count", 2).contains("blk.1."), "layer 1 has no network");
    assert!(refused("leading_dense_block_count", 3).contains("from 0 to 2"));
    assert!(refused("nextn_predict_layers", 3).contains("from 0 to 2"));
    assert!(refused("expert_shared_count", 2).contains("ffn_gate_shexp"));
    for (field, value, expected) in [
        ("first_k_dense_replace", json!(2), "layers.1.mlp"),
        ("n_shared_experts", json!(2), "shared_experts"),
        ("n_group", json!(9), "n_group"),
        ("topk_group", json!(5), "topk_group"),
        ("use_qk_norm", json!(false), "_norm"),
    ] {
        let copy = Copy::of_folder(&form("glm4moe"));
        copy.set(field, value);
        let refused = copy.open().map(|_| ()).expect_err(field).to_string();
        assert!(refused.contains(expected), "{field}: {refused}");
    }
}
