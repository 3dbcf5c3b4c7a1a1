//! Passes that the device starts before their tokens are asked for (ADR-0132).

use std::ops::ControlFlow;

use ruvllm::{
    BackendBatch, BackendSession, Decoded, GpuBackend, GpuOptions, InferenceBackend, NextToken, TokenId,
    Wanted,
};
use ruvllm_testkit::model_data;

use crate::support::{gpu_with, options, tiny};

/// A sequence of a batch, and the same sequence alone with its tokens chosen on the host.
pub(crate) struct Pair<'b> {
    number: usize,
    alone: Box<dyn BackendSession + 'b>,
    next: TokenId,
    goes_on: bool,
}

/// Token `at` of the list `seed`, among those that every model of the tests has.
fn token(backend: &GpuBackend, seed: usize, at: usize) -> TokenId {
    ((at * 37 + seed * 101) % (backend.config().vocab_size - 3) + 3) as TokenId
}

impl<'b> Pair<'b> {
    /// Begins both sequences with prompt number `seed`, with room for `room` tokens behind it.
    pub(crate) fn join(
        backend: &'b GpuBackend,
        batch: &mut dyn BackendBatch,
        seed: usize,
        room: usize,
    ) -> Self {
        let prompt: Vec<TokenId> = (0..5 + seed * 7).map(|at| token(backend, seed, at)).collect();
        let mut alone = backend.session(prompt.len() + room).expect("a sequence");
        let number = batch.begin(prompt.len() + room).expect("a sequence");
        let go_on = &mut || ControlFlow::Continue(());
        alone.prefill(&prompt, 512, go_on).expect("logits");
        batch.sequence(number).expect("it began").prefill(&prompt, 512, go_on).expect("logits");
        Self { number, alone, next: seed as TokenId + 3, goes_on: true }
    }

    /// Changes both sequences outside of the steps of the batch.
    fn change(&mut self, batch: &mut dyn BackendBatch, change: impl Fn(&mut dyn BackendSession)) {
        change(batch.sequence(self.number).expect("it has not ended"));
        change(&mut *self.alone);
    }
}

fn largest(logits: &[f32]) -> TokenId {
    (0..logits.len()).fold(0, |best, i| if logits[i] > logits[best] { i } else { best }) as TokenId
}

/// Greedy steps of all pairs: both sequences of each have the same tokens and lengths.
pub(crate) fn steps(batch: &mut dyn BackendBatch, pairs: &mut [Pair<'_>], n: usize, what: &str) {
    for step in 0..n {
        let next = |pair: &Pair<'_>| {
            let wanted = Wanted::Greedy { goes_on: pair.goes_on };
            NextToken { sequence: pair.number, token: pair.next, wanted }
        };
        let tokens: Vec<_> = pairs.iter().map(next).collect();
        let mut found = vec![None; pairs.len()];
        batch
            .decode(&tokens, &mut |rows, decoded| {
                let Decoded::Greedy(tokens) = decoded else { panic!("greedy tokens are asked for") };
                rows.iter().zip(tokens).for_each(|(&row, &token)| found[row] = token);
            })
            .expect("tokens");
        for (pair, found) in pairs.iter_mut().zip(found) {
            let expected = largest(pair.alone.forward(&[pair.next]).expect("logits"));
            assert_eq!(found, Some(expected), "{what}: step {step}, sequence {}", pair.number);
            pair.next = expected;
        }
    }
}

fn backend(kv_tokens: usize) -> Option<GpuBackend> {
    let options = GpuOptions { kv_tokens: Some(kv_tokens), context: Some(256), ..options() };
    gpu_with(tiny("llama", "model-F16.gguf"), &options)
}

#[test]
fn steps_that_ask_for_other_tokens_or_sequences_have_those_of_each_alone() {
    let Some(backend) = backend(4096) else { return };
    steps_that_ask_for_others(&backend);
}

