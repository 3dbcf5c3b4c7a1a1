//! Attention sinks of a dense model. No family has both: the weights are set here.

use ruvllm_gpu::{Error as GpuError, Matrix};
use ruvllm_testkit::model_data;

use super::weights::DeviceWeights;
use super::*;
use crate::backend::BackendSession;

/// A model with changed weights.
struct Changed {
    codec: TextCodec,
    executor: Executor,
}

/// A tiny model of which every head of every layer has a sink, or none; `blind`: with an output of
/// attention that is zero. `None` without an adapter.
fn changed(sink: Option<f32>, blind: bool) -> Option<Changed> {
    let options = GpuOptions { software: true, ..GpuOptions::default() };
    let gpu = match open(&options) {
        Err(Refusal::Gpu { source: GpuError::NoAdapter { .. }, .. })
            if std::env::var_os("RUVLLM_GPU_REQUIRED").is_none() =>
        {
            return None;
        }
        result => result.expect("a GPU"),
    };
    let source = ModelSource::Path(model_data("tiny").join("mistral/model-F16.gguf"));
    let checkpoint = source.open(FileMemory::default()).expect("a file");
    let model = Model::load(&*checkpoint, &mut |_| ()).expect("a model");
    let mut config = model.config().clone();
    let codec = TextCodec::read(&*checkpoint, "tiny", None, config.vocab_size).expect("a tokenizer");
    config.decoder.sinks = sink.is_some();
    refusal::check(&config).expect("no reason to refuse it");
    let (mut weights, uploads) = DeviceWeights::allocate(&gpu, &model, None, false).expect("weights");
    uploads.write(&gpu).expect("weights");
    for layer in &mut weights.layers {
        let layer = layer.attention.as_mut().expect("attention");
        layer.sinks = sink.map(|sink| gpu.upload(&vec![sink; config.n_heads]).expect("sinks"));
        for part in layer.output.parts.iter_mut().filter(|_| blind) {
            let (rows, cols) = (config.model_dim as u32, config.query_dim() as u32);
            let format = part.matrix.format();
            part.matrix.matrix = Matrix::zeroed(&gpu, format, rows, cols).expect("zeros");
        }
    }
    let pool = KvPool::new(&gpu, &config, ruvllm_gpu::KvFormat::F16, 512, 0).expect("keys and values");
    let angles = Angles::new(&gpu, model.config(), &model.kv_ropes(), 512).expect("RoPE tables");
    let (ids, activation) = (codec.sampled_ids(), ruvllm_gpu::Activation::Silu);
    let adapters = DeviceAdapters::new(Arc::clone(model.adapter_base()), true, 1);
    let parts = (false, adapters);
    let executor = Executor::new(gpu, config, activation, weights, (pool, angles), ids, parts);
    Some(Changed { codec, executor: executor.expect("logits") })
}

/// Logits after a prompt of more than a split, and after two more tokens.
fn logits(Changed { codec, executor }: &Changed) -> [Vec<f32>; 2] {
    let prompt: Vec<TokenId> = (0..300).map(|i| i * 37 % 500 + 3).collect();
    let mut session = GpuSession::new(executor, codec, 400, &[], None).expect("a sequence");
    let first = session.forward(&prompt).expect("logits").to_vec();
    session.forward(&[7]).expect("logits");
    [first, session.forward(&[9]).expect("logits").to_vec()]
}

#[test]
fn sinks_take_their_share_of_attention_in_prompts_and_in_decode() {
    let all = [(None, false), (Some(-1e4), false), (Some(0.0), false), (Some(60.0), false), (None, true)];
    let Some(found) = all.map(|(sink, blind)| changed(sink, blind)).into_iter().collect::<Option<Vec<_>>>()
    else {
        return;
    };
    let found: Vec<[Vec<f32>; 2]> = found.iter().map(logits).collect();
    let [none, weightless, some, most, blind] = &found[..] else { panic!("five models") };
    assert!(none == weightless, "sinks far below the scores change bits");
    let apart = |a: &[f32], b: &[f32]| {
        let largest = b.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
        a.iter().zip(b).fold(0.0_f32, |most, (a, b)| most.max((a - b).abs())) / largest
    };
    for step in 0..2 {
        let [some, most] = [some, most].map(|found| apart(&found[step], &none[step]));
        println!("step {step}: sinks of 0 change logits by {some:.1e}, of 60 by {most:.1e}");
        assert!(some > 1e-4 && most > some, "step {step}: {some}, {most}");
        let rest = apart(&found[3][step], &blind[step]);
        assert!(rest <= 1e-6, "step {step}: {rest} of attention beside sinks of 60");
    }
}
