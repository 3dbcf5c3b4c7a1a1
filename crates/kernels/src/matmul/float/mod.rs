//! Products of F32, F16 and BF16 matrices with f32 rows, written once over [`WideLanes`].
//! Every output is the dot product of `rows/dot.rs`: eight lanes over the columns, ascending,
//! reduced by the tree. Several rows and tokens are computed at a time, each with its own eight
//! lanes, and the lanes may be stored between two column slabs; neither changes any bit.
//!
//! | file | contents |
//! |---|---|
//! | `mod.rs` | number formats, shape of a product, choice between direct and blocked |
//! | `pack.rs` | inputs in register tile order, packed once per dispatch |
//! | `direct.rs` | few tokens: weights are read once, in place, and widened in registers |
//! | `blocked.rs` | many tokens: cache blocking, weights widened tile by tile, prefetches; compute-bound |
//! | `tile.rs` | the register tile of cache blocking |

mod blocked;
mod direct;
mod pack;
mod tile;

use std::ops::Range;

use bytemuck::{Pod, Zeroable};
use half::{bf16, f16};

use crate::lanes::{Lanes, WideLanes};
use crate::pool::DisjointMut;
pub(crate) use pack::{PackJob, PackedInputs, pack_inputs};
pub(crate) use tile::Pair;

/// Float format widened on load.
pub(crate) trait FloatFormat: Pod {
    /// Eight numbers as bytes of any alignment.
    type Chunk: Pod;

    /// Widens eight numbers.
    fn load<L: Lanes>(l: L, chunk: &Self::Chunk) -> L::V;
}

impl FloatFormat for f32 {
    type Chunk = [u8; 32];

    #[inline(always)]
    fn load<L: Lanes>(l: L, chunk: &Self::Chunk) -> L::V {
        l.load(&bytemuck::cast(*chunk))
    }
}

impl FloatFormat for f16 {
    type Chunk = [u8; 16];

    #[inline(always)]
    fn load<L: Lanes>(l: L, chunk: &Self::Chunk) -> L::V {
        l.load_f16(&bytemuck::cast(*chunk))
    }
}

impl FloatFormat for bf16 {
    type Chunk = [u8; 16];

    #[inline(always)]
    fn load<L: Lanes>(l: L, chunk: &Self::Chunk) -> L::V {
        l.load_bf16(&bytemuck::cast(*chunk))
    }
}

/// One matrix product, except the range of rows.
pub(crate) struct FloatProduct<'a> {
    /// All rows.
    pub(crate) weights: &'a [u8],
    pub(crate) n_rows: usize,
    pub(crate) cols: usize,
    /// `[tokens, cols]`.
    pub(crate) x: &'a [f32],
    /// Inputs packed as [`PackedInputs`].
    pub(crate) packed: &'a [Pair],
    /// Index of the first token among those of `out`.
    pub(crate) first: usize,
    /// `[first + tokens or more, n_rows]`.
    pub(crate) out: &'a DisjointMut<'a, f32>,
}

impl FloatProduct<'_> {
    fn tokens(&self) -> usize {
        self.x.len() / self.cols
    }

    /// `R` consecutive rows of weights.
    #[inline(always)]
    fn rows<F, const R: usize>(&self, first: usize) -> [&[u8]; R] {
        let row_bytes = self.cols * size_of::<F>();
        std::array::from_fn(|r| &self.weights[(first + r) * row_bytes..][..row_bytes])
    }

    /// Writes outputs of consecutive rows for one token.
    #[inline(always)]
    fn write(&self, token: usize, first_row: usize, values: &[f32]) {
        let start = (self.first + token) * self.n_rows + first_row;
        // SAFETY: the rows of a product are computed once each, so no other part contains these
        // outputs.
        unsafe { self.out.part(start..start + values.len()) }.copy_from_slice(values);
    }
}

/// Largest number of tokens of the direct path; above, the blocked path packs rows, too.
const MAX_DIRECT_TOKENS: usize = 24;

/// Computes the outputs of `rows` for all tokens.
#[inline(always)]
pub(crate) fn product<L: WideLanes, F: FloatFormat>(l: L, product: &FloatProduct<'_>, rows: Range<usize>) {
    if product.tokens() <= MAX_DIRECT_TOKENS {
        direct::product::<L, F>(l, product, rows);
    } else {
        blocked::product::<L, F>(l, product, rows);
    }
}

/// The whole chunks of eight numbers in `bytes`, and the bytes that follow them.
#[inline(always)]
fn chunks<F: FloatFormat>(bytes: &[u8]) -> (&[F::Chunk], &[u8]) {
    let (whole, tail) = bytes.split_at(bytes.len() - bytes.len() % size_of::<F::Chunk>());
    (bytemuck::cast_slice(whole), tail)
}

/// Widens fewer than eight numbers, followed by zeros.
#[inline(always)]
fn load_tail<L: Lanes, F: FloatFormat>(l: L, bytes: &[u8]) -> L::V {
    let mut chunk = F::Chunk::zeroed();
    bytemuck::bytes_of_mut(&mut chunk)[..bytes.len()].copy_from_slice(bytes);
    F::load(l, &chunk)
}
