//! Sequences that are decoded together: bits, joining and leaving, memory, errors.

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ruvllm::{
    BackendBatch, BackendQueue, CancelToken, Decoded, Error, FinishReason, GenerateRequest, GpuBackend,
    GpuOptions, InferenceBackend, NextToken, ParallelOptions, Prompt, RequestHandle, SamplingParams, TokenId,
    TokenLogit, Wanted,
};
use ruvllm_testkit::model_data;
use serde_json::json;

use crate::families::{form, form_options};
use crate::mixtures::mixture;
use crate::support::{chain, gpu_with, options, tiny};

/// Prompt number `seed` of `n` tokens.
fn tokens(seed: usize, n: usize) -> Vec<TokenId> {
    (0..n).map(|i| ((i * 37 + seed * 101) % 500 + 3) as TokenId).collect()
}

/// Token of a sequence in a step, the same alone and in a batch.
fn token(seed: usize, step: usize) -> TokenId {
    ((seed * 67 + step * 13) % 500 + 3) as TokenId
}

/// The token, or one of a small vocabulary.
fn known(backend: &GpuBackend, token: TokenId) -> TokenId {
    token % backend.config().vocab_size as TokenId
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|x| x.to_bits()).collect()
}

/// Bits of the logits of `steps` decode steps behind a prompt, alone.
fn alone(backend: &GpuBackend, seed: usize, prompt: usize, steps: usize) -> Vec<Vec<u32>> {
    let mut session = backend.session(prompt + steps).expect("a sequence");
    let go_on = &mut || ControlFlow::Continue(());
    let tokens: Vec<_> = tokens(seed, prompt).into_iter().map(|token| known(backend, token)).collect();
    session.prefill(&tokens, 512, go_on).expect("logits");
    let mut step = |step| bits(session.forward(&[known(backend, token(seed, step))]).expect("logits"));
    (0..steps).map(&mut step).collect()
}

/// A sequence of a batch.
struct Member {
    number: usize,
    seed: usize,
    steps: usize,
    expected: Vec<Vec<u32>>,
}

impl Member {
    fn join(backend: &GpuBackend, batch: &mut dyn BackendBatch, seed: usize, prompt: usize) -> Self {
        const STEPS: usize = 4;
        let expected = alone(backend, seed, prompt, STEPS);
        let number = batch.begin(prompt + STEPS).expect("a sequence");
        let session = batch.sequence(number).expect("it began");
        let go_on = &mut || ControlFlow::Continue(());
        let tokens: Vec<_> = tokens(seed, prompt).into_iter().map(|token| known(backend, token)).collect();
        session.prefill(&tokens, 512, go_on).expect("logits").expect("not cancelled");
        Self { number, seed, steps: 0, expected }
    }
}

/// A decode step of all members: each wants its greedy token, its logits or the largest of them.
/// The results must be those of each alone.
fn decode(batch: &mut dyn BackendBatch, members: &mut [Member], backend: &GpuBackend, name: &str) {
    let next = |(index, member): (usize, &Member)| {
        let all = [Wanted::Greedy { goes_on: true }, Wanted::Logits, Wanted::Largest(40)];
        let wanted = all[(index + member.steps) % 3];
        NextToken { sequence: member.number, token: known(backend, token(member.seed, member.steps)), wanted }
    };
    let next: Vec<_> = members.iter().enumerate().map(next).collect();
    let (vocab, ids) = (backend.config().vocab_size, backend.codec().tokenizer().vocab_size());
    let mut seen = vec![0; members.len()];
    batch
        .decode(&next, &mut |rows, decoded| {
            for (index, &row) in rows.iter().enumerate() {
                let Member { seed, steps, expected, .. } = &members[row];
                let expected = &expected[*steps];
                let equal = match decoded {
                    Decoded::Logits(logits) => {
                        assert_eq!(logits.len(), rows.len() * vocab);
                        let found = &logits[index * vocab..][..vocab];
                        assert!(found.iter().all(|x| x.is_finite()));
                        bits(found) == *expected
                    }
                    Decoded::Greedy(tokens) => {
                        assert_eq!(
                            (tokens.len(), next[row].wanted),
                            (rows.len(), Wanted::Greedy { goes_on: true })
                        );
                        tokens[index] == Some(largest(expected, ids))
                    }
                    Decoded::Largest { most, logits } => {
                        assert_eq!(
                            (logits.len(), next[row].wanted),
                            (rows.len() * most, Wanted::Largest(40))
                        );
                        let found = &logits[index * most..][..most];
                        let bits = |found: &TokenLogit| (found.token, found.logit.to_bits());
                        // The tokenizers of forms have fewer ids.
                        let there = most.min(ids);
                        found[..there].iter().map(bits).eq(sorted(expected, ids).into_iter().take(there))
                    }
                };
                assert!(equal, "{name}: step {steps} of sequence {seed} of {}", next.len());
                seen[row] += 1;
            }
        })
        .expect("results");
    assert!(seen.iter().all(|&n| n == 1), "{seen:?}");
    members.iter_mut().for_each(|member| member.steps += 1);
}

