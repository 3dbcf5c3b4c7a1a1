//! Properties of the methods and of the decomposition.

use proptest::prelude::*;
use ruvllm_adapters::Projection;
use ruvllm_adapters::export::FactorType;
use ruvllm_adapters::merge::arithmetic;
use ruvllm_adapters::merge::{Dare, Method, Module, Rank, Ties, compress_dense};

use crate::{QUERY, adapter, equal, folder, index, merge, norm, open, peft, pool, product, random};

/// Values whose sums in f64 are exact.
fn deltas(count: usize) -> impl Strategy<Value = Vec<Vec<f32>>> {
    (1_usize..40).prop_flat_map(move |len| {
        let value = (-64_i32..64).prop_map(|value| value as f32 / 16.0);
        prop::collection::vec(prop::collection::vec(value, len), count)
    })
}

fn ties(deltas: &[&[f32]], density: f64) -> Vec<f32> {
    let mut out = vec![0.0; deltas[0].len()];
    arithmetic::ties(deltas, &vec![1.0; deltas.len()], density, 1.0, &mut out);
    out
}

proptest! {
    #[test]
    fn ties_does_not_depend_on_the_order_of_inputs(deltas in deltas(3), density in 0.05_f64..=1.0) {
        let [a, b, c] = [&deltas[0][..], &deltas[1], &deltas[2]];
        let first = ties(&[a, b, c], density);
        for order in [[a, c, b], [b, a, c], [b, c, a], [c, a, b], [c, b, a]] {
            prop_assert_eq!(&first, &ties(&order, density));
        }
    }

    #[test]
    fn ties_of_equal_deltas_is_the_trimmed_delta(deltas in deltas(1), density in 0.05_f64..=1.0) {
        let delta = &deltas[0][..];
        let merged = ties(&[delta, delta], density);
        prop_assert_eq!(&merged, &ties(&[delta], density));
        let kept = (density * delta.len() as f64).floor() as usize;
        // Zeros among the kept are not told from dropped ones.
        let zeros = delta.iter().filter(|&&value| value == 0.0).count();
        let left = merged.iter().filter(|&&value| value != 0.0).count();
        prop_assert!(left <= kept && left + zeros >= kept);
        for (merged, value) in merged.iter().zip(delta) {
            prop_assert!(merged == value || *merged == 0.0);
        }
        let smallest = merged.iter().filter(|&&value| value != 0.0).map(|value| value.abs()).fold(f32::MAX, f32::min);
        let dropped = merged.iter().zip(delta).filter(|&(&merged, _)| merged == 0.0);
        prop_assert!(dropped.map(|(_, value)| value.abs()).all(|value| value <= smallest || kept == 0));
    }

    #[test]
    fn slerp_has_exact_ends_and_the_norm_between(deltas in deltas(2), t in 0.0_f64..=1.0) {
        let (a, b) = (&deltas[0][..], &deltas[1][..]);
        let mut out = vec![0.0; a.len()];
        arithmetic::slerp(a, b, 0.0, &mut out);
        prop_assert_eq!(&out, a);
        arithmetic::slerp(a, b, 1.0, &mut out);
        prop_assert_eq!(&out, b);
        // Of equal lengths, the length stays.
        let turned: Vec<f32> = a.iter().rev().copied().collect();
        let length = |values: &[f32]| norm(values.iter().map(|&value| f64::from(value)));
        let cosine = a.iter().zip(&turned).map(|(x, y)| f64::from(x * y)).sum::<f64>() / length(a).powi(2);
        arithmetic::slerp(a, &turned, t, &mut out);
        prop_assert!(cosine.abs() > 0.9995 || cosine.is_nan() || (length(&out) / length(a) - 1.0).abs() < 1e-5);
    }
}

#[test]
fn a_merge_of_one_is_the_adapter() {
    let file = open(&peft("r4_all"));
    let alone = |method| {
        let merge = merge(&equal(&[&file]), method).expect("a merge");
        merge.delta(index(&merge, QUERY), &pool()).expect("a delta")
    };
    let linear = alone(Method::Linear);
    assert_eq!(linear, alone(Method::Average));
    assert_eq!(linear, alone(Method::Ties(Ties { density: 1.0, lambda: 1.0 })));
    assert_eq!(linear, alone(Method::DareLinear(Dare { p: 0.0, seed: 1 })));
    assert!(linear.iter().any(|&value| value != 0.0));
}

#[test]
fn an_average_is_a_linear_merge_with_weights_of_sum_one() {
    let (small, large) = (open(&peft("r4_all")), open(&peft("r16_all_rs")));
    let delta = |method, weights: [f64; 2]| {
        let mut inputs = equal(&[&small, &large]);
        inputs.iter_mut().zip(weights).for_each(|(input, weight)| input.weight = weight);
        let merge = merge(&inputs, method).expect("a merge");
        merge.delta(0, &pool()).expect("a delta")
    };
    assert_eq!(delta(Method::Average, [3.0, 1.0]), delta(Method::Linear, [0.75, 0.25]));
}

#[test]
fn dare_is_unbiased() {
    let file = open(&peft("r1_qv"));
    let inputs = equal(&[&file]);
    let exact = merge(&inputs, Method::Linear).expect("a merge");
    let exact = exact.delta(0, &pool()).expect("a delta");
    let (seeds, p) = (400, 0.8);
    let mut mean = vec![0.0; exact.len()];
    for seed in 0..seeds {
        let one = merge(&inputs, Method::DareLinear(Dare { p, seed })).expect("a merge");
        let one = one.delta(0, &pool()).expect("a delta");
        mean.iter_mut().zip(one).for_each(|(mean, value)| *mean += f64::from(value) / seeds as f64);
    }
    // The variance of a term is p / (1 - p) of its square.
    let expected = (p / (1.0 - p) / seeds as f64).sqrt();
    let length = norm(exact.iter().map(|&value| f64::from(value)));
    let error = norm(mean.iter().zip(&exact).map(|(mean, &value)| mean - f64::from(value))) / length;
    assert!((error / expected - 1.0).abs() < 0.1, "{error} for {expected}");
}

