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
