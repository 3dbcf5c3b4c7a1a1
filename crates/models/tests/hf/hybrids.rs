//! Models with layers that keep a state: files, batches, and bad input. The logits are compared in
//! `forms`.

use gguf_rs_lite::{Array, Gguf, TensorType, Value};
use ruvllm_kernels::{Isa, Kernels, ThreadPool};
use ruvllm_models::quantize::{QuantizeOptions, Recipe, quantize};
use ruvllm_models::{Checkpoint, Compute, Model};
use serde_json::{Value as Json, json};

use crate::mixtures::{bits, changed, folder, form, gguf_of, prompt};
use crate::support::{Copy, Weight};

const FORMS: [&str; 3] = ["qwen35", "qwen35moe", "lfm2"];

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
    for (name, convolution) in [("qwen35", "ssm_conv1d.weight"), ("lfm2", "shortconv.conv.weight")] {
        let temporary = tempfile::tempdir().expect("a folder");
        let (gguf, path) = (gguf_of(&folder(name), temporary.path()), temporary.path().join("small.gguf"));
        let (recipe, pool) = (Recipe::from_name("Q8_0").expect("a recipe"), ThreadPool::single());
        let mut progress =
            |_: ruvllm_models::quantize::QuantizeProgress<'_>| std::ops::ControlFlow::Continue(());
        quantize(&gguf, &path, recipe, &QuantizeOptions::default(), &pool, &mut progress).expect("written");
        let small = Gguf::open(&path).expect("it opens");
        let found = |part: &str| small.tensor(&format!("blk.0.{part}")).expect("the tensor").tensor_type;
        assert_eq!(
            (found(convolution), found("ffn_up.weight")),
            (TensorType::F32, TensorType::Q8_0),
            "{name}"
        );
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
        ("lfm2", "layer_types", three("linear_attention"), "`full_attention` or `conv`"),
        ("lfm2", "conv_bias", json!(true), "conv_bias"),
        ("lfm2", "block_ffn_dim_multiplier", json!(1e5), "a width of at most"),
        ("lfm2", "block_ffn_dim_multiplier", json!(1e300), "a width of at most"),
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
        ("lfm2", "layers.3.conv.in_proj.weight"),
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
    let heads = |heads: &[i32]| Value::Array(Array::I32(heads.to_vec()));
    for (value, expected) in [
        (heads(&[0, 2, 0]), "an array of 4"),
        (heads(&[0, 2, 4, 0]), "one number of heads"),
        (heads(&[0; 4]), "one number of heads"),
    ] {
        let found = refused("lfm2", "attention.head_count_kv", value);
        assert!(found.contains(expected), "{found}");
    }
}
