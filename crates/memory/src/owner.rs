//! Owners: who can be asked to give pages back.

use std::sync::{Arc, Weak};

use crate::sync::{Mutex, lock};

/// Somebody who has pages and can do without some of them: a cache of keys and values, of adapters, of anything.
///
/// The pool asks when memory is short, on the thread whose request it is short for and without holding a lock of its
/// own. An owner gives pages back by dropping their handles, and may refuse by returning 0.
///
/// The thread that asks may be inside a request of this very owner. An owner that holds a lock of its own during requests
/// must therefore only try to take it in these methods, and refuse when it cannot. Requests made from inside them ask no
/// owner again.
pub trait PageOwner: Send + Sync {
    /// Drops handles of at least `wanted_pages` pages, or of as many as can be spared, the least useful first; how many
    /// were dropped. Pinned ones stay.
    fn release(&self, wanted_pages: usize) -> usize;

    /// [`release`](Self::release) with a proposal: the ranges of this owner that the pool's order of eviction would take,
    /// first to go first. Owners that know no better than the pool implement this.
    fn release_ranges(&self, ranges: &[PageRange]) -> usize {
        self.release(ranges.iter().map(|range| range.n_pages).sum())
    }

    /// Drops what is kept only for the next request and is not in use; how many pages. Asked before anything is evicted.
    fn release_unused(&self) -> usize {
        0
    }
}

/// Pages of one handle: what [`Pages::range`](crate::Pages::range) says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PageRange {
    /// Number of the first page in the pool.
    pub first_page: usize,
    /// How many pages.
    pub n_pages: usize,
}

/// An owner that was [registered](crate::PagePool::register).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OwnerId {
    pub(crate) pool: u64,
    pub(crate) index: u32,
}

/// The owners of a pool by index. One that is gone leaves its place to a later one.
#[derive(Default)]
pub(crate) struct Owners(Mutex<Vec<Option<Weak<dyn PageOwner>>>>);

impl Owners {
    pub(crate) fn add(&self, owner: Weak<dyn PageOwner>) -> u32 {
        let mut owners = lock(&self.0);
        let index = owners.iter().position(|place| place.as_ref().is_none_or(|o| o.strong_count() == 0));
        let index = index.unwrap_or_else(|| {
            owners.push(None);
            owners.len() - 1
        });
        owners[index] = Some(owner);
        index as u32
    }

    /// Those that still exist.
    pub(crate) fn alive(&self) -> Vec<(u32, Arc<dyn PageOwner>)> {
        let owners = lock(&self.0);
        let alive = |(index, owner): (usize, &Option<Weak<dyn PageOwner>>)| {
            Some((index as u32, owner.as_ref()?.upgrade()?))
        };
        owners.iter().enumerate().filter_map(alive).collect()
    }
}
