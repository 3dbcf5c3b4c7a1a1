//! Log-probabilities of prompts: those of `Engine::logits`, bit for bit, however the prompt was
//! computed (ADR-0068).

use std::sync::Arc;

use ruvllm::{
    AdapterSource, BackendSession, CancelToken, Completion, Constraint, Engine, Error, FinishReason,
    GenerateRequest, InferenceBackend, KvPolicy, Logprobs, ModelConfig, PrefixCaching, Prompt, RequestHandle,
    Result, Sampler, SamplingParams, Speculation, TextCodec,
};
use ruvllm_testkit::{Random, model_data};

use crate::common::{complete, family_path, greedy, load, tiny, tiny_options, tiny_path};

fn tokens(seed: u64, len: usize) -> Vec<u32> {
    let mut random = Random::new(seed);
    (0..len).map(|_| random.below(500) as u32).collect()
}

/// A request for the log-probabilities of these tokens and nothing else.
fn scoring(tokens: &[u32], top_n: usize) -> GenerateRequest {
    greedy(Prompt::Tokens(tokens.to_vec()), 0).with_prompt_logprobs(top_n)
}

/// Log-probabilities of the tokens from the second on, from the logits of the whole sequence.
fn expected(engine: &Engine, tokens: &[u32], top_n: usize) -> Vec<Logprobs> {
    let vocab_size = engine.config().vocab_size;
    let positions: Vec<usize> = (0..tokens.len() - 1).collect();
    let rows = engine.logits(tokens, &positions).expect("logits");
    let sampled = vocab_size.min(engine.tokenizer().vocab_size());
    let mut sampler = Sampler::new(engine.kernels(), &SamplingParams::greedy(), sampled).expect("a sampler");
    let of = |(row, &token): (&[f32], &u32)| sampler.logprobs(&row[..sampled], token, top_n).expect("some");
    rows.chunks(vocab_size).zip(&tokens[1..]).map(of).collect()
}

fn check(completion: &Completion, expected: &[Logprobs]) {
    assert_eq!(completion.prompt_logprobs.len(), expected.len());
    assert!(completion.prompt_logprobs[..] == *expected, "the same bits");
}

#[test]
fn positions_have_those_of_the_models_distribution() {
    for chunk in [1, 7, 32, 512] {
        let engine = load(tiny_path(), &tiny_options().with_prefill_chunk(chunk));
        for (len, top_n) in [(2, 0), (33, 3), (64, 128), (97, 1)] {
            let prompt = tokens(len as u64, len);
            let expected = expected(&engine, &prompt, top_n);
            let scored = complete(&engine, &scoring(&prompt, top_n));
            check(&scored, &expected);
            assert_eq!((scored.finish_reason, scored.prompt_tokens), (FinishReason::Length, len));
            assert!(scored.tokens.is_empty() && scored.text.is_empty() && scored.logprobs.is_empty());
            // The output is that of the request without them.
            let plain = greedy(Prompt::Tokens(prompt), 5).with_ignore_eos(true).with_logprobs(1);
            let both = complete(&engine, &plain.clone().with_prompt_logprobs(top_n));
            check(&both, &expected);
            let plain = complete(&engine, &plain);
            assert!(plain.prompt_logprobs.is_empty());
            assert_eq!((both.tokens, both.logprobs), (plain.tokens, plain.logprobs));
        }
    }
}

#[test]
fn a_prompt_of_one_token_has_none_and_only_askers_compute_a_prompt() {
    let engine = load(tiny_path(), &tiny_options());
    let alone = complete(&engine, &scoring(&[5], 2));
    assert_eq!((alone.prompt_logprobs.len(), alone.finish_reason), (0, FinishReason::Length));
    let none = complete(&engine, &greedy(Prompt::Tokens(tokens(1, 40)), 0));
    assert!(none.prompt_logprobs.is_empty());
    assert_eq!(engine.step_statistics().steps, 0);
    let error = engine.generate(scoring(&[5, 6], 129)).expect_err("too many");
    assert!(matches!(error, Error::InvalidOption { name: "prompt_logprobs", value: 129, .. }), "{error:?}");
}

