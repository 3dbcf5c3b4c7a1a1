//! Products of F32, F16 and BF16 matrices with f32 rows, written once over [`Lanes`].
//!
//! Every output is the dot product of `op/dot.rs`: eight lanes over the columns, ascending, joined by the tree. Several
//! rows and tokens are in flight at a time, each with its own vector of lanes, and the lanes may rest in memory between
//! two parts of the columns, which changes no bit of any of them.

use std::cell::RefCell;
use std::ops::Range;

use bytemuck::{Pod, Zeroable};
use half::{bf16, f16};

use crate::disjoint::DisjointMut;
use crate::lanes::{LANES, Lanes};

/// A number format that is widened as it is loaded.
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

/// One matrix product: everything but the rows to compute.
pub(crate) struct FloatProduct<'a> {
    /// All rows.
    pub(crate) weights: &'a [u8],
    pub(crate) n_rows: usize,
    pub(crate) cols: usize,
    /// `[tokens, cols]`.
    pub(crate) x: &'a [f32],
    /// `[tokens, n_rows]`.
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

    /// `T` consecutive tokens.
    #[inline(always)]
    fn inputs<const T: usize>(&self, first: usize) -> [&[f32]; T] {
        std::array::from_fn(|t| &self.x[(first + t) * self.cols..][..self.cols])
    }

    /// Writes outputs of consecutive rows for one token.
    #[inline(always)]
    fn write(&self, token: usize, first_row: usize, values: &[f32]) {
        let start = token * self.n_rows + first_row;
        // SAFETY: the rows of a product are computed once each, so no other part contains these outputs.
        unsafe { self.out.part(start..start + values.len()) }.copy_from_slice(values);
    }
}

/// Rows in flight.
const TILE_ROWS: usize = 4;
/// Tokens in flight with a panel: 4 x 3 accumulators, three activations and a weight fill 16 registers.
const TILE_TOKENS: usize = 3;
/// Tokens in flight without: one fewer, since one accumulator spilled to memory costs half the speed.
const FEW_TOKENS: usize = 2;

/// With more activations than this (192 KiB), weights are widened into panels and the columns are cut into slabs; fewer
/// stay in the second-level cache by themselves.
const MAX_DIRECT_VALUES: usize = 48 * 1024;
/// Rows of a panel and chunks of eight columns of a slab: 16 KiB, which stay in the first-level cache.
const PANEL_ROWS: usize = 16;
const SLAB: usize = 32;
/// Panels that meet a slab of activations while it is in the second-level cache: read again from further away for every
/// 16 rows, long rows (8192 columns) took a third of the speed.
const GROUP_PANELS: usize = 4;
/// Tokens per pass: their slab takes 96 KiB, the lanes of their sums 192 KiB.
const BLOCK_TOKENS: usize = 32 * TILE_TOKENS;

/// Bytes that come into the cache together.
const CACHE_LINE: usize = 64;

/// The eight lanes of one output.
type Sum = [f32; LANES];

/// Memory of a thread for products with many tokens.
struct Workspace {
    /// `[rows, chunks]`
    panel: [[[f32; LANES]; SLAB]; PANEL_ROWS],
    /// `[panels, tokens, rows]`
    sums: [[[Sum; PANEL_ROWS]; BLOCK_TOKENS]; GROUP_PANELS],
}

thread_local! {
    /// Allocated by the first product of this thread that needs it.
    static WORKSPACE: RefCell<Option<Box<Workspace>>> = const { RefCell::new(None) };
}

/// Computes the outputs of `rows` for all tokens.
#[inline(always)]
pub(crate) fn product<L: Lanes, F: FloatFormat>(l: L, product: &FloatProduct<'_>, rows: Range<usize>) {
    if product.tokens() <= TILE_ROWS || product.x.len() <= MAX_DIRECT_VALUES {
        for row in rows.clone().step_by(TILE_ROWS) {
            if row + TILE_ROWS <= rows.end {
                few_tokens::<L, F, TILE_ROWS>(l, product, row);
            } else {
                (row..rows.end).for_each(|row| few_tokens::<L, F, 1>(l, product, row));
            }
        }
        return;
    }
    WORKSPACE.with_borrow_mut(|workspace| {
        let workspace = workspace.get_or_insert_with(|| {
            Box::new(Workspace {
                panel: [[[0.0; LANES]; SLAB]; PANEL_ROWS],
                sums: [[[[0.0; LANES]; PANEL_ROWS]; BLOCK_TOKENS]; GROUP_PANELS],
            })
        });
        for start in rows.clone().step_by(GROUP_PANELS * PANEL_ROWS) {
            let group = start..rows.end.min(start + GROUP_PANELS * PANEL_ROWS);
            for first in (0..product.tokens()).step_by(BLOCK_TOKENS) {
                let tokens = first..product.tokens().min(first + BLOCK_TOKENS);
                blocked::<L, F>(l, product, group.clone(), tokens, workspace);
            }
        }
    });
}

