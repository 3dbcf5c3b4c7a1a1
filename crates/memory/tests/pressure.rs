//! The pressure ladder: order of eviction and watermarks.

use std::sync::{Arc, Weak};

use proptest::prelude::*;
use proptest::sample::Index;
use ruvllm_memory::{
    Claim, Demand, Error, Offer, OwnerId, PagePool, Pages, PoolConfig, PressureOwner, PressurePolicy, Quota,
    Release, Request, Rung, Slab, Tenant, Use,
};

use parking_lot::Mutex;

const PAGE_BYTES: usize = 512 << 10;

fn pool(pages: usize) -> PagePool {
    PagePool::new(PoolConfig { page_bytes: PAGE_BYTES, ..PoolConfig::new(pages * PAGE_BYTES) }).unwrap()
}

/// A cache of pages; units are numbered in order of insertion.
struct Shelf {
    pool: PagePool,
    id: OwnerId,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    units: Vec<Option<Unit>>,
    evicted: Vec<u64>,
    refuses: bool,
}

struct Unit {
    pages: Vec<Pages>,
    is_pinned: bool,
    /// Use since the offer.
    used: Option<Use>,
}

impl PressureOwner for Shelf {
    fn release(&self, number: u64, _: Demand) -> Release {
        let mut state = self.state.lock();
        if state.refuses {
            return Release::Refused;
        }
        let Some(unit) = &mut state.units[number as usize] else { return Release::Gone };
        if let Some(used) = unit.used.take() {
            return Release::Used(used);
        }
        if unit.is_pinned {
            return Release::Pinned;
        }
        unit.pages.pop();
        let has_rest = !unit.pages.is_empty();
        if !has_rest {
            state.units[number as usize] = None;
        }
        state.evicted.push(number);
        Release::Released { has_rest }
    }
}

impl Shelf {
    fn new(pool: &PagePool) -> Arc<Self> {
        Arc::new_cyclic(|shelf: &Weak<Self>| {
            let id = pool.register(Weak::<Self>::clone(shelf));
            Self { pool: pool.clone(), id, state: Mutex::default() }
        })
    }

    /// Offers a unit of `n_pages` separate pages.
    fn put(&self, tenant: &Tenant, n_pages: usize, rung: Rung, cost: u64) -> u64 {
        let request = Request::default().tenant(tenant.clone());
        let pages: Result<Vec<_>, _> = (0..n_pages).map(|_| self.pool.allocate(1, &request)).collect();
        let mut state = self.state.lock();
        state.units.push(Some(Unit { pages: pages.unwrap(), is_pinned: false, used: None }));
        let number = state.units.len() as u64 - 1;
        // Under the owner's lock, which is allowed.
        let offer = Offer { tenant, rung, cost, used: self.pool.now(rung) };
        self.pool.offer(self.id, number, offer).unwrap();
        number
    }

    fn put_one(&self, tenant: &Tenant) -> u64 {
        self.put(tenant, 1, Rung::Prefix, 1)
    }

    fn pin(&self, number: u64, is_pinned: bool) {
        self.state.lock().units[number as usize].as_mut().unwrap().is_pinned = is_pinned;
    }

    fn touch(&self, number: u64) {
        let used = self.pool.now(Rung::Prefix);
        self.state.lock().units[number as usize].as_mut().unwrap().used = Some(used);
    }

    fn evicted(&self) -> Vec<u64> {
        std::mem::take(&mut self.state.lock().evicted)
    }
}

/// A claim that takes pages one by one and records the rungs that it was asked for.
struct Asker {
    pool: PagePool,
    tenant: Tenant,
    wanted: usize,
    kept: usize,
    taken: Vec<Pages>,
    asked: Vec<Rung>,
    /// Pages that it can release, by rung.
    own: Vec<(Rung, Vec<Pages>)>,
}

impl Asker {
    fn new(pool: &PagePool, tenant: &Tenant, wanted: usize) -> Self {
        let (pool, tenant) = (pool.clone(), tenant.clone());
        Self { pool, tenant, wanted, kept: 0, taken: Vec::new(), asked: Vec::new(), own: Vec::new() }
    }

    fn make_room(&mut self, policy: PressurePolicy) -> Result<(), Error> {
        let (pool, tenant) = (self.pool.clone(), self.tenant.clone());
        pool.make_room(&tenant, policy, self)
    }

