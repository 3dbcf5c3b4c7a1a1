//! Norms of single rows.

use ruvllm_kernels::Kernels;
use ruvllm_kernels::rows::Norm;

#[test]
fn rows_are_independent() {
    for kernels in Kernels::available() {
        let mut out = [0.0; 6];
        kernels.rms_norm(&[3.0, 4.0, 0.0, 0.0, f32::NAN, 1.0], &[1.0, 2.0], 0.0, &mut out);
        let rms = 12.5f32.sqrt();
        assert!((out[0] - 3.0 / rms).abs() < 1e-6 && (out[1] - 8.0 / rms).abs() < 1e-6);
        assert!(out[2].is_nan(), "0 / 0 without eps");
        assert!(out[4].is_nan() && out[5].is_nan());
        kernels.rms_norm(&[0.0, 0.0], &[1.0, 1.0], 1e-6, &mut out[..2]);
        assert_eq!(out[..2], [0.0, 0.0]);
        kernels.rms_norm(&[], &[], 1e-6, &mut []);
    }
}

#[test]
fn a_constant_row_has_no_variance() {
    for kernels in Kernels::available() {
        for n in [1, 7, 8, 9, 4096] {
            let norm = Norm::Layer { weight: &vec![3.0; n], bias: Some(&vec![0.25; n]) };
            let mut out = vec![1.0; n];
            kernels.norm(norm, 1e-5, &vec![1024.0; n], &mut out);
            assert_eq!(out, vec![0.25; n]);
        }
    }
}

#[test]
fn the_plus_one_form_has_the_bits_of_the_weights_plus_one() {
    let x: Vec<f32> = (0..21).map(|i| (i as f32 * 0.7).sin()).collect();
    let weight: Vec<f32> = (0..21).map(|i| (i as f32 * 1.3).cos() * 0.2).collect();
    let raised: Vec<f32> = weight.iter().map(|w| 1.0 + w).collect();
    for kernels in Kernels::available() {
        let (mut plain, mut plus_one) = (vec![0.0; 21], vec![0.0; 21]);
        kernels.norm(Norm::Rms { weight: &raised }, 1e-6, &x, &mut plain);
        kernels.norm(Norm::RmsPlusOne { weight: &weight }, 1e-6, &x, &mut plus_one);
        assert_eq!(plain, plus_one);
    }
}

#[test]
#[should_panic(expected = "not whole rows")]
fn partial_rows_are_refused() {
    Kernels::available()[0].rms_norm(&[1.0; 5], &[1.0; 2], 0.0, &mut [0.0; 5]);
}

#[test]
#[should_panic(expected = "weight and bias differ")]
fn a_bias_of_another_length_is_refused() {
    let norm = Norm::Layer { weight: &[1.0; 2], bias: Some(&[0.0; 3]) };
    Kernels::available()[0].norm(norm, 0.0, &[1.0; 4], &mut [0.0; 4]);
}
