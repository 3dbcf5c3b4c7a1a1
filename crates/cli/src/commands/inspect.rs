//! `ruvllm inspect`: metadata and tensors of a GGUF file or a Hugging Face folder.

use std::path::{Path, PathBuf};

use clap::Args;
use gguf_rs_lite::{Array, TensorInfo, Value};
use ruvllm_models::{Checkpoint, ParameterCounts};
use serde::Serialize;
use serde_json::Value as Json;

use crate::default_model::ModelChoice;
use crate::error::{Result, printable};
use crate::output;

const HELP: &str = "\
Shapes are in the order of the file: ne[0], the number of columns, comes first. Offsets count from the start of
the tensor data. Of a split model, name the first part; all its parts are opened. A Hugging Face folder appears as
the GGUF file that `ruvllm convert` makes of it, but for the vocabulary.

JSON: {version, metadata, parameters: {total, active}, tensors: [{name, type, shape, offset, bytes}]}; active are the
parameters that compute a token, fewer than all in a mixture of experts; metadata is an object from key to value,
complete; numbers that JSON does not have appear as the strings \"NaN\", \"inf\" and \"-inf\". A folder has no version
and no offsets.

Examples:
  ruvllm inspect model.gguf
  ruvllm inspect --json model.gguf | jq '.metadata[\"general.architecture\"]'";

/// Array elements shown in the text form.
const SHOWN_ELEMENTS: usize = 6;

/// Characters of a string shown in the text form.
const SHOWN_CHARS: usize = 60;

/// Show metadata and tensors of a model file or folder
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct InspectArgs {
    /// The GGUF file or Hugging Face folder
    file: PathBuf,
}

/// The JSON document.
#[derive(Serialize)]
struct Document {
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<u32>,
    metadata: serde_json::Map<String, Json>,
    parameters: Parameters,
    tensors: Vec<Tensor>,
}

/// Numbers of parameters in the JSON document.
#[derive(Serialize)]
struct Parameters {
    total: u64,
    active: u64,
}

/// One tensor of the JSON document.
#[derive(Serialize)]
struct Tensor {
    name: String,
    r#type: &'static str,
    shape: Vec<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    offset: Option<u64>,
    bytes: u64,
}

impl Tensor {
    fn new(tensor: &TensorInfo, has_offset: bool) -> Self {
        Self {
            name: tensor.name.clone(),
            r#type: tensor.tensor_type.name(),
            shape: tensor.dims.clone(),
            offset: has_offset.then_some(tensor.offset),
            bytes: tensor.bytes(),
        }
    }
}

pub(crate) fn run(args: &InspectArgs, json: bool) -> Result<()> {
    show(&args.file, json)
}

/// Prints metadata and tensors of a model file, folder or stored model.
///
/// # Errors
/// As [`ModelChoice::open`].
pub(super) fn show(file: &Path, json: bool) -> Result<()> {
    let model = ModelChoice::new(Some(file)).open()?;
    if json {
        let version = model.gguf_version();
        let metadata = model.metadata().iter().map(|(key, value)| (key.to_owned(), to_json(value))).collect();
        let tensors = model.tensors().map(|tensor| Tensor::new(tensor, version.is_some())).collect();
        let ParameterCounts { total, active, .. } = ParameterCounts::of(&*model);
        let parameters = Parameters { total, active };
        return output::write_json(&Document { version, metadata, parameters, tensors });
    }
    output::write_text(&human(&*model)).map(|_| ())
}

/// Text form: a summary, the metadata with long values shortened, and a table of tensors.
fn human(model: &dyn Checkpoint) -> String {
    let version = model.gguf_version();
    let metadata: Vec<Vec<String>> = model
        .metadata()
        .iter()
        .map(|(key, value)| vec![format!("  {}", printable(key)), type_name(value), short(value)])
        .collect();
    let tensors: Vec<Vec<String>> = model
        .tensors()
        .map(|tensor| {
            vec![
                format!("  {}", printable(&tensor.name)),
                tensor.tensor_type.name().to_owned(),
                format!("{:?}", tensor.dims),
                output::bytes(tensor.bytes()),
                version.map_or_else(String::new, |_| format!("at {}", tensor.offset)),
            ]
        })
        .collect();
    let total: u64 = model.tensors().map(TensorInfo::bytes).fold(0, u64::saturating_add);
    let ParameterCounts { total: elements, active, .. } = ParameterCounts::of(model);
    let head = format!(
        "{}, {}, {}, {}{}, {}",
        version.map_or_else(|| "Hugging Face folder".to_owned(), |version| format!("GGUF {version}")),
        output::counted(metadata.len(), "metadata key"),
        output::counted(tensors.len(), "tensor"),
        output::counted(usize::try_from(elements).unwrap_or(usize::MAX), "parameter"),
        if active == elements { String::new() } else { format!(" ({active} active per token)") },
        output::bytes(total),
    );
    format!(
        "{}\n\nmetadata\n{}\ntensors\n{}",
        output::wrapped(&head, crate::console::columns()),
        output::table(&metadata, &[]),
        output::table(&tensors, &[3]),
    )
}

