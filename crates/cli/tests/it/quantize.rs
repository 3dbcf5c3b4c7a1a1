//! `quantize`.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use crate::program::{argument, default_model, fields, repository, run, tiny_model};

/// A model with 256 values per row, so that every type fits.
fn source() -> std::path::PathBuf {
    repository("crates/models/tests/data/quant/llama-Q8_0.gguf")
}

/// Type of a tensor of a file.
fn type_of(path: &Path, name: &str) -> String {
    let document = run(&["inspect", "--json", argument(path)]).json();
    let tensors = document["tensors"].as_array().unwrap();
    let tensor = tensors.iter().find(|tensor| tensor["name"] == name).unwrap();
    tensor["type"].as_str().unwrap().to_owned()
}

#[test]
fn the_document_has_the_documented_fields() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out.gguf");
    let document = run(&["quantize", argument(&source()), argument(&out), "q4_k_m", "--json"]).json();
    let expected = ["input", "output", "type", "tensor_count", "bytes_before", "bytes_after", "fallbacks"];
    assert_eq!(fields(&document), expected);
    assert_eq!(document["type"], "Q4_K_M");
    assert_eq!(document["output"], argument(&out));
    assert_eq!(document["bytes_before"], fs::metadata(source()).unwrap().len());
    assert_eq!(document["bytes_after"], fs::metadata(&out).unwrap().len());
    assert_eq!(document["fallbacks"], json!([]));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing temporary is left");
}

#[test]
fn a_larger_type_than_the_source_is_warned_of() {
    let folder = tempfile::tempdir().unwrap();
    let (model, out) = (default_model(), folder.path().join("out.gguf"));
    let quantize = |kind: &str| run(&["quantize", argument(&model), argument(&out), kind, "--force"]);
    let up = quantize("f16");
    let (_, warning) = up.text_and_notes();
    assert!(warning.starts_with("warning: ") && warning.contains("is quantized already (Q8_0)"), "{warning}");
    assert!(warning.contains("larger"), "{warning}");
    assert!(quantize("q4_0").text().contains("tensors, "));
}

#[test]
fn every_type_makes_a_file_that_opens_and_runs() {
    let folder = tempfile::tempdir().unwrap();
    let before = run(&["inspect", "--json", argument(&source())]).json();
    for (name, query) in [
        ("F32", "F32"),
        ("F16", "F16"),
        ("BF16", "BF16"),
        ("Q8_0", "Q8_0"),
        ("Q6_K", "Q6_K"),
        ("Q5_K_M", "Q5_K"),
        ("Q5_K_S", "Q5_K"),
        ("Q5_1", "Q5_1"),
        ("Q5_0", "Q5_0"),
        ("Q4_K_M", "Q4_K"),
        ("Q4_K_S", "Q4_K"),
        ("Q4_1", "Q4_1"),
        ("Q4_0", "Q4_0"),
        ("IQ4_NL", "IQ4_NL"),
        ("IQ4_XS", "IQ4_XS"),
        ("Q3_K_L", "Q3_K"),
        ("Q3_K_M", "Q3_K"),
        ("Q2_K", "Q2_K"),
        ("Q2_K_S", "Q2_K"),
        ("MXFP4", "MXFP4"),
        ("IQ3_M", "IQ3_S"),
        ("IQ3_S", "IQ3_S"),
        ("IQ3_XXS", "IQ2_S"),
        ("IQ2_M", "IQ2_S"),
        ("IQ2_S", "IQ2_XS"),
        ("IQ2_XS", "IQ2_XS"),
        ("IQ2_XXS", "IQ2_XXS"),
        ("IQ1_M", "IQ1_M"),
        ("IQ1_S", "IQ1_S"),
        ("TQ2_0", "TQ2_0"),
        ("TQ1_0", "TQ1_0"),
    ] {
        let out = folder.path().join(format!("{name}.gguf"));
        let report = run(&["quantize", argument(&source()), argument(&out), name]);
        // The source is quantized: larger types cause a warning.
        assert!(report.text_and_notes().0.contains(name), "{report:?}");
        assert_eq!(type_of(&out, "blk.0.attn_q.weight"), query);
        assert_eq!(type_of(&out, "blk.0.attn_norm.weight"), "F32");
        let after = run(&["inspect", "--json", argument(&out)]).json();
        assert_eq!(after["version"], 3);
        assert_eq!(after["metadata"]["general.quantization_version"], 2);
        for (key, value) in before["metadata"].as_object().unwrap() {
            assert!(key.starts_with("general.file_type") || after["metadata"][key] == *value, "{key}");
        }
        let tokens = run(&["generate", "--model", argument(&out), "--max-tokens", "2", "--json", "a"]).json();
        assert!(tokens.is_object());
    }
}

