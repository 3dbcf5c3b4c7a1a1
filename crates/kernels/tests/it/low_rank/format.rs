//! Number formats of factors: sizes, roundings, values that are no numbers.

use proptest::prelude::*;
use ruvllm_kernels::low_rank::{Factor, FactorFormat};

use super::Aligned;

#[test]
fn sizes_are_those_of_values_and_scales() {
    assert_eq!(FactorFormat::F32.bytes(3, 5), 60);
    assert_eq!(FactorFormat::F16.bytes(3, 5), 30);
    assert_eq!(FactorFormat::I8.bytes(3, 5), 64 + 12);
    for format in FactorFormat::ALL {
        assert_eq!(format.bytes(usize::MAX, 2), usize::MAX, "no overflow");
        assert_eq!(FactorFormat::from_name(format.name()), Some(format));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn values_come_back_within_the_rounding_of_the_format(
        (rank, width) in (0usize..5, 1usize..40),
        values in prop::collection::vec(-300f32..300.0, 200),
    ) {
        let values = &values[..rank * width];
        for (format, unit) in [(FactorFormat::F32, 0.0), (FactorFormat::F16, 2f32.powi(-11)), (FactorFormat::I8, 0.0)] {
            let mut bytes = Aligned::new(format.bytes(rank, width));
            format.quantize(width, values, bytes.get_mut());
            let factor = Factor::new(format, rank, width, bytes.get());
            prop_assert!(factor.is_finite());
            for (row, found) in values.chunks_exact(width).zip(factor.values().chunks_exact(width)) {
                let max = row.iter().fold(0f32, |max, x| max.max(x.abs()));
                let step = if format == FactorFormat::I8 { max / 254.0 * 1.0001 } else { 0.0 };
                for (x, y) in row.iter().zip(found) {
                    prop_assert!((x - y).abs() <= step + x.abs() * unit, "{format:?} {x} {y}");
                }
            }
        }
    }
}

#[test]
fn values_that_are_no_numbers_stay_none() {
    for format in FactorFormat::ALL {
        for bad in [f32::NAN, f32::INFINITY] {
            let values = [[1.0, 2.0], [bad, 0.5], [0.0, 0.0]].concat();
            let mut bytes = Aligned::new(format.bytes(3, 2));
            format.quantize(2, &values, bytes.get_mut());
            let factor = Factor::new(format, 3, 2, bytes.get());
            assert!(!factor.is_finite());
            assert!(!factor.values()[2].is_finite());
            assert_eq!(factor.values()[4..], [0.0, 0.0], "a row of zeros has zeros");
        }
    }
    let mut bytes = Aligned::new(2);
    FactorFormat::F16.quantize(1, &[1e5], bytes.get_mut());
    assert!(!Factor::new(FactorFormat::F16, 1, 1, bytes.get()).is_finite(), "beyond F16");
}
