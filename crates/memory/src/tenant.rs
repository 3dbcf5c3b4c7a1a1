//! Tenants: a tree of accounts that count pages and enforce quotas.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::pressure::FROM;
use crate::sync::{AtomicUsize, Mutex, lock};
use crate::{Error, Result};

/// Maximum number of names in a path.
const MAX_LEVELS: usize = 8;

/// Maximum length of a path in bytes.
const MAX_PATH_BYTES: usize = 255;

/// Tenant charged for pages: the root of a pool, or a path like `org/team/user`.
///
/// Pages are charged to all ancestors too. [`PagePool::tenant`](crate::PagePool::tenant) gives a
/// handle; the default is the root.
#[derive(Clone, Debug, Default)]
pub struct Tenant(pub(crate) Option<Arc<Account>>);

impl Tenant {
    /// Root tenant: the pool itself.
    pub fn root() -> Self {
        Self::default()
    }

    /// Path: names separated by slashes; empty for the root.
    pub fn path(&self) -> &str {
        self.0.as_ref().map_or("", |account| &account.path)
    }

    /// True for the tenant with path `ancestor` and its descendants; every tenant is within the
    /// root, whose path is empty.
    ///
    /// ```
    /// use ruvllm_memory::{PagePool, PoolConfig};
    ///
    /// let pool = PagePool::new(PoolConfig::new(64 << 20))?;
    /// let user = pool.tenant("acme/search/ann")?;
    /// assert!(user.is_within("acme/search") && user.is_within(""));
    /// assert!(!user.is_within("acme/sea"));
    /// # Ok::<(), ruvllm_memory::Error>(())
    /// ```
    pub fn is_within(&self, ancestor: &str) -> bool {
        let rest = self.path().strip_prefix(ancestor);
        ancestor.is_empty() || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

/// Limits of a tenant together with its descendants, in pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Hard quota: requests beyond it fail.
    pub hard_pages: usize,
    /// Soft quota: beyond it the tenant's units are evicted first.
    pub soft_pages: usize,
}

impl Default for Quota {
    /// No limits.
    fn default() -> Self {
        Self { hard_pages: usize::MAX, soft_pages: usize::MAX }
    }
}

/// Use and quota of a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TenantUsage {
    /// Pages of the tenant and its descendants.
    pub used_pages: usize,
    /// Quota of the tenant.
    pub quota: Quota,
}

/// Account of a tenant.
#[derive(Debug)]
pub(crate) struct Account {
    /// Id of the pool.
    pool: u64,
    /// Unique in the pool; 0 is the root.
    pub(crate) id: u32,
    pub(crate) path: String,
    parent: Option<Arc<Account>>,
    used: AtomicUsize,
    hard: AtomicUsize,
    soft: AtomicUsize,
    /// Hysteresis: watermarks exceeded since use was last at the low one.
    beyond: [AtomicBool; FROM.len()],
}

impl Account {
    pub(crate) fn root(pool: u64, capacity_pages: usize) -> Self {
        Self::new(pool, 0, String::new(), None, capacity_pages)
    }

    fn new(pool: u64, id: u32, path: String, parent: Option<Arc<Self>>, hard: usize) -> Self {
        let [used, hard, soft] = [0, hard, usize::MAX].map(AtomicUsize::new);
        Self { pool, id, path, parent, used, hard, soft, beyond: Default::default() }
    }

    pub(crate) fn child(id: u32, path: &str, parent: &Arc<Self>) -> Self {
        Self::new(parent.pool, id, path.to_owned(), Some(Arc::clone(parent)), usize::MAX)
    }

    pub(crate) fn is_of(&self, pool: u64) -> bool {
        self.pool == pool
    }

    #[inline]
    pub(crate) fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    pub(crate) fn usage(&self) -> TenantUsage {
        let quota = Quota {
            hard_pages: self.hard.load(Ordering::Relaxed),
            soft_pages: self.soft.load(Ordering::Relaxed),
        };
        TenantUsage { used_pages: self.used(), quota }
    }

    fn set_quota(&self, quota: Quota) {
        self.hard.store(quota.hard_pages, Ordering::Relaxed);
        self.soft.store(quota.soft_pages, Ordering::Relaxed);
    }

    /// Charges `n` pages here and to every ancestor, or to none; the error is the account whose
    /// quota would be exceeded.
    #[inline]
    pub(crate) fn charge(&self, n: usize) -> Result<(), &Self> {
        let mut account = self;
        loop {
            if !account.add(n) {
                self.refund_below(account, n);
                return Err(account);
            }
            match &account.parent {
                Some(parent) => account = parent,
                None => return Ok(()),
            }
        }
    }

    /// Reverses [`charge`](Self::charge).
    #[inline]
    pub(crate) fn refund(&self, n: usize) {
        for account in self.line() {
            // Release: pages enter a cache before they are uncounted, and the next charge must see
            // them.
            account.used.fetch_sub(n, Ordering::Release);
        }
    }

