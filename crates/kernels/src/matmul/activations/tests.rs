//! 8-bit quantization: definition, layouts, and values without a finite scale.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use super::*;
use crate::matmul::slot_position;

fn quantized(kernels: &Kernels, tokens: usize, cols: usize, x: &[f32]) -> Activations {
    let mut activations = Activations::new();
    activations.resize(tokens, cols).copy_from_slice(x);
    activations.quantize(kernels, &ThreadPool::single());
    activations
}

/// Definition for one group: quants, scale.
fn defined(x: &[f32]) -> (Vec<i8>, f32) {
    let largest = x.iter().fold(0.0_f32, |m, x| m.max(x.abs()));
    (x.iter().map(|x| (x * (127.0 / largest)).round_ties_even() as i8).collect(), largest / 127.0)
}

#[test]
fn groups_are_quantized_as_defined() {
    let x: Vec<f32> = (0..96).map(|i| ((i * 7919 % 503) as f32 - 250.0) * 0.013).collect();
    for kernels in Kernels::available() {
        let activations = quantized(&kernels, 1, 96, &x);
        let token = activations.q8().rows.token(0);
        for (b, x) in x.chunks(32).enumerate() {
            let (quants, scale) = defined(x);
            let found = &token.sub_blocks[b];
            assert_eq!((found.quants.as_slice(), found.scale), (quants.as_slice(), scale));
            let halves = [0, 16].map(|h| quants[h..h + 16].iter().map(|&q| i16::from(q)).sum::<i16>());
            assert_eq!(found.halves, halves);
            assert_eq!(found.sum, scale * f32::from(halves[0] + halves[1]));
        }
    }
}

#[test]
fn tiles_hold_the_same_numbers_as_rows() {
    for kernels in Kernels::available() {
        let (tokens, cols) = (min_tiled_tokens(kernels.isa()) + 2, 32 * 11);
        let x: Vec<f32> = (0..tokens * cols).map(|i| ((i * 7919 % 1009) as f32 - 500.0) * 0.01).collect();
        let together = quantized(&kernels, tokens, cols, &x);
        for t in 0..tokens {
            let alone = quantized(&kernels, 1, cols, &x[t * cols..(t + 1) * cols]);
            for (b, row) in alone.q8().rows.token(0).sub_blocks.iter().enumerate() {
                let step = &together.q8().tiles[t / 4 * 11 + slot_position(b, 11)];
                let quants: Vec<i8> = step.quants.iter().flat_map(|q| q[t % 4]).collect();
                assert_eq!(quants, row.quants);
                assert_eq!(
                    (step.scales[t % 4], step.sums[t % 4], step.halves[t % 4]),
                    (row.scale, row.sum, row.halves)
                );
            }
        }
    }
}

#[test]
fn every_order_holds_every_piece_in_the_lane_of_its_sub_block() {
    // Two whole groups, and one of three sub-blocks.
    let x: Vec<f32> = (0..608).map(|i| ((i * 7919 % 1009) as f32 - 500.0) * 0.01).collect();
    let activations = quantized(&Kernels::detect().unwrap(), 1, 608, &x);
    let token = activations.q8().rows.token(0);
    for (order, lanes) in [
        (Order::Pieces, [[0, 1, 2, 3, 4, 5, 6, 7]; 2]),
        (Order::EvenOdd, [[0, 2, 4, 6, 0, 2, 4, 6], [1, 3, 5, 7, 1, 3, 5, 7]]),
        (Order::Pairs, [[0, 1, 4, 5, 0, 1, 4, 5], [2, 3, 6, 7, 2, 3, 6, 7]]),
        (Order::Eights, [[0, 0, 1, 1, 2, 2, 3, 3], [4, 4, 5, 5, 6, 6, 7, 7]]),
    ] {
        for (group, sub_blocks) in token.groups(order).iter().zip(token.sub_blocks.chunks(8)) {
            let mut pieces: Vec<(usize, [i8; 4])> = Vec::new();
            for (i, vector) in group.quants.iter().enumerate() {
                pieces.extend(vector.iter().enumerate().map(|(lane, &piece)| (lanes[i / 4][lane], piece)));
            }
            let mut expected: Vec<(usize, [i8; 4])> = Vec::new();
            for (s, sub_block) in sub_blocks.iter().enumerate() {
                expected.extend(sub_block.quants.as_chunks().0.iter().map(|&piece| (s, piece)));
                assert_eq!((group.scales[s], group.sums[s]), (sub_block.scale, sub_block.sum));
                assert_eq!(group.halves[s], sub_block.halves);
            }
            for s in sub_blocks.len()..8 {
                expected.extend([(s, [0; 4]); 8]);
                assert_eq!((group.scales[s], group.sums[s], group.halves[s]), (0.0, 0.0, [0; 2]));
            }
            pieces.sort_unstable();
            expected.sort_unstable();
            assert_eq!(pieces, expected, "{order:?}");
        }
    }
}

#[test]
fn numbers_without_a_scale() {
    for kernels in Kernels::available() {
        for (x, nan) in [
            (f32::NAN, true),
            (f32::INFINITY, true),
            (-f32::INFINITY, true),
            (0.0, false),
            (-0.0, false),
            (f32::MIN_POSITIVE / 8.0, false),
        ] {
            let mut values = [0.0; 40];
            values[5] = x;
            let activations = quantized(&kernels, 1, 40, &values);
            let token = activations.q8().rows.token(0);
            let [spoiled, zeros] = token.sub_blocks else { panic!("40 values are two sub-blocks") };
            assert_eq!((spoiled.quants, zeros.quants), ([0; 32], [0; 32]));
            assert_eq!((spoiled.scale.is_nan(), spoiled.sum.is_nan()), (nan, nan));
            assert_eq!((zeros.scale, zeros.sum), (0.0, 0.0));
        }
    }
}

#[test]
fn changing_the_rows_voids_the_quants() {
    let (kernels, pool) = (Kernels::detect().unwrap(), ThreadPool::single());
    let mut activations = Activations::new();
    activations.resize(1, 32).fill(1.0);
    activations.quantize(&kernels, &pool);
    activations.quantize(&kernels, &pool);
    assert_eq!(activations.q8().rows.token(0).sub_blocks[0].quants, [127; 32]);
    activations.values_mut().fill(-2.0);
    activations.quantize(&kernels, &pool);
    assert_eq!(activations.q8().rows.token(0).sub_blocks[0].quants, [-127; 32]);
}

#[test]
fn a_panic_of_an_update_voids_the_quants() {
    let pool = ThreadPool::new(2).unwrap();
    for kernels in Kernels::available() {
        for tokens in [1, min_tiled_tokens(kernels.isa())] {
            let mut activations = quantized(&kernels, tokens, 32, &vec![1.0; tokens * 32]);
            let update = |_: std::ops::Range<usize>, rows: &mut [f32]| {
                rows.fill(2.0);
                resume_unwind(Box::new("of the update"));
            };
            catch_unwind(AssertUnwindSafe(|| activations.update_and_quantize(&kernels, &pool, &update)))
                .expect_err("the panic reaches the caller");
            assert_eq!(activations.values()[0], 2.0);
            catch_unwind(AssertUnwindSafe(|| activations.q8().tiled)).expect_err("quants of former rows");
            activations.quantize(&kernels, &pool);
            let quants = quantized(&kernels, tokens, 32, activations.values());
            assert_eq!(format!("{:?}", activations.q8()), format!("{:?}", quants.q8()), "{tokens} tokens");
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
            assert_eq!(format!("{:?}", one.q8()), format!("{:?}", two.q8()), "{tokens} x {cols}");
        }
    }
}
