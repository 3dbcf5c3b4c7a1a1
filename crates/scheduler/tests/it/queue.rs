//! Limits of the queue, order in it, deadlines, cancellation.

use ruvllm_scheduler::{Config, Refusal, Request, RequestId, Scheduler, TenantId, Work};

use crate::{admit_all, config, ms, of_tenant, request};

const PLENTY: usize = 1 << 20;

#[test]
fn full_queue_refuses_and_counts() {
    let mut scheduler = Scheduler::new(config(|config| {
        config.max_waiting = 3;
        config.max_waiting_per_tenant = 2;
    }));
    for id in 0..2 {
        scheduler.submit(ms(0), request(id, 10, 10)).unwrap();
    }
    let refusal = scheduler.submit(ms(0), request(2, 10, 10)).unwrap_err();
    assert_eq!(refusal, Refusal::TenantQueueFull { waiting: 2, retry_after: None });
    scheduler.submit(ms(0), of_tenant(1, request(3, 10, 10))).unwrap();
    let refusal = scheduler.submit(ms(0), of_tenant(2, request(4, 10, 10))).unwrap_err();
    assert_eq!(refusal, Refusal::QueueFull { waiting: 3, retry_after: None });
    let statistics = scheduler.statistics();
    assert_eq!((statistics.refused_queue_full, statistics.refused_tenant_queue_full), (1, 1));
    assert_eq!(statistics.submitted, 3);
}

#[test]
fn malformed_requests_are_refused() {
    let mut scheduler = Scheduler::new(Config::default());
    scheduler.submit(ms(0), request(1, 10, 10)).unwrap();
    let in_use = Refusal::NumberInUse { id: RequestId(1) };
    assert_eq!(scheduler.submit(ms(0), request(1, 5, 5)), Err(in_use));
    assert_eq!(scheduler.submit(ms(0), request(2, 0, 5)), Err(Refusal::EmptyPrompt));
    let late = Request { deadline: Some(ms(30)), ..request(3, 5, 5) };
    assert_eq!(scheduler.submit(ms(50), late), Err(Refusal::Late { late: ms(20) }));
    let statistics = scheduler.statistics();
    assert_eq!((statistics.refused_malformed, statistics.refused_late), (2, 1));
    // The number is free again once its request has finished.
    assert!(scheduler.finished(RequestId(1)));
    assert!(!scheduler.finished(RequestId(1)));
    scheduler.submit(ms(60), request(1, 5, 5)).unwrap();
}

#[test]
fn largest_sizes_do_not_overflow() {
    let mut scheduler = Scheduler::new(Config::default());
    for id in 0..3 {
        scheduler.submit(ms(0), request(id, usize::MAX, usize::MAX)).unwrap();
    }
    assert_eq!(admit_all(&mut scheduler, ms(0), usize::MAX), [0, 1, 2]);
    let step = crate::compute(&mut scheduler);
    assert!(step.iter().map(|work| work.tokens).sum::<usize>() <= Config::default().step_tokens);
    scheduler.advanced(RequestId(0), usize::MAX, usize::MAX);
    crate::compute(&mut scheduler);
    for id in 0..3 {
        assert!(scheduler.finished(RequestId(id)));
    }
    assert!(scheduler.is_idle());
}

#[test]
fn priority_goes_first_until_age_outweighs_it() {
    let mut scheduler = Scheduler::new(Config::default()); // a level per 2 s
    let with = |id, priority| Request { priority, ..request(id, 10, 10) };
    scheduler.submit(ms(0), with(0, 0)).unwrap();
    scheduler.submit(ms(1_000), with(1, 1)).unwrap();
    scheduler.submit(ms(1_500), with(2, 2)).unwrap();
    scheduler.submit(ms(3_000), with(3, 1)).unwrap();
    scheduler.submit(ms(3_000), with(4, 0)).unwrap();
    assert_eq!(admit_all(&mut scheduler, ms(3_000), PLENTY), [2, 1, 0, 3, 4]);
}

/// Requests of the highest priority keep the machine busy. One of the lowest starts when it has
/// waited for the levels between them.
#[test]
fn lowest_priority_does_not_starve() {
    let mut scheduler = Scheduler::new(config(|config| config.max_running = 1));
    let with = |id, priority| Request { priority, ..request(id, 10, 10) };
    scheduler.submit(ms(0), with(0, -8)).unwrap();
    let mut started = None;
    for id in 1..2000 {
        let now = ms(id * 100);
        scheduler.submit(now, with(id, 8)).unwrap();
        let running = scheduler.admit(now, PLENTY).unwrap();
        if running == RequestId(0) {
            started = Some(now);
            break;
        }
        scheduler.advanced(running, 10, 1);
        scheduler.finished(running);
    }
    let waited = started.expect("it starts");
    assert!(waited >= ms(32_000) && waited <= ms(32_200), "16 levels of 2 s, not {waited:?}");
}

