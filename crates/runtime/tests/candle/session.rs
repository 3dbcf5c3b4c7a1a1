//! Sequences and generations of the backend.

use std::ops::ControlFlow;

use ruvllm::{
    CancelToken, CandleBackend, CandleOptions, Error, FinishReason, GenerateRequest, InferenceBackend,
    Message, Prompt, SamplingParams, TokenId,
};

use crate::support::{Expected, FAMILIES, candle, folder, max_abs_error, native};

/// Tolerated change of a logit with the division of a prompt into passes: candle's order of sums
/// depends on the shape.
const TOLERANCE: f64 = 1e-4;

fn close(found: &[f32], expected: &[f32]) -> bool {
    found.len() == expected.len()
        && max_abs_error(found, expected.iter().map(|&logit| f64::from(logit))) <= TOLERANCE
}

/// Ids that fit into every context.
fn tokens() -> Vec<TokenId> {
    (0..36).map(|i| (i * 53 + 7) % 500).collect()
}

#[test]
fn the_cut_of_a_prompt_changes_nothing() {
    let tokens = tokens();
    for name in FAMILIES {
        let backend = candle(&folder(name));
        let whole = backend.session(36).expect("a sequence").forward(&tokens).expect("logits").to_vec();
        for chunk in [1, 5, 17, 35] {
            let mut session = backend.session(36).expect("a sequence");
            let mut passes = 0;
            let go_on = &mut || {
                passes += 1;
                ControlFlow::Continue(())
            };
            let logits =
                session.prefill(&tokens, chunk, go_on).expect("logits").expect("it was not broken off");
            assert!(close(logits, &whole), "{name}: chunks of {chunk}");
            assert_eq!(passes, tokens.len().div_ceil(chunk), "{name}");
        }
    }
}

#[test]
fn a_sequence_that_is_cut_begins_anew() {
    let tokens = tokens();
    for name in FAMILIES {
        let backend = candle(&folder(name));
        let mut session = backend.session(40).expect("a sequence");
        let whole = session.forward(&tokens).expect("logits").to_vec();
        assert_eq!(session.truncate(99).expect("nothing to cut"), 36);
        assert_eq!(session.truncate(20).expect("it is cut"), 0, "{name}: candle keeps all or nothing");
        assert!(session.is_empty());
        assert!(close(session.forward(&tokens).expect("logits"), &whole), "{name}");
    }
}

#[test]
fn sequences_do_not_disturb_each_other() {
    let tokens = tokens();
    let other: Vec<TokenId> = tokens.iter().rev().copied().collect();
    for name in FAMILIES {
        let backend = candle(&folder(name));
        let alone = backend.session(36).expect("a sequence").forward(&tokens).expect("logits").to_vec();
        let mut a = backend.session(36).expect("a sequence");
        let mut b = backend.session(36).expect("a sequence");
        a.forward(&tokens[..30]).expect("logits");
        b.forward(&other).expect("logits");
        assert!(close(a.forward(&tokens[30..]).expect("logits"), &alone), "{name}");
    }
}

#[test]
fn what_does_not_fit_is_an_error_and_costs_nothing() {
    let tokens = tokens();
    let backend = candle(&folder("mistral"));
    assert!(matches!(backend.session(49), Err(Error::ContextTooLong { tokens: 49, model_context: 48, .. })));
    let mut session = backend.session(40).expect("a sequence");
    session.forward(&tokens).expect("logits");
    let error = session.forward(&tokens[..5]).expect_err("there is room for 40");
    assert!(matches!(error, Error::ContextTooLong { tokens: 41, .. }), "{error:?}");
    let error = session.forward(&[1, 4_000_000]).expect_err("no such token");
    assert!(matches!(error, Error::TokenOutOfRange { token: 4_000_000, position: 1, .. }), "{error:?}");
    assert!(matches!(session.forward(&[]), Err(Error::Forward { start: 36, tokens: 0, .. })));
    assert_eq!(session.len(), 36);
}

