//! Written adapters: read here again, in both formats.

use std::fs;

use ruvllm_adapters::export::{AdapterFormat, FactorType};
use ruvllm_adapters::merge::{Input, Merge, Method, Rank};
use ruvllm_adapters::{Error, LoraFile};
use serde_json::Value;

use crate::{equal, folder, merge, open, peft, pool, tiny_llama};

fn compress(merge: &Merge<'_>, factors: FactorType) -> ruvllm_adapters::merge::Compressed {
    merge
        .adapter(Rank::Exact, factors, &pool(), &mut |_, _| std::ops::ControlFlow::Continue(()))
        .expect("the merge succeeds")
}

/// Dense deltas of a file, by module.
fn deltas(file: &LoraFile, format: AdapterFormat) -> Vec<Vec<f32>> {
    let base = tiny_llama();
    let merge = Merge::new(&equal(&[file]), Method::Linear, Some(&base), format).expect("a merge");
    (0..merge.modules().len()).map(|module| merge.delta(module, &pool()).expect("a delta")).collect()
}

#[test]
fn written_adapters_are_read_with_the_same_deltas() {
    let folders = tempfile::tempdir().expect("a folder");
    let (small, large) = (open(&peft("r4_all")), open(&peft("r16_all_rs")));
    let inputs = [Input { file: &small, weight: 0.7 }, Input { file: &large, weight: -0.4 }];
    let base = tiny_llama();
    for format in [AdapterFormat::Peft, AdapterFormat::Gguf] {
        for (factors, tolerance) in
            [(FactorType::F32, 1e-6), (FactorType::F16, 2e-3), (FactorType::BF16, 2e-2)]
        {
            let merge = Merge::new(&inputs, Method::Linear, Some(&base), format).expect("a merge");
            let made = compress(&merge, factors);
            assert!(made.relative_error() < tolerance, "{format} {factors:?}");
            assert!(factors == FactorType::F32 || made.relative_error() > 1e-5);
            let path = folders.path().join(format!("{format}-{}", factors.name()));
            made.adapter.write(&path, false).expect("it is written");
            let read = open(&path);
            assert_eq!(read.updates().len(), merge.modules().len());
            assert!(read.updates().iter().all(|update| update.scale == 1.0 && update.rank == 20));
            // Also in the row order of the other format.
            for order in [AdapterFormat::Peft, AdapterFormat::Gguf] {
                let exact = Merge::new(&inputs, Method::Linear, Some(&base), order).expect("a merge");
                for (module, found) in deltas(&read, order).iter().enumerate() {
                    let exact = exact.delta(module, &pool()).expect("a delta");
                    let largest = exact.iter().fold(0.0_f32, |max, value| max.max(value.abs()));
                    let error = exact.iter().zip(found).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max);
                    assert!(
                        error <= largest * 5.0 * tolerance as f32,
                        "{format} {factors:?}: {error} {largest}"
                    );
                }
            }
        }
    }
}

/// The adapter of llama.cpp's converter and PEFT's are one: merged with weights 1 and -1 nothing is
/// left, so rows are in one order.
#[test]
fn formats_are_merged_in_one_row_order() {
    let (peft_file, gguf) = (open(&peft("r4_all")), open(&peft("r4_all/adapter.gguf")));
    let inputs = [Input { file: &peft_file, weight: 1.0 }, Input { file: &gguf, weight: -1.0 }];
    let base = tiny_llama();
    for format in [AdapterFormat::Peft, AdapterFormat::Gguf] {
        let merge = Merge::new(&inputs, Method::Linear, Some(&base), format).expect("a merge");
        assert_eq!(merge.modules().len(), 21);
        for module in 0..21 {
            let delta = merge.delta(module, &pool()).expect("a delta");
            assert!(delta.iter().all(|value| value.abs() < 1e-6), "{module} {format}");
        }
    }
}

#[test]
fn the_configuration_is_one_that_peft_reads() {
    let folders = tempfile::tempdir().expect("a folder");
    let (a, b) = (folders.path().join("a"), folders.path().join("b"));
    let uneven = folder(&a, [12, 8], &[2, 2, 5], 1);
    let ranks: Vec<usize> = uneven.updates().iter().map(|update| update.rank).collect();
    assert_eq!(ranks, [2, 2, 5]);
    assert!(uneven.updates().iter().all(|update| update.scale == 1.0));
    let config = |path: &std::path::Path| -> Value {
        let bytes = fs::read(path.join("adapter_config.json")).expect("a configuration");
        serde_json::from_slice(&bytes).expect("valid JSON")
    };
    let config_a = config(&a);
    assert_eq!((&config_a["r"], &config_a["lora_alpha"]), (&2.into(), &2.into()));
    assert_eq!(config_a["rank_pattern"], serde_json::json!({"model.layers.2.self_attn.q_proj": 5}));
    assert_eq!(config_a["rank_pattern"], config_a["alpha_pattern"]);
    assert_eq!(config_a["target_modules"], serde_json::json!(["q_proj"]));
    let inputs = equal(&[&uneven]);
    let merge = merge(&inputs, Method::Linear).expect("a merge");
    compress(&merge, FactorType::F32).adapter.write(&b, false).expect("it is written");
    assert_eq!(config(&b), config_a);
}

#[test]
fn results_are_not_replaced_unless_asked_and_only_by_their_kind() {
    let folders = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folders.path().join(name);
    let first = folder(&path("first"), [12, 8], &[2], 1);
    let second = folder(&path("second"), [12, 8], &[3], 2);
    let made = |file: &LoraFile, format| {
        let base = ruvllm_adapters::BaseModel {
            model_dim: 12,
            query_dim: 8,
            kv_dim: 4,
            head_dim: 4,
            interleaved_heads: false,
            ..tiny_llama()
        };
        let merge = Merge::new(&equal(&[file]), Method::Linear, Some(&base), format).expect("a merge");
        compress(&merge, FactorType::F32).adapter
    };
    for format in [AdapterFormat::Peft, AdapterFormat::Gguf] {
        let out = path(&format!("out-{format}"));
        made(&first, format).write(&out, false).expect("it is new");
        let refused = made(&second, format).write(&out, false).expect_err("it exists");
        assert!(matches!(refused, Error::Exists { .. }), "{refused}");
        assert_eq!(open(&out).updates()[0].rank, 2);
        made(&second, format).write(&out, true).expect("it is replaced");
        assert_eq!(open(&out).updates()[0].rank, 3);
    }
    fs::create_dir(path("photos")).expect("a folder");
    fs::write(path("photos/one"), "kept").expect("a file");
    for format in [AdapterFormat::Peft, AdapterFormat::Gguf] {
        let refused = made(&first, format).write(&path("photos"), true).expect_err("no adapter");
        assert!(matches!(refused, Error::NotReplaced { .. }), "{refused}");
        let refused = made(&first, format).write(&path("none/out"), false).expect_err("no parent");
        assert!(matches!(refused, Error::Write { .. }), "{refused}");
    }
    assert_eq!(fs::read(path("photos/one")).expect("it is kept"), b"kept");
    let mut names: Vec<_> =
        fs::read_dir(folders.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["first", "out-GGUF", "out-PEFT", "photos", "second"], "nothing temporary is left");
}
