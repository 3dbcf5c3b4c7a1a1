//! Opening a GGUF file: parsing its header, with a vocabulary of real size, from memory.

use gguf_rs_lite::{Array, Gguf, Metadata, TensorInfo, TensorType, Value, Writer};
use ruvllm_benches::{Suite, Work};

fn main() {
    let mut suite = Suite::new();
    let (vocabulary, tensors) = if suite.is_test() { (16, 3) } else { (128_256, 300) };
    let file: &'static [u8] = header(vocabulary, tensors).leak();
    let work = Work { bytes: file.len() as u64, flops: 0 };
    suite.measure("open", &format!("tokens={vocabulary} tensors={tensors}"), work, || {
        let model = Gguf::from_static(file).expect("a well-formed file");
        assert_eq!(model.tensors().count(), tensors);
    });
    suite.finish();
}

/// A file with a vocabulary and many tiny tensors.
fn header(vocabulary: usize, tensors: usize) -> Vec<u8> {
    let mut metadata = Metadata::new();
    metadata.insert("general.architecture", "llama");
    let tokens = (0..vocabulary).map(|i| format!("token{i}")).collect();
    metadata.insert("tokenizer.ggml.tokens", Value::Array(Array::String(tokens)));
    metadata.insert("tokenizer.ggml.scores", Value::Array(Array::F32(vec![0.0; vocabulary])));
    let names: Vec<String> = (0..tensors).map(|i| format!("blk.{i}.attn_norm.weight")).collect();
    let declared =
        names.iter().map(|name| TensorInfo::new(name, [4], TensorType::F32).expect("a small tensor"));
    let mut writer = Writer::new(Vec::new(), &metadata, declared).expect("a header");
    for name in &names {
        writer.write_tensor(name, &[0; 16]).expect("data of the declared size");
    }
    writer.finish().expect("a complete file")
}