#[test]
fn extreme_priorities_count_as_the_largest() {
    let mut scheduler = Scheduler::new(Config::default()); // levels -8 to 8
    let with = |id, priority| Request { priority, ..request(id, 10, 10) };
    scheduler.submit(ms(0), with(0, i32::MIN)).unwrap();
    scheduler.submit(ms(31_999), with(1, i32::MAX)).unwrap();
    scheduler.submit(ms(32_001), with(2, i32::MAX)).unwrap();
    assert_eq!(admit_all(&mut scheduler, ms(40_000), PLENTY), [1, 0, 2]);
}

#[test]
fn deadlines_remove_waiting_and_running_requests() {
    let mut scheduler = Scheduler::new(Config::default());
    for (id, deadline) in [(0, 100), (1, 300), (2, 200)] {
        let request = Request { deadline: Some(ms(deadline)), ..request(id, 10, 10) };
        scheduler.submit(ms(0), request).unwrap();
    }
    assert_eq!(scheduler.admit(ms(0), PLENTY), Some(RequestId(0)));
    assert_eq!(scheduler.expire(ms(99)), None);
    assert_eq!(scheduler.expire(ms(250)), Some(RequestId(0)));
    assert_eq!(scheduler.expire(ms(250)), Some(RequestId(2)));
    assert_eq!(scheduler.expire(ms(250)), None);
    assert_eq!((scheduler.waiting(), scheduler.running()), (1, 0));
    assert_eq!(scheduler.statistics().expired, 2);
    assert_eq!(admit_all(&mut scheduler, ms(250), PLENTY), [1]);
}

/// A request per 100 ms is served; the k-th that is refused is told to return when k places are
/// free.
#[test]
fn retry_after_is_close_to_the_truth() {
    let mut scheduler = Scheduler::new(config(|config| {
        config.max_running = 1;
        config.max_waiting = 10;
    }));
    let (mut now, mut next) = (ms(0), 0);
    let mut told = Vec::new(); // time of a refusal, and of the place that it was promised
    let mut starts = Vec::new();
    for round in 0..60 {
        while scheduler.submit(now, request(next, 80, 20)).is_ok() {
            next += 1;
        }
        if round == 30 {
            starts.clear();
            for id in [9_000, 9_001, 9_002] {
                let refusal = scheduler.submit(now, request(id, 80, 20)).unwrap_err();
                told.push(now + refusal.retry_after().unwrap());
            }
        }
        let id = scheduler.admit(now, PLENTY).unwrap();
        starts.push(now);
        for (tokens, samples) in [(80, true), (20, true)] {
            let step = [Work { id, tokens, samples }];
            scheduler.advanced(id, tokens, if tokens == 80 { 20 } else { 0 });
            scheduler.observe(&step, ms(tokens as u64));
            now += ms(tokens as u64);
        }
        scheduler.finished(id);
    }
    // The submission that ended the loop of round 30 was refused first.
    for (k, promised) in told.into_iter().enumerate() {
        let wait = promised.saturating_sub(starts[0]).as_secs_f64();
        let truth = 0.1 * (k + 2) as f64;
        assert!((wait / truth - 1.0).abs() < 0.1, "refusal {k}: {wait} s instead of {truth} s");
    }
}

#[test]
fn cancelled_requests_leave_no_trace() {
    let mut scheduler = Scheduler::new(Config::default());
    for id in 0..50 {
        let request = of_tenant(id as u32 % 3, request(id, 100, 50));
        scheduler.submit(ms(id), Request { prefix: Some(id % 4), ..request }).unwrap();
    }
    let running = admit_all(&mut scheduler, ms(50), 700);
    assert!(!running.is_empty() && running.len() < 10, "{running:?}");
    for id in (0..50).rev() {
        assert!(scheduler.finished(RequestId(id)));
    }
    assert!(scheduler.is_idle());
    assert_eq!(scheduler.admit(ms(60), PLENTY), None);
    scheduler.submit(ms(60), of_tenant(7, request(99, 1, 1))).unwrap();
    scheduler.set_weight(TenantId(7), f64::NAN);
    assert_eq!(admit_all(&mut scheduler, ms(60), 32), [99]);
}
