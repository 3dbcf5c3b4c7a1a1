//! Content of a step.

use std::time::Duration;

use ruvllm_scheduler::{Config, Request, RequestId, Scheduler, Work};

use crate::{admit_all, compute, config, ms, plan, request};

const PLENTY: usize = 1 << 20;

fn work(id: u64, tokens: usize, samples: bool) -> Work {
    Work { id: RequestId(id), tokens, samples }
}

fn started(config: Config, requests: impl IntoIterator<Item = Request>) -> Scheduler {
    let mut scheduler = Scheduler::new(config);
    for request in requests {
        scheduler.submit(ms(0), request).unwrap();
    }
    admit_all(&mut scheduler, ms(0), PLENTY);
    scheduler
}

#[test]
fn decodes_go_first_and_prefill_fills_the_budget() {
    let sizes = [(0, 1), (1, 300), (2, 1), (3, 400)];
    let requests = sizes.map(|(id, tokens)| request(id, tokens, 10));
    let mut scheduler = started(Config::default(), requests);
    let expected = [work(0, 1, true), work(2, 1, true), work(1, 300, true), work(3, 210, false)];
    assert_eq!(plan(&mut scheduler), expected);
    assert_eq!(plan(&mut scheduler), expected, "planning changes nothing");
    assert_eq!(compute(&mut scheduler), expected);
    let expected = [work(0, 1, true), work(1, 1, true), work(2, 1, true), work(3, 190, true)];
    assert_eq!(compute(&mut scheduler), expected);
}

#[test]
fn last_token_of_a_cached_prompt_is_computed() {
    let mut scheduler = Scheduler::new(Config::default());
    scheduler.submit(ms(0), request(0, 100, 1)).unwrap();
    let id = scheduler.admit(ms(0), PLENTY).unwrap();
    scheduler.started(id, 100);
    assert_eq!(plan(&mut scheduler), [work(0, 1, true)]);
}

#[test]
fn known_tokens_after_the_prompt_are_computed_in_one_step() {
    let mut scheduler = started(Config::default(), [request(0, 5, 100), request(1, 700, 1)]);
    compute(&mut scheduler);
    scheduler.advanced(RequestId(0), 1, 8); // a grammar forces 7 more
    assert_eq!(plan(&mut scheduler)[0], work(0, 8, true));
}

/// A machine with 5 ms per step, 0.2 ms per prefill token and 0.5 ms per decode.
fn duration(step: &[Work]) -> Duration {
    let decodes = step.iter().filter(|work| work.tokens == 1).count();
    let tokens: usize = step.iter().map(|work| work.tokens).sum();
    Duration::from_secs_f64((5.0 + 0.2 * (tokens - decodes) as f64 + 0.5 * decodes as f64) / 1e3)
}

#[test]
fn prefill_beside_decodes_keeps_the_latency_target() {
    let settings = config(|config| config.token_latency = ms(40));
    let mut scheduler = started(settings, (0..8).map(|id| request(id, 16, 100_000)));
    let (mut id, mut late, mut prefilled) = (100, 0, 0);
    for i in 0..400 {
        if scheduler.running() < 9 {
            scheduler.submit(ms(0), request(id, 3000, 1)).unwrap();
            scheduler.admit(ms(0), PLENTY).unwrap();
            id += 1;
        }
        let step = compute(&mut scheduler);
        scheduler.observe(&step, duration(&step));
        if i >= 50 {
            late += usize::from(duration(&step) > ms(40));
            prefilled += step.iter().filter(|work| work.tokens > 1).map(|work| work.tokens).sum::<usize>();
        }
        if let Some(done) = step.iter().find(|work| work.id.0 >= 100 && work.samples) {
            scheduler.finished(done.id);
        }
    }
    assert_eq!(late, 0);
    // The target permits (40 - 5 - 4) / 0.2 = 155 tokens; a margin for the spread is kept.
    assert!((120 * 350..=155 * 350).contains(&prefilled), "{} per step", prefilled / 350);
    let expected = scheduler.expected_step(100, 8).unwrap().as_secs_f64();
    assert!((expected / 0.029 - 1.0).abs() < 0.05, "{expected}");
}

#[test]
fn prefill_goes_on_where_the_target_leaves_no_room() {
    let settings = config(|config| config.token_latency = ms(1));
    let mut scheduler = started(settings, [request(0, 1, 10_000), request(1, 100_000, 1)]);
    for _ in 0..20 {
        let step = compute(&mut scheduler);
        scheduler.observe(&step, duration(&step));
    }
    assert_eq!(plan(&mut scheduler), [work(0, 1, true), work(1, 32, false)]);
}

#[test]
fn steps_without_decodes_use_the_whole_budget() {
    let settings = config(|config| config.token_latency = ms(1));
    let mut scheduler = started(settings, [request(1, 100_000, 1)]);
    for _ in 0..20 {
        let step = compute(&mut scheduler);
        assert_eq!(step, [work(1, 512, false)]);
        scheduler.observe(&step, duration(&step));
    }
}

#[test]
fn decodes_take_turns_where_the_budget_is_short() {
    let settings = config(|config| config.step_tokens = 4);
    let mut scheduler = started(settings, (0..10).map(|id| request(id, 1, 100)));
    let mut counts = [0; 10];
    for _ in 0..25 {
        let step = compute(&mut scheduler);
        assert_eq!(step.len(), 4);
        step.iter().for_each(|work| counts[work.id.0 as usize] += 1);
    }
    assert_eq!(counts, [10; 10]);
}

#[test]
fn limits_change_from_the_next_step_on() {
    let mut scheduler = Scheduler::new(config(|config| {
        (config.max_running, config.step_tokens, config.headroom) = (6, 64, 0.0);
    }));
    for id in 0..10 {
        scheduler.submit(Duration::ZERO, request(id, 20, 50)).expect("a place in the queue");
    }
    assert_eq!(admit_all(&mut scheduler, Duration::ZERO, usize::MAX).len(), 6);
    let tokens = |step: &[Work]| step.iter().map(|work| work.tokens).sum::<usize>();
    assert_eq!(tokens(&compute(&mut scheduler)), 64);
    // Running requests go on, in smaller steps; no other starts.
    scheduler.set_limits(2, 8);
    assert!(admit_all(&mut scheduler, Duration::ZERO, usize::MAX).is_empty());
    assert_eq!((scheduler.running(), tokens(&compute(&mut scheduler))), (6, 8));
    scheduler.set_limits(8, 0);
    assert_eq!(admit_all(&mut scheduler, Duration::ZERO, usize::MAX).len(), 2);
    assert_eq!(tokens(&compute(&mut scheduler)), 1);
}
