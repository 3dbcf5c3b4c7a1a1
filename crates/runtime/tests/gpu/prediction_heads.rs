//! Prediction heads on the device of their model (ADR-0160): what they compute, and drafts.

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use ruvllm::{
    BackendBatch, BackendHead, CancelToken, Completion, Decoded, Error, GenerateRequest, GpuBackend,
    GpuOptions, HeadPart, InferenceBackend, ModelSource, NextToken, Prompt, SamplingParams, Speculation,
    TokenId, TokenLogit, Wanted,
};
use ruvllm_testkit::model_data;
use safetensors::SafeTensors;
use serde_json::Value;

use crate::batches::tokenizer_of;
use crate::support::{chain, doubles, error, gpu_with, options, tolerance, try_load};

/// Models with a head: with gated `DeltaNet`, alone and with experts; with attention and experts;
/// with latent attention.
const HEADS: [&str; 5] = ["qwen35", "qwen35moe", "qwen3next", "glm4moe", "deepseek3"];

/// Models with a head and without layers that keep a state.
const STATELESS: [&str; 2] = ["glm4moe", "deepseek3"];

/// Positions from one to the next that the reference has.
const EVERY: usize = 3;

/// Values of a state of the models, and ids of their vocabulary.
const DIM: usize = 32;
const VOCABULARY: usize = 72;

fn form(name: &str) -> PathBuf {
    model_data("prediction").join(name)
}

/// Options for folders without a tokenizer.
fn options_in(folder: &Path, sequences: usize) -> GpuOptions {
    let tokenizer = Some(tokenizer_of(folder, VOCABULARY));
    GpuOptions { sequences, context: Some(256), tokenizer, ..options() }
}

/// Result behind a part: logits by id, and the state.
#[derive(Debug, Clone, PartialEq)]
struct Found {
    largest: Vec<TokenLogit>,
    state: Vec<f32>,
}

/// Runs parts of sequences: numbers, tokens and states.
fn predict(head: &mut dyn BackendHead, parts: &[(usize, &[TokenId], &[f32])]) -> Vec<Found> {
    let parts: Vec<HeadPart<'_>> =
        parts.iter().map(|&(sequence, tokens, states)| HeadPart { sequence, tokens, states }).collect();
    let mut all = vec![None; parts.len()];
    let result = head.predict(&parts, &mut |of, decoded, states| {
        let Decoded::Largest { most, logits } = decoded else { panic!("{decoded:?}") };
        for (row, &part) in of.iter().enumerate() {
            let largest = logits[row * most..][..most].to_vec();
            let found = Found { largest, state: states[row * DIM..][..DIM].to_vec() };
            assert!(all[part].replace(found).is_none(), "a result of each part");
        }
    });
    result.unwrap_or_else(|error| panic!("{}", chain(&error)));
    all.into_iter().map(|found| found.expect("a result of each part")).collect()
}

