//! Eviction, spilling, reading back and recomputing of prefixes.

use std::fs;
use std::sync::Arc;

use ruvllm_kernels::attention::NuqCodebooks;
use ruvllm_kernels::rope::{RopeFrequencies, RopeLayout};
use ruvllm_kv_cache::{KvCalibration, KvRope, KvShape};
use ruvllm_memory::{Claim, PagePool, PoolConfig, PressurePolicy, Quota, Rung, Tenant};

use super::*;

#[test]
fn blocks_under_another_calibration_are_other_blocks() {
    let pool = PagePool::new(PoolConfig::new(32 << 20)).expect("a pool");
    let shape = KvShape::new(1, 1, 32);
    let policy = "tiered:warm=nuq3".parse().expect("a policy");
    let format = |high: f32| {
        let levels = [-0.9, -0.6, -0.3, -0.1, 0.1, 0.3, 0.6, 0.9];
        let layer = NuqCodebooks::new(levels, levels, vec![[0.0, high]; 32]).expect("codebooks");
        let calibration = KvCalibration::new([0; 32], shape, vec![layer]).expect("a calibration");
        let frequencies = RopeFrequencies { inverse: vec![0.5; 16], magnitude: 1.0 };
        let rope = KvRope { frequencies, layout: RopeLayout::Halves };
        let kv = KvStore::with_calibration(shape, &policy, &pool, Arc::new(calibration), &rope.into());
        kv_format(&kv.expect("a store"))
    };
    assert!(format(1.0).starts_with("tiered:warm=nuq3"));
    assert_eq!(format(1.0), format(1.0));
    assert_ne!(format(1.0), format(2.0));
    let plain = KvStore::new(shape, &"tiered".parse().expect("a policy"), &pool).expect("a store");
    assert_eq!(kv_format(&plain), "tiered");
}

/// 128 KiB per block of 32 tokens in F32; four fill a page.
const SHAPE: KvShape = KvShape::new(1, 8, 64);

/// A store with `pages` pages of 512 KiB.
fn kv(pages: usize) -> KvStore {
    let page_bytes = 512 << 10;
    let config = PoolConfig { page_bytes, ..PoolConfig::new(pages * page_bytes) };
    let pool = PagePool::new(config).expect("a pool");
    KvStore::new(SHAPE, &"f32".parse().expect("a policy"), &pool).expect("a store")
}

fn tenant(kv: &KvStore, path: &str, quota: Quota) -> KvStore {
    let tenant = kv.pool().tenant(path).expect("a path");
    kv.pool().set_quota(&tenant, quota).expect("its own pool");
    kv.for_tenant(&tenant).expect("its own pool")
}

/// No transfers.
fn off(kv: &KvStore) -> Transfers {
    Transfers::new(false, kv.block_tokens(), None)
}

/// A prefix cache that spills to `folder` on eviction.
fn spilling(kv: &KvStore, folder: &tempfile::TempDir) -> Arc<PrefixCache> {
    let store =
        PrefixStore::open(folder.path().join("prefixes"), kv.block_tokens(), 1 << 30).expect("a folder");
    let reports = Arc::default();
    let files = Files::new(store, false, &reports, kv).expect("a thread");
    PrefixCache::new(kv, Some(files), reports, [1; 32], ModelFacts::default(), None, off(kv))
}

fn in_memory(kv: &KvStore) -> Arc<PrefixCache> {
    PrefixCache::new(kv, None, Arc::default(), [0; 32], ModelFacts::default(), None, off(kv))
}

/// A claim that succeeds after the eviction of one unit for a tenant.
struct Unit<'a>(&'a str, usize);

impl Claim for Unit<'_> {
    type Error = String;

    fn take(&mut self) -> Result<(), String> {
        let is_first = self.1 == 0;
        self.1 += 1;
        if is_first { Err(self.0.to_owned()) } else { Ok(()) }
    }

    fn short_tenant<'e>(&self, error: &'e String) -> Option<&'e str> {
        Some(error)
    }

    fn yield_own(&mut self, _: Rung) -> bool {
        false
    }
}

/// Evicts a page of prefixes charged to a tenant; `false` if there are none.
fn evict_page(kv: &KvStore, path: &str) -> bool {
    let tenant = if path.is_empty() { Tenant::root() } else { kv.pool().tenant(path).expect("a path") };
    kv.pool().make_room(&tenant, PressurePolicy::EvictPrefixes, &mut Unit(path, 0)).is_ok()
}

