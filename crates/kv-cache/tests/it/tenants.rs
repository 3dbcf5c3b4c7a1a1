//! Tenants: whom blocks count for, what quotas do, and that nobody sees another's numbers.

use ruvllm_kernels::ThreadPool;
use ruvllm_kv_cache::{Error, KvStore};
use ruvllm_memory::{PagePool, PressurePolicy, Quota, Tenant};

use crate::oracle::{Checked, kernels, pool, store};

fn ids(n: usize, first: u32) -> Vec<u32> {
    (first..).take(n).collect()
}

/// The store of a tenant with a quota.
fn limited(store: &KvStore, path: &str, quota: Quota) -> KvStore {
    let tenant = store.pool().tenant(path).expect("a path");
    store.pool().set_quota(&tenant, quota).expect("its own pool");
    store.for_tenant(&tenant).expect("its own pool")
}

fn hard(hard_pages: usize) -> Quota {
    Quota { hard_pages, ..Quota::default() }
}

fn used(pool: &PagePool, path: &str) -> usize {
    pool.usage(&pool.tenant(path).expect("a path")).expect("its own pool").used_pages
}

/// Appends a block after the other until there is no room.
fn fill(checked: &mut Checked) -> Error {
    loop {
        if let Err(error) = checked.append(&ids(32, checked.tokens.len() as u32)) {
            return error;
        }
    }
}

#[test]
fn blocks_count_for_their_tenant_and_those_above_it() {
    let pool = pool(8);
    let root = store("f16", &pool);
    let [ann, bob] = ["acme/ann", "acme/bob"].map(|path| limited(&root, path, Quota::default()));
    // 32 blocks fill a page.
    let mut sequences = [(&ann, 40), (&bob, 1), (&root, 1)].map(|(store, blocks)| {
        let mut checked = Checked::new(store, 2000);
        checked.append(&ids(32 * blocks, 0)).expect("room");
        checked
    });
    let now = || {
        ["acme/ann", "acme/bob", "acme", ""].map(|path| match path {
            "" => pool.stats().used_pages,
            path => used(&pool, path),
        })
    };
    assert_eq!(now(), [2, 1, 3, 4]);
    sequences.iter_mut().for_each(Checked::check);
    assert_eq!(root.tiers().map(|tier| tier.blocks).sum::<usize>(), 42, "a store counts for all its tenants");
    drop(sequences);
    assert_eq!(root.tiers().map(|tier| tier.blocks).sum::<usize>(), 0);
    drop((ann, bob));
    assert_eq!(now()[..3], [0, 0, 0]);
}

#[test]
fn a_tenant_is_one_however_often_it_is_asked_for() {
    let pool = pool(8);
    let root = store("f16", &pool);
    let stores: Vec<KvStore> = (0..3).map(|_| limited(&root, "acme", Quota::default())).collect();
    let sequences = stores.iter().map(|store| {
        let mut checked = Checked::new(store, 100);
        checked.append(&ids(32, 0)).expect("room");
        checked
    });
    let sequences: Vec<Checked> = sequences.collect();
    assert_eq!(used(&pool, "acme"), 1, "three blocks of one page");
    assert_eq!(sequences[0].sequence.store().tenant().path(), "acme");
}

#[test]
fn a_shared_block_stays_its_writers_also_when_another_tenant_makes_it_smaller() {
    let pool = pool(8);
    let root = store("tiered:hot=32,sink=0,warm=kivi4", &pool);
    let [writer, reader] = ["writer", "reader"].map(|path| limited(&root, path, Quota::default()));
    let mut first = Checked::new(&writer, 2000);
    first.append(&ids(320, 0)).expect("room");
    let (blocks, tokens) = first.prefix(10);
    let mut second = Checked::new(&reader, 2000);
    second.sequence.append_shared(&blocks).expect("the same store");
    second.tokens = tokens;
    assert_eq!(used(&pool, "reader"), 0);
    drop((first, blocks));
    let migration = second.sequence.migrate(&kernels(), &ThreadPool::single(), usize::MAX);
    assert_eq!(migration.blocks, 9);
    assert_eq!(used(&pool, "reader"), 0, "what is made smaller counts for whom it counted before");
    second.check();
    // Later blocks are the reader's, and so is a block that it extends.
    second.truncate(300);
    second.append(&ids(1, 900)).expect("room");
    assert_eq!(used(&pool, "reader"), 1);
    second.check();
    drop((second, writer, reader));
    assert_eq!((used(&pool, "writer"), used(&pool, "reader")), (0, 0));
}

#[test]
fn a_hard_quota_ends_one_tenant_and_no_other() {
    for policy in ["f16", "tiered:hot=32,sink=0,warm=kivi4"] {
        let pool = pool(16);
        let root = store(policy, &pool);
        let (small, other) =
            (limited(&root, "acme/small", hard(4)), limited(&root, "other", Quota::default()));
        let mut beside = Checked::new(&other, 5000);
        beside.append(&ids(100, 0)).expect("room");
        let mut checked = Checked::new(&small, 1 << 20);
        let error = fill(&mut checked);
        assert_eq!(error.short_tenant(), Some("acme/small"), "{policy}: {error:?}");
        assert!(used(&pool, "acme/small") <= 4);
        checked.check();
        beside.append(&ids(2000, 500)).expect("the pool has room");
        beside.check();
        drop(checked);
        Checked::new(&small, 100).append(&ids(64, 0)).expect("there is room again");
    }
}

