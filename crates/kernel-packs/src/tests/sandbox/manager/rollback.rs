//! Rollbacks, the grace period, and calls on a pack that is no longer active.

use std::sync::Arc;
use std::time::Duration;

use super::{
    CALLABLE, SWIGLU, TOUCHED, Time, call, manager, options, provoke, serving, some, swiglu, touchy,
    version_of, versions,
};
use crate::Error;
use crate::manager::{Manager, ManagerOptions, Reason};
use crate::sandbox::{Fault, Job, Sandbox, SandboxOptions, TrapKind};

#[test]
fn readers_see_a_swap_at_once() {
    let time = Time::default();
    let manager = manager(&time);
    let mut reader = manager.reader();
    assert!(reader.get().is_none());
    manager.upgrade(&swiglu("1.0.0", SWIGLU)).unwrap();
    assert_eq!(version_of(reader.get()), "1.0.0");
    let number = reader.get().unwrap().number();
    manager.clone().upgrade(&swiglu("1.0.1", SWIGLU)).unwrap();
    assert_eq!(version_of(reader.get()), "1.0.1");
    assert_ne!(reader.get().unwrap().number(), number);
    assert_eq!(versions(&manager.status()), some("1.0.1", Some("1.0.0")));
}

#[test]
fn the_previous_pack_stays_for_the_grace_period() {
    let time = Time::default();
    let manager = serving(&time);
    manager.upgrade(&swiglu("2.0.0", SWIGLU)).unwrap();
    time.forward(299);
    let status = manager.status();
    assert_eq!(versions(&status), some("2.0.0", Some("1.0.0")));
    assert_eq!(status.grace_left, Some(Duration::from_secs(1)));
    assert_eq!(status.packs_in_memory, 2);
    time.forward(1);
    manager.tick();
    let status = manager.status();
    assert_eq!(versions(&status), some("2.0.0", None));
    assert_eq!((status.grace_left, status.packs_in_memory, status.counts.expired), (None, 1, 1));
    assert!(matches!(manager.rollback(), Err(Error::NoPrevious { .. })));
}

#[test]
fn a_third_version_frees_the_first() {
    let time = Time::default();
    let manager = serving(&time);
    for version in ["2.0.0", "3.0.0"] {
        manager.upgrade(&swiglu(version, SWIGLU)).unwrap();
    }
    let status = manager.status();
    assert_eq!(versions(&status), some("3.0.0", Some("2.0.0")));
    assert_eq!((status.packs_in_memory, status.counts.swaps), (2, 3));
}

#[test]
fn a_rollback_by_hand_compiles_nothing_and_can_be_undone() {
    let time = Time::default();
    let manager = serving(&time);
    let first = manager.reader().get().unwrap().number();
    manager.upgrade(&swiglu("2.0.0", SWIGLU)).unwrap();
    time.forward(200);
    assert_eq!(manager.rollback().unwrap().version.to_string(), "1.0.0");
    let status = manager.status();
    assert_eq!(versions(&status), some("1.0.0", Some("2.0.0")));
    assert_eq!(manager.reader().get().unwrap().number(), first, "the same instances");
    assert_eq!(status.grace_left, Some(Duration::from_secs(300)), "from the rollback on");
    assert_eq!(status.probation_left, None);
    assert_eq!((status.counts.requested, &status.rollbacks[0].reason), (1, &Reason::Requested));
    assert_eq!(manager.rollback().unwrap().version.to_string(), "2.0.0");
    assert_eq!(manager.status().rollbacks.len(), 2);
}

#[test]
fn running_calls_finish_on_their_pack() {
    let time = Time::default();
    let manager = serving(&time);
    let mut reader = manager.reader();
    let pack = reader.get().unwrap().clone();
    let expected = call(&pack, &[2.0, -1.0]).unwrap();
    manager.upgrade(&swiglu("2.0.0", SWIGLU)).unwrap();
    time.forward(1000);
    manager.tick();
    assert_eq!(manager.status().packs_in_memory, 2, "the call's and the active one");
    assert_eq!(call(&pack, &[2.0, -1.0]).unwrap(), expected);
    let weak = Arc::downgrade(&pack);
    drop(pack);
    assert!(weak.upgrade().is_some(), "the reader has read no other one");
    assert_eq!(version_of(reader.get()), "2.0.0");
    assert!(weak.upgrade().is_none());
    assert_eq!(manager.status().packs_in_memory, 1);
}

