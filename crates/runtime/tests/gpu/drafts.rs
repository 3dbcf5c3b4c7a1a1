//! Drafts that are verified on the device (ADR-0145).

use std::ops::ControlFlow;

use ruvllm::{
    CancelToken, Completion, Decoded, GenerateRequest, GpuBackend, GpuOptions, InferenceBackend, NextToken,
    Prompt, SamplingParams, Speculation, TokenId, Wanted,
};
use ruvllm_testkit::model_data;

use crate::support::{gpu_with, options, tiny};

fn prompt(seed: usize, n: usize) -> Vec<TokenId> {
    (0..n).map(|i| ((i * 37 + seed * 101) % 500 + 3) as TokenId).collect()
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|x| x.to_bits()).collect()
}

/// Several tokens of a sequence in a step, beside other sequences: the logits of each are those of
/// single steps, also behind tokens that were dropped.
fn runs(backend: &GpuBackend, lengths: [usize; 4]) {
    let vocab = backend.config().vocab_size;
    let mut batch = backend.batch();
    let go_on = &mut || ControlFlow::Continue(());
    let mut sequences: Vec<_> = (0..4)
        .map(|seed| {
            let prompt = prompt(seed, 3 + 31 * seed);
            let mut alone = backend.session(prompt.len() + 40).expect("a sequence");
            alone.prefill(&prompt, 512, go_on).expect("logits");
            let number = batch.begin(prompt.len() + 40).expect("a sequence");
            batch.sequence(number).expect("it began").prefill(&prompt, 512, go_on).expect("logits");
            (number, alone)
        })
        .collect();
    for round in 0..3 {
        let (mut tokens, mut expected) = (Vec::new(), Vec::new());
        for ((number, alone), n) in sequences.iter_mut().zip(lengths) {
            assert_eq!(batch.draft_room(*number), 7);
            for i in 0..n {
                let token = ((round * 67 + i * 13 + n) % 500 + 3) as TokenId;
                tokens.push(NextToken { sequence: *number, token, wanted: Wanted::Logits });
                expected.push(bits(alone.forward(&[token]).expect("logits")));
            }
        }
        let mut seen = 0;
        batch
            .decode(&tokens, &mut |rows, decoded| {
                let Decoded::Logits(logits) = decoded else { panic!("logits are asked for") };
                for (&row, found) in rows.iter().zip(logits.chunks_exact(vocab)) {
                    assert_eq!(bits(found), expected[row], "round {round}, row {row}");
                    seen += 1;
                }
            })
            .expect("results");
        assert_eq!(seen, tokens.len());
        // All but the first token of each are dropped.
        for ((number, alone), n) in sequences.iter_mut().zip(lengths) {
            let session = batch.sequence(*number).expect("it has not ended");
            assert_eq!(session.len(), alone.len());
            let len = session.len() - (n - 1);
            assert_eq!(session.truncate(len).expect("it is cut"), len);
            assert_eq!(alone.truncate(len).expect("it is cut"), len);
        }
    }
}

#[test]
fn tokens_of_a_draft_have_the_bits_of_single_steps() {
    let options = GpuOptions { kv_tokens: Some(1024), ..options() };
    for path in [tiny("llama", "model-F16.gguf"), tiny("gemma2", "model-F16.gguf")] {
        let Some(backend) = gpu_with(path, &options) else { return };
        runs(&backend, [1, 5, 2, 8]);
    }
    let Some(backend) = gpu_with(model_data("quant").join("llama-Q4_K_M.gguf"), &options) else { return };
    runs(&backend, [4, 1, 1, 2]);
}

/// A prompt that repeats itself, with so many tokens to follow.
fn repeating(seed: usize, new: usize) -> GenerateRequest {
    GenerateRequest::new(Prompt::Tokens(prompt(seed, 11).repeat(3)))
        .with_max_tokens(new)
        .with_ignore_eos(true)
}

#[test]
fn requests_have_the_same_tokens_with_and_without_drafts() {
    let options = GpuOptions { kv_tokens: Some(2048), context: Some(256), ..options() };
    let Some(backend) = gpu_with(tiny("llama", "model-F16.gguf"), &options) else { return };
    let cancel = CancelToken::new();
    let sampling = |seed: usize| match seed % 3 {
        0 => SamplingParams::greedy(),
        1 => SamplingParams::default().with_temperature(0.4),
        _ => SamplingParams::default().with_temperature(0.4).with_repeat_penalty(1.05),
    };
    let request = |seed: usize, speculation| {
        let sampling = sampling(seed).with_seed(Some(seed as u64));
        repeating(seed, 40 + seed).with_sampling(sampling).with_speculation(speculation)
    };
    let tokens = |completion: &Completion| completion.tokens.clone();
    let plain: Vec<_> = (0..6)
        .map(|seed| {
            let request = request(seed, Speculation::Off);
            let completion = backend.generate_with(&request, &cancel, &mut |_| ControlFlow::Continue(()));
            let completion = completion.expect("text");
            assert_eq!(completion.drafted_tokens, 0);
            tokens(&completion)
        })
        .collect();
    for speculation in [Speculation::Fixed(4), Speculation::Auto] {
        let requests: Vec<_> = (0..6).map(|seed| request(seed, speculation)).collect();
        let together = backend.generate_many(&requests, &cancel, &mut |_, _| ControlFlow::Continue(()));
        let together: Vec<_> =
            together.expect("threads").into_iter().map(|found| found.expect("text")).collect();
        assert_eq!(together.iter().map(tokens).collect::<Vec<_>>(), plain, "{speculation}, together");
        let alone = requests.iter().map(|request| {
            backend.generate_with(request, &cancel, &mut |_| ControlFlow::Continue(())).expect("text")
        });
        let alone: Vec<_> = alone.collect();
        assert_eq!(alone.iter().map(tokens).collect::<Vec<_>>(), plain, "{speculation}, alone");
        if speculation != Speculation::Auto {
            for completions in [&together, &alone] {
                let sum = |of: fn(&Completion) -> usize| completions.iter().map(of).sum::<usize>();
                let (drafted, accepted) = (sum(|c| c.drafted_tokens), sum(|c| c.accepted_tokens));
                assert!(drafted > 20 && accepted > 0, "{accepted} of {drafted} drafts accepted");
            }
        }
    }
}

#[test]
fn a_backend_drafts_as_it_is_told() {
    let request = repeating(0, 40).with_sampling(SamplingParams::greedy());
    let run = |speculation| {
        let options = GpuOptions { context: Some(128), speculation, ..options() };
        let backend = gpu_with(tiny("llama", "model-F16.gguf"), &options)?;
        let completion =
            backend.generate_with(&request, &CancelToken::new(), &mut |_| ControlFlow::Continue(()));
        let completion = completion.expect("text");
        Some((completion.tokens, completion.drafted_tokens))
    };
    let (Some((off, none)), Some((fixed, some))) = (run(Speculation::Off), run(Speculation::Fixed(3))) else {
        return;
    };
    assert_eq!(off, fixed);
    assert!(none == 0 && some > 0, "{none} {some}");
}
