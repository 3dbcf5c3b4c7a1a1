//! Preemption.

use ruvllm_scheduler::{Config, Request, RequestId, Scheduler};

use crate::{admit_all, compute, ms, of_tenant, request};

const PLENTY: usize = 1 << 20;

#[test]
fn lowest_priority_then_largest_service_then_youngest_yields() {
    let mut scheduler = Scheduler::new(Config::default());
    let with = |id, tenant, priority| Request { priority, ..of_tenant(tenant, request(id, 16, 100)) };
    for (id, tenant, priority) in [(0, 0, 1), (1, 0, 0), (2, 1, 0), (3, 1, 0), (4, 0, 0)] {
        scheduler.submit(ms(id), with(id, tenant, priority)).unwrap();
    }
    assert_eq!(admit_all(&mut scheduler, ms(10), PLENTY).len(), 5);
    for id in 0..5 {
        scheduler.advanced(RequestId(id), 16, 1);
    }
    // Tenant 0 has had 48 tokens, tenant 1 has had 32.
    for expected in [4, 1, 3, 2, 0] {
        assert_eq!(scheduler.victim(RequestId(0)), RequestId(expected));
        scheduler.finished(RequestId(expected));
    }
    assert_eq!(scheduler.victim(RequestId(9)), RequestId(9), "nothing runs");
}

#[test]
fn preempted_request_keeps_its_age_and_its_tokens() {
    let mut scheduler = Scheduler::new(Config::default());
    for id in 0..3 {
        scheduler.submit(ms(id), request(id, 100, 50)).unwrap();
    }
    assert_eq!(scheduler.admit(ms(5), PLENTY), Some(RequestId(0)));
    assert_eq!(scheduler.admit(ms(5), PLENTY), Some(RequestId(1)));
    for _ in 0..11 {
        compute(&mut scheduler); // 100 of the prompt, 10 decoded, 1 more known
    }
    scheduler.preempted(RequestId(1));
    assert_eq!((scheduler.running(), scheduler.waiting()), (1, 2));
    assert_eq!(scheduler.statistics().preempted, 1);
    // It needs 111 + 32 tokens, the other one claims 1 + 32: no room before, and no way around.
    assert_eq!(scheduler.admit(ms(6), 33 + 159), None);
    assert_eq!(scheduler.admit(ms(6), 33 + 160), Some(RequestId(1)), "before the younger one");
    scheduler.started(RequestId(1), 64);
    let step = compute(&mut scheduler);
    assert_eq!(step.iter().find(|work| work.id.0 == 1).unwrap().tokens, 111 - 64);
    let statistics = scheduler.statistics();
    assert_eq!((statistics.recomputed, statistics.cached), (110 - 64, 64));
    // One of 47 is new: it was known and not computed.
    assert_eq!((statistics.prefilled, statistics.decoded), (201, 21));
}

#[test]
fn who_waited_after_a_preemption_yields_last() {
    let mut scheduler = Scheduler::new(Config::default());
    scheduler.submit(ms(0), request(0, 100, 50)).unwrap();
    scheduler.submit(ms(1), request(1, 100, 50)).unwrap();
    assert_eq!(admit_all(&mut scheduler, ms(2), PLENTY), [0, 1]);
    assert_eq!(scheduler.victim(RequestId(0)), RequestId(1));
    scheduler.preempted(RequestId(1));
    assert_eq!(scheduler.expire(ms(4_100)), None);
    assert_eq!(scheduler.admit(ms(4_100), PLENTY), Some(RequestId(1)));
    assert_eq!(scheduler.victim(RequestId(0)), RequestId(0));
}

#[test]
fn only_running_requests_are_preempted() {
    let mut scheduler = Scheduler::new(Config::default());
    scheduler.submit(ms(0), request(0, 100, 50)).unwrap();
    scheduler.preempted(RequestId(0));
    scheduler.preempted(RequestId(1));
    scheduler.advanced(RequestId(0), 100, 1);
    scheduler.started(RequestId(0), 50);
    assert_eq!((scheduler.waiting(), scheduler.statistics().preempted), (1, 0));
    assert_eq!(scheduler.statistics().cached, 0);
}

/// Each preemption raises the expected output: the room that is asked for grows until none happen.
#[test]
fn preemptions_make_admission_careful() {
    let mut scheduler = Scheduler::new(Config::default());
    let room = |scheduler: &mut Scheduler, id| {
        scheduler.submit(ms(0), request(id, 64, 640)).unwrap();
        let room = (0..2000).find(|&free| scheduler.admit(ms(0), free).is_some());
        scheduler.finished(RequestId(id));
        room.unwrap()
    };
    scheduler.submit(ms(0), request(0, 64, 0)).unwrap();
    scheduler.admit(ms(0), PLENTY).unwrap();
    let before = room(&mut scheduler, 1);
    for i in 0..10 {
        scheduler.submit(ms(0), request(100 + i, 1, 1)).unwrap();
        scheduler.admit(ms(0), PLENTY).unwrap();
        scheduler.preempted(RequestId(100 + i));
        scheduler.finished(RequestId(100 + i));
    }
    assert!(room(&mut scheduler, 2) > before + 200);
}

#[test]
fn suspended_request_keeps_its_place_and_computes_nothing() {
    let mut config = Config::default();
    config.max_running = 2;
    let mut scheduler = Scheduler::new(config);
    for id in 0..3 {
        scheduler.submit(ms(id), request(id, 40, 10)).unwrap();
    }
    assert_eq!(admit_all(&mut scheduler, ms(5), PLENTY), [0, 1]);
    scheduler.suspended(RequestId(1));
    for _ in 0..3 {
        let step = compute(&mut scheduler);
        assert!(step.iter().all(|work| work.id == RequestId(0)), "{step:?}");
        assert_eq!(scheduler.admit(ms(6), PLENTY), None, "its place is taken");
    }
    assert_eq!((scheduler.victim(RequestId(0)), scheduler.running()), (RequestId(0), 2));
    scheduler.resumed(RequestId(1));
    assert_eq!(compute(&mut scheduler).iter().find(|work| work.id.0 == 1).unwrap().tokens, 40);
    // Waiting again ends it as well.
    scheduler.suspended(RequestId(1));
    scheduler.preempted(RequestId(1));
    assert_eq!(scheduler.admit(ms(7), PLENTY), Some(RequestId(1)));
    assert_eq!(compute(&mut scheduler).len(), 2);
}
