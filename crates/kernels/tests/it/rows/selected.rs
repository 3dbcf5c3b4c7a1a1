//! Selected rows of a matrix.

use proptest::prelude::*;
use ruvllm_kernels::rows::{MatrixView, SelectedRows};
use ruvllm_kernels::{Isa, Kernels};

proptest! {
    #![proptest_config(ProptestConfig { cases: 100 * ProptestConfig::default().cases / 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn selected_rows_have_the_bits_of_each_alone(
        dim in 1usize..70,
        indices in prop::collection::vec(0u32..9, 0..40),
        values in prop::collection::vec(-100f32..100.0, 800),
    ) {
        let (matrix, x) = (&values[..9 * dim], &values[700..][..dim]);
        let weights = &values[650..][..indices.len()];
        let copies: Vec<f32> =
            indices.iter().flat_map(|&i| &matrix[i as usize * dim..][..dim]).copied().collect();
        let rows = SelectedRows::new(matrix, dim, &indices);
        let scalar = Kernels::for_isa(Isa::Scalar).expect("always there");
        let mut expected = x.to_vec();
        let view = MatrixView::new(weights, 1, indices.len(), indices.len());
        scalar.add_product(&mut expected, view, MatrixView::new(&copies, indices.len(), dim, dim));
        for kernels in Kernels::available() {
            let mut dots = vec![0.0; indices.len()];
            kernels.dots(x, rows, &mut dots);
            for (dot, row) in dots.iter().zip(copies.chunks_exact(dim)) {
                prop_assert_eq!(dot.to_bits(), scalar.dot(x, row).to_bits(), "{}", kernels.isa());
            }
            let mut sum = x.to_vec();
            kernels.add_rows(&mut sum, weights, rows);
            for (sum, expected) in sum.iter().zip(&expected) {
                prop_assert_eq!(sum.to_bits(), expected.to_bits(), "{}", kernels.isa());
            }
        }
    }
}

#[test]
#[should_panic(expected = "row Some(2) of 2")]
fn rows_beyond_the_matrix_are_refused() {
    let _ = SelectedRows::new(&[0.0; 6], 3, &[1, 2]);
}
