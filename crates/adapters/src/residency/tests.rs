//! Tiers over a page pool: loads, pins, limits, pressure, threads.

use std::fs;
use std::path::Path;
use std::sync::{Arc, Barrier};
use std::time::Instant;

use ruvllm_kernels::low_rank::FactorFormat;
use ruvllm_kernels::quant::SharedBytes;
use ruvllm_memory::{Error as MemoryError, PagePool, PressurePolicy, Quota, Request, Tenant};
use tempfile::TempDir;

use super::*;
use crate::compact::SECTIONS;
use crate::digest::Digests;
use crate::error::Error;
use crate::layout::Layout;
use crate::registry::Registry;
use crate::testing::{adapters, base, pool, write};

struct Fixture {
    folder: TempDir,
    pool: PagePool,
    registry: Arc<Registry>,
}

impl Fixture {
    /// A registry with `hot` and `warm` places over `pages` pages.
    fn new(pages: usize, hot: usize, warm: usize) -> Self {
        let pool = pool(pages);
        let limits = Limits { hot_adapters: hot, warm_adapters: warm, ..Limits::default() };
        let config = ResidencyConfig { limits, ..ResidencyConfig::default() };
        let registry = Registry::new(Residency::new(base(), pool.clone(), config));
        Self { folder: tempfile::tempdir().expect("a folder"), pool, registry: Arc::new(registry) }
    }

    fn register(&self, name: &str, seed: u64, precision: Precision) -> Arc<AdapterVersion> {
        let path = write(self.folder.path(), name, seed);
        self.registry.register(&Tenant::root(), name, &path, precision).expect("an adapter")
    }

    fn many(&self, n: u64) -> Vec<Arc<AdapterVersion>> {
        (0..n).map(|seed| self.one(seed)).collect()
    }

    fn one(&self, seed: u64) -> Arc<AdapterVersion> {
        self.register(&format!("a{seed}"), seed, Precision::Tiered)
    }

    fn resolve(&self, name: &str) -> Arc<AdapterVersion> {
        let resolved = self.registry.resolve(&Tenant::root(), name).expect("it is there");
        Arc::clone(resolved.version().expect("a file"))
    }

    fn acquire(&self, version: &Arc<AdapterVersion>) -> Acquired {
        self.registry.acquire(version).expect("an adapter")
    }

    fn tier(&self, version: &AdapterVersion) -> Tier {
        self.registry.residency().tier(version)
    }

    /// Settles, also if the background thread is doing it.
    fn settle(&self) {
        let start = Instant::now();
        loop {
            self.registry.residency().settle();
            let statistics = self.registry.residency().statistics();
            let limits = self.registry.residency().config.limits;
            let is_settled = statistics.hot_adapters <= limits.hot_adapters
                && statistics.warm_adapters <= limits.warm_adapters
                && self.registry.residency().table.lock().promotions.is_empty();
            if is_settled || start.elapsed().as_secs() > 20 {
                return;
            }
            std::thread::yield_now();
        }
    }

    fn statistics(&self) -> ResidencyStatistics {
        self.registry.residency().statistics()
    }
}

#[test]
fn factors_are_those_of_the_file_in_every_tier() {
    let fixture = Fixture::new(8, 1, 4);
    let versions = fixture.many(3);
    let mut seen = std::collections::BTreeSet::new();
    for round in 0..20 {
        let version = &versions[[0, 0, 1, 2][round % 4]];
        let acquired = fixture.acquire(version);
        let seed = version.name()[1..].parse().expect("a number");
        let [f16, i8] = adapters(seed, 2);
        let expected = if acquired.format() == FactorFormat::F16 { f16 } else { i8 };
        assert_eq!(acquired.adapter.factors(), expected.factors());
        assert_eq!(acquired.adapter.digest(), expected.digest());
        seen.insert((acquired.format(), acquired.found));
        drop(acquired);
        fixture.settle();
    }
    assert!(seen.contains(&(FactorFormat::F16, Tier::Hot)) && seen.contains(&(FactorFormat::I8, Tier::Warm)));
}

#[test]
fn precision_decides_the_formats_that_serve() {
    let fixture = Fixture::new(8, 1, 1);
    let exact = fixture.register("exact", 1, Precision::F16);
    let small = fixture.register("small", 2, Precision::I8);
    let others = fixture.many(3);
    for _ in 0..5 {
        for other in &others {
            fixture.acquire(other);
        }
        assert_eq!(fixture.acquire(&exact).format(), FactorFormat::F16);
        assert_eq!(fixture.acquire(&small).format(), FactorFormat::I8);
        fixture.settle();
    }
}

