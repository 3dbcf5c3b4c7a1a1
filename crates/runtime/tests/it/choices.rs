//! Several choices of one prompt: each gives what the request gives alone with its seed.

use ruvllm::{
    CancelToken, Completion, Engine, Error, FinishReason, GenerateRequest, PrefixCaching, Prompt,
    SamplingParams,
};

use crate::common::{complete, greedy, load, tiny, tiny_options, tiny_path};

/// Prompts that end within a block, at the end of one, and one token behind it.
const LENGTHS: [u32; 5] = [1, 40, 63, 64, 65];

fn request(len: u32) -> GenerateRequest {
    GenerateRequest::new(Prompt::Tokens((0..len).map(|i| 3 + i * 7 % 400).collect()))
        .with_max_tokens(24)
        .with_sampling(SamplingParams::default().with_temperature(2.0).with_seed(Some(u64::MAX - 1)))
}

fn expected(len: u32, n: u64) -> Vec<Completion> {
    let alone = |i| complete(tiny(), &request(len).with_seed((u64::MAX - 1).wrapping_add(i)));
    (0..n).map(alone).collect()
}

fn compare(engine: &Engine, len: u32) {
    let expected = expected(len, 5);
    let handles = engine.submit_many(request(len), 5).expect("handles");
    for (handle, expected) in handles.into_iter().zip(&expected) {
        let found = handle.wait().expect("text");
        assert_eq!(
            (found.seed, &found.tokens, &found.text, found.finish_reason),
            (expected.seed, &expected.tokens, &expected.text, expected.finish_reason),
            "{len}"
        );
    }
    assert!(expected.iter().any(|choice| choice.tokens != expected[0].tokens), "seeds differ");
}

#[test]
fn each_is_the_request_alone_with_its_seed() {
    for prefixes in [PrefixCaching::Off, PrefixCaching::Memory] {
        let engine = load(tiny_path(), &tiny_options().with_prefixes(prefixes));
        LENGTHS.into_iter().for_each(|len| compare(&engine, len));
    }
}

#[test]
fn the_prompt_is_computed_once() {
    let engine = load(tiny_path(), &tiny_options().with_prefixes(PrefixCaching::Off));
    let handles = engine.submit_many(request(200), 8).expect("handles");
    let cached: Vec<usize> =
        handles.into_iter().map(|handle| handle.wait().expect("text").cached_tokens).collect();
    assert_eq!(cached, [0, 199, 199, 199, 199, 199, 199, 199]);
    // Each choice computes the last token again, for logits of its own.
    assert_eq!(engine.step_statistics().prefill_tokens, 200 + 7);
}

#[test]
fn one_token_ends_all_choices() {
    let cancel = CancelToken::new();
    let request = request(40).with_max_tokens(None).with_ignore_eos(true);
    let mut handles = tiny().submit_many_with(request, 3, &cancel).expect("handles");
    for handle in &mut handles {
        handle.next().expect("the first piece").expect("text");
    }
    cancel.cancel();
    let reasons = handles.into_iter().map(|handle| handle.wait().expect("text").finish_reason);
    assert_eq!(reasons.collect::<Vec<_>>(), [FinishReason::Cancelled; 3]);
}

#[test]
fn choices_hold_under_a_budget_for_few_of_them() {
    let options = tiny_options().with_kv_budget(4 << 20).with_context(600);
    for prefixes in [PrefixCaching::Off, PrefixCaching::Memory] {
        let engine = load(tiny_path(), &options.clone().with_prefixes(prefixes));
        let request = |seed: u64| request(400).with_max_tokens(150).with_ignore_eos(true).with_seed(seed);
        let handles: Vec<_> =
            (0..4).flat_map(|group| engine.submit_many(request(100 * group), 6).expect("handles")).collect();
        for (index, handle) in (0u64..).zip(handles) {
            let found = handle.wait().expect("text");
            let expected = complete(tiny(), &request(100 * (index / 6) + index % 6));
            assert_eq!(found.tokens, expected.tokens, "{index}");
        }
        let pool = engine.kv_store().pool();
        drop(engine.submit("x").expect("a handle").wait());
        assert!(pool.stats().used_pages < pool.capacity_pages());
    }
}

#[test]
fn the_end_of_one_does_not_end_the_others() {
    let engine = load(tiny_path(), &tiny_options().with_prefixes(PrefixCaching::Off));
    let expected = expected(300, 4);
    for ended in 0..4 {
        let mut handles = engine.submit_many(request(300), 4).expect("handles");
        // Also the first, whose sequence the others wait for.
        let cancelled = handles.remove(ended).finish().expect("a result");
        assert_eq!(cancelled.finish_reason, FinishReason::Cancelled);
        let others = expected.iter().enumerate().filter(|(index, _)| *index != ended);
        for (handle, (_, expected)) in handles.into_iter().zip(others) {
            assert_eq!(handle.wait().expect("text").tokens, expected.tokens);
        }
    }
    let handles = engine.submit_many(request(3).with_max_tokens(0), 3).expect("handles");
    for handle in handles {
        assert_eq!(handle.wait().expect("nothing").finish_reason, FinishReason::Length);
    }
    let cancel = CancelToken::new();
    cancel.cancel();
    let none = engine.generate_best(request(300), 2, 3, &cancel);
    assert!(none.is_ok_and(|all| all.iter().all(|one| one.finish_reason == FinishReason::Cancelled)));
}

#[test]
fn the_best_have_the_highest_mean_logprob() {
    let request = request(40);
    let mut all: Vec<(f64, Vec<u32>)> = (tiny().submit_many(request.clone().with_logprobs(0), 6))
        .expect("handles")
        .into_iter()
        .map(|handle| handle.wait().expect("text"))
        .map(|choice| (choice.mean_logprob().expect("logprobs"), choice.tokens))
        .collect();
    all.sort_by(|a, b| b.0.total_cmp(&a.0));
    let best = tiny().generate_best(&request, 2, 6, &CancelToken::new()).expect("text");
    let found: Vec<_> =
        best.into_iter().map(|choice| (choice.mean_logprob().expect("logprobs"), choice.tokens)).collect();
    assert_eq!(found, all[..2]);
}

#[test]
fn numbers_out_of_range_are_refused() {
    let refused = |n, best_of| match tiny().generate_best(greedy("x", 1), n, best_of, &CancelToken::new()) {
        Err(Error::InvalidOption { name, .. }) => name,
        other => panic!("expected an option error, found {other:?}"),
    };
    assert_eq!(
        (refused(0, 1), refused(129, 129), refused(3, 2), refused(1, 129)),
        ("n", "n", "best_of", "best_of")
    );
    for n in [0, 129] {
        let error = tiny().submit_many(greedy("x", 1), n).expect_err("out of range");
        assert!(matches!(error, Error::InvalidOption { name: "n", value, .. } if value == n), "{error:?}");
    }
}
