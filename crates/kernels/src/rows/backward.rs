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
