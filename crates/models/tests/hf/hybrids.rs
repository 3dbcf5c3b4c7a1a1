//! Models with layers that keep a state: files, batches, and bad input. The logits are compared in
//! `forms`.

use gguf_rs_lite::{Array, Gguf, TensorInfo, TensorType, Value};
use ruvllm_kernels::quant::WeightFormat;
use ruvllm_kernels::{Isa, Kernels, ThreadPool};
use ruvllm_models::quantize::{QuantizeOptions, Recipe, quantize};
use ruvllm_models::{Checkpoint, Compute, Model};
use serde_json::{Value as Json, json};

use crate::forms::{TOLERANCE, error};
use crate::mixtures::{bits, changed, folder, form, gguf_of, importance, prompt};
use crate::support::{Copy, Weight, tensors};

const FORMS: [&str; 11] = [
    "qwen35",
    "qwen35moe",
    "lfm2",
    "granitehybrid",
    "granitehybrid_moe",
    "granitehybrid_attention",
    "qwen3next",
    "nemotron_h",
    "nemotron_h_moe",
    "falcon_h1",
    "falcon_h1_normed",
];

fn load(checkpoint: &dyn Checkpoint) -> Model {
    Model::load(checkpoint, &mut |_| ()).expect("it loads")
}

#[test]
fn no_bit_depends_on_files_chunks_batches_or_instruction_sets() {
    FORMS.into_iter().for_each(check_bits);
}

/// The same bits from a file, in any chunks, beside other prompts and for every instruction set.
pub(crate) fn check_bits(name: &str) {
    let [first, second] = [prompt(1, 45), prompt(2, 23)];
    let temporary = tempfile::tempdir().expect("a folder");
    let folder = folder(name);
    let (model, of_file) = (load(&folder), load(&gguf_of(&folder, temporary.path())));
    let compute = Compute::new(1).expect("kernels");
    let expected = bits(&model, &compute, &[(&first, first.len())]);
    assert_eq!(bits(&of_file, &compute, &[(&first, 7)]), expected, "{name}");
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
        let kernels = Kernels::for_isa(isa).expect("an available one");
        let compute = Compute::with(kernels, ThreadPool::new(2).expect("threads"));
        for prompts in [&[(&first[..], 1)][..], &[(&first, 16), (&second, 5)]] {
            assert_eq!(bits(&model, &compute, prompts), expected, "{name} {isa}");
        }
    }
}

#[test]
fn convolutions_are_not_quantized() {
    for (name, convolution) in [
        ("qwen35", "ssm_conv1d.weight"),
        ("lfm2", "shortconv.conv.weight"),
        ("granitehybrid_moe", "ssm_conv1d.weight"),
    ] {
        let temporary = tempfile::tempdir().expect("a folder");
        let (gguf, path) = (gguf_of(&folder(name), temporary.path()), temporary.path().join("small.gguf"));
        let (recipe, pool) = (Recipe::from_name("Q8_0").expect("a recipe"), ThreadPool::single());
        let mut progress =
            |_: ruvllm_models::quantize::QuantizeProgress<'_>| std::ops::ControlFlow::Continue(());
        quantize(&gguf, &path, recipe, &QuantizeOptions::default(), &pool, &mut progress).expect("written");
        let small = Gguf::open(&path).expect("it opens");
        let found = |part: &str| small.tensor(&format!("blk.0.{part}")).expect("the tensor").tensor_type;
        let network = if name == "granitehybrid_moe" { "ffn_up_shexp.weight" } else { "ffn_up.weight" };
        assert_eq!((found(convolution), found(network)), (TensorType::F32, TensorType::Q8_0), "{name}");
        load(&small);
    }
}

