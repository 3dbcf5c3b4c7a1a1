//! Element-wise activation functions and their gated forms (SwiGLU and others).

use crate::Kernels;
use crate::lanes::math::{exp, normal_below};
use crate::lanes::{LANES, Lanes};

/// Element-wise activation function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Activation {
    /// SiLU (swish), `x / (1 + e^-x)`: Elfwing et al., arXiv 1702.03118; Ramachandran et al., arXiv
    /// 1710.05941.
    ///
    /// Relative error at most 6e-7 for `x >= -87`; below that the true value is smaller than
    /// 1.5e-36 and the result may be `-0`.
    Silu,
    /// Exact GELU, `x Φ(x)`, `Φ` the normal CDF: Hendrycks and Gimpel, arXiv 1606.08415.
    ///
    /// Relative error at most 8e-7 for `x >= -13`; below that the true value is smaller than 1e-36
    /// and the result may be `-0`.
    GeluErf,
    /// GELU by tanh, `x / 2 (1 + tanh(sqrt(2 / π) (x + 0.044715 x^3)))`: the same paper.
    ///
    /// Relative error at most `6e-7 + 2e-7 |y|` with `y = 2 sqrt(2 / π) (x + 0.044715 x^3)`, for
    /// `y >= -87`; below that the result may be `-0`. Absolute error at most 5e-7 times `|x|`.
    GeluTanh,
    /// `ReLU`, `max(x, 0)`; exact.
    Relu,
}

impl Kernels {
    /// Applies `activation` to each value.
    ///
    /// # Numerics
    /// Errors: see [`Activation`]. `-inf` gives a zero, `+inf` gives `+inf`, NaN gives NaN.
    pub fn activate(&self, activation: Activation, x: &mut [f32]) {
        // SAFETY: `self` exists only where the slot's instruction set is present.
        unsafe { (self.slots.activate)(activation, x) }
    }

    /// Computes `gate = activation(gate) * up`, element by element (gated feed-forward network).
    ///
    /// # Numerics
    /// As [`activate`](Self::activate), with one more rounding.
    ///
    /// # Panics
    /// If the lengths differ.
    ///
    /// # Source
    /// Shazeer, "GLU Variants Improve Transformer", arXiv 2002.05202.
    pub fn gated(&self, activation: Activation, gate: &mut [f32], up: &[f32]) {
        assert_eq!(gate.len(), up.len(), "gated: the rows differ in length");
        // SAFETY: `self` exists only where the slot's instruction set is present.
        unsafe { (self.slots.gated)(activation, gate, up) }
    }

    /// Computes `gate = (up' + 1) * gate' * sigmoid(alpha * gate')` with `gate' = min(gate, limit)`
    /// and `up' = up` within `limit` of 0, element by element.
    ///
    /// # Numerics
    /// Relative error as [`Activation::Silu`], with three more roundings. NaN gives NaN.
    ///
    /// # Panics
    /// If the lengths differ.
    ///
    /// # Source
    /// The experts of gpt-oss, arXiv 2508.10925, with `alpha` 1.702 and `limit` 7.
    pub fn clamped_swiglu(&self, alpha: f32, limit: f32, gate: &mut [f32], up: &[f32]) {
        assert_eq!(gate.len(), up.len(), "clamped_swiglu: the rows differ in length");
        // SAFETY: `self` exists only where the slot's instruction set is present.
        unsafe { (self.slots.clamped_swiglu)(alpha, limit, gate, up) }
    }

    /// Computes `x = x * sigmoid(gate)`, element by element (gated output of attention).
    ///
    /// # Numerics
    /// Relative error as [`Activation::Silu`], with one more rounding. NaN gives NaN.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn sigmoid_mul(&self, x: &mut [f32], gate: &[f32]) {
        assert_eq!(x.len(), gate.len(), "sigmoid_mul: the rows differ in length");
        // SAFETY: `self` exists only where the slot's instruction set is present.
        unsafe { (self.slots.sigmoid_mul)(x, gate) }
    }

    /// [`activate`](Self::activate) with [`Activation::Silu`].
    pub fn silu(&self, x: &mut [f32]) {
        self.activate(Activation::Silu, x);
    }

    /// [`gated`](Self::gated) with [`Activation::Silu`], as in SwiGLU.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn silu_mul(&self, gate: &mut [f32], up: &[f32]) {
        self.gated(Activation::Silu, gate, up);
    }
}

/// Activation as a type.
///
/// Not a closure: code called by a closure is compiled for the instruction set only if the compiler
/// inlines it.
trait Function {
    /// Applies the function to eight values.
    fn of<L: Lanes>(l: L, x: L::V) -> L::V;
}

struct Silu;
struct GeluErf;
struct GeluTanh;
struct Relu;

/// SiLU of eight values. The clamp replaces `-inf / inf` by `-MAX / inf`.
#[inline(always)]
pub(crate) fn silu_lanes<L: Lanes>(l: L, x: L::V) -> L::V {
    let x = l.max(l.splat(f32::MIN), x);
    l.div(x, l.add(l.splat(1.0), exp(l, l.sub(l.zero(), x))))
}

impl Function for Silu {
    #[inline(always)]
    fn of<L: Lanes>(l: L, x: L::V) -> L::V {
        silu_lanes(l, x)
    }
}

/// The clamp replaces `-inf * 0` by `-MAX * 0`.
impl Function for GeluErf {
    #[inline(always)]
    fn of<L: Lanes>(l: L, x: L::V) -> L::V {
        let x = l.max(l.splat(f32::MIN), x);
        let below = normal_below(l, l.abs(x));
        l.mul(x, l.select_lt(x, l.zero(), below, l.sub(l.splat(1.0), below)))
    }
}

