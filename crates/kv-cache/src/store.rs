//! Where blocks come from: the shape of a model, its policy, and a slab of pages per tier.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ruvllm_kernels::{KeyRotation, KvBlock, KvLayout, KvPlane, NuqContext};
use ruvllm_memory::{PagePool, Request, Slab, SlabBlock};

use crate::block::Block;
use crate::calibration::KvCalibration;
use crate::error::{Error, Result};
use crate::learned::{KvRope, Learned};
use crate::policy::{KvFormats, KvPolicy};
use crate::pressure::Pressure;
use crate::sequence::Sequence;
use crate::shape::KvShape;

/// Index of the tier that new tokens are written to.
pub(crate) const HOT: usize = 0;

/// Makes sequences of one shape and policy, with memory of one page pool. Clones are the same store.
#[derive(Clone)]
pub struct KvStore(Arc<Inner>);

struct Inner {
    shape: KvShape,
    policy: KvPolicy,
    block_tokens: usize,
    tiers: Vec<Tier>, // from hot to cold
    learned: Option<Learned>,
    pool: PagePool,
    pressure: Pressure,
}

/// How the blocks of one tier are stored, and where.
pub(crate) struct Tier {
    pub(crate) formats: KvFormats,
    pub(crate) keys: KvLayout,
    pub(crate) values: KvLayout,
    slab: Slab,
    blocks: AtomicUsize,
}

/// What a tier holds at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TierUse {
    /// Formats of the tier.
    pub formats: KvFormats,
    /// Blocks in it, each counted once however many sequences share it.
    pub blocks: usize,
    /// Bytes of those blocks, scales and padding included.
    pub bytes: usize,
}

impl KvStore {
    /// A store of blocks of as few tokens as the policy allows: 32, or the longest group of its formats.
    ///
    /// # Errors
    /// As [`with_block_tokens`](Self::with_block_tokens).
    pub fn new(shape: KvShape, policy: &KvPolicy, pool: &PagePool) -> Result<Self> {
        Self::with_block_tokens(shape, policy, pool, policy.block_tokens())
    }

    /// A store of blocks of `block_tokens` tokens.
    ///
    /// # Errors
    /// [`Error::PolicyConflict`] if the policy contradicts itself, or rotates heads that are not a power of two from 16
    /// to 256; [`Error::NoCalibration`] if it has a format that needs one; [`Error::BlockTokens`] if a block would not hold
    /// whole groups; [`Error::Kernels`] if a format does not take heads of this size; [`Error::Memory`] if the pool does not
    /// serve blocks of this size.
    pub fn with_block_tokens(
        shape: KvShape,
        policy: &KvPolicy,
        pool: &PagePool,
        block_tokens: usize,
    ) -> Result<Self> {
        Self::build(shape, policy, pool, block_tokens, None)
    }

    /// A store whose policy may have tiers that need a calibration, for a model that turns its keys as `rope` says.
    ///
    /// # Errors
    /// As [`with_block_tokens`](Self::with_block_tokens); [`Error::CalibrationShape`] if the calibration is of another shape;
    /// [`Error::PolicyConflict`] if no tier needs it.
    ///
    /// # Panics
    /// If `rope` turns more dimensions than a head has.
    pub fn with_calibration(
        shape: KvShape,
        policy: &KvPolicy,
        pool: &PagePool,
        calibration: Arc<KvCalibration>,
        rope: KvRope,
    ) -> Result<Self> {
        if calibration.shape() != shape {
            return Err(Error::CalibrationShape { found: calibration.shape(), expected: shape });
        }
        if !policy.needs_calibration() {
            let reason = "no tier needs the calibration; leave it out or use nuq3".to_owned();
            return Err(Error::PolicyConflict { policy: policy.to_string(), reason });
        }
        let pairs = rope.frequencies.inverse.len();
        assert!(2 * pairs <= shape.head_dim, "{pairs} pairs turn in heads of {}", shape.head_dim);
        let learned = Learned::new(calibration, rope);
        Self::build(shape, policy, pool, policy.block_tokens(), Some(learned))
    }

