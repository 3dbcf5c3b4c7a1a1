//! Quantized folders (`tests/data/quantized`): logits beside those that transformers computes with
//! the same values, types of the tensors, and bad input.

use std::fs;
use std::path::{Path, PathBuf};

use gguf_rs_lite::{Gguf, TensorInfo, TensorType};
use ruvllm_kernels::ThreadPool;
use ruvllm_models::quantize::{InSitu, QuantizeProgress, Recipe, convert};
use ruvllm_models::{Checkpoint, HfFolder, Model};
use safetensors::Dtype;
use serde_json::{Value, json};

use crate::forms::error;
use crate::mixtures::gguf_of;
use crate::support::{Copy, Weight};

/// Largest error of a logit: what float32 costs transformers itself is up to 3e-4.
const TOLERANCE: f64 = 5e-4;

/// Folder, type of the first layer's key projection, and `general.source.quantization`.
const FOLDERS: [(&str, TensorType, &str); 12] = [
    ("awq", TensorType::Q4_1, "awq, 4 bit, groups of 32"),
    ("gptq", TensorType::Q4_0, "gptq, 4 bit, groups of 32"),
    ("gptq_zeros", TensorType::Q4_1, "gptq, 4 bit, a group per row"),
    ("gptq_act_order", TensorType::F16, "gptq, 4 bit, groups of 16, act-order"),
    ("gptq_8bit", TensorType::Q8_0, "gptq, 8 bit, groups of 32"),
    ("fp8", TensorType::BF16, "fp8 (e4m3), tiles of 32 x 32"),
    (
        "compressed_float",
        TensorType::BF16,
        "compressed-tensors, float-quantized, 8 bit, a scale per row or matrix",
    ),
    ("compressed_packed", TensorType::Q4_0, "compressed-tensors, pack-quantized, 4 bit, groups of 32"),
    ("compressed_zeros", TensorType::Q4_1, "compressed-tensors, pack-quantized, 4 bit, groups of 32"),
    (
        "compressed_int",
        TensorType::Q8_0,
        "compressed-tensors, int-quantized, 8 bit, a scale per row or matrix",
    ),
    ("llama4_packed", TensorType::Q4_0, "compressed-tensors, pack-quantized, 4 bit, groups of 32"),
    (
        "llama4_float",
        TensorType::BF16,
        "compressed-tensors, float-quantized, 8 bit, a scale per row or matrix",
    ),
];

/// Folders with tensors of all experts of a layer (quants and scales, or scales alone), and with a
/// projection to the keys and values of heads.
const JOINT: [&str; 4] = ["fp8_experts", "compressed_experts", "fp8_latents", "fp8_saved"];

const KEY: &str = "model.layers.0.self_attn.k_proj";

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/quantized").join(name)
}

pub(crate) fn open(name: &str) -> HfFolder {
    HfFolder::open(path(name)).expect("the folder opens")
}

fn copy(name: &str) -> Copy {
    Copy::of_folder(&path(name))
}

/// The same weights in F32: products of quantized weights round their inputs to 8 bits.
fn in_floats<'a>(checkpoint: &'a dyn Checkpoint, pool: &'a ThreadPool) -> InSitu<'a> {
    InSitu::new(checkpoint, Recipe::from_name("F32").expect("a recipe"), pool).expect("types")
}

#[test]
fn logits_are_those_of_the_reference() {
    let pool = ThreadPool::single();
    for name in FOLDERS.iter().map(|(name, ..)| *name).chain(JOINT) {
        let folder = open(name);
        let error = error(&in_floats(&folder, &pool), &path(name), 8);
        println!("{name}: {error:.1e}");
        assert!(error <= TOLERANCE, "{name}: logits differ by {error}");
    }
}

