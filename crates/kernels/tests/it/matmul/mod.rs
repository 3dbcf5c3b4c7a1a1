//! Properties of matrix products: bits independent of instruction set, split and other tokens;
//! values close to an independent double-precision oracle.

mod activations;
mod grouped;

use proptest::prelude::*;
use ruvllm_kernels::matmul::{Activations, MatmulJob};
use ruvllm_kernels::quant::{PackedMatrix, SharedBytes, WeightFormat};
use ruvllm_kernels::{Isa, Kernels, ThreadPool};
use ruvllm_testkit::Random;

/// A matrix over `blocks`, placed at an odd address.
fn matrix(format: WeightFormat, rows: usize, cols: usize, blocks: &[u8]) -> PackedMatrix {
    let mut bytes = vec![0; blocks.len() + 2];
    let odd = 1 + usize::from(bytes.as_ptr() as usize % 2 == 1);
    bytes[odd..odd + blocks.len()].copy_from_slice(blocks);
    let bytes = SharedBytes::new(bytes).slice(odd..odd + blocks.len());
    PackedMatrix::new(format, rows, cols, bytes).unwrap()
}

fn normal_matrix(random: &mut Random, format: WeightFormat, rows: usize, cols: usize) -> PackedMatrix {
    let values: Vec<f32> = (0..rows * cols).map(|_| random.normal()).collect();
    let mut blocks = vec![0; format.row_bytes(cols).unwrap() * rows];
    format.quantize(&values, &mut blocks);
    matrix(format, rows, cols, &blocks)
}

fn product(kernels: &Kernels, pool: &ThreadPool, w: &PackedMatrix, x: &[f32]) -> Vec<f32> {
    let tokens = x.len() / w.cols();
    let mut activations = Activations::new();
    activations.resize(tokens, w.cols()).copy_from_slice(x);
    activations.quantize(kernels, pool);
    let mut out = vec![f32::NAN; tokens * w.rows()];
    kernels.matmul(pool, w, &activations, &mut out);
    out
}

/// Bits, with all NaNs equal.
fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| if x.is_nan() { u32::MAX } else { x.to_bits() }).collect()
}

/// Number of columns that fits a format: odd counts, whole quant blocks, and rows that are not a
/// multiple of eight sub-blocks.
fn columns(format: WeightFormat, units: usize) -> usize {
    match format.block_len() {
        1 => 149 * units + 3,
        len => len * units,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(160 * ProptestConfig::default().cases / 256))]

    #[test]
    fn all_instruction_sets_give_the_same_bits(
        format in prop::sample::select(&WeightFormat::ALL[..]),
        rows in 0_usize..40,
        units in 1_usize..12,
        tokens in 0_usize..40,
        seed in any::<u64>(),
        any_bytes in any::<bool>(),
    ) {
        let mut random = Random::new(seed);
        let cols = columns(format, units);
        let w = if any_bytes {
            let blocks = random.bytes(format.row_bytes(cols).unwrap() * rows);
            matrix(format, rows, cols, &blocks)
        } else {
            normal_matrix(&mut random, format, rows, cols)
        };
        let x: Vec<f32> = (0..tokens * cols).map(|_| random.normal()).collect();
        let pool = ThreadPool::single();
        let reference = product(&Kernels::for_isa(Isa::Scalar).unwrap(), &pool, &w, &x);
        for kernels in Kernels::available() {
            let found = product(&kernels, &pool, &w, &x);
            prop_assert_eq!(bits(&found), bits(&reference), "{:?} {}", kernels, format.name());
        }
    }

    #[test]
    fn a_product_depends_on_its_row_and_token_alone(
        format in prop::sample::select(&WeightFormat::ALL[..]),
        rows in 1_usize..70,
        units in 1_usize..12,
        tokens in 1_usize..40,
        seed in any::<u64>(),
    ) {
        let mut random = Random::new(seed);
        let cols = columns(format, units);
        let w = normal_matrix(&mut random, format, rows, cols);
        let x: Vec<f32> = (0..tokens * cols).map(|_| random.normal()).collect();
        let kernels = Kernels::for_isa(Isa::best()).unwrap();
        let together = product(&kernels, &ThreadPool::new(3).unwrap(), &w, &x);
        for (x, together) in x.chunks_exact(cols).zip(together.chunks_exact(rows)) {
            prop_assert_eq!(bits(&product(&kernels, &ThreadPool::single(), &w, x)), bits(together));
        }
    }
}

