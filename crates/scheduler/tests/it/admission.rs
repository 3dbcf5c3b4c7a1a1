//! Admission by free tokens of KV cache.

use ruvllm_scheduler::{Config, RequestId, Scheduler};

use crate::{admit_all, compute, config, ms, request};

#[test]
fn prompt_and_expected_output_must_fit() {
    let mut scheduler = Scheduler::new(Config::default()); // blocks of 32, a quarter of the output
    for id in 0..4 {
        scheduler.submit(ms(0), request(id, 100, 400)).unwrap();
    }
    // 100 + 400 / 4 tokens are 7 blocks of 32. What the first one needs stays claimed.
    assert_eq!(scheduler.admit(ms(0), 10), Some(RequestId(0)), "nothing runs: it starts anyway");
    assert_eq!(scheduler.admit(ms(0), 200 + 223), None);
    assert_eq!(scheduler.admit(ms(0), 200 + 224), Some(RequestId(1)));
    assert_eq!(scheduler.admit(ms(0), 400 + 223), None);
    // Once prompts are in the cache, only the output is claimed.
    compute(&mut scheduler);
    assert_eq!(scheduler.admit(ms(0), 2 * 101 + 222), None);
    assert_eq!(scheduler.admit(ms(0), 2 * 101 + 224), Some(RequestId(2)));
}

#[test]
fn reserve_follows_the_length_of_outputs() {
    let reserve = |output: usize| {
        let mut scheduler = Scheduler::new(Config::default());
        for id in 0..100 {
            scheduler.submit(ms(0), request(id, 32, 1000)).unwrap();
            scheduler.admit(ms(0), 10_000).unwrap();
            scheduler.advanced(RequestId(id), 32, output);
            scheduler.finished(RequestId(id));
        }
        scheduler.submit(ms(0), request(200, 32, 1000)).unwrap();
        scheduler.submit(ms(0), request(201, 32, 1000)).unwrap();
        scheduler.admit(ms(0), 0).unwrap();
        (0..3000).find(|&free| scheduler.admit(ms(0), free).is_some()).unwrap()
    };
    let (short, long) = (reserve(50), reserve(900));
    assert!((2 * 82..2 * 120).contains(&short), "{short}");
    assert!((2 * 900..2 * 990).contains(&long), "{long}");
}

#[test]
fn cached_tokens_need_no_room() {
    let mut scheduler = Scheduler::new(Config::default());
    for id in 0..2 {
        scheduler.submit(ms(0), request(id, 320, 1)).unwrap();
    }
    scheduler.admit(ms(0), 0).unwrap();
    scheduler.started(RequestId(0), 320);
    // Its last token is computed in any case, and one is generated: 2 claimed. The other one shares
    // 288 of its tokens with the first and needs 33, in whole blocks.
    assert_eq!(scheduler.admit_sharing(ms(0), 65, |_| 288), None);
    assert_eq!(scheduler.admit_sharing(ms(0), 66, |_| 288), Some(RequestId(1)));
    assert_eq!(scheduler.statistics().cached, 319);
}

#[test]
fn large_request_is_passed_for_a_while_and_then_waited_for() {
    let mut scheduler = Scheduler::new(Config::default());
    scheduler.submit(ms(0), request(0, 500, 1)).unwrap();
    scheduler.admit(ms(0), 1000).unwrap();
    compute(&mut scheduler);
    scheduler.submit(ms(10), request(1, 900, 1)).unwrap();
    for id in 2..6 {
        scheduler.submit(ms(20), request(id, 32, 1)).unwrap();
    }
    assert_eq!(admit_all(&mut scheduler, ms(20), 115), [2, 3], "two small ones pass");
    scheduler.finished(RequestId(2));
    scheduler.finished(RequestId(3));
    assert_eq!(admit_all(&mut scheduler, ms(2_019), 70), [4]);
    scheduler.finished(RequestId(4));
    assert_eq!(admit_all(&mut scheduler, ms(2_020), 500), [], "two seconds: none passes any more");
    assert_eq!(admit_all(&mut scheduler, ms(9_000), 1100), [1, 5]);
}

#[test]
fn places_are_limited() {
    let mut scheduler = Scheduler::new(config(|config| config.max_running = 3));
    for id in 0..5 {
        scheduler.submit(ms(0), request(id, 10, 10)).unwrap();
    }
    assert_eq!(admit_all(&mut scheduler, ms(0), 1 << 20), [0, 1, 2]);
    scheduler.finished(RequestId(1));
    assert_eq!(admit_all(&mut scheduler, ms(0), 1 << 20), [3]);
}