/// Final hidden states of all tokens of a prompt, and the logits of the last one.
fn prompt(backend: &GpuBackend, tokens: &[TokenId], chunk: usize, most: usize) -> [Vec<f32>; 2] {
    let mut session = backend.session(tokens.len()).expect("a sequence");
    let found = session.prefill_with_states(tokens, chunk, most, &mut || ControlFlow::Continue(()));
    let (logits, states) = found.expect("logits").expect("not cancelled");
    [logits.to_vec(), states.to_vec()]
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

/// Tokens of the reference, and those that its head drafts.
fn ids_of(name: &str) -> [Vec<TokenId>; 2] {
    let bytes = fs::read(form(name).join("expected.safetensors")).expect("the reference");
    let file = SafeTensors::deserialize(&bytes).expect("a valid file");
    ["ids", "drafts"].map(|key| {
        let data = file.tensor(key).expect("the tensor").data().as_chunks::<4>().0.to_vec();
        data.into_iter().map(u32::from_le_bytes).collect()
    })
}

#[test]
fn heads_compute_what_the_reference_computes() {
    let folder = tempfile::tempdir().expect("a folder");
    for name in HEADS {
        let Some(backend) = gpu_with(form(name), &options_in(folder.path(), 2)) else { return };
        let ([ids, drafts], expected) = (ids_of(name), doubles(form(name).join("expected.safetensors")));
        let near = |key: &str, row: usize, found: &[f32]| {
            let expected = &expected[key][row * found.len()..][..found.len()];
            let error = error(found, expected);
            assert!(error <= tolerance(), "{name}: row {row} of {key} differs by {error}");
        };
        // The largest logits, by id.
        let near_logits = |key: &str, row: usize, found: &Found| {
            let expected = &expected[key][row * VOCABULARY..][..VOCABULARY];
            assert!(found.largest.len() == 64 && found.largest.is_sorted_by(|a, b| a.logit >= b.logit));
            let found_logits: Vec<f32> = found.largest.iter().map(|known| known.logit).collect();
            let same: Vec<f64> = found.largest.iter().map(|known| expected[known.token as usize]).collect();
            let error = error(&found_logits, &same);
            assert!(error <= tolerance(), "{name}: row {row} of {key} differs by {error}");
        };
        let [_, states] = prompt(&backend, &ids, 512, 128);
        assert_eq!(states.len(), ids.len() * DIM, "{name}: states of all tokens");
        for (row, state) in states.chunks_exact(DIM).step_by(EVERY).enumerate() {
            near("hidden", row, state);
        }
        let mut batch = backend.batch();
        let number = batch.begin(ids.len()).expect("a sequence");
        batch.sequence(number).expect("it began").forward(&ids[..EVERY]).expect("logits");
        for (at, &token) in ids.iter().enumerate().skip(EVERY) {
            let next = [NextToken { sequence: number, token, wanted: Wanted::Logits }];
            let [_, found] = step(&mut *batch, &next, true);
            if at % EVERY == 0 {
                let state: Vec<f32> = found[0].iter().map(|&bits| f32::from_bits(bits)).collect();
                near("hidden", at / EVERY, &state);
            }
        }
        let mut head = backend.prediction_head().expect("a head");
        let pairs = ids.len() - 1;
        let [one, few, many] = [1, 7, pairs].map(|chunk| {
            let number = head.begin().unwrap_or_else(|error| panic!("{}", chain(&error)));
            let mut found = Vec::new();
            for (tokens, states) in ids[1..].chunks(chunk).zip(states.chunks(chunk * DIM)) {
                let part = [(number, tokens, &states[..tokens.len() * DIM])];
                found.extend(predict(&mut *head, &part));
            }
            // Two drafts behind all, and again after they are dropped.
            let first = (found.clone(), found.last().expect("a result").clone());
            for _ in 0..2 {
                let (mut at, mut last) = (pairs, first.1.clone());
                for (draft, &expected) in drafts.iter().enumerate().take(2) {
                    let token = last.largest[0].token;
                    assert_eq!(token, expected, "{name} by {chunk}");
                    last = predict(&mut *head, &[(number, &[token], &last.state)]).remove(0);
                    at += 1;
                    near("draft_hidden", draft, &last.state);
                    near_logits("draft_logits", draft, &last);
                }
                assert_eq!(head.truncate(number, pairs).expect("it can"), pairs.min(at));
            }
            head.end(number);
            first.0
        });
        for (row, found) in one.iter().step_by(EVERY).enumerate() {
            near("head_hidden", row, &found.state);
            near_logits("head_logits", row, found);
        }
        // Pairs 6, 13 and 20 end parts of seven; of these the reference has the first.
        near_logits("head_logits", 2, &few[0]);
        assert_eq!((few.len(), many.len()), (pairs.div_ceil(7), 1), "{name}");
    }
}

#[test]
fn states_are_read_without_a_change_of_bits() {
    let folder = tempfile::tempdir().expect("a folder");
    for name in STATELESS {
        let Some(backend) = gpu_with(form(name), &options_in(folder.path(), 3)) else { return };
        let tokens: Vec<TokenId> = (0..40).map(|i| (i * 17 + i * i) % 69 + 3).collect();
        let [logits, states] = prompt(&backend, &tokens, 512, 128);
        let [plain, none] = prompt(&backend, &tokens, 512, 0);
        assert!(bits(&plain) == bits(&logits) && none.is_empty(), "{name}");
        // Of the last pass of a prompt, as many as are asked for.
        for (chunk, most, last) in [(512, 3, 3), (30, 128, 10), (39, 5, 1)] {
            let [again, of_last] = prompt(&backend, &tokens, chunk, most);
            assert!(bits(&again) == bits(&logits), "{name}");
            assert!(bits(&of_last) == bits(&states[(40 - last) * DIM..]), "{name}: {most} by {chunk}");
        }
    }
}

/// Results and final hidden states of the tokens of a step, as bits.
fn step(batch: &mut dyn BackendBatch, next: &[NextToken], with_states: bool) -> [Vec<Vec<u32>>; 2] {
    let (mut results, mut all) = (vec![Vec::new(); next.len()], vec![Vec::new(); next.len()]);
    let mut take = |rows: &[usize], decoded: Decoded<'_>, states: &[f32]| {
        for (row, &token) in rows.iter().enumerate() {
            results[token] = match decoded {
                Decoded::Logits(logits) => bits(&logits[row * VOCABULARY..][..VOCABULARY]),
                Decoded::Greedy(tokens) => vec![tokens[row].expect("a token")],
                Decoded::Largest { most, logits } => {
                    let row = logits[row * most..][..most].iter();
                    row.flat_map(|known| [known.token, known.logit.to_bits()]).collect()
                }
            };
            all[token] = states.chunks_exact(DIM).nth(row).map(bits).unwrap_or_default();
        }
    };
    match with_states {
        true => batch.decode_with_states(next, &mut take),
        false => batch.decode(next, &mut |rows, decoded| take(rows, decoded, &[])),
    }
    .expect("a step");
    [results, all]
}

