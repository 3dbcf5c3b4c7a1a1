//! Prepared kernel launches.

use std::sync::Arc;

use crate::memory::Buffer;

/// Compiled kernel.
#[derive(Debug)]
pub(crate) struct Pipeline {
    pub(crate) raw: wgpu::ComputePipeline,
    pub(crate) layout: wgpu::BindGroupLayout,
}

/// Prepared launch: a kernel with its operands and grid.
///
/// Prepared once, run any number of times with [`Gpu::run`](crate::Gpu::run).
///
/// Keeps its buffers alive. Must be run on the [`Gpu`](crate::Gpu) that prepared it.
#[derive(Debug)]
pub struct Dispatch {
    pub(crate) pipeline: Arc<Pipeline>,
    pub(crate) bindings: wgpu::BindGroup,
    pub(crate) groups: (u32, u32),
    pub(crate) _buffers: Vec<Buffer>,
}