    fn relieve(&mut self, policy: PressurePolicy) {
        let (pool, tenant) = (self.pool.clone(), self.tenant.clone());
        pool.relieve(&tenant, policy, self);
    }
}

impl Claim for Asker {
    type Error = Error;

    fn take(&mut self) -> Result<(), Error> {
        while self.taken.len() < self.wanted {
            self.taken.push(self.pool.allocate(1, &Request::default().tenant(self.tenant.clone()))?);
        }
        Ok(())
    }

    fn short_tenant<'a>(&self, error: &'a Error) -> Option<&'a str> {
        error.short_tenant()
    }

    fn yield_own(&mut self, rung: Rung) -> bool {
        self.asked.push(rung);
        self.own.iter_mut().find(|(own, _)| *own == rung).is_some_and(|(_, pages)| pages.pop().is_some())
    }

    fn kept_pages(&self) -> usize {
        self.kept
    }
}

#[test]
fn prefixes_yield_from_the_second_mark_until_the_low_one() {
    let (pool, root) = (pool(100), Tenant::root());
    let shelf = Shelf::new(&pool);
    let mut most = 0;
    for _ in 0..1000 {
        let before = pool.stats().used_pages;
        shelf.put_one(&root);
        Asker::new(&pool, &root, 0).relieve(PressurePolicy::LowerPrecision);
        let after = pool.stats().used_pages;
        most = most.max(before + 1);
        assert!(after == before + 1 || (before, after) == (84, 70), "{before} {after}");
    }
    assert_eq!((most, pool.stats().pressure.evicted_units), (85, 15 * (1 + (1000 - 85) / 15)));
}

#[test]
fn each_policy_takes_its_rungs_in_its_own_order() {
    use Rung::{Adapter, Hot, Oldest, Pass, Precision, Prefix};
    let pool = pool(10);
    let _all = pool.allocate(9, &Request::default()).unwrap();
    let at_marks = |policy| {
        let mut asker = Asker::new(&pool, &Tenant::root(), 0);
        asker.relieve(policy);
        asker.asked
    };
    let for_request = |policy| {
        let mut asker = Asker::new(&pool, &Tenant::root(), 2);
        assert!(asker.make_room(policy).is_err());
        asker.asked
    };
    let expected: [(&[Rung], &[Rung]); 5] = [
        (&[Precision, Adapter, Prefix], &[Precision, Adapter, Prefix, Pass, Hot]),
        (&[Adapter, Prefix, Precision], &[Adapter, Prefix, Precision, Pass]),
        (&[Adapter, Prefix, Precision], &[Adapter, Prefix, Precision, Pass]),
        (&[], &[]),
        (&[Precision, Adapter, Prefix], &[Precision, Adapter, Prefix, Pass, Hot, Oldest]),
    ];
    for (policy, (marks, request)) in PressurePolicy::ALL.into_iter().zip(expected) {
        assert_eq!((&*at_marks(policy), &*for_request(policy)), (marks, request), "{policy}");
        assert_eq!(policy.name().parse::<PressurePolicy>().unwrap(), policy);
    }
    assert!("none".parse::<PressurePolicy>().is_err());
}

#[test]
fn the_first_rung_yields_from_the_first_mark_and_the_sooner_beyond_a_soft_quota() {
    let (pool, root) = (pool(100), Tenant::root());
    let greedy = pool.tenant("greedy").unwrap();
    pool.set_quota(&greedy, Quota { soft_pages: 3, ..Quota::default() }).unwrap();
    let _greedy = pool.allocate(4, &Request::default().tenant(greedy.clone())).unwrap();
    let asked = |tenant: &Tenant, kept| {
        let mut asker = Asker { kept, ..Asker::new(&pool, tenant, 0) };
        asker.relieve(PressurePolicy::LowerPrecision);
        asker.asked
    };
    let mut held = Vec::new();
    let mut use_pages = |n: usize| {
        held.clear();
        held.extend((4..n).map(|_| pool.allocate(1, &Request::default()).unwrap()));
    };
    // Hysteresis: the result at 75 % depends on the history.
    for (used, expected) in
        [(79, 0), (80, 1), (75, 1), (71, 1), (70, 0), (75, 0), (84, 1), (85, 3), (71, 3), (70, 0)]
    {
        use_pages(used);
        assert_eq!(asked(&root, 0).len(), expected, "{used} %");
    }
    use_pages(71);
    assert_eq!((asked(&root, 0).len(), asked(&greedy, 0)), (0, vec![Rung::Precision]));
    // Pages kept free by the claim reduce the quota that watermarks refer to.
    assert_eq!(asked(&root, 12).len(), 1);
}