#[test]
fn configurations_of_other_layers_are_refused() {
    let three = |kind: &str| json!([kind, "full_attention", kind, kind]);
    for (name, field, value, expected) in [
        ("qwen35", "layer_types", three("sliding_attention"), "`full_attention` or `linear_attention`"),
        ("qwen35", "layer_types", json!(["full_attention"]), "each of 4 layers"),
        ("qwen35", "linear_num_value_heads", json!(5), "a multiple of the 2 heads"),
        ("qwen35", "linear_conv_kernel_dim", json!(9), "from 1 to 8"),
        ("qwen35", "linear_key_head_dim", json!(2048), "from 1 to 1024"),
        ("qwen3next", "linear_num_value_heads", json!(5), "a multiple of the 2 heads"),
        ("qwen3next", "linear_num_key_heads", json!(3), "linear_attn.conv1d"),
        ("qwen3next", "decoder_sparse_step", json!(2), "experts in every layer"),
        ("lfm2", "layer_types", three("linear_attention"), "`full_attention` or `conv`"),
        ("lfm2", "conv_bias", json!(true), "conv_bias"),
        ("lfm2", "block_ffn_dim_multiplier", json!(1e5), "a width of at most"),
        ("lfm2", "block_ffn_dim_multiplier", json!(1e300), "a width of at most"),
        ("granitehybrid", "layer_types", three("conv"), "`attention` or `mamba` for each of 4 layers"),
        ("granitehybrid", "layer_types", json!(vec!["mamba"; 4]), "`layer_types` is"),
        ("granitehybrid", "layer_types", json!(null), "`layer_types` is missing"),
        ("granitehybrid", "mamba_n_groups", json!(3), "a divisor of the 4 heads of mamba_n_heads"),
        ("granitehybrid", "mamba_n_heads", json!(6), "`mamba_n_heads` is 6, expected as many heads"),
        ("granitehybrid", "mamba_d_head", json!(10), "as make 80, mamba_expand times hidden_size"),
        ("granitehybrid", "mamba_d_head", json!("wide"), "mamba_d_head"),
        ("granitehybrid", "mamba_expand", json!(1 << 20), "mamba_expand"),
        ("granitehybrid", "mamba_d_state", json!(2048), "from 1 to 1024"),
        ("granitehybrid", "mamba_d_state", json!(13), "layers.0.mamba"),
        ("granitehybrid", "mamba_d_conv", json!(1), "layers.0.mamba.conv1d"),
        ("granitehybrid", "time_step_limit", json!([0.0, 0.1]), "time steps are not limited"),
        ("granitehybrid", "position_embedding_type", json!("alibi"), "`rope`, or `nope`"),
        ("granitehybrid", "shared_intermediate_size", json!(null), "shared_intermediate_size"),
        ("granitehybrid", "num_local_experts", json!(4), "num_experts_per_tok"),
        ("granitehybrid_moe", "num_local_experts", json!(0), "block_sparse_moe"),
        ("granitemoe", "num_local_experts", json!(0), "from 1 to"),
        ("nemotron_h", "num_hidden_layers", json!(5), "`num_hidden_layers` is 5, expected 6, the layers of"),
        ("nemotron_h", "layers_block_type", json!(["mamba", "conv"]), "`mamba`, `attention`, `mlp` or `moe`"),
        ("nemotron_h", "layers_block_type", json!("M*x"), "a pattern of `M`, `*`, `-` and `E`"),
        ("nemotron_h", "layers_block_type", json!("M-M-M-"), "at least one has attention"),
        ("nemotron_h", "layers_block_type", json!("*-*-*-"), "at least one has Mamba-2"),
        ("nemotron_h", "layers_block_type", json!("M*M*MM"), "at least one has a network or experts"),
        ("nemotron_h", "layers_block_type", json!("M-*EM-"), "not both"),
        ("nemotron_h", "layers_block_type", json!("-M*-M-"), "layers.0.mixer"),
        ("nemotron_h", "layers_block_type", json!(null), "`layers_block_type` is missing"),
        ("nemotron_h", "n_groups", json!(3), "a divisor of the 8 heads of mamba_num_heads"),
        ("nemotron_h", "mamba_head_dim", json!(1 << 20), "at most 131072 for 8 heads"),
        ("nemotron_h", "mlp_hidden_act", json!("silu"), "one of relu2"),
        ("nemotron_h", "mamba_hidden_act", json!("gelu"), "silu, swish"),
        ("nemotron_h", "num_key_value_heads", json!(3), "a divisor of the 4 attention heads"),
        ("nemotron_h_moe", "moe_latent_size", json!(16), "experts of latents cannot be computed"),
        ("nemotron_h_moe", "num_experts_per_tok", json!(9), "num_experts_per_tok"),
        ("falcon_h1", "mamba_n_heads", json!(5), "a divisor of the 5 heads of mamba_n_heads"),
        ("falcon_h1", "mamba_d_ssm", json!(50), "as many heads of mamba_d_head 8 as make 50, mamba_d_ssm"),
        ("falcon_h1", "mamba_rms_norm", json!(true), "norms before the gate cannot be computed"),
        ("falcon_h1", "ssm_multipliers", json!([1.0, 2.0]), "5 numbers"),
        ("falcon_h1", "mlp_multipliers", json!([0.0, 2.0]), "2 numbers, each a number from"),
        ("falcon_h1", "key_multiplier", json!(-1.0), "key_multiplier"),
        ("falcon_h1_normed", "mamba_rms_norm", json!(false), "mamba.norm"),
    ] {
        let copy = Copy::of_folder(&form(name));
        copy.set(field, value);
        let refused = copy.open().map(|_| ()).expect_err(field).to_string();
        assert!(refused.contains(expected), "{name} {field}: {refused}");
    }
    // A cache needs a layer with attention.
    let copy = Copy::of_folder(&form("lfm2"));
    copy.set("layer_types", Json::from(vec!["conv"; 4]));
    let weights: Vec<Weight> =
        copy.weights().into_iter().filter(|weight| !weight.name.contains("layers.1.")).collect();
    copy.write("model.safetensors", &weights);
    assert!(copy.open().is_err(), "layer 1 has no convolution");
}