/// A sequence of 20 tokens.
fn begun(batch: &mut dyn BackendBatch) -> usize {
    let number = batch.begin(64).expect("a sequence");
    let tokens: Vec<TokenId> = (0..20).map(|i| (i * 17 + i * i) % 69 + 3).collect();
    batch.sequence(number).expect("it began").forward(&tokens).expect("logits");
    number
}

const GREEDY: Wanted = Wanted::Greedy { goes_on: true };

/// Steps of three sequences, one with several tokens at first: results and states are those of each
/// alone, and results those without states.
#[test]
fn states_of_decode_steps_are_those_of_each_sequence_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    for name in STATELESS {
        let Some(backend) = gpu_with(form(name), &options_in(folder.path(), 3)) else { return };
        for kinds in [[GREEDY; 3], [Wanted::Logits; 3], [Wanted::Logits, GREEDY, Wanted::Largest(9)]] {
            let mut batch = backend.batch();
            let [a, b, c] = [0; 3].map(|_| begun(&mut *batch));
            let next = |sequence, token, kind: usize| NextToken { sequence, token, wanted: kinds[kind] };
            let mut list = vec![next(a, 5, 0), next(b, 6, 1), next(b, 7, 1), next(c, 8, 2)];
            for round in 0..4 {
                let [results, states] = step(&mut *batch, &list, true);
                assert!(states.iter().all(|state| state.len() == DIM), "{name}: a state of each token");
                for sequence in [a, b, c] {
                    let is_own = |next: &NextToken| next.sequence == sequence;
                    let first = list.iter().position(is_own).expect("a token");
                    let of = first..first + list.iter().filter(|next| is_own(next)).count();
                    let which = format!("{name}: round {round}, {:?}", &list[of.clone()]);
                    for with_states in [true, false] {
                        let session = batch.sequence(sequence).expect("it began");
                        let before = session.len() - of.len();
                        session.truncate(before).expect("it can");
                        let [alone, own] = step(&mut *batch, &list[of.clone()], with_states);
                        assert!(alone == results[of.clone()], "{which}");
                        assert!(!with_states || own == states[of.clone()], "{which}");
                    }
                }
                // Steps of single tokens, which the next one can continue.
                list = vec![next(a, 9, 0), next(b, 10, 1), next(c, 11, 2)];
            }
        }
    }
}

