//! Properties of every operation on every available instruction set: bit-identical to the scalar
//! path, and within the stated bound of an f64 oracle. Rows have any length and alignment, and may
//! hold denormals, infinities and NaN.

use half::{bf16, f16};
use proptest::prelude::*;
use ruvllm_kernels::rope::{RopeConfig, RopeLayout, RopeTable};
use ruvllm_kernels::rows::{Activation, Norm};
use ruvllm_kernels::{Isa, Kernels};

use crate::oracle;

/// Values in the range of model activations.
fn ordinary() -> impl Strategy<Value = f32> {
    prop_oneof![4 => -10.0f32..10.0, 1 => -1e4f32..1e4, 1 => Just(0.0), 1 => -1e-3f32..1e-3]
}

/// Any bit pattern, with special values over-represented.
fn any_f32() -> impl Strategy<Value = f32> {
    prop_oneof![
        4 => ordinary(),
        2 => any::<u32>().prop_map(f32::from_bits),
        1 => (any::<u32>(), any::<bool>()).prop_map(|(x, s)| f32::from_bits((x % (1 << 23)) | (u32::from(s) << 31))),
        1 => prop_oneof![Just(f32::INFINITY), Just(f32::NEG_INFINITY), Just(f32::NAN), Just(-0.0), Just(f32::MAX)],
    ]
}

/// Row and its start offset within the allocation, for misaligned vectors.
fn row(value: impl Strategy<Value = f32>) -> impl Strategy<Value = (Vec<f32>, usize)> {
    (prop::collection::vec(value, 0..100), 0usize..9).prop_map(|(values, offset)| {
        let offset = offset.min(values.len());
        (values, offset)
    })
}

fn same(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())
}

fn all_same(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(&a, &b)| same(a, b))
}

fn scalar() -> Kernels {
    Kernels::for_isa(Isa::Scalar).unwrap()
}

/// Applies `f` to a copy of `x` at offset `offset`.
fn in_place(x: &[f32], offset: usize, f: impl Fn(&mut [f32])) -> Vec<f32> {
    let mut x = x.to_vec();
    f(&mut x[offset..]);
    x.split_off(offset)
}

/// Asserts that `f` is bit-identical (NaN payloads excepted) with all kernels; returns the values.
fn agreed(f: impl Fn(&Kernels) -> Vec<f32>) -> Vec<f32> {
    let reference = f(&scalar());
    for kernels in Kernels::available() {
        let found = f(&kernels);
        assert!(all_same(&found, &reference), "{}: {found:?}\nscalar: {reference:?}", kernels.isa());
    }
    reference
}

