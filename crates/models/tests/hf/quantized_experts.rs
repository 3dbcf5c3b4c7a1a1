//! Quantized folders whose experts, or the scales of these, are one tensor per layer
//! (`tests/data/quantized`), beside those with a matrix per expert.

use ruvllm_models::{Checkpoint, Model};
use safetensors::Dtype;
use serde_json::json;

use crate::mixtures::form;
use crate::quantized::{changed, named, open, refused, values};
use crate::support::{Copy, Weight, assert_same_tensors};

const EXPERTS: &str = "model.layers.0.mlp.experts";
const GRANITE: &str = "model.layers.0.block_sparse_moe";

/// Bytes of a part of a tensor: expert, and half of its rows.
fn part(weight: &Weight, (expert, half): (usize, usize), halves: usize) -> Vec<u8> {
    let one = weight.data.len() / weight.shape[0] / halves;
    weight.data[(expert * halves + half) * one..][..one].to_vec()
}

/// Replaces quants of single experts by those of all; the scales already are.
fn join(weights: &mut Vec<Weight>) {
    for (name, parts, rows, columns) in
        [("gate_up_proj", &["gate_proj", "up_proj"][..], 48, 64), ("down_proj", &["down_proj"], 64, 48)]
    {
        let quants = (0..3).flat_map(|expert| parts.iter().map(move |part| (expert, *part)));
        let quants = quants.map(|(expert, part)| format!("{EXPERTS}.{expert}.{part}.weight"));
        let data = quants.flat_map(|name| named(weights, &name).data.clone()).collect();
        let shape = vec![3, rows * parts.len(), columns];
        weights.push(Weight { name: format!("{EXPERTS}.{name}"), dtype: Dtype::F8_E4M3, shape, data });
    }
    weights.retain(|weight| !(weight.name.contains("experts.") && weight.name.ends_with(".weight")));
}

/// Tiles lie across the border of gate and up, and the last one of a row is cut.
#[test]
fn quants_of_all_experts_are_those_of_single_ones() {
    let joint = changed("fp8_saved", join);
    assert_same_tensors(&joint.open().expect("it opens"), &open("fp8_saved"));
}

/// As llm-compressor writes Granite's experts now, and as transformers names their scales.
#[test]
fn other_forms_of_granite_hold_the_same() {
    let expected = open("compressed_experts");
    let single = changed("compressed_experts", |weights| {
        for (name, parts) in
            [("input_linear", &["gate_proj", "up_proj"][..]), ("output_linear", &["down_proj"])]
        {
            for end in ["weight", "weight_scale"] {
                let name = format!("{GRANITE}.{name}.{end}");
                let all = named(weights, &name).clone();
                weights.retain(|weight| weight.name != name);
                for expert in 0..3 {
                    weights.extend(parts.iter().enumerate().map(|(half, own)| Weight {
                        name: format!("{GRANITE}.experts.{expert}.{own}.{end}"),
                        dtype: all.dtype,
                        shape: vec![all.shape[1] / parts.len(), all.shape[2]],
                        data: part(&all, (expert, half), parts.len()),
                    }));
                }
            }
        }
    });
    assert_same_tensors(&single.open().expect("it opens"), &expected);
    let mut weights = single.weights();
    let missing = format!("{GRANITE}.experts.1.up_proj.weight");
    weights.retain(|weight| !weight.name.starts_with(&missing));
    single.write("model.safetensors", &weights);
    assert_eq!(refused(&single), format!("tensor `{missing}` is missing"));

    let named_otherwise = changed("compressed_experts", |weights| {
        for (name, own) in [("input_linear", "gate_up_proj"), ("output_linear", "down_proj")] {
            let scales = named(weights, &format!("{GRANITE}.{name}.weight_scale"));
            scales.name = format!("{GRANITE}.experts.{own}_scale_inv");
        }
    });
    named_otherwise.set("quantization_config", json!({"quant_method": "fp8"}));
    assert_same_tensors(&named_otherwise.open().expect("it opens"), &expected);
}