/// Evicts all prefixes and waits until they are written; `false` if there are none.
fn evict_all(cache: &PrefixCache, kv: &KvStore) -> bool {
    let is_some = evict_page(kv, "");
    while evict_page(kv, "") {}
    cache.flush();
    is_some
}

/// Memory relief between two steps of a tenant's sequence.
fn relieve(kv: &KvStore) {
    kv.pool().relieve(kv.tenant(), PressurePolicy::LowerPrecision, &mut Unit("", 0));
}

/// A different prompt for each seed.
fn tokens(seed: u32, n: usize) -> Vec<TokenId> {
    (0..n as u32).map(|i| 1000 * seed + i).collect()
}

fn kernels() -> Kernels {
    Kernels::detect().expect("kernels")
}

/// A sequence whose keys and values are functions of its tokens.
fn computed(kv: &KvStore, tokens: &[TokenId]) -> Sequence {
    let mut sequence = kv.sequence(tokens.len());
    let mut step = sequence.step(&kernels(), tokens.len()).expect("room");
    let rows: Vec<f32> = tokens.iter().flat_map(|&token| vec![token as f32; SHAPE.width()]).collect();
    step.write(&kernels(), 0, &rows, &rows);
    step.commit();
    sequence
}

/// Number of cached tokens; asserts that all full blocks equal those of [`computed`].
fn known(cache: &PrefixCache, kv: &KvStore, tokens: &[TokenId]) -> usize {
    let mut sequence = kv.sequence(tokens.len());
    let reused = cache.begin(&kernels(), &mut sequence, None, tokens, 0).expect("an empty sequence");
    let whole = kv.block_tokens() * sequence.blocks().len();
    if whole > 0 {
        let expected = computed(kv, &tokens[..whole]);
        for (found, expected) in sequence.blocks().iter().zip(expected.blocks()) {
            assert!(found.pin().layers().eq(expected.pin().layers()), "a block holds something else");
        }
    }
    reused.tokens
}

/// A finished request.
fn serve(cache: &PrefixCache, kv: &KvStore, tokens: &[TokenId]) {
    cache.keep(&mut computed(kv, tokens), None, tokens, 0);
}

#[test]
fn what_is_given_up_goes_to_files_and_comes_back() {
    let folder = tempfile::tempdir().expect("a folder");
    let kv = kv(16);
    let cache = spilling(&kv, &folder);
    let prompt = tokens(1, 100);
    serve(&cache, &kv, &prompt);
    let folder = |cache: &PrefixCache| cache.statistics().folder.expect("there is one");
    assert_eq!(folder(&cache).written_blocks, 0, "memory is not short");
    assert!(evict_all(&cache, &kv));
    let statistics = cache.statistics();
    assert_eq!((statistics.spilled_blocks, statistics.memory.blocks), (3, 0), "the fourth block is not full");
    assert_eq!((statistics.queued_blocks, statistics.waiting_blocks, statistics.dropped_blocks), (3, 0, 0));
    assert!(kv.tiers().all(|tier| tier.blocks == 0), "the memory is back");
    assert_eq!(known(&cache, &kv, &prompt), 96);
    assert_eq!((folder(&cache).loaded_blocks, cache.statistics().memory.blocks), (3, 3));
    assert_eq!(known(&cache, &kv, &prompt), 96);
    assert_eq!(folder(&cache).loaded_blocks, 3, "they are in memory again");
    // Already stored: they are not written again.
    assert!(evict_all(&cache, &kv));
    assert_eq!((cache.statistics().queued_blocks, folder(&cache).written_blocks), (3, 3));
    assert!(!evict_all(&cache, &kv), "nothing is left");
}

