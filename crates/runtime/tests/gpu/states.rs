//! Models whose layers keep a state (ADR-0149): bits, steps in advance, sequences that wait.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use ruvllm::{
    BackendQueue, BackendSession, CancelToken, Decoded, Error, GenerateRequest, GpuBackend, GpuOptions,
    InferenceBackend, NextToken, Prompt, RequestHandle, SamplingParams, TokenId, Wanted,
};

use crate::ahead::steps_that_ask_for_others;
use crate::batches::tokenizer_of;
use crate::families::form;
use crate::support::{chain, gpu_with, greedy_on_host, options, prompt_logits};

/// A delta net with experts and gated attention, short convolutions, Mamba-2 beside attention, and
/// in layers of one part with networks and with experts.
pub(crate) const WITH_STATES: [&str; 5] = ["qwen3next", "lfm2", "falcon_h1", "nemotron_h", "nemotron_h_moe"];

/// A form with states for so many sequences.
pub(crate) fn backend(name: &str, sequences: usize, folder: &Path) -> Option<GpuBackend> {
    backend_with(name, GpuOptions { sequences, ..options() }, folder)
}

/// A form with a context of 256 tokens.
pub(crate) fn backend_with(name: &str, options: GpuOptions, folder: &Path) -> Option<GpuBackend> {
    let tokenizer = Some(tokenizer_of(folder, 72));
    let kv_tokens = options.kv_tokens.or(Some(4096));
    gpu_with(form(name), &GpuOptions { kv_tokens, context: Some(256), tokenizer, ..options })
}

/// Prompt number `seed` of `n` tokens.
pub(crate) fn tokens(seed: usize, n: usize) -> Vec<TokenId> {
    (0..n).map(|at| ((at * 37 + seed * 101) % 69 + 3) as TokenId).collect()
}

pub(crate) fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn bits_of_a_prompt_do_not_depend_on_its_cut() {
    let folder = tempfile::tempdir().expect("a folder");
    for name in WITH_STATES {
        let Some(backend) = backend(name, 1, folder.path()) else { return };
        let prompt = tokens(1, 90);
        let whole = prompt_logits(&backend, &prompt, 512);
        assert!(whole.iter().all(|x| x.is_finite()));
        // Parts of even and odd lengths, one of a single token.
        for chunk in [30, 7, 89, 2] {
            assert!(bits(&prompt_logits(&backend, &prompt, chunk)) == bits(&whole), "{name} by {chunk}");
        }
    }
}

#[test]
fn sequences_of_a_batch_have_the_bits_that_they_have_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    for name in WITH_STATES {
        let Some(backend) = backend(name, 5, folder.path()) else { return };
        let steps = 5;
        let alone = |seed: usize| -> Vec<Vec<u32>> {
            let mut session = backend.session(100).expect("a sequence");
            session.forward(&tokens(seed, 4 + seed * 9)).expect("logits");
            (0..steps).map(|step| bits(session.forward(&tokens(seed + step, 1)).expect("logits"))).collect()
        };
        let expected: Vec<_> = (0..5).map(alone).collect();
        let mut batch = backend.batch();
        let numbers: Vec<usize> = (0..5).map(|_| batch.begin(100).expect("a sequence")).collect();
        for (seed, &number) in numbers.iter().enumerate() {
            let session = batch.sequence(number).expect("it began");
            session.forward(&tokens(seed, 4 + seed * 9)).expect("logits");
        }
        for step in 0..steps {
            let next = |(seed, &sequence): (usize, &usize)| {
                let token = tokens(seed + step, 1)[0];
                NextToken { sequence, token, wanted: Wanted::Logits }
            };
            let next: Vec<_> = numbers.iter().enumerate().map(next).collect();
            let mut seen = 0;
            batch
                .decode(&next, &mut |rows, decoded| {
                    let Decoded::Logits(logits) = decoded else { panic!("logits are asked for") };
                    for (&row, found) in rows.iter().zip(logits.chunks_exact(logits.len() / rows.len())) {
                        let is_own = expected[row].get(step) == Some(&bits(found));
                        assert!(is_own, "{name}: step {step} of {row}");
                        seen += 1;
                    }
                })
                .expect("logits");
            assert_eq!(seen, 5);
        }
    }
}

