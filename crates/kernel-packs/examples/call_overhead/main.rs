//! Time of calls, instances, compilation and the core pack in the sandbox, beside native kernels
//! and plain wasmtime. Prints the table of `docs/kernel-packs.md`.
//!
//! `cargo run --release -p ruvllm-kernel-packs --features wasmtime --example call_overhead`; with
//! `--features wasmtime,wasmi` the row kernels of the core pack on the interpreter too.

mod core_pack;
mod epochs;
mod measure;

use std::error::Error;
use std::fs;
use std::hint::black_box;
use std::path::Path;

use ruvllm_kernel_packs::sandbox::{Allocation, Job, Kernel, Sandbox, SandboxOptions};
use ruvllm_kernel_packs::{Contents, Host, Pack, Policy, PrivateKey, TrustedKey, TrustedKeys, Version};
use wasmtime::{Engine, Instance, Module, Store};

use epochs::config;
use measure::row;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const RMS_NORM: &str = include_str!("../../src/tests/sandbox/wat/rms_norm.wat");
const NOTHING: &str = r#"(module (memory (export "memory") 1)
    (func (export "kernel_forward") (param i32 i32) (result i32) (i32.const 0)))"#;

fn main() -> Result<()> {
    println!("| measurement | median | least | most |\n|---|---:|---:|---:|");
    let sandbox = Sandbox::new(SandboxOptions::default())?;
    calls(&sandbox)?;
    instances()?;
    core_pack::all(&sandbox)?;
    #[cfg(feature = "wasmi")]
    core_pack::rows(ruvllm_kernel_packs::EngineKind::Wasmi)?;
    epochs::shares()?;
    compilation()
}

/// A verified pack with one kernel.
fn pack(text: &str) -> Result<Pack> {
    let folder = tempfile::tempdir()?;
    fs::write(folder.path().join("kernel.wasm"), wat::parse_str(text)?)?;
    fs::write(
        folder.path().join("kernels.json"),
        r#"{
        "schema_version": 1, "name": "measured", "version": "1.0.0", "description": "Measured",
        "min_runtime_version": "0.1.0", "created": "2026-11-27",
        "author": {"name": "Acme", "email": "kernels@acme.example"},
        "kernels": [{
            "id": "kernel", "name": "Kernel", "category": "rms_norm", "path": "kernel.wasm",
            "inputs": [{"name": "x", "dtype": "f32", "shape": ["rows", "dim"]},
                       {"name": "weight", "dtype": "f32", "shape": ["dim"]}],
            "outputs": [{"name": "y", "dtype": "f32", "shape": ["rows", "dim"]}],
            "parameters": [{"name": "eps", "type": "f32", "default": 1e-6}],
            "platforms": {"wasmtime": {"min_version": "48.0.0", "features": ["simd128"]}}
        }]}"#,
    )?;
    verified(|key| Ok(Contents::build(folder.path(), Some(key))?))
}

/// A verified pack that is built with a new key.
fn verified(build: impl FnOnce(&PrivateKey) -> Result<Contents>) -> Result<Pack> {
    let key = PrivateKey::generate()?;
    let keys = TrustedKeys::new(vec![TrustedKey::new("Acme", key.public_key())], None)?;
    let host = Host { version: Version::new(0, 1, 0), engine: Some(Sandbox::engine()) };
    Ok(build(&key)?.verify(Policy { keys: &keys, host: &host, now: None })?)
}

fn load(sandbox: &Sandbox, text: &str) -> Result<Kernel> {
    Ok(sandbox.load(&pack(text)?, "kernel")?)
}

/// Calls that compute nothing.
fn calls(sandbox: &Sandbox) -> Result<()> {
    let kernel = load(sandbox, NOTHING)?;
    let binding = kernel.bind(&[("rows", 1), ("dim", 4)], &[])?;
    let (x, mut y) = ([1u8; 16], [0u8; 16]);
    row("call of a kernel that does nothing, 16 bytes in and out", 100_000, || {
        let job = Job { binding: &binding, inputs: &[&x, &x], outputs: &mut [&mut y] };
        Ok(kernel.call(&mut [job])?)
    })?;
    row("the same, in place", 100_000, || Ok(kernel.call_with(&[&binding], |_| Ok(()), |_| Ok(()))?))?;
    let engine = Engine::new(&config(true))?;
    let mut store = Store::new(&engine, ());
    store.set_epoch_deadline(1);
    let instance = Instance::new(&mut store, &Module::new(&engine, wat::parse_str(NOTHING)?)?, &[])?;
    let function = instance.get_typed_func::<(i32, i32), i32>(&mut store, "kernel_forward")?;
    row("the same in plain wasmtime: one typed function", 100_000, || {
        black_box(function.call(&mut store, (0, 1))?);
        Ok(())
    })?;
    Ok(())
}

/// Instances: ready ones, and new ones for another tenant.
fn instances() -> Result<()> {
    for (name, allocation) in
        [("on demand", Allocation::OnDemand), ("pooling allocator", Allocation::Pooling { instances: 64 })]
    {
        for (idle, what) in [(8, "ready instance"), (0, "new instance")] {
            let options = SandboxOptions { idle_instances: idle, allocation, ..Default::default() };
            let kernel = load(&Sandbox::new(options)?, NOTHING)?;
            let binding = kernel.bind(&[("rows", 1), ("dim", 4)], &[])?;
            row(&format!("call with a {what}, {name}"), 5_000, || {
                Ok(kernel.call_with(&[&binding], |_| Ok(()), |_| Ok(()))?)
            })?;
        }
    }
    Ok(())
}

/// Compilation of `RMSNorm`, and the same module from the cache.
fn compilation() -> Result<()> {
    let pack = pack(RMS_NORM)?;
    let sandbox = Sandbox::new(SandboxOptions::default())?;
    let load = |sandbox: &Sandbox| sandbox.load(&pack, "kernel").map(|_| ());
    row("compilation of RMSNorm and first instance", 5, || Ok(load(&sandbox)?))?;
    let folder = tempfile::tempdir()?;
    let options = SandboxOptions { cache: Some(folder.path().join("code")), ..Default::default() };
    let sandbox = Sandbox::new(options)?;
    load(&sandbox)?;
    row("RMSNorm from the cache and first instance", 50, || Ok(load(&sandbox)?))?;
    println!("| bytes of the cached file | {} | | |", size(&folder.path().join("code"))?);
    Ok(())
}

fn size(folder: &Path) -> Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(folder)? {
        bytes += entry?.metadata()?.len();
    }
    Ok(bytes)
}
