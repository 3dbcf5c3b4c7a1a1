//! Drafts for models whose layers keep a state (ADR-0161): bits, tokens, spare states.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use ruvllm::{
    BackendBatch, CancelToken, Completion, Decoded, GenerateRequest, GpuBackend, GpuOptions,
    InferenceBackend, NextToken, Prompt, SamplingParams, Speculation, TokenId, Wanted,
};

use crate::batches::tokenizer_of;
use crate::families::form;
use crate::states::{WITH_STATES, backend, backend_with, bits, tokens};
use crate::support::options;

/// Bits of the logits behind each of `next`, behind a prompt and the tokens that follow it, all in
/// steps of one token.
fn alone(backend: &GpuBackend, prompt: &[TokenId], text: &[TokenId], next: &[TokenId]) -> Vec<Vec<u32>> {
    let mut session = backend.session(200).expect("a sequence");
    session.prefill(prompt, 512, &mut || ControlFlow::Continue(())).expect("logits");
    for &token in text {
        session.forward(&[token]).expect("logits");
    }
    next.iter().map(|&token| bits(session.forward(&[token]).expect("logits"))).collect()
}

/// A sequence of a batch.
struct Member {
    number: usize,
    prompt: Vec<TokenId>,
    /// Tokens behind the prompt.
    text: Vec<TokenId>,
}

/// Tokens of a sequence in a step, and the bits of the logits behind each.
struct Run {
    sequence: usize,
    tokens: Vec<TokenId>,
    expected: Vec<Vec<u32>>,
}

/// A step with runs of tokens; checks the bits of each.
fn check_step(batch: &mut dyn BackendBatch, runs: &[Run], what: &str) {
    let next = |run: &Run| {
        let sequence = run.sequence;
        let next = move |&token: &TokenId| NextToken { sequence, token, wanted: Wanted::Logits };
        run.tokens.iter().map(next).collect::<Vec<_>>()
    };
    let next: Vec<NextToken> = runs.iter().flat_map(next).collect();
    let expected: Vec<&Vec<u32>> = runs.iter().flat_map(|run| &run.expected).collect();
    let mut seen = 0;
    batch
        .decode(&next, &mut |rows, decoded| {
            let Decoded::Logits(logits) = decoded else { panic!("logits are asked for") };
            for (&row, found) in rows.iter().zip(logits.chunks_exact(logits.len() / rows.len())) {
                assert!(bits(found) == *expected[row], "{what}: row {row}");
                seen += 1;
            }
        })
        .expect("logits");
    assert_eq!(seen, next.len());
}

/// Rows of a draft have the bits of single steps, and so have the tokens behind those that stay.
#[test]
fn tokens_of_a_draft_have_the_bits_of_single_steps() {
    let folder = tempfile::tempdir().expect("a folder");
    for name in WITH_STATES {
        let Some(backend) = backend(name, 4, folder.path()) else { return };
        let mut batch = backend.batch();
        let begin = |seed: usize| {
            let (number, prompt) = (batch.begin(200).expect("a sequence"), tokens(seed, 3 + 20 * seed));
            let session = batch.sequence(number).expect("it began");
            session.prefill(&prompt, 512, &mut || ControlFlow::Continue(())).expect("logits");
            Member { number, prompt, text: Vec::new() }
        };
        let mut members: Vec<Member> = (0..3).map(begin).collect();
        // Tokens of each sequence in a step, and those that stay: none of a draft, some, all.
        let steps = [[(1, 1), (5, 2), (8, 8)], [(8, 1), (1, 1), (3, 2)], [(2, 2), (4, 4), (1, 1)]];
        for (step, lengths) in steps.into_iter().enumerate() {
            let mut runs = Vec::new();
            for (index, (member, (n, _))) in members.iter().zip(lengths).enumerate() {
                assert_eq!(batch.draft_room(member.number), 7, "{name}");
                let next = tokens(step * 5 + index + 7, n);
                let expected = alone(&backend, &member.prompt, &member.text, &next);
                runs.push(Run { sequence: member.number, tokens: next, expected });
            }
            check_step(&mut *batch, &runs, &format!("{name}, step {step}"));
            for ((member, run), (n, kept)) in members.iter_mut().zip(&runs).zip(lengths) {
                let session = batch.sequence(member.number).expect("it has not ended");
                let len = session.len() - (n - kept);
                assert_eq!(session.truncate(len).expect("it is cut"), len, "{name}");
                member.text.extend(&run.tokens[..kept]);
            }
        }
    }
}

fn complete(backend: &GpuBackend, request: &GenerateRequest) -> Completion {
    backend.generate_with(request, &CancelToken::new(), &mut |_| ControlFlow::Continue(())).expect("text")
}

/// Greedy requests and others, behind prompts that repeat themselves.
fn requests(speculation: Speculation) -> Vec<GenerateRequest> {
    let request = |seed: usize| {
        let temperature = if seed.is_multiple_of(2) { 0.0 } else { 0.6 };
        let sampling = SamplingParams::default().with_temperature(temperature).with_seed(Some(seed as u64));
        GenerateRequest::new(Prompt::Tokens(tokens(seed, 9 + seed).repeat(3)))
            .with_max_tokens(24 + seed)
            .with_sampling(sampling)
            .with_ignore_eos(true)
            .with_speculation(speculation)
    };
    (0..4).map(request).collect()
}

