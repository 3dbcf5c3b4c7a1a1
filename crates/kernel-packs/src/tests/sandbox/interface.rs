//! Descriptors, parameters and shapes.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{SANDBOX, call, fault_of, load_in, plain, platforms, with_entry};
use crate::manifest::ParameterValue::{Bool, Integer, Number};
use crate::sandbox::{Descriptor, Fault, Job, Kernel};

/// Copies the bytes at the offset that the parameter area has as its first `i32` to the output.
fn manifest() -> Value {
    json!({
        "id": "kernel", "name": "Kernel", "category": "other", "path": "kernel.wasm",
        "inputs": [{"name": "x", "dtype": "f32", "shape": ["rows", "dim"]},
                   {"name": "scales", "dtype": "f16", "shape": ["dim"]},
                   {"name": "packed", "dtype": "q8_0", "shape": ["rows", 32]}],
        "outputs": [{"name": "y", "dtype": "u8", "shape": ["bytes"]},
                    {"name": "z", "dtype": "u32", "shape": ["rows", 2]}],
        "parameters": [
            {"name": "bytes", "type": "i32"},
            {"name": "flag", "type": "bool", "default": true},
            {"name": "eps", "type": "f32", "default": 0.5},
            {"name": "wide", "type": "f64", "default": 0.25},
            {"name": "seed", "type": "i64", "default": -2},
            {"name": "count", "type": "u32", "default": 4294967295u32}
        ],
        "limits": {"memory_pages": 16},
        "platforms": platforms()
    })
}

/// Copies descriptor and parameters to the first output, 40 bytes and the rest.
const SHOW: &str = r#"(module (memory (export "memory") 2) (global (export "__heap_base") i32 (i32.const 1001))
    (func (export "kernel_forward") (param $d i32) (param $n i32) (result i32) (local $y i32)
      (local.set $y (i32.load offset=16 (local.get $d)))
      (memory.copy (local.get $y) (local.get $d) (i32.const 40))
      (memory.copy (i32.add (local.get $y) (i32.const 40)) (i32.load offset=32 (local.get $d))
        (i32.load offset=36 (local.get $d)))
      (i32.const 0)))"#;

/// Bytes as numbers.
fn collected<T: bytemuck::AnyBitPattern>(bytes: &[u8]) -> Vec<T> {
    bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect()
}

fn show() -> Kernel {
    load_in(&SANDBOX, &manifest(), SHOW).unwrap()
}

#[test]
fn descriptors_have_ten_numbers_and_parameters_eight_bytes_each() {
    assert_eq!(size_of::<Descriptor>(), 40);
    let kernel = show();
    let sizes = [("rows", 3), ("dim", 5)];
    let binding = kernel.bind(&sizes, &[("bytes", Integer(112)), ("seed", Integer(-3))]).unwrap();
    assert_eq!(binding.input_bytes().collect::<Vec<_>>(), [60, 10, 102]);
    assert_eq!(binding.output_bytes().collect::<Vec<_>>(), [112, 24]);
    let (x, scales, packed) = ([1u8; 60], [2u8; 10], [3u8; 102]);
    let (mut y, mut z) = ([0u8; 112], [0u8; 24]);
    let (inputs, mut outputs) = ([&x[..], &scales, &packed], [&mut y[..], &mut z]);
    kernel.call(&mut [Job { binding: &binding, inputs: &inputs, outputs: &mut outputs }]).unwrap();
    let words: Vec<u32> = collected(&y[..40]);
    // Behind `__heap_base` (1001) at a multiple of 16: the descriptor, then the request. `packed`
    // begins 16 bytes after `scales`, `z` 112 after `y`.
    let base = 1008 + 48;
    let (b, out, parameters) = (base + 64, base + 64 + 128, base + 64 + 128 + 144);
    assert_eq!(words, [base, 60, b, 16 + 102, out, 112 + 24, 0, 0, parameters, 72]);
    let slots: Vec<u64> = collected(&y[40..]);
    let expected = [
        112,
        1,
        u64::from(0.5f32.to_bits()),
        0.25f64.to_bits(),
        (-3i64).cast_unsigned(),
        u64::from(u32::MAX),
        // Sizes in the order of their first appearance.
        3,
        5,
        112,
    ];
    assert_eq!(slots, expected);
}

