//! Calibrations of keys and values: where they come from, and what refuses them.

use std::ops::ControlFlow;
use std::sync::Arc;

use ruvllm::{Engine, EngineOptions, Error, KvCalibration, ModelSource, Prompt, TokenId};

use crate::common::{base, base_path, complete, family_path, greedy, load, tiny, tiny_options, tiny_path};

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
    let options = EngineOptions {
        threads: Some(2),
        kv: Some("tiered:hot=0,warm=nuq3,cold=off".parse().expect("a policy")),
        kv_calibration: Some(Arc::new(calibration)),
        ..EngineOptions::default()
    };
    let engine =
        Engine::load(&ModelSource::Path(base_path()), &options, &mut |_| ()).expect("a calibration of it");
    let completion = complete(&engine, &greedy(Prompt::Tokens(text(100)), 40));
    assert!(!completion.text.is_empty());
    assert_eq!(
        engine.kv_store().tiers().map(|tier| tier.formats.to_string()).collect::<Vec<_>>(),
        ["f16", "nuq3"]
    );

    let other = Engine::load(&ModelSource::Path(tiny_path()), &options, &mut |_| ());
    assert!(matches!(other, Err(Error::CalibrationModel)), "{other:?}");
    let without = EngineOptions { kv_calibration: None, ..options };
    let found = Engine::load(&ModelSource::Path(base_path()), &without, &mut |_| ());
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
    // Heads of 16 are half a group.
    assert!(matches!(calibrate(tiny(), &vec![5; 600]), Err(Error::Calibration(_))));
}

#[test]
fn a_model_with_several_rotary_embeddings_has_no_calibration() {
    let engine = load(family_path("gemma3"), &tiny_options());
    let error = calibrate(&engine, &vec![5; 600]).expect_err("refused");
    assert_eq!(error.to_string(), "cannot store keys and values as nuq3");
    let source = std::error::Error::source(&error).expect("a reason").to_string();
    assert!(source.contains("more than one rotary embedding"), "{source}");
}