    fn build(
        shape: KvShape,
        policy: &KvPolicy,
        pool: &PagePool,
        block_tokens: usize,
        learned: Option<Learned>,
    ) -> Result<Self> {
        policy.validate()?;
        if policy.needs_calibration() && learned.is_none() {
            return Err(Error::NoCalibration { policy: policy.to_string() });
        }
        let multiple = policy.block_tokens();
        if block_tokens == 0 || !block_tokens.is_multiple_of(multiple) {
            return Err(Error::BlockTokens { block_tokens, multiple });
        }
        let rotates = shape.head_dim.is_power_of_two() && (16..=256).contains(&shape.head_dim);
        if policy.rotated && !rotates {
            let reason = format!(
                "rotation needs heads of 16, 32, 64, 128 or 256 values, these have {}",
                shape.head_dim
            );
            return Err(Error::PolicyConflict { policy: policy.to_string(), reason });
        }
        let tiers = policy
            .tiers()
            .map(|formats| Tier::new(shape, formats, pool, block_tokens))
            .collect::<Result<Vec<_>>>()?;
        Ok(Self(Arc::new(Inner {
            shape,
            policy: *policy,
            block_tokens,
            tiers,
            learned,
            pool: pool.clone(),
            pressure: Pressure::default(),
        })))
    }

    /// Bytes of the smallest pool that holds a block of each tier of `policy`: whole pages of `page_bytes` bytes for every
    /// tier.
    ///
    /// # Errors
    /// [`Error::Kernels`] if a format does not take heads of this size.
    pub fn least_bytes(shape: KvShape, policy: &KvPolicy, page_bytes: usize) -> Result<usize> {
        let mut pages = 0usize;
        for formats in policy.tiers() {
            let layer = KvShape { n_layers: 1, ..shape };
            let layer_bytes = formats.block_bytes(layer, policy.block_tokens())?;
            pages = pages.saturating_add(Slab::pages_for(shape.n_layers, layer_bytes, page_bytes));
        }
        Ok(pages.saturating_mul(page_bytes))
    }

    /// An empty sequence of at most `capacity` tokens. It takes memory as it grows.
    pub fn sequence(&self, capacity: usize) -> Sequence {
        Sequence::new(self.clone(), capacity)
    }

    /// The size of a token's keys and values.
    pub fn shape(&self) -> KvShape {
        self.0.shape
    }

    /// Which tokens are stored how.
    pub fn policy(&self) -> &KvPolicy {
        &self.0.policy
    }

    /// Tokens of a block.
    pub fn block_tokens(&self) -> usize {
        self.0.block_tokens
    }

    /// Whether keys and values that are written, and the queries that meet them, must be rotated first
    /// ([`Kernels::hadamard`](ruvllm_kernels::Kernels::hadamard) per head), and the output of attention after it.
    pub fn rotated(&self) -> bool {
        self.0.policy.rotated
    }

    /// What was learned of the model, if a tier needs it.
    pub fn calibration(&self) -> Option<&KvCalibration> {
        self.0.learned.as_ref().map(Learned::calibration)
    }

    /// The pool that pays.
    pub fn pool(&self) -> &PagePool {
        &self.0.pool
    }

    /// What each tier holds, from hot to cold.
    pub fn tiers(&self) -> impl Iterator<Item = TierUse> {
        self.0.tiers.iter().map(|tier| {
            let blocks = tier.blocks.load(Ordering::Relaxed);
            TierUse {
                formats: tier.formats,
                blocks,
                bytes: blocks * tier.slab.block_bytes() * self.0.shape.n_layers,
            }
        })
    }

