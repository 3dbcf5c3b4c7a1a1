//! Kernels beside the native ones.

use std::sync::LazyLock;

use ruvllm_kernels::{Isa, Kernels};
use serde_json::{Value, json};

use super::{SANDBOX, call, entry, load, load_in, platforms};
use crate::manifest::ParameterValue;
use crate::sandbox::{Fault, Job, Kernel, ReturnCode};

const RMS_NORM: &str = include_str!("wat/rms_norm.wat");
const SWIGLU: &str = include_str!("wat/swiglu.wat");

/// `RMSNorm` with the sizes `rows` and `dim`.
static NORM: LazyLock<Kernel> = LazyLock::new(|| load_in(&SANDBOX, &norm_manifest(), RMS_NORM).unwrap());

fn norm_manifest() -> Value {
    json!({
        "id": "rms-norm-f32", "name": "RMSNorm", "category": "rms_norm", "path": "kernel.wasm",
        "inputs": [{"name": "x", "dtype": "f32", "shape": ["rows", "dim"]},
                   {"name": "weight", "dtype": "f32", "shape": ["dim"]}],
        "outputs": [{"name": "y", "dtype": "f32", "shape": ["rows", "dim"]}],
        "parameters": [{"name": "eps", "type": "f32", "default": 1e-6}],
        "platforms": platforms()
    })
}

fn swiglu_manifest() -> Value {
    json!({
        "id": "swiglu-f32", "name": "SwiGLU", "category": "swiglu", "path": "kernel.wasm",
        "inputs": [{"name": "gate", "dtype": "f32", "shape": ["n"]},
                   {"name": "up", "dtype": "f32", "shape": ["n"]}],
        "outputs": [{"name": "y", "dtype": "f32", "shape": ["n"]}],
        "platforms": platforms()
    })
}

/// Values between -4 and 4 that look random.
pub(super) fn values(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9) | 1;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        (state >> 8) as f32 / (1 << 21) as f32 - 4.0
    };
    (0..count).map(next).collect()
}

fn norm(rows: usize, dim: usize, eps: f64, x: &[f32], weight: &[f32]) -> Vec<f32> {
    let sizes = [("rows", rows as u64), ("dim", dim as u64)];
    let binding = NORM.bind(&sizes, &[("eps", ParameterValue::Number(eps))]).unwrap();
    let mut y = vec![0.0f32; x.len()];
    let inputs = [bytemuck::cast_slice(x), bytemuck::cast_slice(weight)];
    let mut outputs = [bytemuck::cast_slice_mut(&mut y)];
    NORM.call(&mut [Job { binding: &binding, inputs: &inputs, outputs: &mut outputs }]).unwrap();
    y
}

#[test]
fn rms_norm_is_that_of_the_scalar_kernels_within_a_bound() {
    let native = Kernels::for_isa(Isa::Scalar).unwrap();
    for (rows, dim) in [(1, 16), (3, 64), (2, 2048), (1, 4096), (7, 4096)] {
        let (x, weight) = (values(rows * dim, 1), values(dim, 2));
        let y = norm(rows, dim, 1e-5, &x, &weight);
        // Sums of `dim` squares in two orders: each within (dim + 1) roundings of the exact one, of
        // which the square root takes half. Mean, root, quotient and two products: 5 more of each.
        let bound = (dim + 1 + 2 * 5) as f32 * f32::EPSILON / 2.0;
        for row in 0..rows {
            let part = row * dim..(row + 1) * dim;
            let mut expected = vec![0.0; dim];
            native.rms_norm(&x[part.clone()], &weight, 1e-5, &mut expected);
            for (y, expected) in y[part].iter().zip(&expected) {
                assert!((y - expected).abs() <= bound * expected.abs(), "{y} {expected}, dim {dim}");
            }
        }
    }
}

#[test]
fn rms_norm_is_within_ten_roundings_of_float64() {
    // 64 partial sums of 64 squares: the error of the sum is far from its bound.
    let (x, weight) = (values(4096, 3), values(4096, 4));
    let mean = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / 4096.0;
    let scale = 1.0 / (mean + 1e-5f32 as f64).sqrt();
    for ((y, x), weight) in norm(1, 4096, 1e-5, &x, &weight).iter().zip(&x).zip(&weight) {
        let expected = f64::from(*x) * scale * f64::from(*weight);
        assert!((f64::from(*y) - expected).abs() <= 10.0 * f64::from(f32::EPSILON) * expected.abs());
    }
}

#[test]
fn results_do_not_depend_on_rows_instances_and_calls() {
    let (x, weight) = (values(8 * 256, 5), values(256, 6));
    let all = norm(8, 256, 1e-6, &x, &weight);
    for row in 0..8 {
        let part = row * 256..(row + 1) * 256;
        assert_eq!(norm(1, 256, 1e-6, &x[part.clone()], &weight), all[part]);
    }
    NORM.close_idle();
    assert_eq!(norm(8, 256, 1e-6, &x, &weight), all);
}

#[test]
fn shapes_that_the_kernel_does_not_take_have_a_code() {
    let binding = NORM.bind(&[("rows", 1), ("dim", 8)], &[]).unwrap();
    let (x, mut y) = ([0u8; 32], [1u8; 32]);
    let mut outputs = [&mut y[..]];
    let job = Job { binding: &binding, inputs: &[&x, &x], outputs: &mut outputs };
    let fault = super::fault_of(NORM.call(&mut [job]));
    let code = ReturnCode::Unsupported;
    assert_eq!(fault, Fault::Code { export: "kernel_forward".to_owned(), code });
    assert_eq!(y, [1; 32], "outputs stay as they are");
    assert_eq!(NORM.counts().all_traps(), 0, "a code is no trap");
}

#[test]
fn swiglu_is_that_of_the_scalar_kernels_within_a_bound() {
    let kernel = load_in(&SANDBOX, &swiglu_manifest(), SWIGLU).unwrap();
    let mut gate = values(1000, 7);
    gate.iter_mut().step_by(7).for_each(|x| *x *= 20.0);
    gate[..4].copy_from_slice(&[0.0, -0.0, 90.0, -86.0]);
    let up = values(1000, 8);
    let binding = kernel.bind(&[("n", 1000)], &[]).unwrap();
    let mut y = vec![0.0f32; 1000];
    let inputs = [bytemuck::cast_slice(&gate[..]), bytemuck::cast_slice(&up)];
    let mut outputs = [bytemuck::cast_slice_mut(&mut y)];
    kernel.call(&mut [Job { binding: &binding, inputs: &inputs, outputs: &mut outputs }]).unwrap();
    let mut expected = gate.clone();
    Kernels::for_isa(Isa::Scalar).unwrap().silu_mul(&mut expected, &up);
    for (index, (y, expected)) in y.iter().zip(&expected).enumerate() {
        // Both exponentials are within 4 roundings at this range; sum, quotient and product add 3.
        let bound = 16.0 * f32::EPSILON * expected.abs() + f32::MIN_POSITIVE;
        assert!((y - expected).abs() <= bound, "{index}: {y} {expected} at {}", gate[index]);
    }
}

#[test]
fn a_kernel_that_does_nothing_returns() {
    let kernel = load(&entry("")).unwrap();
    for calls in 1..=100 {
        call(&kernel, &[0.0; 3]).unwrap();
        assert_eq!(kernel.counts().calls, calls);
    }
    assert_eq!((kernel.counts().failed, kernel.idle_instances()), (0, 1));
}
