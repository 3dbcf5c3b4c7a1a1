//! Short convolutions against their formula.

use proptest::prelude::*;
use ruvllm_kernels::recurrence::{Convolution, MAX_TAPS};
use ruvllm_kernels::{Isa, Kernels};

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
