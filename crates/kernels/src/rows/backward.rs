//! Derivatives of row operations, for back-propagation: RMS norm and gated activations.

use crate::Kernels;
use crate::lanes::math::{exp, exp_nonpositive, normal_below};
use crate::lanes::{LANES, Lanes};
use crate::rows::activation::Activation;
use crate::rows::dot::dot;

impl Kernels {
    /// Adds the derivative of [`rms_norm`](Self::rms_norm) with respect to its input to `dx`.
    ///
    /// With `s = 1 / sqrt(mean(x^2) + eps)`: `dx_i += s w_i dy_i - x_i s^3 / n Σ_j w_j dy_j x_j`.
    ///
    /// # Shapes
    /// `x`, `dy`, `dx`: `[rows, n]`, with `n` the length of `weight`.
    ///
    /// # Numerics
    /// Sums in eight lanes as in [`dot`](Self::dot): bit-identical on every instruction set.
    ///
    /// # Panics
    /// If the lengths differ or are not whole rows.
    pub fn add_rms_norm_backward(&self, x: &[f32], weight: &[f32], eps: f32, dy: &[f32], dx: &mut [f32]) {
        assert!(x.len() == dy.len() && x.len() == dx.len(), "rms_norm_backward: the rows differ in length");
        assert!(
            x.is_empty() || (!weight.is_empty() && x.len().is_multiple_of(weight.len())),
            "rms_norm_backward: not whole rows"
        );
        // SAFETY: `self` exists only where the slot's instruction set is present.
        unsafe { (self.slots.add_rms_norm_backward)(x, weight, eps, dy, dx) }
    }

    /// Computes the derivatives of [`gated`](Self::gated), `y = f(gate) up`, in place: `gate`
    /// becomes `dy up f'(gate)`, `up` becomes `dy f(gate)`.
    ///
    /// # Numerics
    /// Bit-identical on every instruction set. Absolute error of `f` and `f'` at most 1e-6 times
    /// `1 + |gate|`. Infinite gates are not supported: their results are unspecified.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn gated_backward(&self, activation: Activation, gate: &mut [f32], up: &mut [f32], dy: &[f32]) {
        assert!(gate.len() == up.len() && up.len() == dy.len(), "gated_backward: the rows differ in length");
        // SAFETY: `self` exists only where the slot's instruction set is present.
        unsafe { (self.slots.gated_backward)(activation, gate, up, dy) }
    }
}

#[inline(always)]
pub(crate) fn add_rms_norm_backward<L: Lanes>(
    l: L,
    x: &[f32],
    weight: &[f32],
    eps: f32,
    dy: &[f32],
    dx: &mut [f32],
) {
    let n = weight.len().max(1);
    let (weight_chunks, weight_tail) = weight.as_chunks::<LANES>();
    for ((x, dy), dx) in x.chunks_exact(n).zip(dy.chunks_exact(n)).zip(dx.chunks_exact_mut(n)) {
        let (x_chunks, x_tail) = x.as_chunks::<LANES>();
        let (dy_chunks, dy_tail) = dy.as_chunks::<LANES>();
        let mut sum = l.zero();
        for ((x, w), dy) in x_chunks.iter().zip(weight_chunks).zip(dy_chunks) {
            sum = l.fma(l.mul(l.load(w), l.load(dy)), l.load(x), sum);
        }
        if !x_tail.is_empty() {
            let product = l.mul(l.load_partial(weight_tail), l.load_partial(dy_tail));
            sum = l.fma(product, l.load_partial(x_tail), sum);
        }
        let scale = 1.0 / (dot(l, x, x) / n as f32 + eps).sqrt();
        let along = l.splat(l.sum(sum) * scale * scale * scale / n as f32);
        let scale = l.splat(scale);
        let (dx_chunks, dx_tail) = dx.as_chunks_mut::<LANES>();
        let step = |x: L::V, w: L::V, dy: L::V, dx: L::V| l.fnma(x, along, l.fma(l.mul(w, dy), scale, dx));
        for (((x, w), dy), dx) in x_chunks.iter().zip(weight_chunks).zip(dy_chunks).zip(dx_chunks) {
            l.store(step(l.load(x), l.load(w), l.load(dy), l.load(dx)), dx);
        }
        if !x_tail.is_empty() {
            let (x, w) = (l.load_partial(x_tail), l.load_partial(weight_tail));
            l.store_partial(step(x, w, l.load_partial(dy_tail), l.load_partial(dx_tail)), dx_tail);
        }
    }
}

/// Activation with its derivative, as a type.
trait Differentiable {
    /// `f(x)` and `f'(x)` of eight values.
    fn of<L: Lanes>(l: L, x: L::V) -> [L::V; 2];
}

