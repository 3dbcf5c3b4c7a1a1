//! `inspect`.

use serde_json::{Value, json};

use crate::program::{argument, default_model, fields, repository, run};

#[test]
fn the_document_has_the_documented_fields() {
    let document = run(&["inspect", "--json", argument(&default_model())]).json();
    assert_eq!(fields(&document), ["version", "metadata", "parameters", "tensors"]);
    assert_eq!(document["version"], 3);
    assert_eq!(document["metadata"]["general.architecture"], "llama");
    // The shortest digits that identify the f32, not those of its f64 expansion.
    assert_eq!(document["metadata"]["llama.attention.layer_norm_rms_epsilon"], 1e-5);
    assert_eq!(document["metadata"]["tokenizer.ggml.tokens"].as_array().map(Vec::len), Some(8192));
    let tensors = document["tensors"].as_array().unwrap();
    assert!(tensors.iter().all(|tensor| fields(tensor) == ["name", "type", "shape", "offset", "bytes"]));
    let embedding = tensors.iter().find(|tensor| tensor["name"] == "token_embd.weight").unwrap();
    assert_eq!(embedding["type"], "Q8_0");
    assert_eq!(embedding["shape"], json!([512, 8192]));
    assert_eq!(embedding["bytes"], 512 / 32 * 34 * 8192);
}

#[test]
fn the_human_form_elides_long_values() {
    let run = run(&["inspect", argument(&default_model())]);
    let text = run.text();
    assert!(text.starts_with("GGUF 3, "), "{text}");
    assert!(text.lines().all(|line| line.chars().count() < 160), "a line is too long");
    assert!(text.contains("general.architecture") && text.contains("\"llama\""));
    assert!(text.contains("token_embd.weight") && text.contains("[512, 8192]"));
}

#[test]
fn a_mixture_has_fewer_active_parameters_than_all() {
    let folder = repository("crates/models/tests/data/forms/qwen2moe");
    let document = run(&["inspect", "--json", argument(&folder)]).json();
    let number = |value: &Value| value.as_u64().unwrap();
    let elements = |tensor: &Value| tensor["shape"].as_array().unwrap().iter().map(number).product::<u64>();
    let tensors = document["tensors"].as_array().unwrap();
    let of_experts = tensors.iter().filter(|tensor| tensor["name"].as_str().unwrap().contains("_exps."));
    let of_experts: u64 = of_experts.map(elements).sum();
    let [count, used] = ["expert_count", "expert_used_count"]
        .map(|key| number(&document["metadata"][format!("qwen2moe.{key}")]));
    let total: u64 = tensors.iter().map(elements).sum();
    let active = total - of_experts + of_experts / count * used;
    assert!(active < total);
    assert_eq!(document["parameters"], json!({"total": total, "active": active}));
    let text = run(&["inspect", argument(&folder)]);
    // Lines end before 80 columns.
    let words = text.text().split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains(&format!("({active} active per token)")), "{words}");
}

#[test]
fn every_value_type_is_shown() {
    for file in [
        "valid_every_value_type.gguf",
        "valid_float_metadata_nan.gguf",
        "valid_version2.gguf",
        "valid_empty.gguf",
    ] {
        let path = repository("crates/gguf-rs-lite/tests/data/malformed").join(file);
        let document = run(&["inspect", "--json", argument(&path)]).json();
        assert!(no_nulls(&document), "{file} lost a value: {document}");
        assert!(run(&["inspect", argument(&path)]).text().contains("metadata"));
    }
}

/// True if no value is `null`, as serde writes NaN and infinities.
fn no_nulls(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Array(elements) => elements.iter().all(no_nulls),
        Value::Object(fields) => fields.values().all(no_nulls),
        _ => true,
    }
}
