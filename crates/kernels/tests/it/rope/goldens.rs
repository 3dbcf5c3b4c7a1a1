//! RoPE against the goldens in `tests/data/rope` (see its README): every scaling, both layouts,
//! positions up to 100003.

use ruvllm_kernels::Kernels;
use ruvllm_kernels::rope::{
    RopeConfig, RopeFrequencies, RopeLayout, RopeScaling, RopeTable, yarn_attention_factor,
};
use safetensors::SafeTensors;
use serde_json::Value;

const MANIFEST: &str = include_str!("../../data/rope/manifest.json");
const TENSORS: &[u8] = include_bytes!("../../data/rope/rope.safetensors");

fn f64s(tensors: &SafeTensors<'_>, name: &str) -> Vec<f64> {
    let data = tensors.tensor(name).unwrap();
    data.data().chunks_exact(8).map(|b| f64::from_le_bytes(b.try_into().unwrap())).collect()
}

fn f32s(tensors: &SafeTensors<'_>, name: &str) -> Vec<f32> {
    let data = tensors.tensor(name).unwrap();
    data.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

/// Configuration and sequence length of a manifest case.
fn config(case: &Value) -> (RopeConfig, usize) {
    let params = &case["params"];
    let number = |key: &str| params[key].as_f64().unwrap_or_else(|| panic!("{key} in {case}"));
    let size = |key: &str| usize::try_from(params[key].as_u64().unwrap()).unwrap();
    let max_context = usize::try_from(case["max_position_embeddings"].as_u64().unwrap()).unwrap();
    let list =
        |key: &str| params[key].as_array().unwrap().iter().map(|x| x.as_f64().unwrap()).collect::<Vec<_>>();
    let scaling = match case["kind"].as_str().unwrap() {
        "default" => RopeScaling::None,
        "linear" => RopeScaling::Linear { factor: number("factor") },
        "ntk" => RopeScaling::Ntk { factor: number("factor") },
        "dynamic" => RopeScaling::DynamicNtk { factor: number("factor"), original_context: max_context },
        "yarn" => RopeScaling::Yarn {
            factor: number("factor"),
            original_context: size("original_max_position_embeddings"),
            beta_fast: params["beta_fast"].as_f64().unwrap_or(32.0),
            beta_slow: params["beta_slow"].as_f64().unwrap_or(1.0),
            attention_factor: params["attention_factor"].as_f64().or_else(|| {
                let (mscale, all_dim) = (params["mscale"].as_f64()?, params["mscale_all_dim"].as_f64()?);
                Some(yarn_attention_factor(number("factor"), mscale, all_dim))
            }),
            truncate: params["truncate"].as_bool().unwrap_or(true),
        },
        "llama3" => RopeScaling::Llama3 {
            factor: number("factor"),
            low_frequency_factor: number("low_freq_factor"),
            high_frequency_factor: number("high_freq_factor"),
            original_context: size("original_max_position_embeddings"),
        },
        "longrope" => RopeScaling::LongRope {
            short_factors: list("short_factor"),
            long_factors: list("long_factor"),
            original_context: size("original_max_position_embeddings"),
            max_context,
            attention_factor: None,
        },
        other => panic!("kind {other}"),
    };
    let rotary_dim = usize::try_from(case["rotary_dim"].as_u64().unwrap()).unwrap();
    let config = RopeConfig { scaling, ..RopeConfig::new(case["rope_theta"].as_f64().unwrap(), rotary_dim) };
    let length = case["seq_len"].as_u64().map_or(max_context, |n| usize::try_from(n).unwrap());
    (config, length)
}

fn each_case(check: impl Fn(&str, &Value, &SafeTensors<'_>, &RopeFrequencies)) {
    let manifest: Value = serde_json::from_str(MANIFEST).unwrap();
    let tensors = SafeTensors::deserialize(TENSORS).unwrap();
    let cases = manifest["cases"].as_array().unwrap();
    assert_eq!(cases.len(), 26);
    for case in cases {
        let (config, length) = config(case);
        check(case["name"].as_str().unwrap(), case, &tensors, &config.frequencies(length).unwrap());
    }
}

#[test]
fn frequencies_and_factors() {
    each_case(|name, case, tensors, frequencies| {
        let expected = f64s(tensors, &format!("{name}.inv_freq_f64"));
        assert_eq!(frequencies.inverse.len(), expected.len(), "{name}");
        for (i, (found, expected)) in frequencies.inverse.iter().zip(&expected).enumerate() {
            assert!((found / expected - 1.0).abs() < 1e-6, "{name}: pair {i}: {found}, expected {expected}");
        }
        let factor = case["attention_scaling"].as_f64().unwrap();
        assert!(
            (frequencies.magnitude / factor - 1.0).abs() < 1e-6,
            "{name}: factor {}",
            frequencies.magnitude
        );
    });
}

#[test]
fn rotated_rows() {
    let manifest: Value = serde_json::from_str(MANIFEST).unwrap();
    let positions: Vec<usize> =
        manifest["positions"].as_array().unwrap().iter().map(|p| p.as_u64().unwrap() as usize).collect();
    each_case(|name, case, tensors, frequencies| {
        let head_dim = usize::try_from(case["head_dim"].as_u64().unwrap()).unwrap();
        let input = f32s(tensors, &format!("{name}.x"));
        for (layout, suffix) in [(RopeLayout::Halves, "half"), (RopeLayout::Interleaved, "interleaved")] {
            let expected = f64s(tensors, &format!("{name}.rotated_{suffix}"));
            for (i, &position) in positions.iter().enumerate() {
                let row = i * head_dim..(i + 1) * head_dim;
                let table = RopeTable::from_frequencies(frequencies, position..position + 1);
                let mut bits = Vec::new();
                for kernels in Kernels::available() {
                    let mut x = input[row.clone()].to_vec();
                    kernels.rope(&table, layout, position..position + 1, &mut x, 1, head_dim);
                    let size = expected[row.clone()].iter().fold(1.0, |size: f64, x| size.max(x.abs()));
                    for (j, (found, expected)) in x.iter().zip(&expected[row.clone()]).enumerate() {
                        let error = (f64::from(*found) - expected).abs();
                        assert!(
                            error <= 1e-6 * size,
                            "{name} {suffix} {position} {j}: {found}, not {expected}"
                        );
                    }
                    bits.push(x.iter().map(|x| x.to_bits()).collect::<Vec<_>>());
                }
                assert!(bits.windows(2).all(|pair| pair[0] == pair[1]), "{name}: bits differ between ISAs");
            }
        }
    });
}
