//! KV calibrations: making them, and refusals.

use std::ops::ControlFlow;
use std::sync::Arc;

use ruvllm::{Engine, EngineOptions, Error, KvCalibration, KvPolicy, ModelSource, Prompt, TokenId};
use ruvllm_testkit::builtin_model;

use crate::common::{base, complete, family_path, greedy, load, tiny, tiny_options, tiny_path};

/// Some ids of the default model.
fn text(n: usize) -> Vec<TokenId> {
    (0..n as u32).map(|i| 300 + (i * 37 + i * i * 11) % 5000).collect()
}

fn calibrate(engine: &Engine, tokens: &[TokenId]) -> Result<KvCalibration, Error> {
    engine.calibrate_kv(tokens, &mut |_, _| ControlFlow::Continue(()))
}

#[test]
fn the_same_text_gives_the_same_calibration_and_serves_its_model_alone() {
    let calibration = calibrate(base(), &text(600)).expect("a calibration");
    assert_eq!(calibrate(base(), &text(600)).ok().as_ref(), Some(&calibration));
    assert_ne!(calibrate(base(), &text(640)).ok().as_ref(), Some(&calibration));
    let options = EngineOptions::default()
        .with_threads(2)
        .with_kv("tiered:hot=0,warm=nuq3,cold=off".parse::<KvPolicy>().expect("a policy"))
        .with_kv_calibration(Arc::new(calibration));
    let engine = Engine::load(&ModelSource::Path(builtin_model()), &options, &mut |_| ())
        .expect("a calibration of it");
    let completion = complete(&engine, &greedy(Prompt::Tokens(text(100)), 40));
    assert!(!completion.text.is_empty());
    assert_eq!(
        engine.kv_store().tiers().map(|tier| tier.formats.to_string()).collect::<Vec<_>>(),
        ["f16", "nuq3"]
    );

    let other = Engine::load(&ModelSource::Path(tiny_path()), &options, &mut |_| ());
    assert!(matches!(other, Err(Error::CalibrationModel)), "{other:?}");
    let without = options.with_kv_calibration(None);
    let found = Engine::load(&ModelSource::Path(builtin_model()), &without, &mut |_| ());
    assert!(matches!(found, Err(Error::KvPolicy { .. })), "{found:?}");
}

#[test]
fn texts_that_teach_nothing_are_refused() {
    assert!(matches!(calibrate(base(), &text(100)), Err(Error::CalibrationText { tokens: 100, least: 512 })));
    let mut unknown = text(600);
    unknown[77] = 1 << 30;
    assert!(matches!(calibrate(base(), &unknown), Err(Error::TokenOutOfRange { position: 77, .. })));
    let stopped = base().calibrate_kv(&text(600), &mut |_, _| ControlFlow::Break(()));
    assert!(matches!(stopped, Err(Error::Cancelled)));
    // Heads of 16 values are half a group.
    assert!(matches!(calibrate(tiny(), &vec![5; 600]), Err(Error::Calibration(_))));
}

/// Local layers of this model have another RoPE than global ones. A text that repeats one token has
/// equal keys at all positions before RoPE, so ranges have zero width if the right RoPE is
/// inverted.
#[test]
fn a_model_with_several_rotary_embeddings_is_calibrated_layer_by_layer() {
    let calibration = calibrate(&load(family_path("gemma3"), &tiny_options()), &vec![5; 600]);
    let calibration = calibration.expect("a calibration");
    for (index, layer) in calibration.layers().iter().enumerate() {
        let ranges = layer.key_ranges();
        let widest = ranges.iter().map(|[low, high]| high - low).fold(0.0, f32::max);
        let largest = ranges.iter().map(|[low, high]| high.abs().max(low.abs())).fold(0.0, f32::max);
        // Two roundings to F16.
        assert!(widest <= largest / 512.0, "layer {index}: {widest} of {largest}");
    }
    let calibration = Some(Arc::new(calibration));
    let policy = Some("tiered:hot=0,sink=0,warm=nuq3+q8,cold=off".parse().expect("a policy"));
    let options = tiny_options().with_kv(policy).with_kv_calibration(calibration).with_prefill_chunk(32);
    let engine = load(family_path("gemma3"), &options);
    // All keys are equal, so the ranges represent them up to rounding.
    let half = tiny_options().with_kv("f16".parse::<KvPolicy>().expect("a policy"));
    let half = load(family_path("gemma3"), &half);
    let prompt: Vec<TokenId> = vec![5; 100];
    let [found, expected] = [&engine, &half].map(|engine| engine.logits(&prompt, &[99]).expect("logits"));
    let norm = |x: &mut dyn Iterator<Item = f32>| x.map(|x| f64::from(x).powi(2)).sum::<f64>().sqrt();
    let error =
        norm(&mut found.iter().zip(&expected).map(|(a, b)| a - b)) / norm(&mut expected.iter().copied());
    assert!(error < 1e-2, "{error}");
}
