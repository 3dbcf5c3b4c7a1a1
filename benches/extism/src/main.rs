//! Calls through extism's host beside calls in the sandbox of kernel packs: a function that does
//! nothing, and the same `RMSNorm` of 4,096 values. Prints rows for `docs/kernel-packs.md`.
//!
//! `cargo run --release --locked` in this folder

use std::error::Error;
use std::fs;
use std::time::Instant;

use extism::{Manifest, Plugin, Wasm};
use ruvllm_kernel_packs::sandbox::{Job, Kernel, Sandbox, SandboxOptions};
use ruvllm_kernel_packs::{Contents, Host, Policy, PrivateKey, TrustedKey, TrustedKeys, Version};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const RMS_NORM: &str = include_str!("../../../crates/kernel-packs/src/tests/sandbox/wat/rms_norm.wat");
const NOTHING: &str = r#"(module (memory (export "memory") 1)
    (func (export "kernel_forward") (param i32 i32) (result i32) (i32.const 0)))"#;

/// Values of a row.
const DIM: usize = 4096;
/// Repeats of each measurement; the table has their median, least and most.
const REPEATS: usize = 15;

fn main() -> Result<()> {
    println!("| measurement | median, us | least | most |\n|---|---:|---:|---:|");
    let input: Vec<f32> = (0..2 * DIM).map(|index| (index % 97) as f32 / 32.0 - 1.5).collect();
    let input: Vec<u8> = input.iter().flat_map(|value| value.to_le_bytes()).collect();
    let nothing = extism_nothing()?;
    let of_sandbox = in_sandbox(&input)?;
    let of_extism = in_extism(nothing, &input)?;
    let values = |bytes: &[u8]| -> Vec<f32> {
        bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
    };
    // The same instructions in the same order: the same bits.
    assert_eq!(values(&of_sandbox), values(&of_extism));
    Ok(())
}

/// Measures both kernels in the sandbox; the output of the norm.
fn in_sandbox(input: &[u8]) -> Result<Vec<u8>> {
    let sandbox = Sandbox::new(SandboxOptions::default())?;
    let kernel = load(&sandbox, NOTHING)?;
    let binding = kernel.bind(&[("rows", 1), ("dim", 4)], &[])?;
    let (x, mut y) = ([1u8; 16], [0u8; 16]);
    row("sandbox: a kernel that does nothing, 16 bytes in and out", 100_000, || {
        let job = Job { binding: &binding, inputs: &[&x, &x], outputs: &mut [&mut y] };
        Ok(kernel.call(&mut [job])?)
    })?;
    let kernel = load(&sandbox, RMS_NORM)?;
    let binding = kernel.bind(&[("rows", 1), ("dim", DIM as u64)], &[])?;
    let (x, weight) = input.split_at(4 * DIM);
    let mut y = vec![0; 4 * DIM];
    row("sandbox: `RMSNorm` of 1 x 4096, copied in and out", 10_000, || {
        let job = Job { binding: &binding, inputs: &[x, weight], outputs: &mut [&mut y] };
        Ok(kernel.call(&mut [job])?)
    })?;
    Ok(y)
}

fn load(sandbox: &Sandbox, text: &str) -> Result<Kernel> {
    let folder = tempfile::tempdir()?;
    fs::write(folder.path().join("kernel.wasm"), wat::parse_str(text)?)?;
    fs::write(
        folder.path().join("kernels.json"),
        r#"{
        "schema_version": 1, "name": "measured", "version": "1.0.0", "description": "Measured",
        "min_runtime_version": "0.1.0", "created": "2026-11-28",
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
    let pack = contents.verify(Policy { keys: &keys, host: &host, now: None })?;
    Ok(sandbox.load(&pack, "kernel")?)
}

/// Plug-in that neither reads its input nor sets an output.
fn extism_nothing() -> Result<Plugin> {
    let text = r#"(module (memory (export "memory") 1)
        (func (export "call") (result i32) (i32.const 0)))"#;
    plugin(text)
}