#[test]
fn weights_of_other_layers_are_refused() {
    let refused = |name: &str, change: &dyn Fn(&mut Vec<Weight>)| {
        let copy = Copy::of_folder(&form(name));
        let mut weights = copy.weights();
        change(&mut weights);
        copy.write("model.safetensors", &weights);
        copy.open().map(|_| ()).expect_err("refused").to_string()
    };
    for (name, part) in [
        ("qwen35", "layers.0.linear_attn.A_log"),
        ("qwen35", "layers.2.linear_attn.conv1d.weight"),
        ("qwen35moe", "layers.0.linear_attn.dt_bias"),
        ("qwen3next", "layers.0.linear_attn.in_proj_qkvz.weight"),
        ("qwen3next", "layers.2.linear_attn.in_proj_ba.weight"),
        ("lfm2", "layers.3.conv.in_proj.weight"),
        ("granitehybrid", "layers.0.mamba.in_proj.weight"),
        ("granitehybrid", "layers.0.mamba.A_log"),
        ("granitehybrid", "layers.2.mamba.D"),
        ("granitehybrid", "layers.3.mamba.dt_bias"),
        ("granitehybrid", "layers.3.mamba.norm.weight"),
        ("granitehybrid", "layers.2.mamba.conv1d.weight"),
        ("granitehybrid", "layers.1.shared_mlp.input_linear.weight"),
        ("granitehybrid_moe", "layers.1.shared_mlp.output_linear.weight"),
        ("granitehybrid_moe", "layers.1.block_sparse_moe.router.layer.weight"),
        ("granitehybrid_moe", "layers.2.block_sparse_moe.input_linear.weight"),
        ("granitehybrid_moe", "layers.2.block_sparse_moe.output_linear.weight"),
        ("nemotron_h", "layers.0.mixer.in_proj.weight"),
        ("nemotron_h", "layers.1.mixer.up_proj.weight"),
        ("nemotron_h", "layers.2.mixer.q_proj.weight"),
        ("nemotron_h", "layers.4.mixer.D"),
        ("nemotron_h", "layers.5.norm.weight"),
        ("nemotron_h_moe", "layers.1.mixer.gate.weight"),
        ("nemotron_h_moe", "layers.3.mixer.gate.e_score_correction_bias"),
        ("nemotron_h_moe", "layers.3.mixer.experts.7.up_proj.weight"),
        ("nemotron_h_moe", "layers.1.mixer.shared_experts.down_proj.weight"),
        ("falcon_h1", "layers.1.mamba.in_proj.weight"),
        ("falcon_h1", "layers.1.self_attn.o_proj.weight"),
        ("falcon_h1", "layers.0.pre_ff_layernorm.weight"),
        ("falcon_h1", "layers.0.feed_forward.gate_proj.weight"),
        ("falcon_h1_normed", "layers.0.mamba.norm.weight"),
    ] {
        let found = refused(name, &|weights| weights.retain(|weight| !weight.name.ends_with(part)));
        assert!(found.contains(part), "{name}: {found}");
        let found = refused(name, &|weights| {
            let weight = weights.iter_mut().find(|weight| weight.name.ends_with(part)).expect("a tensor");
            let rows = weight.shape[0];
            weight.data.truncate(weight.data.len() / rows * (rows - 1));
            weight.shape[0] -= 1;
        });
        assert!(found.contains(part), "{name}: {found}");
    }
}

