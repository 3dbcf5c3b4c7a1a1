//! Slab allocator: blocks of one size in pages.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::region::Span;
use crate::spares::SparePages;
use crate::tenant::Account;
use crate::{Error, PagePool, Pages, Request, Result};

/// Alignment of blocks in bytes: four cache lines.
const BLOCK_ALIGN: usize = 256;

/// Maximum number of additional pages per chunk, taken to reduce the waste after the last block.
const MAX_EXTRA_PAGES: usize = 7;

/// Slab allocator for blocks of one size. Clones are handles of the same slab.
///
/// Blocks larger than a page take contiguous pages. A chunk of pages whose blocks are all free is
/// returned to the pool, except for one spare chunk, which is kept until the pool is short.
///
/// ```
/// use ruvllm_memory::{PagePool, PoolConfig, Request, Slab};
///
/// let pool = PagePool::new(PoolConfig::new(64 << 20))?;
/// let slab = Slab::new(&pool, 48 << 10, Request::default())?;
/// let mut block = slab.allocate()?;
/// block.bytes_mut().fill(1);
/// assert_eq!(block.bytes().len(), 48 << 10);
/// assert_eq!(slab.stats().used_blocks, 1);
/// # Ok::<(), ruvllm_memory::Error>(())
/// ```
#[derive(Clone)]
pub struct Slab {
    state: Arc<SlabState>,
}

struct SlabState {
    pool: PagePool,
    request: Request,
    block_bytes: usize,
    /// Pages per chunk.
    chunk_pages: usize,
    chunks: Mutex<Chunks>,
}

/// Chunks of a slab by index. Lists never shrink, so that reusing an index allocates nothing.
struct Chunks {
    /// Blocks per chunk.
    n_blocks: usize,
    /// Bytes from the start of a block to that of the next.
    stride: usize,
    places: Vec<Option<Chunk>>,
    /// Free blocks: `n_blocks` entries per chunk, of which the first [`Chunk::n_free`] are free
    /// blocks and the others empty spans.
    free: Vec<Span>,
    /// Indices without a chunk.
    vacant: Vec<u32>,
    /// Chunks with free blocks, in descending order: blocks are taken from the lowest index, so
    /// that chunks with high indices become empty.
    open: Vec<u32>,
    /// Spare chunk: empty, kept for the next block.
    spare: Option<u32>,
    used_blocks: usize,
}

/// Pages of a chunk, and the number of free blocks.
struct Chunk {
    /// Pages without the blocks, which are split off the span.
    pages: Pages,
    n_free: usize,
}

/// A block of a [`Slab`], freed on drop.
///
/// Fresh bytes are zero or data that the same tenant wrote earlier.
pub struct SlabBlock {
    slab: Arc<SlabState>,
    span: Span,
    /// Index of its chunk.
    chunk: u32,
}

/// Counters of a slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlabStats {
    /// Blocks in use.
    pub used_blocks: usize,
    /// Free blocks in pages of the slab.
    pub free_blocks: usize,
    /// Pages of the slab, a spare one included.
    pub pages: usize,
}

impl Slab {
    /// Creates a slab of blocks of `block_bytes` bytes, aligned to 256. Allocates no page yet.
    ///
    /// # Errors
    /// [`Error::BlockBytes`] for blocks of 0 bytes or larger than the pool.
    pub fn new(pool: &PagePool, block_bytes: usize, request: Request) -> Result<Self> {
        let max_bytes = pool.capacity_pages() * pool.page_bytes();
        if block_bytes == 0 || block_bytes > max_bytes {
            return Err(Error::BlockBytes { block_bytes, max_bytes });
        }
        let stride = block_bytes.next_multiple_of(BLOCK_ALIGN);
        let chunk_pages = chunk_pages(stride, pool.page_bytes(), pool.capacity_pages());
        let n_blocks = chunk_pages * pool.page_bytes() / stride;
        let state = Arc::new(SlabState {
            pool: pool.clone(),
            request,
            block_bytes,
            chunk_pages,
            chunks: Mutex::new(Chunks::new(n_blocks, stride)),
        });
        let holder = Arc::downgrade(&state);
        pool.state.spares.add(holder);
        Ok(Self { state })
    }

