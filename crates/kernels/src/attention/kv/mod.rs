//! KV cache formats: memory layout of tiles of 32 positions, writing of rows, in-place reads.
//!
//! # Layout
//! Keys (or values) of a block form a *plane* of *tiles*, `[n_kv_heads, block_tokens / 32]`; a tile
//! holds 32 consecutive positions of one head and is a whole number of cache lines:
//!
//! | format | quants or floats | followed by | bits per value |
//! |---|---|---|---|
//! | `f32`, `f16`, `bf16` | 32 x `head_dim` | | 32, 16, 16 |
//! | `q8` | 32 x `head_dim` signed bytes | half-precision scales | 8.5 |
//! | `q4` | 32 x `head_dim` 4-bit quants | half-precision scales, then minima | 5 |
//! | `kivi4`, `-g64`, `-g128` | 32 x `head_dim` 4-bit quants | half-precision scales, then minima |
//! 5, 4.5, 4.25 |
//! | `kivi2`, `-g64`, `-g128` | 32 x `head_dim` 2-bit quants | half-precision scales, then minima |
//! 3, 2.5, 2.25 |
//! | `nuq3` | 32 x `head_dim` 3-bit codes | ranges and outliers: see `nuq` | 3.75 for heads of 64,
//! 3.625 for 128 |
//! | `turbo3` | 32 x `head_dim` 3-bit codes | scales and means: see `turbo` | 3.5 for heads of 64,
//! 3.375 for 128 |
//!
//! Keys are stored transposed, `[head_dim, 32]`: 32 positions of one dimension are contiguous. The
//! scores of 16 positions are then one wide vector from the first product to the last sum, without
//! horizontal sums. Values are stored `[32, head_dim]`, because their dimensions are the outputs.
//! Scales (and minima) of `q8` and `q4` are one per position and 32 dimensions, in the same order:
//! `[head_dim / 32, 32]` for keys, `[32, head_dim / 32]` for values.
//!
//! `kivi` values have one scale and minimum per position and group of dimensions, `[32, head_dim /
//! group]`; `kivi` keys one per dimension and group of positions, `[head_dim]`. The tiles of a
//! group of positions are contiguous, followed by their scales and minima.
//!
//! A byte of 4-bit quants holds two quants 16 apart in that order, a byte of 2-bit quants four
//! quants 8 apart; the earlier ones in the lower bits.
//!
//! | file | contents |
//! |---|---|
//! | `format.rs` | names and parameters of the formats |
//! | `layout.rs` | offsets of tiles |
//! | `plane.rs` | argument type for the keys or values of a block |
//! | `view.rs` | argument type for the blocks of a sequence |
//! | `float.rs` | F32, F16 and BF16 |
//! | `q8.rs` | 8 bits |
//! | `q4.rs`, `kivi.rs` | low-bit keys: scales per position; scales per dimension |
//! | `squat.rs` | keys with scales per dimension, quantized with query-aware corrections |
//! | `per_token.rs` | low-bit values |
//! | `nuq/` | 3 bits with a calibrated codebook and outliers |
//! | `turbo.rs` | 3 bits with the codebook of the normal distribution |
//! | `three_bits.rs` | codes of 3 bits |
//! | `codes.rs` | low-bit quants and their quantization |
//! | `store.rs` | writing rows |
//! | `convert.rs` | conversion of planes, reading of rows |
//! | `buffer.rs` | aligned memory |

mod buffer;
mod codes;
mod convert;
mod float;
mod format;
mod kivi;
mod layout;
mod nuq;
mod per_token;
mod plane;
mod q4;
mod q8;
mod row;
mod squat;
mod store;
mod three_bits;
mod turbo;
mod view;

use half::{bf16, f16};

use super::KEY_TILE;
use crate::lanes::{LANES, Vectors, WideLanes, Work};

pub use buffer::KvBuffer;
pub(super) use buffer::{Line, as_lines_len, floats, floats_mut};
use codes::{FourBits, TwoBits};
pub use convert::KvScratch;
pub(crate) use convert::{convert, read};
use float::Floats;
pub use format::{KiviBits, KiviGroup, KvFormat, KvRole};
use kivi::ChannelKeys;
pub use layout::KvLayout;
pub(super) use layout::KvTile;
pub use nuq::{KeyRope, NUQ_LEVELS, NuqCodebooks, NuqContext, NuqTraining};
use per_token::TokenValues;
pub use plane::{KvPlane, KvPlaneMut};
use q4::Q4Keys;
use q8::{Q8Keys, Q8Values};
pub use squat::SquatCorrection;
pub(crate) use store::store;
use turbo::{TurboKeys, TurboValues};
pub use view::{KvBlock, KvView};