/// Remainders of rows, tokens and sub-blocks of all register tiles.
///
/// Quant blocks have arbitrary scales, including NaN and infinity.
#[test]
fn every_remainder_gives_the_same_bits() {
    if !Isa::Avx512.is_available() {
        println!("the AVX-512 products are not compared: this CPU has no AVX-512 VNNI");
    }
    let (pool, scalar) = (ThreadPool::single(), Kernels::for_isa(Isa::Scalar).unwrap());
    let formats = WeightFormat::ALL.into_iter().filter(|format| format.uses_q8());
    for (seed, format) in formats.enumerate() {
        let mut random = Random::new(seed as u64);
        for (units, rows) in [(1, 1), (1, 16), (3, 17), (9, 31), (8, 33), (2, 49)] {
            let cols = columns(format, units);
            let any = random.bytes(format.row_bytes(cols).unwrap() * rows);
            for w in [normal_matrix(&mut random, format, rows, cols), matrix(format, rows, cols, &any)] {
                for tokens in (1..=13).chain([16, 17, 25, 32, 33]) {
                    let x: Vec<f32> = (0..tokens * cols).map(|_| random.normal()).collect();
                    let reference = bits(&product(&scalar, &pool, &w, &x));
                    for kernels in Kernels::available() {
                        let found = bits(&product(&kernels, &pool, &w, &x));
                        assert_eq!(found, reference, "{kernels:?} {} {rows} {cols} {tokens}", format.name());
                    }
                }
            }
        }
    }
}

/// Rows of the first and of the last stored quants and grid points; one or both ends of a quant
/// block are the half-precision number 1, its scale in most formats.
fn extreme_matrix(format: WeightFormat, rows: usize, cols: usize) -> PackedMatrix {
    let mut blocks = Vec::new();
    for row in 0..rows {
        for _ in 0..cols / format.block_len() {
            let start = blocks.len();
            blocks.resize(start + format.block_bytes(), if row % 2 == 0 { 0xff } else { 0 });
            let end = blocks.len();
            blocks[start..start + 2].copy_from_slice(&[0x00, 0x3c]);
            blocks[end - 2..].copy_from_slice(&[0x00, 0x3c]);
        }
    }
    matrix(format, rows, cols, &blocks)
}

/// Sums of 16 bits at their limits: the signs of a token are those of a weight row, or the
/// opposite.
///
/// Of eight activations one is 127 times the scale, the others `level` times; the levels are on
/// both sides of the limit of the formats that have one.
#[test]
fn the_largest_products_of_many_tokens_do_not_overflow() {
    let (pool, scalar) = (ThreadPool::single(), Kernels::for_isa(Isa::Scalar).unwrap());
    let (rows, cols, levels) = (18, 512, [127.0, 86.0, 85.0, 84.0, 60.0]);
    for format in WeightFormat::ALL.into_iter().filter(|format| format.uses_q8()) {
        let w = extreme_matrix(format, rows, cols);
        let mut row = vec![0.0; cols];
        let mut x: Vec<f32> = Vec::new();
        for token in 0..40 {
            w.dequantize_row(token % rows, &mut row);
            // A tile of four tokens has one level, so that one token does not decide for others.
            let level = levels[token / 4 % levels.len()];
            x.extend(row.iter().enumerate().map(|(i, &w)| {
                let magnitude = if i % 8 == 0 { 127.0 } else { level };
                if (w < 0.0) == (token % 4 < 2) { magnitude } else { -magnitude }
            }));
        }
        let reference = bits(&product(&scalar, &pool, &w, &x));
        for kernels in Kernels::available() {
            let found = bits(&product(&kernels, &pool, &w, &x));
            assert_eq!(found, reference, "{kernels:?} {}", format.name());
        }
    }
}

