//! Operations by definition: in f64, or in f32 with their roundings.

fn wide(x: &[f32]) -> impl Iterator<Item = f64> + '_ {
    x.iter().map(|&x| f64::from(x))
}

/// Product and sum in f32, `a * b + c`, rounded once.
///
/// In f64 the product is exact. The sum is rounded to odd (Boldo and Melquiond, "Emulation of FMA
/// and correctly rounded sums", 2008), because `f32::mul_add` is not correctly rounded everywhere.
pub(crate) fn fma(a: f32, b: f32, c: f32) -> f32 {
    let (product, c) = (f64::from(a) * f64::from(b), f64::from(c));
    let sum = product + c;
    let part = sum - product;
    let error = (product - (sum - part)) + (c - part);
    let is_exact = error == 0.0 || !sum.is_finite();
    if is_exact || sum.to_bits() % 2 == 1 {
        return sum as f32;
    }
    (if error > 0.0 { sum.next_up() } else { sum.next_down() }) as f32
}

/// Dot product, and the sum of the magnitudes of its terms.
pub(crate) fn dot(x: &[f32], y: &[f32]) -> (f64, f64) {
    wide(x)
        .zip(wide(y))
        .map(|(x, y)| x * y)
        .fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()))
}

/// Bound `γ_n` of the relative error of `n` roundings in f32.
///
/// Higham, Accuracy and Stability, 2nd ed., section 3.1.
pub(crate) fn gamma(n: usize) -> f64 {
    let u = 2f64.powi(-24);
    n as f64 * u / (1.0 - n as f64 * u)
}

pub(crate) fn rms_norm(x: &[f32], weight: &[f32], eps: f32) -> Vec<f64> {
    let mean = wide(x).map(|x| x * x).sum::<f64>() / x.len() as f64;
    let scale = 1.0 / (mean + f64::from(eps)).sqrt();
    wide(x).zip(wide(weight)).map(|(x, w)| x * scale * w).collect()
}

pub(crate) fn softmax(x: &[f32]) -> Vec<f64> {
    let largest = wide(x).fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = wide(x).map(|x| (x - largest).exp()).collect();
    let sum: f64 = weights.iter().sum();
    weights.iter().map(|w| w / sum).collect()
}

pub(crate) fn log_sum_exp(x: &[f32]) -> f64 {
    let largest = wide(x).fold(f64::NEG_INFINITY, f64::max);
    if largest == f64::NEG_INFINITY {
        return largest;
    }
    largest + wide(x).map(|x| (x - largest).exp()).sum::<f64>().ln()
}

pub(crate) fn silu(x: f32) -> f64 {
    f64::from(x) / (1.0 + (-f64::from(x)).exp())
}

pub(crate) fn layer_norm(x: &[f32], weight: &[f32], bias: &[f32], eps: f32) -> Vec<f64> {
    let mean = wide(x).sum::<f64>() / x.len() as f64;
    let variance = wide(x).map(|x| (x - mean) * (x - mean)).sum::<f64>() / x.len() as f64;
    let scale = 1.0 / (variance + f64::from(eps)).sqrt();
    wide(x).zip(wide(weight)).zip(wide(bias)).map(|((x, w), b)| (x - mean) * scale * w + b).collect()
}

/// Factor of `x` in the tanh form of GELU, `1 / (1 + e^-y)`, and `y`.
pub(crate) fn gelu_tanh(x: f32) -> (f64, f64) {
    let x = f64::from(x);
    let y = 2.0 * (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x * x * x);
    (x / (1.0 + (-y).exp()), y)
}

/// Exact GELU `x Φ(x)`: tail of `Φ` by its power series (Abramowitz and Stegun, 26.2.10) near 0, by
/// its continued fraction (26.2.14) beyond.
pub(crate) fn gelu_erf(x: f32) -> f64 {
    let size = f64::from(x.abs());
    let density = (-size * size / 2.0).exp() / std::f64::consts::TAU.sqrt();
    let tail = if size > 3.0 {
        density / (1..=200).rev().fold(size, |tail, k| size + f64::from(k) / tail)
    } else {
        let terms = (1..80).scan(size, |term, k| {
            *term *= size * size / f64::from(2 * k + 1);
            Some(*term)
        });
        0.5 - density * (size + terms.sum::<f64>())
    };
    f64::from(x) * if x < 0.0 { tail } else { 1.0 - tail }
}
