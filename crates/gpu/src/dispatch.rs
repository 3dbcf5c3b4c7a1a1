//! Prepared kernel launches.

use std::sync::{Arc, OnceLock};

use crate::compiler::Slot;
use crate::memory::Buffer;

/// Prepared launch: a kernel with its operands and grid, at times with another before it.
///
/// Prepared once, run any number of times with [`Gpu::run`](crate::Gpu::run).
///
/// Keeps its buffers alive. Must be run on the [`Gpu`](crate::Gpu) that prepared it.
#[derive(Debug)]
pub struct Dispatch {
    pub(crate) slot: Arc<Slot>,
    /// Made at the first run: their layout comes with the compiled kernel.
    pub(crate) bindings: OnceLock<wgpu::BindGroup>,
    pub(crate) groups: (u32, u32),
    pub(crate) buffers: Vec<Buffer>,
    /// Runs first; its results are operands.
    pub(crate) before: Option<Box<Dispatch>>,
}