/// Greedy steps, all but the first of which begin in advance, have the states of other steps.
#[test]
fn steps_in_advance_have_their_states() {
    let folder = tempfile::tempdir().expect("a folder");
    for name in STATELESS {
        let Some(backend) = gpu_with(form(name), &options_in(folder.path(), 2)) else { return };
        let mut batch = backend.batch();
        let (number, mut token, mut ahead) = (begun(&mut *batch), 5, Vec::new());
        for _ in 0..6 {
            let next = [NextToken { sequence: number, token, wanted: GREEDY }];
            let [results, states] = step(&mut *batch, &next, true);
            ahead.push((token, states[0].clone()));
            token = results[0][0];
        }
        let other = begun(&mut *batch);
        for (token, expected) in ahead {
            let next = [NextToken { sequence: other, token, wanted: Wanted::Logits }];
            assert!(step(&mut *batch, &next, true)[1][0] == expected, "{name}: a step in advance");
        }
    }
}

#[test]
fn sequences_of_a_head_have_the_bits_that_they_have_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    for name in HEADS {
        let Some(backend) = gpu_with(form(name), &options_in(folder.path(), 4)) else { return };
        let tokens: Vec<TokenId> = (0..30).map(|i| (i * 17 + i * i) % 69 + 3).collect();
        let [_, states] = prompt(&backend, &tokens, 512, 128);
        let part = |range: std::ops::Range<usize>| {
            (&tokens[range.start + 1..range.end + 1], &states[range.start * DIM..range.end * DIM])
        };
        let mut head = backend.prediction_head().expect("a head");
        let sizes = [1, 5, 20, 2];
        let alone: Vec<Vec<Found>> = sizes
            .iter()
            .map(|&n| {
                let number = head.begin().expect("a place");
                let found = [part(0..n), part(n..n + 3)]
                    .map(|(tokens, states)| predict(&mut *head, &[(number, tokens, states)]).remove(0));
                head.end(number);
                found.to_vec()
            })
            .collect();
        let numbers = sizes.map(|_| head.begin().expect("a place"));
        assert!(head.begin().is_err(), "{name}: places for four");
        for step in 0..2 {
            let parts: Vec<_> = (numbers.iter().zip(sizes))
                .map(|(&number, n)| {
                    let (tokens, states) = if step == 0 { part(0..n) } else { part(n..n + 3) };
                    (number, tokens, states)
                })
                .collect();
            let found = predict(&mut *head, &parts);
            for (index, (found, alone)) in found.iter().zip(&alone).enumerate() {
                assert!(*found == alone[step], "{name}: part {index} of step {step}");
            }
        }
        numbers.into_iter().for_each(|number| head.end(number));
        let again = sizes.map(|_| head.begin().is_ok());
        assert_eq!(again, [true; 4], "{name}: all places are free again");
    }
}

#[test]
fn parts_that_do_not_fit_are_errors() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(backend) = gpu_with(form("glm4moe"), &options_in(folder.path(), 1)) else { return };
    let mut head = backend.prediction_head().expect("a head");
    let (number, capacity) = (head.begin().expect("a place"), head.capacity());
    assert_eq!(capacity, 256, "tokens of the model");
    let mut refused = |sequence, n: usize, values| {
        let (tokens, states) = (vec![5; n], vec![0.5; values]);
        let part = HeadPart { sequence, tokens: &tokens, states: &states };
        head.predict(&[part], &mut |_, _, _| panic!("no result")).expect_err("refused")
    };
    assert!(matches!(refused(number, 2, 3 * DIM), Error::Forward { .. }));
    assert!(matches!(refused(number, 0, 0), Error::Forward { .. }));
    assert!(matches!(refused(number + 1, 1, DIM), Error::Forward { .. }));
    assert!(matches!(refused(number, 257, 257 * DIM), Error::ContextTooLong { tokens: 257, .. }));
    predict(&mut *head, &[(number, &vec![5; 256], &vec![0.5; 256 * DIM])]);
}

fn request(prompt: Vec<TokenId>, new: usize) -> GenerateRequest {
    GenerateRequest::new(Prompt::Tokens(prompt))
        .with_max_tokens(new)
        .with_ignore_eos(true)
        .with_sampling(SamplingParams::greedy())
}

