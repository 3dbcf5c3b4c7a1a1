//! The keys and values of one sequence, in blocks that are allocated as it grows. Not shared between
//! sequences, not tiered. The decoder meets it only through `reserve`, `write`, `view` and `advance`.

use half::f16;
use ruvllm_kernels::{Kernels, KvBlock, KvRows};

use crate::config::ModelConfig;
use crate::error::{Error, Result};

/// Tokens in one block.
pub const BLOCK_TOKENS: usize = 64;

/// How keys and values are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum KvFormat {
    /// 32-bit floats: exactly what the projections computed.
    F32,
    /// 16-bit floats, rounded to nearest: half the memory and half the traffic of attention.
    #[default]
    F16,
}

impl KvFormat {
    /// Bytes of one stored number.
    pub fn bytes_per_value(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 => 2,
        }
    }
}

/// The keys and values of one sequence in all layers.
///
/// A new cache holds no blocks; a block of 64 tokens (of every layer) is allocated when the sequence
/// reaches it and kept until [`KvCache::release_unused`] or the end of the cache.
#[derive(Debug)]
pub struct KvCache {
    shape: KvShape,
    format: KvFormat,
    len: usize,
    capacity: usize,
    blocks: Vec<Block>,
}

/// What a cache and a model must agree on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KvShape {
    n_layers: usize,
    n_kv_heads: usize,
    head_dim: usize,
}

/// `[n_layers, 2 (keys, values), n_kv_heads, BLOCK_TOKENS, head_dim]`
#[derive(Debug)]
enum Block {
    F32(Vec<f32>),
    F16(Vec<f16>),
}

impl KvShape {
    pub(crate) fn of(config: &ModelConfig) -> Self {
        Self { n_layers: config.n_layers, n_kv_heads: config.n_kv_heads, head_dim: config.head_dim }
    }

    /// Width of the keys (or values) of one token in one layer.
    fn row(self) -> usize {
        self.n_kv_heads * self.head_dim
    }

    /// Numbers in the keys (or values) of one layer in one block.
    fn plane(self) -> usize {
        self.row() * BLOCK_TOKENS
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
    /// [`Error::CacheCapacity`] if `capacity` is 0 or beyond the model's context length.
    pub fn new(config: &ModelConfig, format: KvFormat, capacity: usize) -> Result<Self> {
        if capacity == 0 || capacity > config.context_length {
            return Err(Error::CacheCapacity { capacity, context_length: config.context_length });
        }
        Ok(Self { shape: KvShape::of(config), format, len: 0, capacity, blocks: Vec::new() })
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
        self.format
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

    fn block_bytes(&self) -> usize {
        self.block_values().saturating_mul(self.format.bytes_per_value())
    }

    /// Saturates instead of overflowing: such a block then fails to be allocated.
    fn block_values(&self) -> usize {
        self.shape.plane().saturating_mul(2).saturating_mul(self.shape.n_layers)
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

    fn new_block(&self) -> Result<Block> {
        let n_values = self.block_values();
        Ok(match self.format {
            KvFormat::F32 => Block::F32(zeros(n_values)?),
            KvFormat::F16 => Block::F16(zeros(n_values)?),
        })
    }

    /// Stores the keys and values of `keys.len() / row` tokens of one layer behind the present ones,
    /// which `reserve` made room for. They count once `advance` is called.
    ///
    /// # Shapes
    /// `keys`, `values`: `[tokens, n_kv_heads, head_dim]`
    pub(crate) fn write(&mut self, kernels: &Kernels, layer: usize, keys: &[f32], values: &[f32]) {
        let shape = self.shape;
        for (offset, (key, value)) in
            keys.chunks_exact(shape.row()).zip(values.chunks_exact(shape.row())).enumerate()
        {
            let position = self.len + offset;
            let block = &mut self.blocks[position / BLOCK_TOKENS];
            let plane = 2 * layer * shape.plane();
            block.store(kernels, shape, plane, position % BLOCK_TOKENS, key);
            block.store(kernels, shape, plane + shape.plane(), position % BLOCK_TOKENS, value);
        }
    }

    /// Appends views of the blocks of one layer to `blocks`.
    pub(crate) fn view<'a>(&'a self, layer: usize, blocks: &mut Vec<KvBlock<'a>>) {
        let plane = self.shape.plane();
        let keys = 2 * layer * plane;
        blocks.extend(self.blocks.iter().map(|block| KvBlock {
            keys: block.rows(keys..keys + plane),
            values: block.rows(keys + plane..keys + 2 * plane),
        }));
    }

    /// Counts `tokens` that were written in every layer.
    pub(crate) fn advance(&mut self, tokens: usize) {
        self.len += tokens;
    }
}

impl Block {
    /// Stores the row of one token, `[n_kv_heads, head_dim]`, at `slot` of the plane
    /// `[n_kv_heads, BLOCK_TOKENS, head_dim]` that begins at `plane`.
    fn store(&mut self, kernels: &Kernels, shape: KvShape, plane: usize, slot: usize, row: &[f32]) {
        for (head, values) in row.chunks_exact(shape.head_dim).enumerate() {
            let start = plane + (head * BLOCK_TOKENS + slot) * shape.head_dim;
            let place = start..start + shape.head_dim;
            match self {
                Self::F32(block) => block[place].copy_from_slice(values),
                Self::F16(block) => kernels.f32_to_f16(values, &mut block[place]),
            }
        }
    }

    fn rows(&self, range: std::ops::Range<usize>) -> KvRows<'_> {
        match self {
            Self::F32(block) => KvRows::F32(&block[range]),
            Self::F16(block) => KvRows::F16(&block[range]),
        }
    }
}

/// Zeros, or an error value when there is no memory for them.
fn zeros<T: Copy + Default>(n_values: usize) -> Result<Vec<T>> {
    let mut values = Vec::new();
    values.try_reserve_exact(n_values).map_err(|_| Error::OutOfMemory {
        what: "a block of keys and values",
        bytes: n_values.saturating_mul(size_of::<T>()),
    })?;
    values.resize(n_values, T::default());
    Ok(values)
}