    /// Allocates a block.
    ///
    /// # Errors
    /// As [`PagePool::allocate`], if a new chunk is needed.
    pub fn allocate(&self) -> Result<SlabBlock> {
        let taken = self.state.chunks.lock().take();
        let (span, chunk) = match taken {
            Some(taken) => taken,
            None => {
                // Not under the lock: the pool may ask this slab for its spare chunk.
                let pages = self.state.pool.allocate(self.state.chunk_pages, &self.state.request)?;
                self.state.chunks.lock().add(pages)
            }
        };
        Ok(SlabBlock { slab: Arc::clone(&self.state), span, chunk })
    }

    /// Pages of `page_bytes` bytes that a slab takes for `n_blocks` blocks of `block_bytes` bytes;
    /// saturates.
    pub fn pages_for(n_blocks: usize, block_bytes: usize, page_bytes: usize) -> usize {
        let stride = block_bytes.max(1).checked_next_multiple_of(BLOCK_ALIGN);
        // The bound keeps the products below from overflowing.
        let Some(stride) = stride.filter(|&stride| stride <= usize::MAX >> 8) else { return usize::MAX };
        let chunk_pages = chunk_pages(stride, page_bytes, usize::MAX);
        let chunks = n_blocks.div_ceil(chunk_pages * page_bytes / stride);
        chunks.saturating_mul(chunk_pages)
    }

    /// Block size in bytes.
    pub fn block_bytes(&self) -> usize {
        self.state.block_bytes
    }

    /// Current counters.
    pub fn stats(&self) -> SlabStats {
        let chunks = self.state.chunks.lock();
        let alive = || chunks.places.iter().flatten();
        SlabStats {
            used_blocks: chunks.used_blocks,
            free_blocks: alive().map(|chunk| chunk.n_free).sum(),
            pages: alive().map(|chunk| chunk.pages.len_pages()).sum(),
        }
    }
}

/// Pages per chunk: the fewest with at most an eighth wasted, else those with the least waste.
fn chunk_pages(stride: usize, page_bytes: usize, capacity_pages: usize) -> usize {
    let least = stride.div_ceil(page_bytes);
    let most = (least + MAX_EXTRA_PAGES).min(capacity_pages).max(least);
    let waste = |pages: usize| (pages * page_bytes % stride) as f64 / (pages * page_bytes) as f64;
    (least..=most)
        .find(|&pages| waste(pages) <= 0.125)
        .or_else(|| (least..=most).min_by(|&a, &b| waste(a).total_cmp(&waste(b))))
        .unwrap_or(least)
}

impl SlabState {
    fn give_back(&self, span: Span, chunk: u32) {
        let emptied = self.chunks.lock().put(span, chunk);
        drop(emptied);
    }
}

impl Chunks {
    fn new(n_blocks: usize, stride: usize) -> Self {
        let (places, free, vacant, open) = Default::default();
        Self { n_blocks, stride, places, free, vacant, open, spare: None, used_blocks: 0 }
    }

    /// Takes a block from the chunk with the lowest index that has a free one.
    fn take(&mut self) -> Option<(Span, u32)> {
        let index = *self.open.last()?;
        let chunk = self.places[index as usize].as_mut()?;
        chunk.n_free -= 1;
        let span = self.free[index as usize * self.n_blocks + chunk.n_free].split_off(0);
        if chunk.n_free == 0 {
            self.open.pop();
        }
        self.spare = self.spare.filter(|&spare| spare != index);
        self.used_blocks += 1;
        Some((span, index))
    }

