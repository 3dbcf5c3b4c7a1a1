//! References of the categories: plain loops in `f64`, with a bound of the error of each value.
//!
//! Inputs are the exact values of the tensors that a kernel gets. A bound is what a kernel that
//! computes in `f32`, in any order of its sums, and rounds its results to the type of the output
//! stays within; each function says how it is made.

use super::number::{BLOCK, extreme};
use crate::manifest::DType;

/// Largest relative error of one rounding to `f32`.
pub(super) const ROUNDING: f64 = 1.0 / (1 << 24) as f64;

/// Value of an output, and the largest error that is accepted. A NaN is accepted for a NaN alone,
/// anything for an infinite bound.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Expected {
    pub(super) value: f64,
    pub(super) bound: f64,
}

impl Expected {
    /// A value computed in `f32`, with an error of `error` before it is rounded to the type.
    ///
    /// Halves get a whole unit in the last place (2^-10 of the value, 2^-24 near 0): truncation and
    /// one more rounding are accepted. `f32` gets the smallest normal number for results that are
    /// flushed to 0.
    pub(super) fn new(dtype: DType, value: f64, error: f64) -> Self {
        let of_type = match dtype {
            DType::F16 => 2f64.powi(-10) * value.abs() + 2f64.powi(-24),
            _ => f64::from(f32::MIN_POSITIVE),
        };
        Self { value, bound: error + of_type }
    }

    pub(super) fn exact(value: f64) -> Self {
        Self { value, bound: 0.0 }
    }

    /// True if an output of a kernel is accepted.
    pub(super) fn accepts(&self, found: f64) -> bool {
        if self.bound == f64::INFINITY {
            return true;
        }
        if self.value.is_nan() {
            return found.is_nan();
        }
        (found - self.value).abs() <= self.bound
    }
}

/// `x / sqrt(mean(x^2) + eps) * weight`, row by row.
///
/// Bound: the sum of `dim` squares in any order is within `dim + 1` roundings, of which the root
/// takes half; mean, sum with `eps`, root, quotient and two products add at most 8.
pub(super) fn rms_norm(dtype: DType, x: &[f64], weight: &[f64], eps: f64) -> Vec<Expected> {
    let dim = weight.len();
    let relative = ROUNDING * (dim as f64 / 2.0 + 8.0);
    let row = |row: &[f64]| {
        let mean = row.iter().map(|x| x * x).sum::<f64>() / dim as f64;
        let scale = 1.0 / (mean + eps).sqrt();
        let value = |(x, weight): (&f64, &f64)| {
            let value = x * scale * weight;
            Expected::new(dtype, value, relative * value.abs())
        };
        row.iter().zip(weight).map(value).collect::<Vec<_>>()
    };
    x.chunks_exact(dim).flat_map(row).collect()
}

/// `gate / (1 + exp(-gate)) * up`.
///
/// Bound: an exponential by a power of 2 rounds its argument, which costs `|gate|` roundings; 16
/// more for its polynomial, sum, quotient and product. Implementations limit the argument so that
/// the exponential stays finite: results below 2^-100 of `up` count as 0.
pub(super) fn swiglu(dtype: DType, gate: &[f64], up: &[f64]) -> Vec<Expected> {
    let value = |(gate, up): (&f64, &f64)| {
        let value = gate / (1.0 + (-gate).exp()) * up;
        let relative = ROUNDING * (16.0 + 2.0 * gate.abs());
        Expected::new(dtype, value, relative * value.abs() + 2f64.powi(-100) * up.abs())
    };
    gate.iter().zip(up).map(value).collect()
}

/// Sizes of a call of `rope`.
#[derive(Debug, Clone, Copy)]
pub(super) struct RopeShape {
    pub(super) heads: usize,
    pub(super) dim: usize,
    pub(super) pairs: usize,
    pub(super) interleaved: bool,
}

