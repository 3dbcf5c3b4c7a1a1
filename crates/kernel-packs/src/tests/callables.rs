//! Kernels beside the signatures of their categories.

use serde_json::{Value, json};

use super::complete;
use crate::Manifest;
use crate::manifest::{Category, DType};
use crate::signature::{Callable, Mismatch};

/// Tensors and parameters of the signature of a category, for a type of its tensors.
pub(super) fn form(callable: Callable) -> Value {
    let t = callable.dtype.name();
    let tensor =
        |name: &str, dtype: &str, shape: &[&str]| json!({"name": name, "dtype": dtype, "shape": shape});
    let (inputs, output, parameters) = match callable.category {
        Category::RmsNorm => (
            vec![tensor("x", t, &["rows", "dim"]), tensor("weight", "f32", &["dim"])],
            tensor("y", t, &["rows", "dim"]),
            json!([{"name": "eps", "type": "f32", "default": 1e-6}]),
        ),
        Category::Swiglu => {
            (vec![tensor("gate", t, &["n"]), tensor("up", t, &["n"])], tensor("y", t, &["n"]), json!([]))
        }
        Category::Rope => (
            vec![
                tensor("x", t, &["tokens", "heads", "dim"]),
                tensor("cos", "f32", &["tokens", "pairs"]),
                tensor("sin", "f32", &["tokens", "pairs"]),
            ],
            tensor("y", t, &["tokens", "heads", "dim"]),
            json!([{"name": "interleaved", "type": "bool", "default": false}]),
        ),
        Category::KvPack => {
            (vec![tensor("x", "f32", &["rows", "dim"])], tensor("packed", t, &["rows", "dim"]), json!([]))
        }
        Category::KvUnpack => {
            (vec![tensor("packed", t, &["rows", "dim"])], tensor("x", "f32", &["rows", "dim"]), json!([]))
        }
        _ => (
            vec![
                tensor("x", "f32", &["rows", "inputs"]),
                tensor("a", t, &["rank", "inputs"]),
                tensor("b", t, &["outputs", "rank"]),
                tensor("base", "f32", &["rows", "outputs"]),
            ],
            tensor("y", "f32", &["rows", "outputs"]),
            json!([{"name": "scale", "type": "f32"}]),
        ),
    };
    json!({
        "id": "kernel", "name": "Kernel", "category": callable.category.name(), "path": "kernel.wasm",
        "inputs": inputs, "outputs": [output], "parameters": parameters,
        "platforms": super::platforms()
    })
}

/// Result for a kernel of this form, which must be one that a manifest can have.
fn callable(kernel: &Value) -> Result<Callable, Mismatch> {
    let mut kernel = kernel.clone();
    let mut manifest = complete();
    for field in ["sha256", "bytes"] {
        kernel[field] = manifest["kernels"][0][field].clone();
    }
    manifest["kernels"] = json!([kernel]);
    let manifest = Manifest::parse(manifest.to_string().as_bytes()).unwrap();
    manifest.kernels[0].callable()
}

fn norm() -> Value {
    form(Callable { category: Category::RmsNorm, dtype: DType::F32 })
}

#[test]
fn kernels_with_the_signature_of_their_category_are_callable() {
    let mut count = 0;
    for expected in Callable::all() {
        assert_eq!(callable(&form(expected)), Ok(expected));
        count += 1;
    }
    assert_eq!(count, 13);
    let name = Callable { category: Category::LoraApply, dtype: DType::F16 }.to_string();
    assert_eq!(name, "lora_apply of f16");
}

#[test]
fn other_types_are_not_callable() {
    for expected in Callable::all() {
        for dtype in DType::ALL {
            let other = Callable { dtype, ..expected };
            if !Callable::all().any(|known| known == other) {
                assert!(matches!(callable(&form(other)), Err(Mismatch::Type { .. })), "{other}");
            }
        }
    }
    let mut mixed = norm();
    mixed["outputs"][0]["dtype"] = json!("f16");
    let mismatch = callable(&mixed).unwrap_err();
    assert_eq!(mismatch.to_string(), "y has the type f16, the signature allows f32");
}

#[test]
fn parameters_defaults_do_not_count() {
    let mut kernel = norm();
    kernel["parameters"][0]["default"] = json!(0.5);
    assert!(callable(&kernel).is_ok());
    kernel["parameters"] = json!([{"name": "eps", "type": "f32"}]);
    assert!(callable(&kernel).is_ok());
}

#[test]
fn every_difference_has_a_reason() {
    let differences: [(&str, Value, &str); 8] = [
        ("/category", json!("other"), "kernels of the category other have no signature"),
        ("/inputs/0/name", json!("input"), "input 0 has the name \"input\", the signature has \"x\""),
        ("/inputs/0/shape", json!(["rows", 64]), "x has the shape [rows, 64], the signature has [rows, dim]"),
        ("/inputs/1/shape", json!(["rows"]), "weight has the shape [rows], the signature has [dim]"),
        ("/inputs/1/dtype", json!("f16"), "weight has the type f16, the signature allows f32"),
        ("/parameters/0/name", json!("epsilon"), "parameter 0 has the name \"epsilon\""),
        ("/parameters/0/type", json!("f64"), "the parameter eps has the type f64, the signature has f32"),
        ("/parameters", json!([]), "it has 0 parameters, the signature of rms_norm has 1"),
    ];
    for (place, value, reason) in differences {
        let mut kernel = norm();
        *kernel.pointer_mut(place).unwrap() = value;
        let text = callable(&kernel).unwrap_err().to_string();
        assert!(text.starts_with(reason), "{place}: {text}");
    }
    let mut kernel = norm();
    kernel["inputs"].as_array_mut().unwrap().pop();
    let mismatch = callable(&kernel).unwrap_err();
    assert_eq!(mismatch.to_string(), "it has 1 inputs, the signature of rms_norm has 2");
    let mut kernel = norm();
    kernel["inputs"].as_array_mut().unwrap().reverse();
    assert!(matches!(callable(&kernel), Err(Mismatch::Name { index: 0, .. })));
}
