//! Low-rank updates against their definition, row by row.

mod format;

use std::ops::Range;

use half::f16;
use proptest::prelude::*;
use ruvllm_kernels::low_rank::{
    Expansion, FACTOR_ALIGN, FactorFormat, LowRank, LowRankScratch, LowRankShape, LowRankTerm,
};
use ruvllm_kernels::matmul::{Activations, MatmulJob};
use ruvllm_kernels::quant::{PackedMatrix, SharedBytes, WeightFormat};
use ruvllm_kernels::{Isa, Kernels, ThreadPool};

use crate::oracle::fma;

/// Bytes at a multiple of [`FACTOR_ALIGN`].
pub(super) struct Aligned {
    bytes: Vec<u8>,
    range: Range<usize>,
}

impl Aligned {
    pub(super) fn new(len: usize) -> Self {
        let bytes = vec![0; len + FACTOR_ALIGN];
        let start = bytes.as_ptr().align_offset(FACTOR_ALIGN);
        Self { bytes, range: start..start + len }
    }

    pub(super) fn get(&self) -> &[u8] {
        &self.bytes[self.range.clone()]
    }

    pub(super) fn get_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.range.clone()]
    }
}

/// A repeatable number in -1..1.
fn number(seed: usize) -> f32 {
    let mixed = (seed as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 40) as f32 / (1 << 23) as f32 - 1.0
}

/// Factors of one site.
struct Site {
    shape: LowRankShape,
    bytes: Aligned,
}

impl Site {
    /// Updates of ranks `ranks`, each of the targets in its bits, with drawn values.
    fn new(
        format: FactorFormat,
        inputs: usize,
        outputs: &[usize],
        ranks: &[(usize, u8)],
        seed: usize,
    ) -> Self {
        let (mut rank, mut expansions) = (0, Vec::new());
        for &(part, targets) in ranks {
            for (target, &outputs) in
                outputs.iter().enumerate().filter(|(target, _)| targets >> target & 1 == 1)
            {
                expansions.push(Expansion { target, first: rank, rank: part, outputs });
            }
            rank += part;
        }
        let shape = LowRankShape::new(format, rank, inputs, expansions, 0);
        let mut bytes = Aligned::new(shape.end());
        let mut write = |width: usize, rank: usize, at: usize, seed: usize| {
            let values: Vec<f32> = (0..rank * width).map(|i| number(seed + i)).collect();
            format.quantize(width, &values, &mut bytes.get_mut()[at..][..format.bytes(rank, width)]);
        };
        write(inputs, rank, shape.a(), seed);
        for (index, expansion) in shape.expansions().iter().enumerate() {
            write(expansion.outputs, expansion.rank, shape.b(index), seed + 7919 * (index + 1));
        }
        Self { shape, bytes }
    }

    fn update(&self) -> LowRank<'_> {
        LowRank::new(&self.shape, self.bytes.get())
    }
}

/// Values of a row before its scale, and the scale, of a factor `[rank, width]` in `bytes`.
fn row(format: FactorFormat, [rank, width]: [usize; 2], bytes: &[u8], index: usize) -> (Vec<f32>, f32) {
    let range = index * width..(index + 1) * width;
    let float = |bytes: &[u8; 4]| f32::from_le_bytes(*bytes);
    match format {
        FactorFormat::F32 => (bytes.as_chunks().0[range].iter().map(float).collect(), 1.0),
        FactorFormat::F16 => {
            let half = |bytes: &[u8; 2]| f16::from_le_bytes(*bytes).to_f32();
            (bytes.as_chunks().0[range].iter().map(half).collect(), 1.0)
        }
        FactorFormat::I8 => {
            let scales = &bytes[(rank * width).next_multiple_of(FACTOR_ALIGN)..];
            let codes = bytes[range].iter().map(|&code| f32::from(code as i8));
            (codes.collect(), float(&scales.as_chunks().0[index]))
        }
    }
}

/// Scale and gate of a row, and the factors.
type RowTerm<'a> = ([f32; 2], LowRank<'a>);

