//! Activations: updates, and what voids their quantization.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use ruvllm_kernels::matmul::Activations;
use ruvllm_kernels::quant::WeightFormat;
use ruvllm_kernels::{Kernels, ThreadPool};

use super::matrix;

/// Number of tokens that every instruction set quantizes into tiles.
const TILED_TOKENS: usize = 33;

fn quantized(kernels: &Kernels, tokens: usize, cols: usize, x: &[f32]) -> Activations {
    let mut activations = Activations::new();
    activations.resize(tokens, cols).copy_from_slice(x);
    activations.quantize(kernels, &ThreadPool::single());
    activations
}

/// Sums of the rows, as products with a quantized row of ones.
fn sums(kernels: &Kernels, x: &Activations) -> Vec<f32> {
    let mut ones = vec![0; WeightFormat::Q8_0.row_bytes(x.cols()).unwrap()];
    WeightFormat::Q8_0.quantize(&vec![1.0; x.cols()], &mut ones);
    let mut out = vec![f32::NAN; x.tokens()];
    let ones = matrix(WeightFormat::Q8_0, 1, x.cols(), &ones);
    kernels.matmul(&ThreadPool::single(), &ones, x, &mut out);
    out
}

/// Asserts that products with the rows are refused.
#[track_caller]
fn assert_void(kernels: &Kernels, x: &Activations) {
    let panic = catch_unwind(AssertUnwindSafe(|| sums(kernels, x))).expect_err("quants of former rows");
    let message = panic.downcast_ref::<String>().expect("a message");
    assert!(message.starts_with("Activations::quantize must precede"), "{message}");
}

#[test]
fn changing_the_rows_voids_the_quants() {
    let pool = ThreadPool::single();
    for kernels in Kernels::available() {
        let mut activations = quantized(&kernels, 1, 32, &[1.0; 32]);
        activations.quantize(&kernels, &pool);
        assert!((sums(&kernels, &activations)[0] - 32.0).abs() < 0.1);
        activations.values_mut().fill(-2.0);
        assert_void(&kernels, &activations);
        activations.quantize(&kernels, &pool);
        assert!((sums(&kernels, &activations)[0] + 64.0).abs() < 0.1);
    }
}

#[test]
fn a_panic_of_an_update_voids_the_quants() {
    let pool = ThreadPool::new(2).unwrap();
    for kernels in Kernels::available() {
        for tokens in [1, TILED_TOKENS] {
            let mut activations = quantized(&kernels, tokens, 32, &vec![1.0; tokens * 32]);
            let update = |_: std::ops::Range<usize>, rows: &mut [f32]| {
                rows.fill(2.0);
                resume_unwind(Box::new("of the update"));
            };
            catch_unwind(AssertUnwindSafe(|| activations.update_and_quantize(&kernels, &pool, &update)))
                .expect_err("the panic reaches the caller");
            assert_eq!(activations.values()[0], 2.0);
            assert_void(&kernels, &activations);
            activations.quantize(&kernels, &pool);
            let again = quantized(&kernels, tokens, 32, activations.values());
            assert_eq!(format!("{activations:?}"), format!("{again:?}"), "{tokens} tokens");
        }
    }
}

#[test]
fn a_shape_beyond_memory_is_refused_and_changes_nothing() {
    let mut activations = Activations::new();
    activations.resize(2, 3).fill(1.0);
    // The first product overflows to 0 in `usize`.
    for (tokens, cols) in [(1 << (usize::BITS - 1), 2), (usize::MAX, usize::MAX), (usize::MAX / 2, 1)] {
        catch_unwind(AssertUnwindSafe(|| activations.resize(tokens, cols).len())).expect_err("too large");
        assert_eq!((activations.tokens(), activations.cols(), activations.values().len()), (2, 3, 6));
    }
}

#[test]
fn an_update_and_its_quantization_in_one_pass_are_those_in_two() {
    let pool = ThreadPool::new(3).unwrap();
    for kernels in Kernels::available() {
        for (tokens, cols) in [(0, 64), (1, 96), (16, 32), (17, 40), (33, 256)] {
            let start = |x: &mut Activations| {
                let values = x.resize(tokens, cols).iter_mut().enumerate();
                values.for_each(|(i, value)| *value = (i as f32 * 0.37).sin());
            };
            let double = |rows: std::ops::Range<usize>, values: &mut [f32]| {
                assert_eq!(values.len(), rows.len() * cols);
                for (token, row) in rows.zip(values.chunks_exact_mut(cols)) {
                    row.iter_mut().for_each(|value| *value *= 2.0 + token as f32);
                }
            };
            let [mut one, mut two] = [Activations::new(), Activations::new()];
            start(&mut one);
            one.update_and_quantize(&kernels, &pool, &double);
            start(&mut two);
            two.update(&pool, &double);
            two.quantize(&kernels, &pool);
            assert_eq!(one.values(), two.values());
            assert_eq!(format!("{one:?}"), format!("{two:?}"), "{tokens} x {cols}");
        }
    }
}
