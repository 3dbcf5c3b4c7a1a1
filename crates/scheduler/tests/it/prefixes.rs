//! Order by common prefixes.

use ruvllm_scheduler::{Config, Request, RequestId, Scheduler};

use crate::{admit_all, compute, config, ms, request};

const PLENTY: usize = 1 << 20;

fn with_prefix(id: u64, prefix: u64) -> Request {
    Request { prefix: Some(prefix), ..request(id, 600, 10) }
}

#[test]
fn request_waits_for_the_prefill_of_its_prefix() {
    let mut scheduler = Scheduler::new(Config::default());
    for (id, prefix) in [(0, 7), (1, 7), (2, 8), (3, 7)] {
        scheduler.submit(ms(0), with_prefix(id, prefix)).unwrap();
    }
    assert_eq!(admit_all(&mut scheduler, ms(0), PLENTY), [0, 2]);
    assert_eq!((scheduler.waiting(), scheduler.statistics().held), (2, 2));
    compute(&mut scheduler); // 512 of 600 tokens
    assert_eq!(scheduler.admit(ms(1), PLENTY), None);
    compute(&mut scheduler);
    assert_eq!(admit_all(&mut scheduler, ms(2), PLENTY), [1, 3], "in their old order");
}

#[test]
fn wait_for_a_prefix_is_bounded() {
    let mut scheduler = Scheduler::new(Config::default());
    for id in 0..3 {
        scheduler.submit(ms(0), with_prefix(id, 7)).unwrap();
    }
    assert_eq!(admit_all(&mut scheduler, ms(10), PLENTY), [0]);
    assert_eq!(scheduler.admit(ms(2_009), PLENTY), None);
    assert_eq!(admit_all(&mut scheduler, ms(2_010), PLENTY), [1, 2]);
}

#[test]
fn held_requests_go_on_when_the_first_stops_or_finds_the_prefix() {
    let stops: [fn(&mut Scheduler); 3] = [
        |scheduler| assert!(scheduler.finished(RequestId(0))),
        |scheduler| scheduler.started(RequestId(0), 64),
        |scheduler| scheduler.advanced(RequestId(0), 600, 1),
    ];
    for stop in stops {
        let mut scheduler = Scheduler::new(Config::default());
        for id in 0..3 {
            scheduler.submit(ms(0), with_prefix(id, 7)).unwrap();
        }
        assert_eq!(admit_all(&mut scheduler, ms(0), PLENTY), [0]);
        stop(&mut scheduler);
        assert_eq!(scheduler.admit(ms(0), PLENTY), Some(RequestId(1)));
    }
}

#[test]
fn held_requests_can_be_cancelled_and_expire() {
    let mut scheduler = Scheduler::new(Config::default());
    for id in 0..4 {
        let deadline = (id == 2).then_some(ms(5));
        scheduler.submit(ms(0), Request { deadline, ..with_prefix(id, 7) }).unwrap();
    }
    assert_eq!(admit_all(&mut scheduler, ms(0), PLENTY), [0]);
    assert!(scheduler.finished(RequestId(1)));
    assert_eq!(scheduler.expire(ms(5)), Some(RequestId(2)));
    assert_eq!(scheduler.waiting(), 1);
    scheduler.finished(RequestId(0));
    assert_eq!(admit_all(&mut scheduler, ms(6), PLENTY), [3]);
}

#[test]
fn requests_with_a_prefix_in_use_go_together() {
    let mut scheduler = Scheduler::new(config(|config| config.max_running = 2));
    for (id, prefix) in [(0, 7), (1, 8), (2, 7), (3, 8)] {
        scheduler.submit(ms(0), with_prefix(id, prefix)).unwrap();
    }
    scheduler.submit(ms(2_000), with_prefix(4, 7)).unwrap();
    assert_eq!(scheduler.admit(ms(2_000), PLENTY), Some(RequestId(0)));
    scheduler.advanced(RequestId(0), 600, 1);
    // Request 2 passes request 1: its prefix is in use. Request 4 is younger by a level.
    assert_eq!(scheduler.admit(ms(2_000), PLENTY), Some(RequestId(2)));
    scheduler.finished(RequestId(2));
    assert_eq!(scheduler.admit(ms(2_000), PLENTY), Some(RequestId(1)));
}

#[test]
fn order_by_prefixes_can_be_off() {
    let mut scheduler = Scheduler::new(config(|config| config.prefix_ordering = false));
    for id in 0..3 {
        scheduler.submit(ms(0), with_prefix(id, 7)).unwrap();
    }
    assert_eq!(admit_all(&mut scheduler, ms(0), PLENTY), [0, 1, 2]);
}
