//! `doctor --gpu`.

use std::fs;

use crate::program::{argument, fields, json_document, repository, run};
use crate::{adapters, gpu, report, run_without_driver};

#[test]
fn the_document_has_the_documented_fields() {
    if gpu().is_none() {
        return;
    }
    let document = report();
    let always = ["version", "platform", "adapters", "reason"];
    let is_optional = |name: &&str| ["used", "kernel_cache"].contains(name);
    let found = fields(&document);
    assert_eq!(found.into_iter().filter(|name| !is_optional(name)).collect::<Vec<_>>(), always);
    for (index, adapter) in adapters(&document).iter().enumerate() {
        assert_eq!(adapter["index"], index);
        let documented = [
            "index",
            "name",
            "backend",
            "kind",
            "driver",
            "f16",
            "subgroup",
            "timestamps",
            "cooperative",
            "max_buffer_bytes",
            "workgroup_bytes",
            "max_threads",
        ];
        assert!(fields(adapter).iter().all(|name| documented.contains(name)), "{adapter}");
    }
    let text = run(&["doctor", "--gpu"]);
    for piece in ["gpu:0", "driver", "largest buffer", "used by --device gpu", "without --device: cpu"] {
        assert!(text.text().contains(piece), "{piece} is not in {}", text.text());
    }
}

#[test]
fn a_machine_without_adapters_gets_a_report() {
    let run = run_without_driver(&["doctor", "--gpu"]);
    assert!(run.text().contains("--device gpu: none (no GPU found"), "{}", run.text());
    run_without_driver(&["doctor", "--gpu", "--self-test"]).fails_with(1, &["no GPU found"]);
}

#[test]
fn the_self_test_passes_and_is_a_report_to_paste() {
    let Some(gpu) = gpu() else { return };
    let run = run(&["doctor", "--gpu", "--self-test", "--device", &gpu]);
    let text = run.text();
    assert!(text.contains("all passed") && text.contains("product Q4_K"), "{text}");
    assert!(!text.contains("FAILED"), "{text}");
}

/// Measured tiles are kept beside the compiled kernels, and texts with them are the same.
#[test]
fn tiles_are_measured_for_later_uses() {
    let Some(gpu) = gpu() else { return };
    let folder = tempfile::tempdir().unwrap();
    let model = repository("crates/models/tests/data/tiny/llama/model-F16.gguf");
    let on_gpu = ["--model", argument(&model), "--device", &gpu, "--gpu-cache", argument(folder.path())];
    let tokens = || {
        let generate = ["generate", "--json", "--temperature", "0", "-n", "8", "--context", "64", "ab"];
        run(&[&generate[..], &on_gpu].concat()).json()["tokens"].clone()
    };
    let before = tokens();
    let run = run(&[&["doctor", "--gpu", "--tune", "--json"], &on_gpu[..]].concat());
    let document = json_document(run.text_and_notes().0);
    let tuned = &document["tuned"];
    let products = tuned["products"].as_array().unwrap();
    // Four numbers of rows of each shape, which the tiny model has four or five of.
    assert!(products.len() >= 16, "{document}");
    assert!(products.iter().all(|product| product["tiles"].as_u64() > Some(1)), "{document}");
    let file = fs::read_to_string(tuned["file"].as_str().unwrap()).unwrap();
    assert_eq!(file.lines().count(), 1 + products.len());
    assert_eq!(tokens(), before);
}

#[test]
fn kernels_are_written_as_text() {
    let Some(gpu) = gpu() else { return };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kernels");
    let arguments = [
        "doctor",
        "--gpu",
        "--device",
        &gpu,
        "--context",
        "300",
        "--dump-kernels",
        argument(&path),
        "--json",
    ];
    let document = json_document(run(&arguments).text_and_notes().0);
    let names: Vec<String> = fs::read_dir(&path)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    assert_eq!(document["dumped"]["kernels"], names.len());
    for piece in ["gemm_q8_0", "attention_", "merge_splits", "rms_norm", "argmax"] {
        assert!(names.iter().any(|name| name.contains(piece)), "{piece}: {names:?}");
    }
    for name in names {
        assert!(
            name.ends_with(".wgsl") && fs::read_to_string(path.join(&name)).unwrap().contains("@compute")
        );
    }
}
