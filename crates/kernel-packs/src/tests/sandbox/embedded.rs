//! Settings of small devices.

use super::core_pack::pack;
use super::{ECHO, call, entry, fault_of, load_in, plain, sandbox};
use crate::sandbox::{Fault, Job, Sandbox, SandboxOptions, Trap};
use crate::{Contents, Host, Policy, Version};

/// The limits of a small device, on each engine.
fn small() -> SandboxOptions {
    SandboxOptions { engine: SandboxOptions::default().engine, ..SandboxOptions::embedded() }
}

#[test]
fn limits_of_the_sandbox_lower_those_of_manifests() {
    let sandbox = sandbox(small());
    let grow = load_in(&sandbox, &plain(), &entry("(drop (memory.grow (i32.const 2)))")).unwrap();
    let fault = fault_of(call(&grow, &[1.0]));
    assert_eq!(fault, Fault::Trap(Trap::MemoryLimit { asked: 4 << 16, most: 2 << 16 }));
    let large = ECHO.replace("\"memory\") 1)", "\"memory\") 3)");
    let fault = fault_of(load_in(&sandbox, &plain(), &large));
    assert_eq!(fault, Fault::Declared { what: "pages of memory", found: 3, most: 2 });
    let endless = load_in(&sandbox, &plain(), &entry("(loop $l (br $l))")).unwrap();
    assert_eq!(fault_of(call(&endless, &[1.0])), Fault::Trap(Trap::Deadline { ticks: 10 }));
    let mut hasty = super::hasty();
    hasty["limits"]["memory_pages"] = 1.into();
    let endless = load_in(&sandbox, &hasty, &entry("(loop $l (br $l))")).unwrap();
    assert_eq!(endless.manifest().limits.memory_pages, 1);
    assert!(matches!(fault_of(call(&endless, &[1.0])), Fault::Room { most: 0x1_0000, .. }));
}

#[test]
fn calls_within_calls_have_little_room() {
    let module = super::with_entry(
        "(func $f (param i32) (result i32) (if (result i32) (local.get 0)
           (then (i32.add (call $f (i32.sub (local.get 0) (i32.const 1))) (i32.const 1)))
           (else (i32.const 0))))",
        "(drop (call $f (i32.trunc_f32_s (f32.load (i32.load (local.get $d))))))",
    );
    let sandbox = sandbox(small());
    let kernel = load_in(&sandbox, &plain(), &module).unwrap();
    call(&kernel, &[50.0]).unwrap();
    assert_eq!(fault_of(call(&kernel, &[5_000.0])), Fault::Trap(Trap::StackOverflow));
}

#[test]
fn a_norm_of_4096_values_fits_into_128_kib() {
    let sandbox = sandbox(small());
    let kernel = sandbox.load(&pack(), "rms-norm-f32").unwrap();
    let compute = |rows: u64| {
        let binding = kernel.bind(&[("rows", rows), ("dim", 4096)], &[])?;
        let (x, weight) = (vec![0x3f; 16384 * rows as usize], [0x3f; 16384]);
        let mut y = vec![0; x.len()];
        kernel.call(&mut [Job { binding: &binding, inputs: &[&x, &weight], outputs: &mut [&mut y] }])
    };
    compute(1).unwrap();
    assert!(matches!(fault_of(compute(2)), Fault::Room { most: 0x2_0000, .. }));
}

#[test]
fn the_core_pack_is_for_both_engines() {
    for engine in [crate::EngineKind::Wasmtime, crate::EngineKind::Wasmi] {
        let Ok(engine) = Sandbox::engine_of(engine) else { continue };
        let host = Host { version: Version::new(0, 1, 0), engine: Some(engine) };
        let key = super::key();
        let contents = Contents::build(&super::core_pack::folder(), Some(&key)).unwrap();
        contents.verify(Policy { keys: &super::trust(&[&key]), host: &host, now: super::now() }).unwrap();
    }
}
