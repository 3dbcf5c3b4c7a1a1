//! Bound on allocations of warm steps, counted by the allocator. A binary of its own, with one
//! test, because the counters see every thread.

use std::ops::ControlFlow;
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use ruvllm::{
    CancelToken, Engine, EngineOptions, FinishReason, GenerateRequest, KvPolicy, PrefixCaching, Prompt,
    SamplingParams,
};
use ruvllm_testkit::allocator::{Counting, calls, count_calls};
use ruvllm_testkit::model_data;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Sequences of the steps.
const REQUESTS: usize = 6;

/// Pieces of text before the count begins, and at its end, of each request.
const WARM: usize = 120;
const COUNTED: usize = 240;

#[test]
fn warm_steps_allocate_no_more_than_growing_texts() {
    count_calls();
    let options = EngineOptions::default()
        .with_threads(2)
        .with_kv("f16".parse::<KvPolicy>().expect("a policy"))
        .with_prefixes(PrefixCaching::Off);
    let engine = Engine::open_with(model_data("tiny/llama/model-F16.gguf"), &options).expect("a model");
    let (start, end) = (Barrier::new(REQUESTS), Barrier::new(REQUESTS));
    let (before, after) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for index in 0..REQUESTS {
            let (engine, start, end, before, after) = (&engine, &start, &end, &before, &after);
            scope.spawn(move || {
                let sampling = SamplingParams::default().with_seed(Some(index as u64));
                let request = GenerateRequest::new(Prompt::Tokens(vec![7 + index as u32; 20]))
                    .with_sampling(if index == 0 { SamplingParams::greedy() } else { sampling })
                    .with_ignore_eos(true);
                let mut pieces = 0;
                let completion = engine.generate_with(&request, &CancelToken::new(), &mut |_| {
                    pieces += 1;
                    if pieces == WARM && start.wait().is_leader() {
                        before.store(calls(), SeqCst);
                    }
                    if pieces == COUNTED {
                        if end.wait().is_leader() {
                            after.store(calls(), SeqCst);
                        }
                        return ControlFlow::Break(());
                    }
                    ControlFlow::Continue(())
                });
                assert_eq!(completion.expect("text").finish_reason, FinishReason::Cancelled);
            });
        }
    });
    let steps = engine.step_statistics();
    assert!(steps.parts > 3 * steps.steps, "requests share steps: {steps:?}");
    let calls = after.into_inner() - before.into_inner();
    // Eight lists of a request double as they grow: ids and text in the loop, and the two buffers
    // of its mailbox. One allocation per token would be more than 700.
    assert!(calls <= 16 * REQUESTS, "{calls} allocations");
}
