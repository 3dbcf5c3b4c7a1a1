//! Prepared launches: kernels, and copies between buffers.

use std::sync::{Arc, OnceLock};

use crate::compiler::Slot;
use crate::memory::Buffer;

/// Prepared launch: a kernel with its operands and grid, at times with others before it; or a
/// copy of a buffer.
///
/// Prepared once, run any number of times with [`Gpu::run`](crate::Gpu::run).
///
/// Keeps its buffers alive. Must be run on the [`Gpu`](crate::Gpu) that prepared it.
#[derive(Debug)]
pub struct Dispatch {
    pub(crate) work: Work,
    /// Runs first, in order; its results are operands.
    pub(crate) before: Vec<Work>,
}

/// Work of a launch.
#[derive(Debug)]
pub(crate) enum Work {
    Kernel(Launch),
    Copy { from: Buffer, to: Buffer },
}

/// A kernel with its operands and grid.
#[derive(Debug)]
pub(crate) struct Launch {
    pub(crate) slot: Arc<Slot>,
    /// Made at the first run: their layout comes with the compiled kernel.
    pub(crate) bindings: OnceLock<wgpu::BindGroup>,
    pub(crate) groups: (u32, u32),
    pub(crate) buffers: Vec<Buffer>,
}

impl Dispatch {
    /// The work in order.
    pub(crate) fn works(&self) -> impl Iterator<Item = &Work> {
        self.before.iter().chain([&self.work])
    }
}

impl Work {
    pub(crate) fn launch(&self) -> Option<&Launch> {
        match self {
            Self::Kernel(launch) => Some(launch),
            Self::Copy { .. } => None,
        }
    }
}