    /// Bytes of a sequence of `tokens` tokens of its own once every block is in the tier that its age asks for: what
    /// [`Sequence::bytes`] tells then. Blocks that stay hot for the attention they get, and those that go down early because
    /// memory is short, are not foreseen.
    ///
    /// # Examples
    /// ```
    /// # use ruvllm_kv_cache::{KvShape, KvStore};
    /// # use ruvllm_memory::{PagePool, PoolConfig};
    /// let pool = PagePool::new(PoolConfig::new(64 << 20))?;
    /// let shape = KvShape { n_layers: 16, n_kv_heads: 8, head_dim: 64 };
    /// let half = KvStore::new(shape, &"f16".parse()?, &pool)?;
    /// assert_eq!(half.sequence_bytes(32_768), 1 << 30);
    /// let tiered = KvStore::new(shape, &"tiered".parse()?, &pool)?;
    /// assert!(tiered.sequence_bytes(32_768) < (1 << 30) / 3);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn sequence_bytes(&self, tokens: usize) -> usize {
        let blocks = 0..tokens.div_ceil(self.0.block_tokens);
        let tiers = blocks.map(|index| self.tier_by_age(index, tokens, self.0.policy.hot_tokens));
        tiers.map(|tier| self.0.tiers[tier].slab.block_bytes() * self.0.shape.n_layers).sum()
    }

    /// The tier of block `index` of a sequence of `len` tokens, the last `hot_tokens` of which stay hot.
    pub(crate) fn tier_by_age(&self, index: usize, len: usize, hot_tokens: usize) -> usize {
        let (policy, start, end) =
            (&self.0.policy, index * self.0.block_tokens, (index + 1) * self.0.block_tokens);
        let Some(age) = len.checked_sub(end) else { return HOT };
        if start < policy.sink_tokens || age < hot_tokens {
            return HOT;
        }
        let cold = age - hot_tokens >= policy.warm_tokens;
        (HOT + 1 + usize::from(cold)).min(self.n_tiers() - 1)
    }

    /// A whole block from the bytes of [`PinnedBlock::layers`](crate::PinnedBlock::layers): `fill` writes each layer's
    /// into the buffer it gets.
    ///
    /// # Errors
    /// [`Error::AbsentTier`] if no tier has these formats; [`Error::Memory`] and [`Error::BudgetReached`] without
    /// room; the error of `fill`.
    pub fn restore_block<E: From<Error>>(
        &self,
        formats: KvFormats,
        mut fill: impl FnMut(usize, &mut [u8]) -> Result<(), E>,
    ) -> Result<Block, E> {
        let found = self.0.tiers.iter().position(|tier| tier.formats == formats);
        let tier = found.ok_or_else(|| Error::AbsentTier {
            formats: formats.to_string(),
            policy: self.0.policy.to_string(),
        })?;
        let mut storage = self.allocate(tier)?;
        for layer in 0..self.0.shape.n_layers {
            fill(layer, storage.layer_mut(layer))?;
        }
        Ok(Block::new(self.clone(), Arc::new(storage)))
    }

    /// Whether memory is short: from 80 % of the pages that new tokens get in use until 70 %. Then [`Sequence::migrate`] takes whatever
    /// is not hot to the lowest tier, whatever its age.
    pub fn is_short(&self) -> bool {
        let stats = self.0.pool.stats();
        self.0.pressure.update(stats.used_pages, stats.capacity_pages - self.kept_pages(stats.capacity_pages))
    }

    pub(crate) fn tier(&self, index: usize) -> &Tier {
        &self.0.tiers[index]
    }

    /// How keys at positions before `n_positions` are turned, if a tier needs to know.
    pub(crate) fn rotation(&self, n_positions: usize) -> Option<Arc<KeyRotation>> {
        self.0.learned.as_ref().map(|learned| learned.rotation(n_positions))
    }

    /// What planes of a layer mean from position `first_position` on, if a tier needs it.
    pub(crate) fn nuq<'a>(
        &'a self,
        layer: usize,
        rotation: Option<&'a Arc<KeyRotation>>,
        first_position: usize,
    ) -> Option<NuqContext<'a>> {
        let codebooks = &self.calibration()?.layers()[layer];
        Some(NuqContext { codebooks, rotation: rotation?, first_position })
    }

    pub(crate) fn n_tiers(&self) -> usize {
        self.0.tiers.len()
    }

    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Memory for one block of a tier in all layers.
    pub(crate) fn allocate(&self, tier: usize) -> Result<Storage> {
        let mut storage = Storage::vacant(self);
        self.fill(&mut storage, tier)?;
        Ok(storage)
    }

    /// Memory of a tier for a vacant storage, which stays vacant if there is none.
    pub(crate) fn fill(&self, storage: &mut Storage, tier: usize) -> Result<()> {
        debug_assert!(storage.layers.is_empty(), "a storage is filled once");
        let place = &self.0.tiers[tier];
        let slab = &place.slab;
        let n_layers = self.0.shape.n_layers;
        if tier == HOT && slab.stats().free_blocks < n_layers {
            self.keep_pages()?;
        }
        while storage.layers.len() < n_layers {
            match slab.allocate() {
                Ok(layer) => storage.layers.push(layer),
                Err(source) => {
                    storage.layers.clear();
                    let (block_bytes, page_bytes) = (slab.block_bytes(), self.0.pool.page_bytes());
                    return Err(Error::Memory { block_bytes, page_bytes, source });
                }
            }
        }
        storage.tier = tier;
        place.blocks.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Most blocks that the pool has room for.
    pub(crate) fn most_blocks(&self) -> usize {
        let bytes = self.0.pool.capacity_pages() * self.0.pool.page_bytes();
        let least = self.0.tiers.iter().map(|tier| tier.slab.block_bytes() * self.0.shape.n_layers).min();
        bytes / least.unwrap_or(1).max(1)
    }

    /// Pages that new tokens do not get: one for each lower tier, where there are some to spare.
    fn kept_pages(&self, capacity_pages: usize) -> usize {
        (self.0.tiers.len() - 1).min(capacity_pages / 4)
    }

    /// Refuses a hot block that would take the pages in which present blocks are made smaller.
    fn keep_pages(&self) -> Result<()> {
        let stats = self.0.pool.stats();
        let kept_pages = self.kept_pages(stats.capacity_pages);
        if stats.free_pages <= kept_pages && kept_pages > 0 {
            return Err(Error::BudgetReached {
                free_pages: stats.free_pages,
                total_pages: stats.capacity_pages,
                page_bytes: stats.page_bytes,
                kept_pages,
            });
        }
        Ok(())
    }
}

