//! Mixtures of experts: quantized experts beside the engine, requests at once, load.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use gguf_rs_lite::{Gguf, TensorInfo, TensorType, Writer};
use ruvllm::{
    CancelToken, GenerateRequest, GpuOptions, InferenceBackend, Prompt, Recipe, SamplingParams, TokenId,
};
use ruvllm_testkit::model_data;

use crate::support::{cpu, error, gpu_with, options, prompt_logits};

/// Experts of a file of [`mixture`].
pub(crate) const EXPERTS: usize = 8;

/// A Mixtral of two layers, which are alike, in a mix of types: the experts have the rows of a
/// Llama's feed-forward network, each in another order, and a token uses 3 of 8. `MIX+MIX`: gates
/// are of the second.
pub(crate) fn mixture(mix: &str, folder: &Path) -> PathBuf {
    let open = |mix| Gguf::open(model_data("quant").join(format!("llama-{mix}.gguf"))).expect("the model");
    let (gguf, gates) = match mix.split_once('+') {
        Some((mix, gates)) => (open(mix), Some(open(gates))),
        None => (open(mix), None),
    };
    let mut metadata = gguf.metadata().clone();
    metadata.insert("llama.block_count", 2_u32);
    metadata.insert("llama.expert_count", EXPERTS as u32);
    metadata.insert("llama.expert_used_count", 3_u32);
    let mut tensors: Vec<(TensorInfo, Vec<u8>)> = Vec::new();
    for info in gguf.tensors() {
        let gate = gates.as_ref().filter(|_| info.name.contains("ffn_gate"));
        let gguf = gate.unwrap_or(&gguf);
        let info = gguf.tensor(&info.name).expect("a tensor of that name");
        let data = gguf.data(info).expect("data").as_bytes().to_vec();
        let part = info.name.strip_prefix("blk.0.ffn_").and_then(|part| part.strip_suffix(".weight"));
        let Some(part) = part.filter(|part| ["gate", "up", "down"].contains(part)) else {
            tensors.push((info.clone(), data));
            continue;
        };
        let row = data.len() / info.dims[1] as usize;
        let stack = (0..EXPERTS).flat_map(|expert| {
            let mut rows = data.clone();
            rows.rotate_left(expert * 29 * row);
            rows
        });
        let dims = vec![info.dims[0], info.dims[1], EXPERTS as u64];
        let name = format!("blk.0.ffn_{part}_exps.weight");
        tensors.push((TensorInfo::new(name, dims, info.tensor_type).expect("a tensor"), stack.collect()));
    }
    let value = |i: usize| ((i.wrapping_mul(2_654_435_761) >> 7) % 1000) as f32 / 500.0 - 1.0;
    let router = (0..EXPERTS * 256).flat_map(|i| value(i).to_le_bytes()).collect();
    let info = TensorInfo::new("blk.0.ffn_gate_inp.weight", vec![256, EXPERTS as u64], TensorType::F32);
    tensors.push((info.expect("a tensor"), router));
    let second: Vec<_> =
        tensors.iter().filter(|(info, _)| info.name.starts_with("blk.0.")).cloned().collect();
    tensors.extend(second.into_iter().map(|(info, data)| {
        let name = info.name.replace("blk.0.", "blk.1.");
        (TensorInfo::new(name, info.dims, info.tensor_type).expect("a tensor"), data)
    }));
    let infos = tensors.iter().map(|(info, _)| info.clone());
    let mut writer = Writer::new(Vec::new(), &metadata, infos).expect("a header");
    for (info, data) in &tensors {
        writer.write_tensor(&info.name, data).expect("its size");
    }
    let path = folder.join(format!("mixture-{mix}.gguf"));
    std::fs::write(&path, writer.finish().expect("a file")).expect("written");
    path
}

fn tokens(seed: usize, n: usize) -> Vec<TokenId> {
    (0..n).map(|i| ((i * 37 + seed * 101) % 500 + 3) as TokenId).collect()
}

/// Errors from 8-bit activations as large as the engine's, in prompts and in decode.
#[test]
fn quantized_experts_are_within_the_rounding_of_activations() {
    let folder = tempfile::tempdir().expect("a folder");
    for mix in ["Q8_0", "Q4_0", "Q4_K_M", "Q5_K_M", "Q3_K_M", "Q4_0+Q8_0"] {
        let path = mixture(mix, folder.path());
        let Some(backend) = gpu_with(path.clone(), &options()) else { return };
        let converted = backend.converted().iter().filter(|name| name.contains("_exps")).count();
        assert_eq!(converted > 0, mix == "Q3_K_M", "{:?}", backend.converted());
        let engine = cpu(path.clone(), None);
        // The same weights in F32, whose products do not round activations.
        let exact = cpu(path, Recipe::from_name("F32"));
        for n in [1, 7, 40] {
            let prompt = tokens(n, n);
            let exact: Vec<f64> = prompt_logits(&exact, &prompt, 512).into_iter().map(f64::from).collect();
            let rounding = error(&prompt_logits(&engine, &prompt, 512), &exact);
            let prefill = error(&prompt_logits(&backend, &prompt, 512), &exact);
            let mut session = backend.session(n).expect("a sequence");
            let mut logits = Vec::new();
            for token in &prompt {
                logits = session.forward(&[*token]).expect("logits").to_vec();
            }
            let decode = error(&logits, &exact);
            println!("{mix}, {n} tokens: engine {rounding:.1e}, prefill {prefill:.1e}, decode {decode:.1e}");
            assert!(prefill.max(decode) <= 2.0 * rounding + 2e-3, "{mix}: {prefill} {decode} for {rounding}");
        }
    }
}

#[test]
fn requests_of_a_mixture_have_the_texts_that_they_have_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = mixture("Q4_K_M", folder.path());
    for sequences in [1, 64] {
        let options = GpuOptions { kv_tokens: Some(1024), context: Some(128), sequences, ..options() };
        let Some(backend) = gpu_with(path.clone(), &options) else { return };
        let request = |i: usize| {
            let sampling = SamplingParams::default().with_seed(Some(i as u64));
            GenerateRequest::new(Prompt::Tokens(tokens(i, 3 + i * 11)))
                .with_max_tokens(6 + i)
                .with_sampling(sampling)
                .with_ignore_eos(true)
        };
        let requests: Vec<_> = (0..6).map(request).collect();
        let cancel = CancelToken::new();
        let go_on = &mut |_: &str| ControlFlow::Continue(());
        let expected: Vec<_> =
            requests.iter().map(|r| backend.generate_with(r, &cancel, go_on).expect("text").tokens).collect();
        let found = backend.generate_many(&requests, &cancel, &mut |_, _| ControlFlow::Continue(()));
        let found: Vec<_> = found.expect("threads").into_iter().map(|r| r.expect("text").tokens).collect();
        assert_eq!(found, expected, "{sequences} sequences");
        assert!(expected.iter().flatten().collect::<std::collections::HashSet<_>>().len() > 8);
    }
}
