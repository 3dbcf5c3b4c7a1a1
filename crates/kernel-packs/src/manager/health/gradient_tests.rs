//! Golden vectors of gradients beside finite differences and beside loops in `f32`.

use ruvllm_kernels::{Isa, Kernels};

use super::cases::Case;
use super::check_values;
use super::gradients::gradients;
use super::number::{decode, encode};
use super::reference::{self, Expected, LoraShape, RopeShape};
use crate::manifest::{Category, DType};
use crate::signature::Callable;

/// Operations with gradients.
fn differentiable() -> impl Iterator<Item = Callable> {
    Callable::all().filter(|callable| !gradients(*callable).is_empty())
}

/// Gradient of the output, and values of the inputs.
fn values(callable: Callable, case: &Case) -> (Vec<f64>, Vec<Vec<f64>>) {
    let of_output = if callable.category == Category::LoraApply { DType::F32 } else { callable.dtype };
    let inputs = case.outputs.iter().zip(&case.inputs[1..]);
    (decode(of_output, &case.inputs[0]), inputs.map(|((dtype, _), bytes)| decode(*dtype, bytes)).collect())
}

fn rope_shape(case: &Case) -> RopeShape {
    let interleaved = case.number() != 0.0;
    RopeShape { heads: case.size("heads"), dim: case.size("dim"), pairs: case.size("pairs"), interleaved }
}

/// Sum of the outputs of the forward reference, each times its gradient.
fn weighted(callable: Callable, case: &Case, inputs: &[Vec<f64>], g: &[f64]) -> f64 {
    let f32 = DType::F32;
    let outputs: Vec<Expected> = match callable.category {
        Category::RmsNorm => reference::rms_norm(f32, &inputs[0], &inputs[1], case.number()),
        Category::Swiglu => reference::swiglu(f32, &inputs[0], &inputs[1]),
        Category::Rope => reference::rope(f32, rope_shape(case), &inputs[0], &inputs[1], &inputs[2]),
        _ => {
            let (inputs_of_row, rank, outputs) =
                (case.size("inputs"), case.size("rank"), case.size("outputs"));
            let shape = LoraShape { inputs: inputs_of_row, rank, outputs, scale: case.number() };
            reference::lora_apply(shape, &inputs[0], &inputs[1], &inputs[2], &inputs[3])
        }
    };
    outputs.iter().zip(g).map(|(output, g)| output.value * g).sum()
}

#[test]
fn gradients_are_those_of_finite_differences() {
    for callable in differentiable() {
        for case in gradients(callable).into_iter().filter(|case| case.expected.len() < 40_000) {
            let (g, mut inputs) = values(callable, &case);
            let mut first = 0;
            for tensor in 0..inputs.len() {
                let count = inputs[tensor].len();
                // Some of each tensor, the first and the last one too.
                let step = (count / 9).max(1);
                for at in (0..count).step_by(step).chain([count - 1]) {
                    let (value, h) = (inputs[tensor][at], 1e-4);
                    let mut at_offset = |offset: f64| {
                        inputs[tensor][at] = value + offset;
                        weighted(callable, &case, &inputs, &g)
                    };
                    // Of order 4: an error of h^4, and that of a difference of sums.
                    let near = at_offset(h) - at_offset(-h);
                    let far = at_offset(2.0 * h) - at_offset(-2.0 * h);
                    inputs[tensor][at] = value;
                    let difference = (8.0 * near - far) / (12.0 * h);
                    let expected = case.expected[first + at].value;
                    let error = (difference - expected).abs();
                    assert!(
                        error <= 1e-6 * (1.0 + expected.abs()),
                        "{callable}, {case}, input {tensor}, {at}: {expected} {difference}"
                    );
                }
                first += count;
            }
            assert_eq!(first, case.expected.len());
        }
    }
}

