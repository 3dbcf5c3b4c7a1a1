//! Perplexity against logits, and invalid requests.

use std::ops::ControlFlow;

use ruvllm::{Engine, Error, Perplexity, TokenId};

use crate::common::{load, tiny, tiny_options, tiny_path};

/// Some ids of the tiny model.
fn text(n: usize) -> Vec<TokenId> {
    (0..n as u32).map(|i| (i * 37 + i * i * 11) % 500).collect()
}

fn measure(
    engine: &Engine,
    tokens: &[TokenId],
    context: usize,
    limit: Option<usize>,
) -> Result<Perplexity, Error> {
    engine.perplexity(tokens, context, limit, &mut |_, _| ControlFlow::Continue(()))
}

/// Reference: the documented protocol in f64, from logits of whole windows.
fn naive(engine: &Engine, tokens: &[TokenId], context: usize) -> f64 {
    let vocab_size = engine.config().vocab_size;
    let positions: Vec<usize> = (0..context).collect();
    let mut losses = Vec::new();
    for window in tokens.chunks_exact(context) {
        let logits = engine.logits(window, &positions).expect("logits of a window");
        for (row, &next) in logits.chunks_exact(vocab_size).zip(&window[1..]) {
            let total: f64 = row.iter().map(|&x| f64::from(x).exp()).sum();
            losses.push(total.ln() - f64::from(row[next as usize]));
        }
    }
    losses.iter().sum::<f64>() / losses.len() as f64
}

#[test]
fn perplexity_follows_the_protocol() {
    let tokens = text(100);
    for context in [2, 7, 32, 100] {
        let result = measure(tiny(), &tokens, context, None).expect("a valid measurement");
        assert_eq!(result.tokens, 100 / context * (context - 1));
        assert!((result.nll - naive(tiny(), &tokens, context)).abs() < 1e-9, "context {context}");
        assert_eq!(result.perplexity, result.nll.exp());
    }
}

#[test]
fn the_limit_cuts_the_text() {
    let tokens = text(100);
    let limited = measure(tiny(), &tokens, 10, Some(57)).expect("a valid measurement");
    assert_eq!(Some(limited), measure(tiny(), &tokens[..50], 10, None).ok());
    assert_eq!(limited.tokens, 45);
    assert_eq!(measure(tiny(), &tokens, 10, Some(1000)).ok(), measure(tiny(), &tokens, 10, None).ok());
}

#[test]
fn the_chunk_size_changes_no_bit() {
    let tokens = text(90);
    let other = load(tiny_path(), &tiny_options().with_prefill_chunk(16).with_threads(1));
    assert_eq!(measure(&other, &tokens, 45, None).ok(), measure(tiny(), &tokens, 45, None).ok());
    let positions: Vec<usize> = (0..90).collect();
    assert_eq!(other.logits(&tokens, &positions).ok(), tiny().logits(&tokens, &positions).ok());
}

#[test]
fn progress_ends_at_the_total_and_can_break_off() {
    let tokens = text(60);
    let mut seen = Vec::new();
    tiny()
        .perplexity(&tokens, 20, None, &mut |done, total| {
            seen.push((done, total));
            ControlFlow::Continue(())
        })
        .expect("a valid measurement");
    assert_eq!((seen.first(), seen.last()), (Some(&(0, 60)), Some(&(60, 60))));
    assert!(seen.is_sorted());
    let broken = tiny().perplexity(&tokens, 20, None, &mut |_, _| ControlFlow::Break(()));
    assert!(matches!(broken, Err(Error::Cancelled)));
}

#[test]
fn a_measurement_that_is_ended_has_the_result_so_far() {
    let tokens = text(60);
    let whole = |n: usize| {
        tiny().perplexity(&tokens[..n], 20, None, &mut |_, _| ControlFlow::Continue(())).expect("a result")
    };
    let stop_at = |at: usize| {
        let progress = &mut |done: usize, _: usize| {
            if done >= at { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        tiny().perplexity(&tokens, 20, None, progress).expect("the first window")
    };
    let partial = stop_at(20);
    assert!(!partial.complete && whole(20).complete);
    assert_eq!((partial.nll, partial.nll_error, partial.tokens), (whole(20).nll, whole(20).nll_error, 19));
    assert!(whole(60).nll_error > 0.0 && whole(60).perplexity_error() > whole(60).nll_error);
}

#[test]
fn impossible_windows_are_refused() {
    let tokens = text(20);
    assert!(matches!(measure(tiny(), &tokens, 1, None), Err(Error::WindowTooShort { context: 1 })));
    assert!(matches!(measure(tiny(), &tokens, 0, None), Err(Error::WindowTooShort { context: 0 })));
    assert!(matches!(
        measure(tiny(), &tokens, 21, None),
        Err(Error::TextTooShort { tokens: 20, context: 21 })
    ));
    assert!(matches!(
        measure(tiny(), &tokens, 10, Some(9)),
        Err(Error::TextTooShort { tokens: 9, context: 10 })
    ));
    let long = text(tiny().config().context_length + 1);
    assert!(matches!(measure(tiny(), &long, long.len(), None), Err(Error::ContextTooLong { .. })));
    assert!(matches!(
        measure(tiny(), &[1, 2, u32::MAX], 3, None),
        Err(Error::TokenOutOfRange { position: 2, .. })
    ));
}

#[test]
fn logits_come_in_the_order_asked_for() {
    let tokens = text(40);
    let vocab_size = tiny().config().vocab_size;
    let all = tiny().logits(&tokens, &(0..40).collect::<Vec<_>>()).expect("logits of all positions");
    let positions = [39, 0, 17, 0, 16];
    let some = tiny().logits(&tokens, &positions).expect("logits of some positions");
    assert_eq!(some.len(), positions.len() * vocab_size);
    for (row, position) in some.chunks_exact(vocab_size).zip(positions) {
        assert_eq!(row, &all[position * vocab_size..][..vocab_size], "position {position}");
    }
    assert_eq!(tiny().logits(&tokens, &[]).ok(), Some(Vec::new()));
}

#[test]
fn logits_of_impossible_positions_are_refused() {
    let refused = |tokens: &[TokenId], positions: &[usize]| tiny().logits(tokens, positions).err();
    assert!(matches!(refused(&text(5), &[5]), Some(Error::PositionOutOfRange { position: 5, tokens: 5 })));
    assert!(matches!(refused(&[], &[0]), Some(Error::PositionOutOfRange { .. })));
    assert!(matches!(refused(&[u32::MAX], &[0]), Some(Error::TokenOutOfRange { .. })));
    let long = text(tiny().config().context_length + 1);
    assert!(matches!(refused(&long, &[0]), Some(Error::ContextTooLong { .. })));
}
