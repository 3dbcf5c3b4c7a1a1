//! Heads of sizes that attention does not take (ADR-0152), of dense models: no published family has
//! them, so that tiny models lose dimensions here.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use gguf_rs_lite::{Gguf, TensorInfo, Writer};
use ruvllm::{FactorFormat, GenerateRequest, GpuBackend, GpuOptions, InferenceBackend, Prompt, TokenId};

use crate::adapter_sites::{of_site, sites};
use crate::support::{
    cpu, error, gpu_with, greedy_on_device, has_matrix_instructions, leaves, options, tiny, tolerance,
};

/// Values of a head that are left: a multiple of 4, which norms of heads take.
const HEAD_DIM: usize = 12;

/// A tiny model whose heads have lost their last dimensions.
fn cut(name: &str, folder: &Path) -> PathBuf {
    let gguf = Gguf::open(tiny(name, "model-F16.gguf")).expect("the model");
    let mut metadata = gguf.metadata().clone();
    let key = |part: &str| format!("{name}.{part}");
    let dim = metadata.get_u64(&key("attention.key_length")).expect("a number").expect("a key") as usize;
    for part in ["attention.key_length", "attention.value_length", "rope.dimension_count"] {
        metadata.insert(key(part), HEAD_DIM as u32);
    }
    let tensors: Vec<(TensorInfo, Vec<u8>)> = gguf
        .tensors()
        .map(|info| {
            let data = gguf.data(info).expect("data");
            let data = data.as_bytes();
            let (name, row) = (info.name.as_str(), info.dims[0] as usize * 2);
            // Bytes of what is kept, of each piece of so many.
            let (kept, piece, dims) = match name.rsplit('.').nth(1).unwrap_or(name) {
                "attn_q" | "attn_k" | "attn_v" => {
                    let rows = info.dims[1] as usize / dim * HEAD_DIM;
                    (HEAD_DIM * row, dim * row, vec![info.dims[0], rows as u64])
                }
                "attn_output" => {
                    let cols = info.dims[0] as usize / dim * HEAD_DIM;
                    (HEAD_DIM * 2, dim * 2, vec![cols as u64, info.dims[1]])
                }
                // In F32.
                "attn_q_norm" | "attn_k_norm" => (HEAD_DIM * 4, dim * 4, vec![HEAD_DIM as u64]),
                "rope_freqs" => (HEAD_DIM * 2, dim * 2, vec![HEAD_DIM as u64 / 2]),
                _ => (data.len(), data.len(), info.dims.clone()),
            };
            let data = data.chunks_exact(piece).flat_map(|piece| &piece[..kept]).copied().collect();
            (TensorInfo::new(name.to_owned(), dims, info.tensor_type).expect("a tensor"), data)
        })
        .collect();
    let infos = tensors.iter().map(|(info, _)| info.clone());
    let mut writer = Writer::new(Vec::new(), &metadata, infos).expect("a header");
    for (info, data) in &tensors {
        writer.write_tensor(&info.name, data).expect("a tensor");
    }
    let path = folder.join(format!("{name}.gguf"));
    std::fs::write(&path, writer.finish().expect("a file")).expect("written");
    path
}

fn tokens(seed: usize, n: usize) -> Vec<TokenId> {
    (0..n).map(|i| ((i * 37 + seed * 101) % 500 + 3) as TokenId).collect()
}

fn backend(path: PathBuf) -> Option<GpuBackend> {
    let adapter_format = FactorFormat::F32;
    gpu_with(path, &GpuOptions { adapter_format, kv_tokens: Some(2048), sequences: 4, ..options() })
}

fn doubles(values: Vec<f32>) -> Vec<f64> {
    values.into_iter().map(f64::from).collect()
}

/// Prompts of one and of several splits of attention, and decode.
#[test]
fn heads_of_other_sizes_have_the_logits_of_the_engine() {
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["llama", "qwen3"] {
        let path = cut(name, folder.path());
        let Some(backend) = backend(path.clone()) else { return };
        assert_eq!(backend.config().head_dim, HEAD_DIM);
        let engine = cpu(path, None);
        let (prompt, positions) = (tokens(1, 300), [0, 7, 31, 150, 299]);
        let expected = doubles(engine.logits(&prompt, &positions).expect("logits"));
        let error = error(&backend.logits(&prompt, &positions).expect("logits"), &expected);
        println!("{name}: {error:.1e} of the largest logit");
        assert!(error <= tolerance(), "{name}: {error}");
        for prompt in [tokens(2, 9), prompt] {
            let mut session = InferenceBackend::session(&engine, prompt.len() + 12).expect("a sequence");
            let found = greedy_on_device(&backend, &prompt, 12);
            let margin = if has_matrix_instructions() { 2.0 * tolerance() } else { 0.0 };
            assert_eq!(leaves(&mut *session, &prompt, &found, margin), None, "{name}: {found:?}");
        }
    }
}

/// Requests of one batch, with stored beginnings and drafts, have the texts that they have alone.
#[test]
fn heads_of_other_sizes_are_computed_in_batches() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(backend) = backend(cut("qwen3", folder.path())) else { return };
    let go_on = &mut |_: &str| std::ops::ControlFlow::Continue(());
    let cancel = ruvllm::CancelToken::new();
    let request = |seed: usize| {
        let prompt = [tokens(9, 70), tokens(seed, 5 + 9 * seed)].concat();
        let sampling = ruvllm::SamplingParams::default().with_temperature(0.0);
        GenerateRequest::new(Prompt::Tokens(prompt))
            .with_max_tokens(16)
            .with_sampling(sampling)
            .with_ignore_eos(true)
    };
    let alone = |seed: usize| {
        let request = request(seed).with_cache_prefix(false);
        backend.generate_with(&request, &cancel, go_on).expect("text").tokens
    };
    let expected: Vec<_> = (0..4).map(alone).collect();
    let requests: Vec<_> = (0..4).map(request).collect();
    let none = &mut |_: usize, _: &str| std::ops::ControlFlow::Continue(());
    let found = backend.generate_many(&requests, &cancel, none).expect("threads");
    let found: Vec<_> = found.into_iter().map(|result| result.expect("text")).collect();
    assert!(found.iter().any(|found| found.cached_tokens >= 64), "a beginning is stored");
    assert_eq!(found.into_iter().map(|found| found.tokens).collect::<Vec<_>>(), expected);
}

/// Adapters have the heads of the model.
#[test]
fn adapters_of_heads_of_other_sizes_have_the_logits_of_the_engine() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = cut("llama", folder.path());
    let Some(mut backend) = backend(path.clone()) else { return };
    let mut engine = cpu(path, None);
    let base = Arc::clone(engine.adapter_base());
    let (prompt, positions) = (tokens(3, 30), [0, 11, 29]);
    let without = engine.logits(&prompt, &positions).expect("logits");
    for site in sites(&base) {
        let of = of_site(&base, 0, &site);
        engine.set_adapters(std::slice::from_ref(&of)).expect("default adapters");
        backend.set_adapters(&[of]).expect("default adapters");
        let expected = doubles(engine.logits(&prompt, &positions).expect("logits"));
        let found = backend.logits(&prompt, &positions).expect("logits");
        let [error, change] = [&found, &without].map(|found| error(found, &expected));
        println!("{:?}: {error:.1e}, {change:.1e} without", site.site);
        let name = format!("{:?}", site.site);
        assert!(error <= tolerance() && change > 4.0 * tolerance(), "{name}: {error}, {change} without");
    }
}
