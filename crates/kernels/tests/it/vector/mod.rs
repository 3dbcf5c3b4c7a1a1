//! Distances and quantizers: bit-identical on every instruction set, within the stated errors
//! against f64.

mod product;

use half::f16;
use proptest::prelude::*;
use ruvllm_kernels::vector::{Metric, VectorRows};
use ruvllm_kernels::{Isa, Kernels};

use crate::oracle::fma;

/// Accumulators of a distance, and values per group of 4-bit codes.
const STEP: usize = 32;

const METRICS: [Metric; 4] = [Metric::SquaredEuclidean, Metric::Dot, Metric::Cosine, Metric::Manhattan];

fn same(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())
}

fn scalar() -> Kernels {
    Kernels::for_isa(Isa::Scalar).unwrap()
}

/// Definition in f64, and the sum of its terms' magnitudes.
fn reference(metric: Metric, x: &[f32], y: &[f32]) -> (f64, f64) {
    let pairs = || x.iter().zip(y).map(|(&x, &y)| (f64::from(x), f64::from(y)));
    let dot: f64 = pairs().map(|(x, y)| x * y).sum();
    let size: f64 = pairs().map(|(x, y)| (x * y).abs()).sum();
    match metric {
        Metric::SquaredEuclidean => {
            let sum = pairs().map(|(x, y)| (x - y) * (x - y)).sum();
            (sum, sum)
        }
        Metric::Dot => (-dot, size),
        Metric::Cosine => {
            let lengths: f64 =
                (pairs().map(|(x, _)| x * x).sum::<f64>() * pairs().map(|(_, y)| y * y).sum::<f64>()).sqrt();
            if lengths == 0.0 { (1.0, 1.0) } else { (1.0 - dot / lengths, 1.0) }
        }
        Metric::Manhattan => {
            let sum = pairs().map(|(x, y)| (x - y).abs()).sum();
            (sum, sum)
        }
    }
}

/// Distance in the documented order, without lanes.
fn in_documented_order(metric: Metric, x: &[f32], y: &[f32]) -> f32 {
    let sum = |term: &dyn Fn(f32, f32, f32) -> f32| {
        let mut lanes = [0.0f32; STEP];
        for (i, (&x, &y)) in x.iter().zip(y).enumerate() {
            lanes[i % STEP] = term(x, y, lanes[i % STEP]);
        }
        let mut width = STEP;
        while width > 1 {
            width /= 2;
            for j in 0..width {
                lanes[j] += lanes[j + width];
            }
        }
        lanes[0]
    };
    match metric {
        Metric::SquaredEuclidean => sum(&|x, y, sum| fma(x - y, x - y, sum)),
        Metric::Dot => -sum(&|x, y, sum| fma(x, y, sum)),
        Metric::Manhattan => sum(&|x, y, sum| sum + (x - y).abs()),
        Metric::Cosine => {
            let [xy, xx, yy] = [
                sum(&|x, y, sum| fma(x, y, sum)),
                sum(&|x, _, sum| fma(x, x, sum)),
                sum(&|_, y, sum| fma(y, y, sum)),
            ]
            .map(f64::from);
            if xx * yy == 0.0 {
                return 1.0;
            }
            let distance = 1.0 - xy / (xx * yy).sqrt();
            (if distance < 0.0 { 0.0 } else { distance }) as f32
        }
    }
}

/// Vector in every format.
struct Stored {
    f32: Vec<f32>,
    f16: Vec<f16>,
    int8: (Vec<i8>, [f32; 1]),
    int4: (Vec<u8>, [f32; 1]),
}

impl Stored {
    fn new(kernels: &Kernels, x: &[f32]) -> Self {
        let mut halves = vec![f16::ZERO; x.len()];
        kernels.f32_to_f16(x, &mut halves);
        let (mut int8, mut int4) = (vec![0; x.len()], vec![0; x.len().div_ceil(32) * 16]);
        let scales = [[kernels.quantize_int8(x, &mut int8)], [kernels.quantize_int4(x, &mut int4)]];
        Self { f32: x.to_vec(), f16: halves, int8: (int8, scales[0]), int4: (int4, scales[1]) }
    }

    fn rows(&self) -> [VectorRows<'_>; 4] {
        [
            VectorRows::F32(&self.f32),
            VectorRows::F16(&self.f16),
            VectorRows::Int8 { values: &self.int8.0, scales: &self.int8.1 },
            VectorRows::Int4 { bytes: &self.int4.0, scales: &self.int4.1 },
        ]
    }

