//! The loop with the executor of a tiny model.

use ruvllm_memory::{PressurePolicy, Tenant};
use ruvllm_testkit::{Random, model_data};

use super::*;
use crate::cancel::CancelToken;
use crate::prefix::PrefixCaching;
use crate::request::{GenerateRequest, Prompt};
use crate::sampler::SamplingParams;
use crate::sequence::SequenceSpec;
use crate::step::native::NativeExecutor;
use crate::step::{Facts, Inbox, Job, Outlet, Prepared, RequestAdapters, RequestHandle};
use crate::{Engine, EngineOptions, Speculation};

fn engine(prefixes: PrefixCaching) -> Engine {
    let options = EngineOptions::default()
        .with_threads(2)
        .with_kv("f32".parse::<ruvllm_kv_cache::KvPolicy>().expect("a policy"))
        .with_prefixes(prefixes);
    Engine::open_with(model_data("tiny/llama/model-F16.gguf"), &options).expect("the model loads")
}

fn request(index: u64) -> GenerateRequest {
    let mut random = Random::new(index);
    let tokens = (0..1 + random.below(90)).map(|_| random.below(500) as u32).collect();
    GenerateRequest::new(Prompt::Tokens(tokens))
        .with_max_tokens(1 + random.below(30))
        .with_sampling(SamplingParams::default().with_seed(Some(index)))
}

fn submit<'c>(
    engine: &'c Engine,
    steps: &mut StepLoop<'c, NativeExecutor<'c>>,
    request: &GenerateRequest,
) -> RequestHandle {
    let core = engine.core();
    let cancel = CancelToken::new();
    let facts = Facts {
        codec: &core.codec,
        kernels: core.compute.kernels,
        context: core.context,
        model_context: core.context,
    };
    let prepared = Prepared::new(&facts, request, &cancel).expect("a valid request");
    let spec = SequenceSpec {
        tenant: Tenant::root(),
        adapters: Arc::default(),
        kv: None,
        pressure: PressurePolicy::default(),
        capacity: prepared.capacity(),
        caches_prefix: true,
        min_cache_tokens: 0,
        shared_tokens: 0,
    };
    let inbox = Arc::new(Inbox::default());
    let outlet = Outlet::new(Arc::clone(&inbox), None);
    let handle = RequestHandle::new(inbox, cancel.clone(), None, 0);
    let (session, record, priority, deadline) = (None, None, 0, None);
    steps.submit(Job {
        prepared,
        spec,
        adapters: RequestAdapters::default(),
        session,
        record,
        priority,
        deadline,
        cancel,
        outlet,
    });
    handle
}

#[test]
fn preemption_in_every_step_changes_no_output() {
    for (prefixes, drafts) in [(PrefixCaching::Off, 0), (PrefixCaching::Memory, 0), (PrefixCaching::Off, 3)] {
        let requests: Vec<GenerateRequest> = (0..24).map(request).collect();
        let other = engine(PrefixCaching::Off);
        let alone: Vec<_> = requests.iter().map(|request| other.generate(request).expect("text")).collect();
        let engine = engine(prefixes);
        let (core, counters) = (engine.core(), Arc::new(StepCounters::default()));
        let mut config = Config::default();
        // Chunks of few tokens, so that requests yield in the middle of their prompts too.
        (config.step_tokens, config.block_tokens) = (48, core.kv.block_tokens());
        let executor = NativeExecutor::new(core);
        let mut steps =
            StepLoop::new(executor, &core.codec, Some(&core.compute.pool), Arc::clone(&counters), config);
        let requests: Vec<GenerateRequest> = if drafts > 0 {
            steps = steps.with_drafts(Speculator::new(core));
            requests.into_iter().map(|r| r.with_speculation(Speculation::Fixed(drafts))).collect()
        } else {
            requests
        };
        let handles: Vec<_> = requests.iter().map(|request| submit(&engine, &mut steps, request)).collect();
        let mut random = Random::new(7);
        let mut iterations = 0;
        while !steps.is_idle() {
            steps.iterate();
            iterations += 1;
            assert!(iterations < 100_000, "the requests make progress");
            let mut running: Vec<RequestId> = (steps.requests.iter())
                .filter(|(_, request)| request.computed > 0)
                .map(|(&id, _)| id)
                .collect();
            running.sort_unstable();
            // In every step a third of them yield; the last two may end.
            for _ in 0..running.len() / 3 {
                steps.preempt(running.swap_remove(random.below(running.len())));
            }
        }
        assert!(counters.read().preemptions > 50, "{:?}", counters.read());
        assert_eq!(counters.read().drafted_tokens > 0, drafts > 0, "{:?}", counters.read());
        for (handle, expected) in handles.into_iter().zip(alone) {
            let found = handle.wait().expect("text");
            assert_eq!((found.tokens, found.text), (expected.tokens, expected.text));
        }
    }
}