/// Uses `(1 + tanh(y / 2)) / 2 = 1 / (1 + e^-y)`, without cancellation for negative `y`.
impl Function for GeluTanh {
    #[inline(always)]
    fn of<L: Lanes>(l: L, x: L::V) -> L::V {
        /// `-2 sqrt(2 / π)`
        const LINEAR: f32 = -1.595_769;
        /// `-2 sqrt(2 / π) 0.044715`
        const CUBIC: f32 = -0.071_354_814;
        let x = l.max(l.splat(f32::MIN), x);
        let factor = l.fma(l.mul(x, x), l.splat(CUBIC), l.splat(LINEAR));
        l.div(x, l.add(l.splat(1.0), exp(l, l.mul(x, factor))))
    }
}

impl Function for Relu {
    #[inline(always)]
    fn of<L: Lanes>(l: L, x: L::V) -> L::V {
        l.max(l.zero(), x)
    }
}

#[inline(always)]
pub(crate) fn activate<L: Lanes>(l: L, activation: Activation, x: &mut [f32]) {
    match activation {
        Activation::Silu => map::<L, Silu>(l, x),
        Activation::GeluErf => map::<L, GeluErf>(l, x),
        Activation::GeluTanh => map::<L, GeluTanh>(l, x),
        Activation::Relu => map::<L, Relu>(l, x),
    }
}

#[inline(always)]
pub(crate) fn gated<L: Lanes>(l: L, activation: Activation, gate: &mut [f32], up: &[f32]) {
    match activation {
        Activation::Silu => map_times::<L, Silu>(l, gate, up),
        Activation::GeluErf => map_times::<L, GeluErf>(l, gate, up),
        Activation::GeluTanh => map_times::<L, GeluTanh>(l, gate, up),
        Activation::Relu => map_times::<L, Relu>(l, gate, up),
    }
}

#[inline(always)]
pub(crate) fn clamped_swiglu<L: Lanes>(l: L, alpha: f32, limit: f32, gate: &mut [f32], up: &[f32]) {
    let (gate_chunks, gate_tail) = gate.as_chunks_mut::<LANES>();
    let (up_chunks, up_tail) = up.as_chunks::<LANES>();
    for (gate, up) in gate_chunks.iter_mut().zip(up_chunks) {
        l.store(clamped_lanes(l, alpha, limit, l.load(gate), l.load(up)), gate);
    }
    if !gate_tail.is_empty() {
        let (gate, up) = (l.load_partial(gate_tail), l.load_partial(up_tail));
        l.store_partial(clamped_lanes(l, alpha, limit, gate, up), gate_tail);
    }
}

#[inline(always)]
pub(crate) fn sigmoid_mul<L: Lanes>(l: L, x: &mut [f32], gate: &[f32]) {
    let (x_chunks, x_tail) = x.as_chunks_mut::<LANES>();
    let (gate_chunks, gate_tail) = gate.as_chunks::<LANES>();
    for (x, gate) in x_chunks.iter_mut().zip(gate_chunks) {
        l.store(sigmoid_lanes(l, l.load(x), l.load(gate)), x);
    }
    if !x_tail.is_empty() {
        let product = sigmoid_lanes(l, l.load_partial(x_tail), l.load_partial(gate_tail));
        l.store_partial(product, x_tail);
    }
}

/// `x / (1 + e^-gate)` of eight values.
#[inline(always)]
fn sigmoid_lanes<L: Lanes>(l: L, x: L::V, gate: L::V) -> L::V {
    l.div(x, l.add(l.splat(1.0), exp(l, l.sub(l.zero(), gate))))
}

/// Eight values; the clamp of the gate from below is as in [`silu_lanes`].
#[inline(always)]
fn clamped_lanes<L: Lanes>(l: L, alpha: f32, limit: f32, gate: L::V, up: L::V) -> L::V {
    let gate = l.max(l.splat(f32::MIN), l.min(l.splat(limit), gate));
    let up = l.max(l.splat(-limit), l.min(l.splat(limit), up));
    let grown = exp(l, l.sub(l.zero(), l.mul(l.splat(alpha), gate)));
    l.mul(l.div(gate, l.add(l.splat(1.0), grown)), l.add(up, l.splat(1.0)))
}

/// `x = f(x)`.
#[inline(always)]
fn map<L: Lanes, F: Function>(l: L, x: &mut [f32]) {
    let (chunks, tail) = x.as_chunks_mut::<LANES>();
    for x in chunks {
        l.store(F::of(l, l.load(x)), x);
    }
    if !tail.is_empty() {
        l.store_partial(F::of(l, l.load_partial(tail)), tail);
    }
}

/// `gate = f(gate) * up`.
#[inline(always)]
fn map_times<L: Lanes, F: Function>(l: L, gate: &mut [f32], up: &[f32]) {
    let (gate_chunks, gate_tail) = gate.as_chunks_mut::<LANES>();
    let (up_chunks, up_tail) = up.as_chunks::<LANES>();
    for (gate, up) in gate_chunks.iter_mut().zip(up_chunks) {
        l.store(l.mul(F::of(l, l.load(gate)), l.load(up)), gate);
    }
    if !gate_tail.is_empty() {
        let product = l.mul(F::of(l, l.load_partial(gate_tail)), l.load_partial(up_tail));
        l.store_partial(product, gate_tail);
    }
}