#[test]
fn the_built_in_model_in_four_bits_still_writes_english() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("small.gguf");
    run(&["quantize", argument(&default_model()), argument(&out), "Q4_K_M", "--threads", "2"]).text();
    let flags = ["--temperature", "0", "--max-tokens", "24", "Once upon a time"];
    let text = run(&[&["generate", "--model", argument(&out)], &flags[..]].concat()).text().to_owned();
    assert!(
        text.split_whitespace().filter(|word| ["a", "the", "was", "and"].contains(word)).count() >= 2,
        "{text}"
    );
}

#[test]
fn the_number_of_threads_does_not_show() {
    let folder = tempfile::tempdir().unwrap();
    let [one, three] = ["one", "three"].map(|name| folder.path().join(name));
    for (out, threads) in [(&one, "1"), (&three, "3")] {
        run(&["quantize", argument(&source()), argument(out), "Q3_K_M", "--threads", threads]).text();
    }
    assert!(fs::read(one).unwrap() == fs::read(three).unwrap());
}

#[test]
fn rows_that_do_not_fit_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out.gguf");
    // Rows of 64 values.
    let document = run(&["quantize", argument(&tiny_model()), argument(&out), "Q4_K_M", "--json"]).json();
    let fallbacks = document["fallbacks"].as_array().unwrap();
    let query = fallbacks.iter().find(|fallback| fallback["tensor"] == "blk.0.attn_q.weight").unwrap();
    assert_eq!(*query, json!({"tensor": "blk.0.attn_q.weight", "wanted": "Q4_K", "type": "Q5_0"}));
    assert_eq!(type_of(&out, "blk.0.attn_q.weight"), "Q5_0");
    let text = run(&["quantize", argument(&tiny_model()), argument(&out), "Q4_K_M", "--force"]);
    assert!(text.text().contains("Q5_0 instead of Q4_K"));
}

#[test]
fn pure_files_have_one_type() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out.gguf");
    run(&["quantize", argument(&source()), argument(&out), "Q4_0"]).text();
    assert_eq!(type_of(&out, "output.weight"), "Q6_K");
    run(&["quantize", argument(&source()), argument(&out), "Q4_0", "--pure", "--force"]).text();
    assert_eq!(type_of(&out, "output.weight"), "Q4_0");
}

#[test]
fn nothing_is_written_over_unasked() {
    let folder = tempfile::tempdir().unwrap();
    let [input, out] = ["in.gguf", "out.gguf"].map(|name| folder.path().join(name));
    fs::copy(source(), &input).unwrap();
    let same = folder.path().join(".").join("in.gguf");
    run(&["quantize", argument(&input), argument(&same), "Q4_0", "--force"]).fails_with(2, &["same file"]);
    fs::write(&out, "mine").unwrap();
    run(&["quantize", argument(&input), argument(&out), "Q4_0"]).fails_with(1, &["exists", "--force"]);
    assert_eq!(fs::read(&out).unwrap(), b"mine");
    run(&["quantize", argument(&input), argument(folder.path()), "Q4_0"]).fails_with(1, &["directory"]);
    run(&["quantize", argument(&input), argument(&out), "Q4_0", "--force"]).text();
    assert!(fs::metadata(&out).unwrap().len() > 1000);
}

#[test]
fn an_unknown_type_lists_the_known_ones() {
    run(&["quantize", "a", "b", "Q9_K"]).fails_with(2, &["Q9_K", "Q4_K_M", "IQ4_XS", "--help"]);
}

#[test]
fn an_absent_input_and_a_folder_that_is_not_there() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("none").join("out.gguf");
    run(&["quantize", "absent.gguf", argument(&out), "Q4_0"]).fails_with(1, &["absent.gguf"]);
    run(&["quantize", argument(&source()), argument(&out), "Q4_0"]).fails_with(1, &["none"]);
}

#[test]
fn a_weight_that_is_not_a_number_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let [input, out] = ["in.gguf", "out.gguf"].map(|name| folder.path().join(name));
    let mut bytes = fs::read(tiny_model()).unwrap();
    let document = run(&["inspect", "--json", argument(&tiny_model())]).json();
    let tensors = document["tensors"].as_array().unwrap();
    let data: u64 = tensors.iter().map(end_of).max().unwrap();
    let start = bytes.len() as u64 - data.next_multiple_of(32);
    let tensor = tensors.iter().find(|tensor| tensor["name"] == "blk.0.ffn_up.weight").unwrap();
    let at = (start + tensor["offset"].as_u64().unwrap()) as usize + 4 * 64 * 3;
    for (value, shown) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf"), (1e6, "1000000")] {
        bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        fs::write(&input, &bytes).unwrap();
        let refused = run(&["quantize", argument(&input), argument(&out), "Q8_0"]);
        refused.fails_with(1, &["blk.0.ffn_up.weight", "row 3", shown, "Q8_0"]);
        assert!(!out.exists());
    }
}

/// End of a tensor's data in bytes, relative to the first tensor.
fn end_of(tensor: &Value) -> u64 {
    tensor["offset"].as_u64().unwrap() + tensor["bytes"].as_u64().unwrap()
}
