//! Compiled kernels on disk.

use std::fs;

use crate::gpu;
use crate::program::{argument, run};

#[test]
fn tokens_are_the_same_with_any_file_and_faults_are_one_warning() {
    let Some(gpu) = gpu() else { return };
    let folder = tempfile::tempdir().unwrap();
    let cache = folder.path().join("kernels");
    let run_with = |cache: &str| {
        let arguments = ["generate", "--temperature", "0", "-n", "4", "--context", "64", "--device", &gpu];
        run(&[&arguments[..], &["--gpu-cache", cache, "Once upon"]].concat())
    };
    let expected = run_with("off").text().to_owned();
    assert!(!cache.exists());

    let report =
        || run(&["doctor", "--gpu", "--json", "--device", &gpu, "--gpu-cache", argument(&cache)]).json();
    let before = report();
    if before.get("kernel_cache").is_none() {
        return; // An adapter without a pipeline cache.
    }
    assert!(before["kernel_cache"].get("bytes").is_none(), "{before}");
    for _ in ["cold", "warm"] {
        assert_eq!(run_with(argument(&cache)).text(), expected);
    }
    let after = report();
    let file = after["kernel_cache"]["file"].as_str().unwrap();
    let bytes = fs::read(file).unwrap();
    assert_eq!(after["kernel_cache"]["bytes"], bytes.len());
    let text = run(&["doctor", "--gpu", "--device", &gpu, "--gpu-cache", argument(&cache)]);
    assert!(text.text().contains(&format!("compiled kernels: {file}")), "{}", text.text());
    let off = run(&["doctor", "--gpu", "--device", &gpu, "--gpu-cache", "off"]);
    assert!(off.text().contains("compiled kernels: not kept"), "{}", off.text());

    fs::write(file, &bytes[..bytes.len() - 1]).unwrap();
    let damaged = run_with(argument(&cache));
    let (text, notes) = damaged.text_and_notes();
    assert_eq!(text, expected);
    assert_eq!(notes.matches("is ignored and rewritten").count(), 1, "{notes}");
    assert_eq!(run_with(argument(&cache)).text(), expected);
}