#[test]
fn keys_of_other_layers_are_refused() {
    let refused = |name: &str, key: &str, value: Value| {
        changed(name, |metadata, _| drop(metadata.insert(format!("{name}.{key}"), value))).expect_err(key)
    };
    let layers = |layers: &[bool]| Value::Array(Array::Bool(layers.to_vec()));
    for (key, value, expected) in [
        ("attention.recurrent_layers", layers(&[true; 4]), "at least one has attention"),
        ("attention.recurrent_layers", layers(&[true, false]), "an array of 4"),
        ("ssm.time_step_rank", 5_u32.into(), "a multiple of the 2 heads"),
        ("ssm.inner_size", 95_u32.into(), "a multiple of the 6 heads"),
        ("ssm.conv_kernel", 1_u32.into(), "from 2 to 8"),
        ("ssm.state_size", 4096_u32.into(), "from 1 to 1024"),
    ] {
        let found = refused("qwen35", key, value);
        assert!(found.contains(expected), "{key}: {found}");
    }
    for (key, value, expected) in [
        ("ssm.time_step_rank", 5_u32, "a multiple of the 2 heads"),
        ("ssm.group_count", 3, "has shape [32, 128]"),
        ("nextn_predict_layers", 3, "from 0 to 2"),
    ] {
        let found = refused("qwen3next", key, value.into());
        assert!(found.contains(expected), "{key}: {found}");
    }
    let heads = |heads: &[i32]| Value::Array(Array::I32(heads.to_vec()));
    for (value, expected) in [
        (heads(&[0, 2, 0]), "an array of 4"),
        (heads(&[0, 2, 4, 0]), "one number of heads"),
        (heads(&[0; 4]), "one number of heads"),
    ] {
        for name in ["lfm2", "granitehybrid"] {
            let found = refused(name, "attention.head_count_kv", value.clone());
            assert!(found.contains(expected), "{name}: {found}");
        }
    }
    for (key, value, expected) in [
        ("ssm.group_count", 3_u32, "a divisor of the 4 heads"),
        ("ssm.inner_size", 82, "a multiple of the 4 heads"),
        ("ssm.time_step_rank", 0, "from 1 to"),
        ("ssm.state_size", 1025, "from 1 to 1024"),
        ("ssm.state_size", 8, "`blk.0.ssm_in.weight` has shape"),
        ("ssm.conv_kernel", 9, "from 2 to 8"),
        ("expert_count", 4, "expert_used_count"),
    ] {
        let found = refused("granitehybrid", key, value.into());
        assert!(found.contains(expected), "{key}: {found}");
    }
    let widths = |widths: &[u32]| Value::Array(Array::U32(widths.to_vec()));
    for (key, value, expected) in [
        ("feed_forward_length", 48_u32.into(), "expected an array of 6"),
        ("feed_forward_length", widths(&[0, 48, 0]), "an array of 6"),
        ("feed_forward_length", widths(&[0, 48, 48, 48, 0, 48]), "0 in layer 2, which has heads"),
        ("feed_forward_length", widths(&[0, 48, 0, 48, 0, 1 << 21]), "whole numbers from 0 to"),
        ("feed_forward_length", widths(&[0; 6]), "a layer with a network"),
        ("feed_forward_length", widths(&[0, 48, 0, 0, 0, 48]), "`blk.3.ssm_in.weight` is missing"),
        ("attention.head_count_kv", heads(&[0; 6]), "one number of heads"),
        ("ssm.group_count", 3_u32.into(), "a divisor of the 8 heads"),
    ] {
        let found = refused("nemotron_h", key, value);
        assert!(found.contains(expected), "{key}: {found}");
    }
    let found = refused("nemotron_h_moe", "moe_latent_size", 8_u32.into());
    assert!(found.contains("experts of latents cannot be computed"), "{found}");
    for (form, parts) in [
        (
            "granitehybrid",
            &["ssm_in.weight", "ssm_a", "ssm_d", "ssm_dt.bias", "ssm_norm.weight", "ssm_out.weight"][..],
        ),
        ("qwen3next", &["attn_qkv.weight", "attn_gate.weight", "ssm_ba.weight", "ssm_a", "ssm_norm.weight"]),
    ] {
        for part in parts {
            let name = format!("blk.2.{part}");
            let found = changed(form, |_, tensors| tensors.retain(|(info, _)| info.name != name));
            assert_eq!(found.map(|_| ()), Err(format!("tensor `{name}` is missing")));
        }
    }
}

