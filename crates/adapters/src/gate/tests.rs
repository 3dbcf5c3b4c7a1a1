use std::collections::HashMap;
use std::error::Error as _;
use std::fs;
use std::path::PathBuf;

use proptest::prelude::*;
use ruvllm_kernels::low_rank::FactorFormat;
use ruvllm_testkit::Random;
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use tempfile::TempDir;

use super::*;
use crate::testing::base;

/// Adapters of a gate.
const N: usize = 3;

/// Width of [`base`].
const DIM: usize = 6;

/// Layers of [`base`].
const LAYERS: usize = 2;

type Tensors = Vec<(String, Dtype, Vec<usize>, Vec<u8>)>;

/// Values that all formats hold exactly.
fn values(n: usize, seed: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 37 + seed * 11) % 17) as f32 / 8.0 - 1.0).collect()
}

fn encoded(values: &[f32], dtype: Dtype) -> Vec<u8> {
    let words = values.iter().map(|value| value.to_le_bytes());
    match dtype {
        Dtype::F16 => {
            let mut bytes = vec![0; FactorFormat::F16.bytes(1, values.len())];
            FactorFormat::F16.quantize(values.len(), values, &mut bytes);
            bytes
        }
        // The upper half of a float.
        Dtype::BF16 => words.flat_map(|word| [word[2], word[3]]).collect(),
        _ => words.flatten().collect(),
    }
}

/// The tensors of a gate over `n` adapters.
fn tensors(n: usize, dtype: Dtype) -> Tensors {
    let of = |layer: usize| {
        let (weight, bias) = (values(n * DIM, layer), values(n, layer + 5));
        [
            (format!("layers.{layer}.weight"), dtype, vec![n, DIM], encoded(&weight, dtype)),
            (format!("layers.{layer}.bias"), dtype, vec![n], encoded(&bias, dtype)),
        ]
    };
    (0..LAYERS).flat_map(of).collect()
}

fn fields(pairs: &[(&str, &str)]) -> HashMap<String, String> {
    pairs.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect()
}

const PLAIN: [(&str, &str); 2] = [("n_adapters", "3"), ("temperature", "0.5")];

fn written(fields: HashMap<String, String>, tensors: &Tensors) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("gate.safetensors");
    let views = tensors.iter().map(|(name, dtype, shape, data)| {
        (name.clone(), TensorView::new(*dtype, shape.clone(), data).expect("a tensor"))
    });
    fs::write(&path, safetensors::serialize(views, Some(fields)).expect("a file")).expect("written");
    (folder, path)
}

fn open(fields: HashMap<String, String>, tensors: &Tensors) -> Result<AdapterGate> {
    let (_folder, path) = written(fields, tensors);
    AdapterGate::open(&path, &base())
}

/// An error and its causes.
fn words(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(&format!(": {error}"));
        cause = error.source();
    }
    text
}

#[track_caller]
fn refused(fields: HashMap<String, String>, tensors: &Tensors, expected: &str) {
    let said = words(&open(fields, tensors).expect_err("it is refused"));
    assert!(said.starts_with("cannot use the gate ") && said.contains(expected), "{said}");
}

fn gate(config: GateConfig, seed: u64) -> AdapterGate {
    let mut random = Random::new(seed);
    let mut drawn = |n: usize| (0..n).map(|_| random.normal()).collect();
    let (weights, biases) = (drawn(LAYERS * config.n_adapters * DIM), drawn(LAYERS * config.n_adapters));
    AdapterGate::new(&base(), config, weights, biases).expect("a gate")
}

const ALL: GateConfig = GateConfig { n_adapters: N, temperature: 1.0, top_k: None };

#[test]
fn files_in_all_formats_are_one_gate() {
    let expected = open(fields(&PLAIN), &tensors(N, Dtype::F32)).expect("a gate");
    assert_eq!(expected.config(), GateConfig { n_adapters: N, temperature: 0.5, top_k: None });
    assert_eq!(expected.weights[N * DIM..], values(N * DIM, 1));
    assert_eq!(expected.biases[N..], values(N, 6));
    for dtype in [Dtype::F16, Dtype::BF16] {
        let found = open(fields(&PLAIN), &tensors(N, dtype)).expect("a gate");
        assert_eq!(found.digest(), expected.digest(), "{dtype:?}");
    }
    let top = [&PLAIN[..], &[("top_k", "2"), ("architecture", "llama"), ("trained_by", "us")]].concat();
    let top = open(fields(&top), &tensors(N, Dtype::F32)).expect("a gate");
    assert_eq!(top.config().top_k, Some(2));
    assert_ne!(top.digest(), expected.digest());
}