fn close(found: f32, expected: f64, bound: f64) -> bool {
    (f64::from(found) - expected).abs() <= bound
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400 * ProptestConfig::default().cases / 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn dot_agrees((x, at) in row(any_f32()), seed in any_f32()) {
        let y: Vec<f32> = x.iter().rev().map(|x| x * 0.37 + seed).collect();
        agreed(|kernels| vec![kernels.dot(&x[at..], &y[at..])]);
    }

    #[test]
    fn dot_is_within_gamma((x, at) in row(ordinary())) {
        let y: Vec<f32> = x.iter().rev().map(|x| x * 0.37 + 1.0).collect();
        let (sum, size) = oracle::dot(&x[at..], &y[at..]);
        prop_assert!(close(scalar().dot(&x[at..], &y[at..]), sum, oracle::gamma(x.len()) * size + 1e-40));
    }

    #[test]
    fn add_assign_agrees((x, at) in row(any_f32()), y in any_f32()) {
        let ys = vec![y; x.len() - at];
        let sums = agreed(|kernels| in_place(&x, at, |x| kernels.add_assign(x, &ys)));
        prop_assert!(sums.iter().zip(&x[at..]).all(|(&sum, &x)| same(sum, x + y)));
    }

    #[test]
    fn rms_norm_agrees((x, at) in row(any_f32()), eps in 0f32..1e-3) {
        let x = &x[at..];
        let weight: Vec<f32> = (0..x.len()).map(|i| 0.5 + i as f32 * 0.01).collect();
        agreed(|kernels| {
            let mut out = vec![0.0; x.len()];
            kernels.rms_norm(x, &weight, eps, &mut out);
            out
        });
    }

    #[test]
    fn rms_norm_is_accurate((x, at) in row(ordinary())) {
        let x = &x[at..];
        let weight: Vec<f32> = (0..x.len()).map(|i| 0.5 + i as f32 * 0.01).collect();
        let mut out = vec![0.0; x.len()];
        scalar().rms_norm(x, &weight, 1e-5, &mut out);
        let bound = 3e-7 + oracle::gamma(x.len()) / 2.0;
        for (found, expected) in out.iter().zip(oracle::rms_norm(x, &weight, 1e-5)) {
            prop_assert!(close(*found, expected, bound * expected.abs() + 1e-40), "{found} for {expected}");
        }
    }

    #[test]
    fn norms_agree((x, at) in row(any_f32()), y in ordinary()) {
        let (x, n) = (&x[at..], x.len() - at);
        let weight: Vec<f32> = (0..n).map(|i| 0.5 + i as f32 * 0.01).collect();
        let (bias, ys): (Vec<f32>, Vec<f32>) = weight.iter().map(|w| (w * 0.3 - 0.2, y * w)).unzip();
        let layer = |bias| Norm::Layer { weight: &weight, bias };
        for norm in [Norm::RmsPlusOne { weight: &weight }, layer(None), layer(Some(&bias[..]))] {
            agreed(|kernels| {
                let mut out = vec![0.0; n];
                kernels.norm(norm, 1e-5, x, &mut out);
                out
            });
            // The fused form gives the sum and its norm, each with the bits of the two steps.
            for kernels in Kernels::available() {
                let (mut fused, mut steps) = (x.to_vec(), x.to_vec());
                let (mut fused_out, mut out) = (vec![0.0; n], vec![0.0; n]);
                kernels.add_norm(norm, 1e-5, &mut fused, &ys, &mut fused_out);
                kernels.add_assign(&mut steps, &ys);
                kernels.norm(norm, 1e-5, &steps, &mut out);
                prop_assert!(all_same(&fused, &steps) && all_same(&fused_out, &out));
            }
        }
    }

    #[test]
    fn layer_norm_is_accurate((x, at) in row(ordinary())) {
        let x = &x[at..];
        let weight: Vec<f32> = (0..x.len()).map(|i| 0.5 + i as f32 * 0.01).collect();
        let bias: Vec<f32> = weight.iter().map(|w| w * 0.3 - 0.2).collect();
        let mut out = vec![0.0; x.len()];
        scalar().norm(Norm::Layer { weight: &weight, bias: Some(&bias) }, 1e-5, x, &mut out);
        let zeros = vec![0.0; x.len()];
        let magnitude = x.iter().map(|x| f64::from(x.abs())).sum::<f64>() / x.len().max(1) as f64;
        let expected = oracle::layer_norm(x, &weight, &bias, 1e-5);
        let slopes = oracle::layer_norm(x, &weight, &zeros, 1e-5);
        for i in 0..x.len() {
            // `weight / sqrt(..)`, out of the change that a unit of `x` would make; at the mean
            // itself only the mean errs.
            let deviation = f64::from(x[i]) - x.iter().map(|&x| f64::from(x)).sum::<f64>() / x.len() as f64;
            let slope = if deviation == 0.0 { f64::from(weight[i]) / 1e-5f64.sqrt() } else { slopes[i] / deviation };
            let size = slope.abs() * (f64::from(x[i].abs()) + magnitude);
            let bound = (3e-7 + oracle::gamma(x.len())) * size + 1e-7 * expected[i].abs() + 1e-40;
            prop_assert!(close(out[i], expected[i], bound), "{} for {}", out[i], expected[i]);
        }
    }

    #[test]
    fn softmax_agrees((x, at) in row(any_f32())) {
        agreed(|kernels| in_place(&x, at, |x| kernels.softmax(x)));
    }

    #[test]
    fn softmax_is_accurate((x, at) in row(-30f32..30.0)) {
        let found = in_place(&x, at, |x| scalar().softmax(x));
        for (found, expected) in found.iter().zip(oracle::softmax(&x[at..])) {
            // The subtraction of the largest value rounds an argument of up to 60, and so moves e^x
            // by up to 60 u.
            prop_assert!(close(*found, expected, 6e-6 * expected + 1e-38), "{found} for {expected}");
        }
    }

    #[test]
    fn log_sum_exp_agrees((x, at) in row(any_f32())) {
        agreed(|kernels| vec![kernels.log_sum_exp(&x[at..])]);
    }

    #[test]
    fn log_sum_exp_is_accurate((x, at) in row(-30f32..30.0)) {
        let found = scalar().log_sum_exp(&x[at..]);
        let expected = oracle::log_sum_exp(&x[at..]);
        prop_assert!(f64::from(found) == expected || close(found, expected, 6e-6), "{found} for {expected}");
    }

    #[test]
    fn argmax_agrees_with_the_definition((x, at) in row(any_f32())) {
        let x = &x[at..];
        let mut expected = None;
        for (i, value) in x.iter().enumerate().filter(|(_, value)| !value.is_nan()) {
            if expected.is_none_or(|best: usize| *value > x[best]) {
                expected = Some(i);
            }
        }
        for kernels in Kernels::available() {
            prop_assert_eq!(kernels.argmax(x), expected);
        }
    }

    #[test]
    fn top_k_agrees_with_a_full_sort((x, at) in row(any_f32()), k in 0usize..60) {
        let x = &x[at..];
        let mut expected: Vec<u32> = (0..x.len() as u32).filter(|&i| !x[i as usize].is_nan()).collect();
        expected.sort_by(|&a, &b| x[b as usize].partial_cmp(&x[a as usize]).unwrap());
        expected.truncate(k);
        for kernels in Kernels::available() {
            let mut out = Vec::new();
            kernels.top_k(x, k, &mut out);
            prop_assert_eq!(&out, &expected);
        }
    }

    #[test]
    fn silu_agrees((x, at) in row(any_f32())) {
        agreed(|kernels| in_place(&x, at, |x| kernels.silu(x)));
        let up: Vec<f32> = x[at..].iter().rev().copied().collect();
        agreed(|kernels| in_place(&x, at, |x| kernels.silu_mul(x, &up)));
    }

    #[test]
    fn silu_is_accurate((x, at) in row(-87f32..90.0)) {
        let found = in_place(&x, at, |x| scalar().silu(x));
        for (found, &x) in found.iter().zip(&x[at..]) {
            let expected = oracle::silu(x);
            prop_assert!(close(*found, expected, 6e-7 * expected.abs() + 1e-45), "silu({x}) = {found}");
        }
    }

    #[test]
    fn activations_agree((x, at) in row(any_f32())) {
        let up: Vec<f32> = x[at..].iter().rev().copied().collect();
        for activation in [Activation::GeluErf, Activation::GeluTanh, Activation::Relu] {
            agreed(|kernels| in_place(&x, at, |x| kernels.activate(activation, x)));
            agreed(|kernels| in_place(&x, at, |x| kernels.gated(activation, x, &up)));
        }
    }

    #[test]
    fn gelu_is_accurate((x, at) in row(-13f32..90.0), near in -6f32..6.0) {
        let mut x = x[at..].to_vec();
        x.push(near);
        let found = in_place(&x, 0, |x| scalar().activate(Activation::GeluErf, x));
        for (found, &x) in found.iter().zip(&x) {
            let expected = oracle::gelu_erf(x);
            prop_assert!(close(*found, expected, 8e-7 * expected.abs() + 1e-38), "gelu({x}) = {found}, not {expected}");
        }
        let found = in_place(&x, 0, |x| scalar().activate(Activation::GeluTanh, x));
        for (found, &x) in found.iter().zip(&x) {
            let (expected, y) = oracle::gelu_tanh(x);
            if y > -87.0 {
                let bound = (6e-7 + 2e-7 * y.abs().min(87.0)) * expected.abs();
                prop_assert!(close(*found, expected, bound + 1e-45), "gelu({x}) = {found}, not {expected}");
            }
            prop_assert!(close(*found, expected, 5e-7 * f64::from(x.abs()) + 1e-38), "gelu({x}) = {found}");
        }
    }

    #[test]
    fn rope_agrees(
        x in prop::collection::vec(any_f32(), 3 * 2 * 30),
        pairs in 1usize..=15,
        interleaved in any::<bool>(),
    ) {
        let table = RopeTable::new(&RopeConfig::new(10_000.0, 2 * pairs), 50).unwrap();
        let layout = if interleaved { RopeLayout::Interleaved } else { RopeLayout::Halves };
        agreed(|kernels| in_place(&x, 0, |x| kernels.rope(&table, layout, 40..43, x, 2, 30)));
    }

    #[test]
    fn half_precision_agrees((x, at) in row(any_f32())) {
        let x = &x[at..];
        for kernels in Kernels::available() {
            let mut halves = vec![f16::ONE; x.len()];
            kernels.f32_to_f16(x, &mut halves);
            for (x, half) in x.iter().zip(&halves) {
                prop_assert_eq!(half.to_bits(), f16::from_f32_const(*x).to_bits());
            }
            let mut back = vec![1.0; x.len()];
            kernels.f16_to_f32(&halves, &mut back);
            for (half, back) in halves.iter().zip(&back) {
                prop_assert_eq!(back.to_bits(), half.to_f32_const().to_bits());
            }
            let brains: Vec<bf16> = x.iter().map(|x| bf16::from_bits((x.to_bits() >> 16) as u16)).collect();
            let mut rounded = vec![bf16::ONE; x.len()];
            kernels.f32_to_bf16(x, &mut rounded);
            for (x, rounded) in x.iter().zip(&rounded) {
                prop_assert_eq!(rounded.to_bits(), bf16::from_f32_const(*x).to_bits());
            }
            kernels.bf16_to_f32(&brains, &mut back);
            for (x, back) in x.iter().zip(&back) {
                prop_assert_eq!(back.to_bits(), x.to_bits() & 0xffff_0000);
            }
        }
    }
}