struct Silu;
struct GeluErf;
struct GeluTanh;
struct Relu;

/// `x σ(y)` and its derivative `σ + x σ (1 - σ) y'`.
#[inline(always)]
fn sigmoid_times<L: Lanes>(l: L, x: L::V, minus_y: L::V, slope: L::V) -> [L::V; 2] {
    let one = l.splat(1.0);
    let sigmoid = l.div(one, l.add(one, exp(l, minus_y)));
    let product = l.mul(x, sigmoid);
    [product, l.fma(l.mul(product, l.sub(one, sigmoid)), slope, sigmoid)]
}

impl Differentiable for Silu {
    #[inline(always)]
    fn of<L: Lanes>(l: L, x: L::V) -> [L::V; 2] {
        sigmoid_times(l, x, l.sub(l.zero(), x), l.splat(1.0))
    }
}

impl Differentiable for GeluTanh {
    #[inline(always)]
    fn of<L: Lanes>(l: L, x: L::V) -> [L::V; 2] {
        /// `2 sqrt(2 / π)`
        const LINEAR: f32 = 1.595_769;
        /// `2 sqrt(2 / π) 0.044715`
        const CUBIC: f32 = 0.071_354_814;
        let square = l.mul(x, x);
        let minus_factor = l.fnma(square, l.splat(CUBIC), l.splat(-LINEAR));
        let slope = l.fma(square, l.splat(3.0 * CUBIC), l.splat(LINEAR));
        sigmoid_times(l, x, l.mul(x, minus_factor), slope)
    }
}

/// `x Φ(x)` and `Φ(x) + x φ(x)`.
impl Differentiable for GeluErf {
    #[inline(always)]
    fn of<L: Lanes>(l: L, x: L::V) -> [L::V; 2] {
        /// `1 / sqrt(2 π)`
        const DENSITY: f32 = 0.398_942_3;
        let below = normal_below(l, l.abs(x));
        let cdf = l.select_lt(x, l.zero(), below, l.sub(l.splat(1.0), below));
        let density = l.mul(l.splat(DENSITY), exp_nonpositive(l, l.mul(l.mul(x, x), l.splat(-0.5))));
        [l.mul(x, cdf), l.fma(x, density, cdf)]
    }
}

impl Differentiable for Relu {
    #[inline(always)]
    fn of<L: Lanes>(l: L, x: L::V) -> [L::V; 2] {
        [l.max(l.zero(), x), l.select_lt(l.zero(), x, l.splat(1.0), l.zero())]
    }
}

#[inline(always)]
pub(crate) fn gated_backward<L: Lanes>(
    l: L,
    activation: Activation,
    gate: &mut [f32],
    up: &mut [f32],
    dy: &[f32],
) {
    match activation {
        Activation::Silu => backward::<L, Silu>(l, gate, up, dy),
        Activation::GeluErf => backward::<L, GeluErf>(l, gate, up, dy),
        Activation::GeluTanh => backward::<L, GeluTanh>(l, gate, up, dy),
        Activation::Relu => backward::<L, Relu>(l, gate, up, dy),
    }
}

#[inline(always)]
fn backward<L: Lanes, F: Differentiable>(l: L, gate: &mut [f32], up: &mut [f32], dy: &[f32]) {
    let (gate_chunks, gate_tail) = gate.as_chunks_mut::<LANES>();
    let (up_chunks, up_tail) = up.as_chunks_mut::<LANES>();
    let (dy_chunks, dy_tail) = dy.as_chunks::<LANES>();
    for ((gate, up), dy) in gate_chunks.iter_mut().zip(up_chunks).zip(dy_chunks) {
        let ([value, slope], dy) = (F::of(l, l.load(gate)), l.load(dy));
        l.store(l.mul(l.mul(dy, l.load(up)), slope), gate);
        l.store(l.mul(dy, value), up);
    }
    if !gate_tail.is_empty() {
        let ([value, slope], dy) = (F::of(l, l.load_partial(gate_tail)), l.load_partial(dy_tail));
        l.store_partial(l.mul(l.mul(dy, l.load_partial(up_tail)), slope), gate_tail);
        l.store_partial(l.mul(dy, value), up_tail);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
                    let (slope, bound) =
                        if difference.is_nan() { (coarse, 2e-4) } else { (difference, 3e-6) };
                    let expected = f64::from(dy[i]) * f64::from(up[i]) * slope;
                    assert!((f64::from(dgate[i]) - expected).abs() < 4.0 * bound, "{activation:?} of {x}");
                    assert!((dup[i] - dy[i] * at[i]).abs() < 1e-5, "{activation:?} of {x}");
                }
                results.push((dgate, dup));
            }
            assert!(results.iter().all(|result| *result == results[0]), "{activation:?}");
        }
    }
}
