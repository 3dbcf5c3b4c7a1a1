//! The Walsh-Hadamard transform against its matrix.

use proptest::prelude::*;
use ruvllm_kernels::{Isa, Kernels};

proptest! {
    #![proptest_config(ProptestConfig { cases: 100 * ProptestConfig::default().cases / 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn rows_are_multiplied_with_the_matrix_and_twice_with_one(
        log_dim in 4u32..9,
        x in prop::collection::vec(-100f32..100.0, 512),
    ) {
        let dim = 1 << log_dim;
        let u = 2f64.powi(-24);
        let bound = f64::from(log_dim + 2) * u;
        let mut rows = x.clone();
        Kernels::for_isa(Isa::Scalar).unwrap().hadamard(&mut rows, dim);
        for kernels in Kernels::available() {
            let mut other = x.clone();
            kernels.hadamard(&mut other, dim);
            prop_assert!(other.iter().zip(&rows).all(|(a, b)| a.to_bits() == b.to_bits()), "{}", kernels.isa());
        }
        for (x, y) in x.chunks(dim).zip(rows.chunks(dim)) {
            let norm = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
            for (i, y) in y.iter().enumerate() {
                let sign = |j: usize| if (i & j).count_ones().is_multiple_of(2) { 1.0 } else { -1.0 };
                let sum: f64 = x.iter().enumerate().map(|(j, &x)| sign(j) * f64::from(x)).sum();
                let expected = sum / (dim as f64).sqrt();
                prop_assert!((f64::from(*y) - expected).abs() <= bound * norm, "{y}, not {expected}");
            }
        }
        Kernels::detect().unwrap().hadamard(&mut rows, dim);
        for (x, y) in x.chunks(dim).zip(rows.chunks(dim)) {
            let norm = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>().sqrt();
            for (x, y) in x.iter().zip(y) {
                // The second transform may accumulate the errors of all values of the first.
                let bound = bound * norm * (1.0 + (dim as f64).sqrt());
                prop_assert!((f64::from(*x) - f64::from(*y)).abs() <= bound, "{y}, not {x}");
            }
        }
    }
}

#[test]
fn a_value_that_is_not_finite_reaches_its_row_alone() {
    for kernels in Kernels::available() {
        let mut rows = [1.0; 3 * 32];
        rows[40] = f32::INFINITY;
        kernels.hadamard(&mut rows, 32);
        assert!(rows[32..64].iter().all(|x| !x.is_finite()));
        assert!(rows[..32].iter().chain(&rows[64..]).all(|x| x.is_finite()));
    }
}

#[test]
#[should_panic(expected = "rows of 96 values")]
fn other_lengths_are_refused() {
    Kernels::detect().unwrap().hadamard(&mut [0.0; 96], 96);
}
