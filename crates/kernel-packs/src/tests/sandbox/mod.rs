//! Kernels that run, and those that must not harm the host.
//!
//! They run on the engine of [`SandboxOptions::default`], and attacks on every engine that the
//! features of the crate have: `cargo xtask kernel-sandbox` tests with wasmi alone and with both.

#[cfg(feature = "wasmtime")]
mod cached;
mod calls;
mod core_pack;
mod embedded;
#[cfg(feature = "wasmi")]
mod engines;
mod hostile;
mod interface;
mod kernels;
mod manager;
mod quarantine;
mod refused;
mod threads;

use std::fs;
use std::sync::LazyLock;

use serde_json::{Value, json};

use super::{key, now, platforms, trust};
use crate::sandbox::{Fault, Job, Kernel, Sandbox, SandboxOptions, Trap};
use crate::{Contents, EngineKind, Error, Host, Pack, Policy, Result, Version};

/// Sandbox of the tests that need no settings of their own.
static SANDBOX: LazyLock<Sandbox> = LazyLock::new(|| sandbox(SandboxOptions::default()));

/// The same on each other engine of this build.
static OTHERS: LazyLock<Vec<Sandbox>> = LazyLock::new(|| {
    let default = SandboxOptions::default().engine;
    let others = [EngineKind::Wasmtime, EngineKind::Wasmi].into_iter().filter(|engine| *engine != default);
    let present = others.filter(|engine| Sandbox::engine_of(*engine).is_ok());
    present.map(|engine| sandbox(SandboxOptions { engine, ..Default::default() })).collect()
});

/// Kernel that every attack is followed by.
static GOOD: LazyLock<Kernel> = LazyLock::new(|| load(ECHO).unwrap());

/// Copies input A to the output.
const ECHO: &str = r#"(module (memory (export "memory") 1)
    (func (export "kernel_forward") (param $d i32) (param $n i32) (result i32)
      (loop $request
        (memory.copy (i32.load offset=16 (local.get $d)) (i32.load (local.get $d))
          (i32.load offset=4 (local.get $d)))
        (local.set $d (i32.add (local.get $d) (i32.const 40)))
        (br_if $request (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))
      (i32.const 0)))"#;

fn sandbox(options: SandboxOptions) -> Sandbox {
    Sandbox::new(options).unwrap()
}

/// One input and one output of `n` values; 1 MiB, 10 s, 64 table elements.
fn plain() -> Value {
    json!({
        "id": "kernel", "name": "Kernel", "category": "other", "path": "kernel.wasm",
        "inputs": [{"name": "x", "dtype": "f32", "shape": ["n"]}],
        "outputs": [{"name": "y", "dtype": "f32", "shape": ["n"]}],
        "limits": {"memory_pages": 16, "table_elements": 64},
        "platforms": platforms()
    })
}

/// The same with a budget of 30 ms, for kernels that use it up. Others need more on a busy machine:
/// budgets are of time that passes.
fn hasty() -> Value {
    let mut kernel = plain();
    kernel["limits"]["epoch_ticks"] = json!(3);
    kernel
}

/// Verified pack with one kernel.
fn pack(kernel: &Value, module: &[u8]) -> Pack {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("kernel.wasm"), module).unwrap();
    let manifest = json!({
        "schema_version": 1, "name": "test", "version": "1.0.0", "description": "Test",
        "min_runtime_version": "0.1.0", "created": "2026-11-27",
        "author": {"name": "Acme", "email": "kernels@acme.example"},
        "kernels": [kernel]
    });
    fs::write(folder.path().join("kernels.json"), manifest.to_string()).unwrap();
    let contents = Contents::build(folder.path(), Some(&key())).unwrap();
    let host = Host { version: Version::new(0, 1, 0), engine: Some(Sandbox::engine()) };
    contents.verify(Policy { keys: &trust(&[&key()]), host: &host, now: now() }).unwrap()
}

fn load_in(sandbox: &Sandbox, kernel: &Value, text: &str) -> Result<Kernel> {
    let module = wat::parse_str(text).unwrap();
    let id = kernel["id"].as_str().unwrap();
    sandbox.load(&pack(kernel, &module), id)
}

fn load(text: &str) -> Result<Kernel> {
    load_in(&SANDBOX, &plain(), text)
}

/// Module with an entry point of these instructions; 0 is returned behind them.
fn entry(body: &str) -> String {
    with_entry("", body)
}

/// The same, with other items of the module.
fn with_entry(items: &str, body: &str) -> String {
    format!(
        r#"(module {items} (memory (export "memory") 1)
        (func (export "kernel_forward") (param $d i32) (param $n i32) (result i32)
          {body} (i32.const 0)))"#
    )
}

/// Calls a kernel of the form [`plain`].
fn call(kernel: &Kernel, x: &[f32]) -> Result<Vec<f32>> {
    let binding = kernel.bind(&[("n", x.len() as u64)], &[])?;
    let mut y = vec![-1.0f32; x.len()];
    let (inputs, mut outputs) = ([bytemuck::cast_slice(x)], [bytemuck::cast_slice_mut(&mut y)]);
    kernel.call(&mut [Job { binding: &binding, inputs: &inputs, outputs: &mut outputs }])?;
    Ok(y)
}

fn fault_of<T>(result: Result<T>) -> Fault {
    match result {
        Err(Error::Kernel { fault, .. }) => *fault,
        Err(other) => panic!("{other:?}"),
        Ok(_) => panic!("it was done"),
    }
}

/// Checks that the host serves.
fn assert_serving() {
    assert_eq!(call(&GOOD, &[1.0, 2.5, -3.0]).unwrap(), [1.0, 2.5, -3.0]);
}

/// Fault of a module when it is loaded or called, after which the host still serves.
fn attack(text: &str) -> Fault {
    attack_with(&plain(), text)
}

/// The same with a manifest. All engines of the build give one fault.
fn attack_with(kernel: &Value, text: &str) -> Fault {
    let on = |sandbox: &Sandbox| {
        fault_of(load_in(sandbox, kernel, text).and_then(|kernel| call(&kernel, &[1.0; 8])))
    };
    let fault = on(&SANDBOX);
    assert_serving();
    for other in &*OTHERS {
        let found = on(other);
        assert!(agree(&fault, &found), "{fault:?} and {found:?}: {text}");
    }
    fault
}

/// True for one fault, whatever an engine knows of its place and says of a module.
fn agree(a: &Fault, b: &Fault) -> bool {
    match (a, b) {
        (Fault::Malformed { .. }, Fault::Malformed { .. })
        | (Fault::Trap(Trap::OutOfBounds { .. }), Fault::Trap(Trap::OutOfBounds { .. })) => true,
        _ => a == b,
    }
}

/// Access outside of the memory, with its place where the engine knows it.
fn out_of_bounds(offset: u64, memory: u64) -> Trap {
    let knows = SandboxOptions::default().engine == EngineKind::Wasmtime;
    Trap::OutOfBounds { offset: knows.then_some(offset), memory: knows.then_some(memory) }
}

/// Checks that a module is stopped by its budget when it is loaded or called.
fn assert_deadline(text: &str) {
    assert_eq!(attack_with(&hasty(), text), Fault::Trap(Trap::Deadline { ticks: 3 }));
}

/// Trap of a module when it is loaded or called.
fn trap(text: &str) -> Trap {
    match attack(text) {
        Fault::Trap(trap) => trap,
        other => panic!("{other:?}"),
    }
}