#[test]
fn a_quarantine_on_probation_goes_back_without_a_tick() {
    let time = Time::default();
    let manager = serving(&time);
    manager.upgrade(&swiglu("2.0.0", &touchy())).unwrap();
    assert_eq!(manager.status().probation_left, Some(Duration::from_secs(300)));
    time.forward(299);
    let mut reader = manager.reader();
    provoke(&mut reader);
    assert_eq!(version_of(reader.get()), "1.0.0");
    call(reader.get().unwrap(), &[TOUCHED]).unwrap();
    let status = manager.status();
    assert_eq!(versions(&status), some("1.0.0", None), "the faulty pack is no previous one");
    assert_eq!((status.packs_in_memory, status.counts.automatic), (1, 1));
    let rollback = &status.rollbacks[0];
    assert_eq!(rollback.from.version.to_string(), "2.0.0");
    assert_eq!(rollback.to.as_ref().unwrap().version.to_string(), "1.0.0");
    let reason = Reason::Quarantined { kernel: "kernel-0".to_owned(), traps: 3 };
    assert_eq!(rollback.reason, reason);
    assert_eq!(reason.to_string(), "the kernel kernel-0 was quarantined after 3 traps in a row");
}

#[test]
fn totals_keep_the_traps_of_a_pack_that_is_gone() {
    let time = Time::default();
    let manager = serving(&time);
    let totals = || manager.status().totals["kernel-0"].clone();
    assert_eq!((totals().calls, totals().failed), (0, 0), "calls of the check are left out");
    manager.upgrade(&swiglu("2.0.0", &touchy())).unwrap();
    let mut reader = manager.reader();
    provoke(&mut reader);
    assert_eq!((totals().calls, totals().traps_of(TrapKind::Unreachable)), (3, 3));
    assert_eq!(version_of(reader.get()), "1.0.0");
    assert_eq!(manager.status().packs_in_memory, 1, "the faulty one is freed");
    call(reader.get().unwrap(), &[1.0]).unwrap();
    for _ in 0..2 {
        assert_eq!((totals().calls, totals().failed, totals().all_traps()), (4, 3, 3));
    }
}

#[test]
fn news_name_automatic_rollbacks_and_quarantines_once() {
    let time = Time::default();
    let manager = serving(&time);
    manager.upgrade(&swiglu("2.0.0", &touchy())).unwrap();
    let before = manager.status();
    provoke(&mut manager.reader());
    let after = manager.status();
    let line =
        "2.0.0 is out of use: the kernel kernel-0 was quarantined after 3 traps in a row; 1.0.0 is in use";
    assert_eq!(after.news_since(&before), [line]);
    assert_eq!(after.news_since(&after), [""; 0]);

    manager.upgrade(&swiglu("3.0.0", &touchy())).unwrap();
    time.forward(300);
    let before = manager.status();
    provoke(&mut manager.reader());
    let after = manager.status();
    let line = "the kernel kernel-0 of 3.0.0 is quarantined, with 3 traps; native code computes";
    assert_eq!(after.news_since(&before), [line]);
    assert_eq!(manager.status().news_since(&after), [""; 0]);
}

#[test]
fn a_quarantine_after_probation_changes_nothing() {
    let time = Time::default();
    let manager = serving(&time);
    manager.upgrade(&swiglu("2.0.0", &touchy())).unwrap();
    time.forward(300);
    provoke(&mut manager.reader());
    let status = manager.status();
    assert_eq!((versions(&status), status.counts.automatic), (some("2.0.0", None), 0));
    assert!(status.active.unwrap().kernels[0].is_quarantined);
}

#[test]
fn a_quarantine_of_the_first_pack_on_probation_unloads_it() {
    let time = Time::default();
    let manager = manager(&time);
    manager.upgrade(&swiglu("1.0.0", &touchy())).unwrap();
    assert_eq!(manager.status().probation_left, Some(Duration::from_secs(300)));
    let before = manager.status();
    let mut reader = manager.reader();
    provoke(&mut reader);
    assert!(reader.get().is_none(), "native code computes");
    let status = manager.status();
    assert_eq!((versions(&status), status.probation_left), ((None, None), None));
    assert_eq!((status.counts.automatic, status.counts.unloaded, status.packs_in_memory), (1, 1, 0));
    assert_eq!(
        (status.rollbacks[0].from.version.to_string(), &status.rollbacks[0].to),
        ("1.0.0".to_owned(), &None)
    );
    let line = "1.0.0 is out of use: the kernel kernel-0 was quarantined after 3 traps in a row; native code computes";
    assert_eq!(status.news_since(&before), [line]);
    assert_eq!(status.totals["kernel-0"].all_traps(), 3);
    assert!(matches!(manager.rollback(), Err(Error::NoPrevious { .. })));
    manager.upgrade(&swiglu("1.0.1", SWIGLU)).unwrap();
    assert_eq!(
        (version_of(reader.get()), versions(&manager.status())),
        ("1.0.1".to_owned(), some("1.0.1", None))
    );
}