#[test]
fn units_leave_by_last_use_and_pinned_ones_stay() {
    let (pool, root) = (pool(10), Tenant::root());
    let shelf = Shelf::new(&pool);
    for _ in 0..6 {
        shelf.put_one(&root);
    }
    shelf.touch(1);
    shelf.pin(2, true);
    let mut asker = Asker::new(&pool, &root, 9);
    asker.make_room(PressurePolicy::LowerPrecision).unwrap();
    assert_eq!(shelf.evicted(), [0, 3, 4, 5, 1], "the pinned one was asked, and stays");
    asker.wanted = 10;
    assert!(asker.make_room(PressurePolicy::LowerPrecision).is_err());
    shelf.pin(2, false);
    asker.make_room(PressurePolicy::LowerPrecision).unwrap();
    assert_eq!((shelf.evicted(), pool.offered_units()), (vec![2], 0));
}

#[test]
fn cheapest_unit_is_evicted_first_in_parts() {
    let (pool, root) = (pool(9), Tenant::root());
    let shelf = Shelf::new(&pool);
    for cost in [30, 10, 20] {
        shelf.put(&root, 3, Rung::Prefix, cost);
    }
    Asker::new(&pool, &root, 4).make_room(PressurePolicy::EvictPrefixes).unwrap();
    assert_eq!(shelf.evicted(), [1, 1, 1, 2]);
    assert_eq!(pool.offered_units(), 2);
}

#[test]
fn tenants_beyond_their_soft_quota_yield_first() {
    let (pool, root) = (pool(10), Tenant::root());
    let shelf = Shelf::new(&pool);
    let greedy = pool.tenant("greedy").unwrap();
    pool.set_quota(&greedy, Quota { soft_pages: 3, ..Quota::default() }).unwrap();
    let child = pool.tenant("greedy/child").unwrap();
    let modest = shelf.put_one(&root);
    let units: Vec<_> = (0..5).map(|_| shelf.put_one(&child)).collect();
    Asker::new(&pool, &root, 7).make_room(PressurePolicy::LowerPrecision).unwrap();
    assert_eq!(shelf.evicted(), [units[0], units[1], modest], "three are within the quota");
}

#[test]
fn a_quota_costs_its_tenant_and_nobody_else() {
    let pool = pool(100);
    let shelf = Shelf::new(&pool);
    let team = pool.tenant("org/team").unwrap();
    pool.set_quota(&team, Quota { hard_pages: 4, ..Quota::default() }).unwrap();
    shelf.put(&Tenant::root(), 8, Rung::Prefix, 1);
    let ours = [shelf.put_one(&team), shelf.put_one(&team)];
    let request = Request::default().tenant(team.clone()).pressure(PressurePolicy::LowerPrecision);
    let held = pool.allocate(3, &request).unwrap();
    assert_eq!(shelf.evicted(), ours[..1]);
    let error = pool.allocate(2, &request).unwrap_err();
    assert!(matches!(error, Error::QuotaExceeded { wanted_pages: 2, used_pages: 3, .. }), "{error}");
    assert_eq!(shelf.evicted(), ours[1..]);
    assert!(matches!(pool.allocate(5, &request), Err(Error::QuotaExceeded { .. })), "more than the quota");
    drop(held);
    assert_eq!(pool.usage(&Tenant::root()).unwrap().used_pages, 8);
}

#[test]
fn a_request_has_what_its_own_policy_makes_room_for() {
    let (pool, root) = (pool(4), Tenant::root());
    let shelf = Shelf::new(&pool);
    for _ in 0..4 {
        shelf.put_one(&root);
    }
    assert!(pool.allocate(1, &Request::default()).is_err(), "nothing yields for a plain request");
    assert!(Asker::new(&pool, &root, 1).make_room(PressurePolicy::Reject).is_err());
    assert_eq!((shelf.evicted().len(), pool.offered_units()), (0, 4));
    let pages = pool.allocate(2, &Request::default().pressure(PressurePolicy::EvictPrefixes)).unwrap();
    assert_eq!(shelf.evicted(), [0, 1]);
    drop(pages);
    // Memory of the claim itself, in the order of rungs.
    let own = |rung| (rung, vec![pool.allocate(1, &Request::default()).unwrap()]);
    let mut asker = Asker::new(&pool, &root, 4);
    asker.own = vec![own(Rung::Oldest), own(Rung::Hot)];
    assert!(Asker::new(&pool, &root, 4).make_room(PressurePolicy::EvictPrefixes).is_err());
    asker.make_room(PressurePolicy::DropOldest).unwrap();
    assert_eq!(asker.taken.len(), 4);
}