    /// Adds a chunk of new pages and takes a block of it.
    fn add(&mut self, mut pages: Pages) -> (Span, u32) {
        let index = self.vacant.pop().unwrap_or_else(|| {
            self.places.push(None);
            (self.places.len() - 1) as u32
        });
        let span = pages.span_mut();
        let first = index as usize * self.n_blocks;
        for place in first..first + self.n_blocks {
            let block = span.split_off(span.len() - self.stride);
            match self.free.get_mut(place) {
                Some(empty) => *empty = block,
                None => self.free.push(block),
            }
        }
        let n_free = self.n_blocks - 1;
        let block = self.free[first + n_free].split_off(0);
        self.places[index as usize] = Some(Chunk { pages, n_free });
        if n_free > 0 {
            self.open(index);
        }
        self.used_blocks += 1;
        (block, index)
    }

    /// Puts a block back; returns the pages of an empty chunk if there are two.
    fn put(&mut self, span: Span, index: u32) -> Option<Pages> {
        self.used_blocks -= 1;
        let chunk = self.places[index as usize].as_mut().expect("a block's chunk exists");
        self.free[index as usize * self.n_blocks + chunk.n_free] = span;
        chunk.n_free += 1;
        let (n_free, is_empty) = (chunk.n_free, chunk.n_free == self.n_blocks);
        if n_free == 1 {
            self.open(index);
        }
        if !is_empty {
            return None;
        }
        match self.spare {
            // Keeps the lower index: blocks are taken from there first.
            Some(spare) if spare < index => self.remove(index),
            Some(spare) => {
                self.spare = Some(index);
                self.remove(spare)
            }
            None => {
                self.spare = Some(index);
                None
            }
        }
    }

    fn take_spare(&mut self) -> Option<Pages> {
        let spare = self.spare.take()?;
        self.remove(spare)
    }

    fn open(&mut self, index: u32) {
        let at = self.open.partition_point(|&other| other > index);
        self.open.insert(at, index);
    }

    /// Removes a chunk, whose blocks must all be free, and joins them with its pages again.
    fn remove(&mut self, index: u32) -> Option<Pages> {
        let mut pages = self.places[index as usize].take()?.pages;
        self.open.retain(|&other| other != index);
        self.vacant.push(index);
        let blocks = &mut self.free[index as usize * self.n_blocks..][..self.n_blocks];
        blocks.sort_unstable_by_key(Span::start);
        blocks.iter_mut().for_each(|block| pages.span_mut().append(block.split_off(0)));
        Some(pages)
    }
}

impl Drop for Chunks {
    /// Blocks keep the slab alive, so all of them are back here.
    fn drop(&mut self) {
        (0..self.places.len() as u32).for_each(|index| drop(self.remove(index)));
    }
}

impl SparePages for SlabState {
    fn release_spare(&self, scope: &Account) -> usize {
        let counts = self.request.tenant.0.as_ref().map_or(scope.id == 0, |account| account.is_within(scope));
        // No thread calls the pool under this lock, so the wait is short.
        let spare = if counts { self.chunks.lock().take_spare() } else { None };
        spare.map_or(0, |pages| pages.len_pages())
    }
}

impl SlabBlock {
    /// Bytes of the block.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        &self.slab.pool.state.region.bytes(&self.span)[..self.slab.block_bytes]
    }

    /// Mutable bytes of the block.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.slab.pool.state.region.bytes_mut(&mut self.span)[..self.slab.block_bytes]
    }
}

impl Drop for SlabBlock {
    fn drop(&mut self) {
        self.slab.give_back(self.span.split_off(0), self.chunk);
    }
}

impl std::fmt::Debug for Slab {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let SlabState { block_bytes, .. } = *self.state;
        f.debug_struct("Slab").field("block_bytes", &block_bytes).field("stats", &self.stats()).finish()
    }
}

impl std::fmt::Debug for SlabBlock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SlabBlock").field("bytes", &self.slab.block_bytes).finish_non_exhaustive()
    }
}