/// One to forty tokens, over all paths: the bits of a row are those of the row alone.
#[test]
fn any_number_of_tokens_gives_the_bits_of_one() {
    let pool = ThreadPool::single();
    for (seed, format) in WeightFormat::ALL.into_iter().enumerate() {
        let mut random = Random::new(seed as u64);
        let cols = columns(format, 2 * 256 / format.block_len().max(64) + 1);
        let w = normal_matrix(&mut random, format, 21, cols);
        let x: Vec<f32> = (0..40 * cols).map(|_| random.normal()).collect();
        for kernels in Kernels::available() {
            let alone: Vec<u32> =
                x.chunks_exact(cols).flat_map(|x| bits(&product(&kernels, &pool, &w, x))).collect();
            for tokens in 1..=40 {
                let found = bits(&product(&kernels, &pool, &w, &x[..tokens * cols]));
                assert_eq!(found, alone[..tokens * 21], "{kernels:?} {} {tokens}", format.name());
            }
        }
    }
}

/// Asserts that float products equal the scalar dot products bit for bit, with all kernels.
fn assert_dots(w: &PackedMatrix, x: &[f32]) {
    let (rows, cols) = (w.rows(), w.cols());
    let scalar = Kernels::for_isa(Isa::Scalar).unwrap();
    let mut weights = vec![0.0; rows * cols];
    w.format().dequantize(w.bytes(), &mut weights);
    let expected: Vec<u32> = x
        .chunks_exact(cols)
        .flat_map(|x| weights.chunks_exact(cols).map(|w| scalar.dot(w, x).to_bits()))
        .collect();
    for kernels in Kernels::available() {
        let found = product(&kernels, &ThreadPool::single(), w, x);
        assert!(
            found.iter().map(|y| y.to_bits()).eq(expected.iter().copied()),
            "{kernels:?} {} {rows}x{cols}, {} tokens",
            w.format().name(),
            x.len() / cols
        );
    }
}

/// Rows, columns and tokens for every level of float blocking, with remainders on each.
#[test]
fn large_float_products_have_the_same_bits_as_small_ones() {
    let mut random = Random::new(5);
    for format in [WeightFormat::F32, WeightFormat::F16, WeightFormat::BF16] {
        let w = normal_matrix(&mut random, format, 131, 523);
        let x: Vec<f32> = (0..195 * 523).map(|_| random.normal()).collect();
        assert_dots(&w, &x);
    }
}

/// Remainders of rows and tokens of the float register tiles, and columns around vectors and slabs.
#[test]
fn float_products_have_every_remainder() {
    let mut random = Random::new(6);
    for cols in [1, 7, 8, 9, 513] {
        let x: Vec<f32> = (0..21 * cols).map(|_| random.normal()).collect();
        let w = normal_matrix(&mut random, WeightFormat::F32, 17, cols);
        for rows in 1..=17 {
            let part = matrix(WeightFormat::F32, rows, cols, &w.bytes()[..rows * cols * 4]);
            for tokens in (1..=21).step_by(if cols > 100 { 4 } else { 1 }) {
                assert_dots(&part, &x[..tokens * cols]);
            }
        }
    }
}

/// Rows of weights that reuse the activations of a column chunk, in several chunks.
#[test]
fn few_tokens_with_long_rows_give_the_same_bits() {
    let (pool, scalar) = (ThreadPool::single(), Kernels::for_isa(Isa::Scalar).unwrap());
    let mut random = Random::new(11);
    for format in [WeightFormat::Q8_0, WeightFormat::Q4K, WeightFormat::Q6K] {
        let cols = 4096 + format.block_len();
        let w = normal_matrix(&mut random, format, 19, cols);
        let x: Vec<f32> = (0..15 * cols).map(|_| random.normal()).collect();
        let reference = bits(&product(&scalar, &pool, &w, &x));
        for kernels in Kernels::available() {
            let found = bits(&product(&kernels, &pool, &w, &x));
            assert_eq!(found, reference, "{kernels:?} {}", format.name());
        }
    }
}

/// Largest normalized mean squared error with 8-bit activations: about `(1/127)^2 / 12` times the
/// squared crest factor of 32 values.
const Q8_NMSE: f64 = 5e-5;
/// Largest normalized mean squared error of f32 arithmetic.
const F32_NMSE: f64 = 1e-12;