#[test]
fn idle_adapters_yield_before_prefixes() {
    let (pool, root) = (pool(4), Tenant::root());
    let shelf = Shelf::new(&pool);
    let prefix = shelf.put_one(&root);
    let [adapter, pinned] = [0; 2].map(|_| shelf.put(&root, 1, Rung::Adapter, 1000));
    shelf.pin(pinned, true);
    let mut held = vec![pool.allocate(1, &Request::default()).unwrap()];
    for (policy, evicted) in [
        (PressurePolicy::LowerPrecision, vec![adapter]),
        (PressurePolicy::EvictPrefixes, vec![prefix]),
        (PressurePolicy::Spill, vec![]),
    ] {
        let mut asker = Asker::new(&pool, &root, 1);
        assert_eq!(asker.make_room(policy).is_err(), evicted.is_empty());
        assert_eq!(shelf.evicted(), evicted);
        held.extend(asker.taken);
    }
}

#[test]
fn a_refusal_ends_the_stage_and_owners_that_are_gone_are_not_asked() {
    let (pool, root) = (pool(4), Tenant::root());
    let shelf = Shelf::new(&pool);
    for _ in 0..4 {
        shelf.put_one(&root);
    }
    shelf.state.lock().refuses = true;
    assert!(Asker::new(&pool, &root, 1).make_room(PressurePolicy::LowerPrecision).is_err());
    assert_eq!((pool.stats().pressure.refusals, pool.offered_units()), (1, 4));
    drop(shelf);
    assert_eq!(pool.stats().used_pages, 0);
    let other = Shelf::new(&pool);
    other.put(&root, 4, Rung::Prefix, 9);
    Asker::new(&pool, &root, 1).make_room(PressurePolicy::LowerPrecision).unwrap();
    assert_eq!(other.evicted(), [0]);
    assert_eq!(pool.offered_units(), 1, "offers of an owner that is gone go as they come up");
    let foreign = Offer { tenant: &root, rung: Rung::Prefix, cost: 1, used: Use::default() };
    assert!(matches!(self::pool(4).offer(other.id, 0, foreign), Err(Error::OtherPool { what: "owner" })));
}

#[test]
fn a_spare_page_of_a_slab_yields_before_anything_is_evicted() {
    let (pool, root) = (pool(10), Tenant::root());
    let shelf = Shelf::new(&pool);
    shelf.put(&root, 6, Rung::Prefix, 1);
    let slab = Slab::new(&pool, 1 << 10, Request::default()).unwrap();
    drop(slab.allocate().unwrap());
    assert_eq!(slab.stats().pages, 1);
    let pages = pool.prepare(4, &Request::default().pressure(PressurePolicy::LowerPrecision)).unwrap();
    assert_eq!(slab.stats().pages, 0);
    assert!(shelf.evicted().is_empty(), "the slab's page was enough");
    drop(pages);
    assert_eq!(slab.allocate().unwrap().bytes().len(), 1 << 10);
}

/// Tenants of the model: path, hard and soft quota, tenants charged to it.
const TENANTS: [(&str, usize, usize, &[usize]); 5] = [
    ("", CAPACITY, usize::MAX, &[0, 1, 2, 3, 4]),
    ("a", 12, 6, &[1, 2]),
    ("a/b", 8, usize::MAX, &[2]),
    ("c", usize::MAX, 3, &[3, 4]),
    ("c/d", 10, usize::MAX, &[4]),
];
const CAPACITY: usize = 20;

#[derive(Clone, Debug)]
enum Step {
    Put { tenant: usize, n_pages: usize, cost: u64 },
    Touch(Index),
    Pin(Index, bool),
    Request { tenant: usize, n_pages: usize, policy: usize },
    Relieve { tenant: usize, policy: usize },
    Free,
}