/// Index of the largest of the first `ids` logits, the lowest of equals.
fn largest(bits: &[u32], ids: usize) -> TokenId {
    let logit = |i: usize| f32::from_bits(bits[i]);
    (0..ids.min(bits.len())).fold(0, |best, i| if logit(i) > logit(best) { i } else { best }) as TokenId
}

/// Ids and bits of the first `ids` logits, largest first, equal ones by id.
fn sorted(bits: &[u32], ids: usize) -> Vec<(TokenId, u32)> {
    let mut all: Vec<_> = (0..).zip(bits.iter().copied()).take(ids).collect();
    all.sort_by(|a, b| f32::from_bits(b.1).total_cmp(&f32::from_bits(a.1)).then(a.0.cmp(&b.0)));
    all
}

/// Sequences of other lengths join and leave; each has the bits that it has alone.
fn join_and_leave(path: PathBuf, prompts: &[usize], sequences: usize) {
    join_and_leave_with(path, prompts, &GpuOptions { kv_tokens: Some(8192), sequences, ..options() });
}

fn join_and_leave_with(path: PathBuf, prompts: &[usize], options: &GpuOptions) {
    let name = path.display().to_string();
    let Some(backend) = gpu_with(path, options) else { return };
    let mut batch = backend.batch();
    let mut members: Vec<Member> = Vec::new();
    for (seed, &prompt) in prompts.iter().enumerate() {
        members.push(Member::join(&backend, &mut *batch, seed, prompt));
    }
    decode(&mut *batch, &mut members, &backend, &name);
    // The first leaves, its blocks and its number go to another.
    let gone = members.remove(0);
    batch.end(gone.number);
    assert!(batch.sequence(gone.number).is_none());
    decode(&mut *batch, &mut members, &backend, &name);
    members.push(Member::join(&backend, &mut *batch, prompts.len(), 33));
    members.rotate_left(1);
    decode(&mut *batch, &mut members, &backend, &name);
}

#[test]
fn sequences_of_a_batch_have_the_bits_that_they_have_alone() {
    // Beyond one split of attention; a window and a soft cap of logits; LongRoPE; biases.
    join_and_leave(tiny("llama", "model-F16.gguf"), &[40, 1, 300, 256, 7], 1);
    join_and_leave(tiny("gemma2", "model-F16.gguf"), &[20, 90, 3], 1);
    join_and_leave(tiny("phi3", "model-F16.gguf"), &[12, 120, 35], 1);
    join_and_leave(tiny("qwen2", "model-F16.gguf"), &[9, 64], 1);
}

#[test]
fn sequences_of_a_mixture_have_the_bits_that_they_have_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let prompts: Vec<usize> = (0..10).map(|i| 2 + i * 5).collect();
    // Products of pairs, and of sorted pairs.
    for (mix, prompts, sequences) in [("Q4_0", &prompts[..], 1), ("Q4_K_M", &prompts[..5], 64)] {
        join_and_leave(mixture(mix, folder.path()), prompts, sequences);
    }
}

