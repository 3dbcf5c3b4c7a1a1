//! RoPE: configuration and application; [`goldens`] has values of other implementations.

mod goldens;

use ruvllm_kernels::rope::{RopeConfig, RopeLayout, RopeScaling, RopeTable};
use ruvllm_kernels::{Error, Kernels};

fn table(config: &RopeConfig, positions: usize) -> RopeTable {
    RopeTable::new(config, positions).unwrap()
}

/// Head whose values identify their index.
fn head(n: usize) -> Vec<f32> {
    (0..n).map(|i| 0.25 + i as f32).collect()
}

#[test]
fn position_zero_changes_nothing_and_the_rest_of_the_head_passes_through() {
    let table = table(&RopeConfig::new(10_000.0, 6), 3);
    for kernels in Kernels::available() {
        for layout in [RopeLayout::Halves, RopeLayout::Interleaved] {
            let mut x = head(9);
            kernels.rope(&table, layout, 0..1, &mut x, 1, 9);
            assert_eq!(x, head(9));
            kernels.rope(&table, layout, 2..3, &mut x, 1, 9);
            assert_eq!(x[6..], head(9)[6..]);
            assert_ne!(x[..6], head(9)[..6]);
        }
    }
}

#[test]
fn both_layouts_rotate_the_same_pairs() {
    for rotary_dim in [2, 4, 6, 8, 10, 14, 16, 18, 34, 64] {
        let half = rotary_dim / 2;
        let table = table(&RopeConfig::new(500.0, rotary_dim), 20);
        let x = head(rotary_dim);
        for kernels in Kernels::available() {
            let mut halves = x.clone();
            kernels.rope(&table, RopeLayout::Halves, 17..18, &mut halves, 1, rotary_dim);
            let mut pairs: Vec<f32> = (0..half).flat_map(|i| [x[i], x[i + half]]).collect();
            kernels.rope(&table, RopeLayout::Interleaved, 17..18, &mut pairs, 1, rotary_dim);
            for i in 0..half {
                assert_eq!(pairs[2 * i].to_bits(), halves[i].to_bits());
                assert_eq!(pairs[2 * i + 1].to_bits(), halves[i + half].to_bits());
            }
        }
    }
}

#[test]
fn rows_of_several_positions_and_heads() {
    let table = table(&RopeConfig::new(10_000.0, 8), 10);
    let kernels = Kernels::available()[0];
    let one = head(8);
    let mut all: Vec<f32> = one.iter().copied().cycle().take(3 * 2 * 8).collect();
    kernels.rope(&table, RopeLayout::Halves, 4..7, &mut all, 2, 8);
    for (i, row) in all.chunks(8).enumerate() {
        let mut expected = one.clone();
        let position = 4 + i / 2;
        kernels.rope(&table, RopeLayout::Halves, position..position + 1, &mut expected, 1, 8);
        assert_eq!(row, expected);
    }
}

#[test]
fn llama3_equals_its_divisors() {
    let plain = RopeConfig::new(500_000.0, 64);
    let scaled = RopeConfig {
        scaling: RopeScaling::Llama3 {
            factor: 8.0,
            low_frequency_factor: 1.0,
            high_frequency_factor: 4.0,
            original_context: 8192,
        },
        ..plain.clone()
    };
    let (f, g) = (plain.frequencies(1).unwrap().inverse, scaled.frequencies(1).unwrap().inverse);
    let divisors: Vec<f32> = f.iter().zip(&g).map(|(f, g)| (f / g) as f32).collect();
    assert_eq!(divisors[0], 1.0);
    assert_eq!(divisors[31], 8.0);
    let divided = RopeConfig { frequency_divisors: Some(divisors), ..plain };
    for (a, b) in divided.frequencies(1).unwrap().inverse.iter().zip(&g) {
        assert!((a / b - 1.0).abs() < 1e-7);
    }
}

#[test]
fn configurations_without_meaning_are_refused() {
    let refused = |config: RopeConfig| config.frequencies(100).unwrap_err();
    for rotary_dim in [0, 7] {
        assert!(matches!(refused(RopeConfig::new(1e4, rotary_dim)), Error::RotaryDim { .. }));
    }
    for base in [0.0, 1.0, -5.0, f64::NAN, f64::INFINITY] {
        assert!(matches!(refused(RopeConfig::new(base, 8)), Error::RopeParameter { name: "base", .. }));
    }
    let with = |scaling| RopeConfig { scaling, ..RopeConfig::new(1e4, 8) };
    for factor in [0.0, -1.0, f64::NAN] {
        assert!(matches!(refused(with(RopeScaling::Linear { factor })), Error::RopeParameter { .. }));
        assert!(matches!(refused(with(RopeScaling::Ntk { factor })), Error::RopeParameter { .. }));
    }
    let dynamic = RopeScaling::DynamicNtk { factor: 2.0, original_context: 0 };
    assert!(matches!(refused(with(dynamic)), Error::RopeParameter { .. }));
    let divisors = |divisors| RopeConfig { frequency_divisors: Some(divisors), ..RopeConfig::new(1e4, 8) };
    assert!(matches!(refused(divisors(vec![1.0; 3])), Error::RopeFactors { found: 3, expected: 4, .. }));
    assert!(matches!(refused(divisors(vec![0.0; 4])), Error::RopeParameter { .. }));
}

#[test]
#[should_panic(expected = "the table holds")]
fn positions_beyond_the_table_are_refused() {
    let table = table(&RopeConfig::new(1e4, 4), 2);
    Kernels::available()[0].rope(&table, RopeLayout::Halves, 2..3, &mut [0.0; 4], 1, 4);
}

#[test]
#[should_panic(expected = "length of the rows")]
fn a_product_of_the_shape_that_overflows_is_refused() {
    // Overflows to 0 in `usize`.
    let n_heads = 1 << (usize::BITS - 2);
    let table = table(&RopeConfig::new(1e4, 4), 2);
    Kernels::available()[0].rope(&table, RopeLayout::Halves, 0..1, &mut [], n_heads, 4);
}

#[test]
fn tables_beyond_memory_are_refused() {
    let config = RopeConfig::new(1e4, 8);
    // The first product overflows to 0 in `usize`.
    for positions in [1 << (usize::BITS - 2), usize::MAX, usize::MAX / 16] {
        let error = RopeTable::new(&config, positions).unwrap_err();
        assert!(matches!(error, Error::RopeParameter { name: "max_positions", .. }), "{error}");
    }
}

#[test]
#[should_panic(expected = "no memory for a table")]
fn frequencies_with_positions_beyond_memory_are_refused() {
    let frequencies = RopeConfig::new(1e4, 8).frequencies(1).unwrap();
    RopeTable::from_frequencies(&frequencies, 0..1 << (usize::BITS - 2));
}