/// The definition: what one row gets, in f32 in the order of the documentation, and in f64 with the
/// sum of magnitudes.
fn expected(x: &[f32], terms: &[RowTerm<'_>], target: usize, y: &[f32]) -> (Vec<f32>, Vec<(f64, f64)>) {
    let reference = Kernels::for_isa(Isa::Scalar).expect("the portable kernels");
    let mut exact: Vec<(f64, f64)> = y.iter().map(|&y| (y.into(), f64::from(y).abs())).collect();
    let mut y = y.to_vec();
    for ([scale, gate], update) in terms {
        let (shape, bytes) = (update.shape(), update.bytes());
        let factor = |at: usize, size: [usize; 2], index| {
            row(shape.format(), size, &bytes[at..][..shape.format().bytes(size[0], size[1])], index)
        };
        for (index, expansion) in shape.expansions().iter().enumerate() {
            for i in (0..expansion.rank).filter(|_| expansion.target == target) {
                let (a, a_scale) = factor(shape.a(), [shape.rank(), shape.inputs()], expansion.first + i);
                let (b, b_scale) = factor(shape.b(index), [expansion.rank, expansion.outputs], i);
                let weight = reference.dot(&a, x) * a_scale * (scale * gate) * b_scale;
                y.iter_mut().zip(&b).for_each(|(y, &b)| *y = fma(weight, b, *y));
                let terms = || a.iter().zip(x).map(|(&a, &x)| f64::from(a) * f64::from(x));
                let scale = [a_scale, *scale, *gate, b_scale].into_iter().map(f64::from).product::<f64>();
                let (sum, size) = (terms().sum::<f64>(), terms().map(f64::abs).sum::<f64>());
                for (exact, &b) in exact.iter_mut().zip(&b) {
                    let b = f64::from(b) * scale;
                    *exact = (exact.0 + sum * b, exact.1 + size * b.abs());
                }
            }
        }
    }
    (y, exact)
}

/// A number of rows, and for each of their terms the scale, the site and whether rows have gates.
type List = (usize, Vec<(f32, usize, bool)>);

/// Compares all instruction sets and two pools with the definition.
fn compare(inputs: usize, outputs: &[usize], sites: &[Site], lists: &[List]) {
    let n_rows: usize = lists.iter().map(|(rows, _)| rows).sum();
    let input: Vec<f32> = (0..n_rows * inputs).map(|i| 3.0 * number(i + 1000)).collect();
    let before: Vec<Vec<f32>> =
        outputs.iter().map(|n| (0..n_rows * n).map(|i| number(i + n)).collect()).collect();
    let gates: Vec<f32> = (0..n_rows).map(|row| number(row + 17).abs()).collect();
    let (mut terms, mut of_rows) = (Vec::new(), Vec::new());
    for (n, list) in lists {
        let rows = of_rows.len()..of_rows.len() + n;
        terms.extend(list.iter().map(|&(scale, site, gated)| {
            let gates = if gated { &gates[rows.clone()] } else { &[] };
            LowRankTerm { rows: rows.clone(), scale, gates, update: sites[site].update() }
        }));
        of_rows.extend(rows.map(|row| -> Vec<RowTerm<'_>> {
            let term = |&(scale, site, gated): &(f32, usize, bool)| {
                ([scale, if gated { gates[row] } else { 1.0 }], sites[site].update())
            };
            list.iter().map(term).collect()
        }));
    }
    let rank = |list: &List| list.1.iter().map(|&(_, site, _)| sites[site].shape.rank()).sum::<usize>();
    let longest = lists.iter().map(rank).max().unwrap_or(0);
    let unit = 1.01 * 2f64.powi(-24) * (inputs + longest + 4) as f64;
    let of_row = |target: usize, row: usize| {
        let (x, width) = (&input[row * inputs..][..inputs], outputs[target]);
        let before = &before[target][row * width..(row + 1) * width];
        let (bits, exact) = expected(x, &of_rows[row], target, before);
        bits.into_iter().zip(exact)
    };
    let all: Vec<Vec<_>> =
        (0..outputs.len()).map(|target| (0..n_rows).flat_map(|row| of_row(target, row)).collect()).collect();
    let mut scratch = LowRankScratch::default();
    for kernels in Kernels::available() {
        for threads in [1, 3] {
            let pool = ThreadPool::new(threads).expect("a pool");
            let mut found = before.clone();
            let mut outs: Vec<&mut [f32]> = found.iter_mut().map(|out| &mut out[..]).collect();
            kernels.add_low_rank(&pool, &input, &terms, &mut outs, &mut scratch);
            for (target, (found, all)) in found.iter().zip(&all).enumerate() {
                for (index, (found, (bits, exact))) in found.iter().zip(all).enumerate() {
                    let at = || format!("{}, {threads} threads: target {target}, {index}", kernels.isa());
                    assert_eq!(found.to_bits(), bits.to_bits(), "{}: {found} {bits}", at());
                    let error = (f64::from(*found) - exact.0).abs();
                    assert!(error <= unit * exact.1, "{}: {found}, off by {error:e}", at());
                }
            }
        }
    }
}