#[test]
fn a_quarantine_on_probation_that_outlasts_the_previous_pack_unloads() {
    let time = Time::default();
    let sandbox = Arc::new(Sandbox::new(SandboxOptions::default()).unwrap());
    let options = ManagerOptions { grace: Duration::from_secs(10), ..options(&time) };
    let manager = Manager::new(sandbox, "core", options);
    manager.upgrade(&swiglu("1.0.0", SWIGLU)).unwrap();
    manager.upgrade(&swiglu("2.0.0", &touchy())).unwrap();
    time.forward(10);
    provoke(&mut manager.reader());
    let status = manager.status();
    assert_eq!((versions(&status), status.packs_in_memory), ((None, None), 0));
}

#[test]
fn an_unload_by_hand_frees_both_packs() {
    let time = Time::default();
    let manager = serving(&time);
    manager.upgrade(&swiglu("2.0.0", SWIGLU)).unwrap();
    let mut reader = manager.reader();
    let running = reader.get().unwrap().clone();
    assert_eq!(manager.unload().unwrap().version.to_string(), "2.0.0");
    call(&running, &[1.0]).unwrap();
    drop(running);
    assert!(reader.get().is_none() && manager.unload().is_none());
    let status = manager.status();
    assert_eq!((versions(&status), status.packs_in_memory), ((None, None), 0));
    assert_eq!((status.counts.unloaded, status.counts.automatic, status.counts.requested), (1, 0, 1));
    assert_eq!(status.rollbacks[0].reason, Reason::Requested);
    manager.upgrade(&swiglu("2.0.0", SWIGLU)).unwrap();
    assert_eq!(version_of(reader.get()), "2.0.0", "by hand any version is loaded");
}

#[test]
fn probation_is_a_setting() {
    let time = Time::default();
    let sandbox = Arc::new(Sandbox::new(SandboxOptions::default()).unwrap());
    let options = ManagerOptions { probation: Duration::from_secs(10), ..options(&time) };
    let manager = Manager::new(sandbox, "core", options);
    manager.upgrade(&swiglu("1.0.0", SWIGLU)).unwrap();
    manager.upgrade(&swiglu("2.0.0", &touchy())).unwrap();
    time.forward(10);
    assert_eq!(manager.status().probation_left, None);
    provoke(&mut manager.reader());
    assert_eq!(versions(&manager.status()), some("2.0.0", Some("1.0.0")));
    assert_eq!(manager.rollback().unwrap().version.to_string(), "1.0.0", "by hand it is possible");
}

#[test]
fn a_quarantine_of_a_pack_that_is_no_longer_active_changes_nothing() {
    let time = Time::default();
    let manager = serving(&time);
    manager.upgrade(&swiglu("2.0.0", &touchy())).unwrap();
    let mut late = manager.reader();
    late.get();
    let old = late.get().unwrap().clone();
    manager.upgrade(&swiglu("3.0.0", SWIGLU)).unwrap();
    for _ in 0..3 {
        call(&old, &[TOUCHED]).unwrap_err();
    }
    assert_eq!(versions(&manager.status()), some("3.0.0", Some("2.0.0")));
    assert_eq!(manager.status().counts.automatic, 0);
}

#[test]
fn kernels_outlive_their_manager() {
    let time = Time::default();
    let manager = serving(&time);
    manager.upgrade(&swiglu("2.0.0", &touchy())).unwrap();
    let mut reader = manager.reader();
    drop(manager);
    provoke(&mut reader);
    call(reader.get().unwrap(), &[1.0]).unwrap_err();
}

#[test]
fn requests_that_were_bound_for_a_freed_pack_are_refused() {
    let time = Time::default();
    let manager = serving(&time);
    let bind = || {
        let mut reader = manager.reader();
        reader.get().unwrap().callable(CALLABLE).unwrap().bind(&[("n", 1)], &[]).unwrap()
    };
    let stale = bind();
    // Memory of the freed kernels is used again.
    for index in 1..20 {
        manager.upgrade(&swiglu(&format!("1.0.{index}"), SWIGLU)).unwrap();
        time.forward(300);
        manager.tick();
        let mut reader = manager.reader();
        let (x, mut y) = ([0u8; 4], [0u8; 4]);
        let job = Job { binding: &stale, inputs: &[&x, &x], outputs: &mut [&mut y] };
        let error = reader.get().unwrap().callable(CALLABLE).unwrap().call(&mut [job]).unwrap_err();
        assert!(matches!(error.fault(), Some(Fault::Argument { .. })), "{error}");
    }
}

#[test]
fn only_the_latest_rollbacks_are_kept() {
    let time = Time::default();
    let manager = serving(&time);
    manager.upgrade(&swiglu("2.0.0", SWIGLU)).unwrap();
    for _ in 0..40 {
        manager.rollback().unwrap();
    }
    let status = manager.status();
    assert_eq!((status.rollbacks.len(), status.counts.requested), (32, 40));
    assert!(format!("{manager:?} {:?} {:?}", manager.reader(), manager.reader().get()).contains("core"));
}
