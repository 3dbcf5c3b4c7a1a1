//! Calls from several threads.

use std::thread;

use super::{ECHO, assert_serving, call, entry, load_in, plain, sandbox};
use crate::sandbox::{Fault, SandboxOptions, Trap};

#[test]
fn good_and_trapping_calls_of_eight_threads_do_not_meet() {
    const THREADS: u64 = 8;
    const CALLS: u64 = 1_000;
    let options = SandboxOptions { quarantine_after: 0, idle_instances: 4, ..Default::default() };
    let sandbox = sandbox(options);
    let good = load_in(&sandbox, &plain(), ECHO).unwrap();
    let bodies =
        ["(unreachable)", "(drop (i32.load (i32.const -8)))", "(drop (memory.grow (i32.const 100)))"];
    let bad = bodies.map(|body| load_in(&sandbox, &plain(), &entry(body)).unwrap());
    thread::scope(|scope| {
        for id in 0..THREADS {
            let (good, bad) = (good.for_tenant(id % 3), &bad);
            scope.spawn(move || {
                for index in 0..CALLS {
                    let x = vec![(id * CALLS + index) as f32; 1 + (index % 300) as usize];
                    assert_eq!(call(&good, &x).unwrap(), x);
                    if index % 4 == 0 {
                        assert!(call(&bad[(index / 4 % 3) as usize], &x).is_err());
                    }
                }
            });
        }
    });
    assert_eq!((good.counts().calls, good.counts().failed), (THREADS * CALLS, 0));
    let traps: u64 = bad.iter().map(|kernel| kernel.counts().all_traps()).sum();
    assert_eq!(traps, THREADS * CALLS / 4);
    assert!(good.idle_instances() <= 4);
    assert_serving();
}

#[test]
fn endless_loops_of_several_threads_leave_the_others_alone() {
    let sandbox = sandbox(SandboxOptions { quarantine_after: 0, ..Default::default() });
    let endless = load_in(&sandbox, &super::hasty(), &entry("(loop $l (br $l))")).unwrap();
    let good = load_in(&sandbox, &plain(), ECHO).unwrap();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let fault = super::fault_of(call(&endless, &[1.0]));
                assert_eq!(fault, Fault::Trap(Trap::Deadline { ticks: 3 }));
            });
        }
        for _ in 0..100 {
            assert_eq!(call(&good, &[1.0]).unwrap(), [1.0]);
        }
    });
}

#[test]
fn kernels_outlive_their_sandbox() {
    let sandbox = sandbox(SandboxOptions::default());
    let good = load_in(&sandbox, &plain(), ECHO).unwrap();
    let endless = load_in(&sandbox, &super::hasty(), &entry("(loop $l (br $l))")).unwrap();
    drop(sandbox);
    assert_eq!(call(&good, &[1.0]).unwrap(), [1.0]);
    assert!(matches!(super::fault_of(call(&endless, &[1.0])), Fault::Trap(Trap::Deadline { .. })));
}