fn text(seed: u32, n: u32) -> Vec<TokenId> {
    (0..n).map(|i| 3 + (i * 17 + i * i * (seed + 1)) % 60).collect()
}

fn complete(backend: &dyn InferenceBackend, request: &GenerateRequest) -> Completion {
    let found = backend.generate_with(request, &CancelToken::new(), &mut |_| ControlFlow::Continue(()));
    found.unwrap_or_else(|error| panic!("{}", chain(&error)))
}

fn together(backend: &dyn InferenceBackend, requests: &[GenerateRequest]) -> Vec<Completion> {
    let found = backend.generate_many(requests, &CancelToken::new(), &mut |_, _| ControlFlow::Continue(()));
    found.expect("threads").into_iter().map(|found| found.expect("text")).collect()
}

/// Drafted and accepted tokens.
fn counts(completions: &[Completion]) -> [usize; 2] {
    let sum = |of: fn(&Completion) -> usize| completions.iter().map(of).sum();
    [sum(|c| c.drafted_tokens), sum(|c| c.accepted_tokens)]
}

/// Sampling between the two likeliest tokens as equals, of which a draft is often the other one.
fn either() -> SamplingParams {
    SamplingParams::default().with_temperature(1000.0).with_top_k(2).with_top_p(1.0).with_min_p(0.0)
}

/// Requests with samplers of all kinds.
fn requests(speculation: Speculation) -> Vec<GenerateRequest> {
    let sampling = |seed: u32| match seed % 3 {
        0 => SamplingParams::greedy(),
        1 => either(),
        _ => SamplingParams::default().with_temperature(0.4).with_repeat_penalty(1.05),
    };
    let request = |seed: u32| {
        let sampling = sampling(seed).with_seed(Some(seed.into()));
        request(text(seed, 4 + 17 * seed), 24 + seed as usize)
            .with_sampling(sampling)
            .with_speculation(speculation)
    };
    (0..5).map(request).collect()
}

#[test]
fn drafts_of_heads_change_no_token() {
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["qwen35"].into_iter().chain(STATELESS) {
        let Some(backend) = gpu_with(form(name), &options_in(folder.path(), 5)) else { return };
        let expected: Vec<_> =
            requests(Speculation::Off).iter().map(|request| complete(&backend, request).tokens).collect();
        for speculation in [Speculation::Fixed(1), Speculation::Fixed(5), Speculation::Auto] {
            let found = together(&backend, &requests(speculation));
            let tokens: Vec<_> = found.iter().map(|found| found.tokens.clone()).collect();
            assert_eq!(tokens, expected, "{name} {speculation}");
            let [drafted, accepted] = counts(&found);
            // The head drafts in every step: look-up alone finds something in few.
            let least = if speculation == Speculation::Auto { 0 } else { 100 };
            assert!(drafted >= least && drafted >= accepted, "{name}: {accepted} of {drafted}");
        }
        // Greedy requests alone: steps of greedy tokens only.
        for greedy in [0, 3] {
            let found = complete(&backend, &requests(Speculation::Fixed(5))[greedy]);
            assert_eq!(found.tokens, expected[greedy], "{name}");
        }
        let mut head = backend.prediction_head().expect("a head");
        assert!((0..5).all(|_| head.begin().is_ok()), "{name}: all places are free again");
    }
}

/// Sets the values of an F16 tensor of a file to 1 where `is_one` says so of a row and column, and
/// to 0 elsewhere.
fn set(file: &mut [u8], header: &Value, name: &str, is_one: impl Fn(usize, usize) -> bool) {
    let tensor = &header[name];
    assert_eq!(tensor["dtype"], "F16", "{name}");
    let columns =
        tensor["shape"].as_array().expect("a shape").last().and_then(Value::as_u64).expect("a number");
    for (index, value) in file[range(tensor)].as_chunks_mut::<2>().0.iter_mut().enumerate() {
        let (row, column) = (index / columns as usize, index % columns as usize);
        *value = if is_one(row, column) { 0x3C00_u16.to_le_bytes() } else { [0; 2] };
    }
}