#[test]
fn what_is_computed_sooner_is_neither_read_nor_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let kv = kv(16);
    let cache = spilling(&kv, &folder);
    let [stored, other] = [tokens(1, 100), tokens(2, 100)];
    serve(&cache, &kv, &stored);
    assert!(evict_all(&cache, &kv));
    // 384 KiB in 24 s, 96 tokens in a tenth of a second.
    cache.cost.observe_read(16 << 10, Duration::from_secs(1));
    cache.observe_prefill(1000, Duration::from_secs(1));
    assert_eq!(known(&cache, &kv, &stored), 0);
    let statistics = cache.statistics();
    assert_eq!((statistics.recomputed_tokens, statistics.memory.blocks), (96, 0));
    assert_eq!(statistics.folder.expect("there is one").loaded_blocks, 0);
    serve(&cache, &kv, &other);
    assert!(evict_all(&cache, &kv));
    assert_eq!(cache.statistics().spilled_blocks, 3, "only what was written before anything was measured");
    // Prefill slower than the disk.
    (0..40).for_each(|_| cache.observe_prefill(32, Duration::from_secs(60)));
    assert_eq!(known(&cache, &kv, &stored), 96);
}

/// Fills 85 % of 20 pages with 17 prompts, 16 of them idle when the high watermark is reached.
fn fill(cache: &PrefixCache, kv: &KvStore) {
    let used = || kv.pool().stats().used_pages;
    // 128 tokens fill a page.
    for seed in 0..16 {
        serve(cache, kv, &tokens(seed, 128));
        relieve(kv);
    }
    assert_eq!((used(), cache.statistics().memory.evicted_blocks), (16, 0), "80 %: nothing happens");
    serve(cache, kv, &tokens(16, 128));
    let mut running = kv.sequence(128);
    let reused = cache.begin(&kernels(), &mut running, None, &tokens(0, 128), 0).expect("an empty sequence");
    relieve(kv);
    let key = cache.key_of(&running, None);
    let is_in_memory = |seed| cache.tree.lookup(&key, &tokens(seed, 128)).tokens > 0;
    assert!(is_in_memory(0), "a sequence uses it");
    assert!(!is_in_memory(1) && is_in_memory(16), "of the others the oldest went first");
    drop((reused, running));
}

#[test]
fn idle_prefixes_go_at_the_high_mark_until_the_low_one() {
    let kv = kv(20);
    let cache = in_memory(&kv);
    fill(&cache, &kv);
    let used = kv.pool().stats().used_pages;
    assert!((10..=14).contains(&used), "{used} pages: at most 70 %, in steps of 16 blocks");
}

#[test]
fn no_more_is_given_up_at_the_high_mark_than_can_wait_to_be_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let kv = kv(20);
    let cache = spilling(&kv, &folder);
    assert_eq!(cache.most_blocks(false), 10, "an eighth of the budget");
    fill(&cache, &kv);
    cache.flush();
    let statistics = cache.statistics();
    assert!(statistics.memory.evicted_blocks >= 10, "{statistics:?}");
    assert_eq!((statistics.spilled_blocks, statistics.dropped_blocks), (statistics.memory.evicted_blocks, 0));
    assert_eq!(known(&cache, &kv, &tokens(1, 128)), 96, "whole blocks come back from its files");
    // A step without room does not wait for the queue.
    evict_all(&cache, &kv);
    let PrefixStatistics { queued_blocks, spilled_blocks, dropped_blocks, .. } = cache.statistics();
    assert_eq!(queued_blocks, spilled_blocks + dropped_blocks);
}

#[test]
fn tenants_know_their_own_prefixes_only() {
    let kv = kv(16);
    let cache = in_memory(&kv);
    let [ann, bob] = ["acme/ann", "acme/bob"].map(|path| tenant(&kv, path, Quota::default()));
    let prompt = tokens(1, 100);
    serve(&cache, &ann, &prompt);
    assert_eq!(known(&cache, &bob, &prompt), 0);
    assert_eq!(known(&cache, &kv, &prompt), 0);
    assert_eq!(known(&cache, &ann, &prompt), 99);
}

#[test]
fn what_is_shared_by_request_is_known_to_all_and_counts_for_its_writer() {
    let kv = kv(16);
    let cache = in_memory(&kv);
    let [ann, bob] = ["acme/ann", "acme/bob"].map(|path| tenant(&kv, path, Quota::default()));
    let prompt = tokens(1, 200);
    cache.keep(&mut computed(&ann, &prompt), None, &prompt, 70);
    let mut running = bob.sequence(200);
    let reused = cache.begin(&kernels(), &mut running, None, &prompt[..65], 0).expect("an empty sequence");
    assert_eq!((reused.tokens, running.blocks().len()), (64, 2));
    assert_eq!(kv.pool().usage(bob.tenant()).expect("its own pool").used_pages, 0);
    assert_eq!(known(&cache, &bob, &prompt), 64, "two whole blocks of the 70 tokens");
    assert_eq!(known(&cache, &ann, &prompt), 199);
    assert!(!evict_page(&kv, "acme/bob"), "they are not bob's to give up");
}