#[test]
fn limits_are_kept_and_adapters_in_use_stay() {
    let fixture = Fixture::new(64, 2, 3);
    let versions = fixture.many(10);
    let held: Vec<Acquired> = versions[..4].iter().map(|version| fixture.acquire(version)).collect();
    for version in &versions {
        fixture.acquire(version);
    }
    fixture.registry.residency().settle();
    for (version, acquired) in versions.iter().zip(&held) {
        assert_ne!(fixture.tier(version), Tier::Cold, "it is in use");
        let again = fixture.acquire(version);
        assert!(Arc::ptr_eq(&again.adapter, &acquired.adapter));
    }
    drop(held);
    fixture.settle();
    let statistics = fixture.statistics();
    assert!(statistics.hot_adapters <= 2 && statistics.warm_adapters <= 3, "{statistics:?}");
    let in_memory = statistics.hot_adapters + statistics.warm_adapters;
    assert_eq!(in_memory + statistics.cold_adapters, versions.len());
    let used = fixture.pool.stats().used_pages;
    assert_eq!(used, in_memory, "nothing leaks");
    let version = &versions[0];
    fixture.registry.unload(version.tenant(), version.name()).expect("it is there");
    let statistics = fixture.statistics();
    assert_eq!(statistics.hot_adapters + statistics.warm_adapters + statistics.cold_adapters, 9);
}

#[test]
fn a_frequent_adapter_moves_from_warm_to_hot() {
    let fixture = Fixture::new(16, 1, 4);
    let [first, second] = [0, 1].map(|i| fixture.one(i));
    fixture.acquire(&first);
    let held = fixture.acquire(&second);
    assert_eq!((fixture.tier(&first), held.format()), (Tier::Hot, FactorFormat::I8));
    for _ in 0..5 {
        fixture.acquire(&second);
    }
    fixture.settle();
    assert_eq!((fixture.tier(&second), fixture.tier(&first)), (Tier::Hot, Tier::Warm));
    // A request keeps the factors that it began with.
    assert_eq!(held.format(), FactorFormat::I8);
    assert_eq!(held.adapter.factors(), adapters(1, 2)[1].factors());
    assert_eq!(fixture.acquire(&second).format(), FactorFormat::F16);
    let statistics = fixture.statistics();
    assert!(statistics.promotions >= 1 && statistics.demotions >= 1, "{statistics:?}");
}

#[test]
fn memory_pressure_evicts_idle_adapters_by_last_use() {
    let fixture = Fixture::new(6, 100, 100);
    let versions = fixture.many(6);
    let pinned = fixture.acquire(&versions[0]);
    for version in &versions[1..] {
        fixture.acquire(version);
    }
    fixture.acquire(&versions[1]);
    assert_eq!(fixture.pool.stats().used_pages, 6);
    let request = Request::default().pressure(PressurePolicy::LowerPrecision);
    let pages: Vec<_> = (0..3).map(|_| fixture.pool.allocate(1, &request).expect("adapters yield")).collect();
    let cold = |version: &Arc<AdapterVersion>| fixture.tier(version) == Tier::Cold;
    assert!(versions[2..5].iter().all(cold));
    assert!(!versions[..2].iter().any(cold) && !cold(&versions[5]));
    assert_eq!(fixture.statistics().released, 3);
    let more: Vec<_> = std::iter::from_fn(|| fixture.pool.allocate(1, &request).ok()).collect();
    assert_eq!(more.len(), 2, "all but the one in use");
    let error = fixture.registry.acquire(&versions[2]).expect_err("no room");
    assert!(matches!(error, Error::Memory { .. }), "{error}");
    drop((pages, more));
    fixture.acquire(&versions[2]);
    assert_eq!(pinned.adapter.factors(), adapters(0, 2)[0].factors());
}