#[test]
fn the_quota_of_an_ancestor_binds_and_is_named() {
    let pool = pool(16);
    let root = store("tiered:hot=32,sink=0,warm=kivi4", &pool);
    let _team = limited(&root, "acme", hard(4));
    let [ann, bob] = ["acme/ann", "acme/bob"].map(|path| limited(&root, path, Quota::default()));
    let mut first = Checked::new(&ann, 1 << 20);
    fill(&mut first);
    let error = Checked::new(&bob, 100).append(&ids(1, 0)).expect_err("the team has used up its quota");
    assert!(
        matches!(&error, Error::QuotaReached { tenant, total_pages: 4, kept_pages: 1, .. } if tenant == "acme")
    );
    assert_eq!(
        error.to_string(),
        "tenant \"acme\" has used up its quota of keys and values: 1 of 4 pages of 524288 bytes are free and 1 are kept for \
         making present blocks smaller; raise the quota, shorten the context or end a sequence of the tenant"
    );
}

#[test]
fn within_a_quota_tokens_lose_bits_before_the_end() {
    let pool = pool(32);
    let root = store("tiered:hot=32,sink=0,warm=kivi2", &pool);
    let small = limited(&root, "small", hard(6));
    let mut checked = Checked::new(&small, 1 << 20);
    fill(&mut checked);
    let full = checked.tokens.len();
    let threads = ThreadPool::single();
    let settle = |checked: &mut Checked| {
        checked.sequence.settle(&kernels(), &threads, PressurePolicy::LowerPrecision);
    };
    settle(&mut checked);
    while checked.append(&ids(32, 0)).is_ok() {
        settle(&mut checked);
    }
    assert!(checked.tokens.len() > 3 * full, "{} tokens where {full} fitted", checked.tokens.len());
    checked.check();
}

#[test]
fn a_tenant_beyond_its_soft_quota_goes_down_first() {
    let pool = pool(20);
    let root = store("tiered:hot=32,sink=0,warm=q8,warm_tokens=9999,cold=kivi2", &pool);
    let greedy = limited(&root, "greedy", Quota { soft_pages: 2, ..Quota::default() });
    let modest = limited(&root, "modest", Quota { soft_pages: 16, ..Quota::default() });
    let mut checked = Checked::new(&greedy, 1 << 20);
    checked.append(&ids(3 * 1024, 0)).expect("room");
    let settle = |checked: &mut Checked| {
        checked.sequence.settle(&kernels(), &ThreadPool::single(), PressurePolicy::LowerPrecision);
    };
    let first_format = |checked: &Checked| checked.sequence.blocks()[0].formats().to_string();
    let mut others = Vec::new();
    // 71 to 79 % of the 18 pages that new tokens get.
    while pool.stats().used_pages < 13 {
        settle(&mut checked);
        assert_eq!(first_format(&checked), "q8", "{} pages", pool.stats().used_pages);
        let mut other = Checked::new(&modest, 2000);
        other.append(&ids(1024, 0)).expect("room");
        others.push(other);
    }
    settle(&mut others[0]);
    settle(&mut checked);
    assert_eq!(first_format(&checked), "kivi2", "the lowest tier, long before its age");
    assert_eq!(first_format(&others[0]), "q8");
}

#[test]
fn nobody_gets_memory_with_the_numbers_of_another_tenant() {
    // One page: whoever comes next gets it.
    let pool = pool(1);
    let root = store("f32", &pool);
    let f32_tier = root.policy().hot;
    // The bytes of a block as a tenant gets it: not written yet.
    let found = |store: &KvStore| {
        let mut nonzero = 0;
        let block = store.restore_block(f32_tier, |_, bytes| {
            nonzero += bytes.iter().filter(|&&byte| byte != 0).count();
            bytes.fill(7);
            Ok::<(), Error>(())
        });
        (block.expect("room"), nonzero)
    };
    let [first, second] = ["first", "second"].map(|path| limited(&root, path, Quota::default()));
    let (block, _) = found(&first);
    drop(block);
    assert!(found(&first).1 > 0, "a tenant's own numbers are not wiped for itself");
    drop(first);
    assert_eq!(found(&second).1, 0, "another tenant finds zeros");
}

#[test]
fn a_tenant_of_another_pool_is_refused() {
    let (pool, other) = (pool(4), pool(4));
    let root = store("f16", &pool);
    let foreign = other.tenant("acme").expect("a path");
    let error = root.for_tenant(&foreign).expect_err("not of this pool");
    assert!(matches!(&error, Error::ForeignTenant { tenant, .. } if tenant == "acme"), "{error}");
    assert!(root.for_tenant(&Tenant::root()).is_ok(), "the root has no pool");
}
