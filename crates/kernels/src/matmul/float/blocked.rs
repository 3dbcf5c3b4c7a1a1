//! Cache-blocked float products for many tokens.
//!
//! ```text
//! group of rows
//!   span of tokens       their sums stay in the second- or third-level cache
//!     slab of columns    the packed inputs of the span (`pack.rs`) stay in the second-level cache
//!       tile of rows     the weights are widened and packed, [chunks][rows]: first-level cache
//!         tile of tokens the register tile; its sums rest in memory until the last slab
//! ```
//!
//! The inputs of the next tile of rows and of the next slab are prefetched.

use std::cell::RefCell;
use std::ops::Range;

use bytemuck::Zeroable;

use super::pack::{SLAB, SLAB_CHUNKS, packed_slab, pieces};
use super::tile::{MAX_TILE_PAIRS, MAX_TILE_ROWS, Pair, TileShape, finish, multiply};
use super::{FloatFormat, FloatProduct, chunks, load_tail};
use crate::lanes::{LANES, Lanes, Vectors, WideLanes};

/// Pairs of tokens per span: a slab of their inputs takes 384 KiB.
const SPAN_PAIRS: usize = 32 * MAX_TILE_PAIRS;
/// Rows that reuse a slab of inputs while it is in the L2 cache.
///
/// The lanes of their sums take 768 KiB, each used once per slab; with half as many rows, long rows
/// (8192 columns) lose a tenth of the speed to reloading inputs.
const GROUP_ROWS: usize = 128;

/// Working memory of a thread for products with many tokens.
struct Workspace {
    /// `[chunks, rows]`, two after another in a pair.
    weights: Vec<Pair>,
    /// `[row tiles][token tiles][pairs, rows]`
    sums: Vec<Pair>,
}

impl Workspace {
    fn new() -> Self {
        Self {
            weights: vec![Pair::zeroed(); SLAB_CHUNKS * MAX_TILE_ROWS / 2],
            sums: vec![Pair::zeroed(); GROUP_ROWS * SPAN_PAIRS],
        }
    }
}

thread_local! {
    /// Allocated by the first product of this thread that needs it.
    static WORKSPACE: RefCell<Option<Workspace>> = const { RefCell::new(None) };
}

/// Slab of the products of a group of rows with a span of tokens.
struct Part<'a> {
    rows: Range<usize>,
    /// Pairs of tokens.
    pairs: Range<usize>,
    cols: Range<usize>,
    /// `[token tiles][chunks, pairs]`
    inputs: &'a [Pair],
}

/// Computes the outputs of `rows` for all tokens.
#[inline(always)]
pub(super) fn product<L: WideLanes, F: FloatFormat>(l: L, product: &FloatProduct<'_>, rows: Range<usize>) {
    let shape = const { TileShape::of::<L>() };
    let n_pairs = product.tokens().div_ceil(2);
    let mut parts = pieces(rows, GROUP_ROWS / shape.rows * shape.rows)
        .flat_map(|rows| pieces(0..n_pairs, SPAN_PAIRS).map(move |pairs| (rows.clone(), pairs)))
        .flat_map(|(rows, pairs)| {
            pieces(0..product.cols, SLAB).map(move |cols| Part {
                rows: rows.clone(),
                pairs: pairs.clone(),
                inputs: packed_slab(product.packed, n_pairs, &pairs, &cols),
                cols,
            })
        })
        .peekable();
    // Taken and put back: inside the closure of `with`, the loops would not be compiled for the
    // instruction set.
    let mut workspace = WORKSPACE.take().unwrap_or_else(Workspace::new);
    while let Some(part) = parts.next() {
        multiply_part::<L, F>(l, product, &part, parts.peek(), &mut workspace);
    }
    WORKSPACE.set(Some(workspace));
}

/// Adds a part to its sums; with the last columns, writes the outputs. `next`: the following part.
#[inline(always)]
fn multiply_part<L: WideLanes, F: FloatFormat>(
    l: L,
    product: &FloatProduct<'_>,
    part: &Part<'_>,
    next: Option<&Part<'_>>,
    workspace: &mut Workspace,
) {
    let shape = const { TileShape::of::<L>() };
    let mut row = part.rows.start;
    while row < part.rows.end {
        let n_rows = shape.next_rows(part.rows.end - row);
        let tile = RowTile { product, part, next, row };
        match n_rows {
            8 if shape.rows >= 8 => tile.multiply::<L, F, 8>(l, workspace),
            6 if shape.rows == 6 => tile.multiply::<L, F, 6>(l, workspace),
            4 => tile.multiply::<L, F, 4>(l, workspace),
            2 => tile.multiply::<L, F, 2>(l, workspace),
            _ => tile.multiply::<L, F, 1>(l, workspace),
        }
        row += n_rows;
    }
}

/// Tile of rows of a part, from `row` on.
struct RowTile<'a> {
    product: &'a FloatProduct<'a>,
    part: &'a Part<'a>,
    next: Option<&'a Part<'a>>,
    row: usize,
}