#[test]
fn memory_is_charged_to_the_tenant_and_its_quota_evicts_its_own() {
    let fixture = Fixture::new(10, 100, 100);
    let team = fixture.pool.tenant("org/team").expect("a tenant");
    fixture.pool.set_quota(&team, Quota { hard_pages: 2, ..Quota::default() }).expect("a quota");
    let root = fixture.many(2);
    root.iter().for_each(|version| drop(fixture.acquire(version)));
    let own: Vec<_> = (10..13)
        .map(|seed| {
            let path = write(fixture.folder.path(), &format!("t{seed}"), seed);
            fixture
                .registry
                .register(&team, "x", &path, Precision::Tiered)
                .or_else(|_| fixture.registry.register(&team, &format!("x{seed}"), &path, Precision::Tiered))
        })
        .map(|version| version.expect("an adapter"))
        .collect();
    for version in &own {
        fixture.acquire(version);
    }
    assert_eq!(fixture.pool.usage(&team).expect("usage").used_pages, 2);
    assert_eq!(fixture.tier(&own[0]), Tier::Cold, "the least recently used of the team");
    assert!(root.iter().all(|version| fixture.tier(version) == Tier::Hot));
    let held: Vec<_> = own[1..].iter().map(|version| fixture.acquire(version)).collect();
    let error = fixture.registry.acquire(&own[0]).expect_err("all pages of the quota are in use");
    let Error::Memory { source: MemoryError::QuotaExceeded { tenant, .. }, .. } = error else {
        panic!("{error}")
    };
    assert_eq!((&*tenant, held.len()), ("org/team", 2));
}

#[test]
fn an_adapter_larger_than_the_pool_is_refused_and_disturbs_nothing() {
    let fixture = Fixture::new(2, 10, 10);
    let small = fixture.register("small", 1, Precision::Tiered);
    fixture.acquire(&small);
    let path = fixture.folder.path().join("large");
    let [f16, i8] = adapters_of_rank(20_000);
    crate::compact::write(&path, [&f16, &i8], "large", 0, crate::compact::Existing::Keep).expect("a file");
    let large =
        fixture.registry.register(&Tenant::root(), "large", &path, Precision::Tiered).expect("a version");
    let error = fixture.registry.acquire(&large).expect_err("it is larger than the pool");
    assert!(
        matches!(&error, Error::Memory { source, .. } if source.to_string().contains("smaller")),
        "{error}"
    );
    assert_eq!(fixture.acquire(&small).adapter.factors(), adapters(1, 2)[0].factors());
}

/// Zero factors of this rank at one site, in both formats.
fn adapters_of_rank(rank: usize) -> [Adapter; 2] {
    let pool = pool(64);
    SECTIONS.map(|format| {
        let layout = Arc::new(Layout::new(format, crate::testing::shapes(rank)).expect("a layout"));
        let pages = pool.allocate(layout.bytes().div_ceil(pool.page_bytes()), &Request::default());
        let bytes = SharedBytes::new(crate::adapter::Resident::new(pages.expect("pages"), layout.bytes()));
        let digests = Digests::new(&base(), &layout, bytes.as_ref());
        Adapter::from_bytes(base(), layout, bytes, digests).expect("an adapter")
    })
}

#[test]
fn damaged_files_fail_their_own_requests_only() {
    let fixture = Fixture::new(8, 1, 4);
    let mut versions = fixture.many(3);
    versions[1] = fixture.register("b1", 1, Precision::I8);
    let damage = |path: &Path, from_end: usize| {
        let mut bytes = fs::read(path).expect("a file");
        let at = bytes.len() - from_end;
        bytes[at] ^= 0xff;
        fs::write(path, bytes).expect("a file");
    };
    fixture.acquire(&versions[0]);
    // The I8 section is at the end: the warm entry of the second adapter is corrupted.
    damage(versions[1].path(), 9);
    let error = fixture.registry.acquire(&versions[1]).expect_err("a damaged section");
    assert!(matches!(error, Error::Damaged { .. }), "{error}");
    fs::remove_file(versions[2].path()).expect("it is there");
    assert!(matches!(fixture.registry.acquire(&versions[2]), Err(Error::Read { .. })));
    // It is in memory, and stays there when its file goes.
    fs::remove_file(versions[0].path()).expect("it is there");
    fixture.acquire(&versions[0]);
    let before = fixture.pool.stats().used_pages;
    for _ in 0..10 {
        assert!(fixture.registry.acquire(&versions[1]).is_err());
    }
    assert_eq!(fixture.pool.stats().used_pages, before, "failed loads leave nothing");
    write(fixture.folder.path(), "b1", 1);
    fixture.acquire(&versions[1]);
    write(fixture.folder.path(), "a2", 99);
    assert!(matches!(fixture.registry.acquire(&versions[2]), Err(Error::Changed { .. })));
}