#[test]
fn a_quota_costs_its_tenant_prefixes_and_nobody_else() {
    let kv = kv(40);
    let cache = in_memory(&kv);
    let small = tenant(&kv, "acme/small", Quota { hard_pages: 8, ..Quota::default() });
    let other = tenant(&kv, "other", Quota::default());
    serve(&cache, &other, &tokens(0, 160));
    for seed in 1..40 {
        serve(&cache, &small, &tokens(seed, 160));
        relieve(&small);
        let usage = kv.pool().usage(small.tenant()).expect("its own pool");
        assert!(usage.used_pages <= 6, "{usage:?}");
    }
    assert!(cache.statistics().memory.evicted_blocks > 100);
    assert_eq!(known(&cache, &other, &tokens(0, 160)), 159, "the oldest of all, and not touched");
    assert!(!evict_page(&kv, "acme/sma"), "no such tenant has anything");
    assert!(evict_page(&kv, "acme"));
}

#[test]
fn tenants_beyond_their_soft_quota_lose_prefixes_first() {
    let kv = kv(40);
    let cache = in_memory(&kv);
    let modest = tenant(&kv, "modest", Quota { soft_pages: 10, ..Quota::default() });
    let greedy = tenant(&kv, "greedy", Quota { soft_pages: 1, ..Quota::default() });
    serve(&cache, &modest, &tokens(1, 160));
    serve(&cache, &greedy, &tokens(2, 320));
    assert!(evict_page(&kv, "") && evict_page(&kv, ""));
    assert_eq!(cache.statistics().memory.evicted_blocks, 8);
    assert_eq!(known(&cache, &modest, &tokens(1, 160)), 159, "the older one");
    assert_eq!(known(&cache, &greedy, &tokens(2, 320)), 64);
    while evict_page(&kv, "") {}
    assert_eq!(known(&cache, &modest, &tokens(1, 160)), 0, "then whoever is left");
}

/// Values of a state of 128 KiB; four fill a page.
const STATE: usize = 32 << 10;

/// A sequence whose keys, values and state are functions of its tokens, computed up to each of
/// `ends`.
fn with_state(kv: &KvStore, tokens: &[TokenId], ends: &[usize]) -> Sequence {
    let mut sequence = kv.sequence(tokens.len()).with_state(STATE);
    for &end in ends {
        let tokens = &tokens[sequence.len()..end];
        let mut step = sequence.step(&kernels(), tokens.len()).expect("room");
        let rows: Vec<f32> = tokens.iter().flat_map(|&token| vec![token as f32; SHAPE.width()]).collect();
        step.write(&kernels(), 0, &rows, &rows);
        let (_, state) = step.state(0..STATE);
        state.fill(end as f32);
        step.commit();
    }
    sequence
}

/// Cached tokens of a model with a state; asserts that the state is theirs.
fn known_with_state(cache: &PrefixCache, kv: &KvStore, tokens: &[TokenId]) -> Reused {
    let mut sequence = kv.sequence(tokens.len()).with_state(STATE);
    let reused = cache.begin(&kernels(), &mut sequence, None, tokens, 0).expect("an empty sequence");
    assert_eq!((sequence.len(), sequence.border()), (reused.tokens, reused.tokens));
    let step = sequence.step(&kernels(), 1).expect("room");
    assert!(step.state_before(0..STATE).iter().all(|&value| value == reused.tokens as f32));
    reused
}