/// How many of the remaining tokens go together: three, but two and two rather than three and one.
#[inline(always)]
fn tile_tokens(remaining: usize) -> usize {
    if remaining == 4 { 2 } else { remaining.min(TILE_TOKENS) }
}

/// All tokens with `R` rows, straight from the matrix.
#[inline(always)]
fn few_tokens<L: Lanes, F: FloatFormat, const R: usize>(l: L, product: &FloatProduct<'_>, row: usize) {
    let mut token = 0;
    while token < product.tokens() {
        if product.tokens() - token == 1 {
            dots::<L, F, R, 1>(l, product, row, token);
        } else {
            dots::<L, F, R, FEW_TOKENS>(l, product, row, token);
        }
        token += FEW_TOKENS;
    }
}

#[inline(always)]
fn dots<L: Lanes, F: FloatFormat, const R: usize, const T: usize>(
    l: L,
    product: &FloatProduct<'_>,
    row: usize,
    token: usize,
) {
    let n = product.cols / LANES;
    let (w, x) = (product.rows::<F, R>(row), product.inputs::<T>(token));
    // The rows of the next tile are requested while these are read. Left to the hardware, which follows a row for at most
    // a page, half of the bandwidth is lost.
    let ahead = product.rows::<F, R>(if row + 2 * R <= product.n_rows { row + R } else { row });
    let [chunks, ahead] = [w, ahead].map(|rows| rows.map(|row| full_chunks::<F>(row, n)));
    let values: [&[[f32; LANES]]; T] = x.map(|x| &x.as_chunks().0[..n]);
    let mut acc = [[l.zero(); T]; R];
    for c in 0..n {
        if token == 0 && c % (CACHE_LINE / size_of::<F::Chunk>()) == 0 {
            ahead.iter().for_each(|ahead| l.prefetch(&ahead[c..=c]));
        }
        multiply(l, &mut acc, |r| F::load(l, &chunks[r][c]), values.map(|x| l.load(&x[c])));
    }
    if !product.cols.is_multiple_of(LANES) {
        let tail = n * size_of::<F::Chunk>();
        multiply(
            l,
            &mut acc,
            |r| load_tail::<L, F>(l, &w[r][tail..]),
            x.map(|x| l.load_partial(&x[n * LANES..])),
        );
    }
    for t in 0..T {
        product.write(token + t, row, &acc.map(|acc| l.sum(acc[t])));
    }
}

/// The first `n` chunks of eight numbers of a row.
#[inline(always)]
fn full_chunks<F: FloatFormat>(row: &[u8], n: usize) -> &[F::Chunk] {
    &bytemuck::cast_slice(&row[..n * size_of::<F::Chunk>()])[..n]
}

/// Widens fewer than eight numbers, followed by zeros.
#[inline(always)]
fn load_tail<L: Lanes, F: FloatFormat>(l: L, bytes: &[u8]) -> L::V {
    let mut chunk = F::Chunk::zeroed();
    bytemuck::bytes_of_mut(&mut chunk)[..bytes.len()].copy_from_slice(bytes);
    F::load(l, &chunk)
}

/// Up to [`GROUP_PANELS`] panels of rows with up to [`BLOCK_TOKENS`] tokens, slab by slab.
#[inline(always)]
fn blocked<L: Lanes, F: FloatFormat>(
    l: L,
    product: &FloatProduct<'_>,
    rows: Range<usize>,
    tokens: Range<usize>,
    workspace: &mut Workspace,
) {
    let Workspace { panel, sums } = workspace;
    let panels = |i: usize| rows.start + i * PANEL_ROWS..rows.end.min(rows.start + (i + 1) * PANEL_ROWS);
    let sums = &mut sums[..rows.len().div_ceil(PANEL_ROWS)];
    sums.as_flattened_mut().as_flattened_mut().fill([0.0; LANES]);
    for first in (0..product.cols).step_by(SLAB * LANES) {
        let slab = first..product.cols.min(first + SLAB * LANES);
        for (i, sums) in sums.iter_mut().enumerate() {
            for (row, panel) in panels(i).zip(&mut *panel) {
                let [w] = product.rows::<F, 1>(row);
                widen::<L, F>(l, &w[slab.start * size_of::<F>()..slab.end * size_of::<F>()], panel);
            }
            slab_sums(l, panel, product, &slab, tokens.clone(), &mut sums[..tokens.len()]);
        }
    }
    for (i, sums) in sums.iter().enumerate() {
        for (token, sums) in tokens.clone().zip(sums) {
            let values = sums.map(|sum| l.sum(l.load(&sum)));
            product.write(token, panels(i).start, &values[..panels(i).len()]);
        }
    }
}