#[test]
fn a_demotion_that_fails_leaves_the_adapter_cold() {
    let fixture = Fixture::new(8, 1, 4);
    let versions = fixture.many(2);
    fixture.acquire(&versions[0]);
    fs::remove_file(versions[0].path()).expect("it is there");
    for _ in 0..4 {
        fixture.acquire(&versions[1]);
        fixture.settle();
    }
    assert_eq!((fixture.tier(&versions[1]), fixture.tier(&versions[0])), (Tier::Hot, Tier::Cold));
    assert_eq!(fixture.statistics().failures, 1);
}

#[test]
fn requests_that_come_together_load_once() {
    let fixture = Fixture::new(8, 4, 4);
    let version = fixture.register("a", 1, Precision::Tiered);
    let barrier = Barrier::new(8);
    let all: Vec<Acquired> = std::thread::scope(|scope| {
        let acquire = || {
            barrier.wait();
            fixture.acquire(&version)
        };
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(acquire)).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    });
    assert!(all.iter().all(|acquired| Arc::ptr_eq(&acquired.adapter, &all[0].adapter)));
    assert_eq!((fixture.statistics().misses, fixture.pool.stats().used_pages), (1, 1));
}

#[test]
fn adapters_are_loaded_ahead() {
    let fixture = Fixture::new(8, 4, 4);
    let version = fixture.register("a", 1, Precision::Tiered);
    fixture.registry.prefetch(&version);
    let start = Instant::now();
    while fixture.statistics().prefetches == 0 && start.elapsed().as_secs() < 20 {
        std::thread::yield_now();
    }
    assert_eq!(fixture.acquire(&version).found, Tier::Hot);
    assert_eq!((fixture.statistics().misses, fixture.statistics().hot_hits), (0, 1));
}

#[test]
fn replaced_and_unloaded_versions_serve_the_requests_that_began_with_them() {
    let fixture = Fixture::new(8, 4, 4);
    let root = Tenant::root();
    let first = fixture.register("a", 1, Precision::Tiered);
    let running = fixture.acquire(&first);
    let path = write(fixture.folder.path(), "b", 2);
    let second = fixture.registry.replace(&root, "a", &path, Precision::Tiered).expect("a version");
    assert!(second.number() > first.number() && first.is_removed());
    let resolved = fixture.resolve("a");
    assert_eq!(resolved.digest(), adapters(2, 2)[0].digest());
    assert_eq!(running.adapter.factors(), adapters(1, 2)[0].factors());
    // A request that waits resolved its version before.
    assert_eq!(fixture.acquire(&first).adapter.factors(), adapters(1, 2)[0].factors());
    assert_eq!(fixture.acquire(&resolved).adapter.factors(), adapters(2, 2)[0].factors());
    fixture.registry.unload(&root, "a").expect("it is there");
    assert_eq!(running.adapter.factors(), adapters(1, 2)[0].factors());
    drop(running);
    assert_eq!(fixture.pool.stats().used_pages, 0);
    assert!(fixture.registry.is_empty());
}

#[test]
fn the_background_thread_ends_with_the_table() {
    let fixture = Fixture::new(8, 1, 1);
    fixture.many(3).iter().for_each(|version| drop(fixture.acquire(version)));
    fixture.settle();
    let residency = Arc::downgrade(fixture.registry.residency());
    let pool = fixture.pool.clone();
    drop(fixture);
    let start = Instant::now();
    while residency.strong_count() > 0 && start.elapsed().as_secs() < 20 {
        std::thread::yield_now();
    }
    assert_eq!((residency.strong_count(), pool.stats().used_pages), (0, 0));
}

#[test]
fn threads_replace_use_and_unload_adapters_at_once() {
    let fixture = Fixture::new(12, 2, 3);
    let root = Tenant::root();
    let paths: Vec<_> = (0..8).map(|seed| write(fixture.folder.path(), &format!("f{seed}"), seed)).collect();
    for (index, path) in paths.iter().enumerate() {
        fixture.registry.register(&root, &format!("n{index}"), path, Precision::Tiered).expect("a version");
    }
    let expected: Vec<_> = (0..8).map(|seed| adapters(seed, 2)).collect();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (fixture, registry, paths) = (&fixture, &fixture.registry, &paths);
            let (expected, root) = (&expected, &root);
            scope.spawn(move || {
                let mut random = ruvllm_testkit::Random::new(thread);
                for step in 0..300 {
                    let name = format!("n{}", random.below(8));
                    if thread == 0 && step % 2 == 0 {
                        let path = &paths[random.below(8)];
                        registry.replace(root, &name, path, Precision::Tiered).expect("a version");
                        continue;
                    }
                    let version = fixture.resolve(&name);
                    let acquired = registry.acquire(&version).expect("there is room");
                    let index = usize::from(acquired.format() == FactorFormat::I8);
                    let is_one = |pair: &[Adapter; 2]| pair[0].digest() == version.digest();
                    let pair = expected.iter().find(|pair| is_one(pair)).expect("a known version");
                    assert_eq!(acquired.adapter.factors(), pair[index].factors());
                }
            });
        }
    });
    fixture.settle();
    let statistics = fixture.statistics();
    assert_eq!(
        fixture.pool.stats().used_pages,
        statistics.hot_adapters + statistics.warm_adapters,
        "{statistics:?}"
    );
}

