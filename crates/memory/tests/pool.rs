//! Counters, settings and errors of a pool.

use ruvllm_memory::{Error, PagePool, PoolConfig, Quota, Request, Slab, Tenant};

const PAGE_BYTES: usize = 512 << 10;

fn pool(pages: usize) -> PagePool {
    PagePool::new(PoolConfig { page_bytes: PAGE_BYTES, ..PoolConfig::new(pages * PAGE_BYTES) }).unwrap()
}

#[test]
fn settings_out_of_range_are_refused_with_their_names() {
    let base = PoolConfig::new(64 << 20);
    let cases = [
        (PoolConfig { page_bytes: 256 << 10, ..base.clone() }, "page_bytes"),
        (PoolConfig { page_bytes: 3 << 20, ..base.clone() }, "page_bytes"),
        (PoolConfig { page_bytes: 8 << 20, ..base.clone() }, "page_bytes"),
        (PoolConfig { capacity_bytes: 1 << 20, ..base.clone() }, "capacity_bytes"),
        (PoolConfig { capacity_bytes: usize::MAX, ..base.clone() }, "capacity_bytes"),
        (PoolConfig { address_factor: 0, ..base }, "address_factor"),
    ];
    for (config, expected) in cases {
        let Err(Error::Config { field, .. }) = PagePool::new(config.clone()) else { panic!("{config:?}") };
        assert_eq!(field, expected);
    }
    let error = PagePool::new(PoolConfig::new(1 << 50)).unwrap_err();
    assert!(matches!(error, Error::Reserve { .. }), "{error}");
}

#[test]
fn paths_of_tenants_are_names_between_slashes() {
    let pool = pool(1);
    for path in ["", "/", "/a", "a/", "a//b", "1/2/3/4/5/6/7/8/9", &"x".repeat(256)] {
        assert!(matches!(pool.tenant(path), Err(Error::TenantPath { .. })), "{path:?}");
    }
    for path in ["a", "a/b", "1/2/3/4/5/6/7/8", &"x".repeat(255)] {
        assert_eq!(pool.tenant(path).unwrap().path(), path);
    }
    assert_eq!(Tenant::root().path(), "");
}

#[test]
fn tenants_of_another_pool_are_refused() {
    let (pool, other) = (pool(4), self::pool(4));
    let request = Request::default().tenant(other.tenant("a").unwrap());
    assert!(matches!(pool.allocate(1, &request), Err(Error::OtherPool { what: "tenant" })));
    assert!(pool.set_quota(&request.tenant, Quota::default()).is_err());
    assert!(pool.usage(&request.tenant).is_err());
    assert_eq!(pool.stats().used_pages, 0);
}

#[test]
fn a_quota_of_the_root_cannot_exceed_the_capacity() {
    let pool = pool(4);
    pool.set_quota(&Tenant::root(), Quota { hard_pages: 100, ..Quota::default() }).unwrap();
    assert!(matches!(pool.allocate(5, &Request::default()), Err(Error::Exhausted { .. })));
    pool.set_quota(&Tenant::root(), Quota { hard_pages: 2, ..Quota::default() }).unwrap();
    let error = pool.allocate(3, &Request::default()).unwrap_err();
    assert!(matches!(error, Error::Exhausted { free_pages: 2, capacity_pages: 2, .. }), "{error}");
    assert!(pool.allocate(2, &Request::default()).is_ok());
}

#[test]
fn a_tenant_is_shown_with_all_whose_quotas_bind_it() {
    let pool = pool(8);
    let [team, user, other] =
        ["acme/search", "acme/search/ann", "other"].map(|path| pool.tenant(path).unwrap());
    pool.set_quota(&team, Quota { hard_pages: 5, soft_pages: 1 }).unwrap();
    let _pages = pool.allocate(2, &Request::default().tenant(user.clone())).unwrap();
    let _others = pool.allocate(1, &Request::default().tenant(other)).unwrap();
    let seen: Vec<_> = pool.usages(&user).unwrap().map(|(path, usage)| (path, usage.used_pages)).collect();
    assert_eq!(seen, [("acme/search/ann", 2), ("acme/search", 2), ("acme", 2), ("", 3)]);
    let limits: Vec<_> = pool.usages(&user).unwrap().map(|(_, usage)| usage.quota.hard_pages).collect();
    assert_eq!(limits, [usize::MAX, 5, usize::MAX, 8]);
}

#[test]
fn messages_say_what_is_missing_and_what_to_do() {
    let pool = pool(4);
    let _held = pool.allocate(3, &Request::default()).unwrap();
    let message = |n_pages| pool.allocate(n_pages, &Request::default()).unwrap_err().to_string();
    assert_eq!(
        message(2),
        "2 pages wanted, 1 of 4 free, 1 in one piece: not enough is free; give something back, ask for less or make \
         the pool larger"
    );
    assert!(message(5).ends_with("the pool is smaller than the request; make the pool larger"));
    assert_eq!(message(0), "a request for 0 pages; ask for at least one");
}

#[test]
fn blocks_of_impossible_sizes_are_refused() {
    let pool = pool(4);
    for block_bytes in [0, 4 * PAGE_BYTES + 1, usize::MAX] {
        let error = Slab::new(&pool, block_bytes, Request::default()).unwrap_err();
        assert!(matches!(error, Error::BlockBytes { max_bytes, .. } if max_bytes == 4 * PAGE_BYTES));
    }
    let whole = Slab::new(&pool, 4 * PAGE_BYTES, Request::default()).unwrap();
    assert_eq!(whole.allocate().unwrap().bytes().len(), 4 * PAGE_BYTES);
}

#[test]
fn the_pages_for_blocks_are_those_that_a_slab_takes() {
    for block_bytes in [1, 300, 100_000, PAGE_BYTES, PAGE_BYTES + 1, PAGE_BYTES / 10 * 16, 3 * PAGE_BYTES] {
        for n_blocks in [1, 2, 4, 16] {
            let pages = Slab::pages_for(n_blocks, block_bytes, PAGE_BYTES);
            for spare in [0, 40] {
                let pool = pool(pages + spare);
                let slab = Slab::new(&pool, block_bytes, Request::default()).unwrap();
                let blocks: Vec<_> = (0..n_blocks).map(|_| slab.allocate().unwrap()).collect();
                let taken = pool.stats().used_pages;
                assert_eq!(taken, pages, "{n_blocks} blocks of {block_bytes} bytes, {spare} pages to spare");
                drop(blocks);
            }
        }
    }
    assert_eq!(Slab::pages_for(3, usize::MAX, PAGE_BYTES), usize::MAX);
}