#[test]
fn snapshots_yield_by_their_last_use_and_take_blocks_that_nothing_needs() {
    let kv = kv(16);
    let cache = in_memory(&kv);
    let prompt = tokens(1, 200);
    for ends in [&[64][..], &[64, 128], &[64, 128, 192]] {
        let mut sequence = with_state(&kv, &prompt, ends);
        assert!(cache.keep_border(&mut sequence, None, &prompt, 0));
        assert!(cache.keep_border(&mut sequence, None, &prompt, 0), "what is there is kept");
    }
    assert!(!cache.keep_border(&mut with_state(&kv, &prompt, &[50]), None, &prompt, 0), "no border");
    assert_eq!((kv.snapshots().snapshots, cache.statistics().memory.states), (3, 3));
    assert_eq!(known_with_state(&cache, &kv, &prompt).tokens, 192);
    let parts = [&prompt[..70], &tokens(2, 20)[..]].concat();
    assert_eq!(known_with_state(&cache, &kv, &parts).tokens, 64);
    let parts = [&prompt[..110], &tokens(2, 20)[..]].concat();
    let reused = known_with_state(&cache, &kv, &parts);
    assert_eq!((reused.tokens, reused.known_tokens), (64, 96), "three blocks are known");
    // The snapshot behind 128 tokens was not used since; its blocks are needed.
    assert!(evict_page(&kv, ""));
    assert_eq!((kv.snapshots().snapshots, cache.statistics().memory.blocks), (2, 6));
    assert_eq!(known_with_state(&cache, &kv, &prompt[..180]).tokens, 64);
    // The one at the end leaves with the blocks behind 64 tokens.
    assert!(evict_page(&kv, ""));
    assert_eq!((kv.snapshots().snapshots, cache.statistics().memory.blocks), (1, 2));
    assert!(!evict_page(&kv, ""), "pinned by the sequence that began with it");
    drop(reused);
    while evict_page(&kv, "") {}
    assert_eq!((kv.snapshots().snapshots, cache.statistics().memory.blocks), (0, 0));
    assert_eq!(kv.pool().stats().used_pages, 2, "spare pages of blocks and of states");
}

#[test]
fn a_snapshot_without_room_takes_that_of_an_older_prefix() {
    let kv = kv(8);
    let cache = in_memory(&kv);
    for seed in 1..30 {
        let prompt = tokens(seed, 97);
        let mut sequence = with_state(&kv, &prompt, &[96]);
        assert!(cache.keep_border(&mut sequence, None, &prompt, 0), "prompt {seed}");
        drop(sequence);
        assert_eq!(known_with_state(&cache, &kv, &prompt).tokens, 96);
        relieve(&kv);
    }
    let statistics = cache.statistics().memory;
    assert!(statistics.evicted_states > 10, "{statistics:?}");
    assert_eq!(statistics.states, kv.snapshots().snapshots);
    assert_eq!(statistics.blocks, 3 * statistics.states, "no block without a state behind it");
}

#[test]
fn a_spilled_state_comes_back_with_its_blocks() {
    let folder = tempfile::tempdir().expect("a folder");
    let kv = kv(32);
    let cache = spilling(&kv, &folder);
    let (prompt, other) = (tokens(1, 200), tokens(2, 100));
    assert!(cache.keep_border(&mut with_state(&kv, &prompt, &[192]), None, &prompt, 0));
    assert!(cache.keep_border(&mut with_state(&kv, &other, &[96]), None, &other, 0));
    assert!(evict_all(&cache, &kv));
    assert_eq!((kv.snapshots().snapshots, cache.statistics().spilled_blocks), (0, 6 + 3 + 2));
    assert_eq!(known_with_state(&cache, &kv, &prompt[..190]).tokens, 0, "no state within these tokens");
    assert_eq!(known_with_state(&cache, &kv, &prompt).tokens, 192);
    assert_eq!(known_with_state(&cache, &kv, &other).tokens, 96);
    assert_eq!((kv.snapshots().snapshots, cache.statistics().failures), (2, 0));
    // Blocks without their state are of no use.
    assert!(evict_all(&cache, &kv));
    let states = fs::read_dir(folder.path().join("prefixes"))
        .expect("a folder")
        .map(|entry| entry.expect("an entry").path());
    for path in states.filter(|path| fs::metadata(path).expect("a file").len() > 4 * STATE as u64) {
        let mut bytes = fs::read(&path).expect("a file");
        if bytes.len() < 2 * 4 * STATE {
            *bytes.last_mut().expect("a payload") ^= 1;
            fs::write(path, bytes).expect("a file");
        }
    }
    assert_eq!(known_with_state(&cache, &kv, &prompt).tokens, 0);
    assert!(cache.statistics().failures > 0 && kv.snapshots().snapshots == 0);
}