fn step() -> impl Strategy<Value = Step> {
    let tenant = || 0..TENANTS.len();
    prop_oneof![
        5 => (tenant(), 1..4usize, 1..5u64).prop_map(|(tenant, n_pages, cost)| Step::Put { tenant, n_pages, cost }),
        2 => any::<Index>().prop_map(Step::Touch),
        2 => (any::<Index>(), any::<bool>()).prop_map(|(unit, is_pinned)| Step::Pin(unit, is_pinned)),
        3 => (tenant(), 1..6usize, 0..5usize)
            .prop_map(|(tenant, n_pages, policy)| Step::Request { tenant, n_pages, policy }),
        3 => (tenant(), 0..5usize).prop_map(|(tenant, policy)| Step::Relieve { tenant, policy }),
        1 => Just(Step::Free),
    ]
}

/// A unit of the model.
#[derive(Clone, Debug)]
struct Known {
    unit: u64,
    tenant: usize,
    pages: usize,
    cost: u64,
    key: (u64, u64),
    is_pinned: bool,
}

/// Reference model of the ladder: linear search in a list.
#[derive(Default)]
struct Model {
    units: Vec<Known>,
    held: [usize; TENANTS.len()],
    inflation: u64,
    turn: u64,
    beyond: [[bool; 2]; TENANTS.len()],
    evicted: Vec<u64>,
}

impl Model {
    fn now(&mut self) -> (u64, u64) {
        self.turn += 1;
        (self.inflation, self.turn)
    }

    fn used(&self, tenant: usize) -> usize {
        let counts = |other: &usize| TENANTS[tenant].3.contains(other);
        let units: usize =
            self.units.iter().filter(|known| counts(&known.tenant)).map(|known| known.pages).sum();
        units + (0..TENANTS.len()).filter(counts).map(|other| self.held[other]).sum::<usize>()
    }

    /// The tenant and its ancestors, bottom up.
    fn line(tenant: usize) -> impl Iterator<Item = usize> {
        (0..TENANTS.len()).rev().filter(move |&other| TENANTS[other].3.contains(&tenant))
    }

    /// First tenant whose quota `n_pages` more would exceed.
    fn short(&self, tenant: usize, n_pages: usize) -> Option<usize> {
        Self::line(tenant).find(|&other| self.used(other) + n_pages > TENANTS[other].1)
    }

    /// Evicts a page of the unit that ADR-0028 selects; false if there is none.
    fn evict(&mut self, scope: usize, pinned: &mut Vec<u64>) -> bool {
        let within = |known: &&Known, scope: usize| TENANTS[scope].3.contains(&known.tenant);
        loop {
            let is_over = |&other: &usize| {
                other != scope && TENANTS[scope].3.contains(&other) && self.used(other) > TENANTS[other].2
            };
            let over: Vec<usize> = (0..TENANTS.len()).filter(is_over).collect();
            let open = || self.units.iter().filter(|known| !pinned.contains(&known.unit));
            let of_over = open().filter(|known| over.iter().any(|&other| within(known, other)));
            let first = of_over.min_by_key(|known| (known.key, known.unit));
            let first = first.or_else(|| {
                open().filter(|known| within(known, scope)).min_by_key(|known| (known.key, known.unit))
            });
            let Some(unit) = first.map(|known| known.unit) else { return false };
            let at = self.units.iter().position(|known| known.unit == unit).unwrap();
            if self.units[at].is_pinned {
                pinned.push(unit);
                continue;
            }
            self.inflation = self.inflation.max(self.units[at].key.0);
            self.evicted.push(unit);
            self.units[at].pages -= 1;
            if self.units[at].pages == 0 {
                self.units.remove(at);
            }
            return true;
        }
    }

    /// Pinned units count as used at the end of a round.
    fn end_round(&mut self, pinned: Vec<u64>) {
        for unit in pinned {
            let (inflation, turn) = self.now();
            let known = self.units.iter_mut().find(|known| known.unit == unit).unwrap();
            known.key = (inflation + known.cost, turn);
        }
    }

    fn evicts(policy: PressurePolicy) -> bool {
        policy != PressurePolicy::Reject
    }

