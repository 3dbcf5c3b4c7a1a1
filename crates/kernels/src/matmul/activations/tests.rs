//! 8-bit quantization on every instruction set: definition, layouts, and values without a finite
//! scale.
//!
//! Without [`Kernels`], whose table names all other operations too.

use bytemuck::Zeroable;

use super::*;
use crate::isa::instruction_sets;
use crate::matmul::slot_position;

/// Quantizers of an instruction set.
struct Quantizers {
    isa: Isa,
    rows: fn(&[f32], usize, &Q8RowParts<'_>, std::ops::Range<usize>),
    tiles: fn(&[f32], usize, &mut [TileStep]),
}

/// Declares [`available`] over the table of instruction sets.
macro_rules! quantizers {
    ($( #[$doc:meta] $isa:ident = $name:literal {
        module: $module:ident, cfg: $cfg:meta, lanes: $lanes:ty, features: [$($feature:tt)*],
    } )*) => {
        /// Quantizers of every instruction set of this machine.
        fn available() -> Vec<Quantizers> {
            let mut all = Vec::new();
            $(
                #[cfg($cfg)]
                if Isa::$isa.is_available() {
                    all.push(Quantizers {
                        isa: Isa::$isa,
                        rows: |values, cols, rows, tokens| {
                            // SAFETY: the features were just detected.
                            quantize_rows(unsafe { <$lanes>::assume_available() }, values, cols, rows, tokens);
                        },
                        tiles: |values, cols, tiles| {
                            // SAFETY: as above.
                            quantize_tiles(unsafe { <$lanes>::assume_available() }, values, cols, tiles);
                        },
                    });
                }
            )*
            all
        }
    };
}
instruction_sets!(quantizers);

impl Quantizers {
    /// One row for few tokens, in all orders.
    fn row(&self, x: &[f32]) -> Q8Rows {
        let mut rows = Q8Rows::default();
        rows.resize(1, x.len(), &Order::ALL);
        (self.rows)(x, x.len(), &rows.parts(), 0..1);
        rows
    }
}

/// Definition for one group: quants, scale.
fn defined(x: &[f32]) -> (Vec<i8>, f32) {
    let largest = x.iter().fold(0.0_f32, |m, x| m.max(x.abs()));
    (x.iter().map(|x| (x * (127.0 / largest)).round_ties_even() as i8).collect(), largest / 127.0)
}

#[test]
fn groups_are_quantized_as_defined() {
    let x: Vec<f32> = (0..96).map(|i| ((i * 7919 % 503) as f32 - 250.0) * 0.013).collect();
    for quantizers in available() {
        let rows = quantizers.row(&x);
        let token = rows.token(0);
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
    // The last tile has two of four tokens, the last sub-block 20 of 32 values.
    let (tokens, cols) = (18_usize, 32 * 10 + 20);
    let x: Vec<f32> = (0..tokens * cols).map(|i| ((i * 7919 % 1009) as f32 - 500.0) * 0.01).collect();
    for quantizers in available() {
        let mut tiles = vec![TileStep::zeroed(); tokens.div_ceil(TILE_TOKENS) * 11];
        (quantizers.tiles)(&x, cols, &mut tiles);
        for (t, x) in x.chunks_exact(cols).enumerate() {
            for (b, row) in quantizers.row(x).token(0).sub_blocks.iter().enumerate() {
                let step = &tiles[t / 4 * 11 + slot_position(b, 11)];
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

/// Sub-block in each lane of the first four vectors of an order, and of the last four.
const ORDERS: [(Order, [[usize; 8]; 2]); 4] = [
    (Order::Pieces, [[0, 1, 2, 3, 4, 5, 6, 7]; 2]),
    (Order::EvenOdd, [[0, 2, 4, 6, 0, 2, 4, 6], [1, 3, 5, 7, 1, 3, 5, 7]]),
    (Order::Pairs, [[0, 1, 4, 5, 0, 1, 4, 5], [2, 3, 6, 7, 2, 3, 6, 7]]),
    (Order::Eights, [[0, 0, 1, 1, 2, 2, 3, 3], [4, 4, 5, 5, 6, 6, 7, 7]]),
];

#[test]
fn every_order_holds_every_piece_in_the_lane_of_its_sub_block() {
    // Two whole groups, and one of three sub-blocks.
    let x: Vec<f32> = (0..608).map(|i| ((i * 7919 % 1009) as f32 - 500.0) * 0.01).collect();
    for quantizers in available() {
        let rows = quantizers.row(&x);
        let token = rows.token(0);
        for (order, lanes) in ORDERS {
            for (group, sub_blocks) in token.groups(order).iter().zip(token.sub_blocks.chunks(8)) {
                let mut pieces: Vec<(usize, [i8; 4])> = Vec::new();
                for (i, vector) in group.quants.iter().enumerate() {
                    pieces
                        .extend(vector.iter().enumerate().map(|(lane, &piece)| (lanes[i / 4][lane], piece)));
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
                assert_eq!(pieces, expected, "{} {order:?}", quantizers.isa);
            }
        }
    }
}

#[test]
fn numbers_without_a_scale() {
    for quantizers in available() {
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
            let rows = quantizers.row(&values);
            let [spoiled, zeros] = rows.token(0).sub_blocks else { panic!("40 values are two sub-blocks") };
            assert_eq!((spoiled.quants, zeros.quants), ([0; 32], [0; 32]));
            assert_eq!((spoiled.scale.is_nan(), spoiled.sum.is_nan()), (nan, nan));
            assert_eq!((zeros.scale, zeros.sum), (0.0, 0.0));
        }
    }
}