/// Rotary position embedding of the first `2 * pairs` dimensions of each head: of the pair `(a,
/// b)`, `(a cos - b sin, b cos + a sin)`. Other dimensions are copies.
///
/// Bound: two products and a sum, 4 roundings of the sum of magnitudes (the terms may cancel), none
/// for a copy. For `q8_0`, three quarters of the step of the block that results, 2^-10 of the value
/// for the scale's rounding to a half, and the spacing of halves near 0.
pub(super) fn rope(dtype: DType, shape: RopeShape, x: &[f64], cos: &[f64], sin: &[f64]) -> Vec<Expected> {
    let RopeShape { heads, dim, pairs, interleaved } = shape;
    let mut expected = Vec::with_capacity(x.len());
    for (index, head) in x.chunks_exact(dim).enumerate() {
        let at = index / heads * pairs;
        let (cos, sin) = (&cos[at..at + pairs], &sin[at..at + pairs]);
        let mut rotated: Vec<Expected> = head.iter().map(|&value| Expected::exact(value)).collect();
        for (pair, (cos, sin)) in cos.iter().zip(sin).enumerate() {
            let (j, k) = if interleaved { (2 * pair, 2 * pair + 1) } else { (pair, pair + pairs) };
            let (a, b) = (head[j], head[k]);
            let error = |first: f64, second: f64| 4.0 * ROUNDING * (first.abs() + second.abs());
            rotated[j] = Expected::new(dtype, a * cos - b * sin, error(a * cos, b * sin));
            rotated[k] = Expected::new(dtype, b * cos + a * sin, error(b * cos, a * sin));
        }
        expected.extend(rotated);
    }
    if dtype == DType::Q8_0 {
        for block in expected.chunks_mut(BLOCK) {
            let most = block.iter().fold(0.0, |most: f64, expected| most.max(expected.value.abs()));
            for Expected { value, bound } in block {
                *bound += 0.75 * most / 127.0 + 2f64.powi(-10) * value.abs() + 127.0 * 2f64.powi(-24);
            }
        }
    }
    expected
}

/// Values in quant blocks of `q8_0` (scale `max|x| / 127`) or `q4_0` (scale `x / -8` of the value
/// of the largest magnitude; the other end has the quant 7).
///
/// Bound: half a step, which is the nearest quant, with 1/64 of a step for ties; 2^-10 of the value
/// for the scale's rounding to a half, and the spacing of halves near 0. A block of zeros is exact.
pub(super) fn kv_pack(dtype: DType, x: &[f64]) -> Vec<Expected> {
    let block = |block: &[f64]| {
        let (step, least, most) = match dtype {
            DType::Q8_0 => (extreme(block).abs() / 127.0, -127.0, 127.0),
            _ => (extreme(block) / -8.0, -8.0, 7.0),
        };
        let ends = (step * least, step * most);
        let value = |&x: &f64| {
            if step == 0.0 {
                return Expected::exact(0.0);
            }
            let value = x.clamp(ends.0.min(ends.1), ends.0.max(ends.1));
            let step = step.abs();
            let of_scale = 2f64.powi(-10) * value.abs() + most * 2f64.powi(-24);
            Expected { value, bound: step * (0.5 + 1.0 / 64.0) + of_scale }
        };
        block.iter().map(value).collect::<Vec<_>>()
    };
    x.chunks(BLOCK).flat_map(block).collect()
}

/// Values of quant blocks. Exact: a product of a half and an integer of 8 bits is an `f32`.
pub(super) fn kv_unpack(values: &[f64]) -> Vec<Expected> {
    values.iter().map(|&value| Expected::exact(value)).collect()
}

/// Sizes and scale of a call of `lora_apply`.
#[derive(Debug, Clone, Copy)]
pub(super) struct LoraShape {
    pub(super) inputs: usize,
    pub(super) rank: usize,
    pub(super) outputs: usize,
    pub(super) scale: f64,
}

/// `base + scale * (x A^T) B^T`.
///
/// Bound: `inputs + rank + 4` roundings of the sum of all magnitudes, in any order of both sums.
pub(super) fn lora_apply(shape: LoraShape, x: &[f64], a: &[f64], b: &[f64], base: &[f64]) -> Vec<Expected> {
    let LoraShape { inputs, rank, outputs, scale } = shape;
    let relative = ROUNDING * (inputs + rank + 4) as f64;
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let size = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| (a * b).abs()).sum::<f64>();
    let row = |(x, base): (&[f64], &[f64])| {
        let inner: Vec<f64> = a.chunks_exact(inputs).map(|a| dot(x, a)).collect();
        let sizes: Vec<f64> = a.chunks_exact(inputs).map(|a| size(x, a)).collect();
        let value = |(b, base): (&[f64], &f64)| {
            let error = relative * (base.abs() + scale.abs() * size(&sizes, b));
            Expected::new(DType::F32, base + scale * dot(&inner, b), error)
        };
        b.chunks_exact(rank).zip(base).map(value).collect::<Vec<_>>()
    };
    x.chunks_exact(inputs).zip(base.chunks_exact(outputs)).flat_map(row).collect()
}
