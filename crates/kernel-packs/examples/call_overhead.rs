//! Time of calls, instances and compilation in the sandbox, beside native kernels and plain
//! wasmtime. Prints the table of `docs/kernel-packs.md`.
//!
//! `cargo run --release -p ruvllm-kernel-packs --features wasmtime --example call_overhead`

use std::error::Error;
use std::fs;
use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

use ruvllm_kernel_packs::sandbox::{Allocation, Job, Kernel, Sandbox, SandboxOptions};
use ruvllm_kernel_packs::{Contents, Host, Pack, Policy, PrivateKey, TrustedKey, TrustedKeys, Version};
use ruvllm_kernels::{Isa, Kernels};
use wasmtime::{Config, Engine, Instance, Module, Store};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const RMS_NORM: &str = include_str!("../src/tests/sandbox/wat/rms_norm.wat");
const NOTHING: &str = r#"(module (memory (export "memory") 1)
    (func (export "kernel_forward") (param i32 i32) (result i32) (i32.const 0)))"#;

/// Values of a row.
const DIM: usize = 4096;
/// Repeats of each measurement; the table has their median, least and most.
const REPEATS: usize = 15;

fn main() -> Result<()> {
    println!("| measurement | median | least | most |\n|---|---:|---:|---:|");
    let sandbox = Sandbox::new(SandboxOptions::default())?;
    calls(&sandbox)?;
    instances()?;
    norms(&sandbox)?;
    epochs()?;
    compilation()
}

/// Measures `work` in microseconds per call and prints a row.
fn row(name: &str, calls: u32, mut work: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut times = Vec::with_capacity(REPEATS);
    // The first one warms up.
    for _ in 0..=REPEATS {
        let start = Instant::now();
        for _ in 0..calls {
            work()?;
        }
        times.push(start.elapsed().as_secs_f64() * 1e6 / f64::from(calls));
    }
    times.remove(0);
    times.sort_by(f64::total_cmp);
    let median = times[REPEATS / 2];
    println!("| {name} | {median:.3} us | {:.3} us | {:.3} us |", times[0], times[REPEATS - 1]);
    Ok(median)
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
    let key = PrivateKey::generate()?;
    let keys = TrustedKeys::new(vec![TrustedKey::new("Acme", key.public_key())], None)?;
    let host = Host { version: Version::new(0, 1, 0), engine: Some(Sandbox::engine()) };
    let contents = Contents::build(folder.path(), Some(&key))?;
    Ok(contents.verify(Policy { keys: &keys, host: &host, now: None })?)
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

/// `RMSNorm` of one row and of 64, in the sandbox and native.
fn norms(sandbox: &Sandbox) -> Result<()> {
    let kernel = load(sandbox, RMS_NORM)?;
    for rows in [1, 64] {
        let (x, weight) = (vec![1.5f32; rows * DIM], vec![0.5f32; DIM]);
        let mut y = vec![0.0f32; rows * DIM];
        let binding = kernel.bind(&[("rows", rows as u64), ("dim", DIM as u64)], &[])?;
        let calls = 20_000 / rows as u32;
        row(&format!("RMSNorm of {rows} x {DIM}, copied in and out"), calls, || {
            let inputs = [bytemuck::cast_slice(&x[..]), bytemuck::cast_slice(&weight[..])];
            let outputs = &mut [bytemuck::cast_slice_mut(&mut y[..])];
            Ok(kernel.call(&mut [Job { binding: &binding, inputs: &inputs, outputs }])?)
        })?;
        row(&format!("RMSNorm of {rows} x {DIM}, in place"), calls, || {
            Ok(kernel.call_with(&[&binding], |_| Ok(()), |guest| guest.output::<f32>(0, 0).map(|_| ()))?)
        })?;
        for native in [Kernels::for_isa(Isa::Scalar)?, Kernels::detect()?] {
            row(&format!("RMSNorm of {rows} x {DIM}, native ({})", native.isa()), calls, || {
                for (x, y) in x.chunks(DIM).zip(y.chunks_mut(DIM)) {
                    native.rms_norm(black_box(x), &weight, 1e-6, y);
                }
                Ok(())
            })?;
        }
    }
    Ok(())
}

/// Plain settings of wasmtime, with or without checks of epochs.
fn config(epochs: bool) -> Config {
    let mut config = Config::new();
    config.epoch_interruption(epochs).cranelift_nan_canonicalization(true);
    config
}

/// Shares of the checks of epochs and of the one form of NaN.
fn epochs() -> Result<()> {
    let mut medians = Vec::new();
    let mut plain = config(false);
    plain.cranelift_nan_canonicalization(false);
    for (name, config) in [
        ("with epochs and one NaN", config(true)),
        ("without epochs", config(false)),
        ("without epochs and with any NaN", plain),
    ] {
        let engine = Engine::new(&config)?;
        let mut store = Store::new(&engine, ());
        if medians.is_empty() {
            store.set_epoch_deadline(1);
        }
        let instance = Instance::new(&mut store, &Module::new(&engine, wat::parse_str(RMS_NORM)?)?, &[])?;
        let memory = instance.get_memory(&mut store, "memory").ok_or("no memory")?;
        memory.grow(&mut store, 1)?;
        let (base, bytes) = (1024u32, 4 * DIM as u32);
        let words = [base, bytes, base + bytes, bytes, base + 2 * bytes, bytes, 0, 0, 64, 24];
        let data = memory.data_mut(&mut store);
        for (index, word) in words.iter().enumerate() {
            data[4 * index..4 * index + 4].copy_from_slice(&word.to_le_bytes());
        }
        data[72..76].copy_from_slice(&1u32.to_le_bytes());
        data[80..84].copy_from_slice(&(DIM as u32).to_le_bytes());
        data[1024..].fill(0x3f);
        let function = instance.get_typed_func::<(i32, i32), i32>(&mut store, "kernel_forward")?;
        medians.push(row(&format!("RMSNorm of 1 x {DIM} in plain wasmtime, {name}"), 20_000, || {
            black_box(function.call(&mut store, (0, 1))?);
            Ok(())
        })?);
    }
    println!("| share of epochs | {:.1} % | | |", (medians[0] / medians[1] - 1.0) * 100.0);
    println!("| share of epochs and one NaN | {:.1} % | | |", (medians[0] / medians[2] - 1.0) * 100.0);
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
