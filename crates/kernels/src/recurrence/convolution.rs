//! Causal convolution of each channel with its own few weights.

use crate::Kernels;
use crate::lanes::{LANES, Lanes};

/// Largest number of tokens that an output sees.
pub const MAX_TAPS: usize = 8;

/// Causal depthwise convolution over the tokens of a sequence.
#[derive(Debug, Clone, Copy)]
pub struct Convolution<'a> {
    /// `[taps, channels]`, the weights of the oldest token first.
    pub weights: &'a [f32],
    /// Inputs of the tokens before the present ones, `[taps - 1, channels]`; zeros before the first
    /// token of a sequence.
    pub before: &'a [f32],
    /// Inputs of the present tokens, `[tokens, channels]`.
    pub inputs: &'a [f32],
}

impl Kernels {
    /// Output of one token: `out[c] = Σ_j weights[j][c] * x[token - taps + 1 + j][c]`, where `x`
    /// are the inputs before the present ones and these.
    ///
    /// # Shapes
    /// `out`: `[channels]`; `token` counts the present tokens from 0.
    ///
    /// # Numerics
    /// A chain of `taps` fused multiply-adds, the oldest token first: bit-identical on every
    /// instruction set, and for every cut of a text. Error at most `γ_taps Σ|w_j x_j|`.
    ///
    /// # Panics
    /// If the shapes disagree, or with more than [`MAX_TAPS`] taps.
    pub fn convolve(&self, convolution: &Convolution<'_>, token: usize, out: &mut [f32]) {
        let Convolution { weights, before, inputs } = convolution;
        let channels = out.len();
        let taps = weights.len() / channels.max(1);
        assert!(
            (1..=MAX_TAPS).contains(&taps)
                && weights.len() == taps * channels
                && before.len() == weights.len() - channels
                && inputs.len().is_multiple_of(channels)
                && token < inputs.len() / channels,
            "convolve: token {token} of {} inputs, {} before, {} weights, {channels} channels",
            inputs.len(),
            before.len(),
            weights.len()
        );
        // SAFETY: `self` exists only where the slot's instruction set is present.
        unsafe { (self.slots.convolve)(convolution, token, out) }
    }
}

#[inline(always)]
pub(crate) fn convolve<L: Lanes>(l: L, convolution: &Convolution<'_>, token: usize, out: &mut [f32]) {
    let Convolution { weights, before, inputs } = convolution;
    let channels = out.len();
    let taps = weights.len() / channels;
    let mut rows: [&[f32]; MAX_TAPS] = [&[]; MAX_TAPS];
    for (tap, row) in rows[..taps].iter_mut().enumerate() {
        let at = token + tap;
        *row = match at.checked_sub(taps - 1) {
            Some(present) => &inputs[present * channels..][..channels],
            None => &before[at * channels..][..channels],
        };
    }
    let (chunks, tail) = out.as_chunks_mut::<LANES>();
    for (c, out) in chunks.iter_mut().enumerate() {
        let mut sum = l.zero();
        for (tap, row) in rows[..taps].iter().enumerate() {
            let weights = &weights[tap * channels..][..channels].as_chunks::<LANES>().0[c];
            sum = l.fma(l.load(weights), l.load(&row.as_chunks::<LANES>().0[c]), sum);
        }
        l.store(sum, out);
    }
    if !tail.is_empty() {
        let first = channels - tail.len();
        let mut sum = l.zero();
        for (tap, row) in rows[..taps].iter().enumerate() {
            let weights = &weights[tap * channels..][first..channels];
            sum = l.fma(l.load_partial(weights), l.load_partial(&row[first..]), sum);
        }
        l.store_partial(sum, tail);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Isa;

    /// Outputs of all tokens.
    fn convolve_all(kernels: &Kernels, convolution: &Convolution<'_>, channels: usize) -> Vec<f32> {
        let mut out = vec![0.0; convolution.inputs.len()];
        for (token, out) in out.chunks_exact_mut(channels).enumerate() {
            kernels.convolve(convolution, token, out);
        }
        out
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 100 * ProptestConfig::default().cases / 256, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn outputs_are_weighted_sums_of_the_last_inputs(
            (channels, taps, tokens) in (1usize..40, 1usize..=MAX_TAPS, 1usize..12),
            values in prop::collection::vec(-10f32..10.0, 40 * (2 * MAX_TAPS + 12)),
        ) {
            let (weights, rest) = values.split_at(taps * channels);
            let (before, rest) = rest.split_at((taps - 1) * channels);
            let convolution = Convolution { weights, before, inputs: &rest[..tokens * channels] };
            let reference = convolve_all(&Kernels::for_isa(Isa::Scalar).unwrap(), &convolution, channels);
            let all = [before, convolution.inputs].concat();
            for (i, found) in reference.iter().enumerate() {
                let (token, c) = (i / channels, i % channels);
                let terms = (0..taps).map(|j| {
                    f64::from(weights[j * channels + c]) * f64::from(all[(token + j) * channels + c])
                });
                let bound = 1e-6 * terms.clone().map(f64::abs).sum::<f64>();
                prop_assert!((f64::from(*found) - terms.sum::<f64>()).abs() <= bound);
            }
            for kernels in Kernels::available() {
                let found = convolve_all(&kernels, &convolution, channels);
                prop_assert!(found.iter().zip(&reference).all(|(a, b)| a.to_bits() == b.to_bits()));
            }
            // Cut anywhere, the second part sees the end of the first.
            let cut = tokens / 2;
            let (first, second) = convolution.inputs.split_at(cut * channels);
            let seen = [before, first].concat();
            let parts = [
                Convolution { inputs: first, ..convolution },
                Convolution { before: &seen[cut * channels..], inputs: second, ..convolution },
            ];
            let kernels = Kernels::detect().unwrap();
            let found = parts.iter().flat_map(|part| convolve_all(&kernels, part, channels));
            prop_assert!(found.eq(reference.iter().copied()));
        }
    }

    #[test]
    #[should_panic(expected = "convolve: token 1 of 3 inputs")]
    fn other_shapes_are_refused() {
        let convolution = Convolution { weights: &[1.0; 6], before: &[0.0; 3], inputs: &[1.0; 3] };
        Kernels::detect().unwrap().convolve(&convolution, 1, &mut [0.0; 3]);
    }
}