#[test]
fn no_prefix_is_reused_and_one_is_left() {
    let engine = load(tiny_path(), &tiny_options().with_prefixes(PrefixCaching::Memory));
    let prompt = tokens(3, 100);
    let expected = expected(&engine, &prompt, 2);
    for round in 0..3 {
        let scored = complete(&engine, &scoring(&prompt, 2));
        check(&scored, &expected);
        assert_eq!(scored.cached_tokens, 0, "round {round}");
    }
    let lookups = engine.prefix_statistics().expect("a prefix cache").memory.lookups;
    assert_eq!(lookups, 0, "nothing is looked up that may not be used");
    let plain = complete(&engine, &greedy(Prompt::Tokens(prompt.clone()), 2));
    assert_eq!(plain.cached_tokens, 99);
    // A conversation computes its beginning again too.
    let mut talk = engine.conversation();
    let request = |n: usize| greedy(Prompt::Tokens(prompt.clone()), n);
    talk.generate(request(2)).expect("text");
    let scored = talk.generate(request(2).with_prompt_logprobs(2)).expect("text");
    check(&scored, &expected);
    assert_eq!(scored.cached_tokens, 0);
}

#[test]
fn other_requests_and_drafts_change_no_bit() {
    for prefixes in [PrefixCaching::Off, PrefixCaching::Memory] {
        let options = tiny_options().with_prefixes(prefixes).with_prefill_chunk(48).with_context(400);
        // About a third of all sequences of a round.
        let engine = load(tiny_path(), &options.with_kv_budget(4 << 20));
        let mut random = Random::new(11);
        for _ in 0..3 {
            let mut running: Vec<(Option<Vec<Logprobs>>, RequestHandle)> = Vec::new();
            for index in 0..40 {
                // Half of them begin alike.
                let mut prompt = tokens(random.below(2) as u64, 64);
                prompt.extend(tokens(index, 1 + random.below(120)));
                let (top_n, new) = (random.below(3), random.below(30));
                let request = greedy(Prompt::Tokens(prompt.clone()), new)
                    .with_ignore_eos(true)
                    .with_speculation(Speculation::Fixed(1 + random.below(4)));
                let scores = random.below(3) > 0;
                let expected = scores.then(|| expected(tiny(), &prompt, top_n));
                let request = if scores { request.with_prompt_logprobs(top_n) } else { request };
                running.push((expected, engine.submit(request).expect("a handle")));
            }
            for (expected, handle) in running {
                let completion = handle.wait().expect("text");
                check(&completion, expected.as_deref().unwrap_or_default());
            }
        }
    }
}

#[test]
fn the_prompt_of_choices_is_computed_once() {
    let engine = load(tiny_path(), &tiny_options().with_prefixes(PrefixCaching::Off));
    let prompt = tokens(5, 200);
    let expected = expected(&engine, &prompt, 3);
    for (new, computed) in [(0, 200), (8, 200 + 3)] {
        let before = engine.step_statistics().prefill_tokens;
        let request = scoring(&prompt, 3).with_max_tokens(new).with_ignore_eos(true);
        let handles = engine.submit_many(request, 4).expect("handles");
        let choices: Vec<Completion> = handles.into_iter().map(|h| h.wait().expect("text")).collect();
        choices.iter().for_each(|choice| check(choice, &expected));
        assert!(
            choices.iter().all(|c| Arc::ptr_eq(&c.prompt_logprobs, &choices[0].prompt_logprobs)),
            "choices share them"
        );
        assert!(choices.iter().all(|c| c.tokens.len() == new && c.prompt_tokens == 200));
        assert_eq!(engine.step_statistics().prefill_tokens - before, computed);
    }
    // When the first is cancelled, the next one computes the prompt.
    let mut handles = engine.submit_many(scoring(&prompt, 3), 3).expect("handles");
    drop(handles.remove(0));
    for handle in handles {
        check(&handle.wait().expect("a result"), &expected);
    }
}

#[test]
fn they_are_there_from_the_first_piece_on() {
    let prompt = tokens(6, 70);
    let request = scoring(&prompt, 1).with_max_tokens(8).with_ignore_eos(true);
    let mut handle = tiny().submit(&request).expect("a handle");
    handle.next().expect("a piece").expect("no error");
    let early = handle.prompt_logprobs().expect("the prompt is computed");
    let completion = handle.wait().expect("text");
    assert!(Arc::ptr_eq(&early, &completion.prompt_logprobs));
    check(&completion, &expected(tiny(), &prompt, 1));
    let mut plain = tiny().submit(greedy("Once", 3).with_ignore_eos(true)).expect("a handle");
    plain.next().expect("a piece").expect("no error");
    assert!(plain.prompt_logprobs().is_none());
}