#[test]
fn quants_keep_their_values_in_blocks_where_there_are_such() {
    for (name, tensor_type, description) in FOLDERS {
        let folder = open(name);
        assert_eq!(folder.tensor("blk.0.attn_k.weight").expect(name).tensor_type, tensor_type, "{name}");
        let found = folder.metadata().get_str("general.source.quantization").expect("a text");
        assert_eq!(found, Some(description), "{name}");
        let matrices =
            folder.tensors().filter(|info| info.name.contains("attn_") || info.name.contains("ffn_"));
        let matrices = matrices.filter(|info| info.dims.len() > 1 && !info.name.contains("gate_inp"));
        for info in matrices {
            // Rows of 40 columns are no whole blocks, but those are of FP8.
            assert_eq!(info.tensor_type, tensor_type, "{name}: {}", info.name);
        }
        assert!(folder.quantized().is_some(), "{name}");
        for stored in folder.stored_tensors() {
            assert!(!stored.name.ends_with("_proj.weight"), "{name}: {}", stored.name);
        }
        // Products of the quantized types too; repacked matrices are private memory.
        let model = Model::load(&folder, &mut |_| ()).expect(name);
        let repacked = folder.tensors().filter(|info| info.name.starts_with("blk.") && info.dims.len() > 1);
        let repacked: u64 = repacked.map(TensorInfo::bytes).sum();
        assert!(model.weight_bytes().private >= repacked, "{name}: {:?}", model.weight_bytes());
    }
    assert_eq!(open("gptq").metadata().get_u64("general.file_type").ok(), Some(Some(2)));
    assert_eq!(open("awq").metadata().get_u64("general.file_type").ok(), Some(Some(3)));
}

#[test]
fn converted_files_hold_the_bytes_of_their_folders() {
    let temporary = tempfile::tempdir().expect("a folder");
    for name in FOLDERS.iter().map(|(name, ..)| *name).chain(JOINT) {
        let folder = open(name);
        // `convert` wants a tokenizer, which these folders lack.
        let gguf = gguf_of(&folder, temporary.path());
        let path = temporary.path().join(format!("{name}.gguf"));
        let mut progress = |_: QuantizeProgress<'_>| std::ops::ControlFlow::Continue(());
        convert(&gguf, &path, None, &ThreadPool::single(), &mut progress).expect("it converts");
        let converted = Gguf::open(&path).expect("it opens");
        assert_eq!(converted.tensors().count(), folder.tensors().count());
        for info in folder.tensors() {
            let other = converted.tensor(&info.name).expect("the tensor");
            assert_eq!((&info.dims, info.tensor_type), (&other.dims, other.tensor_type), "{}", info.name);
            let data = folder.data(info).expect("data");
            assert!(data.as_ref() == converted.data(other).expect("data").as_ref(), "{}", info.name);
        }
    }
}

/// Values of a tensor.
pub(crate) fn values(checkpoint: &dyn Checkpoint, name: &str) -> Vec<f32> {
    let info: &TensorInfo = checkpoint.tensor(name).expect("the tensor");
    let format = ruvllm_models::weight_format(info.tensor_type).expect("a format");
    let mut values = vec![0.0; info.elements() as usize];
    format.dequantize(checkpoint.data(info).expect("data").as_ref(), &mut values);
    values
}

#[track_caller]
pub(crate) fn named<'a>(weights: &'a mut [Weight], name: &str) -> &'a mut Weight {
    weights.iter_mut().find(|weight| weight.name == name).expect("a tensor")
}

pub(crate) fn changed(name: &str, change: impl FnOnce(&mut Vec<Weight>)) -> Copy {
    let copy = copy(name);
    let mut weights = copy.weights();
    change(&mut weights);
    copy.write("model.safetensors", &weights);
    copy
}

/// Symmetric zero points are looked at, and files that say otherwise are believed.
#[test]
fn zero_points_decide_the_type_and_not_the_configuration() {
    let zeros = format!("{KEY}.qzeros");
    let copy = changed("gptq", |weights| named(weights, &zeros).data[0] = 0x76);
    let other = copy.open().expect("it opens");
    assert_eq!(other.tensor("blk.0.attn_k.weight").expect("a tensor").tensor_type, TensorType::Q4_1);
    let (found, expected) =
        (values(&other, "blk.0.attn_k.weight"), values(&open("gptq"), "blk.0.attn_k.weight"));
    // The zero point of the first row's first group is 7 and not 8.
    let different = found.iter().zip(&expected).filter(|(a, b)| a != b).count();
    assert_eq!(different, 32);
    let scale = found[0] - expected[0];
    assert!(found.iter().zip(&expected).take(32).all(|(a, b)| a - b == scale) && scale > 0.0);
}

