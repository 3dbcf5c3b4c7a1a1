//! Time that the scheduler takes per step, with 64 running requests.
//!
//! `cargo run --release -p ruvllm-scheduler --example overhead`

use std::time::{Duration, Instant};

use ruvllm_scheduler::{Config, Request, RequestId, Scheduler, TenantId};

const STEPS: u32 = 20_000;

fn request(id: u64, tenants: u64, prompt_tokens: usize) -> Request {
    Request {
        id: RequestId(id),
        tenant: TenantId((id % tenants) as u32),
        priority: (id % 3) as i32,
        deadline: Some(Duration::from_secs(1_000_000 + id)),
        prompt_tokens,
        max_new_tokens: 1 << 20,
        prefix: Some(id % 1000),
    }
}

/// Prints median and 99th percentile of the time of a step's calls.
fn measure(waiting: u64, tenants: u64, prefills: usize) {
    let mut config = Config::default();
    config.max_waiting = usize::MAX;
    config.max_waiting_per_tenant = usize::MAX;
    let mut scheduler = Scheduler::new(config);
    let now = Duration::ZERO;
    let began = Instant::now();
    for id in 0..waiting + 64 {
        let prompt = if (id as usize) < prefills { 1 << 29 } else { 1 };
        scheduler.submit(now, request(id, tenants, prompt)).expect("a place");
    }
    let submit = began.elapsed() / (waiting + 64) as u32;
    while scheduler.admit(now, usize::MAX).is_some() {}
    let mut step = Vec::new();
    let mut times = Vec::new();
    for i in 0..STEPS + 1000 {
        let now = Duration::from_millis(u64::from(i));
        let began = Instant::now();
        while scheduler.expire(now).is_some() {}
        while scheduler.admit(now, 1000).is_some() {}
        scheduler.plan(now, &mut step);
        scheduler.observe(&step, Duration::from_millis(20));
        for work in &step {
            scheduler.advanced(work.id, work.tokens, usize::from(work.samples));
        }
        if i >= 1000 {
            times.push(began.elapsed());
        }
    }
    times.sort_unstable();
    let began = Instant::now();
    for id in 0..waiting + 64 {
        scheduler.finished(RequestId(id));
    }
    let finished = began.elapsed() / (waiting + 64) as u32;
    println!(
        "| {waiting} | {tenants} | {prefills} | {:.1} | {:.1} | {:.2} | {:.2} |",
        times[times.len() / 2].as_secs_f64() * 1e6,
        times[times.len() * 99 / 100].as_secs_f64() * 1e6,
        submit.as_secs_f64() * 1e6,
        finished.as_secs_f64() * 1e6,
    );
}

fn main() {
    println!("| waiting | tenants | in prefill | step p50, us | p99 | submit, us | finished, us |");
    println!("|---:|---:|---:|---:|---:|---:|---:|");
    for (waiting, tenants) in [(0, 1), (0, 8), (1_000, 8), (100_000, 8), (100_000, 10_000)] {
        for prefills in [0, 8] {
            measure(waiting, tenants, prefills);
        }
    }
}