/// Adds a slab to the sums of all tokens of a block with a panel.
#[inline(always)]
fn slab_sums<L: Lanes>(
    l: L,
    panel: &[[[f32; LANES]; SLAB]; PANEL_ROWS],
    product: &FloatProduct<'_>,
    slab: &Range<usize>,
    tokens: Range<usize>,
    sums: &mut [[Sum; PANEL_ROWS]],
) {
    let mut t = 0;
    while t < sums.len() {
        let together = tile_tokens(sums.len() - t);
        let (tile, token) = (&mut sums[t..t + together], tokens.start + t);
        match together {
            1 => slab_tile::<L, 1>(l, panel, product.inputs(token), slab, tile),
            2 => slab_tile::<L, 2>(l, panel, product.inputs(token), slab, tile),
            _ => slab_tile::<L, TILE_TOKENS>(l, panel, product.inputs(token), slab, tile),
        }
        t += together;
    }
}

/// Widens one row of a slab; a last partial chunk is filled up with zeros.
#[inline(always)]
fn widen<L: Lanes, F: FloatFormat>(l: L, bytes: &[u8], panel: &mut [[f32; LANES]; SLAB]) {
    let chunks = bytes.chunks_exact(size_of::<F::Chunk>());
    let tail = chunks.remainder();
    let n = chunks.len();
    for (chunk, panel) in chunks.zip(&mut *panel) {
        l.store(F::load(l, bytemuck::from_bytes(chunk)), panel);
    }
    if !tail.is_empty() {
        l.store(load_tail::<L, F>(l, tail), &mut panel[n]);
    }
}

/// Adds a slab to the sums of `T` tokens.
#[inline(always)]
fn slab_tile<L: Lanes, const T: usize>(
    l: L,
    panel: &[[[f32; LANES]; SLAB]; PANEL_ROWS],
    x: [&[f32]; T],
    slab: &Range<usize>,
    sums: &mut [[Sum; PANEL_ROWS]],
) {
    let x = x.map(|x| x[slab.clone()].as_chunks::<LANES>());
    let n = x[0].0.len();
    let values = x.map(|x| &x.0[..n]);
    for (i, panel) in panel.as_chunks::<TILE_ROWS>().0.iter().enumerate() {
        let rows = i * TILE_ROWS..(i + 1) * TILE_ROWS;
        let mut acc = [[l.zero(); T]; TILE_ROWS];
        for (t, sums) in sums.iter().enumerate() {
            for (acc, sum) in acc.iter_mut().zip(&sums[rows.clone()]) {
                acc[t] = l.load(sum);
            }
        }
        for c in 0..n {
            multiply(l, &mut acc, |r| l.load(&panel[r][c]), values.map(|x| l.load(&x[c])));
        }
        if !x[0].1.is_empty() {
            multiply(l, &mut acc, |r| l.load(&panel[r][n]), x.map(|x| l.load_partial(x.1)));
        }
        for (t, sums) in sums.iter_mut().enumerate() {
            for (acc, sum) in acc.iter().zip(&mut sums[rows.clone()]) {
                l.store(acc[t], sum);
            }
        }
    }
}

/// One chunk of eight columns of a tile. Weights are loaded one at a time: with all tokens' activations in registers, one
/// more is left for them.
#[inline(always)]
fn multiply<L: Lanes, const R: usize, const T: usize>(
    l: L,
    acc: &mut [[L::V; T]; R],
    load_weight: impl Fn(usize) -> L::V,
    x: [L::V; T],
) {
    for (r, acc) in acc.iter_mut().enumerate() {
        let w = load_weight(r);
        for (acc, x) in acc.iter_mut().zip(x) {
            *acc = l.fma(w, x, *acc);
        }
    }
}
