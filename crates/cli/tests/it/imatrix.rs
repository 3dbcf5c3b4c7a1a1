//! `imatrix`, and `quantize` with `--imatrix` and `--tensor-type`.

use std::fs;
use std::path::{Path, PathBuf};

use crate::program::{argument, data, default_model, fields, repository, run, tiny_model};

/// An importance matrix of the default model.
fn matrix(folder: &Path) -> PathBuf {
    let (model, text) = (default_model(), data("validation-prefix.txt"));
    let out = folder.join("imatrix.gguf");
    let arguments = ["imatrix", argument(&model), "--file", argument(&text), "--out", argument(&out)];
    let arguments = [&arguments[..], &["--context", "256", "--tokens", "1024", "--json"]].concat();
    let document = run(&arguments).json();
    assert_eq!(fields(&document), ["output", "tokens", "tensors", "bytes"]);
    assert_eq!(document["tokens"], 1024);
    assert_eq!(document["bytes"], fs::metadata(&out).unwrap().len());
    run(&arguments).fails_with(1, &["exists", "--force"]);
    out
}

fn perplexity(model: &Path) -> f64 {
    let text = data("validation-prefix.txt");
    let arguments = ["eval", "perplexity", "-m", argument(model), "--file", argument(&text), "--json"];
    let document = run(&[&arguments[..], &["--context", "256", "--limit", "1024"]].concat()).json();
    document["perplexity"].as_f64().unwrap()
}

#[test]
fn importance_lowers_the_loss_of_small_types() {
    let folder = tempfile::tempdir().unwrap();
    let (model, matrix) = (default_model(), matrix(folder.path()));
    let [plain, weighted] = ["plain.gguf", "weighted.gguf"].map(|name| folder.path().join(name));
    // The down projections alone: a search over all weights takes a minute.
    let quantize = |out: &Path, more: &[&str]| {
        let arguments =
            ["quantize", argument(&model), argument(out), "Q8_0", "--tensor-type", "ffn_down=IQ2_XS"];
        run(&[&arguments, more].concat()).text();
    };
    quantize(&plain, &[]);
    quantize(&weighted, &["--imatrix", argument(&matrix)]);
    assert_eq!(fs::metadata(&plain).unwrap().len(), fs::metadata(&weighted).unwrap().len());
    let (plain, weighted) = (perplexity(&plain), perplexity(&weighted));
    assert!(weighted < plain, "{weighted} with importance, {plain} without");
}

#[test]
fn a_matrix_of_another_model_and_other_files_are_one_error() {
    let folder = tempfile::tempdir().unwrap();
    let (matrix, out) = (matrix(folder.path()), folder.path().join("out.gguf"));
    let quantize = |matrix: &Path| {
        run(&["quantize", argument(&tiny_model()), argument(&out), "Q4_0", "--imatrix", argument(matrix)])
    };
    quantize(&matrix).fails_with(1, &["importance matrix is of another model"]);
    quantize(&tiny_model()).fails_with(1, &["not an importance matrix", "general.type"]);
    let cut = folder.path().join("cut.gguf");
    let bytes = fs::read(&matrix).unwrap();
    fs::write(&cut, &bytes[..bytes.len() / 2]).unwrap();
    quantize(&cut).fails_with(1, &["cut.gguf"]);
    quantize(&folder.path().join("absent")).fails_with(1, &["absent"]);
    assert!(!out.exists());
}

#[test]
fn both_file_formats_of_llama_cpp_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let source = repository("crates/models/tests/data/quant/llama-Q8_0.gguf");
    let written = |name: &str, kind: &str, matrix: Option<&str>| {
        let out = folder.path().join(name);
        let matrix = matrix.map(|file| repository(&format!("crates/models/tests/data/imatrix/{file}")));
        let mut arguments = vec!["quantize", argument(&source), argument(&out), kind, "--pure"];
        if let Some(matrix) = &matrix {
            arguments.extend(["--imatrix", argument(matrix)]);
        }
        run(&arguments).text();
        fs::read(&out).unwrap()
    };
    for kind in ["Q4_0", "IQ3_S", "IQ1_M"] {
        let equal = written(&format!("{kind}-equal"), kind, None);
        let weighted = written(&format!("{kind}-gguf"), kind, Some("llama-cpp.gguf"));
        assert!(weighted == written(&format!("{kind}-dat"), kind, Some("llama-cpp.dat")), "{kind}");
        assert!(weighted != equal && weighted.len() == equal.len(), "{kind}");
    }
}

#[test]
fn a_matrix_of_the_same_columns_and_other_layers_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (matrix, out) = (folder.path().join("two-layers.dat"), folder.path().join("out.gguf"));
    let source = repository("crates/models/tests/data/quant/llama-Q8_0.gguf");
    let bytes = fs::read(repository("crates/models/tests/data/imatrix/llama-cpp.dat")).unwrap();
    // The first name is `blk.0.attn_k.weight`, behind the numbers of entries and of its bytes.
    let renamed = [&bytes[..12], b"7", &bytes[13..]].concat();
    fs::write(&matrix, renamed).unwrap();
    run(&["quantize", argument(&source), argument(&out), "IQ3_S", "--imatrix", argument(&matrix)])
        .fails_with(1, &["importance matrix is of another model", "blk.7.attn_k.weight"]);
    assert!(!out.exists());
}

#[test]
fn types_of_single_tensors_come_before_the_recipe() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out.gguf");
    let source = repository("crates/models/tests/data/quant/llama-Q8_0.gguf");
    let arguments = ["quantize", argument(&source), argument(&out), "Q4_0"];
    let more = ["--tensor-type", "blk.0.*_v=iq3_s", "--tensor-type", "attn_*.weight=MXFP4"];
    run(&[&arguments[..], &more].concat()).text();
    let document = run(&["inspect", "--json", argument(&out)]).json();
    let tensors = document["tensors"].as_array().unwrap();
    for (name, expected) in
        [("blk.0.attn_v.weight", "IQ3_S"), ("blk.0.attn_k.weight", "MXFP4"), ("blk.0.ffn_up.weight", "Q4_0")]
    {
        let tensor = tensors.iter().find(|tensor| tensor["name"] == name).unwrap();
        assert_eq!(tensor["type"], expected, "{name}");
    }
    run(&[&arguments[..], &["--force", "--tensor-type", "nothing=Q8_0"]].concat())
        .fails_with(1, &["no weight matrix", "`nothing`"]);
    run(&[&arguments[..], &["--tensor-type", "attn_v=Q9"]].concat()).fails_with(2, &["Q9", "IQ3_S"]);
    run(&[&arguments[..], &["--tensor-type", "attn_v"]].concat()).fails_with(2, &["PATTERN=TYPE"]);
}
