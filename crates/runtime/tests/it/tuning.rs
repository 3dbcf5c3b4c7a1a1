//! Settings of the step loop that follow the load (ADR-0087): the output stays, decisions are
//! bounded, counted and given out with their reasons.

use ruvllm::crates::sona::tuning::{Change, Outcome, StepSettings};
use ruvllm::{
    Completion, Engine, EngineOptions, GenerateRequest, Prompt, SamplingParams, SchedulerConfig, Speculation,
    TuningOptions,
};
use ruvllm_testkit::Random;

use crate::common::{load, tiny_options, tiny_path};

fn options(batch: usize) -> EngineOptions {
    let mut scheduling = SchedulerConfig::default();
    scheduling.max_running = batch;
    tiny_options().with_scheduling(scheduling).with_prefill_chunk(128)
}

/// Tuning with the shortest windows.
fn tuning() -> TuningOptions {
    TuningOptions::default().with_min_batch(2).with_min_prefill_chunk(16).with_window(8).with_drafts(true)
}

fn request(index: u64, prompt_tokens: usize) -> GenerateRequest {
    let mut random = Random::new(index);
    let tokens = (0..prompt_tokens).map(|_| random.below(500) as u32).collect();
    GenerateRequest::new(Prompt::Tokens(tokens))
        .with_max_tokens(12)
        .with_ignore_eos(true)
        .with_sampling(SamplingParams::default().with_seed(Some(index)))
}

/// One user, then a crowd: the load shifts between the two.
fn run(engine: &Engine) -> Vec<Completion> {
    let alone = (0..8).map(|index| engine.generate(request(index, 8)).expect("text"));
    let mut completions: Vec<_> = alone.collect();
    let crowd = (8..56).map(|index| engine.submit(request(index, 40 + index as usize)).expect("a place"));
    let crowd: Vec<_> = crowd.collect();
    completions.extend(crowd.into_iter().map(|handle| handle.wait().expect("text")));
    completions
}

fn output(completions: &[Completion]) -> Vec<(&[u32], &str)> {
    completions.iter().map(|completion| (&completion.tokens[..], &*completion.text)).collect()
}

fn assert_within(settings: StepSettings, what: &dyn std::fmt::Debug) {
    let StepSettings { hot_tokens, warm_tokens, max_batch, prefill_chunk, draft_tokens } = settings;
    assert_eq!((hot_tokens, warm_tokens), (0, 0), "tiers stay: {what:?}");
    assert!((2..=16).contains(&max_batch), "{what:?}");
    assert!((16..=128).contains(&prefill_chunk), "{what:?}");
    assert!(draft_tokens <= 8, "{what:?}");
}

#[test]
fn settings_follow_the_load_and_the_output_stays() {
    let fixed = load(tiny_path(), &options(16));
    let expected = run(&fixed);
    let tuned = load(tiny_path(), &options(16).with_tuning(tuning()));
    let found = run(&tuned);
    assert_eq!(output(&found), output(&expected));

    let status = tuned.tuning_status().expect("a tuner");
    let changes = tuned.take_tuning_changes();
    // Windows of eight steps, most of them with prompts: one change at least was tried, and the
    // crowd is a shift.
    assert!(status.tried + status.applied > 0, "{status:?}");
    assert!(status.shifts > 0, "{status:?}");
    assert!(status.steps <= tuned.step_statistics().steps, "{status:?}");
    let count =
        |wanted: fn(&Outcome) -> bool| changes.iter().filter(|change| wanted(&change.outcome)).count() as u64;
    assert_eq!(status.dropped, 0);
    assert_eq!(status.tried, count(|outcome| matches!(outcome, Outcome::Tried)));
    assert_eq!(status.applied, count(|outcome| matches!(outcome, Outcome::Applied)));
    assert_eq!(status.kept, count(|outcome| matches!(outcome, Outcome::Kept { .. })));
    assert_eq!(status.rolled_back, count(|outcome| matches!(outcome, Outcome::RolledBack { .. })));
    assert_eq!(status.shifts, count(|outcome| matches!(outcome, Outcome::Noted)));
    assert_within(status.settings, &status);
    for change in &changes {
        assert_within(change.settings, change);
        assert!(change.to_string().contains(": "), "a change says its reason: {change}");
    }
    assert!(changes.windows(2).all(|pair| pair[0].step <= pair[1].step), "{changes:?}");
    assert!(tuned.take_tuning_changes().is_empty(), "changes are taken once");
}

#[test]
fn without_tuning_there_are_no_decisions() {
    let engine = load(tiny_path(), &options(16));
    run(&engine);
    assert_eq!(engine.tuning_status(), None);
    assert_eq!(engine.take_tuning_changes(), Vec::<Change>::new());
    let most = engine.steps_since(0).iter().map(|step| step.sequences).max();
    assert_eq!(most, Some(16), "the batch stays that of the options");
}

#[test]
fn a_short_cache_makes_the_batch_smaller() {
    // 16 sequences of up to 250 tokens, where there is room for half of them.
    let options = options(16).with_context(400).with_kv_budget(1 << 20);
    let requests = || (0..32).map(|index| request(index, 100).with_max_tokens(150));
    let text = |engine: &Engine| -> Vec<Completion> {
        let handles: Vec<_> = requests().map(|request| engine.submit(request).expect("a place")).collect();
        handles.into_iter().map(|handle| handle.wait().expect("text")).collect()
    };
    let expected = text(&load(tiny_path(), &options));
    let tuned = load(tiny_path(), &options.with_tuning(tuning()));
    assert_eq!(output(&text(&tuned)), output(&expected));
    let changes = tuned.take_tuning_changes();
    let is_pressure = |change: &&Change| change.to_string().contains("KV pressure");
    assert!(changes.iter().any(|change| is_pressure(&change)), "{changes:?}");
    changes.iter().for_each(|change| assert_within(change.settings, change));
}

#[test]
fn fixed_drafts_are_not_limited() {
    let options = options(4).with_speculation(Speculation::Fixed(3));
    let drafted = |options: &EngineOptions| {
        let engine = load(tiny_path(), options);
        for start in 0..4 {
            // Greedy texts of the tiny model repeat themselves, so that look-up finds drafts.
            let prompt = Prompt::Tokens([7, 8, 9, 10].map(|token| token + start).repeat(8));
            let request = GenerateRequest::new(prompt).with_max_tokens(96).with_ignore_eos(true);
            engine.generate(request.with_sampling(SamplingParams::greedy())).expect("text");
        }
        engine.step_statistics().drafted_tokens
    };
    let without = drafted(&options);
    assert!(without > 0, "there are drafts");
    assert_eq!(drafted(&options.with_tuning(tuning())), without);
}
