//! Passkey retrieval: result of the trained model, determinism, invalid requests.

use std::ops::ControlFlow;

use ruvllm::{Engine, Error, PasskeyOptions, PasskeyResult, TokenId};
use ruvllm_testkit::workspace;
use ruvllm_text::tokenizer::EncodeOptions;

use crate::common::{base, load, tiny, tiny_options, tiny_path, tiny_with};

/// Some ids of the tiny model.
fn text(n: usize) -> Vec<TokenId> {
    (0..n as u32).map(|i| (i * 37 + i * i * 11) % 500).collect()
}

fn options(context: usize, trials: usize) -> PasskeyOptions {
    PasskeyOptions::new(context).with_depths(vec![0.1, 0.8]).with_trials(trials).with_seed(0)
}

fn measure(
    engine: &Engine,
    tokens: &[TokenId],
    options: &PasskeyOptions,
) -> Result<Vec<PasskeyResult>, Error> {
    engine.passkey(tokens, options, &mut |_, _| ControlFlow::Continue(()))
}

#[test]
fn the_trained_model_sees_the_key_in_the_text() {
    let path = workspace("crates/cli/tests/data/validation-prefix.txt");
    let text = std::fs::read_to_string(path).expect("the text is there");
    let start: String = text.chars().take(20_000).collect();
    let tokens = base().tokenizer().encode(&start, EncodeOptions::default()).expect("ids");
    let results = measure(base(), &tokens, &options(256, 2)).expect("a valid measurement");
    assert_eq!(results.iter().map(|result| result.depth).collect::<Vec<_>>(), [0.1, 0.8]);
    for PasskeyResult { nll, nll_without, .. } in results {
        // Guessing a random digit costs at least ln 10 on average; retrieval costs far less.
        assert!(nll_without > 10f64.ln() && nll < 0.5 * nll_without, "{nll} and {nll_without}");
    }
}

#[test]
fn neither_chunks_nor_the_company_of_other_depths_change_a_bit() {
    let (tokens, options) = (text(300), options(90, 3));
    let results = measure(tiny(), &tokens, &options).expect("a valid measurement");
    let other = load(tiny_path(), &tiny_options().with_prefill_chunk(16).with_threads(1));
    assert_eq!(measure(&other, &tokens, &options).ok(), Some(results.clone()));
    let alone = options.clone().with_depths(vec![0.8]);
    assert_eq!(measure(tiny(), &tokens, &alone).ok(), Some(results[1..].to_vec()));
    let reseeded = options.with_seed(1);
    assert_ne!(measure(tiny(), &tokens, &reseeded).ok(), Some(results));
}

#[test]
fn progress_ends_at_the_total_and_can_break_off() {
    let (tokens, options) = (text(300), options(60, 2));
    let mut seen = Vec::new();
    tiny()
        .passkey(&tokens, &options, &mut |done, total| {
            seen.push((done, total));
            ControlFlow::Continue(())
        })
        .expect("a valid measurement");
    let total = 2 * 3 * 60; // trials, depths and the text without a key, tokens
    assert_eq!((seen.first(), seen.last()), (Some(&(0, total)), Some(&(total, total))));
    assert!(seen.is_sorted());
    let broken = tiny().passkey(&tokens, &options, &mut |_, _| ControlFlow::Break(()));
    assert!(matches!(broken, Err(Error::Cancelled)));
}

#[test]
fn what_cannot_be_measured_is_refused() {
    let (tokens, good) = (text(300), options(90, 2));
    let refused = |options: &PasskeyOptions| measure(tiny(), &tokens, options).err();
    assert!(matches!(
        refused(&good.clone().with_trials(0)),
        Some(Error::InvalidOption { name: "trials", .. })
    ));
    for depth in [-0.1, 1.1, f32::NAN] {
        let options = good.clone().with_depths(vec![0.5, depth]);
        assert!(matches!(refused(&options), Some(Error::PasskeyDepth { .. })), "{depth}");
    }
    let Some(Error::PasskeyContext { context: 3, least }) = refused(&options(3, 2)) else {
        panic!("3 tokens hide nothing");
    };
    assert!(matches!(refused(&options(least - 1, 2)), Some(Error::PasskeyContext { .. })));
    assert!(refused(&options(least, 2)).is_none());
    assert!(matches!(refused(&options(301, 2)), Some(Error::TextTooShort { tokens: 300, context: 301 })));
    let long = text(tiny().config().context_length + 1);
    let too_long = measure(tiny(), &long, &options(long.len(), 1));
    assert!(matches!(too_long, Err(Error::ContextTooLong { .. })));
    let foreign = measure(tiny(), &[u32::MAX; 90], &good);
    assert!(matches!(foreign, Err(Error::TokenOutOfRange { position: 0, .. })));
}

#[test]
fn a_vocabulary_without_digits_makes_no_key() {
    let engine = tiny_with(|metadata| {
        let key = "tokenizer.ggml.tokens";
        let mut tokens = metadata.get_strings(key).expect("strings").expect("a vocabulary").to_vec();
        let seven = tokens.iter().position(|token| token == "7").expect("a digit");
        tokens[seven] = "seven".to_owned();
        metadata.insert(key, tokens);
    });
    let refused = measure(&engine, &text(300), &options(90, 2));
    assert!(matches!(refused, Err(Error::PasskeyDigit { digit: 7 })), "{refused:?}");
}
