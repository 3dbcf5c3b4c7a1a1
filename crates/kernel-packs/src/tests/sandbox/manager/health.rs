//! Kernels that pass the health check, and those that must not be swapped in.

use std::time::Duration;

use serde_json::{Value, json};

use super::{CALLABLE, SWIGLU, Time, call, changed, contents, manager, serving, some, verified, versions};
use crate::Error;
use crate::manager::{Reason, Repeat, Unhealthy};
use crate::manifest::{Category, DType};
use crate::sandbox::{Fault, ReturnCode, SandboxOptions, Trap};
use crate::signature::{Callable, Mismatch};
use crate::tests::callables::form;

const RMS_NORM: &str = include_str!("../wat/rms_norm.wat");
const ROPE: &str = include_str!("../wat/rope.wat");
const KV_UNPACK: &str = include_str!("../wat/kv_unpack.wat");

fn callable(category: Category, dtype: DType) -> Value {
    form(Callable { category, dtype })
}

/// Fault that an upgrade finds, after which the former pack is still active and computes.
fn refused_form(kernel: Value, text: &str) -> Unhealthy {
    let time = Time::default();
    let manager = serving(&time);
    let before = manager.status();
    let error = manager.upgrade(&verified(contents("2.0.0", &[(kernel, text)]))).unwrap_err();
    let message = error.to_string();
    assert!(message.starts_with("the kernel kernel-0 failed its health check: "), "{message}");
    let status = manager.status();
    assert_eq!(versions(&status), some("1.0.0", None));
    assert_eq!(status.active, before.active, "nothing happened to it");
    assert_eq!((status.counts.refused, status.counts.swaps, status.packs_in_memory), (1, 1, 1));
    let rollback = &status.rollbacks[0];
    assert_eq!(
        (rollback.from.version.to_string(), &rollback.reason),
        ("2.0.0".to_owned(), &Reason::Refused { why: message })
    );
    call(manager.reader().get().unwrap(), &[1.0]).unwrap();
    match error {
        Error::Unhealthy { why, .. } => *why,
        other => panic!("{other}"),
    }
}

fn refused(text: &str) -> Unhealthy {
    refused_form(form(CALLABLE), text)
}

#[test]
fn good_kernels_pass() {
    let manager = manager(&Time::default());
    let kernels = [
        (form(CALLABLE), SWIGLU),
        (callable(Category::RmsNorm, DType::F32), RMS_NORM),
        (callable(Category::Rope, DType::F32), ROPE),
        (callable(Category::KvUnpack, DType::Q8_0), KV_UNPACK),
    ];
    manager.upgrade(&verified(contents("1.0.0", &kernels))).unwrap();
    let active = manager.status().active.unwrap();
    let checked: Vec<_> = active.kernels.iter().map(|kernel| &kernel.checked).collect();
    let counts: Vec<_> = checked.iter().map(|checked| (checked.computed, checked.refused.len())).collect();
    assert_eq!(counts, [(7, 0), (5, 3), (7, 0), (6, 0)]);
    // This one computes multiples of 16 alone, which it says by a code.
    assert_eq!(
        checked[1].refused,
        [
            "rows 1, dim 1, eps 9.999999747378752e-6",
            "rows 2, dim 37, eps 9.999999974752427e-7",
            "rows 5, dim 100, eps 9.999999747378752e-6"
        ]
    );
    let mut reader = manager.reader();
    let pack = reader.get().unwrap();
    for loaded in pack.kernels() {
        assert!(!loaded.kernel.is_quarantined());
        assert_eq!(loaded.kernel.idle_instances(), 1, "one is ready, and nobody has used it");
    }
    assert!(pack.callable(Callable { category: Category::Rope, dtype: DType::F32 }).is_some());
    assert!(pack.callable(Callable { category: Category::Rope, dtype: DType::F16 }).is_none());
}

#[test]
fn wrong_numbers_are_found() {
    // One coefficient of a polynomial: 0.4 % of some results.
    let why = refused(&changed("(f32.const 0.166666667)", "(f32.const 0.15)"));
    assert!(matches!(why, Unhealthy::Value { .. }));
    let why = refused(&changed("(f32.load (local.get $up))", "(f32.const 1)"));
    assert!(matches!(why, Unhealthy::Value { .. }));
    let text = RMS_NORM.replace("(f32.add (local.get $eps)", "(f32.add (f32.const 1e-5)");
    assert_ne!(text, RMS_NORM);
    let why = refused_form(callable(Category::RmsNorm, DType::F32), &text);
    assert!(matches!(&why, Unhealthy::Value { case, .. } if case == "rows 3, dim 128, eps 0.25"), "{why}");
    let text = ROPE.replace("(i32.load (local.get $p))", "(i32.const 0)");
    assert_ne!(text, ROPE);
    let why = refused_form(callable(Category::Rope, DType::F32), &text);
    assert!(matches!(&why, Unhealthy::Value { case, .. } if case.ends_with("interleaved true")), "{why}");
}

