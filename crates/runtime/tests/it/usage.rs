//! Sizes, counters and recent steps of an engine, and the end of its intake.

use std::time::{Duration, Instant};

use ruvllm::{
    AdapterSource, Constraint, Error, FinishReason, GenerateRequest, KvPolicy, PrefixCaching, Prompt,
    RequestHandle, SchedulerConfig,
};
use ruvllm_testkit::model_data;

use crate::common::{complete, family_path, greedy, load, tiny_options, tiny_path};

fn prompt(len: u32) -> Prompt {
    Prompt::Tokens((0..len).map(|i| 3 + i * 7 % 400).collect())
}

fn endless(len: u32) -> GenerateRequest {
    GenerateRequest::new(prompt(len)).with_ignore_eos(true)
}

/// Waits for a state that another thread brings about.
fn wait_for(what: &str, mut is_reached: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_reached() {
        assert!(start.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::yield_now();
    }
}

#[test]
fn keys_and_values_are_counted_by_tier_over_all_policies() {
    let policy = |text: &str| text.parse::<KvPolicy>().expect("a policy");
    let options = tiny_options()
        .with_kv(policy("tiered:hot=32,sink=0,warm=q8,cold=off"))
        .with_request_kv(vec![policy("f16")])
        .with_prefixes(PrefixCaching::Memory);
    let engine = load(family_path("qwen3"), &options);
    let empty = engine.kv_usage();
    assert_eq!((empty.hot.blocks, empty.warm.blocks, empty.cold.blocks), (0, 0, 0));
    assert_eq!(empty.pool.capacity_pages, empty.pool.used_pages + empty.pool.free_pages);

    complete(&engine, &greedy(prompt(200), 40).with_ignore_eos(true));
    let tiers: Vec<_> = engine.kv_store().tiers().collect();
    let usage = engine.kv_usage();
    assert!(usage.hot.blocks > 0 && usage.warm.blocks > 0 && usage.pool.used_pages > 0, "{usage:?}");
    assert_eq!((usage.hot.blocks, usage.warm.blocks), (tiers[0].blocks, tiers[1].blocks));
    assert_eq!((usage.hot.bytes, usage.warm.bytes), (tiers[0].bytes, tiers[1].bytes));
    assert_eq!((usage.cold.blocks, usage.cold.bytes), (0, 0));

    complete(&engine, &greedy(prompt(100), 4).with_kv(policy("f16")));
    let both = engine.kv_usage();
    assert!(both.hot.blocks > usage.hot.blocks && both.hot.bytes > usage.hot.bytes, "{both:?}");
    assert_eq!(both.warm, usage.warm);
}

#[test]
fn every_step_is_recorded_once() {
    let engine = load(tiny_path(), &tiny_options().with_prefixes(PrefixCaching::Off).with_prefill_chunk(32));
    assert!(engine.steps_since(0).is_empty());
    let handles: Vec<RequestHandle> =
        (0..4).map(|i| engine.submit(greedy(prompt(50 + i), 20)).expect("a handle")).collect();
    handles.into_iter().for_each(|handle| _ = handle.wait().expect("text"));
    // The last result comes before the end of its step.
    wait_for("the record of the last step", || {
        engine.steps_since(0).len() as u64 == engine.step_statistics().steps
    });
    let (steps, statistics) = (engine.steps_since(0), engine.step_statistics());
    assert!((0..).zip(&steps).all(|(number, step)| step.number == number));
    let sum = |of: fn(&ruvllm::StepRecord) -> usize| steps.iter().map(of).sum::<usize>() as u64;
    assert_eq!(sum(|step| step.sequences), statistics.parts);
    assert_eq!(sum(|step| step.prefill_tokens), statistics.prefill_tokens);
    assert_eq!(sum(|step| step.decode_tokens), statistics.decode_tokens);
    assert!(engine.steps_since(statistics.steps).is_empty());
    assert_eq!(engine.steps_since(3)[..], steps[3..]);
}

#[cfg(feature = "structured-output")]
#[test]
fn masks_are_counted_with_a_constraint_only() {
    let engine = load(tiny_path(), &tiny_options());
    complete(&engine, &greedy(prompt(20), 8));
    let none = engine.step_statistics();
    assert_eq!((none.masks, none.mask_time), (0, Duration::ZERO));
    let constraint = Constraint::regex("[a-z ]+").expect("a pattern");
    let request =
        greedy(prompt(20), 8).with_constraint(constraint).with_speculation(ruvllm::Speculation::Off);
    let completion = complete(&engine, &request);
    wait_for("the count of the last mask", || {
        engine.step_statistics().masks >= completion.tokens.len() as u64
    });
}

#[test]
fn queue_time_is_that_of_requests_that_started() {
    let engine = load(tiny_path(), &tiny_options());
    let timings = complete(&engine, &greedy(prompt(20), 3).with_ignore_eos(true)).timings;
    let (queue, first) = (timings.queue_ms.expect("it started"), timings.ttft_ms.expect("a token"));
    assert!((0.0..=first).contains(&queue), "{timings:?}");
    assert_eq!(complete(&engine, &greedy(prompt(20), 0)).timings.queue_ms, None);
}

#[test]
fn the_prefix_tree_is_shown_without_its_tokens() {
    let engine = load(tiny_path(), &tiny_options().with_prefixes(PrefixCaching::Memory));
    assert!(engine.prefix_nodes(10).is_empty());
    complete(&engine, &greedy(prompt(128), 1));
    let nodes = engine.prefix_nodes(10);
    assert_eq!(nodes.len(), 1, "{nodes:?}");
    assert_eq!((nodes[0].parent, nodes[0].start, nodes[0].children), (None, 0, 0));
    assert_eq!((nodes[0].tokens, nodes[0].blocks), (128, 4));
    let mut running = engine.submit(endless(128)).expect("a handle");
    running.next().expect("a piece").expect("no error");
    assert!(engine.prefix_nodes(10).iter().any(|node| node.references > 0));
    assert!(engine.prefix_nodes(0).is_empty());
    drop(running);
    let without = load(tiny_path(), &tiny_options().with_prefixes(PrefixCaching::Off));
    assert!(without.prefix_nodes(10).is_empty());
}

#[test]
fn an_engine_that_shuts_down_ends_what_it_has_taken() {
    let mut scheduling = SchedulerConfig::default();
    scheduling.max_running = 2;
    let engine = load(tiny_path(), &tiny_options().with_scheduling(scheduling));
    let request = greedy(prompt(60), 30).with_ignore_eos(true);
    let expected = complete(&engine, &request);
    wait_for("the end of the first request", || engine.open_requests() == 0);
    let handles: Vec<RequestHandle> = (0..6).map(|_| engine.submit(&request).expect("a handle")).collect();
    assert!(!engine.is_shutting_down());
    engine.begin_shutdown();
    engine.begin_shutdown();
    assert!(engine.is_shutting_down());
    let refused = engine.submit_many(request.clone().with_id("late"), 3).expect_err("it is refused");
    assert!(matches!(refused.cause(), Error::ShuttingDown), "{refused:?}");
    for handle in handles {
        let found = handle.wait().expect("text");
        assert_eq!((found.tokens, found.finish_reason), (expected.tokens.clone(), FinishReason::Length));
    }
    wait_for("the end of all requests", || engine.open_requests() == 0);
    assert!(matches!(engine.generate(&request), Err(Error::ShuttingDown)));
    assert_eq!(engine.open_requests(), 0, "refused requests do not count");
}

#[test]
fn every_end_of_a_request_is_counted() {
    let engine = load(tiny_path(), &tiny_options());
    let refused = engine.submit(greedy(prompt(5), 1).with_stop([""]));
    assert!(refused.is_err());
    let dropped = engine.submit(endless(40)).expect("a handle");
    assert_eq!(engine.open_requests(), 1);
    drop(dropped);
    let late = engine.submit(endless(40).with_deadline(Instant::now())).expect("a handle");
    assert!(late.wait().is_err());
    complete(&engine, &greedy(prompt(9), 0));
    engine.submit_many(endless(40), 3).expect("handles").clear();
    wait_for("the end of all requests", || engine.open_requests() == 0);
}

#[test]
fn dropping_an_engine_does_not_wait_for_its_requests() {
    let mut scheduling = SchedulerConfig::default();
    scheduling.max_running = 2;
    let mut engine = load(tiny_path(), &tiny_options().with_scheduling(scheduling));
    let lora = AdapterSource { path: model_data("lora").join("r4_all"), scale: 1.0 };
    let adapter = engine.load_adapter(&[lora]).expect("an adapter");
    engine.set_adapters(&[adapter.into()]).expect("a scale");
    let mut handles = engine.submit_many(endless(300).with_prompt_logprobs(5), 4).expect("handles");
    handles.extend((0..6).map(|_| engine.submit(endless(100)).expect("a handle")));
    engine.begin_shutdown();
    drop(engine);
    for handle in handles {
        assert!(matches!(handle.wait(), Err(Error::EngineStopped)));
    }
}
