//! Many requests at once: each gets what it would get alone (ADR-0003, ADR-0041).

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ruvllm::{
    Adapter, AdapterSource, CancelToken, Completion, Constraint, Engine, EngineOptions, Error, FinishReason,
    GenerateRequest, KvPolicy, PrefixCaching, PressurePolicy, Prompt, Refusal, RequestHandle, SamplingParams,
    ScaledAdapter, SchedulerConfig, Tenant,
};
use ruvllm_testkit::{Random, is_full_run, model_data};

use crate::common::{family_path, gated, greedy, load, tiny_options, tiny_path, tiny_source};

/// Requests of a run.
const REQUESTS: usize = 64;

/// A model of a run, its adapter, and the KV policies of requests besides the engine's.
struct Mix {
    family: &'static str,
    lora: &'static str,
    policies: [&'static str; 2],
    /// True if blocks migrate to lossy tiers: bits then depend on the passes in which tokens were
    /// computed. Prompts stay within the hot tier, and sequences are neither shared nor preempted.
    migrates: bool,
}

/// All combinations that promise equal bits in any schedule, and those that do without preemption.
const MIXES: [Mix; 3] = [
    Mix { family: "llama", lora: "r4_all", policies: ["f16", "bf16"], migrates: false },
    Mix { family: "qwen3", lora: "qwen3", policies: ["q8", "q4"], migrates: false },
    Mix {
        family: "qwen3",
        lora: "qwen3",
        policies: ["kivi4", "tiered:hot=32,sink=0,warm=q8,cold=off"],
        migrates: true,
    },
];

impl Mix {
    fn policies(&self) -> [KvPolicy; 2] {
        self.policies.map(|policy| policy.parse().expect("a policy"))
    }

    /// Options with the KV policies that requests may name.
    fn options(&self, prefixes: PrefixCaching) -> EngineOptions {
        tiny_options().with_prefixes(prefixes).with_request_kv(self.policies().into())
    }

    /// As [`options`](Self::options); where requests may be preempted, with a budget that holds
    /// about a third of all sequences of a run.
    fn narrow_options(&self, prefixes: PrefixCaching) -> EngineOptions {
        let options = self.options(prefixes).with_context(400);
        if self.migrates { options } else { options.with_kv_budget(4 << 20) }
    }

    fn engine(&self, options: &EngineOptions) -> Engine {
        load(family_path(self.family), options)
    }

    fn adapter(&self, engine: &Engine, scale: f32) -> Arc<Adapter> {
        let source = AdapterSource { path: model_data("lora").join(self.lora), scale };
        engine.load_adapter(&[source]).expect("an adapter of the tiny model")
    }