#[test]
fn nan_is_found_and_must_not_be_swallowed() {
    let why = refused(&changed("(f32.load (local.get $up))", "(f32.const nan)"));
    assert!(matches!(&why, Unhealthy::Value { found, .. } if found == "NaN"));
    let swallow = "(local.set $x (f32.load (local.get $gate)))
        (if (f32.ne (local.get $x) (local.get $x)) (then (local.set $x (f32.const 0))))";
    let why = refused(&changed("(local.set $x (f32.load (local.get $gate)))", swallow));
    assert!(
        matches!(&why, Unhealthy::Value { case, expected, .. } if case == "n 64, with NaN" && expected == "NaN")
    );
}

#[test]
fn traps_codes_and_endless_loops_are_found() {
    let failed = |text: &str, ticks: u32| {
        let mut kernel = form(CALLABLE);
        kernel["limits"] = json!({"epoch_ticks": ticks});
        match refused_form(kernel, text) {
            Unhealthy::Call { fault, .. } => *fault,
            other => panic!("{other}"),
        }
    };
    let text = changed("(loop $request", "(unreachable) (loop $request");
    assert_eq!(failed(&text, 1000), Fault::Trap(Trap::Unreachable));
    let text = changed("(loop $request", "(loop $ever (br $ever)) (loop $request");
    assert_eq!(failed(&text, 3), Fault::Trap(Trap::Deadline { ticks: 3 }));
    // A shape that every kernel must compute.
    let text = changed("(loop $request", "(return (i32.const 3)) (loop $request");
    let code = ReturnCode::Unsupported;
    assert_eq!(failed(&text, 1000), Fault::Code { export: "kernel_forward".to_owned(), code });
}

#[test]
fn kernels_that_are_not_deterministic_are_found() {
    // The lowest bit of the first value of the last request changes from call to call.
    let flip = "(global.set $flips (i32.xor (global.get $flips) (i32.const 1)))
        (local.set $out (i32.load offset=16 (i32.sub (local.get $d) (i32.const 40))))
        (i32.store (local.get $out) (i32.xor (i32.load (local.get $out)) (global.get $flips)))
        (i32.const 0))
      (global $flips (mut i32) (i32.const 0))
      (func $exp";
    let text = SWIGLU.replace("(i32.const 0))\n  (func $exp", flip);
    assert_ne!(text, SWIGLU);
    let why = refused(&text);
    assert!(matches!(why, Unhealthy::NotRepeatable { repeat: Repeat::SameInstance, byte: 0, .. }), "{why}");
}

#[test]
fn kernels_that_mix_requests_up_are_found() {
    let text = changed(
        "(br_if $request (local.tee $n (i32.sub (local.get $n) (i32.const 1))))",
        "(drop (local.get $n))",
    );
    let why = refused(&text);
    assert!(matches!(why, Unhealthy::NotRepeatable { repeat: Repeat::Batch, .. }), "{why}");
}

#[test]
fn kernels_with_another_signature_are_loaded_and_not_called() {
    let mut kernel = form(CALLABLE);
    kernel["inputs"][0]["name"] = json!("x");
    // Wrong numbers: nobody knows what it computes.
    let text = changed("(f32.load (local.get $up))", "(f32.const 1)");
    let manager = manager(&Time::default());
    manager.upgrade(&verified(contents("1.0.0", &[(kernel, &text)]))).unwrap();
    let mut reader = manager.reader();
    let pack = reader.get().unwrap();
    assert!(pack.callable(CALLABLE).is_none() && pack.kernel("kernel-0").is_some());
    let status = manager.status().active.unwrap();
    assert!(matches!(status.kernels[0].callable, Err(Mismatch::Name { index: 0, .. })));
    assert_eq!(status.kernels[0].checked.computed, 0);
}

#[test]
fn modules_that_do_not_compile_keep_the_former_pack() {
    let time = Time::default();
    let manager = serving(&time);
    let imports = r#"(module (import "env" "log" (func)) (memory (export "memory") 1))"#;
    let pack = verified(contents("2.0.0", &[(form(CALLABLE), SWIGLU), (form(CALLABLE), imports)]));
    let error = manager.upgrade(&pack).unwrap_err();
    assert!(matches!(error.fault(), Some(Fault::Import { .. })));
    assert!(error.to_string().starts_with("the kernel kernel-1 failed: "));
    assert_eq!(versions(&manager.status()), some("1.0.0", None));
}

#[test]
fn packs_of_other_names_are_refused() {
    let time = Time::default();
    let sandbox = std::sync::Arc::new(super::super::sandbox(SandboxOptions::default()));
    let manager = crate::manager::Manager::new(sandbox, "other", super::options(&time));
    let error = manager.upgrade(&super::swiglu("1.0.0", SWIGLU)).unwrap_err();
    assert!(matches!(error, Error::OtherPack { .. }));
    assert!(manager.reader().get().is_none());
    assert!(matches!(manager.rollback(), Err(Error::NoPrevious { .. })));
    assert!(matches!(manager.refresh(), Err(Error::NoOrigin { .. })));
}

