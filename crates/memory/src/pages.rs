//! Handles of pages: reserved, held, pinned.

use std::sync::Arc;

use crate::pool::Shared;
use crate::region::Span;
use crate::tenant::Account;
use crate::{Content, OwnerId, PageRange, Request};

/// A contiguous range of pages. Dropping it gives them back.
///
/// The bytes are zero or what the same tenant left there; what another tenant wrote is never seen.
///
/// ```
/// use ruvllm_memory::{PagePool, PoolConfig, Request};
///
/// let pool = PagePool::new(PoolConfig::new(64 << 20))?;
/// let mut pages = pool.allocate(3, &Request::default())?;
/// pages.bytes_mut()[..4].copy_from_slice(b"keys");
/// assert_eq!(pages.bytes().len(), 3 * pool.page_bytes());
/// {
///     let _pin = pages.pin(); // not evicted while the guard lives
///     assert!(pages.is_pinned());
/// }
/// drop(pages);
/// assert_eq!(pool.stats().used_pages, 0);
/// # Ok::<(), ruvllm_memory::Error>(())
/// ```
pub struct Pages {
    pool: Arc<Shared>,
    /// Absent for the root.
    account: Option<Arc<Account>>,
    /// All bytes of the range, except while a slab has cut blocks off its end.
    span: Span,
    range: PageRange,
}

impl Pages {
    /// Bytes of all pages.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        self.pool.region.bytes(&self.span)
    }

    /// Bytes of all pages, to write to.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.pool.region.bytes_mut(&mut self.span)
    }

    /// How many pages.
    #[inline]
    pub fn len_pages(&self) -> usize {
        self.range.n_pages
    }

    /// Which pages: how the pool names them when it asks their owner for them.
    #[inline]
    pub fn range(&self) -> PageRange {
        self.range
    }

    /// Keeps the pages from being evicted while the guard lives, and counts as an access.
    #[inline]
    pub fn pin(&self) -> Pin<'_> {
        self.pool.table.pin(self.range.first_page);
        Pin { pages: self }
    }

    /// Whether a [`Pin`] lives.
    #[inline]
    pub fn is_pinned(&self) -> bool {
        self.pool.table.is_pinned(self.range.first_page)
    }

    /// Counts as an access: of the pages with one content, those not accessed for longest are evicted first.
    #[inline]
    pub fn touch(&self) {
        self.pool.table.touch(self.range.first_page);
    }

    /// The span, for a slab to cut blocks from its end. They must be back before the pages are dropped, or their
    /// addresses are lost to the pool.
    pub(crate) fn span_mut(&mut self) -> &mut Span {
        &mut self.span
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        let span = self.span.split_off(0);
        self.pool.give_back(span, self.range, self.account.as_deref());
    }
}

impl std::fmt::Debug for Pages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pages").field("range", &self.range).finish_non_exhaustive()
    }
}

/// Keeps pages from being evicted until it is dropped.
#[derive(Debug)]
#[must_use = "the pages are pinned only while the guard lives"]
pub struct Pin<'a> {
    pages: &'a Pages,
}

impl Drop for Pin<'_> {
    #[inline]
    fn drop(&mut self) {
        self.pages.pool.table.unpin(self.pages.range.first_page);
    }
}

/// Pages that are set aside and counted, but not in use: the first of two phases.
///
/// [`commit`](Self::commit) turns them into [`Pages`]; dropping rolls everything back. A request that needs several
/// things gets a reservation for each and commits when it has all.
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
    content: Content,
    owner: Option<OwnerId>,
}

impl Reservation {
    pub(crate) fn new(pool: Arc<Shared>, span: Span, range: PageRange, request: &Request) -> Self {
        let pages = Pages { pool, account: request.tenant.0.clone(), span, range };
        Self { pages, content: request.content, owner: request.owner }
    }

    /// How many pages.
    pub fn len_pages(&self) -> usize {
        self.pages.len_pages()
    }

    /// Takes the pages into use: zeroes those that another tenant had, and lets their owner be asked for them from now on.
    #[inline]
    pub fn commit(mut self) -> Pages {
        let PageRange { first_page, n_pages } = self.pages.range;
        let tenant = self.pages.account.as_ref().map_or(0, |account| account.id);
        let table = &self.pages.pool.table;
        for page in 0..n_pages {
            if table.is_foreign(first_page + page, tenant) {
                let page_bytes = self.pages.pool.page_bytes;
                let bytes = self.pages.pool.region.bytes_mut(&mut self.pages.span);
                bytes[page * page_bytes..][..page_bytes].fill(0);
                table.hand_over(first_page + page, tenant);
            }
        }
        table.publish(first_page, n_pages, self.content, tenant, self.owner);
        self.pages
    }
}
