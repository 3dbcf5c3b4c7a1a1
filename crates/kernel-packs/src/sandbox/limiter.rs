//! Limits of memory and tables of one instance.

use wasmtime::ResourceLimiter;

use super::trap::Exceeded;
use crate::manifest::ResourceLimits;

/// Bytes of a page of memory.
pub(super) const PAGE: u64 = 64 << 10;

/// Limits of an instance, with the table elements that it has.
#[derive(Debug)]
pub(super) struct Limiter {
    memory_bytes: u64,
    table_elements: u64,
    elements: u64,
}

impl Limiter {
    /// Limits of the manifest.
    pub(super) fn new(limits: &ResourceLimits) -> Self {
        let memory_bytes = u64::from(limits.memory_pages) * PAGE;
        Self { memory_bytes, table_elements: u64::from(limits.table_elements), elements: 0 }
    }

    /// Bytes of memory that are allowed.
    pub(super) fn memory_bytes(&self) -> u64 {
        self.memory_bytes
    }
}

impl ResourceLimiter for Limiter {
    fn memory_growing(
        &mut self,
        _current: usize,
        desired: usize,
        _maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        let (asked, most) = (desired as u64, self.memory_bytes);
        if asked > most { Err(Exceeded::Memory { asked, most }.into()) } else { Ok(true) }
    }

    fn table_growing(
        &mut self,
        current: usize,
        desired: usize,
        _maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        let more = desired.saturating_sub(current) as u64;
        let (asked, most) = (self.elements.saturating_add(more), self.table_elements);
        if asked > most {
            return Err(Exceeded::Table { asked, most }.into());
        }
        self.elements = asked;
        Ok(true)
    }

    fn instances(&self) -> usize {
        1
    }

    fn memories(&self) -> usize {
        1
    }

    fn tables(&self) -> usize {
        super::module::MAX_TABLES
    }
}