impl RowTile<'_> {
    /// Computes `R` rows with all tokens of the part.
    #[inline(always)]
    fn multiply<L: WideLanes, F: FloatFormat, const R: usize>(&self, l: L, workspace: &mut Workspace) {
        let shape = const { TileShape::of::<L>() };
        let (n_pairs, n_chunks) = (self.part.pairs.len(), self.part.cols.len().div_ceil(LANES));
        let weights: &mut [[f32; LANES]] = bytemuck::cast_slice_mut(&mut workspace.weights);
        let weights = &mut weights.as_chunks_mut().0[..n_chunks];
        self.widen::<L, F, R>(l, weights);
        let sums = &mut workspace.sums[(self.row - self.part.rows.start) * n_pairs..][..R * n_pairs];
        let mut pair = 0;
        while pair < n_pairs {
            let pairs = shape.next_pairs(n_pairs - pair);
            self.request::<L, F, R>(l, &(pair..pair + pairs));
            let inputs = &self.part.inputs[pair * n_chunks..][..pairs * n_chunks];
            let sums = &mut sums[pair * R..][..pairs * R];
            match pairs {
                3 if shape.pairs >= 3 => self.tile::<L, R, 3>(l, weights, inputs, sums, pair),
                2 if shape.pairs >= 2 => self.tile::<L, R, 2>(l, weights, inputs, sums, pair),
                _ => self.tile::<L, R, 1>(l, weights, inputs, sums, pair),
            }
            pair += pairs;
        }
    }

    /// Widens `R` rows of the slab; a last partial chunk is padded with zeros.
    #[inline(always)]
    fn widen<L: Lanes, F: FloatFormat, const R: usize>(&self, l: L, weights: &mut [[[f32; LANES]; R]]) {
        let rows = self.product.rows::<F, R>(self.row);
        for (r, row) in rows.into_iter().enumerate() {
            let (whole, tail) = chunks::<F>(&row[bytes::<F>(&self.part.cols)]);
            let mut places = weights.iter_mut();
            for (chunk, to) in whole.iter().zip(places.by_ref()) {
                l.store(F::load(l, chunk), &mut to[r]);
            }
            if let Some(to) = places.next() {
                l.store(load_tail::<L, F>(l, tail), &mut to[r]);
            }
        }
    }

    /// Prefetches a share of the weights of the next row tile and of the inputs of the next part.
    ///
    /// Whole rows at a time, because smaller pieces of all rows cost more than they hide.
    #[inline(always)]
    fn request<L: Lanes, F: FloatFormat, const R: usize>(&self, l: L, pairs: &Range<usize>) {
        let (part, n_pairs) = (self.part, self.part.pairs.len());
        let here = self.row + R..part.rows.end;
        let (rows, cols) = match self.next {
            _ if !here.is_empty() => (here, &part.cols),
            Some(next) => (next.rows.clone(), &next.cols),
            None => return,
        };
        let n_rows = rows.len().min(R);
        for r in share(n_rows, pairs, n_pairs) {
            l.prefetch(&self.product.rows::<F, 1>(rows.start + r)[0][bytes::<F>(cols)]);
        }
        if let Some(next) = self.next {
            let done = (self.row - part.rows.start) * n_pairs + pairs.start * R;
            let now = done..done + pairs.len() * R;
            l.prefetch(&next.inputs[share(next.inputs.len(), &now, part.rows.len() * n_pairs)]);
        }
    }

    /// Computes `R` rows with `P` pairs of tokens, from pair `pair` of the part on.
    #[inline(always)]
    fn tile<L: WideLanes, const R: usize, const P: usize>(
        &self,
        l: L,
        weights: &[[[f32; LANES]; R]],
        inputs: &[Pair],
        sums: &mut [Pair],
        pair: usize,
    ) {
        let sums = sums.as_chunks_mut::<R>().0;
        let mut acc = [[l.wide().splat(0.0); R]; P];
        if self.part.cols.start > 0 {
            for (acc, sums) in acc.iter_mut().zip(&*sums) {
                for (acc, sum) in acc.iter_mut().zip(sums) {
                    *acc = l.wide().load(&sum.0);
                }
            }
        }
        multiply(l, weights, inputs.as_chunks().0, &mut acc);
        if self.part.cols.end < self.product.cols {
            for (acc, sums) in acc.iter().zip(sums) {
                for (&acc, sum) in acc.iter().zip(sums) {
                    l.wide().store(acc, &mut sum.0);
                }
            }
            return;
        }
        for (p, acc) in acc.into_iter().enumerate() {
            let token = 2 * (self.part.pairs.start + pair + p);
            for (token, values) in (token..self.product.tokens()).zip(finish(l, acc)) {
                self.product.write(token, self.row, &values[..R]);
            }
        }
    }
}

/// The bytes of columns of a row.
fn bytes<F>(cols: &Range<usize>) -> Range<usize> {
    cols.start * size_of::<F>()..cols.end * size_of::<F>()
}

/// Items of the steps `now` when `n` items are distributed evenly over `steps` steps.
fn share(n: usize, now: &Range<usize>, steps: usize) -> Range<usize> {
    n * now.start / steps..n * now.end / steps
}
