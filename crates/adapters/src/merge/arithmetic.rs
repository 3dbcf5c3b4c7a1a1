//! Formulas of the merge methods on deltas of one matrix, row-major, f32 with sums in f64.
//!
//! Deltas are products `scale * B A`: the mean of factors is something else. Sources: papers of
//! [`Method`](super::Method).

/// Cosine above which SLERP interpolates straight.
const PARALLEL: f64 = 0.9995;

/// Sum of weighted deltas.
///
/// # Panics
/// If lengths differ.
pub fn linear(deltas: &[&[f32]], weights: &[f64], out: &mut [f32]) {
    assert_lengths(deltas, weights, out);
    for (i, out) in out.iter_mut().enumerate() {
        *out = deltas.iter().zip(weights).map(|(delta, weight)| weight * f64::from(delta[i])).sum::<f64>()
            as f32;
    }
}

/// Spherical interpolation of two deltas, each as one vector.
///
/// # Panics
/// If lengths differ.
pub fn slerp(a: &[f32], b: &[f32], t: f64, out: &mut [f32]) {
    let dot = |x: &[f32], y: &[f32]| x.iter().zip(y).map(|(&x, &y)| f64::from(x) * f64::from(y)).sum::<f64>();
    linear(&[a, b], &slerp_weights(t, [dot(a, a), dot(a, b), dot(b, b)]), out);
}

/// Weights of two vectors in their spherical interpolation; `dots` are `[aa, ab, bb]`. Straight
/// interpolation if one is zero or the cosine of their angle is beyond ±0.9995.
pub fn slerp_weights(t: f64, dots: [f64; 3]) -> [f64; 2] {
    let [aa, ab, bb] = dots;
    let norms = aa.sqrt() * bb.sqrt();
    let cosine = if norms > 0.0 { (ab / norms).clamp(-1.0, 1.0) } else { 1.0 };
    if cosine.abs() > PARALLEL {
        return [1.0 - t, t];
    }
    let angle = cosine.acos();
    [((1.0 - t) * angle).sin() / angle.sin(), (t * angle).sin() / angle.sin()]
}

/// Entries of a delta that trimming keeps: those of largest magnitude; of equal ones the earlier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trim {
    /// Smallest magnitude that is kept, as bits of an f32.
    magnitude: u32,
    /// Last index with this magnitude that is kept, plus one.
    end: usize,
}

impl Trim {
    /// Keeps the `floor(density * n)` entries of largest magnitude of a whole delta.
    pub fn new(delta: &[f32], density: f64) -> Self {
        let kept = ((density * delta.len() as f64).floor() as usize).min(delta.len());
        if kept == 0 {
            return Self { magnitude: u32::MAX, end: 0 };
        }
        // Magnitudes of finite numbers are ordered as their bits.
        let mut magnitudes: Vec<u32> = delta.iter().map(|&value| bits(value)).collect();
        let (_, &mut magnitude, _) = magnitudes.select_nth_unstable_by(kept - 1, |a, b| b.cmp(a));
        let above = delta.iter().filter(|&&value| bits(value) > magnitude).count();
        let mut equal = delta.iter().enumerate().filter(|(_, value)| bits(**value) == magnitude);
        let end = equal.nth(kept - above - 1).map_or(0, |(index, _)| index + 1);
        Self { magnitude, end }
    }

    /// True if the entry at an index of the delta is kept.
    pub fn keeps(&self, index: usize, value: f32) -> bool {
        let bits = bits(value);
        bits > self.magnitude || bits == self.magnitude && index < self.end
    }
}

fn bits(value: f32) -> u32 {
    value.abs().to_bits()
}

/// Zeroes the entries that are not kept; `first` is the index of `part[0]` in the delta.
pub fn trim(part: &mut [f32], first: usize, kept: &Trim) {
    for (i, value) in part.iter_mut().enumerate() {
        if !kept.keeps(first + i, *value) {
            *value = 0.0;
        }
    }
}

/// DARE: zeroes the entries for which `keeps` is false and divides the rest by `1 - p`; `first` is
/// the index of `part[0]` in the delta.
pub fn drop_and_rescale(part: &mut [f32], first: usize, p: f64, keeps: impl Fn(usize) -> bool) {
    for (i, value) in part.iter_mut().enumerate() {
        *value = if keeps(first + i) { (f64::from(*value) / (1.0 - p)) as f32 } else { 0.0 };
    }
}

/// Sign election and disjoint mean of trimmed deltas, times `lambda`: the sign of the weighted sum
/// is elected, and weighted entries of that sign are divided by their number.
///
/// # Panics
/// If lengths differ.
pub fn elect(trimmed: &[&[f32]], weights: &[f64], lambda: f64, out: &mut [f32]) {
    assert_lengths(trimmed, weights, out);
    for (i, out) in out.iter_mut().enumerate() {
        let entries = || trimmed.iter().zip(weights).map(|(delta, weight)| weight * f64::from(delta[i]));
        let elected: f64 = entries().sum();
        let (mut sum, mut count) = (0.0, 0_u32);
        for entry in entries().filter(|entry| entry * elected > 0.0) {
            sum += entry;
            count += 1;
        }
        *out = if count == 0 { 0.0 } else { (lambda * sum / f64::from(count)) as f32 };
    }
}

/// TIES on whole deltas.
///
/// # Panics
/// If lengths differ.
pub fn ties(deltas: &[&[f32]], weights: &[f64], density: f64, lambda: f64, out: &mut [f32]) {
    let trimmed: Vec<Vec<f32>> = deltas
        .iter()
        .map(|delta| {
            let mut trimmed = delta.to_vec();
            trim(&mut trimmed, 0, &Trim::new(delta, density));
            trimmed
        })
        .collect();
    elect(&trimmed.iter().map(Vec::as_slice).collect::<Vec<_>>(), weights, lambda, out);
}

fn assert_lengths(deltas: &[&[f32]], weights: &[f64], out: &[f32]) {
    assert_eq!(deltas.len(), weights.len(), "a weight per delta");
    assert!(deltas.iter().all(|delta| delta.len() == out.len()), "deltas of one length");
}
