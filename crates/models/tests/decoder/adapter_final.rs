//! Adapters of the final hidden state, and of products with biases.

use ruvllm_adapters::{ScaledAdapter, Site};
use ruvllm_kernels::low_rank::LowRank;
use ruvllm_models::{KvFormat, LogitsRows, Model, Segment, Workspace};

use crate::adapter_kv::adapter;
use crate::fixtures::{self, Expected, bits};

/// Logits, or final hidden states, of all `tokens`.
fn rows(model: &Model, tokens: &[u32], adapters: &[ScaledAdapter], hidden: bool) -> Vec<f32> {
    let (compute, mut workspace) = (fixtures::compute(), Workspace::new());
    let mut cache = fixtures::new_cache(model, KvFormat::F32, tokens.len()).expect("a cache");
    let segment = Segment::new(&compute, tokens, &mut cache, LogitsRows::All).expect("room");
    let segments = [segment.with_adapters(adapters)];
    match hidden {
        true => model.hidden_states(&compute, &mut workspace, segments),
        false => model.forward(&compute, &mut workspace, segments),
    }
    .expect("a step")
    .to_vec()
}

/// `h + s B A h` in f64, with the sum of magnitudes of each value.
fn updated(state: &[f32], scale: f32, update: &LowRank<'_>) -> Vec<(f64, f64)> {
    let (a, b) = (update.a().values(), update.b(0).values());
    let mut out: Vec<(f64, f64)> = state.iter().map(|&x| (x.into(), f64::from(x).abs())).collect();
    for (a, b) in a.chunks_exact(state.len()).zip(b.chunks_exact(state.len())) {
        let terms = || a.iter().zip(state).map(|(&a, &x)| f64::from(a) * f64::from(x));
        let (sum, size) = (terms().sum::<f64>(), terms().map(f64::abs).sum::<f64>());
        for (out, &b) in out.iter_mut().zip(b) {
            let b = f64::from(scale) * f64::from(b);
            *out = (out.0 + b * sum, out.1 + b.abs() * size);
        }
    }
    out
}

#[test]
fn the_final_state_and_the_logits_are_those_of_their_definition() {
    let model = fixtures::model("tiny/llama/model-F32.gguf");
    let (base, tokens) = (model.adapter_base(), &Expected::read("tiny/llama").prompt("medium")[..20]);
    let (dim, vocab_size) = (base.model_dim, base.vocab_size);
    let of = adapter(base, 0, Site::FinalHidden, dim, (0, dim));
    let update = of.adapter.at(0, Site::FinalHidden).expect("its site");
    let scaled = [ScaledAdapter { scale: 0.25, ..of.clone() }];
    let before = rows(&model, tokens, &[], true);
    let [states, logits] = [true, false].map(|hidden| rows(&model, tokens, &scaled, hidden));
    let weights =
        model.weights().output.as_ref().map_or(&model.weights().embedding, |output| &output.weights);
    let matrix: Vec<Vec<f32>> = (0..vocab_size)
        .map(|row| {
            let mut values = vec![0.0; dim];
            weights.dequantize_row(row, &mut values);
            values
        })
        .collect();
    let unit = 2f64.powi(-24) * (2 * dim + 16) as f64;
    for (index, before) in before.chunks_exact(dim).enumerate() {
        let expected = updated(before, 0.25, &update);
        for (found, (expected, size)) in states[index * dim..].iter().zip(&expected) {
            assert!((f64::from(*found) - expected).abs() <= unit * size, "state {index}: {found} {expected}");
        }
        for (found, row) in logits[index * vocab_size..].iter().zip(&matrix) {
            let terms = || row.iter().zip(&expected);
            let logit: f64 = terms().map(|(&w, (x, _))| f64::from(w) * x).sum();
            let size: f64 = terms().map(|(&w, (_, size))| f64::from(w).abs() * size).sum();
            assert!((f64::from(*found) - logit).abs() <= unit * size, "logit of {index}: {found} {logit}");
        }
    }
}

/// Sequences with adapters of a model with biases, in one batch and alone; also where the final
/// state is quantized before and after its update.
#[test]
fn final_states_and_biased_products_have_the_same_bits_in_any_batch() {
    for (file, site) in
        [("tiny/qwen2/model-F32.gguf", Site::AttentionInput), ("quant/llama-Q4_K_M.gguf", Site::FinalHidden)]
    {
        let model = fixtures::model(file);
        let base = model.adapter_base();
        let outputs = if site == Site::FinalHidden { base.model_dim } else { base.query_dim };
        let adapters = [adapter(base, 0, site, base.model_dim, (0, outputs))];
        let without = rows(&model, &[3, 5, 7], &[], false);
        let alone = rows(&model, &[3, 5, 7], &adapters, false);
        assert_ne!(bits(&alone), bits(&without), "{file}: the adapter changes logits");
        for compute in fixtures::all_computes() {
            let mut caches =
                [(); 3].map(|()| fixtures::new_cache(&model, KvFormat::F32, 8).expect("a cache"));
            let segments: Vec<_> = caches
                .iter_mut()
                .enumerate()
                .map(|(index, cache)| {
                    let segment = Segment::new(&compute, &[3, 5, 7], cache, LogitsRows::All).expect("room");
                    segment.with_adapters(if index == 1 { &[] } else { &adapters })
                })
                .collect();
            let mut workspace = Workspace::new();
            let together = model.forward(&compute, &mut workspace, segments).expect("a step");
            let expected = [&alone[..], &without, &alone].concat();
            assert!(bits(together) == bits(&expected), "{file} with {}", compute.kernels.isa());
        }
    }
}
