//! Inputs of a product, packed once for all threads in register tile order.

use std::cell::RefCell;
use std::ops::Range;

use bytemuck::Zeroable;

use super::MAX_DIRECT_TOKENS;
use super::tile::{Pair, TileShape, direct_pairs};
use crate::lanes::{Groups, LANES, Vectors, WideLanes};
use crate::matmul::Activations;
use crate::matmul::activations::RowGroup;
use crate::pool::DisjointMut;
use crate::{Kernels, ThreadPool};

/// Chunks of eight columns per slab: the rows of a tile take 16 KiB, its inputs at most 12 KiB.
pub(super) const SLAB_CHUNKS: usize = 64;
pub(super) const SLAB: usize = SLAB_CHUNKS * LANES;

/// Columns per slab of the direct path: the inputs of a tile take at most 24 KiB.
pub(super) const DIRECT_SLAB: usize = 32 * LANES;

/// Pairs of tokens packed at a time; a multiple of the pairs of every tile.
const GRAIN_PAIRS: usize = 12;

thread_local! {
    /// Memory for packed inputs, kept between products that this thread starts.
    static BUFFER: RefCell<Vec<Pair>> = const { RefCell::new(Vec::new()) };
}

/// Packed inputs, `[slabs][token tiles][chunks, pairs]`.
pub(crate) struct PackedInputs(Vec<Pair>);

impl PackedInputs {
    /// Packs `x` for the float products of this dispatch, if there are `any`.
    pub(crate) fn new(kernels: &Kernels, pool: &ThreadPool, x: &Activations, any: bool) -> Self {
        if !any {
            return Self(Vec::new());
        }
        let (n_pairs, n_chunks) = (x.tokens().div_ceil(2), x.cols().div_ceil(LANES));
        let mut packed = BUFFER.take();
        packed.resize(n_pairs * n_chunks, Pair::zeroed());
        let job = PackJob { values: x.values(), cols: x.cols(), packed: DisjointMut::new(&mut packed) };
        pool.for_each_chunk(n_pairs, GRAIN_PAIRS, &|pairs| {
            // SAFETY: `kernels` exists only where the slot's instruction set is present.
            unsafe { (kernels.slots.pack_inputs)(&job, pairs) };
        });
        Self(packed)
    }

    /// Packs each group of rows of `x` by itself, one behind the other in the order of their rows.
    pub(crate) fn of_groups(
        kernels: &Kernels,
        pool: &ThreadPool,
        x: &Activations,
        groups: &[RowGroup],
        any: bool,
    ) -> Self {
        if !any {
            return Self(Vec::new());
        }
        let n_chunks = x.cols().div_ceil(LANES);
        let n_pairs: usize = groups.iter().map(|group| group.len.div_ceil(2)).sum();
        let mut packed = BUFFER.take();
        packed.resize(n_pairs * n_chunks, Pair::zeroed());
        for group in groups {
            let values = &x.values()[group.first * x.cols()..][..group.len * x.cols()];
            let n_pairs = group.len.div_ceil(2);
            let places = &mut packed[group.pair * n_chunks..][..n_pairs * n_chunks];
            let job = PackJob { values, cols: x.cols(), packed: DisjointMut::new(places) };
            pool.for_each_chunk(n_pairs, GRAIN_PAIRS, &|pairs| {
                // SAFETY: `kernels` exists only where the slot's instruction set is present.
                unsafe { (kernels.slots.pack_inputs)(&job, pairs) };
            });
        }
        Self(packed)
    }

    /// Packed inputs of a group, if any are packed.
    pub(crate) fn of_group(&self, group: &RowGroup, cols: usize) -> &[Pair] {
        if self.0.is_empty() {
            return &[];
        }
        let n_chunks = cols.div_ceil(LANES);
        &self.0[group.pair * n_chunks..][..group.len.div_ceil(2) * n_chunks]
    }

