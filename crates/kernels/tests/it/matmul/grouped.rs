//! Products of groups of rows against products of their rows alone.

use std::panic::{AssertUnwindSafe, catch_unwind};

use proptest::prelude::*;
use ruvllm_kernels::matmul::{Activations, GroupedJob, RowGroups};
use ruvllm_kernels::quant::{PackedMatrix, SharedBytes, WeightFormat};
use ruvllm_kernels::{Kernels, ThreadPool};
use ruvllm_testkit::Random;

/// Matrices of random weights.
fn stack(random: &mut Random, format: WeightFormat, n: usize, rows: usize, cols: usize) -> Vec<PackedMatrix> {
    let row_bytes = format.row_bytes(cols).expect("whole blocks");
    let one = |random: &mut Random| {
        let values: Vec<f32> = (0..rows * cols).map(|_| random.normal()).collect();
        let mut bytes = vec![0; row_bytes * rows];
        format.quantize(&values, &mut bytes);
        PackedMatrix::new(format, rows, cols, SharedBytes::new(bytes)).expect("its shape")
    };
    (0..n).map(|_| one(random)).collect()
}

fn grouped(
    kernels: &Kernels,
    pool: &ThreadPool,
    lens: &[usize],
    x: &[f32],
    stacks: [&[PackedMatrix]; 2],
) -> [Vec<f32>; 2] {
    let mut groups = RowGroups::new();
    groups.fill(kernels, lens.iter().copied());
    let mut inputs = Activations::new();
    inputs.resize(groups.rows(), stacks[0][0].cols()).copy_from_slice(x);
    inputs.quantize_groups(kernels, pool, &groups);
    let mut outs = stacks.map(|stack| vec![f32::NAN; groups.rows() * stack[0].rows()]);
    let [first, second] = &mut outs;
    let mut jobs =
        [GroupedJob { weights: stacks[0], out: first }, GroupedJob { weights: stacks[1], out: second }];
    kernels.matmul_grouped(pool, &inputs, &groups, &mut jobs);
    outs
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96 * ProptestConfig::default().cases / 256))]

    #[test]
    fn a_group_is_the_product_of_its_rows_alone(
        formats in prop::array::uniform2(prop::sample::select(&WeightFormat::ALL[..])),
        lens in prop::collection::vec(
            prop_oneof![Just(0_usize), 1_usize..4, 16_usize..19, 23_usize..27, 32_usize..45], 1..7),
        rows in prop::array::uniform2(1_usize..70),
        seed in any::<u64>(),
    ) {
        let mut random = Random::new(seed);
        let cols = 256;
        let stacks = [0, 1].map(|i| stack(&mut random, formats[i], lens.len(), rows[i], cols));
        let x: Vec<f32> = (0..lens.iter().sum::<usize>() * cols).map(|_| random.normal()).collect();
        for kernels in Kernels::available() {
            let pool = ThreadPool::new(3).expect("threads");
            let found = grouped(&kernels, &pool, &lens, &x, [&stacks[0], &stacks[1]]);
            for ((found, stack), rows) in found.iter().zip(&stacks).zip(rows) {
                let mut first = 0;
                for (w, &len) in stack.iter().zip(&lens) {
                    let mut alone = Activations::new();
                    alone.resize(len, cols).copy_from_slice(&x[first * cols..][..len * cols]);
                    alone.quantize(&kernels, &pool);
                    let mut expected = vec![0.0; len * rows];
                    kernels.matmul(&pool, w, &alone, &mut expected);
                    prop_assert_eq!(bits(&found[first * rows..][..len * rows]), bits(&expected));
                    first += len;
                }
            }
        }
    }

    /// Against a scalar loop in double precision over the dequantized weights.
    #[test]
    fn groups_are_close_to_a_naive_loop(
        format in prop::sample::select(&WeightFormat::ALL[..]),
        lens in prop::collection::vec(0_usize..40, 1..6),
        seed in any::<u64>(),
    ) {
        let mut random = Random::new(seed);
        let (rows, cols) = (21, 256);
        let weights = stack(&mut random, format, lens.len(), rows, cols);
        let x: Vec<f32> = (0..lens.iter().sum::<usize>() * cols).map(|_| random.normal()).collect();
        let kernels = Kernels::detect().expect("kernels");
        let [found, _] = grouped(&kernels, &ThreadPool::single(), &lens, &x, [&weights, &weights]);
        let owner = lens.iter().enumerate().flat_map(|(expert, &len)| std::iter::repeat_n(expert, len));
        let mut row = vec![0.0; cols];
        for ((x, out), expert) in x.chunks_exact(cols).zip(found.chunks_exact(rows)).zip(owner) {
            for (r, &out) in out.iter().enumerate() {
                weights[expert].dequantize_row(r, &mut row);
                let exact: f64 = x.iter().zip(&row).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
                // 8-bit activations: half a step of 1/127 of the largest value, 256 times.
                prop_assert!((f64::from(out) - exact).abs() < 1.5, "{} instead of {}", out, exact);
            }
        }
    }
}

#[test]
fn no_rows_and_missing_matrices() {
    let kernels = Kernels::detect().expect("kernels");
    let pool = ThreadPool::single();
    let weights = stack(&mut Random::new(1), WeightFormat::F32, 2, 3, 8);
    let [none, _] = grouped(&kernels, &pool, &[0, 0], &[], [&weights, &weights]);
    assert!(none.is_empty());
    let beyond = catch_unwind(AssertUnwindSafe(|| {
        grouped(&kernels, &ThreadPool::single(), &[0, 0, 1], &[1.0; 8], [&weights, &weights])
    }));
    assert!(beyond.is_err());
}