#[test]
fn sequences_of_forms_have_the_bits_that_they_have_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, sequences) in [("llama4", 1), ("phimoe", 1), ("deepseek3", 1), ("mistral4", 64)] {
        let options = GpuOptions {
            context: Some(128),
            kv_tokens: Some(2048),
            sequences,
            ..form_options(folder.path())
        };
        join_and_leave_with(form(name), &[40, 1, 65, 7], &options);
    }
}

#[test]
fn quantized_batches_of_more_than_eight_have_the_bits_of_one() {
    let prompts: Vec<usize> = (0..18).map(|i| 2 + i * 5).collect();
    join_and_leave(model_data("quant").join("llama-Q4_K_M.gguf"), &prompts, 1);
    join_and_leave(model_data("quant").join("llama-Q4_0.gguf"), &prompts[..10], 1);
    // Products of prompts in decode, for one sequence as for many.
    join_and_leave(model_data("quant").join("llama-Q4_K_M.gguf"), &prompts[..10], 64);
}

#[test]
fn a_batch_with_a_faulty_token_changes_no_sequence() {
    let Some(backend) = gpu_with(tiny("llama", "model-F16.gguf"), &options()) else { return };
    let mut batch = backend.batch();
    let numbers = [4, 3].map(|capacity| batch.begin(capacity).expect("a sequence"));
    for number in numbers {
        batch.sequence(number).expect("it began").forward(&[5, 6, 7]).expect("logits");
    }
    let none = &mut |_: &[usize], _: Decoded<'_>| panic!("results of a batch that failed");
    let next = |number, token| NextToken {
        sequence: numbers[number],
        token,
        wanted: Wanted::Greedy { goes_on: false },
    };
    let full = batch.decode(&[next(0, 5), next(1, 5)], none);
    assert!(matches!(full, Err(Error::ContextTooLong { tokens: 4, .. })), "{full:?}");
    let unknown = batch.decode(&[next(0, 1 << 20)], none);
    assert!(matches!(unknown, Err(Error::TokenOutOfRange { .. })), "{unknown:?}");
    assert_eq!(numbers.map(|number| batch.sequence(number).map_or(0, |s| s.len())), [3, 3]);
    let Err(error) = batch.begin(backend.kv_room() + 1) else { panic!("there is no such room") };
    assert!(chain(&error).contains("room for 448; raise GpuOptions::kv_tokens"), "{}", chain(&error));
}

fn request(seed: usize, prompt: usize, new: usize) -> GenerateRequest {
    let sampling = SamplingParams::default().with_seed(Some(seed as u64));
    GenerateRequest::new(Prompt::Tokens(tokens(seed, prompt)))
        .with_max_tokens(new)
        .with_sampling(sampling)
        .with_ignore_eos(true)
}

#[test]
fn requests_at_once_have_the_texts_that_they_have_alone() {
    // Room for about three at a time.
    let options = GpuOptions { kv_tokens: Some(384), context: Some(256), ..options() };
    let Some(backend) = gpu_with(tiny("llama", "model-F16.gguf"), &options) else { return };
    let mut requests: Vec<_> = (0..7).map(|i| request(i, 5 + i * 17, 3 + (i * 5) % 12)).collect();
    let cancel = CancelToken::new();
    let go_on = &mut |_: &str| ControlFlow::Continue(());
    let expected: Vec<_> =
        requests.iter().map(|r| backend.generate_with(r, &cancel, go_on).expect("text")).collect();
    requests.insert(2, request(9, 300, 1));
    let mut texts = vec![String::new(); requests.len()];
    let found = backend.generate_many(&requests, &cancel, &mut |index, text| {
        texts[index].push_str(text);
        ControlFlow::Continue(())
    });
    let mut found = found.expect("threads");
    let refused = found.remove(2);
    assert!(matches!(refused, Err(Error::PromptTooLong { prompt_tokens: 300, .. })), "{refused:?}");
    texts.remove(2);
    for ((found, expected), text) in found.into_iter().zip(&expected).zip(texts) {
        let found = found.expect("text");
        assert_eq!((&found.tokens, &found.text), (&expected.tokens, &expected.text));
        assert_eq!(text, expected.text);
    }
    assert_eq!(backend.kv_room(), 384, "all sequences are released");
}