#[test]
fn tensors_of_layers_of_other_parts_are_refused() {
    for (form, name) in [
        ("nemotron_h", "blk.1.attn_norm.weight"),
        ("nemotron_h", "blk.1.ffn_up.weight"),
        ("nemotron_h", "blk.2.attn_q.weight"),
        ("nemotron_h", "blk.4.ssm_norm.weight"),
        ("nemotron_h_moe", "blk.1.ffn_up_exps.weight"),
        ("nemotron_h_moe", "blk.3.ffn_down_shexp.weight"),
        ("falcon_h1", "blk.1.ssm_in.weight"),
        ("falcon_h1", "blk.1.attn_k.weight"),
        ("falcon_h1", "blk.0.ffn_norm"),
        ("falcon_h1", "blk.0.ffn_gate.weight"),
    ] {
        let found = changed(form, |_, tensors| tensors.retain(|(info, _)| info.name != name));
        assert_eq!(found.map(|_| ()), Err(format!("tensor `{name}` is missing")));
    }
    for (form, name) in [
        ("nemotron_h", "blk.1.ffn_gate.weight"),
        ("nemotron_h", "blk.0.ffn_norm.weight"),
        ("nemotron_h_moe", "blk.1.ffn_gate_exps.weight"),
        ("falcon_h1", "blk.0.attn_q_norm.weight"),
    ] {
        let found = changed(form, |_, tensors| {
            let (info, data) = tensors
                .iter()
                .find(|(info, _)| {
                    info.name.ends_with("ffn_down.weight") || info.name.ends_with("ffn_down_exps.weight")
                })
                .expect("a network");
            let info = TensorInfo::new(name.to_owned(), info.dims.clone(), info.tensor_type).expect("valid");
            let data = data.clone();
            tensors.push((info, data));
        });
        assert!(found.map(|_| ()).expect_err(name).contains(name), "{name}");
    }
}

/// llama.cpp's converter made the files (`make.py convert`).
#[test]
fn mamba_tensors_are_those_of_llama_cpp() {
    assert_converted(&["granitehybrid", "granitehybrid_moe"]);
    // Its keys too; of the other folder the converter takes it that hybrid models never rotate.
    let converted = Gguf::open(form("granitehybrid").join("converted.gguf")).expect("it opens");
    let error = error(&converted, &form("granitehybrid"), 7);
    assert!(error <= 10.0 * TOLERANCE, "decays are rounded to 11 bits: {error}");
}

/// Tensors and keys of the converter's files are those of folders: its keys beside the folder's
/// tensors compute the same bits.
#[test]
fn files_of_llama_cpp_are_those_of_folders() {
    const FORMS: &[&str] = &["qwen3next", "nemotron_h", "nemotron_h_moe", "falcon_h1"];
    assert_converted(FORMS);
    for name in FORMS {
        let converted = Gguf::open(form(name).join("converted.gguf")).expect("it opens");
        load(&converted);
        let with_its_keys = changed(name, |metadata, _| metadata.clone_from(converted.metadata()));
        assert_eq!(logits(&with_its_keys.expect("it loads")), logits(&load(&folder(name))), "{name}");
    }
}