    fn request(&mut self, tenant: usize, n_pages: usize, policy: PressurePolicy) -> bool {
        let mut pinned = Vec::new();
        let made = loop {
            let Some(short) = self.short(tenant, n_pages) else { break true };
            if !Self::evicts(policy) || n_pages > TENANTS[0].1 || !self.evict(short, &mut pinned) {
                break false;
            }
        };
        self.end_round(pinned);
        if made {
            self.held[tenant] += n_pages;
        }
        made
    }

    fn relieve(&mut self, tenant: usize, policy: PressurePolicy) {
        let is_over_soft = Self::line(tenant).any(|other| self.used(other) > TENANTS[other].2);
        let prefixes_first = matches!(policy, PressurePolicy::EvictPrefixes | PressurePolicy::Spill);
        for scope in Self::line(tenant) {
            let hard = TENANTS[scope].1 as f64;
            let low = (hard * 0.70) as usize;
            let marks: &[(usize, f64)] = if Self::evicts(policy) { &[(0, 0.80), (1, 0.85)] } else { &[] };
            for &(mark, from) in marks {
                let used = self.used(scope);
                let beyond = used as f64 >= hard * from || (used > low && self.beyond[scope][mark]);
                self.beyond[scope][mark] = beyond;
                let is_early = mark == 0 && is_over_soft && used > low;
                if (beyond || is_early) && (mark == 0) == prefixes_first {
                    let mut pinned = Vec::new();
                    while self.used(scope) > low && self.evict(scope, &mut pinned) {}
                    self.end_round(pinned);
                }
            }
            if self.used(scope) <= low {
                self.beyond[scope] = [false; 2];
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn the_ladder_agrees_with_its_model(steps in prop::collection::vec(step(), 1..80)) {
        let pool = pool(CAPACITY);
        let shelf = Shelf::new(&pool);
        let tenants = TENANTS.map(|(path, hard_pages, soft_pages, _)| {
            let tenant = if path.is_empty() { Tenant::root() } else { pool.tenant(path).unwrap() };
            pool.set_quota(&tenant, Quota { hard_pages, soft_pages }).unwrap();
            tenant
        });
        let mut model = Model::default();
        let mut held = Vec::new();
        for step in steps {
            match step {
                Step::Put { tenant, n_pages, cost } => {
                    if model.short(tenant, n_pages).is_none() {
                        let unit = shelf.put(&tenants[tenant], n_pages, Rung::Prefix, cost);
                        let (inflation, turn) = model.now();
                        let key = (inflation + cost, turn);
                        model.units.push(Known { unit, tenant, pages: n_pages, cost, key, is_pinned: false });
                    }
                }
                Step::Touch(index) if !model.units.is_empty() => {
                    let at = index.index(model.units.len());
                    shelf.touch(model.units[at].unit);
                    let (inflation, turn) = model.now();
                    let known = &mut model.units[at];
                    known.key = (inflation + known.cost, turn);
                }
                Step::Pin(index, is_pinned) if !model.units.is_empty() => {
                    let at = index.index(model.units.len());
                    model.units[at].is_pinned = is_pinned;
                    shelf.pin(model.units[at].unit, is_pinned);
                }
                Step::Touch(_) | Step::Pin(..) => {}
                Step::Request { tenant, n_pages, policy } => {
                    let policy = PressurePolicy::ALL[policy];
                    let request = Request::default().tenant(tenants[tenant].clone()).pressure(policy);
                    let expected = model.request(tenant, n_pages, policy);
                    let found = pool.allocate(n_pages, &request);
                    prop_assert_eq!(found.is_ok(), expected, "{:?}", found);
                    held.extend(found.ok());
                }
                Step::Relieve { tenant, policy } => {
                    let policy = PressurePolicy::ALL[policy];
                    Asker::new(&pool, &tenants[tenant], 0).relieve(policy);
                    model.relieve(tenant, policy);
                }
                Step::Free => {
                    held.clear();
                    model.held = [0; TENANTS.len()];
                }
            }
            prop_assert_eq!(shelf.evicted(), std::mem::take(&mut model.evicted));
            for (at, tenant) in tenants.iter().enumerate() {
                let used = pool.usage(tenant).unwrap().used_pages;
                prop_assert_eq!(used, model.used(at));
                prop_assert!(used <= TENANTS[at].1, "{} of {} pages", used, TENANTS[at].1);
            }
            prop_assert_eq!(pool.offered_units(), model.units.len());
        }
    }
}