/// Values of a wide vector.
pub(super) const WIDE: usize = 2 * LANES;

/// Values per scale in `q8` and `q4`, and the smallest group of the other formats.
pub(super) const GROUP: usize = 32;

/// Tile as a matrix of wide vectors.
///
/// For keys a row is a dimension and the two columns are the 32 positions; for values a row is a
/// position and a column is 16 dimensions.
pub(super) trait Tile: Copy {
    /// True if tiles of this type are read directly for more rows than one register tile has;
    /// others are widened to f32 first.
    const SERVES_MANY_ROWS: bool = false;

    /// Loads columns `column..column + N` of a row as f32.
    fn load<L: WideLanes, const N: usize>(self, l: L, row: usize, column: usize) -> [L::W; N];
}

/// Algorithm over a tile (keys or values of 32 positions of one head), generic over the format.
pub(super) trait TileVisitor<L: WideLanes> {
    fn visit<T: Tile>(self, l: L, tile: T);
}

/// Visitor that copies a tile to f32, `[rows, columns]` wide vectors.
pub(super) struct Widening<'a> {
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) to: &'a mut [Line],
}

impl<L: WideLanes> TileVisitor<L> for Widening<'_> {
    #[inline(always)]
    fn visit<T: Tile>(self, l: L, tile: T) {
        for (row, to) in self.to.chunks_exact_mut(self.columns).take(self.rows).enumerate() {
            let (pairs, rest) = to.as_chunks_mut::<2>();
            for (i, [first, second]) in pairs.iter_mut().enumerate() {
                let [a, b] = tile.load::<L, 2>(l, row, 2 * i);
                l.wide().store(a, first.halves_mut());
                l.wide().store(b, second.halves_mut());
            }
            if let [last] = rest {
                let [x] = tile.load::<L, 1>(l, row, self.columns - 1);
                l.wide().store(x, last.halves_mut());
            }
        }
    }
}

/// Visitor with its tile.
struct Visit<V, T>(V, T);

impl<L: WideLanes, V: TileVisitor<L>, T: Tile> Work<L> for Visit<V, T> {
    #[inline(always)]
    fn run(self, l: L) {
        self.0.visit(l, self.1);
    }
}

/// Calls `visitor` with a tile of keys. `scales`: buffer for the scales in f32.
#[inline(always)]
pub(super) fn with_keys<L: WideLanes>(
    l: L,
    tile: KvTile<'_>,
    scales: &mut [Line],
    visitor: impl TileVisitor<L>,
) {
    let numbers = tile.numbers;
    match tile.format {
        KvFormat::F32 => l.apart(Visit(visitor, Floats::<f32>::new(bytemuck::cast_slice(numbers), 2))),
        KvFormat::F16 => l.apart(Visit(visitor, Floats::<f16>::new(bytemuck::cast_slice(numbers), 2))),
        KvFormat::BF16 => l.apart(Visit(visitor, Floats::<bf16>::new(bytemuck::cast_slice(numbers), 2))),
        KvFormat::Q8 => l.apart(Visit(visitor, Q8Keys::new(quants(l, tile, scales)))),
        KvFormat::Q4 => l.apart(Visit(visitor, Q4Keys::new(quants(l, tile, scales)))),
        KvFormat::Kivi { bits: KiviBits::Four, .. } => {
            l.apart(Visit(visitor, ChannelKeys::<FourBits>::new(quants(l, tile, scales))));
        }
        KvFormat::Kivi { bits: KiviBits::Two, .. } => {
            l.apart(Visit(visitor, ChannelKeys::<TwoBits>::new(quants(l, tile, scales))));
        }
        KvFormat::Turbo3 => l.apart(Visit(visitor, TurboKeys::new(l, (numbers, tile.scales), scales))),
        KvFormat::Nuq3 => unreachable!("tiles of nuq3 are widened as a whole"),
    }
}