/// Measures both kernels as plug-ins; the output of the norm.
fn in_extism(mut nothing: Plugin, input: &[u8]) -> Result<Vec<u8>> {
    row("extism: a function that does nothing, 16 bytes in, none out", 20_000, || {
        let _: &[u8] = nothing.call("call", &input[..16])?;
        Ok(())
    })?;
    let mut norm = plugin(&norm_plugin())?;
    row("extism: the same `RMSNorm`, copied in and out", 1_000, || {
        let _: &[u8] = norm.call("call", input)?;
        Ok(())
    })?;
    let output: &[u8] = norm.call("call", input)?;
    Ok(output.to_vec())
}

fn plugin(text: &str) -> Result<Plugin> {
    let manifest = Manifest::new([Wasm::data(wat::parse_str(text)?)]);
    Ok(Plugin::new(manifest, [], false)?)
}

/// The kernel with an export that copies the plug-in's input to `x` and `weight`, calls it with a
/// descriptor in the memory, and copies `y` to the plug-in's output. Plug-ins reach input and
/// output through functions of the host's module alone, 8 bytes each at most.
fn norm_plugin() -> String {
    let bytes = |values: &[u8]| -> String { values.iter().map(|byte| format!("\\{byte:02x}")).collect() };
    let (x, weight, y, parameters) = (1024u32, 1024 + 16_384, 1024 + 32_768, 64u32);
    let areas = [x, 16_384, weight, 16_384, y, 16_384, 0, 0, parameters, 24];
    let descriptor: Vec<u8> = areas.iter().flat_map(|value| value.to_le_bytes()).collect();
    let eps = u64::from(1e-6f32.to_bits());
    let sizes: Vec<u8> = [eps, 1, DIM as u64].iter().flat_map(|value| value.to_le_bytes()).collect();
    let (descriptor, sizes) = (bytes(&descriptor), bytes(&sizes));
    let head = r#"(module
  (import "extism:host/env" "input_load_u64" (func $input (param i64) (result i64)))
  (import "extism:host/env" "alloc" (func $alloc (param i64) (result i64)))
  (import "extism:host/env" "store_u64" (func $store (param i64 i64)))
  (import "extism:host/env" "output_set" (func $set (param i64 i64)))"#;
    let call = format!(
        r#"
  (data (i32.const 0) "{descriptor}") (data (i32.const {parameters}) "{sizes}")
  (func (export "call") (result i32) (local $at i32) (local $out i64)
    (loop $copy
      (i64.store offset={x} (local.get $at) (call $input (i64.extend_i32_u (local.get $at))))
      (br_if $copy (i32.lt_u (local.tee $at (i32.add (local.get $at) (i32.const 8))) (i32.const 32768))))
    (drop (call $kernel (i32.const 0) (i32.const 1)))
    (local.set $out (call $alloc (i64.const 16384)))
    (local.set $at (i32.const 0))
    (loop $copy
      (call $store (i64.add (local.get $out) (i64.extend_i32_u (local.get $at)))
        (i64.load offset={y} (local.get $at)))
      (br_if $copy (i32.lt_u (local.tee $at (i32.add (local.get $at) (i32.const 8))) (i32.const 16384))))
    (call $set (local.get $out) (i64.const 16384))
    (i32.const 0))
  (func $row "#
    );
    RMS_NORM
        .replacen("(module", head, 1)
        .replacen("(func (export \"kernel_forward\")", "(func $kernel", 1)
        .replacen("(func $row ", &call, 1)
}

/// Measures `work` in microseconds per call and prints a row.
fn row(name: &str, calls: u32, mut work: impl FnMut() -> Result<()>) -> Result<()> {
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
    println!("| {name} | {:.3} | {:.3} | {:.3} |", times[REPEATS / 2], times[0], times[REPEATS - 1]);
    Ok(())
}