/// Groups by column that are in order after all.
#[test]
fn groups_that_are_in_order_need_no_order() {
    let copy = copy("gptq");
    copy.edit("config.json", |config| config["quantization_config"]["desc_act"] = json!(true));
    let folder = copy.open().expect("it opens");
    assert_eq!(folder.tensor("blk.0.attn_k.weight").expect("a tensor").tensor_type, TensorType::Q4_0);
    // Absent without act-order.
    let copy = changed("gptq", |weights| weights.retain(|weight| !weight.name.ends_with(".g_idx")));
    assert!(copy.open().is_ok());
    copy.edit("config.json", |config| config["quantization_config"]["desc_act"] = json!(true));
    let error = copy.open().expect_err("refused").to_string();
    assert!(error.starts_with("tensor `model.layers.0.") && error.ends_with(".g_idx` is missing"), "{error}");
}

/// Scales of activations and KV caches are of no use here.
#[test]
fn scales_of_activations_are_left_out() {
    for (name, ends) in [("fp8", &["input_scale", "k_scale"][..]), ("compressed_float", &["input_scale"])] {
        let copy = changed(name, |weights| {
            for end in ends {
                let data = 1.0_f32.to_le_bytes().to_vec();
                weights.push(Weight {
                    name: format!("{KEY}.{end}"),
                    dtype: Dtype::F32,
                    shape: vec![1],
                    data,
                });
            }
        });
        assert_eq!(copy.open().expect("it opens").tensors().count(), open(name).tensors().count());
    }
}

pub(crate) fn refused(copy: &Copy) -> String {
    copy.open().map(|_| ()).expect_err("refused").to_string()
}

#[test]
fn bad_parts_are_named() {
    let without = |name: &str, end: &str| {
        refused(&changed(name, |weights| weights.retain(|weight| weight.name != format!("{KEY}.{end}"))))
    };
    for (name, end) in [
        ("awq", "qweight"),
        ("awq", "qzeros"),
        ("gptq", "scales"),
        ("gptq", "qzeros"),
        ("gptq_act_order", "g_idx"),
        ("compressed_packed", "weight_scale"),
        ("compressed_packed", "weight_shape"),
        ("compressed_packed", "weight_packed"),
        ("compressed_zeros", "weight_zero_point"),
        ("compressed_int", "weight_scale"),
        ("compressed_float", "weight_scale"),
    ] {
        assert_eq!(without(name, end), format!("tensor `{KEY}.{end}` is missing"), "{name}");
    }
    assert_eq!(without("fp8", "weight_scale_inv"), format!("tensor `{KEY}.weight_scale` is missing"));
    let shaped = |name: &str, end: &str, shape: &[usize], dtype: Dtype| {
        refused(&changed(name, |weights| {
            let weight = named(weights, &format!("{KEY}.{end}"));
            (weight.shape, weight.dtype) = (shape.to_vec(), dtype);
            weight.data.resize(shape.iter().product::<usize>() * dtype.bitsize() / 8, 1);
        }))
    };
    for (name, end, shape, dtype, piece) in [
        ("awq", "qweight", &[64, 1][..], Dtype::I32, "scales` has shape [16, 2], expected [8, 2]"),
        ("awq", "qweight", &[128], Dtype::I32, "has shape [128], expected a matrix"),
        ("awq", "qweight", &[0, 2], Dtype::I32, "has shape [2, 0], expected a matrix"),
        ("awq", "qweight", &[64, 2], Dtype::F32, "has type F32"),
        ("awq", "scales", &[1, 16], Dtype::F16, "has shape [16, 1], expected [16, 2]"),
        ("awq", "scales", &[2, 16], Dtype::I32, "has type I32, which is not supported (supported: F32, F16,"),
        ("gptq", "qweight", &[7, 16], Dtype::I32, "has shape"),
        ("gptq", "qzeros", &[2, 3], Dtype::I32, "has shape [3, 2], expected [2, 2]"),
        ("gptq", "g_idx", &[63], Dtype::I32, "has shape [63], expected [64]"),
        (
            "compressed_packed",
            "weight_packed",
            &[16, 7],
            Dtype::I32,
            "has shape [7, 16], expected those of 16",
        ),
        ("compressed_packed", "weight_shape", &[2], Dtype::F16, "has type F16"),
        ("compressed_packed", "weight_scale", &[16, 3], Dtype::BF16, "has shape [3, 16]"),
        ("compressed_zeros", "weight_zero_point", &[1, 2], Dtype::I32, "has shape [2, 1], expected [2, 2]"),
        ("compressed_int", "weight", &[16, 64], Dtype::U8, "has type U8"),
        ("fp8", "weight_scale_inv", &[2, 2], Dtype::F32, "has shape [2, 2], expected [2, 1]"),
        ("fp8", "weight", &[16, 64], Dtype::F8_E5M2, "has type F8_E5M2"),
        (
            "fp8",
            "weight",
            &[16, 64],
            Dtype::F16,
            "has type F16, which is not supported (supported: quantized",
        ),
        ("fp8", "weight", &[16, 63], Dtype::F8_E4M3, "has shape [63, 16], expected [64, 16]"),
    ] {
        let error = shaped(name, end, shape, dtype);
        assert!(error.contains(piece) && error.contains(KEY), "{name} {end} {shape:?}: {error}");
    }
}

