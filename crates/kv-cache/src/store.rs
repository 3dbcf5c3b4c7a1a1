//! Source of blocks: the shape of a model, its policy, and for each tenant a slab of pages per
//! tier.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use ruvllm_kernels::attention::NuqContext;
use ruvllm_memory::{PagePool, PressurePolicy, Request, Slab, SlabBlock, Tenant, TenantUsage};

use crate::calibration::KvCalibration;
use crate::error::{Error, Result};
use crate::learned::{KeyRopes, KvRopes, Learned};
use crate::policy::{KvFormats, KvPolicy};
use crate::shape::KvShape;
use crate::tier::{LayerLayout, Tier};

/// Index of the tier that new tokens are written to.
pub(crate) const HOT: usize = 0;

/// Allocator of KV blocks: sequences of one shape and policy, in memory of one page pool. Clones
/// share the store.
///
/// Its allocations are charged to one tenant of the pool: the root, or that of
/// [`for_tenant`](Self::for_tenant). Stores of several tenants share blocks; each takes pages of
/// its own.
#[derive(Clone)]
pub struct KvStore(Arc<TenantStore>);

/// Slabs of one tenant.
struct TenantStore {
    state: Arc<StoreState>,
    tenant: Tenant,
    /// Of each tier, one for each group of layers.
    slabs: Vec<Vec<Slab>>,
    /// Of snapshots of states, by their bytes: one, as a store serves one model.
    states: Mutex<HashMap<usize, Slab>>,
}

/// State that all tenants share.
struct StoreState {
    shape: KvShape,
    policy: KvPolicy,
    block_tokens: usize,
    tiers: Vec<Tier>, // from hot to cold
    learned: Option<Learned>,
    pool: PagePool,
    snapshots: AtomicUsize,
    snapshot_bytes: AtomicUsize,
    /// The stores in use, by the paths of their tenants.
    tenants: Mutex<HashMap<String, Weak<TenantStore>>>,
}

/// Snapshots of states in the memory of a store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SnapshotUse {
    /// Snapshots, each counted once however many holders it has.
    pub snapshots: usize,
    /// Their bytes.
    pub bytes: usize,
}