#[test]
fn sandboxes_that_refuse_nan_are_not_checked_with_it() {
    let options = SandboxOptions { refuse_non_finite: true, ..Default::default() };
    let sandbox = std::sync::Arc::new(super::super::sandbox(options));
    let options = crate::manager::ManagerOptions { grace: Duration::MAX, ..Default::default() };
    let manager = crate::manager::Manager::new(sandbox, "core", options);
    manager.upgrade(&super::swiglu("1.0.0", SWIGLU)).unwrap();
    manager.upgrade(&super::swiglu("1.0.1", SWIGLU)).unwrap();
    let status = manager.status();
    assert_eq!(status.active.unwrap().kernels[0].checked.computed, 6);
    assert!(status.grace_left.is_some(), "durations beyond the clock end late");
}

/// Gradient of `SwiGLU`, with these factors of both results.
fn with_gradient(of_gate: &str, of_up: &str) -> String {
    let body = format!(
        r#"(func (export "kernel_backward") (param $d i32) (param $n i32) (result i32)
    (local $g i32) (local $end i32) (local $gate i32) (local $out i32) (local $step i32)
    (local $x f32) (local $s f32)
    (loop $next
      (local.set $g (i32.load (local.get $d)))
      (local.set $end (i32.add (local.get $g) (i32.load offset=4 (local.get $d))))
      (local.set $gate (i32.load offset=8 (local.get $d)))
      (local.set $out (i32.load offset=16 (local.get $d)))
      (local.set $step (i32.and (i32.add (i32.load offset=4 (local.get $d)) (i32.const 15)) (i32.const -16)))
      (loop $value
        (local.set $x (f32.load (local.get $gate)))
        (local.set $s (f32.div (f32.const 1) (f32.add (f32.const 1) (call $exp (f32.neg (local.get $x))))))
        (f32.store (local.get $out) (f32.mul {of_gate}
          (f32.mul (f32.load (local.get $g)) (f32.mul (f32.load (i32.add (local.get $gate) (local.get $step)))
            (f32.mul (local.get $s) (f32.add (f32.const 1) (f32.mul (local.get $x)
              (f32.sub (f32.const 1) (local.get $s)))))))))
        (f32.store (i32.add (local.get $out) (local.get $step)) (f32.mul {of_up}
          (f32.mul (f32.load (local.get $g)) (f32.mul (local.get $x) (local.get $s)))))
        (local.set $gate (i32.add (local.get $gate) (i32.const 4)))
        (local.set $out (i32.add (local.get $out) (i32.const 4)))
        (br_if $value (i32.lt_u (local.tee $g (i32.add (local.get $g) (i32.const 4))) (local.get $end))))
      (local.set $d (i32.add (local.get $d) (i32.const 40)))
      (br_if $next (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
    (i32.const 0))
  (func $exp"#
    );
    changed("(func $exp", &body)
}

#[test]
fn gradients_are_checked_where_a_kernel_has_them() {
    let one = "(f32.const 1)";
    let manager = manager(&Time::default());
    manager.upgrade(&verified(contents("1.0.0", &[(form(CALLABLE), &with_gradient(one, one))]))).unwrap();
    let checked = manager.status().active.unwrap().kernels[0].checked.clone();
    assert_eq!((checked.computed, checked.gradients, checked.refused.len()), (7, 6, 0));
    assert_eq!(serving(&Time::default()).status().active.unwrap().kernels[0].checked.gradients, 0);
    for (of_gate, of_up, name) in [("(f32.const 1.001)", one, "gate"), (one, "(f32.const -1)", "up")] {
        let why = refused(&with_gradient(of_gate, of_up));
        let Unhealthy::Value { case, .. } = &why else { panic!("{why}") };
        assert_eq!(*case, format!("gradient of {name}, n 64"));
    }
}

#[test]
fn a_gradient_may_be_refused_as_not_implemented_and_traps_are_found() {
    let body = |instructions: &str| {
        let function = format!(
            r#"(func (export "kernel_backward") (param i32 i32) (result i32) {instructions}) (func $exp"#
        );
        changed("(func $exp", &function)
    };
    let manager = manager(&Time::default());
    manager.upgrade(&verified(contents("1.0.0", &[(form(CALLABLE), &body("(i32.const 6)"))]))).unwrap();
    let checked = manager.status().active.unwrap().kernels[0].checked.clone();
    assert_eq!((checked.gradients, checked.refused.len()), (0, 6));
    assert_eq!(checked.refused[0], "gradient, n 64");
    for wrong in ["(i32.const 3)", "unreachable"] {
        let why = refused(&body(wrong));
        assert!(matches!(why, Unhealthy::Call { .. }), "{why}");
    }
}
