//! gpt-oss: names and keys of its files, experts in MXFP4, attention sinks, and bad input. The
//! logits are compared in `forms`.

use gguf_rs_lite::{Gguf, TensorInfo, TensorType};
use ruvllm_kernels::ThreadPool;
use ruvllm_kernels::quant::WeightFormat;
use ruvllm_kernels::rope::RopeScaling;
use ruvllm_models::quantize::{InSitu, Recipe, convert};
use ruvllm_models::{Activation, Checkpoint, Compute, Model, Scoring};
use safetensors::Dtype;
use serde_json::json;

use crate::mixtures::{bits, changed, folder, form, gguf_of, prompt};
use crate::support::{Copy, Weight};

/// Values of the quants of MXFP4 (OCP microscaling, E2M1).
const E2M1: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

fn copy(name: &str) -> Copy {
    Copy::of_folder(&form(name))
}

fn f32_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// Error of a copy with other weights.
fn refused(name: &str, change: impl FnOnce(&mut Vec<Weight>)) -> String {
    let copy = copy(name);
    let mut weights = copy.weights();
    change(&mut weights);
    copy.write("model.safetensors", &weights);
    copy.open().map(|_| ()).expect_err("refused").to_string()
}

#[track_caller]
fn named<'a>(weights: &'a mut [Weight], name: &str) -> &'a mut Weight {
    weights.iter_mut().find(|weight| weight.name == name).expect("a tensor")
}

/// The form in MXFP4 with the experts in floats, transposed, as transformers computes with them.
fn dequantized() -> Copy {
    let copy = copy("gpt_oss_mxfp4");
    let weights = copy.weights();
    let is_part = |weight: &&Weight| weight.name.ends_with("_blocks") || weight.name.ends_with("_scales");
    let mut floats: Vec<Weight> = weights.iter().filter(|weight| !is_part(weight)).cloned().collect();
    for blocks in weights.iter().filter(|weight| weight.name.ends_with("_blocks")) {
        let name = blocks.name.strip_suffix("_blocks").expect("blocks");
        let scales = weights.iter().find(|weight| weight.name == format!("{name}_scales")).expect("scales");
        let [experts, rows, n_blocks, _] = blocks.shape[..] else { panic!("{:?}", blocks.shape) };
        let columns = 32 * n_blocks;
        let mut values = vec![0.0; experts * columns * rows];
        for (i, byte) in blocks.data.iter().enumerate() {
            let scale = 2.0_f32.powi(i32::from(scales.data[i / 16]) - 127);
            for (half, quant) in [byte & 15, byte >> 4].into_iter().enumerate() {
                let (expert, row, column) =
                    (i / 16 / n_blocks / rows, i / 16 / n_blocks % rows, (2 * i + half) % columns);
                values[(expert * columns + column) * rows + row] = scale * E2M1[usize::from(quant)];
            }
        }
        let (name, shape) = (name.to_owned(), vec![experts, columns, rows]);
        floats.push(Weight { name, dtype: Dtype::F32, shape, data: f32_bytes(&values) });
    }
    copy.write("model.safetensors", &floats);
    copy.edit("config.json", |config| drop(config.remove("quantization_config")));
    copy
}

fn values(checkpoint: &dyn Checkpoint, info: &TensorInfo) -> Vec<f32> {
    let format = ruvllm_models::weight_format(info.tensor_type).expect("a format");
    let mut values = vec![0.0; info.elements() as usize];
    format.dequantize(checkpoint.data(info).expect("data").as_ref(), &mut values);
    values
}