/// Requests for log-probabilities of prompts, with and without output, and others. Three of them
/// have the same prompt, of which each leaves a prefix that the others must not take.
fn scoring(index: u64) -> GenerateRequest {
    let request = request(index / 3);
    match index % 3 {
        0 => request,
        1 => request.with_prompt_logprobs(1),
        _ => request.with_prompt_logprobs(0).with_max_tokens(0),
    }
}

#[test]
fn preemption_loses_and_repeats_no_position_of_a_prompt() {
    for (prefixes, most_rows) in
        [(PrefixCaching::Off, 1), (PrefixCaching::Memory, 5), (PrefixCaching::Memory, 40)]
    {
        let requests: Vec<GenerateRequest> = (0..24).map(scoring).collect();
        let other = engine(PrefixCaching::Off);
        let alone: Vec<_> = requests.iter().map(|request| other.generate(request).expect("text")).collect();
        let engine = engine(prefixes);
        let (core, counters) = (engine.core(), Arc::new(StepCounters::default()));
        let mut config = Config::default();
        (config.step_tokens, config.block_tokens) = (48, core.kv.block_tokens());
        let executor = NativeExecutor::new(core);
        let mut steps =
            StepLoop::new(executor, &core.codec, Some(&core.compute.pool), Arc::clone(&counters), config);
        steps.most_prompt_rows = most_rows;
        let handles: Vec<_> = requests.iter().map(|request| submit(&engine, &mut steps, request)).collect();
        let mut random = Random::new(7);
        let mut iterations = 0;
        while !steps.is_idle() {
            steps.iterate();
            iterations += 1;
            assert!(iterations < 100_000, "the requests make progress");
            let mut running: Vec<RequestId> = (steps.requests.iter())
                .filter(|(_, request)| request.computed > 0)
                .map(|(&id, _)| id)
                .collect();
            running.sort_unstable();
            for _ in 0..running.len().div_ceil(3).min(running.len().saturating_sub(1)) {
                steps.preempt(running.swap_remove(random.below(running.len())));
            }
        }
        assert!(counters.read().preemptions > 50, "{:?}", counters.read());
        for (handle, expected) in handles.into_iter().zip(alone) {
            let found = handle.wait().expect("text");
            assert_eq!((found.tokens, found.text), (expected.tokens, expected.text));
            assert_eq!(found.prompt_logprobs, expected.prompt_logprobs);
        }
    }
}

#[test]
fn rows_of_a_step_keep_to_the_bound_and_a_cancelled_prompt_has_its_positions() {
    let engine = engine(PrefixCaching::Off);
    let core = engine.core();
    let executor = NativeExecutor::new(core);
    let mut steps =
        StepLoop::new(executor, &core.codec, None, Arc::new(StepCounters::default()), Config::default());
    steps.most_prompt_rows = 12;
    let prompt = |seed: u32| Prompt::Tokens((0..100).map(|i| (seed + i * 7) % 500).collect());
    let request = |seed| GenerateRequest::new(prompt(seed)).with_max_tokens(0).with_prompt_logprobs(0);
    let expected = [request(1), request(2)].map(|request| engine.generate(request).expect("a result"));
    let handles = [request(1), request(2)].map(|request| submit(&engine, &mut steps, &request));
    let recorded = |steps: &StepLoop<'_, _>| -> Vec<usize> {
        let mut computed: Vec<usize> = steps.requests.values().map(|request| request.computed).collect();
        computed.sort_unstable();
        computed
    };
    // The first one gets all rows of a step.
    steps.iterate();
    assert_eq!(recorded(&steps), [0, 12]);
    steps.iterate();
    assert_eq!(recorded(&steps), [0, 24]);
    let [first, second] = handles;
    first.cancel_token().cancel();
    steps.iterate();
    let cancelled = first.wait().expect("a result");
    assert_eq!(cancelled.finish_reason, FinishReason::Cancelled);
    assert_eq!(cancelled.prompt_logprobs[..], expected[0].prompt_logprobs[..24]);
    while !steps.is_idle() {
        steps.iterate();
    }
    assert_eq!(second.wait().expect("a result").prompt_logprobs, expected[1].prompt_logprobs);
}