#[test]
fn fields_out_of_range_are_refused() {
    for (name, value, expected) in [
        ("n_adapters", "0", "n_adapters of the gate is 0; expected: 1 to 64"),
        ("n_adapters", "65", "n_adapters of the gate is 65"),
        ("n_adapters", "99999999999999999999", "\"99999999999999999999\"; expected: 1 to 64"),
        ("n_adapters", "three", "\"three\""),
        ("n_adapters", "4", "layers.0.weight has shape [3, 6], not [4, 6]"),
        ("temperature", "0", "temperature of the gate is 0; expected: 0.001 to 1000"),
        ("temperature", "-1", "temperature of the gate is -1"),
        ("temperature", "NaN", "temperature of the gate is NaN"),
        ("temperature", "inf", "temperature of the gate is inf"),
        ("top_k", "0", "top_k of the gate is 0; expected: 1 to n_adapters"),
        ("top_k", "4", "top_k of the gate is 4"),
        ("architecture", "qwen2", "architecture qwen2, the model's is llama"),
    ] {
        let mut fields = fields(&PLAIN);
        fields.insert(name.to_owned(), value.to_owned());
        refused(fields, &tensors(N, Dtype::F32), expected);
    }
    for absent in ["n_adapters", "temperature"] {
        let mut fields = fields(&PLAIN);
        fields.remove(absent);
        refused(fields, &tensors(N, Dtype::F32), &format!("{absent} of the gate is missing"));
    }
}

#[test]
fn tensors_that_are_no_gate_of_the_model_are_refused() {
    let with = |change: &dyn Fn(&mut Tensors), expected: &str| {
        let mut tensors = tensors(N, Dtype::F32);
        change(&mut tensors);
        refused(fields(&PLAIN), &tensors, expected);
    };
    let renamed = |to: &'static str| move |tensors: &mut Tensors| tensors[3].0 = to.to_owned();
    with(&|tensors| drop(tensors.pop()), "it has no tensor layers.1.bias");
    with(&|tensors| drop(tensors.remove(0)), "it has no tensor layers.0.weight");
    for name in ["layers.1.scale", "layers.01.bias", "layers.+1.bias", "layers.-1.bias", "model.norm.weight"]
    {
        with(&renamed(name), &format!("{name} is no tensor of a gate"));
    }
    with(&renamed("layers.2.bias"), "layers.2.bias is in layer 2, the model has 2");
    with(&|tensors| tensors[1].2 = vec![N, 1], "layers.0.bias has shape [3, 1], not [3]");
    with(
        &|tensors| {
            tensors[0].2 = vec![N, DIM + 1];
            tensors[0].3 = vec![0; 4 * N * (DIM + 1)];
        },
        "layers.0.weight has shape [3, 7], not [3, 6]",
    );
    with(
        &|tensors| {
            tensors[1].1 = Dtype::F64;
            tensors[1].3 = vec![0; 8 * N];
        },
        "layers.0.bias is of type F64",
    );
    for value in [f32::NAN, f32::INFINITY] {
        let fault = move |tensors: &mut Tensors| tensors[2].3[8..12].copy_from_slice(&value.to_le_bytes());
        with(&fault, "layers.1.weight has values that are not finite");
    }
}