fn format() -> impl Strategy<Value = FactorFormat> {
    prop::sample::select(FactorFormat::ALL.to_vec())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60 * ProptestConfig::default().cases / 256, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any adapters, ranks, formats, scales, gates and rows, several adapters per row included.
    #[test]
    fn rows_get_the_bits_of_their_terms_alone(
        inputs in 1usize..50,
        outputs in prop::collection::vec(1usize..160, 1..4),
        drawn in prop::collection::vec(
            (format(), prop::collection::vec((1usize..12, 1u8..8), 1..4)), 1..5),
        lists in prop::collection::vec(
            (1usize..13, prop::collection::vec((-2f32..2.0, 0usize..8, any::<bool>()), 0..3)), 1..8),
    ) {
        let sites: Vec<Site> = drawn.iter().enumerate()
            .map(|(seed, (format, ranks))| Site::new(*format, inputs, &outputs, ranks, 31 * seed)).collect();
        let lists: Vec<List> = lists.into_iter()
            .map(|(rows, list)| {
                let site = |(scale, site, gated)| (scale, site % sites.len(), gated);
                (rows, list.into_iter().map(site).collect())
            })
            .collect();
        compare(inputs, &outputs, &sites, &lists);
    }
}

/// Enough work for several threads, strips, parts of runs, spans and passes over components.
#[test]
fn large_steps_get_the_same_bits() {
    let (inputs, outputs) = (1100, [1300, 130]);
    for format in FactorFormat::ALL {
        let sites =
            [[(17, 3), (3, 2)], [(8, 1), (1, 3)]].map(|ranks| Site::new(format, inputs, &outputs, &ranks, 5));
        let one = |rows, site, gated| (rows, vec![(0.5, site, gated)]);
        compare(
            inputs,
            &outputs,
            &sites,
            &[
                one(37, 0, true),
                (1, vec![]),
                one(1, 1, false),
                one(2, 0, false),
                (5, vec![(1.0, 1, false), (-1.5, 0, true)]),
            ],
        );
    }
}

/// Products with their updates in one dispatch have the bits of products and then updates: few rows
/// and many, several pieces per thread, matrices of other formats side by side.
#[test]
fn products_and_updates_in_one_dispatch_get_the_same_bits() {
    let (inputs, outputs) = (256, [1056, 40, 608]);
    let sites = [[(16, 7), (3, 4)], [(2, 1), (8, 2)]]
        .map(|ranks| Site::new(FactorFormat::F16, inputs, &outputs, &ranks, 3));
    for formats in [
        [WeightFormat::Q4K, WeightFormat::Q8_0, WeightFormat::Q6K],
        [WeightFormat::F32, WeightFormat::F16, WeightFormat::Q8_0],
    ] {
        let weights: Vec<_> =
            outputs.iter().zip(formats).map(|(&rows, format)| matrix(format, rows, inputs)).collect();
        for n_rows in [1, 5, 33, 90] {
            let half = n_rows / 2;
            let mut terms =
                vec![LowRankTerm { rows: half..n_rows, scale: 0.5, gates: &[], update: sites[0].update() }];
            if half > 0 {
                let [first, second] = [0, 1].map(|site| LowRankTerm {
                    rows: 0..half,
                    scale: -1.5,
                    gates: &[],
                    update: sites[site].update(),
                });
                terms.splice(0..0, [first, second]);
            }
            for kernels in Kernels::available() {
                for threads in [1, 3] {
                    let pool = ThreadPool::new(threads).expect("a pool");
                    one_dispatch_or_two(&kernels, &pool, &weights, n_rows, &terms);
                }
            }
        }
    }
}