/// Checks that folders have the tensors of the files that llama.cpp's converter made of them.
fn assert_converted(names: &[&str]) {
    for name in names {
        let converted = Gguf::open(form(name).join("converted.gguf")).expect("it opens");
        let (mut found, mut expected) = (tensors(&folder(name)), tensors(&converted));
        found.sort_by(|a, b| a.0.name.cmp(&b.0.name));
        expected.sort_by(|a, b| a.0.name.cmp(&b.0.name));
        assert_eq!(found.len(), expected.len(), "{name}");
        for ((found, data), (expected, reference)) in found.iter().zip(&expected) {
            // Readers take a matrix of one row for a vector.
            let dims =
                |info: &TensorInfo| info.dims.iter().copied().filter(|&dim| dim > 1).collect::<Vec<_>>();
            let key = |info: &TensorInfo| (info.name.clone(), dims(info), info.tensor_type);
            assert_eq!(key(found), key(expected), "{name}");
            // The converter takes exponentials, and adds one to norms, in F16 as the folder has.
            let is_exponential = found.name.ends_with("ssm_a");
            if is_exponential || *name == "qwen3next" && found.name.ends_with("norm.weight") {
                for (found, expected) in floats(data).zip(floats(reference)) {
                    assert!((found - expected).abs() <= 5e-4 * expected.abs(), "{name}");
                    assert!(!is_exponential || found < 0.0, "{name}");
                }
            } else if *name == "falcon_h1" && found.name.ends_with("ssm_in.weight") {
                // Two factors, after each of which the converter rounds numbers near 0 to F16.
                for (found, expected) in halves(data).into_iter().zip(halves(reference)) {
                    assert!((found - expected).abs() <= 1.2e-7, "{name}");
                }
            } else {
                assert!(data == reference, "{name} {}: other bytes", found.name);
            }
        }
    }
}

/// Projections of the first files of Qwen3-Next are one tensor, as in folders.
#[test]
fn interleaved_projections_are_taken_apart() {
    let expected = logits(&load(&folder("qwen3next")));
    let weights = Copy::of_folder(&form("qwen3next")).weights();
    let model = changed("qwen3next", |_, tensors| {
        for layer in [0, 2] {
            let name = format!("blk.{layer}.attn_qkv.weight");
            let (info, data) = tensors.iter_mut().find(|(info, _)| info.name == name).expect("a tensor");
            let stored = format!("model.layers.{layer}.linear_attn.in_proj_qkvz.weight");
            let weight = weights.iter().find(|weight| weight.name == stored).expect("a weight");
            let dims = [weight.shape[1] as u64, weight.shape[0] as u64];
            *info =
                TensorInfo::new(format!("blk.{layer}.ssm_in.weight"), dims, info.tensor_type).expect("valid");
            data.clone_from(&weight.data);
        }
        tensors.retain(|(info, _)| !info.name.ends_with("attn_gate.weight"));
    });
    assert_eq!(logits(&model.expect("it loads")), expected);
}

/// Arrays have entries for layers that predict further tokens.
#[test]
fn arrays_of_layers_may_go_beyond_the_last() {
    let model = changed("qwen3next", |metadata, tensors| {
        metadata.insert("qwen3next.block_count", 4_u32);
        metadata.insert("qwen3next.nextn_predict_layers", 1_u32);
        let layers = Value::Array(Array::Bool(vec![true, false, true, false]));
        metadata.insert("qwen3next.attention.recurrent_layers", layers);
        let info = TensorInfo::new("blk.3.attn_norm.weight", [1], TensorType::F32).expect("valid");
        tensors.push((info, vec![0; 4]));
    });
    assert_eq!(logits(&model.expect("it loads")), logits(&load(&folder("qwen3next"))));
}

fn floats(bytes: &[u8]) -> impl Iterator<Item = f32> {
    bytes.as_chunks::<4>().0.iter().map(|&bytes| f32::from_le_bytes(bytes))
}