#[test]
fn damaged_and_huge_files_are_refused() {
    let (_folder, path) = written(fields(&PLAIN), &tensors(N, Dtype::F32));
    let bytes = fs::read(&path).expect("the file");
    for len in 0..bytes.len() {
        fs::write(&path, &bytes[..len]).expect("written");
        assert!(AdapterGate::open(&path, &base()).is_err(), "{len} bytes");
    }
    let refused = |bytes: &[u8], expected: &str| {
        fs::write(&path, bytes).expect("written");
        let said = words(&AdapterGate::open(&path, &base()).expect_err("it is refused"));
        assert!(said.contains(expected), "{said}");
    };
    refused(&[&bytes[..], &[0]].concat(), "no valid safetensors file");
    refused(&[&(5u64 << 20).to_le_bytes()[..], &bytes[8..]].concat(), "4194304 are read at most");
    refused(&vec![b' '; 5 << 20], "is larger than");
    let said = words(&AdapterGate::open(&path.with_extension("none"), &base()).expect_err("absent"));
    assert!(said.starts_with("cannot read "), "{said}");
}

#[test]
fn values_of_a_gate_are_checked() {
    let new = |weights: usize, biases: Vec<f32>| AdapterGate::new(&base(), ALL, vec![0.5; weights], biases);
    assert!(new(LAYERS * N * DIM, vec![0.0; LAYERS * N]).is_ok());
    assert!(matches!(new(5, vec![0.0; LAYERS * N]), Err(Error::GateShape { name, .. }) if name == "weights"));
    assert!(
        matches!(new(LAYERS * N * DIM, vec![0.0]), Err(Error::GateShape { name, .. }) if name == "biases")
    );
    let nan = new(LAYERS * N * DIM, vec![f32::NAN; LAYERS * N]);
    assert!(matches!(nan, Err(Error::NotFinite { name }) if name == "biases"));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Against the definition in f64, with equal bits on every instruction set.
    #[test]
    fn gates_are_the_softmax_of_the_highest_scores(
        seed in any::<u64>(),
        n_adapters in 1usize..=12,
        top_k in prop::option::of(1usize..=12),
        temperature in 0.3f32..3.0,
    ) {
        let top_k = top_k.map(|top_k| top_k.min(n_adapters));
        let gate = gate(GateConfig { n_adapters, temperature, top_k }, seed);
        let mut random = Random::new(seed ^ 1);
        let input: Vec<f32> = (0..DIM).map(|_| random.normal()).collect();
        for layer in 0..LAYERS {
            let scores: Vec<f64> = (0..n_adapters).map(|index| {
                let weights = &gate.weights[(layer * n_adapters + index) * DIM..][..DIM];
                let dot: f64 = weights.iter().zip(&input).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum();
                (dot + f64::from(gate.biases[layer * n_adapters + index])) / f64::from(temperature)
            }).collect();
            let mut sorted = scores.clone();
            sorted.sort_by(|a, b| b.total_cmp(a));
            let n = top_k.unwrap_or(n_adapters);
            let least = sorted[n - 1];
            // Scores that rounding may exchange are another case.
            prop_assume!(sorted.get(n).is_none_or(|next| least - next > 1e-4));
            let exp = |score: &f64| if *score >= least { (score - sorted[0]).exp() } else { 0.0 };
            let sum: f64 = scores.iter().map(exp).sum();
            let mut bits = None;
            for kernels in Kernels::available() {
                let mut found = vec![f32::NAN; n_adapters];
                gate.gates(&kernels, layer, &input, &mut found);
                for (found, score) in found.iter().zip(&scores) {
                    let expected = exp(score) / sum;
                    prop_assert!((f64::from(*found) - expected).abs() <= 5e-5, "{found} {expected}");
                }
                let found: Vec<u32> = found.iter().map(|gate| gate.to_bits()).collect();
                prop_assert_eq!(bits.get_or_insert_with(|| found.clone()), &found);
            }
        }
    }
}

#[test]
fn of_equal_scores_the_first_adapters_are_selected() {
    for (top_k, expected) in [(1, [1.0, 0.0, 0.0]), (2, [0.5, 0.5, 0.0]), (3, [1.0 / 3.0; 3])] {
        let config = GateConfig { top_k: Some(top_k), ..ALL };
        let (weights, biases) = (vec![0.0; LAYERS * N * DIM], vec![0.7; LAYERS * N]);
        let gate = AdapterGate::new(&base(), config, weights, biases).expect("a gate");
        for kernels in Kernels::available() {
            let mut found = [0.0; N];
            gate.gates(&kernels, 1, &[0.3; DIM], &mut found);
            assert_eq!(found, expected);
        }
    }
}