/// The complete value as JSON.
fn to_json(value: &Value) -> Json {
    match value {
        Value::U8(x) => (*x).into(),
        Value::I8(x) => (*x).into(),
        Value::U16(x) => (*x).into(),
        Value::I16(x) => (*x).into(),
        Value::U32(x) => (*x).into(),
        Value::I32(x) => (*x).into(),
        Value::U64(x) => (*x).into(),
        Value::I64(x) => (*x).into(),
        Value::F32(x) => float32(*x),
        Value::F64(x) => float64(*x),
        Value::Bool(x) => (*x).into(),
        Value::String(x) => x.as_str().into(),
        Value::Array(array) => array_to_json(array, usize::MAX),
    }
}

/// The first `limit` elements of an array as JSON.
fn array_to_json(array: &Array, limit: usize) -> Json {
    /// Elements with a direct JSON equivalent.
    fn plain<T: Clone + Into<Json>>(values: &[T], limit: usize) -> Json {
        values.iter().take(limit).cloned().map(Into::into).collect()
    }
    match array {
        Array::U8(x) => plain(x, limit),
        Array::I8(x) => plain(x, limit),
        Array::U16(x) => plain(x, limit),
        Array::I16(x) => plain(x, limit),
        Array::U32(x) => plain(x, limit),
        Array::I32(x) => plain(x, limit),
        Array::U64(x) => plain(x, limit),
        Array::I64(x) => plain(x, limit),
        Array::F32(x) => x.iter().take(limit).copied().map(float32).collect(),
        Array::F64(x) => x.iter().take(limit).copied().map(float64).collect(),
        Array::Bool(x) => plain(x, limit),
        Array::String(x) => plain(x, limit),
        Array::Array(x) => x.iter().take(limit).map(|inner| array_to_json(inner, limit)).collect(),
    }
}

/// Converts an f32 with its shortest round-trip digits: 1e-5, not 9.999999747378752e-6.
fn float32(x: f32) -> Json {
    float64(x.to_string().parse().unwrap_or_else(|_| f64::from(x)))
}

/// JSON number; NaN and infinities become strings.
fn float64(x: f64) -> Json {
    serde_json::Number::from_f64(x).map_or_else(|| Json::String(x.to_string()), Json::Number)
}

/// Type of a value: `u32`, `string`, `[f32; 8192]`.
fn type_name(value: &Value) -> String {
    match value {
        Value::Array(array) => format!("[{}; {}]", array.element_type().name(), array.len()),
        other => other.value_type().name().to_owned(),
    }
}

/// The value on one short line.
fn short(value: &Value) -> String {
    match value {
        Value::String(text) => short_text(text),
        Value::Array(array) => {
            let Json::Array(elements) = array_to_json(array, SHOWN_ELEMENTS) else { return String::new() };
            let mut shown: Vec<String> = elements.iter().map(short_json).collect();
            if array.len() > elements.len() {
                shown.push("...".to_owned());
            }
            format!("[{}]", shown.join(", "))
        }
        other => short_json(&to_json(other)),
    }
}

/// A JSON value on one short line.
fn short_json(value: &Json) -> String {
    match value {
        Json::String(text) => short_text(text),
        other => {
            let text = other.to_string();
            if text.chars().count() <= SHOWN_CHARS {
                text
            } else {
                text.chars().take(SHOWN_CHARS).collect::<String>() + "..."
            }
        }
    }
}

/// Quoted text, cut to [`SHOWN_CHARS`] characters.
fn short_text(text: &str) -> String {
    let n_chars = text.chars().count();
    if n_chars <= SHOWN_CHARS {
        return format!("{text:?}");
    }
    let start: String = text.chars().take(SHOWN_CHARS).collect();
    format!("{start:?}... ({n_chars} characters)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_keep_their_shortest_digits() {
        assert_eq!(float32(1e-5), 1e-5);
        assert_eq!(float32(0.1).to_string(), "0.1");
        assert_eq!(float32(f32::NAN), "NaN");
        assert_eq!(float64(f64::NEG_INFINITY), "-inf");
    }

    #[test]
    fn long_values_are_elided_for_people_only() {
        let array = Array::U32((0..100).collect());
        assert_eq!(short(&Value::Array(array.clone())), "[0, 1, 2, 3, 4, 5, ...]");
        assert_eq!(to_json(&Value::Array(array)).as_array().map(Vec::len), Some(100));
        assert!(short(&Value::String("x".repeat(100))).ends_with("(100 characters)"));
        assert_eq!(short(&Value::String("a\nb".to_owned())), r#""a\nb""#);
    }
}