fn halves(bytes: &[u8]) -> Vec<f32> {
    let mut values = vec![0.0; bytes.len() / 2];
    WeightFormat::F16.dequantize(bytes, &mut values);
    values
}

/// Bits of the logits of a prompt.
fn logits(model: &Model) -> Vec<u32> {
    bits(model, &Compute::new(1).expect("kernels"), &[(&prompt(4, 30), 30)])
}

#[test]
fn published_configurations_have_other_names() {
    let expected = logits(&load(&folder("granitehybrid")));
    let copy = Copy::of_folder(&form("granitehybrid"));
    copy.set("layer_types", json!(["mamba", "attention", "mamba", "mamba"]));
    copy.set("mamba_d_head", json!("auto"));
    copy.set("position_embedding_type", json!("nope"));
    copy.edit("config.json", |config| {
        config.remove("time_step_limit");
        config.remove("mamba_expand");
    });
    assert_eq!(logits(&load(&copy.open().expect("it opens"))), expected);
    copy.set("position_embedding_type", json!("rope"));
    assert_ne!(logits(&load(&copy.open().expect("it opens"))), expected, "queries and keys rotate");
}

/// The first folders have a letter for each layer, and infinity that is no JSON.
#[test]
fn the_first_folders_of_nemotron_have_other_fields() {
    let expected = logits(&load(&folder("nemotron_h")));
    let copy = Copy::of_folder(&form("nemotron_h"));
    copy.edit("config.json", |config| {
        config.remove("layers_block_type");
        let head_dim = config.remove("head_dim").expect("a width");
        config.insert("attention_head_dim".into(), head_dim);
        config.insert("hybrid_override_pattern".into(), json!("M-*-M-"));
        config.insert("num_hidden_layers".into(), json!(6));
        config.insert("time_step_limit".into(), json!("here"));
    });
    let text = std::fs::read_to_string(copy.path("config.json")).expect("a file");
    std::fs::write(copy.path("config.json"), text.replace("\"here\"", "[0.0, Infinity]")).expect("written");
    assert_eq!(logits(&load(&copy.open().expect("it opens"))), expected);
}

/// transformers 5 stores the matrices of all experts in one tensor on request.
#[test]
fn experts_without_a_gate_may_be_one_tensor() {
    let expected = logits(&load(&folder("nemotron_h_moe")));
    let copy = Copy::of_folder(&form("nemotron_h_moe"));
    let mut weights = copy.weights();
    for layer in [1, 3] {
        for part in ["up_proj", "down_proj"] {
            let prefix = format!("backbone.layers.{layer}.mixer.experts.");
            let single = |expert: usize| format!("{prefix}{expert}.{part}.weight");
            let take =
                |expert| weights.iter().find(|weight| weight.name == single(expert)).expect("a matrix");
            let mut data = Vec::new();
            (0..8).for_each(|expert| data.extend_from_slice(&take(expert).data));
            let (dtype, mut shape) = (take(0).dtype, vec![8]);
            shape.extend(&take(0).shape);
            weights.retain(|weight| {
                !(weight.name.starts_with(&prefix) && weight.name.ends_with(&format!(".{part}.weight")))
            });
            weights.push(Weight { name: format!("{prefix}{part}"), dtype, shape, data });
        }
    }
    copy.write("model.safetensors", &weights);
    assert_eq!(logits(&load(&copy.open().expect("it opens"))), expected);
}

/// Keys and values are those of layers with attention, states those of layers with Mamba-2.
#[test]
fn caches_and_states_are_those_of_the_layers_that_have_them() {
    for (name, kv_layers, state_layers, values) in [
        ("nemotron_h", 1, 2, 3 * 112 + 64 * 12),
        ("nemotron_h_moe", 1, 2, 3 * 112 + 64 * 12),
        ("falcon_h1", 2, 2, 3 * 96 + 48 * 12),
        ("falcon_h1_normed", 1, 1, 3 * 96 + 48 * 12),
    ] {
        let model = load(&folder(name));
        let config = model.config();
        assert_eq!(config.kv_shape().n_layers, kv_layers, "{name}");
        assert_eq!(config.state_values(), state_layers * values, "{name}");
        assert!(config.decoder.unusual_feature().is_some(), "{name}");
        let base = config.adapter_base();
        assert_eq!(
            (base.query_dim, base.ffn_dim),
            (0, 0),
            "{name}: adapters of their projections are refused"
        );
    }
}