#[test]
fn experts_in_mxfp4_are_those_in_floats() {
    let copy = dequantized();
    let (packed, floats) = (folder("gpt_oss_mxfp4"), copy.open().expect("it opens"));
    assert_eq!(packed.metadata().get_u64("general.file_type").ok(), Some(Some(38)));
    assert_eq!(packed.tensors().count(), floats.tensors().count());
    for info in packed.tensors() {
        let other = floats.tensor(&info.name).expect("the tensor");
        assert_eq!(info.dims, other.dims, "{}", info.name);
        let is_stack = info.name.ends_with("_exps.weight");
        assert_eq!(info.tensor_type == TensorType::MXFP4, is_stack, "{}", info.name);
        assert!(values(&packed, info) == values(&floats, other), "{}", info.name);
    }
    let (compute, tokens) = (Compute::new(1).expect("kernels"), prompt(3, 40));
    let logits = |checkpoint: &dyn Checkpoint| {
        let pool = ThreadPool::single();
        let recipe = Recipe::from_name("F32").expect("a recipe");
        let floats = InSitu::new(checkpoint, recipe, &pool).expect("types");
        let model = Model::load(&floats, &mut |_| ()).expect("it loads");
        bits(&model, &compute, &[(&tokens, 40)])
    };
    assert!(logits(&packed) == logits(&floats));
}

/// Inputs of 8 bits move logits of deviation 1.4 by less than a fifth of it.
#[test]
fn logits_of_mxfp4_are_close_to_those_of_floats() {
    let (compute, tokens) = (Compute::new(1).expect("kernels"), prompt(4, 40));
    let floats = dequantized();
    let logits = |checkpoint: &dyn Checkpoint| {
        let model = Model::load(checkpoint, &mut |_| ()).expect("it loads");
        bits(&model, &compute, &[(&tokens, 40)]).into_iter().map(f32::from_bits).collect::<Vec<_>>()
    };
    let (found, expected) = (logits(&folder("gpt_oss_mxfp4")), logits(&floats.open().expect("it opens")));
    let square = |difference: f32| f64::from(difference * difference);
    let error: f64 = found.iter().zip(&expected).map(|(a, b)| square(a - b)).sum();
    let deviation = (error / found.len() as f64).sqrt();
    println!("root mean square difference {deviation:.1e}");
    assert!(deviation > 0.0 && deviation < 0.3, "{deviation}");
}

/// Names, shapes and keys are those that llama.cpp requires for the architecture.
#[test]
fn files_have_the_names_that_llama_cpp_loads() {
    let temporary = tempfile::tempdir().expect("a folder");
    let gguf = gguf_of(&folder("gpt_oss"), temporary.path());
    let metadata = gguf.metadata();
    let number = |key: &str| metadata.get_u64(&format!("gpt-oss.{key}")).ok().flatten();
    for (key, value) in [
        ("block_count", 2),
        ("attention.key_length", 8),
        ("attention.value_length", 8),
        ("attention.sliding_window", 12),
        ("expert_count", 6),
        ("expert_used_count", 3),
        ("expert_feed_forward_length", 32),
        ("rope.scaling.original_context_length", 32),
    ] {
        assert_eq!(number(key), Some(value), "{key}");
    }
    assert_eq!(metadata.get_str("gpt-oss.rope.scaling.type").ok(), Some(Some("yarn")));
    assert_eq!(metadata.get_f32("gpt-oss.rope.scaling.factor").ok(), Some(Some(8.0)));
    // Every second layer, which llama.cpp assumes, needs no key.
    assert!(!metadata.contains("gpt-oss.attention.sliding_window_pattern"));
    let (width, kv, query, inner, experts) = (64, 16, 32, 32, 6);
    let expected: &[(&str, &[u64])] = &[
        ("attn_norm.weight", &[width]),
        ("attn_q.weight", &[width, query]),
        ("attn_q.bias", &[query]),
        ("attn_k.weight", &[width, kv]),
        ("attn_k.bias", &[kv]),
        ("attn_v.weight", &[width, kv]),
        ("attn_v.bias", &[kv]),
        ("attn_output.weight", &[query, width]),
        ("attn_output.bias", &[width]),
        ("attn_sinks.weight", &[4]),
        ("post_attention_norm.weight", &[width]),
        ("ffn_gate_inp.weight", &[width, experts]),
        ("ffn_gate_inp.bias", &[experts]),
        ("ffn_gate_exps.weight", &[width, inner, experts]),
        ("ffn_gate_exps.bias", &[inner, experts]),
        ("ffn_up_exps.weight", &[width, inner, experts]),
        ("ffn_up_exps.bias", &[inner, experts]),
        ("ffn_down_exps.weight", &[inner, width, experts]),
        ("ffn_down_exps.bias", &[width, experts]),
    ];
    for layer in 0..2 {
        for (name, dims) in expected {
            let info = gguf.tensor(&format!("blk.{layer}.{name}")).expect(name);
            assert_eq!(info.dims, *dims, "{name}");
            let is_matrix = name.ends_with(".weight") && dims.len() > 1 && *name != "ffn_gate_inp.weight";
            let expected = if is_matrix { TensorType::F16 } else { TensorType::F32 };
            assert_eq!(info.tensor_type, expected, "{name}");
        }
    }
    assert_eq!(gguf.tensors().count(), 2 * expected.len() + 3);
    assert!(gguf.tensor("output.weight").is_some());
}

