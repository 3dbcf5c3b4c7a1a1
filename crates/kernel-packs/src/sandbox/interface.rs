//! Interface between the sandbox and an engine of WebAssembly.
//!
//! An [`Engine`] makes [`Code`] of a module. Code that has passed the checks of
//! [`module`](super::module) makes a [`Factory`] per kernel, which makes any number of
//! [`Machine`]s: instances with their own memory. Everything above (layout of requests, pools,
//! counters, quarantine, managers) is the same for all engines.

use super::fault::Fault;
use super::layout::Direction;
use crate::error::Result;
use crate::manifest::{Kernel, ResourceLimits};

/// Bytes of a page of memory.
pub(super) const PAGE: u64 = 64 << 10;
/// Most tables of a module.
pub(super) const MAX_TABLES: usize = 8;

/// Engine with the settings of a sandbox.
pub(super) trait Engine: Send + Sync {
    /// Compiles or translates the module of a kernel.
    ///
    /// # Errors
    /// [`Fault::Malformed`] within [`Error::Kernel`](crate::Error::Kernel); the errors of the
    /// folder of compiled modules.
    fn compile(&self, kernel: &str, wasm: &[u8]) -> Result<Box<dyn Code>>;

    /// Counters of the folder of compiled modules.
    fn cache_counts(&self) -> CacheCounts {
        CacheCounts::default()
    }
}

/// Valid module.
pub(super) trait Code {
    /// Module and name of the first import.
    fn import(&self) -> Option<(String, String)>;

    /// Memories and tables that an instance begins with.
    fn declared(&self) -> Declared;

    /// Export of this name.
    fn export(&self, name: &str) -> Option<Export>;

    /// Maker of instances for a kernel whose exports were checked.
    ///
    /// # Errors
    /// [`Fault::MissingExport`], [`Fault::Malformed`].
    fn factory(&self, kernel: &Kernel, limits: ResourceLimits) -> Result<Box<dyn Factory>, Fault>;
}

/// Maker of instances of a kernel.
pub(super) trait Factory: Send + Sync {
    /// Makes an instance and runs its start function, with the budget of a call.
    ///
    /// # Errors
    /// [`Fault::Trap`], [`Fault::NoInstance`].
    fn instance(&self) -> Result<Box<dyn Machine>, Fault>;
}

/// Instance with its own memory and tables.
pub(super) trait Machine: Send {
    /// Linear memory.
    fn memory(&mut self) -> &mut [u8];

    /// Grows the memory; false if the module's own maximum or the system does not allow it.
    fn grow(&mut self, pages: u64) -> bool;

    /// Value of `__heap_base`.
    fn heap_base(&self) -> Option<u32>;

    /// Calls the entry point of a direction with offset and number of descriptors, with the budget
    /// of a call.
    ///
    /// # Errors
    /// [`Fault::Trap`]; [`Fault::MissingExport`] if there is no gradient.
    fn compute(&mut self, direction: Direction, descriptors: u32, count: u32) -> Result<i32, Fault>;

    /// Calls `kernel_init` with what the start function left of its budget; `None` if the module
    /// has none.
    ///
    /// # Errors
    /// [`Fault::Trap`].
    fn init(&mut self) -> Result<Option<i32>, Fault>;

    /// Calls `kernel_info` with the budget of a call; `None` if the module has none.
    ///
    /// # Errors
    /// [`Fault::Trap`].
    fn info(&mut self) -> Result<Option<i32>, Fault>;

    /// Calls `kernel_cleanup`, if the module has it, with a budget of `ticks`.
    fn cleanup(&mut self, ticks: u32);
}

/// Memories and tables that an instance begins with.
#[derive(Debug, Clone, Copy)]
pub(super) struct Declared {
    pub(super) memories: u64,
    /// Pages of the largest memory.
    pub(super) pages: u64,
    pub(super) tables: u64,
    /// Elements of the largest table.
    pub(super) elements: u64,
}

/// Type of an export, as far as the interface of kernels tells them apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Export {
    /// Memory that is not shared and has 32-bit offsets.
    Memory,
    /// Function with these numbers of parameters and results, all of the type i32.
    Function(usize, usize),
    /// Constant global of the type i32.
    Constant,
    /// Anything else.
    Other,
}

/// Counters of a folder of compiled modules.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheCounts {
    /// Modules that were loaded from it.
    pub hits: u64,
    /// Modules that were compiled because it lacked them.
    pub misses: u64,
    /// Modules that were compiled because their file failed a check.
    pub rejected: u64,
}
