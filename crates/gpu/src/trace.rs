//! Launches with all their data.

/// A launch of a kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Traced {
    /// Name of the kernel.
    pub name: String,
    /// WGSL, with entry point `main`.
    pub source: String,
    /// Workgroups along both sides of the grid.
    pub groups: (u32, u32),
    /// Storage buffers of group 0, in the order of their bindings.
    pub buffers: Vec<TracedBuffer>,
}

/// A buffer of a launch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TracedBuffer {
    /// Content before the launch.
    pub before: Vec<u8>,
    /// Content behind the launch, if the kernel may write it.
    pub after: Option<Vec<u8>>,
}
