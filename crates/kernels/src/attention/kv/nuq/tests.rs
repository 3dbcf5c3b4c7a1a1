//! Unit tests: selection of outliers, levels.

use proptest::prelude::*;

use super::super::KvRole;
use super::super::three_bits::CODE_BYTES;
use super::outliers::{Trimmed, n_outliers};
use super::train::Histogram;
use super::*;

proptest! {
    /// Removing outliers shortens ranges, never below the remaining values, and loses no value.
    #[test]
    fn ranges_hold_what_was_not_taken_off(
        values in prop::collection::vec(-100f32..100.0, 32 * 32),
        n in 0usize..40,
    ) {
        let trimmed = Trimmed::new(&values, 32, n);
        let taken: Vec<usize> = trimmed.outliers(32).iter().map(|outlier| outlier.place.into()).collect();
        prop_assert!(taken.len() <= n);
        for (slot, row) in values.chunks(32).enumerate() {
            let [low, high] = trimmed.range(slot).unwrap();
            let left = row.iter().enumerate().filter(|(i, _)| !taken.contains(&(slot * 32 + i)));
            let (mut least, mut most) = (f32::INFINITY, f32::NEG_INFINITY);
            for (_, &x) in left {
                (least, most) = (least.min(x), most.max(x));
            }
            prop_assert_eq!([low, high], [least, most]);
        }
    }
}

#[test]
fn the_ranges_that_shrink_most_give_their_ends_first() {
    let mut values: Vec<f32> = (0..32 * 32).map(|i| (i % 32) as f32 / 32.0).collect();
    values[5 * 32 + 7] = 9.0;
    values[20 * 32 + 1] = -20.0;
    let places = |n| {
        let mut outliers = Trimmed::new(&values, 32, n).outliers(32);
        outliers.sort_unstable_by_key(|outlier| outlier.place);
        outliers.iter().map(|outlier| (usize::from(outlier.place), outlier.number)).collect::<Vec<_>>()
    };
    assert_eq!(places(0), []);
    assert_eq!(places(1), [(20 * 32 + 1, -20.0)]);
    assert_eq!(places(2), [(5 * 32 + 7, 9.0), (20 * 32 + 1, -20.0)]);
}

#[test]
fn levels_lie_where_the_numbers_are() {
    let heaps = [-0.95, -0.9, -0.2, -0.1, 0.0, 0.3, 0.31, 0.99];
    let mut histogram = Histogram::default();
    for (i, heap) in heaps.into_iter().enumerate() {
        histogram.add([-1.0, 1.0], std::iter::repeat_n(heap, 100 + i));
    }
    for (level, heap) in histogram.levels().into_iter().zip(heaps) {
        assert!((level - heap).abs() < 1e-3, "{level} for {heap}");
    }
}

#[test]
fn tiles_are_whole_cache_lines() {
    for (head_dim, outliers) in [(32, 16), (64, 16), (96, 32), (128, 48), (256, 80)] {
        assert_eq!(n_outliers(KvRole::Values, head_dim), outliers);
        assert_eq!((head_dim * CODE_BYTES + 2 * n_halves(head_dim)) % 64, 0);
        assert_eq!(
            n_halves(head_dim),
            2 * KEY_TILE + 2 * outliers,
            "keys have the room of the ranges of values"
        );
    }
}
