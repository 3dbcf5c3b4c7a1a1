//! A warm step allocates nothing.
//!
//! Alone in its binary, because it counts the allocations of the whole process.

use std::time::Duration;

use ruvllm_scheduler::{Config, Request, RequestId, Scheduler, TenantId};
use ruvllm_testkit::allocator::{Counting, calls, count_calls};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn warm_steps_do_not_allocate() {
    let mut scheduler = Scheduler::new(Config::default());
    for id in 0..164 {
        let request = Request {
            id: RequestId(id),
            tenant: TenantId(id as u32 % 5),
            priority: 0,
            deadline: None,
            prompt_tokens: if id < 40 { 20 } else { 1_000_000 },
            max_new_tokens: 1000,
            prefix: None,
        };
        scheduler.submit(Duration::ZERO, request).expect("a place");
    }
    while scheduler.admit(Duration::ZERO, 1 << 30).is_some() {}
    assert!(scheduler.running() >= 56 && scheduler.waiting() >= 100);
    let mut step = Vec::new();
    let mut run = |steps: usize| {
        for _ in 0..steps {
            scheduler.plan(Duration::ZERO, &mut step);
            assert!(step.len() >= 5);
            scheduler.observe(&step, Duration::from_millis(20));
            for work in &step {
                scheduler.advanced(work.id, work.tokens, usize::from(work.samples));
            }
            assert_eq!(scheduler.admit(Duration::ZERO, 0), None);
        }
    };
    count_calls();
    run(100);
    let warm = calls();
    run(500);
    assert_eq!(calls() - warm, 0);
}
