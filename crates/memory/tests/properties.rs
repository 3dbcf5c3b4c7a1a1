//! Property tests of pool and slabs against simple reference models.

use proptest::prelude::*;
use proptest::sample::Index;
use ruvllm_memory::{
    Error, Fit, PagePool, Pages, PoolConfig, Quota, Request, Reservation, Slab, SlabBlock, Tenant,
};

const PAGE_BYTES: usize = 512 << 10;
const CAPACITY: usize = 24;

#[derive(Clone, Debug)]
enum Step {
    Allocate { n_pages: usize, tenant: usize },
    Reserve { n_pages: usize, tenant: usize },
    Commit(Index),
    Free(Index),
    Trim,
}

fn step() -> impl Strategy<Value = Step> {
    let n_pages = || prop_oneof![3 => Just(1_usize), 2 => 0..8_usize, 1 => 0..40_usize];
    prop_oneof![
        6 => (n_pages(), 0..TENANTS).prop_map(|(n_pages, tenant)| Step::Allocate { n_pages, tenant }),
        2 => (n_pages(), 0..TENANTS).prop_map(|(n_pages, tenant)| Step::Reserve { n_pages, tenant }),
        2 => any::<Index>().prop_map(Step::Commit),
        6 => any::<Index>().prop_map(Step::Free),
        1 => Just(Step::Trim),
    ]
}

/// Per tenant: path, hard quota, tenants charged to it.
const TENANTS: usize = 4;
const PATHS: [&str; TENANTS] = ["", "a", "a/b", "c"];
const QUOTAS: [usize; TENANTS] = [CAPACITY, 14, 6, usize::MAX];
const COUNTS_FOR: [&[usize]; TENANTS] = [&[0, 1, 2, 3], &[1, 2], &[2], &[3]];

/// Writes the tenant's mark to both ends of each page; fails on marks of other tenants.
fn mark(pages: &mut Pages, tenant: usize) -> Result<(), TestCaseError> {
    let mark = tenant as u8 + 1;
    for page in pages.bytes_mut().chunks_mut(PAGE_BYTES) {
        for at in [0, PAGE_BYTES / 2, PAGE_BYTES - 1] {
            prop_assert!([0, mark].contains(&page[at]), "tenant {tenant} sees {}", page[at]);
            page[at] = mark;
        }
    }
    Ok(())
}

/// The pool and its reference model.
struct Run {
    pool: PagePool,
    tenants: Vec<Tenant>,
    held: Vec<(Pages, usize)>,
    reserved: Vec<(Reservation, usize)>,
}

impl Run {
    fn new(fit: Fit, address_factor: usize) -> Self {
        let config = PoolConfig {
            page_bytes: PAGE_BYTES,
            fit,
            address_factor,
            ..PoolConfig::new(CAPACITY * PAGE_BYTES + 1)
        };
        let pool = PagePool::new(config).unwrap();
        let tenant = |path: &str| if path.is_empty() { Tenant::root() } else { pool.tenant(path).unwrap() };
        let tenants: Vec<_> = PATHS.map(tenant).into();
        for (tenant, hard_pages) in tenants.iter().zip(QUOTAS) {
            pool.set_quota(tenant, Quota { hard_pages, ..Quota::default() }).unwrap();
        }
        Self { pool, tenants, held: Vec::new(), reserved: Vec::new() }
    }

    fn used(&self, tenant: usize) -> usize {
        let counted = |other: &usize| COUNTS_FOR[tenant].contains(other);
        let held = self.held.iter().filter(|(_, other)| counted(other)).map(|(pages, _)| pages.len_pages());
        let reserved = self.reserved.iter().filter(|(_, other)| counted(other)).map(|(r, _)| r.len_pages());
        held.chain(reserved).sum()
    }

    fn reserve(&mut self, n_pages: usize, tenant: usize) -> Result<Option<Reservation>, TestCaseError> {
        let request = Request::default().tenant(self.tenants[tenant].clone());
        let fits = |other: &usize| self.used(*other) + n_pages <= QUOTAS[*other];
        let above = (0..TENANTS).filter(|&other| COUNTS_FOR[other].contains(&tenant));
        let all_fit = above.clone().all(|other| fits(&other));
        match self.pool.prepare(n_pages, &request) {
            Ok(reservation) => {
                prop_assert!(n_pages > 0 && all_fit);
                prop_assert_eq!(reservation.len_pages(), n_pages);
                return Ok(Some(reservation));
            }
            Err(Error::NoPages) => prop_assert_eq!(n_pages, 0),
            Err(Error::QuotaExceeded { tenant, wanted_pages, used_pages, quota_pages }) => {
                let index = PATHS.iter().position(|path| *path == tenant).unwrap();
                prop_assert!(index != 0 && above.into_iter().any(|other| other == index));
                prop_assert_eq!(
                    (wanted_pages, used_pages, quota_pages),
                    (n_pages, self.used(index), QUOTAS[index])
                );
                prop_assert!(used_pages + wanted_pages > quota_pages);
            }
            Err(Error::Exhausted { wanted_pages, free_pages, largest_run_pages, capacity_pages }) => {
                prop_assert_eq!((wanted_pages, free_pages), (n_pages, CAPACITY - self.used(0)));
                prop_assert_eq!(capacity_pages, CAPACITY);
                // Too few free pages, or not contiguous; a single page is always contiguous.
                prop_assert!(wanted_pages > free_pages || (largest_run_pages < n_pages && n_pages > 1));
            }
            Err(error) => prop_assert!(false, "{error}"),
        }
        Ok(None)
    }