/// Gradients by loops in `f32`, the norm's by the native kernel.
fn computed(callable: Callable, case: &Case) -> Vec<f64> {
    let (g, inputs) = values(callable, case);
    let narrow = |values: &[f64]| values.iter().map(|&value| value as f32).collect::<Vec<f32>>();
    let (g, inputs): (Vec<f32>, Vec<Vec<f32>>) =
        (narrow(&g), inputs.iter().map(|values| narrow(values)).collect());
    let mut out: Vec<Vec<f32>> = inputs.iter().map(|input| vec![0.0; input.len()]).collect();
    match callable.category {
        Category::RmsNorm => {
            let (dim, eps) = (case.size("dim"), case.number() as f32);
            let kernels = Kernels::for_isa(Isa::Scalar).unwrap();
            kernels.add_rms_norm_backward(&inputs[0], &inputs[1], eps, &g, &mut out[0]);
            for (x, g) in inputs[0].chunks_exact(dim).zip(g.chunks_exact(dim)) {
                let mean = x.iter().map(|x| x * x).sum::<f32>() / dim as f32;
                let scale = 1.0 / (mean + eps).sqrt();
                out[1].iter_mut().zip(x).zip(g).for_each(|((out, x), g)| *out += g * x * scale);
            }
        }
        Category::Swiglu => {
            for (at, g) in g.iter().enumerate() {
                let (gate, up) = (inputs[0][at], inputs[1][at]);
                let s = 1.0 / (1.0 + (-gate).clamp(-87.0, 87.0).exp());
                out[0][at] = g * up * s * (1.0 + gate * (1.0 - s));
                out[1][at] = g * gate * s;
            }
        }
        Category::Rope => rope(case, &inputs, &g, &mut out),
        _ => lora_apply(case, &inputs, &g, &mut out),
    }
    out.concat().into_iter().map(f64::from).collect()
}

fn rope(case: &Case, inputs: &[Vec<f32>], g: &[f32], out: &mut [Vec<f32>]) {
    let RopeShape { heads, dim, pairs, interleaved } = rope_shape(case);
    out[0].copy_from_slice(g);
    for (head, (x, g)) in inputs[0].chunks_exact(dim).zip(g.chunks_exact(dim)).enumerate() {
        for pair in 0..pairs {
            let at = head / heads * pairs + pair;
            let (cos, sin) = (inputs[1][at], inputs[2][at]);
            let (j, k) = if interleaved { (2 * pair, 2 * pair + 1) } else { (pair, pair + pairs) };
            out[0][head * dim + j] = g[j] * cos + g[k] * sin;
            out[0][head * dim + k] = g[k] * cos - g[j] * sin;
            out[1][at] += g[j] * x[j] + g[k] * x[k];
            out[2][at] += g[k] * x[j] - g[j] * x[k];
        }
    }
}

fn lora_apply(case: &Case, tensors: &[Vec<f32>], g: &[f32], out: &mut [Vec<f32>]) {
    let (inputs, rank, outputs) = (case.size("inputs"), case.size("rank"), case.size("outputs"));
    let scale = case.number() as f32;
    for (row, (x, g)) in tensors[0].chunks_exact(inputs).zip(g.chunks_exact(outputs)).enumerate() {
        for r in 0..rank {
            let a = &tensors[1][r * inputs..][..inputs];
            let inner: f32 = x.iter().zip(a).map(|(x, a)| x * a).sum();
            let outer: f32 =
                g.iter().enumerate().map(|(o, g)| g * tensors[2][o * rank + r]).sum::<f32>() * scale;
            for index in 0..inputs {
                out[0][row * inputs + index] += outer * a[index];
                out[1][r * inputs + index] += outer * x[index];
            }
            for (o, g) in g.iter().enumerate() {
                out[2][o * rank + r] += scale * g * inner;
            }
        }
    }
    out[3].copy_from_slice(g);
}

/// Bytes of the outputs of a case.
fn bytes(case: &Case, values: &[f64]) -> Vec<u8> {
    let mut rest = values;
    let mut bytes = Vec::new();
    for &(dtype, count) in &case.outputs {
        let (output, others) = rest.split_at(count);
        bytes.extend(encode(dtype, output));
        rest = others;
    }
    bytes
}

#[test]
fn loops_in_f32_pass_and_their_faults_are_found() {
    for callable in differentiable() {
        let mut are_found = [false; 3];
        for case in gradients(callable) {
            let right = computed(callable, &case);
            check_values(&case, &bytes(&case, &right)).unwrap_or_else(|why| panic!("{callable}: {why}"));
            // The last value of the last tensor, the first tensor, and all of them.
            let mut last = right.clone();
            *last.last_mut().unwrap() += 0.1;
            let mut first = right.clone();
            first[..case.outputs[0].1].iter_mut().for_each(|value| *value *= 1.02);
            let other_sign: Vec<f64> = right.iter().map(|value| -value).collect();
            for (is_found, wrong) in are_found.iter_mut().zip([last, first, other_sign]) {
                *is_found |= case.is_required && check_values(&case, &bytes(&case, &wrong)).is_err();
            }
        }
        assert_eq!(are_found, [true; 3], "{callable}");
    }
}

#[test]
fn quant_blocks_and_other_categories_have_no_gradients() {
    let count = differentiable().count();
    assert_eq!(count, 8, "four categories with two types");
}
