//! Gram matrices: bits of any cut of the rows, and sums in f64.

use proptest::prelude::*;
use ruvllm_kernels::{Isa, Kernels};

proptest! {
    #![proptest_config(ProptestConfig { cases: 60 * ProptestConfig::default().cases / 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_number_is_its_sum_of_products_however_the_rows_are_cut(
        (eights, heads, first) in (1usize..5, 0usize..4, 0usize..20),
        (rows, cut) in (0usize..80, 0usize..80),
        values in prop::collection::vec(-4f32..4.0, 500),
    ) {
        let dim = eights * 8;
        let (columns, width) = (first..first + heads * dim, first + heads * dim + 3);
        let x: Vec<f32> = (0..rows * width).map(|i| values[i * 7 % 500]).collect();
        let mut whole = vec![0.5; dim * dim];
        Kernels::for_isa(Isa::Scalar).unwrap().add_gram(&x, width, columns.clone(), dim, &mut whole);
        for kernels in Kernels::available() {
            let mut parts = vec![0.5; dim * dim];
            let (before, behind) = x.split_at(cut.min(rows) * width);
            for x in [before, behind] {
                kernels.add_gram(x, width, columns.clone(), dim, &mut parts);
            }
            prop_assert!(parts.iter().zip(&whole).all(|(a, b)| a.to_bits() == b.to_bits()), "{}", kernels.isa());
        }
        let heads: Vec<&[f32]> =
            x.chunks_exact(width).flat_map(|row| row[columns.clone()].chunks_exact(dim)).collect();
        for i in 0..dim {
            for j in i..dim {
                let products = heads.iter().map(|h| f64::from(h[i]) * f64::from(h[j]));
                let (sum, size) = products.fold((0.5, 0.5), |(sum, size), x| (sum + x, size + x.abs()));
                let bound = (heads.len() + 1) as f64 * 2f64.powi(-24) * size;
                prop_assert!((f64::from(whole[i * dim + j]) - sum).abs() <= bound, "{i}, {j}");
            }
        }
    }
}

#[test]
#[should_panic(expected = "size of the matrix")]
fn a_size_that_overflows_is_refused() {
    // Its square overflows to 0 in `usize`.
    let dim = 1 << (usize::BITS / 2);
    Kernels::detect().unwrap().add_gram(&[], 1, 0..0, dim, &mut []);
}

#[test]
#[should_panic(expected = "heads of 16 values in columns 0..24 of 24")]
fn parts_of_heads_are_refused() {
    Kernels::detect().unwrap().add_gram(&[0.0; 48], 24, 0..24, 16, &mut [0.0; 256]);
}