#[test]
fn files_are_read_as_llama_cpp_writes_them() {
    let model = changed("gpt_oss", |metadata, _| {
        metadata.remove("gpt-oss.rope.scaling.yarn_truncate");
    });
    let model = model.expect("it loads");
    let decoder = &model.config().decoder;
    assert!(decoder.sinks && decoder.window.of_layer(0) == Some(12) && decoder.window.of_layer(1).is_none());
    let experts = decoder.experts.as_ref().expect("a mixture");
    assert_eq!(experts.router.scoring, Scoring::SoftmaxOfSelected);
    assert_eq!(experts.activation, Activation::ClampedSwiGlu { alpha: 1.702, limit: 7.0 });
    // As the models were trained; the second form says otherwise.
    assert!(matches!(model.config().rope.scaling, RopeScaling::Yarn { truncate: false, .. }));
    let model = Model::load(&folder("gpt_oss_mxfp4"), &mut |_| ()).expect("it loads");
    assert!(matches!(model.config().rope.scaling, RopeScaling::Yarn { truncate: true, .. }));
}

#[test]
fn sinks_count() {
    let (compute, tokens) = (Compute::new(1).expect("kernels"), prompt(5, 30));
    let logits = |sink: Option<f32>| {
        let model = changed("gpt_oss", |_, tensors| {
            for (info, data) in tensors.iter_mut().filter(|(info, _)| info.name.contains("attn_sinks")) {
                if let Some(sink) = sink {
                    *data = f32_bytes(&vec![sink; info.elements() as usize]);
                }
            }
        });
        bits(&model.expect("it loads"), &compute, &[(&tokens, 30)])
    };
    let (usual, none) = (logits(None), logits(Some(-1e4)));
    assert!(usual != none);
    assert!(logits(Some(-2e4)) == none, "without weight");
}

#[test]
fn bad_sinks_are_named() {
    const SINKS: &str = "model.layers.1.self_attn.sinks";
    assert_eq!(
        refused("gpt_oss", |weights| weights.retain(|weight| weight.name != SINKS)),
        "tensor `model.layers.1.self_attn.sinks` is missing"
    );
    let error = refused("gpt_oss", |weights| {
        let sinks = named(weights, SINKS);
        (sinks.shape, sinks.dtype, sinks.data) = (vec![3], Dtype::F32, f32_bytes(&[0.0; 3]));
    });
    assert_eq!(error, "tensor `model.layers.1.self_attn.sinks` has shape [3], expected [4] (columns first)");
    let error = |values: Option<&[f32]>| {
        let changed = changed("gpt_oss", |_, tensors| match values {
            None => tensors.retain(|(info, _)| info.name != "blk.1.attn_sinks.weight"),
            Some(values) => {
                let sinks = tensors.iter_mut().find(|(info, _)| info.name == "blk.1.attn_sinks.weight");
                let (info, data) = sinks.expect("sinks");
                *info =
                    TensorInfo::new(&info.name, [values.len() as u64], TensorType::F32).expect("a tensor");
                *data = f32_bytes(values);
            }
        });
        changed.map(|_| ()).expect_err("refused")
    };
    assert_eq!(error(None), "tensor `blk.1.attn_sinks.weight` is missing");
    assert_eq!(
        error(Some(&[0.0; 5])),
        "tensor `blk.1.attn_sinks.weight` has shape [5], expected [4] (columns first)"
    );
    assert_eq!(
        error(Some(&[0.0, 1.0, f32::NAN, 2.0])),
        "tensor `blk.1.attn_sinks.weight` has NaN at index 2, expected a finite number"
    );
}