    fn step(&mut self, step: Step) -> Result<(), TestCaseError> {
        match step {
            Step::Allocate { n_pages, tenant } => {
                if let Some(reservation) = self.reserve(n_pages, tenant)? {
                    self.commit(reservation, tenant)?;
                }
            }
            Step::Reserve { n_pages, tenant } => {
                if let Some(reservation) = self.reserve(n_pages, tenant)? {
                    self.reserved.push((reservation, tenant));
                }
            }
            Step::Commit(index) if !self.reserved.is_empty() => {
                let (reservation, tenant) = self.reserved.swap_remove(index.index(self.reserved.len()));
                self.commit(reservation, tenant)?;
            }
            Step::Free(index) if !self.held.is_empty() => {
                let (pages, tenant) = self.held.swap_remove(index.index(self.held.len()));
                let intact = pages.bytes().chunks(PAGE_BYTES).all(|page| page[0] == tenant as u8 + 1);
                prop_assert!(intact, "somebody else wrote to the pages");
            }
            Step::Free(index) if !self.reserved.is_empty() => {
                drop(self.reserved.swap_remove(index.index(self.reserved.len())));
            }
            Step::Trim => {
                self.pool.trim();
                prop_assert_eq!(self.pool.stats().resident_pages, self.used(0));
            }
            Step::Commit(_) | Step::Free(_) => {}
        }
        let stats = self.pool.stats();
        prop_assert_eq!((stats.used_pages, stats.free_pages), (self.used(0), CAPACITY - self.used(0)));
        prop_assert!((stats.used_pages + stats.cached_pages..=CAPACITY).contains(&stats.resident_pages));
        for (index, tenant) in self.tenants.iter().enumerate() {
            prop_assert_eq!(self.pool.usage(tenant).unwrap().used_pages, self.used(index));
        }
        Ok(())
    }

    fn commit(&mut self, reservation: Reservation, tenant: usize) -> Result<(), TestCaseError> {
        let mut pages = reservation.commit();
        mark(&mut pages, tenant)?;
        self.held.push((pages, tenant));
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64 * ProptestConfig::default().cases / 256))]

    #[test]
    fn the_pool_agrees_with_its_model(
        best in any::<bool>(),
        address_factor in 1..3_usize,
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let mut run = Run::new(if best { Fit::Best } else { Fit::First }, address_factor);
        for step in steps {
            run.step(step)?;
        }
        run.held.clear();
        run.reserved.clear();
        let pages = run.pool.allocate(CAPACITY, &Request::default());
        prop_assert!(pages.is_ok(), "everything is free again, in one piece");
    }

    #[test]
    fn blocks_of_a_slab_are_separate_and_their_pages_go_back(
        block_bytes in prop_oneof![1..2000_usize, 60_000..700_000_usize, 700_000..2_000_000_usize],
        steps in prop::collection::vec((any::<bool>(), any::<Index>()), 1..150),
    ) {
        let config = PoolConfig { page_bytes: PAGE_BYTES, ..PoolConfig::new(CAPACITY * PAGE_BYTES) };
        let pool = PagePool::new(config).unwrap();
        let slab = Slab::new(&pool, block_bytes, Request::default()).unwrap();
        let mut held = Vec::<(SlabBlock, u8)>::new();
        for (number, (take, index)) in steps.into_iter().enumerate() {
            let mark = number as u8;
            if take {
                match slab.allocate() {
                    Ok(mut block) => {
                        prop_assert_eq!(block.bytes().len(), block_bytes);
                        prop_assert!(block.bytes().as_ptr().addr().is_multiple_of(256));
                        block.bytes_mut().fill(mark);
                        held.push((block, mark));
                    }
                    Err(error) => {
                        prop_assert!(matches!(error, Error::Exhausted { .. }), "{error}");
                        prop_assert_eq!(slab.stats().free_blocks, 0);
                    }
                }
            } else if !held.is_empty() {
                let (block, mark) = held.swap_remove(index.index(held.len()));
                prop_assert!(block.bytes().iter().all(|&byte| byte == mark), "somebody else wrote to the block");
            }
            let stats = slab.stats();
            prop_assert_eq!(stats.used_blocks, held.len());
            prop_assert_eq!(stats.pages, pool.stats().used_pages);
        }
        held.clear();
        let spare_pages = slab.stats().pages;
        prop_assert!(spare_pages <= block_bytes.div_ceil(PAGE_BYTES) + 7, "one spare chunk: {spare_pages} pages");
        drop(slab);
        prop_assert_eq!(pool.stats().used_pages, 0);
    }
}
