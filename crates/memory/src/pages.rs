//! Handles of pages: [`Reservation`] and [`Pages`].

use std::sync::Arc;

use crate::region::Span;
use crate::state::PoolState;
use crate::tenant::Account;
use crate::{Request, Result};

/// A contiguous range of pages, freed on drop.
///
/// Fresh bytes are zero or data that the same tenant wrote earlier.
///
/// ```
/// use ruvllm_memory::{PagePool, PoolConfig, Request};
///
/// let pool = PagePool::new(PoolConfig::new(64 << 20))?;
/// let mut pages = pool.allocate(3, &Request::default())?;
/// pages.bytes_mut()[..4].copy_from_slice(b"keys");
/// assert_eq!(pages.bytes().len(), 3 * pool.page_bytes());
/// drop(pages);
/// assert_eq!(pool.stats().used_pages, 0);
/// # Ok::<(), ruvllm_memory::Error>(())
/// ```
pub struct Pages {
    pool: Arc<PoolState>,
    /// `None` for the root.
    account: Option<Arc<Account>>,
    /// All bytes of the range, except blocks that a slab has split off its end.
    span: Span,
    n_pages: usize,
}

impl Pages {
    /// Bytes of all pages.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        self.pool.region.bytes(&self.span)
    }

    /// Mutable bytes of all pages.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.pool.region.bytes_mut(&mut self.span)
    }

    /// Number of pages.
    #[inline]
    pub fn len_pages(&self) -> usize {
        self.n_pages
    }

    /// Span from whose end a slab splits blocks. They must be re-appended before the pages are
    /// dropped, or their addresses leak.
    pub(crate) fn span_mut(&mut self) -> &mut Span {
        &mut self.span
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        let span = self.span.split_off(0);
        self.pool.give_back(span, self.n_pages, self.account.as_deref());
    }
}

impl std::fmt::Debug for Pages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pages").field("n_pages", &self.n_pages).finish_non_exhaustive()
    }
}

/// Reserved and charged pages that are not in use yet: first of two phases.
///
/// [`commit`](Self::commit) turns them into [`Pages`]; dropping rolls everything back. To allocate
/// several ranges atomically, reserve each, then commit all.
///
/// ```
/// use ruvllm_memory::{PagePool, PoolConfig, Request};
///
/// let pool = PagePool::new(PoolConfig::new(16 << 20))?;
/// let request = Request::default();
/// let keys = pool.prepare(6, &request)?;
/// assert!(pool.prepare(6, &request).is_err(), "8 pages in all");
/// drop(keys);
/// let pages = pool.prepare(6, &request)?.commit();
/// # assert_eq!(pages.len_pages(), 6);
/// # Ok::<(), ruvllm_memory::Error>(())
/// ```
#[derive(Debug)]
#[must_use = "dropping a reservation rolls it back"]
pub struct Reservation {
    pages: Pages,
}

impl Reservation {
    /// As [`PoolState::reserve`].
    #[inline]
    pub(crate) fn new(pool: &Arc<PoolState>, n_pages: usize, request: &Request) -> Result<Self> {
        let span = pool.reserve(n_pages, &request.tenant)?;
        let account = request.tenant.0.clone();
        Ok(Self { pages: Pages { pool: Arc::clone(pool), account, span, n_pages } })
    }

    /// Number of pages.
    pub fn len_pages(&self) -> usize {
        self.pages.len_pages()
    }

    /// Takes the pages into use; zeroes those last written by another tenant.
    #[inline]
    pub fn commit(mut self) -> Pages {
        let Pages { pool, account, span, n_pages } = &mut self.pages;
        let first_page = span.start() / pool.page_bytes;
        let tenant = account.as_ref().map_or(0, |account| account.id);
        for page in 0..*n_pages {
            if pool.writers.is_foreign(first_page + page, tenant) {
                let page_bytes = pool.page_bytes;
                pool.region.bytes_mut(span)[page * page_bytes..][..page_bytes].fill(0);
                pool.writers.hand_over(first_page + page, tenant);
            }
        }
        self.pages
    }
}
