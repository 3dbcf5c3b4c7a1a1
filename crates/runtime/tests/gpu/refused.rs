//! Models and options that the backend refuses, by name.

use gguf_rs_lite::{Gguf, TensorInfo, TensorType, Writer};
use ruvllm::{Error, GpuOptions, ModelSource};

use crate::support::{chain, options, prompt_logits, tiny, try_load};

/// A tiny model with changed tensors.
fn changed(name: &str, tensor: impl Fn(&mut TensorInfo, &mut Vec<u8>)) -> ModelSource {
    let gguf = Gguf::open(tiny(name, "model-F16.gguf")).expect("the model");
    let tensors: Vec<(TensorInfo, Vec<u8>)> = gguf
        .tensors()
        .map(|info| {
            let (mut info, mut data) = (info.clone(), gguf.data(info).expect("data").as_bytes().to_vec());
            tensor(&mut info, &mut data);
            (info, data)
        })
        .collect();
    let infos = tensors.iter().map(|(info, _)| {
        TensorInfo::new(info.name.clone(), info.dims.clone(), info.tensor_type).expect("a tensor")
    });
    let mut writer = Writer::new(Vec::new(), gguf.metadata(), infos).expect("a header");
    for (info, data) in &tensors {
        writer.write_tensor(&info.name, data).expect("a tensor");
    }
    let bytes = writer.finish().expect("a file").leak();
    ModelSource::Static { name: "changed".to_owned(), bytes }
}

fn refusal(source: ModelSource, options: &GpuOptions) -> Option<String> {
    let error = try_load(source, options)?.expect_err("this is refused");
    assert!(matches!(error, Error::UnsupportedByBackend { .. }), "{error:?}");
    Some(chain(&error))
}

/// F16 values as BF16 or F32.
fn widen(info: &mut TensorInfo, data: &mut Vec<u8>, to: TensorType, factor: f32) {
    let mut values = vec![0.0_f32; data.len() / 2];
    ruvllm_kernels::quant::WeightFormat::F16.dequantize(data, &mut values);
    values.iter_mut().for_each(|value| *value *= factor);
    info.tensor_type = to;
    *data = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    if to == TensorType::BF16 {
        *data = data.as_chunks::<4>().0.iter().flat_map(|bytes| [bytes[2], bytes[3]]).collect();
    }
}

#[test]
fn values_beyond_f16_are_refused_with_tensor_and_format() {
    let source = changed("llama", |info, data| {
        if info.name == "blk.1.ffn_up.weight" {
            widen(info, data, TensorType::F32, 1e9);
        }
    });
    let Some(message) = refusal(source, &options()) else { return };
    for part in ["blk.1.ffn_up.weight", "F32", "beyond F16"] {
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn f32_matrices_are_stored_as_f16_and_named() {
    let source = changed("llama", |info, data| {
        if info.name == "blk.1.ffn_up.weight" || info.name == "token_embd.weight" {
            widen(info, data, TensorType::F32, 1.0);
        }
    });
    let Some(result) = try_load(source, &options()) else { return };
    let backend = result.expect("it loads");
    assert_eq!(backend.converted().len(), 2, "{:?}", backend.converted());
    assert!(backend.converted().iter().any(|name| name.contains("ffn_up") && name.contains("F32")));
    // The values are exact in F16, so outputs are equal.
    let whole = crate::support::gpu(tiny("llama", "model-F16.gguf")).expect("an adapter");
    assert_eq!(prompt_logits(&backend, &[5, 6, 7], 512), prompt_logits(&whole, &[5, 6, 7], 512));
}

#[test]
fn options_without_meaning_and_absent_adapters_are_errors() {
    let path = || -> ModelSource { tiny("llama", "model-F16.gguf").into() };
    let zero = GpuOptions { prefill_chunk: 0, ..options() };
    let Some(result) = try_load(path(), &zero) else { return };
    assert!(matches!(result, Err(Error::InvalidOption { name: "prefill_chunk", .. })));
    let absent = GpuOptions { adapter: Some("no such adapter".to_owned()), ..options() };
    let Some(result) = try_load(path(), &absent) else { return };
    let message = chain(&result.expect_err("there is none"));
    assert!(message.contains("no adapter \"no such adapter\""), "{message}");
    let small = GpuOptions { budget: Some(100_000), ..options() };
    let Some(result) = try_load(path(), &small) else { return };
    let message = chain(&result.expect_err("the budget is small"));
    assert!(message.contains("budget is full"), "{message}");
}
