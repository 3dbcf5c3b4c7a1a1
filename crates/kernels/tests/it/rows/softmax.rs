//! Softmax of masked and special rows.

use ruvllm_kernels::Kernels;

#[test]
fn masked_and_special_rows() {
    for kernels in Kernels::available() {
        let softmax = |mut x: Vec<f32>| {
            kernels.softmax(&mut x);
            x
        };
        assert!(softmax(vec![]).is_empty());
        assert_eq!(softmax(vec![3.0]), [1.0]);
        assert_eq!(softmax(vec![f32::NEG_INFINITY; 11]), [0.0; 11]);
        assert_eq!(softmax(vec![f32::NEG_INFINITY, 5.0, f32::NEG_INFINITY]), [0.0, 1.0, 0.0]);
        assert_eq!(softmax(vec![1e4, -1e4]), [1.0, 0.0]);
        assert_eq!(softmax(vec![2.0; 16]), [1.0 / 16.0; 16]);
        assert!(softmax(vec![1.0, f32::NAN, 2.0]).iter().all(|x| x.is_nan()));
        assert!(softmax(vec![1.0, f32::INFINITY, 2.0]).iter().all(|x| x.is_nan()));
    }
}

#[test]
fn log_sum_exp_of_special_rows() {
    for kernels in Kernels::available() {
        assert_eq!(kernels.log_sum_exp(&[]), f32::NEG_INFINITY);
        assert_eq!(kernels.log_sum_exp(&[f32::NEG_INFINITY; 9]), f32::NEG_INFINITY);
        assert_eq!(kernels.log_sum_exp(&[1.0, f32::INFINITY]), f32::INFINITY);
        assert!(kernels.log_sum_exp(&[1.0, f32::NAN]).is_nan());
        assert!(kernels.log_sum_exp(&[f32::INFINITY, f32::NAN]).is_nan());
        assert_eq!(kernels.log_sum_exp(&[-2.5]), -2.5);
        assert!((kernels.log_sum_exp(&[1000.0; 10]) - (1000.0 + 10f32.ln())).abs() < 1e-4);
    }
}