/// A pass that was started in advance and dropped has not changed a state.
#[test]
fn steps_in_advance_change_no_state() {
    let folder = tempfile::tempdir().expect("a folder");
    for name in WITH_STATES {
        // Each sequence of the batch has another one beside it.
        let Some(backend) = backend(name, 14, folder.path()) else { return };
        steps_that_ask_for_others(&backend);
        let prompt = tokens(3, 40);
        let mut session = backend.gpu_session(100).expect("a sequence");
        let expected = greedy_on_host(&mut session, &prompt, 12);
        let mut session = backend.gpu_session(100).expect("a sequence");
        let mut found = Vec::new();
        let stop_at_5 = &mut |token| {
            found.push(token);
            if found.len() == 5 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        session.greedy(&prompt, 12, stop_at_5).expect("tokens");
        assert_eq!((&found[..], session.len()), (&expected[..5], 44), "{name}");
        assert_eq!(greedy_on_host(&mut session, &expected[4..5], 7), expected[5..], "{name}");
    }
}

#[test]
fn a_sequence_that_is_cut_where_no_state_is_begins_again() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(backend) = backend("qwen35", 1, folder.path()) else { return };
    let prompt = tokens(2, 40);
    let mut session = backend.session(100).expect("a sequence");
    session.forward(&tokens(5, 33)).expect("logits");
    assert_eq!(session.truncate(50).expect("nothing behind it"), 33);
    assert_eq!(session.truncate(20).expect("cut"), 0, "a state cannot be cut");
    let found = bits(session.forward(&prompt).expect("logits"));
    assert_eq!(backend.sequence_room(), 0);
    drop(session);
    assert!(found == bits(&prompt_logits(&backend, &prompt, 512)));
}

#[test]
fn requests_wait_for_the_states_of_others() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(backend) = backend("lfm2", 2, folder.path()) else { return };
    let cancel = CancelToken::new();
    let request = |i: usize| {
        let sampling = SamplingParams::default().with_seed(Some(i as u64));
        let prompt = Prompt::Tokens(tokens(i, 10 + i * 7));
        GenerateRequest::new(prompt).with_max_tokens(3 + i * 3).with_sampling(sampling).with_ignore_eos(true)
    };
    let requests: Vec<_> = (0..6).map(request).collect();
    let go_on = &mut |_: &str| ControlFlow::Continue(());
    let expected: Vec<_> =
        requests.iter().map(|r| backend.generate_with(r, &cancel, go_on).expect("text").tokens).collect();
    let found = backend.generate_many(&requests, &cancel, &mut |_, _| ControlFlow::Continue(()));
    let found: Vec<_> = found.expect("threads").into_iter().map(|r| r.expect("text").tokens).collect();
    assert_eq!(found, expected, "at once");
    let held = [(); 2].map(|()| backend.session(10).expect("a sequence"));
    let error = backend.session(10).map(|_| ()).expect_err("no state is free");
    assert!(matches!(error, Error::Backend { .. }), "{error:?}");
    assert!(chain(&error).contains("states for 2 sequences at a time; raise GpuOptions::sequences"));
    drop(held);
    let queue = BackendQueue::start(Arc::new(backend)).expect("a thread");
    let run = |r: &GenerateRequest| queue.submit(r).and_then(RequestHandle::wait).expect("text").tokens;
    let run = &run;
    let found: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = requests.iter().map(|r| scope.spawn(move || run(r))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    assert_eq!(found, expected, "in a queue");
    assert_eq!(queue.backend().sequence_room(), 2, "all states are free");
}