#[test]
fn products_are_right() {
    let (rows, cols, tokens) = (37, 2048, 19);
    for format in WeightFormat::ALL {
        let mut random = Random::new(7);
        let w = normal_matrix(&mut random, format, rows, cols);
        let x: Vec<f32> = (0..tokens * cols).map(|_| random.normal()).collect();
        let mut weights = vec![0.0; rows * cols];
        format.dequantize(w.bytes(), &mut weights);
        for kernels in Kernels::available() {
            for pool in [ThreadPool::single(), ThreadPool::new(2).unwrap()] {
                let found = product(&kernels, &pool, &w, &x);
                let (mut error, mut power) = (0.0, 0.0);
                for (x, found) in x.chunks_exact(cols).zip(found.chunks_exact(rows)) {
                    for (weights, &found) in weights.chunks_exact(cols).zip(found) {
                        let expected: f64 =
                            weights.iter().zip(x).map(|(&w, &x)| f64::from(w) * f64::from(x)).sum();
                        error += (f64::from(found) - expected).powi(2);
                        power += expected * expected;
                    }
                }
                let limit = if format.uses_q8() { Q8_NMSE } else { F32_NMSE };
                assert!(error / power < limit, "{kernels:?} {}: NMSE {}", format.name(), error / power);
            }
        }
    }
}

#[test]
fn activations_that_are_not_finite_give_nan() {
    for kernels in Kernels::available() {
        for format in WeightFormat::ALL {
            for tokens in [1, 2, 7, 21] {
                let w = normal_matrix(&mut Random::new(3), format, 3, 512);
                for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                    let mut x = vec![1.0; tokens * 512];
                    x[(tokens - 1) * 512 + 300] = bad;
                    let out = product(&kernels, &ThreadPool::single(), &w, &x);
                    let (good, spoiled) = out.split_at((tokens - 1) * 3);
                    assert!(good.iter().all(|y| y.is_finite()));
                    assert!(spoiled.iter().all(|y| !y.is_finite()), "{kernels:?} {} {bad}", format.name());
                }
            }
        }
    }
}

#[test]
fn several_matrices_share_one_dispatch() {
    let mut random = Random::new(11);
    let formats =
        [WeightFormat::Q4K, WeightFormat::Q6K, WeightFormat::F16, WeightFormat::Q8_0, WeightFormat::F32];
    let rows = [33, 1, 16, 0, 50];
    let matrices: Vec<PackedMatrix> =
        formats.iter().zip(rows).map(|(&f, rows)| normal_matrix(&mut random, f, rows, 512)).collect();
    for tokens in [0, 1, 3, 18] {
        let x: Vec<f32> = (0..tokens * 512).map(|_| random.normal()).collect();
        let (kernels, pool) = (Kernels::for_isa(Isa::best()).unwrap(), ThreadPool::new(2).unwrap());
        let mut activations = Activations::new();
        activations.resize(tokens, 512).copy_from_slice(&x);
        activations.quantize(&kernels, &pool);
        let mut outs: Vec<Vec<f32>> = rows.iter().map(|rows| vec![f32::NAN; rows * tokens]).collect();
        let mut jobs: Vec<MatmulJob<'_>> =
            matrices.iter().zip(&mut outs).map(|(weights, out)| MatmulJob { weights, out }).collect();
        kernels.matmul_many(&pool, &activations, &mut jobs);
        for (matrix, out) in matrices.iter().zip(&outs) {
            assert_eq!(bits(out), bits(&product(&kernels, &pool, matrix, &x)));
        }
    }
}

#[test]
fn no_columns_give_zeros() {
    for format in WeightFormat::ALL {
        let w = matrix(format, 3, 0, &[]);
        let kernels = Kernels::for_isa(Isa::best()).unwrap();
        let mut activations = Activations::new();
        activations.resize(2, 0);
        activations.quantize(&kernels, &ThreadPool::single());
        let mut out = [f32::NAN; 6];
        kernels.matmul(&ThreadPool::single(), &w, &activations, &mut out);
        assert_eq!(out, [0.0; 6]);
    }
}

#[test]
#[should_panic(expected = "Activations::quantize must precede")]
fn integer_formats_need_quantized_activations() {
    let w = normal_matrix(&mut Random::new(1), WeightFormat::Q8_0, 3, 64);
    let mut activations = Activations::new();
    activations.resize(1, 64).fill(1.0);
    Kernels::for_isa(Isa::Scalar).unwrap().matmul(&ThreadPool::single(), &w, &activations, &mut [0.0; 3]);
}
