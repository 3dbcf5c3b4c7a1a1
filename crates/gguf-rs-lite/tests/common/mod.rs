//! Shared helpers: building files, and strategies for arbitrary metadata and tensors.

#![allow(dead_code, reason = "each test binary uses a part")]

use std::path::PathBuf;

use gguf_rs_lite::{Array, Metadata, TensorInfo, TensorType, Value, Writer};
use proptest::{
    collection::vec,
    prelude::*,
    test_runner::{Config, RngSeed},
};

/// A fixed seed, so that every run tests the same cases.
pub(crate) fn config(cases: u32) -> Config {
    Config {
        cases: cases * Config::default().cases / 256,
        rng_seed: RngSeed::Fixed(0x6767_7566),
        failure_persistence: None,
        ..Config::default()
    }
}

/// The folder of a set of test files.
pub(crate) fn data_dir(set: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(set)
}

/// A file with the given content, in memory.
pub(crate) fn build(metadata: &Metadata, tensors: &[(TensorInfo, Vec<u8>)]) -> Vec<u8> {
    let declared = tensors.iter().map(|(tensor, _)| tensor.clone());
    let mut writer = Writer::new(Vec::new(), metadata, declared).expect("valid declarations");
    for (tensor, data) in tensors {
        writer.write_tensor(tensor, data).expect("data of the declared size");
    }
    writer.finish().expect("all data written")
}

/// A small file with a bit of everything.
pub(crate) fn sample() -> Vec<u8> {
    let mut metadata = Metadata::new();
    metadata.insert("general.architecture", "llama");
    metadata.insert("general.alignment", 64u32);
    metadata.insert("llama.rope.freq_base", 10_000.0f32);
    metadata.insert("tokenizer.ggml.add_bos_token", true);
    metadata.insert("tokenizer.ggml.tokens", vec!["<s>".to_owned(), "é".to_owned(), String::new()]);
    metadata.insert("tokenizer.ggml.token_type", vec![3i32, 1, -1]);
    metadata
        .insert("nested", vec![Array::U16(vec![1, 2]), Array::Array(vec![Array::Bool(vec![true, false])])]);
    let tensors = [
        tensor("token_embd.weight", &[32, 3], TensorType::Q8_0),
        tensor("output_norm.weight", &[5], TensorType::F32),
        tensor("empty", &[0, 7], TensorType::F16),
        tensor("scalar", &[], TensorType::I64),
    ];
    build(&metadata, &tensors)
}

/// A tensor with recognizable data.
pub(crate) fn tensor(name: &str, dims: &[u64], tensor_type: TensorType) -> (TensorInfo, Vec<u8>) {
    let info = TensorInfo::new(name, dims, tensor_type).expect("a valid tensor");
    let data = (0..info.bytes()).map(|i| (i * 7 + name.len() as u64) as u8).collect();
    (info, data)
}

/// Any value, with floats that equal themselves.
pub(crate) fn value() -> impl Strategy<Value = Value> {
    let float = any::<f32>().prop_map(|v| if v.is_nan() { f32::INFINITY } else { v });
    let double = any::<f64>().prop_map(|v| if v.is_nan() { -0.0 } else { v });
    prop_oneof![
        any::<u8>().prop_map(Value::U8),
        any::<i8>().prop_map(Value::I8),
        any::<u16>().prop_map(Value::U16),
        any::<i16>().prop_map(Value::I16),
        any::<u32>().prop_map(Value::U32),
        any::<i32>().prop_map(Value::I32),
        float.prop_map(Value::F32),
        any::<bool>().prop_map(Value::Bool),
        ".{0,20}".prop_map(Value::String),
        array().prop_map(Value::Array),
        any::<u64>().prop_map(Value::U64),
        any::<i64>().prop_map(Value::I64),
        double.prop_map(Value::F64),
    ]
}

/// Any array, nested up to four deep.
pub(crate) fn array() -> impl Strategy<Value = Array> {
    let flat = prop_oneof![
        vec(any::<u8>(), 0..40).prop_map(Array::U8),
        vec(any::<i8>(), 0..40).prop_map(Array::I8),
        vec(any::<u16>(), 0..40).prop_map(Array::U16),
        vec(any::<i16>(), 0..40).prop_map(Array::I16),
        // Longer than what the reader takes at a time.
        vec(any::<u32>(), 0..3000).prop_map(Array::U32),
        vec(any::<i32>(), 0..40).prop_map(Array::I32),
        vec(-1e30f32..1e30, 0..40).prop_map(Array::F32),
        vec(any::<bool>(), 0..40).prop_map(Array::Bool),
        vec(".{0,9}", 0..90).prop_map(Array::String),
        vec(any::<u64>(), 0..40).prop_map(Array::U64),
        vec(any::<i64>(), 0..40).prop_map(Array::I64),
        vec(-1e300f64..1e300, 0..40).prop_map(Array::F64),
    ];
    flat.prop_recursive(3, 30, 4, |inner| vec(inner, 0..4).prop_map(Array::Array))
}

/// Any metadata, sometimes with an alignment.
pub(crate) fn metadata() -> impl Strategy<Value = Metadata> {
    let alignment = prop::option::of((3u32..10).prop_map(|shift| 1u32 << shift));
    (vec(("[a-z_.é]{1,24}", value()), 0..12), alignment).prop_map(|(entries, alignment)| {
        let mut metadata: Metadata = entries.into_iter().collect();
        if let Some(alignment) = alignment {
            metadata.insert("general.alignment", alignment);
        }
        metadata
    })
}

/// Up to eight small tensors of any types with random data; some have no elements.
pub(crate) fn tensors() -> impl Strategy<Value = Vec<(TensorInfo, Vec<u8>)>> {
    let shape = (prop::sample::select(TensorType::ALL), 0u64..4, vec(0u64..5, 0..=3));
    let one = shape.prop_flat_map(|(tensor_type, blocks, rest)| {
        let mut dims = vec![blocks * tensor_type.block_len()];
        dims.extend(rest);
        if tensor_type.block_len() == 1 && blocks == 0 && dims.len() == 1 {
            dims.clear(); // a scalar
        }
        let info = TensorInfo::new("unnamed", dims, tensor_type).expect("a valid shape");
        let bytes = info.bytes() as usize;
        (Just(info), vec(any::<u8>(), bytes))
    });
    vec(one, 0..8).prop_map(|mut tensors| {
        for (i, (info, _)) in tensors.iter_mut().enumerate() {
            info.name = format!("blk.{i}.weight");
        }
        tensors
    })
}