#[test]
fn bad_experts_are_named() {
    const EXPERTS: &str = "model.layers.0.mlp.experts.";
    let without = |form: &str, end: &'static str| {
        refused(form, |weights| weights.retain(|weight| weight.name != format!("{EXPERTS}{end}")))
    };
    for (form, end) in [
        ("gpt_oss", "gate_up_proj"),
        ("gpt_oss", "down_proj"),
        ("gpt_oss", "gate_up_proj_bias"),
        ("gpt_oss_mxfp4", "down_proj_bias"),
        ("gpt_oss_mxfp4", "gate_up_proj_scales"),
    ] {
        assert_eq!(without(form, end), format!("tensor `{EXPERTS}{end}` is missing"));
    }
    let error = refused("gpt_oss_mxfp4", |weights| {
        named(weights, &format!("{EXPERTS}down_proj_scales")).dtype = Dtype::I8;
    });
    assert!(error.contains("down_proj_scales` has type I8") && error.contains("U8"), "{error}");
    let error = refused("gpt_oss_mxfp4", |weights| {
        named(weights, &format!("{EXPERTS}down_proj_blocks")).shape = vec![4, 96, 2, 16];
    });
    assert!(error.contains("down_proj_blocks` has shape [16, 2, 96, 4], expected [16, 3, 64, 4]"), "{error}");
    // Both forms at once.
    let error = refused("gpt_oss_mxfp4", |weights| {
        let mut more = named(weights, &format!("{EXPERTS}down_proj_bias")).clone();
        more.name = format!("{EXPERTS}down_proj");
        weights.push(more);
    });
    assert!(error.contains("mlp.experts.down_proj`"), "{error}");
    // A matrix per expert, as other families have them.
    let error = refused("gpt_oss", |weights| {
        named(weights, &format!("{EXPERTS}down_proj")).name = format!("{EXPERTS}0.down_proj.weight");
    });
    assert!(error.contains("mlp.experts.0.down_proj.weight"), "{error}");
}

#[test]
fn configurations_without_a_counterpart_are_refused() {
    let refused = |key: &str, value: serde_json::Value| {
        let copy = copy("gpt_oss");
        copy.set(key, value);
        copy.open().map(|_| ()).expect_err(key).to_string()
    };
    assert!(refused("swiglu_limit", json!(10.0)).contains("`swiglu_limit` is 10.0, expected 7"));
    assert!(refused("swiglu_alpha", json!(1.5)).contains("`swiglu_alpha` is 1.5, expected 1.702"));
    assert!(refused("rope_parameters", json!(null)).contains("`rope_scaling` is missing"));
    let error = refused("quantization_config", json!({"quant_method": "gptq"}));
    assert!(error.contains("gptq") && error.contains("`mxfp4`"), "{error}");
}

#[test]
fn converted_folders_keep_mxfp4_bit_for_bit() {
    let temporary = tempfile::tempdir().expect("a folder");
    let folder = folder("gpt_oss_mxfp4");
    let gguf = gguf_of(&folder, temporary.path());
    let path = temporary.path().join("converted.gguf");
    let mut progress = |_: ruvllm_models::quantize::QuantizeProgress<'_>| std::ops::ControlFlow::Continue(());
    convert(&gguf, &path, None, &ThreadPool::single(), &mut progress).expect("it converts");
    let converted = Gguf::open(&path).expect("it opens");
    for info in folder.tensors() {
        let other = converted.tensor(&info.name).expect("the tensor");
        assert_eq!((&info.dims, info.tensor_type), (&other.dims, other.tensor_type), "{}", info.name);
        let data = folder.data(info).expect("data");
        assert!(data.as_ref() == converted.data(other).expect("data").as_ref(), "{}", info.name);
    }
    let block = WeightFormat::MXFP4.block_bytes() as u64;
    let down = converted.tensor("blk.2.ffn_down_exps.weight").expect("a stack");
    assert_eq!(down.bytes(), 4 * 64 * 3 * block);
}
