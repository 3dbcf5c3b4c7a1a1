//! Limits of memory and tables of one instance.

use super::interface::PAGE;
use super::trap::Trap;
use crate::manifest::ResourceLimits;

/// Limits of an instance, with the table elements that it has.
#[derive(Debug)]
pub(super) struct Limiter {
    memory_bytes: u64,
    table_elements: u64,
    elements: u64,
}

/// Growth beyond a limit. It stops the kernel, so that the host learns of it.
#[derive(Debug, Clone, Copy, thiserror::Error)]
pub(super) enum Exceeded {
    /// Bytes of memory.
    #[error("{asked} bytes of memory, {most} are allowed")]
    Memory { asked: u64, most: u64 },
    /// Elements of tables.
    #[error("{asked} table elements, {most} are allowed")]
    Table { asked: u64, most: u64 },
}

impl From<Exceeded> for Trap {
    fn from(exceeded: Exceeded) -> Self {
        match exceeded {
            Exceeded::Memory { asked, most } => Self::MemoryLimit { asked, most },
            Exceeded::Table { asked, most } => Self::TableLimit { asked, most },
        }
    }
}

impl Limiter {
    /// Limits of a kernel.
    pub(super) fn new(limits: &ResourceLimits) -> Self {
        let memory_bytes = u64::from(limits.memory_pages) * PAGE;
        Self { memory_bytes, table_elements: u64::from(limits.table_elements), elements: 0 }
    }

    /// Checks the size of a memory after a growth.
    ///
    /// # Errors
    /// [`Exceeded::Memory`].
    pub(super) fn grow_memory(&mut self, bytes: usize) -> Result<(), Exceeded> {
        let (asked, most) = (bytes as u64, self.memory_bytes);
        if asked > most { Err(Exceeded::Memory { asked, most }) } else { Ok(()) }
    }

    /// Adds the growth of a table to the elements of all.
    ///
    /// # Errors
    /// [`Exceeded::Table`].
    pub(super) fn grow_table(&mut self, before: usize, after: usize) -> Result<(), Exceeded> {
        let more = after.saturating_sub(before) as u64;
        let (asked, most) = (self.elements.saturating_add(more), self.table_elements);
        if asked > most {
            return Err(Exceeded::Table { asked, most });
        }
        self.elements = asked;
        Ok(())
    }
}