fn range(tensor: &Value) -> std::ops::Range<usize> {
    let at = |index: usize| tensor["data_offsets"][index].as_u64().expect("an offset") as usize;
    at(0)..at(1)
}

/// A copy of a model whose layers add nothing, so the next token follows from the last alone, and
/// whose head foretells it: a norm of the embedding, and the model's own norm and matrix.
fn foretelling(name: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    fs::copy(form(name).join("config.json"), folder.path().join("config.json")).expect("a copy");
    let mut bytes = fs::read(form(name).join("model.safetensors")).expect("a file");
    let length = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes")) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + length]).expect("a header");
    let file = &mut bytes[8 + length..];
    for tensor in header.as_object().expect("an object").keys() {
        let is_last = tensor.ends_with("o_proj.weight") || tensor.ends_with("down_proj.weight");
        let of_end = ["model.norm.", "enorm.", "shared_head.norm."].iter().any(|part| tensor.contains(part));
        if is_last || of_end {
            set(file, &header, tensor, |_, _| of_end);
        } else if tensor.ends_with("eh_proj.weight") {
            // The first half of the columns is that of the embedding.
            set(file, &header, tensor, |row, column| row == column);
        } else if let Some(own) = match tensor {
            _ if tensor.ends_with("shared_head.head.weight") => Some("lm_head.weight"),
            _ if tensor.ends_with("2.embed_tokens.weight") => Some("model.embed_tokens.weight"),
            _ => None,
        } {
            let values = file[range(&header[own])].to_vec();
            file[range(&header[tensor])].copy_from_slice(&values);
        }
    }
    fs::write(folder.path().join("model.safetensors"), bytes).expect("a file");
    folder
}

#[test]
fn a_head_that_foretells_is_accepted() {
    let tokenizer = tempfile::tempdir().expect("a folder");
    for name in STATELESS {
        let folder = foretelling(name);
        let options = options_in(tokenizer.path(), 4);
        let Some(backend) = gpu_with(folder.path().to_owned(), &options) else { return };
        let plain = |request: &GenerateRequest| {
            complete(&backend, &request.clone().with_speculation(Speculation::Off)).tokens
        };
        let many: Vec<_> = (0..4)
            .map(|seed| request(text(seed, 12 + 9 * seed), 60).with_speculation(Speculation::Fixed(4)))
            .collect();
        for (found, request) in together(&backend, &many).iter().zip(&many) {
            assert_eq!(found.tokens, plain(request), "{name}");
            let [drafted, accepted] = counts(std::slice::from_ref(found));
            assert!(drafted > 20 && 10 * accepted >= 9 * drafted, "{name}: {accepted} of {drafted}");
        }
        // Sampled between two tokens, so that half of the drafts are wrong.
        let varied = request(text(1, 30), 60).with_sampling(either().with_seed(Some(3)));
        let found = complete(&backend, &varied.clone().with_speculation(Speculation::Fixed(2)));
        let [drafted, accepted] = counts(std::slice::from_ref(&found));
        assert!(found.tokens == plain(&varied) && 2 * accepted > drafted / 2 && accepted < drafted, "{name}");
        // Longer than the cache of the head, which begins anew.
        let long = request(text(5, 6), 249).with_speculation(Speculation::Fixed(8));
        let found = complete(&backend, &long);
        assert!(found.tokens == plain(&long) && found.accepted_tokens > 180, "{name}: {found:?}");
        let none = GpuOptions { draft_head: false, ..options };
        let without = gpu_with(folder.path().to_owned(), &none).expect("an adapter");
        let off = complete(&without, &many[0]);
        let on = complete(&backend, &many[0]);
        assert!(
            on.accepted_tokens > off.accepted_tokens && on.tokens == off.tokens,
            "{name}: {off:?} {on:?}"
        );
    }
}