/// Calls `visitor` with a tile of values, in rows of `columns` wide vectors.
#[inline(always)]
pub(super) fn with_values<L: WideLanes>(
    l: L,
    tile: KvTile<'_>,
    columns: usize,
    scales: &mut [Line],
    visitor: impl TileVisitor<L>,
) {
    let (numbers, group) = (tile.numbers, tile.format.head_dim_multiple());
    match tile.format {
        KvFormat::F32 => l.apart(Visit(visitor, Floats::<f32>::new(bytemuck::cast_slice(numbers), columns))),
        KvFormat::F16 => l.apart(Visit(visitor, Floats::<f16>::new(bytemuck::cast_slice(numbers), columns))),
        KvFormat::BF16 => {
            l.apart(Visit(visitor, Floats::<bf16>::new(bytemuck::cast_slice(numbers), columns)));
        }
        KvFormat::Q8 => l.apart(Visit(visitor, Q8Values::new(quants(l, tile, scales), columns))),
        KvFormat::Q4 | KvFormat::Kivi { bits: KiviBits::Four, .. } => {
            l.apart(Visit(visitor, TokenValues::<FourBits>::new(quants(l, tile, scales), columns, group)));
        }
        KvFormat::Kivi { bits: KiviBits::Two, .. } => {
            l.apart(Visit(visitor, TokenValues::<TwoBits>::new(quants(l, tile, scales), columns, group)));
        }
        KvFormat::Turbo3 => {
            l.apart(Visit(visitor, TurboValues::new(l, (numbers, tile.scales), columns, scales)));
        }
        KvFormat::Nuq3 => unreachable!("tiles of nuq3 are widened as a whole"),
    }
}

/// Widens a tile of keys to f32, `[dim, 32]`.
#[inline(always)]
pub(super) fn widen_keys<L: WideLanes>(
    l: L,
    tile: KvTile<'_>,
    dim: usize,
    scales: &mut [Line],
    to: &mut [Line],
) {
    match tile.nuq {
        Some(nuq) => nuq::widen_keys(l, tile, nuq, dim, to),
        None => with_keys(l, tile, scales, Widening { rows: dim, columns: KEY_TILE / WIDE, to }),
    }
}

/// Widens a tile of values to f32, `[32, dim]`; `dim` is a multiple of the wide vector.
#[inline(always)]
pub(super) fn widen_values<L: WideLanes>(
    l: L,
    tile: KvTile<'_>,
    dim: usize,
    scales: &mut [Line],
    to: &mut [Line],
) {
    let columns = dim / WIDE;
    match tile.nuq {
        Some(nuq) => nuq::widen_values(l, tile, nuq, dim, to),
        None => with_values(l, tile, columns, scales, Widening { rows: KEY_TILE, columns, to }),
    }
}

/// Transposes a tile of keys in f32, `[dim, 32]`, to one of values, `[32, columns * 16]`; what a
/// row has beyond `dim` is zeros.
#[inline(always)]
pub(super) fn keys_to_values(keys: KvTile<'_>, columns: usize, to: &mut [Line]) {
    debug_assert!(keys.format == KvFormat::F32, "keys are widened before");
    let keys: &[[f32; KEY_TILE]] = bytemuck::cast_slice(keys.numbers);
    for column in 0..columns {
        let first = column * WIDE;
        let dimensions = &keys[first..keys.len().min(first + WIDE)];
        for position in 0..KEY_TILE {
            let line = &mut floats_mut(&mut to[position * columns + column..][..1])[..WIDE];
            line[dimensions.len()..].fill(0.0);
            for (value, dimension) in line.iter_mut().zip(dimensions) {
                *value = dimension[position];
            }
        }
    }
}

/// Widens values with a row length not a multiple of 16 to padded f32 rows.
#[inline(always)]
pub(super) fn pad_values<L: WideLanes>(l: L, tile: KvTile<'_>, dim: usize, to: &mut [Line]) {
    match tile.format {
        KvFormat::F32 => float::pad::<L, f32>(l, bytemuck::cast_slice(tile.numbers), dim, to),
        KvFormat::F16 => float::pad::<L, f16>(l, bytemuck::cast_slice(tile.numbers), dim, to),
        KvFormat::BF16 => float::pad::<L, bf16>(l, bytemuck::cast_slice(tile.numbers), dim, to),
        KvFormat::Q8 | KvFormat::Q4 | KvFormat::Kivi { .. } | KvFormat::Nuq3 | KvFormat::Turbo3 => {
            unreachable!("quantized rows are multiples of 32, as `check` ensures")
        }
    }
}

/// Quants and widened scales of a quantized tile.
#[derive(Clone, Copy)]
pub(super) struct Quants<'a> {
    bytes: &'a [u8],
    /// Scales, then minima if the format has them, in f32.
    scales: &'a [f32],
}

/// Widens the scales of a quantized tile, once per tile.
#[inline(always)]
fn quants<'a, L: WideLanes>(l: L, tile: KvTile<'a>, wide: &'a mut [Line]) -> Quants<'a> {
    let scales = tile.scales.as_chunks::<WIDE>().0;
    for (from, to) in scales.iter().zip(&mut *wide) {
        l.wide().store(l.wide().load_f16(from), to.halves_mut());
    }
    Quants { bytes: tile.numbers, scales: floats(&wide[..scales.len()]) }
}
