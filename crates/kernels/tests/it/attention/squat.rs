//! `SQuat` corrections against their definition in f64, and their effect on score errors.

use proptest::prelude::*;
use ruvllm_kernels::attention::{
    KvBuffer, KvFormat, KvLayout, KvPlane, KvPlaneMut, KvRole, KvScratch, SquatCorrection,
};
use ruvllm_kernels::{Error, Kernels};

use super::fixture::{Random, best, decode, scalar, stored, with_format};

/// Rows mostly in the span of four directions, as queries are, `[n, n_kv_heads, head_dim]`.
fn queries(seed: u64, n: usize, n_kv_heads: usize, head_dim: usize) -> Vec<f32> {
    let mut random = Random(seed);
    let directions = random.values(4 * head_dim);
    let mut rows = Vec::new();
    for _ in 0..n * n_kv_heads {
        let shares = random.values(4);
        let noise = random.values(head_dim);
        rows.extend((0..head_dim).map(|i| {
            let sum: f32 = shares.iter().zip(directions.chunks(head_dim)).map(|(x, d)| x * d[i]).sum();
            4.0 * sum + 0.1 * noise[i]
        }));
    }
    rows
}

fn gram(kernels: Kernels, queries: &[f32], n_kv_heads: usize, head_dim: usize, head: usize) -> Vec<f32> {
    let mut gram = vec![0.0; head_dim * head_dim];
    let columns = head * head_dim..(head + 1) * head_dim;
    kernels.add_gram(queries, n_kv_heads * head_dim, columns, head_dim, &mut gram);
    gram
}

/// A correction per head.
fn corrections(queries: &[f32], n_kv_heads: usize, head_dim: usize, strength: f32) -> Vec<SquatCorrection> {
    (0..n_kv_heads)
        .map(|head| {
            let gram = gram(scalar(), queries, n_kv_heads, head_dim, head);
            SquatCorrection::new(&gram, head_dim, strength).expect("queries are numbers")
        })
        .collect()
}

fn converted(kernels: Kernels, rows: &[f32], to: &KvLayout, corrections: &[SquatCorrection]) -> KvBuffer {
    let from = with_format(to, KvFormat::F32);
    let plane = stored(kernels, &from, KvRole::Keys, rows, 0);
    let from = KvPlane::new(from, KvRole::Keys, plane.as_bytes());
    let mut out = KvBuffer::zeroed(to.plane_bytes()).unwrap();
    out.as_bytes_mut().fill(0x5a);
    let target = KvPlaneMut::new(*to, KvRole::Keys, out.as_bytes_mut()).with_corrections(corrections);
    kernels.convert_kv(from, target, &mut KvScratch::new());
    out
}

/// Matrix of the minimized form, `[dim, dim]`.
fn form(queries: &[&[f32]], dim: usize, strength: f64) -> Vec<f64> {
    let gram = |i: usize, j: usize| queries.iter().map(|q| f64::from(q[i]) * f64::from(q[j])).sum::<f64>();
    let mean = (0..dim).map(|i| gram(i, i)).sum::<f64>() / dim as f64;
    let at = |i, j| f64::from(u8::from(i == j)) + strength * gram(i, j) / mean;
    (0..dim * dim).map(|place| at(place / dim, place % dim)).collect()
}

/// `-A_RR⁻¹ A_Ri` for dimension `i` and the later ones, by elimination.
fn weights(form: &[f64], dim: usize, i: usize) -> Vec<f64> {
    let later = i + 1;
    let mut rows: Vec<Vec<f64>> = (later..dim)
        .map(|r| [&form[r * dim + later..(r + 1) * dim], &[-form[r * dim + i]]].concat())
        .collect();
    for pivot in 0..rows.len() {
        let source = rows[pivot].clone();
        for (r, row) in rows.iter_mut().enumerate() {
            let factor = if r == pivot { 1.0 - 1.0 / source[pivot] } else { row[pivot] / source[pivot] };
            row[pivot..].iter_mut().zip(&source[pivot..]).for_each(|(x, y)| *x -= factor * y);
        }
    }
    rows.iter().map(|row| row[dim - later]).collect()
}