    /// Adapters of requests: one, and the same twice with a gate over both or over one for each
    /// token. More adapters would take the pages that sequences need.
    fn lists(&self, engine: &Engine, scale: f32) -> [Vec<ScaledAdapter>; 3] {
        let adapter = self.adapter(engine, scale);
        let gated = |top_k| {
            let mut list = gated(engine, &[&adapter; 2], top_k, 9);
            list[1].scale = -0.5;
            list
        };
        [vec![Arc::clone(&adapter).into()], gated(None), gated(Some(1))]
    }
}

/// Requests of mixed lengths, samplings, stop sequences, tenants, adapters, KV policies and
/// constraints. Some prompts begin alike.
fn requests(
    mix: &Mix,
    seed: u64,
    tenants: &[Tenant],
    lists: &[Vec<ScaledAdapter>; 3],
) -> Vec<GenerateRequest> {
    let [longest_prefix, longest_rest, longest_output] =
        if mix.migrates { [12, 19, 80] } else { [96, 60, 40] };
    let mut random = Random::new(seed);
    let prefixes: Vec<Vec<u32>> =
        (0..4).map(|_| (0..96).map(|_| random.below(500) as u32).collect()).collect();
    (0..REQUESTS)
        .map(|index| {
            let mut tokens = prefixes[random.below(4)][..random.below(longest_prefix + 1)].to_vec();
            tokens.extend((0..1 + random.below(longest_rest)).map(|_| random.below(500) as u32));
            let sampling = match random.below(3) {
                0 => SamplingParams::greedy(),
                _ => SamplingParams::default().with_seed(Some(index as u64 * 77 + seed)),
            };
            let request = GenerateRequest::new(Prompt::Tokens(tokens))
                .with_max_tokens(1 + random.below(longest_output))
                .with_sampling(sampling)
                .with_ignore_eos(random.below(2) == 0)
                .with_cache_prefix(random.below(4) > 0 && !mix.migrates)
                .with_priority(random.below(3) as i32 - 1)
                .with_pressure(PressurePolicy::EvictPrefixes)
                .with_tenant(tenants[random.below(tenants.len())].clone());
            let request = match random.below(4) {
                0 => request.with_prompt_logprobs(random.below(4)),
                _ => request,
            };
            let request = if random.below(4) == 0 { request.with_stop(["the", "e"]) } else { request };
            let request = match random.below(8) {
                0 => request.with_constraint(Constraint::regex("[a-z]+( [a-z]+)*").expect("a pattern")),
                1 => request.with_constraint(
                    Constraint::choices(["a long text that is forced", "b"]).expect("choices"),
                ),
                _ => request,
            };
            let request = match random.below(6) {
                policy @ 0..2 => request.with_kv(mix.policies()[policy]),
                _ => request,
            };
            match random.below(6) {
                list @ 0..3 => request.with_adapters(lists[list].clone()),
                _ => request,
            }
        })
        .collect()
}

fn tenants(engine: &Engine) -> Vec<Tenant> {
    let tenant = |name| engine.kv_store().pool().tenant(name).expect("a name");
    vec![Tenant::root(), tenant("a"), tenant("b/c")]
}

/// Results of the requests one after another, in an engine without prefixes.
fn alone(mix: &Mix, seed: u64, scale: f32) -> Vec<Completion> {
    let engine = mix.engine(&mix.options(PrefixCaching::Off));
    let requests = requests(mix, seed, &tenants(&engine), &mix.lists(&engine, scale));
    requests.iter().map(|request| engine.generate(request).expect("text")).collect()
}

fn same(found: &Completion, expected: &Completion) -> bool {
    (&found.tokens, &found.text, found.finish_reason, &found.prompt_logprobs)
        == (&expected.tokens, &expected.text, expected.finish_reason, &expected.prompt_logprobs)
}

/// Submits the requests in a random order from four threads at random times, and compares. From one
/// schedule to the next the adapter changes to one of another scale and back.
fn compare(mix: &Mix, seed: u64, schedules: u64, prefixes: &PrefixCaching) {
    let engine = mix.engine(&mix.narrow_options(prefixes.clone()));
    let runs = [1.0, 0.4].map(|scale| {
        let lists = mix.lists(&engine, scale);
        (alone(mix, seed, scale), requests(mix, seed, &tenants(&engine), &lists))
    });
    assert!(!runs[0].0.iter().zip(&runs[1].0).all(|(a, b)| same(a, b)), "the scale of an adapter counts");
    for schedule in 0..schedules {
        let (expected, requests) = &runs[schedule as usize % 2];
        let mut order: Vec<usize> = (0..REQUESTS).collect();
        let mut random = Random::new(seed + schedule);
        (1..REQUESTS).rev().for_each(|last| order.swap(last, random.below(last + 1)));
        std::thread::scope(|scope| {
            for part in order.chunks(REQUESTS / 4) {
                let engine = &engine;
                scope.spawn(move || submit_all(engine, requests, expected, part, seed ^ schedule));
            }
        });
    }
    let statistics = engine.step_statistics();
    assert!(statistics.parts > 2 * statistics.steps, "requests share steps: {statistics:?}");
}

/// Submits `part` of the requests; every eighth one twice, and one of both is cancelled.
fn submit_all(
    engine: &Engine,
    requests: &[GenerateRequest],
    expected: &[Completion],
    part: &[usize],
    seed: u64,
) {
    let mut random = Random::new(seed ^ part[0] as u64);
    let mut running: Vec<(usize, RequestHandle)> = Vec::new();
    for &index in part {
        if random.below(8) == 0 {
            let handle = engine.submit(&requests[index]).expect("a handle");
            std::thread::sleep(Duration::from_micros(random.below(3000) as u64));
            let cancelled = handle.finish().expect("a cancelled request has a result");
            assert!(expected[index].text.starts_with(&cancelled.text), "request {index}");
        }
        running.push((index, engine.submit(&requests[index]).expect("a handle")));
        std::thread::sleep(Duration::from_micros(random.below(2000) as u64));
    }
    for (index, handle) in running {
        let found = handle.wait().unwrap_or_else(|error| panic!("request {index}: {error}"));
        assert!(same(&found, &expected[index]), "request {index}: {found:?} is not {:?}", expected[index]);
    }
}

#[test]
fn requests_give_what_they_give_alone_in_any_schedule() {
    // A full run has 25 schedules of each mix with the prefix cache and 15 without.
    let (sets, schedules) = if is_full_run() { (5, 5) } else { (1, 2) };
    for mix in &MIXES {
        for set in 0..sets {
            compare(mix, set, schedules, &PrefixCaching::Memory);
            if is_full_run() || mix.family == "llama" {
                compare(mix, set + 100, schedules.div_ceil(2), &PrefixCaching::Off);
            }
        }
    }
}

#[test]
fn a_prompt_is_a_prefix_of_others_while_its_request_runs() {
    let engine = load(tiny_path(), &tiny_options().with_prefixes(PrefixCaching::Memory));
    let endless = GenerateRequest::new(Prompt::Tokens((1..100).collect())).with_ignore_eos(true);
    let mut first = engine.submit(&endless).expect("a handle");
    first.next().expect("a piece").expect("no error");
    let second = engine.generate(endless.clone().with_max_tokens(2)).expect("text");
    assert!(first.completion().is_none());
    assert_eq!(second.cached_tokens, 96, "three blocks of 32");
    drop(first);
    // Requests that begin alike and arrive together wait for the first of them.
    let before = engine.step_statistics().prefill_tokens;
    let alike: Vec<RequestHandle> = (0..8u32)
        .map(|last| Prompt::Tokens((200..400).chain([last]).collect()))
        .map(|prompt| engine.submit(greedy(prompt, 3)).expect("a handle"))
        .collect();
    let cached: usize = alike.into_iter().map(|handle| handle.wait().expect("text").cached_tokens).sum();
    assert_eq!(cached, 7 * 192);
    assert_eq!(engine.step_statistics().prefill_tokens - before, 8 * 201 - 7 * 192);
}

#[test]
fn faulty_requests_do_not_harm_others() {
    let engine = load(tiny_path(), &MIXES[0].narrow_options(PrefixCaching::Memory));
    let other = load(tiny_path(), &tiny_options());
    let foreign = other.kv_store().pool().tenant("x").expect("a name");
    let good = greedy(Prompt::Tokens((1..90).collect()), 30).with_ignore_eos(true);
    let expected = engine.generate(&good).expect("text");

    let handle = engine.submit(&good).expect("a handle");
    let late = engine.submit(good.clone().with_deadline(Instant::now())).expect("a handle");
    assert!(matches!(late.wait(), Err(Error::Refused(_))));
    let tenant = engine.submit(good.clone().with_tenant(foreign)).expect("a handle");
    assert!(matches!(tenant.wait(), Err(Error::Cache { .. })));
    let none = (0..engine.config().vocab_size as u32).map(|id| (id, f32::NEG_INFINITY)).collect();
    let blind = good.clone().with_sampling(SamplingParams::greedy().with_logit_bias(none));
    assert!(matches!(engine.submit(blind).expect("a handle").wait(), Err(Error::NoCandidate)));
    let too_long = engine.submit(Prompt::Tokens(vec![1; 401]));
    assert!(matches!(too_long, Err(Error::PromptTooLong { .. })));
    assert_eq!(handle.wait().expect("text").tokens, expected.tokens);
}

#[test]
fn queues_have_limits() {
    let mut scheduling = SchedulerConfig::default();
    (scheduling.max_running, scheduling.max_waiting, scheduling.max_waiting_per_tenant) = (1, 3, 2);
    let engine = load(tiny_path(), &tiny_options().with_scheduling(scheduling));
    let endless = GenerateRequest::new(Prompt::Tokens((1..100).collect())).with_ignore_eos(true);
    let mut first = engine.submit(&endless).expect("a handle");
    first.next().expect("a piece").expect("no error");
    let [root, a, _] = <[Tenant; 3]>::try_from(tenants(&engine)).expect("three tenants");
    let submit =
        |tenant: &Tenant| engine.submit(endless.clone().with_tenant(tenant.clone())).expect("a handle");
    let mut waiting: Vec<RequestHandle> = [&root, &root, &root, &a, &a].map(submit).into();
    let last = [waiting.remove(4), waiting.remove(2)].map(RequestHandle::wait);
    assert!(matches!(last[0], Err(Error::Refused(Refusal::QueueFull { waiting: 3, .. }))), "{last:?}");
    assert!(matches!(last[1], Err(Error::Refused(Refusal::TenantQueueFull { waiting: 2, .. }))), "{last:?}");
    drop(first);
    for mut handle in waiting {
        handle.next().expect("a piece").expect("no error");
    }
}

#[test]
fn a_deadline_ends_a_request_that_runs() {
    // No machine computes this context within the deadline.
    let source = tiny_source(|metadata| _ = metadata.insert("llama.context_length", 1u32 << 17));
    let engine = Engine::load(&source, &tiny_options(), &mut |_| ()).expect("the model loads");
    let endless = GenerateRequest::new(Prompt::Tokens((1..400).collect())).with_ignore_eos(true);
    let request = endless.with_deadline(Instant::now() + Duration::from_millis(30));
    let result = engine.submit(request).expect("a handle").wait();
    assert!(matches!(result, Err(Error::DeadlineExceeded)), "{result:?}");
}

#[test]
fn a_dropped_engine_ends_its_requests() {
    let engine = load(tiny_path(), &tiny_options());
    let endless = GenerateRequest::new(Prompt::Tokens((1..400).collect())).with_ignore_eos(true);
    let handles: Vec<RequestHandle> = (0..5).map(|_| engine.submit(&endless).expect("a handle")).collect();
    drop(engine);
    for handle in handles {
        assert!(matches!(handle.wait(), Err(Error::EngineStopped)));
    }
}

#[test]
fn one_cancel_token_ends_all_requests_that_have_it() {
    let engine = load(tiny_path(), &tiny_options());
    let cancel = CancelToken::new();
    let endless = GenerateRequest::new(Prompt::Tokens((1..100).collect())).with_ignore_eos(true);
    std::thread::scope(|scope| {
        let run = || engine.generate_with(&endless, &cancel, &mut |_| ControlFlow::Continue(()));
        let threads: Vec<_> = (0..3).map(|_| scope.spawn(run)).collect();
        // A break of one does not end the others.
        let first = engine.generate_with(&endless, &cancel, &mut |_| ControlFlow::Break(()));
        assert_eq!(first.expect("text").finish_reason, FinishReason::Cancelled);
        assert!(!cancel.is_cancelled());
        cancel.cancel();
        for thread in threads {
            let completion = thread.join().expect("no panic").expect("text");
            assert!(matches!(completion.finish_reason, FinishReason::Cancelled | FinishReason::Length));
        }
    });
}

#[test]
fn an_arrival_wakes_a_reader_that_polls() {
    let engine = load(tiny_path(), &tiny_options());
    let (send, receive) = std::sync::mpsc::channel();
    let request = greedy(Prompt::Tokens((1..60).collect()), 20).with_ignore_eos(true);
    let mut handle = engine.submit(&request).expect("a handle");
    handle.on_arrival(move || _ = send.send(()));
    let mut text = String::new();
    while !handle.has_ended() {
        receive.recv_timeout(Duration::from_secs(60)).expect("something arrives");
        while let Some(chunk) = handle.try_next() {
            text.push_str(&chunk.expect("no error").text);
        }
    }
    assert_eq!(text, handle.completion().expect("a result").text);
    assert_eq!(text, engine.generate(&request).expect("text").text);
}

/// Requests that end before the second tenant's: nearly all, were the queue in order of arrival.
#[test]
fn a_flood_of_one_tenant_does_not_delay_another() {
    let engine = load(tiny_path(), &tiny_options().with_prefixes(PrefixCaching::Off));
    let [_, large, small] = <[Tenant; 3]>::try_from(tenants(&engine)).expect("three tenants");
    let request = |tenant: &Tenant| {
        greedy(Prompt::Tokens((1..60).collect()), 30).with_ignore_eos(true).with_tenant(tenant.clone())
    };
    let flood: Vec<RequestHandle> =
        (0..400).map(|_| engine.submit(request(&large)).expect("a handle")).collect();
    for _ in 0..3 {
        engine.generate(request(&small)).expect("text");
    }
    let statistics = engine.step_statistics();
    assert!(statistics.waiting > 100, "the flood still waits: {statistics:?}");
    drop(flood);
}

#[test]
fn readers_that_never_read_hold_nobody_back() {
    let engine = load(tiny_path(), &tiny_options());
    let request = greedy(Prompt::Tokens((1..60).collect()), 40).with_ignore_eos(true);
    let unread: Vec<RequestHandle> = (0..16).map(|_| engine.submit(&request).expect("a handle")).collect();
    let read = engine.generate(&request).expect("text");
    // Their texts wait for them.
    for handle in unread {
        assert!(same(&handle.wait().expect("text"), &read));
    }
}