    pub(crate) fn pairs(&self) -> &[Pair] {
        &self.0
    }
}

impl Drop for PackedInputs {
    fn drop(&mut self) {
        if !self.0.is_empty() {
            BUFFER.set(std::mem::take(&mut self.0));
        }
    }
}

/// Rows of inputs and the place for them.
pub(crate) struct PackJob<'a> {
    /// `[tokens, cols]`
    values: &'a [f32],
    cols: usize,
    packed: DisjointMut<'a, Pair>,
}

/// Range of the pairs `pairs` of `n_pairs` in the slab of the columns `cols`: whole tiles, one
/// after another.
fn place(n_pairs: usize, pairs: &Range<usize>, cols: &Range<usize>) -> Range<usize> {
    let (before, n_chunks) = (cols.start / LANES, cols.len().div_ceil(LANES));
    before * n_pairs + pairs.start * n_chunks..before * n_pairs + pairs.end * n_chunks
}

/// Slab of the columns `cols` for the pairs of tokens `pairs`, which begin with a tile.
pub(super) fn packed_slab<'a>(
    packed: &'a [Pair],
    n_pairs: usize,
    pairs: &Range<usize>,
    cols: &Range<usize>,
) -> &'a [Pair] {
    &packed[place(n_pairs, pairs, cols)]
}

/// `range` in pieces of `len`, the last one shorter.
pub(super) fn pieces(range: Range<usize>, len: usize) -> impl Iterator<Item = Range<usize>> {
    range.clone().step_by(len).map(move |start| start..range.end.min(start + len))
}

/// Packs `pairs` of tokens, which are whole tiles.
///
/// An odd last token is paired with zeros; a last partial chunk is padded with zeros.
#[inline(always)]
pub(crate) fn pack_inputs<L: WideLanes>(l: L, job: &PackJob<'_>, pairs: Range<usize>) {
    let tokens = job.values.len() / job.cols;
    let n_pairs = tokens.div_ceil(2);
    let (tile_pairs, slab) = if tokens <= MAX_DIRECT_TOKENS {
        (const { direct_pairs::<L>() }, DIRECT_SLAB)
    } else {
        (const { TileShape::of::<L>() }.pairs, SLAB)
    };
    for tile in pieces(pairs, tile_pairs) {
        for cols in pieces(0..job.cols, slab) {
            // SAFETY: no two calls of one job get the same pairs, and so none the same places.
            let to = unsafe { job.packed.part(place(n_pairs, &tile, &cols)) };
            for (p, pair) in tile.clone().enumerate() {
                pack_pair(l, job, pair, &cols, to[p..].chunks_mut(tile.len()));
            }
        }
    }
}

/// Packs a slab of two tokens into the first of each of `places`.
#[inline(always)]
fn pack_pair<'a, L: WideLanes>(
    l: L,
    job: &PackJob<'_>,
    pair: usize,
    cols: &Range<usize>,
    mut places: impl Iterator<Item = &'a mut [Pair]>,
) {
    let row = |token: usize| job.values.chunks_exact(job.cols).nth(token).map(|row| &row[cols.clone()]);
    let (low, high) = (row(2 * pair).unwrap_or(&[]), row(2 * pair + 1));
    let (low_chunks, low_tail) = low.as_chunks();
    let (high_chunks, high_tail) = high.unwrap_or(low).as_chunks();
    for ((low, high_chunk), to) in low_chunks.iter().zip(high_chunks).zip(places.by_ref()) {
        let high_chunk = if high.is_some() { l.load(high_chunk) } else { l.zero() };
        l.wide().store(l.wide().join(l.load(low), high_chunk), &mut to[0].0);
    }
    if let Some(to) = places.next() {
        let high_tail = if high.is_some() { high_tail } else { &[] };
        l.wide().store(l.wide().join(l.load_partial(low_tail), l.load_partial(high_tail)), &mut to[0].0);
    }
}