/// A number of 8 bits with an exponent of 4.
fn float8(byte: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(byte >> 3 & 15), f32::from(byte & 7) / 8.0);
    let magnitude =
        if exponent == 0 { mantissa / 64.0 } else { (1.0 + mantissa) * 2.0_f32.powi(exponent - 7) };
    if byte < 0x80 { magnitude } else { -magnitude }
}

/// Rows of scales are inputs there, as transformers quantizes them.
#[test]
fn transposed_experts_keep_their_scales() {
    let copy = Copy::of_folder(&form("llama4"));
    let quant =
        |expert: usize, input: usize, output: usize| ((expert * 57 + input * 13 + output * 29) % 120) as u8;
    let scale =
        |expert: usize, row: usize, column: usize| [0.25, 0.5, 1.0, 2.0, 4.0, 8.0][expert + row + column % 2];
    let all = |outputs: usize, inputs: usize| {
        let place = move |i: usize| (i / inputs / outputs, i / outputs % inputs, i % outputs);
        (0..4 * inputs * outputs).map(place)
    };
    let mut weights = copy.weights();
    for (name, inputs, outputs) in [("gate_up_proj", 32, 32), ("down_proj", 16, 32)] {
        for layer in [1, 3] {
            let name = format!("model.layers.{layer}.feed_forward.experts.{name}");
            let weight = named(&mut weights, &name);
            weight.dtype = Dtype::F8_E4M3;
            weight.data =
                all(outputs, inputs).map(|(expert, input, output)| quant(expert, input, output)).collect();
            let grid = all(outputs / 16, inputs / 16);
            let scales = grid.flat_map(|(expert, row, column)| f32::to_le_bytes(scale(expert, row, column)));
            let (name, shape) = (format!("{name}_scale_inv"), vec![4, inputs / 16, outputs / 16]);
            weights.push(Weight { name, dtype: Dtype::F32, shape, data: scales.collect() });
        }
    }
    copy.write("model.safetensors", &weights);
    copy.set("quantization_config", json!({"quant_method": "fp8", "weight_block_size": [16, 16]}));
    let folder = copy.open().expect("it opens");
    assert!(folder.quantized().is_some());
    for (stack, rows, columns, first) in [("gate", 16, 32, 0), ("up", 16, 32, 16), ("down", 32, 16, 0)] {
        let found = values(&folder, &format!("blk.3.ffn_{stack}_exps.weight"));
        for (i, &found) in found.iter().enumerate() {
            let (expert, row, column) = (i / columns / rows, i / columns % rows + first, i % columns);
            let expected = float8(quant(expert, column, row)) * scale(expert, column / 16, row / 16);
            assert_eq!(found, expected, "{stack} {expert} {row} {column}");
        }
    }
}

#[test]
fn missing_and_mixed_parts_are_named() {
    let without = |folder: &str, name: &str| {
        refused(&changed(folder, |weights| weights.retain(|weight| weight.name != name)))
    };
    for name in ["gate_up_proj_scale_inv", "down_proj_scale_inv", "gate_up_proj", "down_proj"] {
        let name = format!("{EXPERTS}.{name}");
        let error = without("fp8_experts", &name);
        let is_left = error.starts_with(&format!("tensor `{name}_scale_inv` is not part of a `"));
        assert!(error == format!("tensor `{name}` is missing") || is_left, "{name}: {error}");
    }
    let scales = format!("{EXPERTS}.gate_up_proj_scale_inv");
    assert_eq!(
        without("fp8_saved", &scales),
        format!("tensor `{EXPERTS}.0.gate_proj.weight_scale` is missing")
    );
    let quants = format!("{EXPERTS}.2.up_proj.weight");
    assert_eq!(without("fp8_saved", &quants), format!("tensor `{quants}` is missing"));
    let scales = format!("{GRANITE}.input_linear.weight_scale");
    assert_eq!(without("compressed_experts", &scales), format!("tensor `{scales}` is missing"));

    let mixed = changed("fp8_saved", |weights| {
        let single: Vec<Weight> =
            weights.iter().filter(|weight| weight.name.ends_with("2.down_proj.weight")).cloned().collect();
        join(weights);
        weights.extend(single);
    });
    let error = refused(&mixed);
    assert!(error.contains("holds all experts of a layer, and") && error.contains(".2.down_proj"), "{error}");
}