/// Both outputs of a layer with two mixers have importance, each of its own inputs.
#[test]
fn outputs_side_by_side_have_their_own_importance() {
    let (folder, compute) = (folder("falcon_h1"), Compute::new(1).expect("kernels"));
    let importance = importance(&folder, &compute, &prompt(3, 20));
    let columns = |tensor: &str| importance.means(tensor).map(|means| means.len());
    assert_eq!(columns("blk.1.ssm_out.weight"), Some(48));
    assert_eq!(columns("blk.1.attn_output.weight"), Some(32));
    assert_eq!(importance.means("blk.1.ssm_in.weight"), importance.means("blk.1.attn_q.weight"));
}

/// Factors that are no powers of two are rounded to the type of the folder once.
#[test]
fn factors_are_in_the_weights_of_files() {
    let copy = Copy::of_folder(&form("falcon_h1"));
    copy.set("key_multiplier", json!(0.3));
    copy.set("ssm_multipliers", json!([0.7, 1.0, 1.0, 1.0, 1.1]));
    let (plain, scaled) = (tensors(&folder("falcon_h1")), tensors(&copy.open().expect("it opens")));
    for ((info, before), (_, after)) in plain.iter().zip(&scaled) {
        // Rows of gates, and of time steps; 2, 4, 1, 0.5 and 0.25 before.
        let factor = |row: usize| match info.name.as_str() {
            name if name.ends_with("attn_k.weight") => 0.3 / 0.5,
            name if name.ends_with("ssm_in.weight") => match row {
                0..48 => 0.7 / 2.0,
                48..96 => 1.0 / 4.0,
                96..120 => 1.0,
                120..144 => 1.0 / 0.5,
                _ => 1.1 / 0.25,
            },
            _ => 1.0,
        };
        if info.tensor_type != TensorType::F16 {
            assert_eq!(before, after, "{}", info.name);
            continue;
        }
        let columns = info.dims[0] as usize;
        for (i, (before, after)) in halves(before).into_iter().zip(halves(after)).enumerate() {
            let expected = before * factor(i / columns);
            assert!((after - expected).abs() <= 6e-4 * expected.abs() + 1e-7, "{} {i}", info.name);
        }
    }
    // The embedding makes the logits with another factor than that of its own.
    let names =
        |name: &str| tensors(&folder(name)).into_iter().map(|(info, _)| info.name).collect::<Vec<_>>();
    assert!(names("falcon_h1_normed").contains(&"output.weight".to_owned()));
}

/// Caches that store keys before RoPE count the layers with attention.
#[test]
fn masks_of_layers_that_do_not_rotate_are_those_of_the_cache() {
    for (name, still) in [("granitehybrid", Some(vec![true])), ("granitehybrid_moe", None)] {
        let model = load(&folder(name));
        assert_eq!(model.kv_ropes().local.map(|(_, layers)| layers), still, "{name}");
        assert_eq!(model.config().kv_shape().n_layers, 1, "{name}");
    }
}

/// The logits depend on what states keep of earlier tokens, and on each tensor.
#[test]
fn every_part_of_mamba_counts() {
    let expected = logits(&load(&folder("granitehybrid")));
    for part in ["ssm_a", "ssm_d", "ssm_dt.bias", "ssm_norm.weight", "ssm_conv1d.weight", "ssm_conv1d.bias"] {
        let model = changed("granitehybrid", |_, tensors| {
            let tensor = tensors.iter_mut().find(|(info, _)| info.name == format!("blk.3.{part}"));
            let (_, data) = tensor.expect("a tensor");
            // Decays near 0 forget all tokens before the present one.
            let value = if part == "ssm_a" { -1e6_f32 } else { 0.25 };
            data.as_chunks_mut::<4>().0.iter_mut().for_each(|bytes| *bytes = value.to_le_bytes());
        });
        assert_ne!(logits(&model.expect("it loads")), expected, "{part}");
    }
}