/// Present content of a tier.
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
    /// A store of blocks of as few tokens as the policy allows: 32, or the longest group of its
    /// formats.
    ///
    /// # Errors
    /// As [`with_block_tokens`](Self::with_block_tokens).
    pub fn new(shape: KvShape, policy: &KvPolicy, pool: &PagePool) -> Result<Self> {
        Self::with_block_tokens(shape, policy, pool, policy.block_tokens())
    }

    /// A store of blocks of `block_tokens` tokens.
    ///
    /// # Errors
    /// [`Error::PolicyConflict`] if the policy contradicts itself, or rotates heads that are not a
    /// power of two from 16 to 256; [`Error::NoCalibration`] if it has a format that needs one;
    /// [`Error::BlockTokens`] if a block would not hold whole groups; [`Error::Kernels`] if a
    /// format does not take heads of this size; [`Error::Memory`] if the pool does not serve blocks
    /// of this size.
    pub fn with_block_tokens(
        shape: KvShape,
        policy: &KvPolicy,
        pool: &PagePool,
        block_tokens: usize,
    ) -> Result<Self> {
        Self::build(shape, policy, pool, block_tokens, None)
    }

    /// A store whose policy may have tiers that need a calibration; `ropes` are the model's RoPE
    /// parameters.
    ///
    /// # Errors
    /// As [`with_block_tokens`](Self::with_block_tokens); [`Error::CalibrationShape`] if the
    /// calibration is of another shape; [`Error::PolicyConflict`] if no tier needs it.
    ///
    /// # Panics
    /// If the pairs of `ropes` exceed a head, or its local layers are those of another model.
    pub fn with_calibration(
        shape: KvShape,
        policy: &KvPolicy,
        pool: &PagePool,
        calibration: Arc<KvCalibration>,
        ropes: &KvRopes,
    ) -> Result<Self> {
        check_calibrated(policy, shape)?;
        if calibration.shape() != shape {
            let (found, expected) = (Box::new(calibration.shape()), Box::new(shape));
            return Err(Error::CalibrationShape { found, expected });
        }
        if !policy.needs_calibration() {
            let reason = "no tier needs the calibration; leave it out or use nuq3".to_owned();
            return Err(Error::PolicyConflict { policy: policy.to_string(), reason });
        }
        ropes.check(shape.n_layers, shape.head_dim);
        let learned = Learned::new(calibration, ropes);
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
        check_calibrated(policy, shape)?;
        if policy.needs_calibration() && learned.is_none() {
            return Err(Error::NoCalibration { policy: policy.to_string() });
        }
        let multiple = policy.block_tokens();
        if block_tokens == 0 || !block_tokens.is_multiple_of(multiple) {
            return Err(Error::BlockTokens { block_tokens, multiple });
        }
        let rotates = |head_dim: usize| head_dim.is_power_of_two() && (16..=256).contains(&head_dim);
        let unrotated = shape.groups().map(|group| group.head_dim).find(|&head_dim| !rotates(head_dim));
        if let (true, Some(head_dim)) = (policy.rotates(), unrotated) {
            let reason =
                format!("rotation needs heads of 16, 32, 64, 128 or 256 values, these have {head_dim}");
            return Err(Error::PolicyConflict { policy: policy.to_string(), reason });
        }
        let tiers = policy
            .tiers()
            .map(|formats| Tier::new(shape, formats, block_tokens))
            .collect::<Result<Vec<_>>>()?;
        let state = StoreState {
            shape,
            policy: *policy,
            block_tokens,
            tiers,
            learned,
            pool: pool.clone(),
            snapshots: AtomicUsize::new(0),
            snapshot_bytes: AtomicUsize::new(0),
            tenants: Mutex::default(),
        };
        Self::of_tenant(&Arc::new(state), &Tenant::root())
    }

    /// The same store for another tenant of the pool: allocations of its sequences are charged to
    /// `tenant`, within its quotas, in pages that no other tenant has a block in. Blocks may be
    /// shared across tenants and stay charged to their writer.
    ///
    /// A tenant takes a page for its first token, so many small tenants need small pages.
    ///
    /// # Errors
    /// [`Error::ForeignTenant`] if the tenant is one of another pool.
    ///
    /// # Examples
    /// ```
    /// # use ruvllm_kernels::Kernels;
    /// # use ruvllm_kv_cache::{KvShape, KvStore};
    /// # use ruvllm_memory::{PagePool, PoolConfig, Quota};
    /// let pool = PagePool::new(PoolConfig::new(64 << 20))?;
    /// let shape = KvShape::new(1, 2, 32);
    /// let store = KvStore::new(shape, &"f16".parse()?, &pool)?;
    /// let team = pool.tenant("acme/search")?;
    /// pool.set_quota(&team, Quota { hard_pages: 4, ..Quota::default() })?;
    /// let mut sequence = store.for_tenant(&team)?.sequence(1024);
    /// let step = sequence.step(&Kernels::detect()?, 1)?;
    /// assert_eq!(pool.usage(&team)?.used_pages, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn for_tenant(&self, tenant: &Tenant) -> Result<Self> {
        // Asked first, because tenants are keyed by their paths alone.
        let foreign = |source| Error::ForeignTenant { tenant: tenant.path().to_owned(), source };
        self.pool().usage(tenant).map_err(foreign)?;
        Self::of_tenant(&self.0.state, tenant)
    }

    /// The store of a tenant: the one in use, or a new one.
    fn of_tenant(state: &Arc<StoreState>, tenant: &Tenant) -> Result<Self> {
        let mut stores = state.tenants.lock();
        if let Some(store) = stores.get(tenant.path()).and_then(Weak::upgrade) {
            return Ok(Self(store));
        }
        let slab = |layout: &LayerLayout| {
            let request = Request::default().tenant(tenant.clone());
            let (block_bytes, pool) = (layout.bytes(), &state.pool);
            Slab::new(pool, block_bytes, request).map_err(|source| Error::Memory {
                block_bytes,
                page_bytes: pool.page_bytes(),
                source,
            })
        };
        let of_tier = |tier: &Tier| tier.layouts().iter().map(slab).collect::<Result<_>>();
        let slabs = state.tiers.iter().map(of_tier).collect::<Result<_>>()?;
        let (state, tenant) = (Arc::clone(state), tenant.clone());
        let store = Arc::new(TenantStore { state, tenant, slabs, states: Mutex::default() });
        stores.retain(|_, store| store.strong_count() > 0);
        stores.insert(store.tenant.path().to_owned(), Arc::downgrade(&store));
        Ok(Self(store))
    }

    /// Bytes of the smallest pool that holds a block of each tier of `policy`: whole pages of
    /// `page_bytes` bytes for every tier.
    ///
    /// # Errors
    /// [`Error::Kernels`] if a format does not take heads of this size.
    pub fn least_bytes(shape: KvShape, policy: &KvPolicy, page_bytes: usize) -> Result<usize> {
        let mut pages = 0usize;
        for (formats, group) in policy.tiers().flat_map(|tier| shape.groups().map(move |group| (tier, group)))
        {
            let layer_bytes = formats.block_bytes(group.of_layer(0), policy.block_tokens())?;
            pages = pages.saturating_add(Slab::pages_for(group.n_layers, layer_bytes, page_bytes));
        }
        Ok(pages.saturating_mul(page_bytes))
    }

    /// The size of a token's keys and values.
    pub fn shape(&self) -> KvShape {
        self.0.state.shape
    }

    /// The tenant charged for allocations.
    pub fn tenant(&self) -> &Tenant {
        &self.0.tenant
    }

    /// The policy of its tiers.
    pub fn policy(&self) -> &KvPolicy {
        &self.0.state.policy
    }

    /// Tokens of a block.
    pub fn block_tokens(&self) -> usize {
        self.0.state.block_tokens
    }

    /// `true` if queries, keys and values, and the output of attention, must be Hadamard-rotated
    /// per head ([`Kernels::hadamard`](ruvllm_kernels::Kernels::hadamard)).
    pub fn rotated(&self) -> bool {
        self.policy().rotates()
    }

    /// Calibration of the model, if a tier needs it.
    pub fn calibration(&self) -> Option<&KvCalibration> {
        self.0.state.learned.as_ref().map(Learned::calibration)
    }

    /// The page pool.
    pub fn pool(&self) -> &PagePool {
        &self.0.state.pool
    }

    /// Content of each tier, of all tenants together, from hot to cold.
    pub fn tiers(&self) -> impl Iterator<Item = TierUse> {
        self.0.state.tiers.iter().map(|tier| {
            let blocks = tier.blocks();
            TierUse { formats: tier.formats, blocks, bytes: blocks * tier.block_bytes() }
        })
    }

    /// Snapshots of states, of all tenants together.
    pub fn snapshots(&self) -> SnapshotUse {
        let StoreState { snapshots, snapshot_bytes, .. } = &*self.0.state;
        SnapshotUse {
            snapshots: snapshots.load(Ordering::Relaxed),
            bytes: snapshot_bytes.load(Ordering::Relaxed),
        }
    }

    /// Counts a snapshot.
    pub(crate) fn count_snapshot(&self, bytes: usize) {
        self.0.state.snapshots.fetch_add(1, Ordering::Relaxed);
        self.0.state.snapshot_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts the end of a snapshot.
    pub(crate) fn discount_snapshot(&self, bytes: usize) {
        self.0.state.snapshots.fetch_sub(1, Ordering::Relaxed);
        self.0.state.snapshot_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Memory for a snapshot of `bytes` bytes, charged to the tenant. Prefixes that no sequence
    /// uses, other snapshots among them, make room for it.
    ///
    /// # Errors
    /// [`Error::SnapshotMemory`], [`Error::BudgetReached`], [`Error::QuotaReached`].
    pub(crate) fn allocate_state(&self, bytes: usize) -> Result<SlabBlock> {
        let failed = |source| Error::SnapshotMemory { bytes, source };
        let slab = match self.0.states.lock().entry(bytes) {
            Entry::Occupied(entry) => entry.get().clone(),
            Entry::Vacant(entry) => {
                let request = Request::default().tenant(self.tenant().clone());
                let request = request.pressure(PressurePolicy::EvictPrefixes);
                entry.insert(Slab::new(self.pool(), bytes, request).map_err(failed)?).clone()
            }
        };
        if slab.stats().free_blocks == 0 {
            self.keep_pages()?;
        }
        slab.allocate().map_err(failed)
    }

    /// Expected [`Sequence::bytes`](crate::Sequence::bytes) of `tokens` unshared tokens with every
    /// block in the tier of its age; blocks kept hot by attention or migrated early are ignored.
    ///
    /// # Examples
    /// ```
    /// # use ruvllm_kv_cache::{KvShape, KvStore};
    /// # use ruvllm_memory::{PagePool, PoolConfig};
    /// let pool = PagePool::new(PoolConfig::new(64 << 20))?;
    /// let shape = KvShape::new(16, 8, 64);
    /// let half = KvStore::new(shape, &"f16".parse()?, &pool)?;
    /// assert_eq!(half.sequence_bytes(32_768), 1 << 30);
    /// let tiered = KvStore::new(shape, &"tiered".parse()?, &pool)?;
    /// assert!(tiered.sequence_bytes(32_768) < (1 << 30) / 3);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn sequence_bytes(&self, tokens: usize) -> usize {
        let blocks = 0..tokens.div_ceil(self.block_tokens());
        let tiers = blocks.map(|index| self.tier_by_age(index, tokens, self.policy().hot_tokens));
        tiers.map(|tier| self.tier(tier).block_bytes()).sum()
    }

    /// The tier of block `index` of a sequence of `len` tokens, the last `hot_tokens` of which stay
    /// hot.
    pub(crate) fn tier_by_age(&self, index: usize, len: usize, hot_tokens: usize) -> usize {
        let (policy, block_tokens) = (self.policy(), self.block_tokens());
        let (start, end) = (index * block_tokens, (index + 1) * block_tokens);
        let Some(age) = len.checked_sub(end) else { return HOT };
        if start < policy.sink_tokens || age < hot_tokens {
            return HOT;
        }
        let cold = age - hot_tokens >= policy.warm_tokens;
        (HOT + 1 + usize::from(cold)).min(self.n_tiers() - 1)
    }

    /// Usages of the tenant and its ancestors.
    fn usages(&self) -> impl Iterator<Item = (&str, TenantUsage)> {
        self.pool().usages(self.tenant()).into_iter().flatten()
    }

    pub(crate) fn tier(&self, index: usize) -> &Tier {
        &self.0.state.tiers[index]
    }

    /// RoPE tables of the positions before `n_positions` of a sequence of at most `capacity`
    /// tokens, if a tier needs them.
    pub(crate) fn key_ropes(&self, n_positions: usize, capacity: usize) -> Option<KeyRopes> {
        self.0.state.learned.as_ref().map(|learned| learned.key_ropes(n_positions, capacity))
    }

    /// Codebooks and RoPE tables of a layer from position `first_position` on, if a tier needs
    /// them.
    pub(crate) fn nuq<'a>(
        &'a self,
        layer: usize,
        key_ropes: Option<&'a KeyRopes>,
        first_position: usize,
    ) -> Option<NuqContext<'a>> {
        let codebooks = &self.calibration()?.layers()[layer];
        Some(NuqContext { codebooks, rope: key_ropes?.of_layer(layer), first_position })
    }

    pub(crate) fn n_tiers(&self) -> usize {
        self.0.state.tiers.len()
    }

    /// `true` if blocks of the other may be shared: the same store, perhaps of another tenant.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0.state, &other.0.state)
    }

    /// `true` if the other allocates for the same tenant.
    pub(crate) fn is_of_same_tenant(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The slabs of a tier, one for each group of layers.
    pub(crate) fn slabs(&self, tier: usize) -> &[Slab] {
        &self.0.slabs[tier]
    }

    /// Most blocks that the pool has room for.
    pub(crate) fn most_blocks(&self) -> usize {
        let bytes = self.pool().capacity_pages() * self.pool().page_bytes();
        let least = self.0.state.tiers.iter().map(Tier::block_bytes).min();
        bytes / least.unwrap_or(1).max(1)
    }

    /// Pages of each quota kept from new tokens, where there are four times as many: one per slab
    /// of a lower tier.
    pub(crate) fn kept_pages(&self) -> usize {
        (self.n_tiers() - 1) * self.shape().groups().count()
    }

    /// Refuses a hot block that would take the pages kept for migration: the pool's, and those
    /// within each quota of the tenant.
    pub(crate) fn keep_pages(&self) -> Result<()> {
        for (tenant, TenantUsage { used_pages, quota }) in self.usages() {
            let total_pages = quota.hard_pages;
            let kept_pages = self.kept_pages().min(total_pages / 4);
            let free_pages = total_pages.saturating_sub(used_pages);
            if free_pages <= kept_pages && kept_pages > 0 {
                let page_bytes = self.pool().page_bytes();
                return Err(match tenant {
                    "" => Error::BudgetReached { free_pages, total_pages, page_bytes, kept_pages },
                    _ => {
                        let tenant = tenant.to_owned();
                        Error::QuotaReached { tenant, free_pages, total_pages, page_bytes, kept_pages }
                    }
                });
            }
        }
        Ok(())
    }
}

/// Refuses a calibrated format for keys and values that no calibration is of.
fn check_calibrated(policy: &KvPolicy, shape: KvShape) -> Result<()> {
    let reason = match shape {
        _ if !policy.needs_calibration() => return Ok(()),
        KvShape { values_are_keys: true, .. } => "nuq3 is calibrated for values, and these are the keys",
        KvShape { others: Some(_), .. } => "nuq3 is calibrated for heads alike in all layers",
        _ => return Ok(()),
    };
    Err(Error::PolicyConflict { policy: policy.to_string(), reason: reason.to_owned() })
}

impl std::fmt::Debug for KvStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KvStore")
            .field("shape", &self.shape())
            .field("policy", &self.policy().to_string())
            .field("block_tokens", &self.block_tokens())
            .field("tenant", &self.tenant().path())
            .finish_non_exhaustive()
    }
}