#[test]
fn shapes_and_values_are_checked() {
    let shaped = |folder: &str, name: &str, shape: &[usize]| {
        refused(&changed(folder, |weights| {
            let weight = named(weights, name);
            weight.shape = shape.to_vec();
            weight.data.resize(shape.iter().product::<usize>() * weight.dtype.bitsize() / 8, 1);
        }))
    };
    let all = format!("{EXPERTS}.gate_up_proj_scale_inv");
    for (folder, shape) in [
        ("fp8_experts", &[2, 1, 1][..]),
        ("fp8_experts", &[3, 5, 1]),
        ("fp8_experts", &[3, 1, 3]),
        ("fp8_experts", &[3, 0, 1]),
        ("fp8_experts", &[3, 1]),
        ("fp8_saved", &[3, 5, 2]),
        ("fp8_saved", &[3, 3, 3]),
    ] {
        let error = shaped(folder, &all, shape);
        assert!(
            error.contains(&all) && error.contains("expected scales of whole tiles of 3 matr"),
            "{error}"
        );
    }
    // Of experts that there are too few scales of.
    let error = shaped("fp8_saved", &all, &[2, 3, 2]);
    assert_eq!(error, format!("tensor `{EXPERTS}.2.gate_proj.weight_scale` is missing"));
    let error = shaped("fp8_experts", &format!("{EXPERTS}.gate_up_proj"), &[3, 48, 63]);
    assert!(error.contains("has shape [63, 48, 3], expected [64, 48, 3]"), "{error}");
    // A scale of each expert, and one of all.
    for shape in [&[3][..], &[1], &[]] {
        let copy = changed("fp8_experts", |weights| {
            let scales = named(weights, &all);
            scales.data.truncate(4 * shape.iter().product::<usize>());
            scales.shape = shape.to_vec();
        });
        let (found, expected) = (copy.open().expect("it opens"), open("fp8_experts"));
        let values = |folder: &dyn Checkpoint| values(folder, "blk.0.ffn_up_exps.weight");
        assert_eq!(values(&found) == values(&expected), shape == [3], "{shape:?}");
    }

    let copy = changed("fp8_experts", |weights| {
        named(weights, &all).data[4..8].copy_from_slice(&f32::NAN.to_le_bytes());
    });
    let error = Model::load(&copy.open().expect("it opens"), &mut |_| ()).map(|_| ()).expect_err("refused");
    assert_eq!(
        error.to_string(),
        format!("tensor `{all}` has NaN at index 1, expected a finite number: download the file again")
    );
    let copy = changed("fp8_experts", |weights| {
        named(weights, &format!("{EXPERTS}.down_proj")).data[2 * 64 * 24 + 5] = 0x7f;
    });
    let error = Model::load(&copy.open().expect("it opens"), &mut |_| ()).map(|_| ()).expect_err("refused");
    let error = error.to_string();
    assert!(error.contains("down_proj` has NaN at index 3077, expected"), "{error}");
}

/// No quantizer is known to write these.
#[test]
fn other_tensors_of_all_experts_are_refused_by_name() {
    let error = refused(&changed("fp8", |weights| {
        weights.retain(|weight| !weight.name.contains(".experts."));
        let (name, shape) = (format!("{EXPERTS}.gate_up_proj"), vec![3, 80, 64]);
        weights.push(Weight { name, dtype: Dtype::F8_E4M3, data: vec![0; 3 * 80 * 64], shape });
    }));
    assert_eq!(error, format!("tensor `{EXPERTS}.gate_up_proj_scale_inv` is missing"));
    let error = refused(&changed("compressed_packed", |weights| {
        let (name, shape) = (format!("{EXPERTS}.gate_up_proj_packed"), vec![3, 64, 8]);
        weights.push(Weight { name, dtype: Dtype::I32, data: vec![0; 3 * 64 * 8 * 4], shape });
    }));
    assert!(
        error.starts_with(&format!("tensor `{EXPERTS}.gate_up_proj_packed` is not part of a")),
        "{error}"
    );
}