/// Factors that the background thread gives.
fn acquire_later(fixture: &Fixture, version: &Arc<AdapterVersion>, format: Option<FactorFormat>) -> Acquired {
    let (done, acquired) = std::sync::mpsc::channel();
    fixture.registry.residency().acquire_later(version, format, move |result| drop(done.send(result)));
    acquired.recv().expect("an answer").expect("an adapter")
}

#[test]
fn a_request_gets_the_format_that_it_began_with() {
    let fixture = Fixture::new(8, 4, 4);
    let residency = Arc::clone(fixture.registry.residency());
    let version = fixture.one(1);
    let [f16, i8] = adapters(1, 2);
    assert!(residency.try_acquire(&version, None).is_none());
    // Cold: it is loaded in this format, and stays.
    let cold = acquire_later(&fixture, &version, Some(FactorFormat::I8));
    assert_eq!((cold.found, cold.adapter.factors()), (Tier::Cold, i8.factors()));
    assert_eq!(fixture.tier(&version), Tier::Warm);
    let again = residency.try_acquire(&version, Some(FactorFormat::I8)).expect("it is there");
    assert!(Arc::ptr_eq(&again.adapter, &cold.adapter) && again.found == Tier::Warm);
    // Resident in the other format: a copy of this request alone.
    assert!(residency.try_acquire(&version, Some(FactorFormat::F16)).is_none());
    let own = acquire_later(&fixture, &version, Some(FactorFormat::F16));
    assert_eq!((own.adapter.factors(), fixture.tier(&version)), (f16.factors(), Tier::Warm));
    assert_eq!(fixture.pool.stats().used_pages, 2);
    drop(own);
    assert_eq!(fixture.pool.stats().used_pages, 1);
}

#[test]
fn requests_of_a_removed_version_share_its_factors() {
    let fixture = Fixture::new(8, 4, 4);
    let (running, waiting) = (fixture.one(1), fixture.one(2));
    let held = fixture.acquire(&running);
    for version in [&running, &waiting] {
        fixture.registry.unload(&Tenant::root(), version.name()).expect("it is there");
    }
    let other = fixture.registry.residency().try_acquire(&running, None).expect("a request has it");
    assert!(Arc::ptr_eq(&held.adapter, &other.adapter));
    // It was never in memory: the first of the requests loads it.
    let first = acquire_later(&fixture, &waiting, None);
    let second = acquire_later(&fixture, &waiting, None);
    assert!(Arc::ptr_eq(&first.adapter, &second.adapter));
    assert_eq!(fixture.pool.stats().used_pages, 2);
    drop((held, other, first, second));
    assert_eq!(fixture.pool.stats().used_pages, 0);
}

#[test]
fn loads_of_requests_go_before_those_ahead() {
    let fixture = Fixture::new(80, 80, 4);
    let versions = fixture.many(40);
    let residency = Arc::clone(fixture.registry.residency());
    let tiers: Vec<Tier> = versions.iter().map(|version| residency.count(version)).collect();
    assert_eq!(tiers, [Tier::Cold; 40]);
    // The first load takes its lock of this thread: all others are queued meanwhile.
    let loading = versions[0].loading.lock();
    versions[..39].iter().for_each(|version| residency.prefetch(version));
    let (done, acquired) = std::sync::mpsc::channel();
    let table = Arc::clone(&residency);
    residency.acquire_later(&versions[39], None, move |result| {
        drop(done.send((result, table.statistics().prefetches)));
    });
    drop(loading);
    let (acquired, prefetches) = acquired.recv().expect("an answer");
    assert_eq!(acquired.expect("an adapter").found, Tier::Cold);
    assert!(prefetches <= 1, "{prefetches} were loaded before it");
    let start = Instant::now();
    while fixture.statistics().prefetches < 39 && start.elapsed().as_secs() < 20 {
        std::thread::yield_now();
    }
    assert_eq!((fixture.statistics().prefetches, fixture.statistics().misses), (39, 1));
}