/// The stated error is that of the factors, computed here from the dense matrices.
#[test]
fn the_stated_error_is_the_error() {
    let (small, large) = (open(&peft("r4_all")), open(&peft("r16_all_rs")));
    let inputs = equal(&[&small, &large]);
    let methods =
        [Method::Linear, Method::Slerp { t: 0.4 }, Method::Ties(Ties { density: 0.3, lambda: 1.0 })];
    for method in methods {
        let merge = merge(&inputs, method).expect("a merge");
        let mut before = f64::INFINITY;
        let ranks = if method.is_linear() { &[1, 3, 9, 20][..] } else { &[1, 3, 9, 20, 64] };
        for &rank in ranks {
            let made = adapter(&merge, Rank::AtMost(rank));
            let (update, deviation) = (&made.adapter.updates()[0], made.deviations[0]);
            assert_eq!(update.rank, rank);
            let exact = merge.delta(0, &pool()).expect("a delta");
            let found = product(update);
            let distance = norm(exact.iter().zip(&found).map(|(&x, y)| f64::from(x) - y));
            let length = norm(exact.iter().map(|&value| f64::from(value)));
            assert!((deviation.norm / length - 1.0).abs() < 1e-6);
            assert!((deviation.relative() - distance / length).abs() < 2e-7, "{method:?} {rank}");
            assert!(deviation.relative() < before, "{method:?} {rank}");
            before = deviation.relative();
        }
        assert!(before < 1e-6, "{method:?}: {before}");
    }
}

/// Singular values are known: the error is that of the best approximation, also from a sketch.
#[test]
fn a_decomposition_is_nearly_the_best() {
    let (rows, cols) = (150, 220);
    // Columns of a Hadamard matrix are orthogonal.
    let sign = |i: usize, j: usize| if (i & j).count_ones().is_multiple_of(2) { 1.0 } else { -1.0 };
    let values: Vec<f64> = (0..60).map(|i| 0.9_f64.powi(i)).collect();
    let mut delta = vec![0.0_f32; 128 * 128];
    for (i, delta) in delta.iter_mut().enumerate() {
        let (row, column) = (i / 128, i % 128);
        *delta =
            values.iter().enumerate().map(|(k, value)| value * sign(row, k) * sign(column, k)).sum::<f64>()
                as f32;
    }
    let module = |[inputs, outputs]: [usize; 2]| Module::new((Projection::Query, 0), [inputs, outputs], "x");
    let tail = |rank: usize| norm(values[rank..].iter().copied()) / norm(values.iter().copied());
    for rank in [5, 20, 40] {
        let (update, deviation) =
            compress_dense(&module([128, 128]), &delta, Rank::AtMost(rank), FactorType::F32, &pool())
                .expect("a decomposition");
        assert_eq!(update.rank, rank);
        let best = tail(rank);
        assert!((1.0 - 1e-6..1.001).contains(&(deviation.relative() / best)), "{rank}: {deviation:?} {best}");
    }
    for error in [0.5, 0.1, 0.02] {
        let (update, deviation) =
            compress_dense(&module([128, 128]), &delta, Rank::Error(error), FactorType::F32, &pool())
                .expect("a decomposition");
        let lowest = (0..=values.len()).find(|&rank| tail(rank) <= error).expect("a rank");
        assert!(
            deviation.relative() <= error * 1.0001 && update.rank <= lowest + 1,
            "{error}: {}",
            update.rank
        );
    }
    // Without structure, no rank below the whole is exact.
    let noise = random(rows * cols, 3);
    let of = |rank| {
        compress_dense(&module([cols, rows]), &noise, rank, FactorType::F32, &pool())
            .expect("a decomposition")
    };
    assert!(of(Rank::AtMost(30)).1.relative() > 0.5);
    let (update, deviation) = of(Rank::Exact);
    assert!(update.rank == rows && deviation.relative() < 1e-6, "{deviation:?}");
}

#[test]
fn ranks_follow_the_error_asked_for() {
    let folders = tempfile::tempdir().expect("a folder");
    let a = folder(&folders.path().join("a"), [40, 30], &[4, 2], 1);
    let b = folder(&folders.path().join("b"), [40, 30], &[4, 9], 2);
    let inputs = equal(&[&a, &b]);
    let merge = merge(&inputs, Method::Linear).expect("a merge");
    assert_eq!((merge.largest_rank(), merge.summed_rank()), (9, 11));
    let ranks = |rank| adapter(&merge, rank).adapter.updates().iter().map(|u| u.rank).collect::<Vec<_>>();
    assert_eq!(ranks(Rank::Exact), [8, 11]);
    assert_eq!(ranks(Rank::AtMost(9)), [8, 9]);
    let rough = adapter(&merge, Rank::Error(0.3));
    assert!(rough.deviations.iter().all(|deviation| deviation.relative() <= 0.3));
    assert!(rough.adapter.updates().iter().zip([8, 11]).all(|(update, exact)| update.rank < exact));
    assert!(rough.relative_error() <= 0.3 && rough.relative_error() > 0.0);
}