#[test]
fn heads_share_matrices_and_stay_on_the_device() {
    let folder = tempfile::tempdir().expect("a folder");
    for name in STATELESS {
        let options = options_in(folder.path(), 2);
        let Some(backend) = gpu_with(form(name), &options) else { return };
        let off = GpuOptions { draft_head: false, ..options.clone() };
        let without = gpu_with(form(name), &off).expect("an adapter");
        let own = backend.head_bytes();
        assert!(own > 0 && !backend.head_is_left_out(), "{name}");
        assert_eq!(backend.weight_bytes(), without.weight_bytes() + own, "{name}");
        let bytes = fs::read(form(name).join("model.safetensors")).expect("a file");
        let file = SafeTensors::deserialize(&bytes).expect("a valid file");
        // The router is in f32, beside the matrices.
        let is_matrix = |tensor: &str| tensor.contains(".layers.2.") && !tensor.ends_with("mlp.gate.weight");
        let of_head = file.iter().filter(|(tensor, view)| is_matrix(tensor) && view.shape().len() > 1);
        let in_file = of_head.map(|(_, view)| view.data().len() as u64).sum::<u64>();
        // Some rows are filled up; a second copy of a shared matrix would be twice as much.
        let filling = (VOCABULARY * DIM) as u64;
        assert!((in_file..in_file + filling).contains(&own), "{name}: {own} bytes, {in_file} in the file");
        let [with, alone] = [&backend, &without].map(|backend| backend.device_memory().expect("a device"));
        assert!(with.kv > alone.kv && with.used > alone.used, "{name}: {with:?} {alone:?}");
        assert!(without.prediction_head().is_none() && !without.head_is_left_out(), "{name}");
        let request = request(text(1, 20), 20).with_speculation(Speculation::Fixed(3));
        let expected = complete(&without, &request).tokens;
        drop((backend, without));
        // Beside a layer in memory of the host it stays on the device.
        let layers = GpuOptions { layers: Some(1), ..options.clone() };
        let backend = gpu_with(form(name), &layers).expect("an adapter");
        assert_eq!((backend.host_layers(), backend.head_bytes()), (1, own), "{name}");
        let found = complete(&backend, &request);
        assert!(found.tokens == expected && found.drafted_tokens > 10, "{name}: {found:?}");
        drop(backend);
        // A draft model takes the place of the head, and has none itself.
        for file in ["config.json", "model.safetensors"] {
            fs::copy(form(name).join(file), folder.path().join(file)).expect("a copy");
        }
        let draft = Some(ModelSource::Path(folder.path().to_owned()));
        let named = GpuOptions { draft, ..options };
        let backend = gpu_with(form(name), &named).expect("an adapter");
        assert!(backend.prediction_head().is_none() && backend.draft_model().is_some(), "{name}");
        assert!(backend.draft_model().is_some_and(|draft| draft.prediction_head().is_none()), "{name}");
    }
}

/// Somewhat less than the least budget in which all layers and the head have room.
#[test]
fn heads_are_left_out_where_layers_would_give_way() {
    let folder = tempfile::tempdir().expect("a folder");
    let options = options_in(folder.path(), 2);
    let fits = |budget: u64| {
        let loaded =
            try_load(form("glm4moe").into(), &GpuOptions { budget: Some(budget), ..options.clone() });
        let is_whole = |backend: GpuBackend| backend.host_layers() == 0 && !backend.head_is_left_out();
        loaded.map(|loaded| loaded.is_ok_and(is_whole))
    };
    let (mut least, mut most) = (0, 1 << 28);
    let Some(true) = fits(most) else { return };
    while most - least > 4 << 10 {
        let between = (least + most) / 2;
        match fits(between).expect("an adapter") {
            true => most = between,
            false => least = between,
        }
    }
    // Less than the matrices of the head, or of a layer.
    let budget = most - (16 << 10);
    let tight = GpuOptions { budget: Some(budget), ..options };
    let backend = gpu_with(form("glm4moe"), &tight).expect("an adapter");
    assert!(backend.head_is_left_out() && backend.prediction_head().is_none(), "{budget} bytes");
    assert_eq!((backend.host_layers(), backend.head_bytes()), (0, 0));
    let request = request(text(1, 20), 12).with_speculation(Speculation::Fixed(3));
    assert_eq!(complete(&backend, &request).tokens.len(), 12);
    assert!(backend.device_bytes() <= budget);
}