fn greedy(prompt: impl Into<Prompt>, max_tokens: usize) -> GenerateRequest {
    GenerateRequest::new(prompt)
        .with_max_tokens(max_tokens)
        .with_sampling(SamplingParams::greedy())
        .with_ignore_eos(true)
}

#[test]
fn both_backends_generate_the_same_text_piece_by_piece() {
    for name in FAMILIES {
        let backends: [Box<dyn InferenceBackend>; 2] = {
            let candle = candle(&folder(name));
            [Box::new(native(&folder(name), candle.context_length())), Box::new(candle)]
        };
        for case in Expected::of(name).cases("f32") {
            let room = (backends[1].context_length() + 1).saturating_sub(case.tokens.len());
            let expected = &case.greedy[..room.min(32)];
            if expected.is_empty() {
                continue;
            }
            let request = greedy(Prompt::Tokens(case.tokens.clone()), expected.len());
            let [native, candle] = [&backends[0], &backends[1]].map(|backend| {
                let mut pieces = Vec::new();
                let completion = backend
                    .generate_with(&request, &CancelToken::new(), &mut |piece| {
                        pieces.push(piece.to_owned());
                        ControlFlow::Continue(())
                    })
                    .expect("it generates");
                (completion.tokens, completion.finish_reason, pieces)
            });
            assert_eq!(native, candle, "{name} {}", case.name);
            // The reference also samples ids without a token.
            let ids = backends[1].codec().tokenizer().vocab_size();
            let known = expected.iter().take_while(|&&token| (token as usize) < ids).count();
            assert_eq!(candle.0[..known], expected[..known], "{name} {}", case.name);
        }
    }
}

#[test]
fn the_generation_loop_is_the_engines() {
    let backend = candle(&folder("llama"));
    let whole = backend
        .generate_with(&greedy("Once upon a time", 24), &CancelToken::new(), &mut |_| {
            ControlFlow::Continue(())
        })
        .expect("it generates");
    assert!(whole.text.chars().count() > 8, "{:?}", whole.text);

    let middle: String = whole.text.chars().skip(4).take(3).collect();
    let request = greedy("Once upon a time", 24).with_stop(vec![middle.clone()]);
    let stopped = backend
        .generate_with(&request, &CancelToken::new(), &mut |_| ControlFlow::Continue(()))
        .expect("it generates");
    assert_eq!(stopped.finish_reason, FinishReason::Stop);
    assert_eq!(Some(stopped.text.as_str()), whole.text.split(&middle).next());

    let cancel = CancelToken::new();
    let cancelled = backend
        .generate_with(&greedy("Once upon a time", 24), &cancel, &mut |_| {
            cancel.cancel();
            ControlFlow::Continue(())
        })
        .expect("it ends in good order");
    assert_eq!(cancelled.finish_reason, FinishReason::Cancelled);
    assert!(cancelled.tokens.len() < 24 && whole.tokens.starts_with(&cancelled.tokens));

    let prompt = Prompt::Chat { messages: vec![Message::user("Hello")], tools: None };
    let answer =
        backend.generate_with(&greedy(prompt, 4), &CancelToken::new(), &mut |_| ControlFlow::Continue(()));
    assert_eq!(answer.expect("it answers").tokens.len(), 4);
}

#[test]
fn a_prefill_is_cancelled_between_chunks() {
    let options = CandleOptions { prefill_chunk: 8, ..CandleOptions::default() };
    let backend = CandleBackend::load(folder("llama"), &options).expect("candle loads it");
    let mut session = backend.session(100).expect("a sequence");
    let mut left = 2;
    let go_on = &mut || {
        left -= 1;
        if left < 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    assert!(session.prefill(&tokens(), backend.prefill_chunk(), go_on).expect("no error").is_none());
    assert_eq!(session.len(), 16);
}

#[test]
fn a_backend_is_shared_between_threads() {
    fn shared<T: Send + Sync>(_: &T) {}
    shared(&candle(&folder("qwen2")));
}
