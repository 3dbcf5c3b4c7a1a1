//! Sums of products of matrices.

use proptest::prelude::*;
use ruvllm_kernels::Kernels;
use ruvllm_kernels::rows::MatrixView;

use crate::oracle::fma;

proptest! {
    #![proptest_config(ProptestConfig { cases: 100 * ProptestConfig::default().cases / 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn short_products_are_added_alike_everywhere(
        (m, n, r) in (0usize..20, 0usize..150, 0usize..20),
        (more_w, more_y) in (0usize..3, 0usize..9),
        values in prop::collection::vec(-100f32..100.0, 7000),
    ) {
        let x = &values[..m * n];
        let w = MatrixView::new(&values[3000..], m, r, r + more_w);
        let y = MatrixView::new(&values[3500..], r, n, n + more_y);
        let u = 2f64.powi(-24) * r as f64;
        for kernels in Kernels::available() {
            let mut got = x.to_vec();
            kernels.add_product(&mut got, w, y);
            for (at, got) in got.iter().enumerate() {
                let terms = || (0..r).map(|i| (w.row(at / n)[i], y.row(i)[at % n]));
                let chain = terms().fold(x[at], |sum, (w, y)| fma(w, y, sum));
                prop_assert_eq!(got.to_bits(), chain.to_bits(), "{}", kernels.isa());
                let exact = terms().fold(f64::from(x[at]), |sum, (w, y)| sum + f64::from(w) * f64::from(y));
                let size = terms().fold(x[at].abs(), |sum, (w, y)| sum + (w * y).abs());
                let bound = 1.01 * u * f64::from(size);
                prop_assert!((f64::from(*got) - exact).abs() <= bound, "{got} {exact} {bound}");
            }
        }
    }
}

#[test]
#[should_panic(expected = "[1, 2] times [3, 1], 1 results")]
fn shapes_must_agree() {
    let values = [0.0; 4];
    let (w, y) = (MatrixView::new(&values, 1, 2, 2), MatrixView::new(&values, 3, 1, 1));
    Kernels::available()[0].add_product(&mut [0.0], w, y);
}

#[test]
#[should_panic(expected = "2 rows of 3 values, 3 apart, in 5 values")]
fn a_view_stays_in_its_values() {
    MatrixView::new(&[0.0; 5], 2, 3, 3);
}
