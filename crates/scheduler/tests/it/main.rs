//! The scheduler through its interface.

mod admission;
mod preemption;
mod prefixes;
mod properties;
mod queue;
mod shares;
mod steps;

use std::time::Duration;

use ruvllm_scheduler::{Config, Request, RequestId, Scheduler, TenantId, Work};

/// Request of tenant 0 and priority 0.
fn request(id: u64, prompt_tokens: usize, max_new_tokens: usize) -> Request {
    Request {
        id: RequestId(id),
        tenant: TenantId(0),
        priority: 0,
        deadline: None,
        prompt_tokens,
        max_new_tokens,
        prefix: None,
    }
}

fn of_tenant(tenant: u32, request: Request) -> Request {
    Request { tenant: TenantId(tenant), ..request }
}

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

fn config(change: impl FnOnce(&mut Config)) -> Config {
    let mut config = Config::default();
    change(&mut config);
    config
}

/// Starts all that fit; their numbers in order.
fn admit_all(scheduler: &mut Scheduler, now: Duration, free: usize) -> Vec<u64> {
    std::iter::from_fn(|| scheduler.admit(now, free)).map(|id| id.0).collect()
}

fn plan(scheduler: &mut Scheduler) -> Vec<Work> {
    let mut step = Vec::new();
    scheduler.plan(Duration::ZERO, &mut step);
    step
}

/// Computes the next step; requests that are sampled get one token.
fn compute(scheduler: &mut Scheduler) -> Vec<Work> {
    let step = plan(scheduler);
    for work in &step {
        scheduler.advanced(work.id, work.tokens, usize::from(work.samples));
    }
    step
}