fn matrix(format: WeightFormat, rows: usize, cols: usize) -> PackedMatrix {
    let values: Vec<f32> = (0..rows * cols).map(number).collect();
    let mut bytes = vec![0; rows * format.row_bytes(cols).expect("whole quant blocks")];
    format.quantize(&values, &mut bytes);
    PackedMatrix::new(format, rows, cols, SharedBytes::new(bytes)).expect("a matrix")
}

fn jobs<'a>(weights: &'a [PackedMatrix], outs: &'a mut [Vec<f32>]) -> Vec<MatmulJob<'a>> {
    weights.iter().zip(outs).map(|(weights, out)| MatmulJob { weights, out }).collect()
}

fn one_dispatch_or_two(
    kernels: &Kernels,
    pool: &ThreadPool,
    weights: &[PackedMatrix],
    n_rows: usize,
    terms: &[LowRankTerm<'_>],
) {
    let (mut x, cols) = (Activations::new(), weights[0].cols());
    x.resize(n_rows, cols).iter_mut().enumerate().for_each(|(i, x)| *x = number(i + 77));
    x.quantize(kernels, pool);
    let mut scratch = LowRankScratch::default();
    let [mut expected, mut found] =
        [(); 2].map(|()| weights.iter().map(|w| vec![0.0; n_rows * w.rows()]).collect::<Vec<_>>());
    kernels.matmul_many(pool, &x, &mut jobs(weights, &mut expected));
    let mut outs: Vec<&mut [f32]> = expected.iter_mut().map(|out| &mut out[..]).collect();
    kernels.add_low_rank(pool, x.values(), terms, &mut outs, &mut scratch);
    kernels.matmul_low_rank(pool, &x, &mut jobs(weights, &mut found), terms, &mut scratch);
    let bits = |outs: &[Vec<f32>]| outs.concat().into_iter().map(f32::to_bits).collect::<Vec<_>>();
    assert!(bits(&found) == bits(&expected), "{}, {n_rows} rows", kernels.isa());
}

#[test]
#[should_panic(expected = "rows 1..3 after 0..2 of 3")]
fn rows_of_two_lists_do_not_overlap() {
    let site = Site::new(FactorFormat::F16, 4, &[5], &[(1, 1)], 0);
    let terms = [0..2, 1..3].map(|rows| LowRankTerm { rows, scale: 1.0, gates: &[], update: site.update() });
    add(&terms, &[0.0; 12], &mut [0.0; 15]);
}

#[test]
#[should_panic(expected = "target 0 of 5 values for 3 rows")]
fn products_have_all_rows() {
    let site = Site::new(FactorFormat::F16, 4, &[5], &[(1, 1)], 0);
    let term = LowRankTerm { rows: 0..1, scale: 1.0, gates: &[], update: site.update() };
    add(&[term], &[0.0; 12], &mut [0.0; 5]);
}

#[test]
#[should_panic(expected = "2 gates for rows 0..3")]
fn each_row_has_a_gate() {
    let site = Site::new(FactorFormat::F16, 4, &[5], &[(1, 1)], 0);
    let term = LowRankTerm { rows: 0..3, scale: 1.0, gates: &[0.5; 2], update: site.update() };
    add(&[term], &[0.0; 12], &mut [0.0; 15]);
}

#[test]
fn a_gate_of_1_has_the_bits_of_none() {
    let site = Site::new(FactorFormat::I8, 9, &[5], &[(3, 1)], 3);
    let input: Vec<f32> = (0..18).map(number).collect();
    let [found, expected] = [&[1.0; 2][..], &[]].map(|gates| {
        let mut out = [0.3; 10];
        add(&[LowRankTerm { rows: 0..2, scale: 0.7, gates, update: site.update() }], &input, &mut out);
        out.map(f32::to_bits)
    });
    assert_eq!(found, expected);
}

fn add(terms: &[LowRankTerm<'_>], input: &[f32], out: &mut [f32]) {
    let kernels = Kernels::detect().expect("kernels");
    kernels.add_low_rank(&ThreadPool::single(), input, terms, &mut [out], &mut LowRankScratch::default());
}