/// Checks the stored values of one head and group of positions.
///
/// Each must be within half a step of the definition's value, given the errors of the earlier
/// dimensions, or at the end of the range of the keys.
fn follow(
    layout: &KvLayout,
    plane: &[u8],
    rows: &[f32],
    form: &[f64],
    (head, positions): (usize, std::ops::Range<usize>),
) -> Result<(), TestCaseError> {
    let (dim, heads) = (layout.head_dim(), layout.n_kv_heads());
    let KvFormat::Kivi { bits, .. } = layout.format() else { panic!("{}", layout.format()) };
    let levels = ((1 << bits.get()) - 1) as f64;
    let row = |position: usize| &rows[(position * heads + head) * dim..][..dim];
    let mut x: Vec<Vec<f64>> =
        positions.clone().map(|p| row(p).iter().map(|&x| f64::from(x)).collect()).collect();
    for i in 0..dim {
        let values = || positions.clone().map(|p| f64::from(row(p)[i]));
        let (low, high) =
            (values().fold(f64::INFINITY, f64::min), values().fold(f64::NEG_INFINITY, f64::max));
        // Scale and minimum are rounded to half precision, 2^-11 of their size.
        let bound = 0.5 * (high - low) / levels + 2e-3 * low.abs().max(high.abs()) + 1e-5;
        let weights = weights(form, dim, i);
        for (p, x) in positions.clone().zip(&mut x) {
            let found = f64::from(decode(layout, KvRole::Keys, plane, [p, head, i]));
            let meant = x[i].clamp(low, high);
            prop_assert!((found - meant).abs() <= bound, "{found} at {p}, {i}, not {meant}");
            let error = found - x[i];
            x[i + 1..].iter_mut().zip(&weights).for_each(|(x, weight)| *x += weight * error);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24 * ProptestConfig::default().cases / 256, failure_persistence: None, ..ProptestConfig::default() })]

    /// Stored quants match the definition, byte for byte on every instruction set.
    #[test]
    fn corrected_keys_follow_the_definition(
        format in prop::sample::select(vec!["kivi4", "kivi2", "kivi4-g64", "kivi2-g128"]),
        (n_kv_heads, units, blocks) in (1usize..3, 1usize..3, 1usize..3),
        n_queries in 1usize..60,
        strength in prop_oneof![Just(0.0f32), 0.01f32..100.0],
        seed in any::<u64>(),
    ) {
        let format: KvFormat = format.parse().unwrap();
        let group = format.block_tokens_multiple();
        let head_dim = (32 * units).next_multiple_of(format.head_dim_multiple());
        let layout = KvLayout::new(format, n_kv_heads, blocks * group, head_dim).unwrap();
        let rows = Random(seed).values(layout.block_tokens() * n_kv_heads * head_dim);
        let queries = queries(seed ^ 1, n_queries, n_kv_heads, head_dim);
        let corrections = corrections(&queries, n_kv_heads, head_dim, strength);
        let plane = converted(scalar(), &rows, &layout, &corrections);
        for kernels in Kernels::available() {
            let other = converted(kernels, &rows, &layout, &corrections);
            prop_assert_eq!(other.as_bytes(), plane.as_bytes(), "{}", kernels.isa());
        }
        for head in 0..n_kv_heads {
            let heads: Vec<&[f32]> = queries.chunks(head_dim).skip(head).step_by(n_kv_heads).collect();
            let form = form(&heads, head_dim, f64::from(strength));
            for block in 0..blocks {
                let positions = block * group..(block + 1) * group;
                follow(&layout, plane.as_bytes(), &rows, &form, (head, positions))?;
            }
        }
    }
}

/// Score error `Σ (q · d)²` over queries and keys, `d` the quantization error of a key.
fn score_error(layout: &KvLayout, plane: &KvBuffer, rows: &[f32], queries: &[f32]) -> f64 {
    let dim = layout.head_dim();
    let key = |position: usize| -> Vec<f64> {
        let read = (0..dim).map(|i| decode(layout, KvRole::Keys, plane.as_bytes(), [position, 0, i]));
        read.zip(&rows[position * dim..]).map(|(x, y)| f64::from(x) - f64::from(*y)).collect()
    };
    let errors: Vec<Vec<f64>> = (0..layout.block_tokens()).map(key).collect();
    let score = |q: &[f32], d: &[f64]| q.iter().zip(d).map(|(&q, d)| f64::from(q) * d).sum::<f64>();
    queries.chunks(dim).flat_map(|q| errors.iter().map(move |d| score(q, d).powi(2))).sum()
}