/// Steps of six sequences that change in all ways.
pub(crate) fn steps_that_ask_for_others(backend: &GpuBackend) {
    let mut batch = backend.batch();
    let batch = &mut *batch;
    let vocab = backend.config().vocab_size as TokenId;
    let mut pairs: Vec<_> = (0..6).map(|seed| Pair::join(backend, batch, seed, 60)).collect();
    steps(batch, &mut pairs, 4, "the same sequences");
    pairs[1].next = (pairs[1].next + 1) % vocab;
    steps(batch, &mut pairs, 2, "another token");
    pairs.rotate_left(2);
    steps(batch, &mut pairs, 2, "another order");
    let waits = pairs.pop().expect("six sequences");
    steps(batch, &mut pairs, 2, "a sequence that waits");
    pairs.push(waits);
    steps(batch, &mut pairs, 2, "a sequence that goes on");
    batch.end(pairs.remove(0).number);
    steps(batch, &mut pairs, 1, "a sequence that ended");
    pairs.insert(0, Pair::join(backend, batch, 7, 60));
    steps(batch, &mut pairs, 3, "another sequence with its number");
    pairs[2].goes_on = false;
    steps(batch, &mut pairs, 2, "a sequence that goes on against its word");
    pairs[2].goes_on = true;
    steps(batch, &mut pairs, 2, "all go on");
    // The same lengths, and the tokens that were chosen, behind others.
    for pair in &mut pairs {
        pair.change(batch, |session| {
            let len = session.len();
            session.truncate(0).expect("it is cut");
            let tokens: Vec<TokenId> = (0..len).map(|at| token(backend, 9, at)).collect();
            session.prefill(&tokens, 512, &mut || ControlFlow::Continue(())).expect("logits");
        });
    }
    steps(batch, &mut pairs, 3, "other tokens in front");
}

#[test]
fn tokens_left_on_the_device_are_not_those_of_other_passes() {
    let Some(backend) = backend(8192) else { return };
    let (mut first, mut second) = (backend.batch(), backend.batch());
    // Passes of 16 rows, which prompts of up to 16 tokens have too.
    let mut pairs: Vec<_> = (0..11).map(|seed| Pair::join(&backend, &mut *first, seed, 30)).collect();
    let mut others: Vec<_> = (11..21).map(|seed| Pair::join(&backend, &mut *second, seed, 30)).collect();
    for round in 0..3 {
        steps(&mut *first, &mut pairs, 2, "the first batch");
        steps(&mut *second, &mut others, 1 + round, "the second batch");
        steps(&mut *first, &mut pairs, 1, "the first batch again");
        let mut prompt = backend.session(16).expect("a sequence");
        prompt.prefill(&[5; 13], 512, &mut || ControlFlow::Continue(())).expect("logits");
        steps(&mut *first, &mut pairs, 2, "behind a prompt");
    }
}

#[test]
fn sequences_are_decoded_to_the_end_of_their_room() {
    let Some(backend) = backend(4096) else { return };
    let mut batch = backend.batch();
    let batch = &mut *batch;
    // One of four is full first: a pass for the others has as many rows.
    let room = |seed| if seed == 2 { 6 } else { 9 };
    let mut pairs: Vec<_> = (0..4).map(|seed| Pair::join(&backend, batch, seed, room(seed))).collect();
    steps(batch, &mut pairs, 6, "all");
    let full = pairs.remove(2);
    let token = NextToken { sequence: full.number, token: 5, wanted: Wanted::Greedy { goes_on: true } };
    assert!(batch.decode(&[token], &mut |_, _| panic!("there is no room")).is_err());
    steps(batch, &mut pairs, 3, "three of four");
    assert!(pairs.iter().all(|pair| pair.alone.len() == batch.sequence(pair.number).map_or(0, |s| s.len())));
}

#[test]
fn quantized_steps_in_advance_have_the_tokens_of_each_alone() {
    let options = GpuOptions { kv_tokens: Some(4096), context: Some(256), ..options() };
    let Some(backend) = gpu_with(model_data("quant").join("llama-Q4_K_M.gguf"), &options) else { return };
    let mut batch = backend.batch();
    for n in [1, 3] {
        let mut pairs: Vec<_> = (0..n).map(|seed| Pair::join(&backend, &mut *batch, seed, 40)).collect();
        steps(&mut *batch, &mut pairs, 30, "quantized");
    }
}