    /// Dequantized values of each format.
    fn widened(&self) -> [Vec<f32>; 4] {
        let kernels = scalar();
        let mut out = std::array::from_fn(|_| self.f32.clone());
        kernels.f16_to_f32(&self.f16, &mut out[1]);
        kernels.dequantize_int8(&self.int8.0, self.int8.1[0], &mut out[2]);
        kernels.dequantize_int4(&self.int4.0, self.int4.1[0], &mut out[3]);
        out
    }
}

fn vectors(value: impl Strategy<Value = f32> + Clone) -> impl Strategy<Value = (Vec<f32>, Vec<f32>)> {
    (1usize..140).prop_flat_map(move |n| {
        (prop::collection::vec(value.clone(), n), prop::collection::vec(value.clone(), n))
    })
}

fn any_f32() -> impl Strategy<Value = f32> + Clone {
    prop_oneof![6 => -10.0f32..10.0, 1 => any::<u32>().prop_map(f32::from_bits), 1 => Just(0.0)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200 * ProptestConfig::default().cases / 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn distances_agree((x, y) in vectors(any_f32())) {
        let stored = [Stored::new(&scalar(), &x), Stored::new(&scalar(), &y)];
        for metric in METRICS {
            for (a, b) in stored[0].rows().into_iter().zip(stored[1].rows()) {
                let expected = scalar().distance(metric, a, b);
                for kernels in Kernels::available() {
                    let found = kernels.distance(metric, a, b);
                    prop_assert!(same(found, expected), "{metric:?} {}: {found}, {expected}", kernels.isa());
                }
            }
            let expected = in_documented_order(metric, &x, &y);
            let found = scalar().distance(metric, VectorRows::F32(&x), VectorRows::F32(&y));
            prop_assert!(same(found, expected), "{metric:?}: {found}, {expected}");
        }
    }

    #[test]
    fn distances_are_accurate((x, y) in vectors(-10f32..10.0)) {
        let stored = [Stored::new(&scalar(), &x), Stored::new(&scalar(), &y)];
        let wide = stored.each_ref().map(Stored::widened);
        for (metric, format) in METRICS.into_iter().flat_map(|metric| (0..4).map(move |i| (metric, i))) {
            let found = scalar().distance(metric, stored[0].rows()[format], stored[1].rows()[format]);
            let (expected, size) = reference(metric, &wide[0][format], &wide[1][format]);
            // `dim / 32 + 8` roundings of the sum and two per term; dequantized integers carry one
            // of their own, and their squares cancel.
            let u = 2f64.powi(-24);
            let squares: f64 = wide.iter().flat_map(|w| &w[format]).map(|&v| f64::from(v).powi(2)).sum();
            let bound = (x.len() as f64 / 32.0 + 14.0) * u * size + if format < 2 { 0.0 } else { 8.0 * u * squares };
            let error = (f64::from(found) - expected).abs();
            prop_assert!(error <= bound + 1e-30, "{metric:?}, format {format}: {found} for {expected}, {error:e} > {bound:e}");
        }
    }

    #[test]
    fn one_against_many_is_one_by_one((x, y) in vectors(any_f32())) {
        for kernels in Kernels::available() {
            let rows: Vec<f32> = [&y[..], &x, &vec![0.0; x.len()]].concat();
            for metric in METRICS {
                let mut out = [9.0; 3];
                kernels.distances(metric, VectorRows::F32(&x), VectorRows::F32(&rows), &mut out);
                for (out, row) in out.iter().zip(rows.chunks_exact(x.len())) {
                    prop_assert!(same(*out, kernels.distance(metric, VectorRows::F32(&x), VectorRows::F32(row))));
                }
            }
        }
    }

    #[test]
    fn quantizers_agree((x, _) in vectors(any_f32())) {
        let expected = Stored::new(&scalar(), &x);
        for kernels in Kernels::available() {
            let found = Stored::new(&kernels, &x);
            prop_assert_eq!(&found.int8.0, &expected.int8.0);
            prop_assert_eq!(&found.int4.0, &expected.int4.0);
            prop_assert!(same(found.int8.1[0], expected.int8.1[0]) && same(found.int4.1[0], expected.int4.1[0]));
        }
    }

    #[test]
    fn rounding_errs_by_half_a_step((x, _) in vectors(-1e3f32..1e3)) {
        let stored = Stored::new(&scalar(), &x);
        let wide = stored.widened();
        for (scale, wide) in [(stored.int8.1[0], &wide[2]), (stored.int4.1[0], &wide[3])] {
            for (x, wide) in x.iter().zip(wide) {
                prop_assert!((x - wide).abs() <= 0.5 * scale + 1e-6 * x.abs(), "{x}: {wide}, scale {scale}");
            }
        }
    }

    #[test]
    fn hamming_counts_differing_signs((x, y) in vectors(any_f32())) {
        let expected = x.iter().zip(&y).filter(|&(&x, &y)| (x > 0.0) != (y > 0.0)).count() as u32;
        for kernels in Kernels::available() {
            let (mut a, mut b) = (vec![0; x.len().div_ceil(64)], vec![!0; x.len().div_ceil(64)]);
            kernels.quantize_bits(&x, &mut a);
            kernels.quantize_bits(&y, &mut b);
            prop_assert_eq!(kernels.hamming(&a, &b), expected);
            let mut out = [9; 2];
            kernels.hammings(&a, &[&a[..], &b].concat(), &mut out);
            prop_assert_eq!(out, [0, expected]);
        }
    }
}

#[test]
fn zero_and_equal_and_opposite_vectors() {
    let x: Vec<f32> = (0..45).map(|i| (i as f32 * 0.9).sin()).collect();
    let opposite: Vec<f32> = x.iter().map(|x| -x).collect();
    for kernels in Kernels::available() {
        let [x, opposite, zero] = [&x[..], &opposite, &[0.0; 45]].map(|vector| Stored::new(&kernels, vector));
        for format in 0..4 {
            let to =
                |metric, a: &Stored, b: &Stored| kernels.distance(metric, a.rows()[format], b.rows()[format]);
            for metric in [Metric::SquaredEuclidean, Metric::Cosine, Metric::Manhattan] {
                assert_eq!(to(metric, &x, &x), 0.0, "{metric:?}");
            }
            assert!((to(Metric::Cosine, &x, &opposite) - 2.0).abs() < 1e-6);
            for metric in [Metric::SquaredEuclidean, Metric::Dot, Metric::Manhattan] {
                assert_eq!(to(metric, &zero, &zero), 0.0, "{metric:?}");
            }
            for other in [&x, &zero] {
                assert_eq!(to(Metric::Cosine, &zero, other), 1.0);
                assert_eq!(to(Metric::Cosine, other, &zero), 1.0);
            }
        }
    }
}

#[test]
fn a_value_that_is_no_number_spoils_its_distances() {
    for (kernels, bad) in Kernels::available().iter().flat_map(|k| [f32::NAN, f32::INFINITY].map(|x| (k, x)))
    {
        for at in [0, 31, 32, 66] {
            let mut x = vec![1.0; 67];
            x[at] = bad;
            let (x, zero) = (Stored::new(kernels, &x), Stored::new(kernels, &[0.0; 67]));
            for (format, metric) in (0..4).flat_map(|i| METRICS.map(|metric| (i, metric))) {
                let found = kernels.distance(metric, zero.rows()[format], x.rows()[format]);
                if bad.is_nan() || format >= 2 {
                    assert!(found.is_nan(), "{metric:?}, format {format}: {found}");
                }
            }
        }
    }
}

#[test]
fn long_integer_sums_do_not_overflow() {
    let n = 300_000;
    let (x, y) = (vec![-128i8; n], vec![127i8; n]);
    let rows = |values| VectorRows::Int8 { values, scales: &[1.0] };
    for kernels in Kernels::available() {
        let dot = kernels.distance(Metric::Dot, rows(&x), rows(&y));
        assert_eq!(dot, (128.0 * 127.0 * n as f64) as f32);
        let square = kernels.distance(Metric::SquaredEuclidean, rows(&x), rows(&y));
        assert_eq!(square, (255.0 * 255.0 * n as f64) as f32);
    }
}

#[test]
fn every_4_bit_code_is_read_in_its_place() {
    let bytes: [u8; 16] = std::array::from_fn(|i| (i | ((15 - i) << 4)) as u8);
    for kernels in Kernels::available() {
        // A one at index `i` selects the value at index `i`.
        for i in 0..STEP {
            let mut one = [0x88u8; 16];
            one[i % 16] = if i < 16 { 0x89 } else { 0x98 };
            let [x, y] = [&one, &bytes].map(|bytes| VectorRows::Int4 { bytes, scales: &[1.0] });
            let code = if i < 16 { i } else { 31 - i };
            assert_eq!(-kernels.distance(Metric::Dot, x, y), code as f32 - 8.0);
        }
    }
}

#[test]
#[should_panic(expected = "differ in format")]
fn formats_do_not_mix() {
    scalar().distance(Metric::Dot, VectorRows::F32(&[1.0; 3]), VectorRows::F16(&[f16::ONE; 3]));
}

#[test]
#[should_panic(expected = "differ in length")]
fn lengths_must_agree() {
    scalar().distance(Metric::Dot, VectorRows::F32(&[1.0; 3]), VectorRows::F32(&[1.0; 4]));
}

#[test]
#[should_panic(expected = "one scale per vector")]
fn rows_of_integers_have_scales() {
    let x = VectorRows::Int8 { values: &[1; 3], scales: &[] };
    scalar().distance(Metric::Dot, x, x);
}
