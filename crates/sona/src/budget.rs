//! Memory budgets: what queues and caches charge before they allocate.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Accounting of memory in bytes, shared with the rest of the process.
///
/// An engine implements it over its page pool; [`FixedBudget`] is a counter with a limit.
pub trait MemoryBudget: Send + Sync {
    /// Charges `bytes`. False, with nothing charged, if they do not fit. Must not block.
    fn charge(&self, bytes: usize) -> bool;

    /// Returns `bytes` of an earlier charge.
    fn release(&self, bytes: usize);
}

/// Budget of a fixed number of bytes.
#[derive(Debug)]
pub struct FixedBudget {
    limit: usize,
    used: AtomicUsize,
}

impl FixedBudget {
    /// Bytes of the default budget: 128 MiB.
    pub const DEFAULT_BYTES: usize = 128 << 20;

    /// Creates a budget of `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self { limit, used: AtomicUsize::new(0) }
    }

    /// Bytes charged.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }
}

impl Default for FixedBudget {
    fn default() -> Self {
        Self::new(Self::DEFAULT_BYTES)
    }
}

impl MemoryBudget for FixedBudget {
    fn charge(&self, bytes: usize) -> bool {
        let fits = |used: usize| used.checked_add(bytes).filter(|sum| *sum <= self.limit);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok()
    }

    fn release(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// Bytes charged to a budget until this value is dropped.
pub struct Charge {
    budget: Arc<dyn MemoryBudget>,
    bytes: usize,
}

impl Charge {
    /// Charges `bytes`; `None` if the budget has no room.
    pub fn new(budget: &Arc<dyn MemoryBudget>, bytes: usize) -> Option<Self> {
        budget.charge(bytes).then(|| Self { budget: Arc::clone(budget), bytes })
    }

    /// Bytes charged.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.budget.release(self.bytes);
    }
}

impl std::fmt::Debug for Charge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Charge").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn charges_are_bounded_and_returned() {
        let fixed = Arc::new(FixedBudget::new(100));
        let budget: Arc<dyn MemoryBudget> = fixed.clone();
        let first = Charge::new(&budget, 60).expect("room");
        assert!(Charge::new(&budget, 41).is_none() && Charge::new(&budget, usize::MAX).is_none());
        let second = Charge::new(&budget, 40).expect("room");
        assert_eq!((fixed.used(), first.bytes(), second.bytes()), (100, 60, 40));
        drop(first);
        assert_eq!(fixed.used(), 40);
        drop(second);
        assert_eq!(fixed.used(), 0);
    }
}
