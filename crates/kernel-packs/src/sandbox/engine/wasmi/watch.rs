//! Limits of memory and tables on wasmi.

use wasmi::ResourceLimiter;
use wasmi::errors::TableError;
use wasmi_core::LimiterError;

use crate::manifest::ResourceLimits;
use crate::sandbox::interface::MAX_TABLES;
use crate::sandbox::limiter::{Exceeded, Limiter};

/// Limits of an instance, with the growth that was refused: the interpreter's errors have no room
/// for its numbers.
#[derive(Debug)]
pub(super) struct Watch {
    limiter: Limiter,
    exceeded: Option<Exceeded>,
    is_cut: bool,
}

impl Watch {
    pub(super) fn new(limits: &ResourceLimits) -> Self {
        Self { limiter: Limiter::new(limits), exceeded: None, is_cut: false }
    }

    /// Growth that was refused.
    pub(super) fn exceeded(&self) -> Option<Exceeded> {
        self.exceeded
    }

    /// True if fuel ran out within a growth of a table.
    pub(super) fn is_cut(&self) -> bool {
        self.is_cut
    }

    fn refuse(&mut self, exceeded: Exceeded) -> LimiterError {
        self.exceeded = Some(exceeded);
        LimiterError::ResourceLimiterDeniedAllocation
    }
}

impl ResourceLimiter for Watch {
    fn memory_growing(
        &mut self,
        _current: usize,
        desired: usize,
        _maximum: Option<usize>,
    ) -> Result<bool, LimiterError> {
        self.limiter.grow_memory(desired).map(|()| true).map_err(|exceeded| self.refuse(exceeded))
    }

    fn table_growing(
        &mut self,
        current: usize,
        desired: usize,
        _maximum: Option<usize>,
    ) -> Result<bool, LimiterError> {
        self.limiter.grow_table(current, desired).map(|()| true).map_err(|exceeded| self.refuse(exceeded))
    }

    /// Stops a kernel whose fuel ended here: the interpreter (2.0.0) does not note its place before
    /// this one instruction, and would resume at an earlier one.
    fn table_grow_failed(&mut self, error: &TableError) -> Result<(), LimiterError> {
        if matches!(error, TableError::OutOfFuel { .. }) {
            self.is_cut = true;
            return Err(LimiterError::ResourceLimiterDeniedAllocation);
        }
        Ok(())
    }

    fn instances(&self) -> usize {
        1
    }

    fn memories(&self) -> usize {
        1
    }

    fn tables(&self) -> usize {
        MAX_TABLES
    }
}