    /// The account and its ancestors.
    pub(crate) fn line(&self) -> impl Iterator<Item = &Self> {
        std::iter::successors(Some(self), |account| account.parent.as_deref())
    }

    /// True for `other` and its descendants.
    pub(crate) fn is_within(&self, other: &Self) -> bool {
        self.line().any(|account| std::ptr::eq(account, other))
    }

    /// True if this account or an ancestor exceeds its soft quota.
    pub(crate) fn is_over_soft_quota(&self) -> bool {
        self.line().any(Self::is_over_own_soft_quota)
    }

    fn is_over_own_soft_quota(&self) -> bool {
        self.used() > self.soft.load(Ordering::Relaxed)
    }

    /// Fraction of the hard quota, after subtracting `kept` pages (at most a quarter of it).
    pub(crate) fn pages_within(&self, kept: usize, fraction: f64) -> usize {
        let hard = self.hard.load(Ordering::Relaxed);
        ((hard - kept.min(hard / 4)) as f64 * fraction) as usize
    }

    /// True if a watermark was exceeded and use has not fallen to `low` pages since.
    pub(crate) fn is_beyond(&self, mark: usize, kept: usize, low: usize) -> bool {
        let (used, beyond) = (self.used(), &self.beyond[mark]);
        let is_beyond = used as f64 >= self.pages_within(kept, 1.0) as f64 * FROM[mark]
            || (used > low && beyond.load(Ordering::Relaxed));
        beyond.store(is_beyond, Ordering::Relaxed);
        is_beyond
    }

    /// Resets the hysteresis if at most `low` pages are used.
    pub(crate) fn reached(&self, low: usize) {
        if self.used() <= low {
            self.beyond.iter().for_each(|beyond| beyond.store(false, Ordering::Relaxed));
        }
    }

    fn add(&self, n: usize) -> bool {
        let hard = self.hard.load(Ordering::Relaxed);
        let within = |used: usize| used.checked_add(n).filter(|&sum| sum <= hard);
        self.used.fetch_update(Ordering::Acquire, Ordering::Relaxed, within).is_ok()
    }

    fn refund_below(&self, end: &Self, n: usize) {
        for account in self.line().take_while(|account| !std::ptr::eq(*account, end)) {
            account.used.fetch_sub(n, Ordering::Release);
        }
    }
}

/// All tenants of a pool.
pub(crate) struct Tenants {
    pub(crate) root: Arc<Account>,
    tree: Mutex<Tree>,
    /// Accounts with a soft quota.
    soft: Mutex<Vec<Arc<Account>>>,
}

struct Tree {
    by_path: HashMap<String, Arc<Account>>,
}

impl Tenants {
    pub(crate) fn new(pool: u64, capacity_pages: usize) -> Self {
        let root = Arc::new(Account::root(pool, capacity_pages));
        let tree = Tree { by_path: HashMap::new() };
        Self { root, tree: Mutex::new(tree), soft: Mutex::new(Vec::new()) }
    }

    /// Account of a path; creates it and its ancestors if missing.
    pub(crate) fn get_or_create(&self, path: &str) -> Result<Arc<Account>> {
        let levels = path.split('/').count();
        if path.len() > MAX_PATH_BYTES || levels > MAX_LEVELS || path.split('/').any(str::is_empty) {
            return Err(Error::TenantPath { path: path.to_owned() });
        }
        let mut tree = lock(&self.tree);
        let mut account = Arc::clone(&self.root);
        let ends = path.match_indices('/').map(|(at, _)| at).chain([path.len()]);
        for end in ends {
            account = tree.child(&account, &path[..end]);
        }
        Ok(account)
    }

    /// Sets the quota of a tenant and its descendants.
    pub(crate) fn set_quota(&self, account: &Arc<Account>, quota: Quota) {
        account.set_quota(quota);
        let mut soft = lock(&self.soft);
        soft.retain(|other| !Arc::ptr_eq(other, account));
        if quota.soft_pages < usize::MAX {
            soft.push(Arc::clone(account));
        }
    }

    /// Accounts below `scope` that exceed their soft quota.
    pub(crate) fn over_soft_quota(&self, scope: &Account) -> Vec<Arc<Account>> {
        let is_over = |account: &&Arc<Account>| {
            account.id != scope.id && account.is_over_own_soft_quota() && account.is_within(scope)
        };
        lock(&self.soft).iter().filter(is_over).cloned().collect()
    }
}

impl Tree {
    fn child(&mut self, parent: &Arc<Account>, path: &str) -> Arc<Account> {
        if let Some(account) = self.by_path.get(path) {
            return Arc::clone(account);
        }
        // Id 0 is the root, which is not in the table.
        let id = self.by_path.len() as u32 + 1;
        let account = Arc::new(Account::child(id, path, parent));
        self.by_path.insert(path.to_owned(), Arc::clone(&account));
        account
    }
}
