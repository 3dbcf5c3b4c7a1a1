//! Largest values: ties and NaN.

use ruvllm_kernels::Kernels;

#[test]
fn argmax_takes_the_first_and_skips_nan() {
    for kernels in Kernels::available() {
        assert_eq!(kernels.argmax(&[]), None);
        assert_eq!(kernels.argmax(&[f32::NAN; 20]), None);
        assert_eq!(kernels.argmax(&[f32::NAN, f32::NEG_INFINITY, f32::NEG_INFINITY]), Some(1));
        assert_eq!(kernels.argmax(&[1.0, 3.0, f32::NAN, 3.0]), Some(1));
        assert_eq!(kernels.argmax(&[-0.0, 0.0]), Some(0));
        let mut x = vec![0.5; 1000];
        x[700] = 2.0;
        x[900] = 2.0;
        x[100] = f32::NAN;
        assert_eq!(kernels.argmax(&x), Some(700));
    }
}

#[test]
fn top_k_orders_by_value_then_index() {
    for kernels in Kernels::available() {
        let mut out = vec![9; 3];
        kernels.top_k(&[], 4, &mut out);
        assert!(out.is_empty());
        kernels.top_k(&[1.0, 2.0], 0, &mut out);
        assert!(out.is_empty());
        kernels.top_k(&[1.0, f32::NAN, 5.0, 5.0, f32::NEG_INFINITY, 0.0, -0.0], 100, &mut out);
        assert_eq!(out, [2, 3, 0, 5, 6, 4]);
        kernels.top_k(&[7.0; 1000], 3, &mut out);
        assert_eq!(out, [0, 1, 2]);
    }
}

#[test]
fn top_k_equals_a_full_sort() {
    let x: Vec<f32> = (0..5000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 20) as f32).collect();
    let mut sorted: Vec<u32> = (0..x.len() as u32).collect();
    sorted.sort_by(|&a, &b| x[b as usize].total_cmp(&x[a as usize]).then(a.cmp(&b)));
    let ascending: Vec<f32> = (0..5000u32).map(|i| i as f32).collect();
    for kernels in Kernels::available() {
        let mut out = Vec::new();
        for k in [1, 2, 40, 257, 2499, 2500, 4999, 5000, 6000] {
            kernels.top_k(&x, k, &mut out);
            assert_eq!(out, sorted[..k.min(x.len())], "k = {k}");
            kernels.top_k(&ascending, k, &mut out);
            assert!(out.iter().copied().eq((0..5000u32).rev().take(k)));
        }
    }
}
