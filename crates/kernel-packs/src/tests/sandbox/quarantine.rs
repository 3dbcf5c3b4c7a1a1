//! Counters and quarantine.

use super::{ECHO, call, entry, fault_of, hasty, load, load_in, plain, sandbox};
use crate::sandbox::{Fault, SandboxOptions, TrapKind};
use crate::{Error, Result};

/// Traps if the first value is negative, else copies it.
const PICKY: &str = "(if (f32.lt (f32.load (i32.load (local.get $d))) (f32.const 0)) (then (unreachable)))
    (f32.store (i32.load offset=16 (local.get $d)) (f32.load (i32.load (local.get $d))))";

fn is_quarantined<T>(result: Result<T>) -> bool {
    matches!(result, Err(Error::Quarantined { .. }))
}

#[test]
fn three_traps_in_a_row_lead_to_quarantine_until_it_is_released() {
    let kernel = load(&entry(PICKY)).unwrap();
    for _ in 0..3 {
        assert!(matches!(fault_of(call(&kernel, &[-1.0])), Fault::Trap(_)));
    }
    assert!(kernel.is_quarantined());
    assert!(is_quarantined(call(&kernel, &[1.0])), "good requests too");
    assert!(is_quarantined(call(&kernel.for_tenant(9), &[1.0])), "of all tenants");
    let text = call(&kernel, &[1.0]).unwrap_err().to_string();
    assert_eq!(
        text,
        "the kernel kernel is in quarantine after 3 traps in a row; release it or use another pack"
    );
    let counts = kernel.counts();
    assert_eq!((counts.calls, counts.failed, counts.refused), (3, 3, 3));
    assert_eq!((counts.traps_of(TrapKind::Unreachable), counts.all_traps()), (3, 3));
    kernel.release();
    assert_eq!(call(&kernel, &[1.0]).unwrap(), [1.0]);
    assert!(!kernel.is_quarantined());
}

#[test]
fn a_call_that_is_done_ends_the_row() {
    let kernel = load(&entry(PICKY)).unwrap();
    for x in [-1.0, -1.0, 1.0, -1.0, -1.0, 1.0] {
        assert_eq!(call(&kernel, &[x]).is_ok(), x > 0.0);
    }
    assert!(!kernel.is_quarantined());
    assert_eq!(kernel.counts().all_traps(), 4);
}

#[test]
fn the_number_of_traps_is_a_setting() {
    for (after, expected) in [(1, 1), (5, 5), (0, 20)] {
        let options = SandboxOptions { quarantine_after: after, ..Default::default() };
        let kernel = load_in(&sandbox(options), &plain(), &entry("(unreachable)")).unwrap();
        for _ in 0..20 {
            assert!(call(&kernel, &[1.0]).is_err());
        }
        assert_eq!(kernel.counts().all_traps(), expected);
    }
}

#[test]
fn arguments_and_ordinary_codes_do_not_count() {
    let kernel = load(&entry("(return (i32.const 1))")).unwrap();
    for _ in 0..10 {
        assert!(matches!(fault_of(call(&kernel, &[1.0])), Fault::Code { .. }));
    }
    let counts = kernel.counts();
    assert_eq!((counts.failed, counts.all_traps(), kernel.is_quarantined()), (10, 0, false));
    let kernel = load(ECHO).unwrap();
    for _ in 0..10 {
        assert!(matches!(fault_of(call(&kernel, &vec![0.0; 1 << 18])), Fault::Room { .. }));
    }
    assert!(!kernel.is_quarantined());
}

#[test]
fn internal_faults_count() {
    let kernel = load(&entry("(return (i32.const 5))")).unwrap();
    for _ in 0..3 {
        assert!(matches!(fault_of(call(&kernel, &[1.0])), Fault::Code { .. }));
    }
    assert!(kernel.is_quarantined());
    assert_eq!(kernel.counts().traps_of(TrapKind::Other), 3);
}

#[test]
fn traps_are_counted_by_kind() {
    let options = SandboxOptions { quarantine_after: 0, ..Default::default() };
    let sandbox = sandbox(options);
    for (body, kind) in [
        ("(loop $l (br $l))", TrapKind::Deadline),
        ("(drop (i32.load (i32.const -8)))", TrapKind::OutOfBounds),
        ("(drop (i32.div_u (i32.const 1) (i32.sub (local.get $n) (i32.const 1))))", TrapKind::Arithmetic),
        ("(unreachable)", TrapKind::Unreachable),
        ("(drop (memory.grow (i32.const 100)))", TrapKind::MemoryLimit),
    ] {
        let manifest = if kind == TrapKind::Deadline { hasty() } else { plain() };
        let kernel = load_in(&sandbox, &manifest, &entry(body)).unwrap();
        let _ = fault_of(call(&kernel, &[1.0]));
        assert_eq!(kernel.counts().traps_of(kind), 1, "{kind}");
        assert_eq!(kernel.idle_instances(), 0, "the instance is dropped");
    }
}
