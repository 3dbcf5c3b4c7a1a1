//! Buffers of the device under one budget.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, Result};

/// Buffer sizes are multiples of this, so that kernels can read any buffer as `vec4<u32>`.
const ALIGNMENT: u64 = 16;

/// Memory that a buffer lies in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Memory {
    /// Memory of the device, under its budget.
    #[default]
    Device,
    /// Memory of the host, which kernels read and write over the bus; outside of the budget. On
    /// devices that share the host's memory the same as `Device`.
    Host,
}

/// Content of memory that all dispatches share.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Scratch {
    /// Activations of a product in f16.
    Activations,
    /// Sums of the splits of a product.
    Splits,
}

/// Bytes in use of a budget.
#[derive(Debug)]
pub(crate) struct Ledger {
    budget: u64,
    used: AtomicU64,
}

impl Ledger {
    pub(crate) fn new(budget: u64) -> Arc<Self> {
        Arc::new(Self { budget, used: AtomicU64::new(0) })
    }

    pub(crate) fn budget(&self) -> u64 {
        self.budget
    }

    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Acquire)
    }

    /// Reserves `bytes` of the budget until the claim is dropped.
    pub(crate) fn claim(self: &Arc<Self>, bytes: u64) -> Result<Claim> {
        let take = |used: u64| used.checked_add(bytes).filter(|used| *used <= self.budget);
        match self.used.fetch_update(Ordering::AcqRel, Ordering::Acquire, take) {
            Ok(_) => Ok(Claim { ledger: Arc::clone(self), bytes }),
            Err(used) => {
                Err(Error::OverBudget { need: bytes, free: self.budget - used, budget: self.budget })
            }
        }
    }
}

/// Bytes reserved in a budget.
#[derive(Debug)]
pub(crate) struct Claim {
    ledger: Arc<Ledger>,
    bytes: u64,
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.ledger.used.fetch_sub(self.bytes, Ordering::AcqRel);
    }
}

/// Memory that kernels use. Clones share it; dropping the last one releases it.
///
/// A prepared [`Dispatch`](crate::Dispatch) holds clones of its operands, so that the budget counts
/// memory until nothing can read it.
#[derive(Debug, Clone)]
pub struct Buffer {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    raw: wgpu::Buffer,
    len: u64,
    _claim: Claim,
}

impl Buffer {
    /// Size in the budget of a buffer of `len` bytes.
    pub fn padded(len: u64) -> u64 {
        len.max(1).next_multiple_of(ALIGNMENT)
    }

    pub(crate) fn new(raw: wgpu::Buffer, len: u64, claim: Claim) -> Self {
        Self { inner: Arc::new(Inner { raw, len, _claim: claim }) }
    }

    pub(crate) fn raw(&self) -> &wgpu::Buffer {
        &self.inner.raw
    }

    /// True for clones of one buffer.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Requested size in bytes.
    pub fn len(&self) -> u64 {
        self.inner.len
    }

    /// True if the size is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_are_counted_to_the_byte() {
        let ledger = Ledger::new(100);
        let first = ledger.claim(60).unwrap();
        assert_eq!(ledger.claim(41).err(), Some(Error::OverBudget { need: 41, free: 40, budget: 100 }));
        let second = ledger.claim(40).unwrap();
        assert_eq!(ledger.used(), 100);
        drop(first);
        assert_eq!(ledger.used(), 40);
        drop(second);
        assert_eq!(ledger.used(), 0);
        assert!(ledger.claim(u64::MAX).is_err());
    }
}