#[test]
fn sizes_and_parameters_are_checked() {
    let kernel = show();
    let sizes = [("rows", 3), ("dim", 5)];
    let bytes = ("bytes", Integer(112));
    kernel.bind(&sizes, &[bytes]).unwrap();
    kernel.bind(&[("rows", 3), ("dim", 5), ("bytes", 112)], &[bytes]).unwrap();
    for (sizes, parameters) in [
        (&[("rows", 3)][..], &[bytes][..]),
        (&[("rows", 3), ("dim", 5), ("other", 1)], &[bytes]),
        (&[("rows", 3), ("dim", 5), ("dim", 5)], &[bytes]),
        (&[("rows", 0), ("dim", 5)], &[bytes]),
        (&[("rows", (1 << 31) + 1), ("dim", 5)], &[bytes]),
        (&[("rows", 3), ("dim", 5), ("bytes", 113)], &[bytes]),
        (&sizes, &[]),
        (&sizes, &[bytes, bytes]),
        (&sizes, &[bytes, ("other", Integer(1))]),
        (&sizes, &[("bytes", Integer(-1))]),
        (&sizes, &[("bytes", Number(1.5))]),
        (&sizes, &[bytes, ("flag", Integer(1))]),
        (&sizes, &[bytes, ("eps", Bool(true))]),
        (&sizes, &[bytes, ("count", Integer(1 << 32))]),
    ] {
        let fault = fault_of(kernel.bind(sizes, parameters));
        assert!(matches!(fault, Fault::Argument { .. }), "{sizes:?} {parameters:?}: {fault:?}");
    }
}

#[test]
fn rows_of_grouped_types_are_whole_groups() {
    let mut kernel = plain();
    kernel["inputs"] = json!([{"name": "x", "dtype": "q4_0", "shape": ["n"]}]);
    kernel["outputs"] = json!([{"name": "y", "dtype": "bf16", "shape": ["n"]}]);
    let kernel = load_in(&SANDBOX, &kernel, &with_entry("", "")).unwrap();
    let binding = kernel.bind(&[("n", 64)], &[]).unwrap();
    assert_eq!(binding.input_bytes().chain(binding.output_bytes()).collect::<Vec<_>>(), [36, 128]);
    assert!(matches!(fault_of(kernel.bind(&[("n", 48)], &[])), Fault::Argument { .. }));
}

#[test]
fn requests_beyond_the_memory_are_refused_and_the_next_one_is_served() {
    let kernel = load_in(&SANDBOX, &plain(), super::ECHO).unwrap();
    let large = vec![1.0; 1 << 18];
    let fault = fault_of(call(&kernel, &large));
    assert!(matches!(fault, Fault::Room { most: 0x10_0000, .. }), "{fault:?}");
    let fits = vec![1.0; 100_000];
    assert_eq!(call(&kernel, &fits).unwrap(), fits);
    assert_eq!(kernel.counts().all_traps(), 0);
}

#[test]
fn products_of_sizes_do_not_overflow() {
    let mut kernel = plain();
    kernel["inputs"] =
        json!([{"name": "x", "dtype": "f32", "shape": ["n", "n", "n", "n", "n", "n", "n", "n"]}]);
    let kernel = load_in(&SANDBOX, &kernel, super::ECHO).unwrap();
    for n in [1 << 8, 1 << 16, 1 << 31] {
        assert!(matches!(fault_of(kernel.bind(&[("n", n)], &[])), Fault::Room { .. }), "{n}");
    }
}

#[test]
fn needs_of_the_kernel_are_met() {
    // Writes to the last byte of its scratch, and returns 1 unless it has 1,000.
    let items = r#"(func (export "kernel_info") (result i32) (i32.const 64))
        (data (i32.const 64) "\01\00\00\00\e8\03\00\00")"#;
    let body =
        "(if (i32.ne (i32.load offset=28 (local.get $d)) (i32.const 1000)) (then (return (i32.const 1))))
        (i32.store8 offset=999 (i32.load offset=24 (local.get $d)) (i32.const 1))";
    call(&load_in(&SANDBOX, &plain(), &with_entry(items, body)).unwrap(), &[1.0]).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64 * ProptestConfig::default().cases / 256, ..Default::default() })]

    /// Areas of any sizes are aligned, within the request, and do not overlap.
    #[test]
    fn areas_do_not_overlap(rows in 1u64..40, dim in 1u64..40, bytes in 112i64..400) {
        let kernel = show();
        let binding = kernel.bind(&[("rows", rows), ("dim", dim)], &[("bytes", Integer(bytes))]).unwrap();
        let buffers: Vec<Vec<u8>> = binding.input_bytes().map(|length| vec![0; length]).collect();
        let inputs: Vec<&[u8]> = buffers.iter().map(Vec::as_slice).collect();
        let mut results: Vec<Vec<u8>> = binding.output_bytes().map(|length| vec![0; length]).collect();
        let mut outputs: Vec<&mut [u8]> = results.iter_mut().map(Vec::as_mut_slice).collect();
        kernel.call(&mut [Job { binding: &binding, inputs: &inputs, outputs: &mut outputs }]).unwrap();
        let words: Vec<u32> = collected(&results[0][..40]);
        let mut areas: Vec<(u32, u32)> = words.chunks(2).map(|area| (area[0], area[1])).collect();
        areas.retain(|(_, bytes)| *bytes != 0);
        areas.push((1008, 40));
        areas.sort_unstable();
        prop_assert!(areas.iter().all(|(offset, _)| offset % 16 == 0 && *offset >= 1008));
        prop_assert!(areas.windows(2).all(|pair| pair[0].0 + pair[0].1 <= pair[1].0));
    }
}