/// A tokenizer of the first `n` ids of a model.
pub(crate) fn tokenizer_of(folder: &Path, n: usize) -> PathBuf {
    let vocab: serde_json::Map<_, _> = (0..n).map(|id| (format!("t{id}"), id.into())).collect();
    let model = json!({ "type": "WordLevel", "vocab": vocab, "unk_token": "t0" });
    let path = folder.join("tokenizer.json");
    let text = json!({ "version": "1.0", "added_tokens": [], "model": model }).to_string();
    fs::write(&path, text).expect("written");
    path
}

#[test]
fn requests_have_the_tokens_of_requests_that_read_the_logits() {
    let folder = tempfile::tempdir().expect("a folder");
    // All ids; fewer than the model has; a soft cap, behind which the host chooses.
    for (name, ids) in [("llama", None), ("qwen3", Some(37)), ("gemma2", None)] {
        let tokenizer = ids.map(|ids| tokenizer_of(folder.path(), ids));
        let options = GpuOptions { kv_tokens: Some(2048), context: Some(256), tokenizer, ..options() };
        let Some(backend) = gpu_with(tiny(name, "model-F16.gguf"), &options) else { return };
        // Sampled ones too, from the largest logits; from more of these than the device finds; with
        // a penalty, for which all are read.
        let sampling = |i: usize| match i % 5 {
            0 | 1 => SamplingParams::greedy(),
            2 => SamplingParams::default().with_top_k(7),
            3 => SamplingParams::default().with_top_k(65).with_temperature(1.5),
            _ => SamplingParams::default().with_repeat_penalty(1.1),
        };
        let sampling = |i| sampling(i).with_seed(Some(i as u64));
        let requests: Vec<_> =
            (0..9).map(|i| request(i, 5 + i * 9, 12 + i * 3).with_sampling(sampling(i))).collect();
        let cancel = CancelToken::new();
        let alone = |request: &GenerateRequest| {
            backend.generate_with(request, &cancel, &mut |_| ControlFlow::Continue(())).expect("text").tokens
        };
        let expected: Vec<_> = requests.iter().map(|r| alone(&r.clone().with_logprobs(0))).collect();
        assert_eq!(requests.iter().map(alone).collect::<Vec<_>>(), expected, "{name}, alone");
        let used = expected.iter().flatten().all(|&token| (token as usize) < ids.unwrap_or(usize::MAX));
        assert!(used, "{name}: {expected:?}");
        // Steps of greedy tokens alone, and with logits of every third request.
        for is_mixed in [false, true] {
            let reads = |(i, r): (usize, &GenerateRequest)| match is_mixed && i % 3 == 0 {
                true => r.clone().with_logprobs(0),
                false => r.clone(),
            };
            let requests: Vec<_> = requests.iter().enumerate().map(reads).collect();
            let found = backend.generate_many(&requests, &cancel, &mut |_, _| ControlFlow::Continue(()));
            let found: Vec<_> =
                found.expect("threads").into_iter().map(|r| r.expect("text").tokens).collect();
            assert_eq!(found, expected, "{name}");
        }
    }
}

