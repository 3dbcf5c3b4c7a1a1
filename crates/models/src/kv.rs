//! The keys and values of one sequence, in blocks that are allocated as it grows. Not shared between
//! sequences, not tiered. The decoder meets it only through `reserve`, `write`, `view` and `advance`.

use ruvllm_kernels::{Kernels, KvBlock, KvBuffer, KvFormat, KvLayout, KvPlane};

use crate::config::ModelConfig;
use crate::error::{Error, Result};

/// Tokens in one block.
pub const BLOCK_TOKENS: usize = 64;

/// The keys and values of one sequence in all layers.
///
/// A new cache holds no blocks; a block of 64 tokens (of every layer) is allocated when the sequence
/// reaches it and kept until [`KvCache::release_unused`] or the end of the cache.
#[derive(Debug)]
pub struct KvCache {
    shape: KvShape,
    layout: KvLayout,
    len: usize,
    capacity: usize,
    blocks: Vec<KvBuffer>, // [n_layers, 2 (keys, values)] planes each
}

/// What a cache and a model must agree on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KvShape {
    n_layers: usize,
    n_kv_heads: usize,
    head_dim: usize,
}

impl KvShape {
    pub(crate) fn of(config: &ModelConfig) -> Self {
        Self { n_layers: config.n_layers, n_kv_heads: config.n_kv_heads, head_dim: config.head_dim }
    }

    /// Width of the keys (or values) of one token in one layer.
    fn row(self) -> usize {
        self.n_kv_heads * self.head_dim
    }
}

impl std::fmt::Display for KvShape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} layers x {} heads x {}", self.n_layers, self.n_kv_heads, self.head_dim)
    }
}

impl KvCache {
    /// An empty cache for at most `capacity` tokens of a model like `config`. Allocates no blocks yet.
    ///
    /// # Errors
    /// [`Error::CacheCapacity`] if `capacity` is 0 or beyond the model's context length, [`Error::Kernels`] if the format
    /// does not take heads of the model's size.
    pub fn new(config: &ModelConfig, format: KvFormat, capacity: usize) -> Result<Self> {
        if capacity == 0 || capacity > config.context_length {
            return Err(Error::CacheCapacity { capacity, context_length: config.context_length });
        }
        let layout = KvLayout::new(format, config.n_kv_heads, BLOCK_TOKENS, config.head_dim)?;
        Ok(Self { shape: KvShape::of(config), layout, len: 0, capacity, blocks: Vec::new() })
    }

    /// Number of tokens in the cache, which is the position of the next one.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the cache holds no tokens.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Most tokens that the cache takes.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// How keys and values are stored.
    pub fn format(&self) -> KvFormat {
        self.layout.format()
    }

    /// Forgets all tokens from position `len` on; without effect if there are none. The memory stays.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Forgets all tokens. The memory stays.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Gives the memory of blocks without tokens back.
    pub fn release_unused(&mut self) {
        self.blocks.truncate(self.len.div_ceil(BLOCK_TOKENS));
    }

    /// Allocated bytes of keys and values.
    pub fn bytes(&self) -> usize {
        self.blocks.len() * self.block_bytes()
    }

    /// Saturates instead of overflowing: such a block then fails to be allocated.
    fn block_bytes(&self) -> usize {
        self.layout.plane_bytes().saturating_mul(2).saturating_mul(self.shape.n_layers)
    }

    pub(crate) fn shape(&self) -> KvShape {
        self.shape
    }

    /// Checks that `tokens` more fit, without allocating.
    pub(crate) fn check_room(&self, tokens: usize) -> Result<()> {
        if tokens > self.capacity - self.len {
            return Err(Error::CacheFull { len: self.len, tokens, capacity: self.capacity });
        }
        Ok(())
    }

    /// Allocates the blocks that `tokens` more need.
    pub(crate) fn reserve(&mut self, tokens: usize) -> Result<()> {
        self.check_room(tokens)?;
        let needed = (self.len + tokens).div_ceil(BLOCK_TOKENS);
        while self.blocks.len() < needed {
            let block = self.new_block()?;
            self.blocks.push(block);
        }
        Ok(())
    }

    fn new_block(&self) -> Result<KvBuffer> {
        let bytes = self.block_bytes();
        KvBuffer::zeroed(bytes).ok_or(Error::OutOfMemory { what: "a block of keys and values", bytes })
    }

    /// Stores the keys and values of `keys.len() / row` tokens of one layer behind the present ones,
    /// which `reserve` made room for. They count once `advance` is called.
    ///
    /// # Shapes
    /// `keys`, `values`: `[tokens, n_kv_heads, head_dim]`
    pub(crate) fn write(&mut self, kernels: &Kernels, layer: usize, keys: &[f32], values: &[f32]) {
        let (row, plane) = (self.shape.row(), self.layout.plane_bytes());
        let n_tokens = keys.len() / row;
        let mut done = 0;
        while done < n_tokens {
            let position = self.len + done;
            let first = position % BLOCK_TOKENS;
            let end = (done + BLOCK_TOKENS - first).min(n_tokens);
            let block = self.blocks[position / BLOCK_TOKENS].as_bytes_mut();
            let (key_plane, value_plane) = block[2 * layer * plane..][..2 * plane].split_at_mut(plane);
            kernels.store_keys(&self.layout, &keys[done * row..end * row], first, key_plane);
            kernels.store_values(&self.layout, &values[done * row..end * row], first, value_plane);
            done = end;
        }
    }

    /// Appends views of the blocks of one layer to `blocks`.
    pub(crate) fn view<'a>(&'a self, layer: usize, blocks: &mut Vec<KvBlock<'a>>) {
        let (format, len) = (self.format(), self.layout.plane_bytes());
        blocks.extend(self.blocks.iter().map(|block| {
            let plane = |index: usize| KvPlane { format, bytes: &block.as_bytes()[index * len..][..len] };
            KvBlock { keys: plane(2 * layer), values: plane(2 * layer + 1) }
        }));
    }

    /// Counts `tokens` that were written in every layer.
    pub(crate) fn advance(&mut self, tokens: usize) {
        self.len += tokens;
    }
}