#[test]
fn bad_values_are_named() {
    let group = |value: i32| {
        refused(&changed("gptq", |weights| {
            named(weights, &format!("{KEY}.g_idx")).data[8..12].copy_from_slice(&value.to_le_bytes());
        }))
    };
    assert_eq!(group(2), format!("tensor `{KEY}.g_idx` puts column 2 into group 2, and there are 2"));
    assert_eq!(group(-1), format!("tensor `{KEY}.g_idx` puts column 2 into group -1, and there are 2"));
    let shape = |sides: [i64; 2]| {
        refused(&changed("compressed_packed", |weights| {
            named(weights, &format!("{KEY}.weight_shape")).data = sides.map(i64::to_le_bytes).concat();
        }))
    };
    for sides in [[0, 64], [16, -1], [i64::MAX, i64::MIN]] {
        assert!(shape(sides).contains("expected rows and columns of a matrix"), "{}", shape(sides));
    }
    assert!(shape([17, 64]).contains("expected those of 17 rows"), "{}", shape([17, 64]));

    // Values are looked at when they are asked for.
    let data = |name: &str, end: &str, value: &[u8]| {
        let copy = changed(name, |weights| {
            named(weights, &format!("{KEY}.{end}")).data[..value.len()].copy_from_slice(value);
        });
        let folder = copy.open().expect("it opens");
        let info = folder.tensor("blk.0.attn_k.weight").expect("the tensor");
        let error = folder.data(info).map(|_| ()).expect_err("refused").to_string();
        let loaded = Model::load(&folder, &mut |_| ()).map(|_| ()).expect_err("refused").to_string();
        assert_eq!(loaded, error);
        error
    };
    let nan = "has NaN at index 0, expected a finite number";
    for (name, end, value, piece) in [
        ("awq", "scales", &[0x00, 0x7e][..], nan),
        ("gptq", "scales", &[0x00, 0x7c], "has inf at index 0, expected a finite number"),
        ("compressed_packed", "weight_scale", &[0xc0, 0x7f], nan),
        ("compressed_packed", "weight_scale", &[0x00, 0x48], "within the range of Q4_0"),
        ("compressed_zeros", "weight_scale", &[0x00, 0x47], "within the range of Q4_1"),
        ("fp8", "weight", &[0x7f], "has NaN at index 0, expected a finite number within the range of BF16"),
        ("fp8", "weight_scale_inv", &[0, 0, 0x80, 0x7f], "has inf at index 0, expected a finite number"),
        ("fp8", "weight_scale_inv", &[0, 0, 0x7f, 0x7f], "within the range of BF16"),
    ] {
        let error = data(name, end, value);
        assert!(error.contains(piece) && error.contains(KEY), "{name} {end}: {error}");
    }
}