impl std::fmt::Debug for KvStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KvStore")
            .field("shape", &self.0.shape)
            .field("policy", &self.0.policy.to_string())
            .field("block_tokens", &self.0.block_tokens)
            .finish_non_exhaustive()
    }
}

impl Tier {
    fn new(shape: KvShape, formats: KvFormats, pool: &PagePool, block_tokens: usize) -> Result<Self> {
        let layout = |format| KvLayout::new(format, shape.n_kv_heads, block_tokens, shape.head_dim);
        let (keys, values) = (layout(formats.keys)?, layout(formats.values)?);
        let block_bytes = keys.plane_bytes().saturating_add(values.plane_bytes());
        let slab = Slab::new(pool, block_bytes, Request::default()).map_err(|source| Error::Memory {
            block_bytes,
            page_bytes: pool.page_bytes(),
            source,
        })?;
        Ok(Self { formats, keys, values, slab, blocks: AtomicUsize::new(0) })
    }

    /// Bytes of the keys and the values of one layer.
    pub(crate) fn layer_bytes(&self) -> usize {
        self.keys.plane_bytes() + self.values.plane_bytes()
    }
}

/// The numbers of one block in one tier. Whoever holds it alone may write. It is vacant without memory.
pub(crate) struct Storage {
    store: KvStore,
    tier: usize,
    layers: Vec<SlabBlock>,
}

impl Storage {
    /// A storage without memory, for [`KvStore::fill`].
    pub(crate) fn vacant(store: &KvStore) -> Self {
        Self { store: store.clone(), tier: HOT, layers: Vec::with_capacity(store.shape().n_layers) }
    }

    /// Gives the memory back.
    pub(crate) fn clear(&mut self) {
        if !self.layers.is_empty() {
            self.layers.clear();
            self.store.tier(self.tier).blocks.fetch_sub(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn tier(&self) -> usize {
        self.tier
    }

    /// Allocated bytes, padding included.
    pub(crate) fn bytes(&self) -> usize {
        self.store.tier(self.tier).slab.block_bytes() * self.layers.len()
    }

    /// Keys, then values, of one layer.
    pub(crate) fn layer(&self, layer: usize) -> &[u8] {
        &self.layers[layer].bytes()[..self.store.tier(self.tier).layer_bytes()]
    }

    /// As [`layer`](Self::layer).
    pub(crate) fn layer_mut(&mut self, layer: usize) -> &mut [u8] {
        let len = self.store.tier(self.tier).layer_bytes();
        &mut self.layers[layer].bytes_mut()[..len]
    }

    /// Every layer's bytes, to be written.
    pub(crate) fn layers_mut(&mut self) -> impl Iterator<Item = &mut [u8]> + Send {
        let len = self.store.tier(self.tier).layer_bytes();
        self.layers.iter_mut().map(move |layer| &mut layer.bytes_mut()[..len])
    }

    /// What attention reads.
    pub(crate) fn view(&self, layer: usize) -> KvBlock<'_> {
        let tier = self.store.tier(self.tier);
        let (keys, values) = self.layer(layer).split_at(tier.keys.plane_bytes());
        KvBlock {
            keys: KvPlane { format: tier.formats.keys, bytes: keys },
            values: KvPlane { format: tier.formats.values, bytes: values },
        }
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        self.clear();
    }
}