#[test]
fn one_of_several_requests_can_be_cancelled() {
    let options = GpuOptions { context: Some(128), sequences: 3, ..options() };
    let Some(backend) = gpu_with(tiny("llama", "model-F16.gguf"), &options) else { return };
    assert_eq!(backend.kv_room(), 3 * 128);
    let requests: Vec<_> = (0..3).map(|i| request(i, 4, 40)).collect();
    let cancel = CancelToken::new();
    let mut pieces = [0; 3];
    let found = backend.generate_many(&requests, &cancel, &mut |index, _| {
        pieces[index] += 1;
        if index == 1 && pieces[1] == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    let found: Vec<_> = found.expect("threads").into_iter().map(|r| r.expect("a result")).collect();
    let reasons: Vec<_> = found.iter().map(|completion| completion.finish_reason).collect();
    assert_eq!(reasons, [FinishReason::Length, FinishReason::Cancelled, FinishReason::Length]);
    assert!(pieces[1] == 3 && found[1].tokens.len() < 10, "{pieces:?}");
    cancel.cancel();
    let ended = backend.generate_many(&requests, &cancel, &mut |_, _| ControlFlow::Continue(()));
    let ended = ended.expect("threads");
    let is_cancelled = |r: &Result<ruvllm::Completion, Error>| {
        r.as_ref().is_ok_and(|completion| completion.finish_reason == FinishReason::Cancelled)
    };
    assert!(ended.iter().all(is_cancelled), "{ended:?}");
}

#[test]
fn requests_that_join_a_queue_have_the_texts_that_they_have_alone() {
    // Room for two at a time.
    let options = GpuOptions { kv_tokens: Some(192), context: Some(96), ..options() };
    let Some(backend) = gpu_with(tiny("qwen3", "model-F16.gguf"), &options) else { return };
    let cancel = CancelToken::new();
    let requests: Vec<_> = (0..6).map(|i| request(i, 40 + i * 5, 2 + i * 4)).collect();
    let go_on = &mut |_: &str| ControlFlow::Continue(());
    let expected: Vec<_> =
        requests.iter().map(|r| backend.generate_with(r, &cancel, go_on).expect("text").tokens).collect();
    let queue = BackendQueue::start(Arc::new(backend)).expect("a thread");
    let run = |r: &GenerateRequest| queue.submit(r).and_then(RequestHandle::wait).expect("text").tokens;
    let run = &run;
    let found: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = requests.iter().map(|r| scope.spawn(move || run(r))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    assert_eq!(found, expected);
    let too_long = queue.submit(&request(1, 97, 1));
    assert!(matches!(too_long, Err(Error::PromptTooLong { .. })));
    // Dropping a handle ends its request, dropping the queue all.
    drop(queue.submit(&request(1, 10, 80)).expect("submitted"));
    let running = queue.submit(&request(2, 10, 80)).expect("submitted");
    let backend = Arc::clone(queue.backend());
    drop(queue);
    assert!(matches!(running.wait(), Ok(_) | Err(Error::EngineStopped)));
    assert_eq!(backend.kv_room(), 192, "all sequences are released");
}

#[test]
fn parallel_requests_are_measured() {
    let options = GpuOptions { context: Some(64), sequences: 4, ..options() };
    let Some(backend) = gpu_with(tiny("llama", "model-F16.gguf"), &options) else { return };
    let wanted = ParallelOptions::default()
        .with_parallel(vec![1, 4])
        .with_prompt_tokens(20)
        .with_new_tokens(12)
        .with_runs(2);
    let mut steps = Vec::new();
    let results =
        backend.bench_parallel(&wanted, &mut |done, total| steps.push((done, total))).expect("results");
    assert_eq!((steps.first(), steps.last()), (Some(&(0, 4)), Some(&(4, 4))));
    for (result, parallel) in results.iter().zip([1, 4]) {
        assert_eq!((result.parallel, result.requests), (parallel, 2 * parallel));
        assert!(result.tokens_per_s > 0.0 && result.itl_ms.is_some(), "{result:?}");
    }
    let long = wanted.with_new_tokens(45);
    let error = backend.bench_parallel(&long, &mut |_, _| ()).expect_err("beyond the context");
    assert!(matches!(error, Error::ContextTooLong { tokens: 65, .. }), "{error:?}");
}