#[test]
fn scores_of_such_queries_keep_more_than_without() {
    let rows = Random(3).values(128 * 64);
    let (seen, new) = (queries(9, 200, 1, 64), queries(9, 300, 1, 64));
    for format in ["kivi4", "kivi2", "kivi2-g64"] {
        let layout = KvLayout::new(format.parse().unwrap(), 1, 128, 64).unwrap();
        let error = |corrections: &[SquatCorrection]| {
            let plane = converted(best(), &rows, &layout, corrections);
            score_error(&layout, &plane, &rows, &new[200 * 64..])
        };
        let (with, without) = (error(&corrections(&seen, 1, 64, 30.0)), error(&[SquatCorrection::none(64)]));
        assert!(4.0 * with < without, "{format}: {with} with, {without} without");
    }
}

#[test]
fn without_queries_nothing_changes() {
    let rows = Random(4).values(64 * 2 * 64);
    let fits = |format: &KvFormat| format.head_dim_multiple() <= 64 && !format.needs_calibration();
    for format in KvFormat::ALL.into_iter().filter(fits) {
        let layout = KvLayout::new(format, 2, 64, 64).unwrap();
        let none = SquatCorrection::new(&[0.0; 64 * 64], 64, 10.0).unwrap();
        assert_eq!(none, SquatCorrection::none(64));
        let plain = stored(best(), &layout, KvRole::Keys, &rows, 0);
        let found = converted(best(), &rows, &layout, &[none.clone(), none]);
        assert_eq!(found.as_bytes(), plain.as_bytes(), "{format}");
    }
}

#[test]
fn garbage_stays_in_its_dimension() {
    let corrections = corrections(&queries(5, 50, 1, 64), 1, 64, 10.0);
    let layout = KvLayout::new("kivi2".parse().unwrap(), 1, 64, 64).unwrap();
    for garbage in [f32::NAN, f32::INFINITY, f32::MAX] {
        let mut rows = Random(6).values(64 * 64);
        rows[37 * 64 + 20] = garbage;
        for kernels in Kernels::available() {
            let plane = converted(kernels, &rows, &layout, &corrections);
            for (position, dimension) in (0..64 * 64).map(|i| (i / 64, i % 64)) {
                let x = decode(&layout, KvRole::Keys, plane.as_bytes(), [position, 0, dimension]);
                assert_eq!(x.is_nan(), dimension == 20 && position >= 32, "{x} at {position}, {dimension}");
            }
        }
    }
}

#[test]
fn matrices_of_no_queries_are_refused() {
    let of = |diagonal: f32, beside: f32| {
        let at = |i: usize| if i.is_multiple_of(9) { diagonal } else { beside };
        (0..64).map(at).collect::<Vec<f32>>()
    };
    let refused = |gram: &[f32], strength| {
        matches!(SquatCorrection::new(gram, 8, strength), Err(Error::QueryGram { head_dim: 8 }))
    };
    assert!(!refused(&of(1.0, 0.5), 10.0));
    for gram in [of(f32::NAN, 0.0), of(1.0, f32::NAN), of(f32::INFINITY, 0.0), of(-1.0, 0.0), of(0.0, 1.0)] {
        assert!(refused(&gram, 10.0), "{gram:?}");
    }
    assert!(refused(&of(1.0, -0.9), 10.0), "indefinite");
    assert!(refused(&of(1.0, 0.5), f32::NAN));
}

#[test]
#[should_panic(expected = "size of the Gram matrix")]
fn a_size_that_overflows_is_refused() {
    // Its square overflows to 0 in `usize`.
    let _ = SquatCorrection::new(&[], 1 << (usize::BITS / 2), 1.0);
}
