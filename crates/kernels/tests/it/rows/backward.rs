//! Derivatives against differences of what they derive.

use ruvllm_kernels::Kernels;
use ruvllm_kernels::rows::Activation;

fn values(seed: u32, n: usize) -> Vec<f32> {
    let mix =
        |i: usize| (i as u32 ^ seed).wrapping_mul(0x9e37_79b9).rotate_left(13).wrapping_mul(0x85eb_ca6b);
    (0..n).map(|i| (mix(i) >> 8) as f32 / (1 << 22) as f32 - 2.0).collect()
}

/// `Σ dy y` of a norm in f64.
fn norm_loss(x: &[f64], weight: &[f32], eps: f64, dy: &[f32]) -> f64 {
    let scale = 1.0 / (x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64 + eps).sqrt();
    x.iter().zip(weight).zip(dy).map(|((x, &w), &dy)| x * scale * f64::from(w) * f64::from(dy)).sum()
}

#[test]
fn norm_derivatives_are_differences_of_the_norm() {
    for n in [1, 7, 8, 21, 64] {
        let (x, weight, dy) = (values(1, 2 * n), values(2, n), values(3, 2 * n));
        let mut results = Vec::new();
        for kernels in Kernels::available() {
            let mut dx = vec![0.5; 2 * n];
            kernels.add_rms_norm_backward(&x, &weight, 1e-3, &dy, &mut dx);
            results.push(dx);
        }
        assert!(results.iter().all(|dx| *dx == results[0]), "n {n}: instruction sets differ");
        for i in 0..2 * n {
            let (row, at) = (i / n * n..(i / n + 1) * n, i % n);
            let loss = |step: f64| {
                let mut x: Vec<f64> = x[row.clone()].iter().map(|&x| f64::from(x)).collect();
                x[at] += step;
                norm_loss(&x, &weight, f64::from(1e-3f32), &dy[row.clone()])
            };
            let expected = (loss(1e-5) - loss(-1e-5)) / 2e-5;
            let found = f64::from(results[0][i]) - 0.5;
            assert!(
                (found - expected).abs() < 1e-5 * (1.0 + expected.abs()),
                "n {n}, {i}: {found} {expected}"
            );
        }
    }
}

#[test]
fn activation_derivatives_are_differences_of_the_activation() {
    let value = |activation, x: f64| match activation {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::GeluTanh => {
            let y = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x * x * x);
            x / 2.0 * (1.0 + y.tanh())
        }
        Activation::Relu => x.max(0.0),
        // The integral of `Φ + x φ` is checked instead of an `erf` of our own.
        Activation::GeluErf => f64::NAN,
    };
    for activation in [Activation::Silu, Activation::GeluTanh, Activation::Relu, Activation::GeluErf] {
        let (gate, up, dy) = (values(4, 45), values(5, 45), values(6, 45));
        let mut results = Vec::new();
        for kernels in Kernels::available() {
            let (mut dgate, mut dup) = (gate.clone(), up.clone());
            kernels.gated_backward(activation, &mut dgate, &mut dup, &dy);
            let forward = |gate: &[f32]| {
                let mut gate = gate.to_vec();
                kernels.activate(activation, &mut gate);
                gate
            };
            let (low, high): (Vec<f32>, Vec<f32>) = gate.iter().map(|x| (x - 0.01, x + 0.01)).unzip();
            let (low, at, high) = (forward(&low), forward(&gate), forward(&high));
            for i in 0..45 {
                let x = f64::from(gate[i]);
                let difference = (value(activation, x + 1e-6) - value(activation, x - 1e-6)) / 2e-6;
                let coarse = f64::from(high[i] - low[i]) / 0.02;
                let (slope, bound) = if difference.is_nan() { (coarse, 2e-4) } else { (difference, 3e-6) };
                let expected = f64::from(dy[i]) * f64::from(up[i]) * slope;
                assert!((f64::from(dgate[i]) - expected).abs() < 4.0 * bound, "{activation:?} of {x}");
                assert!((dup[i] - dy[i] * at[i]).abs() < 1e-5, "{activation:?} of {x}");
            }
            results.push((dgate, dup));
        }
        assert!(results.iter().all(|result| *result == results[0]), "{activation:?}");
    }
}