fn counts(completions: &[Completion]) -> [usize; 2] {
    let sum = |of: fn(&Completion) -> usize| completions.iter().map(of).sum();
    [sum(|c| c.drafted_tokens), sum(|c| c.accepted_tokens)]
}

/// A folder with the files of a form and a tokenizer.
fn whole(name: &str, folder: &Path) -> PathBuf {
    let target = folder.join(name);
    std::fs::create_dir_all(&target).expect("a folder");
    for file in std::fs::read_dir(form(name)).expect("a form") {
        let file = file.expect("an entry");
        std::fs::copy(file.path(), target.join(file.file_name())).expect("copied");
    }
    std::fs::copy(tokenizer_of(folder, 72), target.join("tokenizer.json")).expect("copied");
    target
}

/// Requests with drafts of another model, alone and together, have the tokens that they have
/// without; returns the numbers of drafted and accepted tokens.
fn drafted(name: &str, draft: &str) -> Option<[usize; 2]> {
    let folder = tempfile::tempdir().expect("a folder");
    let draft = Some(whole(draft, folder.path()).into());
    let backend = backend_with(name, GpuOptions { sequences: 4, draft, ..options() }, folder.path())?;
    let plain: Vec<_> =
        requests(Speculation::Off).iter().map(|request| complete(&backend, request).tokens).collect();
    let drafting = requests(Speculation::Fixed(5));
    let together =
        backend.generate_many(&drafting, &CancelToken::new(), &mut |_, _| ControlFlow::Continue(()));
    let together: Vec<_> = together.expect("threads").into_iter().map(|found| found.expect("text")).collect();
    let alone: Vec<_> = drafting.iter().map(|request| complete(&backend, request)).collect();
    for found in [&together, &alone] {
        let found: Vec<_> = found.iter().map(|completion| completion.tokens.clone()).collect();
        assert_eq!(found, plain, "{name}");
    }
    assert_eq!(backend.sequence_room(), 4, "{name}: all states are free");
    let [one, all] = [&alone, &together].map(|found| counts(found));
    println!("{name}: {} of {} drafts accepted, {} of {} together", one[1], one[0], all[1], all[0]);
    assert!(one[0] > 20 && all[0] > 20, "{name}");
    Some(one)
}

/// Each model drafts for itself, so that many drafts are right: the model goes back behind the
/// others, and the draft model, whose tokens are steps of their own, too.
#[test]
fn requests_have_the_same_tokens_with_and_without_drafts() {
    for name in ["qwen3next", "qwen35", "lfm2", "falcon_h1", "nemotron_h", "granitehybrid"] {
        let Some([drafted, accepted]) = drafted(name, name) else { return };
        assert!(accepted > 20 && accepted < drafted, "{name}: {accepted} of {drafted} accepted");
    }
}

#[test]
fn another_model_drafts_for_one_with_states() {
    for (name, draft) in [("qwen35", "falcon_h1"), ("lfm2", "granite")] {
        let Some([drafted, accepted]) = drafted(name, draft) else { return };
        assert!(accepted * 2 < drafted, "{name}: {accepted} of {drafted} accepted");
    }
}

/// Drafts take spare states alone, which the sequences share.
#[test]
fn drafts_have_the_states_that_are_spare() {
    let folder = tempfile::tempdir().expect("a folder");
    let with = |spare_states| {
        backend_with("lfm2", GpuOptions { sequences: 2, spare_states, ..options() }, folder.path())
    };
    let Some(few) = with(Some(3)) else { return };
    let mut batch = few.batch();
    let first = batch.begin(50).expect("a sequence");
    assert_eq!(batch.draft_room(first), 3);
    let second = batch.begin(50).expect("a sequence");
    assert_eq!([first, second].map(|number| batch.draft_room(number)), [1, 1]);
    for number in [first, second] {
        let session = batch.sequence(number).expect("it began");
        session.prefill(&tokens(1, 20), 512, &mut || ControlFlow::Continue(())).expect("logits");
    }
    let next: Vec<_> = [(first, 4), (first, 5), (second, 6), (second, 7)]
        .map(|(sequence, token)| NextToken { sequence, token, wanted: Wanted::Logits })
        .into();
    batch.decode(&next, &mut |_, _| ()).expect("logits");
    batch.end(second);
    assert_eq!(batch.draft_room(first), 3);
    let states = few.states().expect("its layers keep some");
    let (none, usual) = (with(Some(0)).expect("an adapter"), with(None).expect("an adapter"));
    let mut batch = none.batch();
    let number = batch.begin(50).expect("a sequence");
    assert_eq!(batch.draft_room(number), 0);
    let [none, usual] = [&none, &usual].map(|backend| backend.states().expect("its layers keep some"));
    assert_eq!((states.sequences, states.spare, none.spare, usual.spare), (2, 3, 0, 32));
    assert_eq!((states.bytes * 4, usual.bytes * 4), (none.bytes * 7, none.bytes * 36));
}