#[test]
fn a_cancelled_request_has_those_that_were_computed() {
    let engine = load(tiny_path(), &tiny_options().with_prefill_chunk(8));
    let prompt = tokens(9, 400);
    let expected = expected(&engine, &prompt, 1);
    for _ in 0..4 {
        let handle = engine.submit(scoring(&prompt, 1)).expect("a handle");
        let found = handle.finish().expect("a result").prompt_logprobs;
        assert!(expected.starts_with(&found), "{} of {}", found.len(), expected.len());
    }
}

#[cfg(feature = "structured-output")]
#[test]
fn constraints_of_the_output_do_not_change_them() {
    let prompt = tokens(7, 50);
    let constraint = Constraint::choices(["a long text that is forced", "b"]).expect("choices");
    let request = greedy(Prompt::Tokens(prompt.clone()), 40).with_constraint(constraint);
    let plain = complete(tiny(), &request);
    let scored = complete(tiny(), &request.with_prompt_logprobs(2));
    check(&scored, &expected(tiny(), &prompt, 2));
    assert_eq!((scored.tokens, scored.text), (plain.tokens, plain.text));
}

#[test]
fn adapters_and_policies_of_the_request_count() {
    let lora = AdapterSource { path: model_data("lora").join("r4_all"), scale: 1.0 };
    let mut engine = load(tiny_path(), &tiny_options());
    let adapter = engine.load_adapter(std::slice::from_ref(&lora)).expect("an adapter");
    let prompt = tokens(8, 80);
    let plain = expected(&engine, &prompt, 1);
    let with = complete(&engine, &scoring(&prompt, 1).with_adapter(Arc::clone(&adapter)));
    check(&complete(&engine, &scoring(&prompt, 1)), &plain);
    engine.set_adapters(&[adapter.into()]).expect("a scale");
    let adapted = expected(&engine, &prompt, 1);
    assert_ne!(adapted, plain);
    check(&with, &adapted);
    check(&complete(&engine, &scoring(&prompt, 1)), &adapted);

    let q8: KvPolicy = "q8".parse().expect("a policy");
    let both = load(family_path("qwen3"), &tiny_options().with_request_kv(vec![q8]));
    let other = load(family_path("qwen3"), &tiny_options().with_kv(q8));
    check(&complete(&both, &scoring(&prompt, 1).with_kv(q8)), &expected(&other, &prompt, 1));
}

/// The engine's sequences behind the methods that every backend has.
struct Plain;

impl InferenceBackend for Plain {
    fn name(&self) -> &str {
        "plain"
    }

    fn config(&self) -> &ModelConfig {
        tiny().config()
    }

    fn codec(&self) -> &TextCodec {
        InferenceBackend::codec(tiny())
    }

    fn context_length(&self) -> usize {
        tiny().context_length()
    }

    fn session(&self, capacity: usize) -> Result<Box<dyn BackendSession + '_>> {
        InferenceBackend::session(tiny(), capacity)
    }
}

#[test]
fn any_backend_gives_them() {
    let prompt = tokens(10, 90);
    let expected = expected(tiny(), &prompt, 2);
    let run = |request: &GenerateRequest, cancel: &CancelToken| {
        Plain.generate_with(request, cancel, &mut |_| std::ops::ControlFlow::Continue(()))
    };
    for new in [0, 6] {
        let request = scoring(&prompt, 2).with_max_tokens(new).with_ignore_eos(true);
        let completion = run(&request, &CancelToken::new()).expect("text");
        check(&completion, &expected);
        assert_eq!(completion.tokens, complete(tiny(), &request).tokens);
    }
    let cancel = CancelToken::new();
    cancel.cancel();
    let result = run(&scoring(&prompt, 2), &cancel);
    assert!(
        result.as_ref().is_ok_and(|c| c.finish_reason == FinishReason::Cancelled)
            || matches!(result, Err(Error::Cancelled)),
        "{result:?}"
    );
}
