//! Sequences: chunked prefill, KV blocks, truncation, limits.

use std::ops::ControlFlow;

use ruvllm::{BackendSession, Error, GpuOptions, InferenceBackend, TokenId};

use crate::mixtures::mixture;
use crate::support::{chain, gpu, gpu_with, greedy_on_device, greedy_on_host, options, prompt_logits, tiny};

fn tokens(n: usize) -> Vec<TokenId> {
    (0..n).map(|i| (i * 37 % 500 + 3) as TokenId).collect()
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn bits_of_a_prompt_do_not_depend_on_its_cut_or_its_blocks() {
    let folder = tempfile::tempdir().expect("a folder");
    let tiny = ["llama", "gemma3"].map(|name| tiny(name, "model-F16.gguf"));
    for path in tiny.into_iter().chain([mixture("Q8_0", folder.path())]) {
        let name = path.display().to_string();
        let options = GpuOptions { kv_tokens: Some(1024), ..options() };
        let Some(backend) = gpu_with(path, &options) else { return };
        let prompt = tokens(300);
        let whole = prompt_logits(&backend, &prompt, 512);
        assert!(whole.iter().all(|x| x.is_finite()));
        // Freed blocks are reused in another order.
        let sessions: Vec<_> = (0..3).map(|_| backend.session(150).expect("a sequence")).collect();
        drop(sessions);
        for chunk in [300, 100, 37, 299] {
            assert!(bits(&prompt_logits(&backend, &prompt, chunk)) == bits(&whole), "{name} by {chunk}");
        }
    }
}

#[test]
fn sequences_do_not_see_one_another() {
    let options = GpuOptions { kv_tokens: Some(1024), ..options() };
    let Some(backend) = gpu_with(tiny("qwen2", "model-F16.gguf"), &options) else { return };
    let (first, second) = (tokens(70), tokens(140).split_off(90));
    let alone = |prompt: &[TokenId]| {
        let mut session = backend.session(100).expect("a sequence");
        greedy_on_host(&mut *session, prompt, 6)
    };
    let expected = [alone(&first), alone(&second)];
    let mut sessions = [100, 300].map(|n| backend.session(n).expect("a sequence"));
    let mut next = [first, second];
    let mut found = [Vec::new(), Vec::new()];
    for _ in 0..6 {
        for i in 0..2 {
            let token = greedy_on_host(&mut *sessions[i], &next[i], 1)[0];
            found[i].push(token);
            next[i] = vec![token];
        }
    }
    assert_eq!(found, expected);
}

#[test]
fn a_cut_sequence_goes_on_as_if_nothing_had_been_behind() {
    let Some(backend) = gpu(tiny("mistral", "model-F16.gguf")) else { return };
    let prompt = tokens(80);
    let mut session = backend.gpu_session(200).expect("a sequence");
    session.forward(&prompt).expect("logits");
    session.forward(&[5, 6, 7]).expect("logits");
    assert_eq!(session.truncate(40).expect("cut"), 40);
    let found = session.forward(&prompt[40..]).expect("logits").to_vec();
    assert!(bits(&found) == bits(&prompt_logits(&backend, &prompt, 512)));
    assert_eq!((session.len(), session.is_empty()), (80, false));
}

#[test]
fn greedy_tokens_of_the_device_are_those_of_the_logits() {
    let options = GpuOptions { kv_tokens: Some(1024), ..options() };
    let Some(backend) = gpu_with(tiny("qwen3", "model-F16.gguf"), &options) else { return };
    let prompt = tokens(250);
    // Beyond one split of attention.
    let mut session = backend.session(300).expect("a sequence");
    let expected = greedy_on_host(&mut *session, &prompt, 20);
    assert_eq!(greedy_on_device(&backend, &prompt, 20), expected);

    let mut session = backend.gpu_session(300).expect("a sequence");
    let mut found = Vec::new();
    let stop_at_5 = &mut |token| {
        found.push(token);
        if found.len() == 5 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    session.greedy(&prompt, 20, stop_at_5).expect("tokens");
    assert_eq!((&found[..], session.len()), (&expected[..5], 254));
    // The step started in advance is not part of the sequence.
    assert_eq!(greedy_on_host(&mut session, &expected[4..5], 3), expected[5..8]);
}

#[test]
fn limits_are_errors() {
    let options = GpuOptions { context: Some(100), kv_tokens: Some(160), ..options() };
    let Some(backend) = gpu_with(tiny("llama", "model-F16.gguf"), &options) else { return };
    assert_eq!(backend.context_length(), 100);
    assert!(matches!(backend.gpu_session(101), Err(Error::ContextTooLong { tokens: 101, .. })));
    let first = backend.gpu_session(100).expect("a sequence");
    let Err(error) = backend.gpu_session(64) else { panic!("there is room for one more block") };
    let message = chain(&error);
    assert!(message.contains("room for 32") && message.contains("kv_tokens"), "{message}");
    drop(first);

    let mut session = backend.gpu_session(64).expect("a sequence");
    assert!(matches!(session.forward(&[]), Err(Error::Forward { .. })));
    assert!(matches!(session.forward(&[1, 1 << 20]), Err(Error::TokenOutOfRange { position: 1, .. })));
    assert!(matches!(session.forward(&tokens(65)), Err(Error::ContextTooLong { tokens: 65, .. })));
    assert_eq!(session.len(), 0);
    session.forward(&tokens(64)).expect("it fits");
    assert!(session.forward(&[1]).is_err());
    assert_eq!((session.len(), session.truncate(100).expect("nothing to cut")), (64, 64));
    let cancelled = session.truncate(0).and_then(|_| {
        session.prefill(&tokens(10), 4, &mut || ControlFlow::Break(())).map(|logits| logits.is_none())
    });
    assert!(cancelled.expect("cancelled"));
}