#[test]
fn methods_and_parameters_without_support_are_refused() {
    let refused = |name: &str, key: &str, value: Value| {
        let copy = copy(name);
        copy.edit("config.json", |config| config["quantization_config"][key] = value);
        refused(&copy)
    };
    for method in ["bitsandbytes", "hqq", "aqlm", "exl2", "mxfp4", "quark", "torchao", ""] {
        let error = refused("awq", "quant_method", json!(method));
        let start =
            format!("config.json: `quantization_config.quant_method` is \"{method}\", expected one of `fp8`");
        assert!(error.starts_with(&start) && error.contains("unquantized, or as a GGUF file"), "{error}");
    }
    assert!(
        refused("awq", "quant_method", json!(null)).contains("`quantization_config.quant_method` is missing")
    );
    let weights = |weights: Value| json!({"group_0": {"weights": weights}});
    for (name, key, value, piece) in [
        ("awq", "version", json!("gemv"), "`quantization_config.version` is \"gemv\", expected gemm"),
        ("awq", "bits", json!(3), "`quantization_config.bits` is 3, expected 4"),
        ("awq", "group_size", json!(0), "group_size"),
        ("awq", "group_size", json!(null), "`quantization_config.group_size` is missing"),
        ("gptq", "bits", json!(3), "`quantization_config.bits` is 3, expected 4 or 8"),
        ("gptq", "bits", json!(null), "`quantization_config.bits` is missing"),
        ("gptq", "checkpoint_format", json!("marlin"), "expected gptq or gptq_v2"),
        ("gptq", "is_marlin_format", json!(true), "is_marlin_format"),
        ("gptq", "group_size", json!(-2), "group_size"),
        ("fp8", "fmt", json!("e5m2"), "`quantization_config.fmt` is \"e5m2\", expected e4m3"),
        ("fp8", "weight_block_size", json!([0, 32]), "such as [128, 128]"),
        ("fp8", "weight_block_size", json!([32]), "such as [128, 128]"),
        ("compressed_packed", "format", json!("nvfp4-pack-quantized"), "expected pack-quantized or"),
        ("compressed_packed", "config_groups", json!({}), "config_groups"),
        ("compressed_packed", "config_groups", json!({"group_0": {}}), "quantized activations only"),
        (
            "compressed_packed",
            "config_groups",
            weights(json!({"num_bits": 2})),
            "num_bits` is 2, expected 4 or 8",
        ),
        (
            "compressed_packed",
            "config_groups",
            weights(json!({"num_bits": 4, "type": "float"})),
            "expected 8",
        ),
        (
            "compressed_packed",
            "config_groups",
            weights(json!({"num_bits": 4, "strategy": "token"})),
            "strategy",
        ),
        ("compressed_packed", "sparsity_config", json!({"format": "sparse-24-bitmask"}), "expected dense"),
        ("compressed_packed", "transform_config", json!({"config_groups": {"R1": {}}}), "transform_config"),
    ] {
        let error = refused(name, key, value.clone());
        assert!(error.contains(piece) && error.contains("config.json"), "{name} {key} {value}: {error}");
    }
}

/// Without the field, the parts are tensors that no model has.
#[test]
fn parts_without_a_method_are_refused() {
    let copy = copy("awq");
    copy.edit("config.json", |config| drop(config.remove("quantization_config")));
    assert!(refused(&copy).contains("is not part of a `llama` model"), "{}", refused(&copy));
    // A folder that has been dequantized since.
    let copy = Copy::of("qwen2");
    copy.set("quantization_config", json!({"quant_method": "fp8"}));
    let folder = copy.open().expect("it opens");
    assert_eq!(folder.quantized(), None);
    fs::remove_file(copy.path("model.safetensors")).expect("removed");
}
