//! Settings of a sandbox.

use std::path::PathBuf;

/// Settings of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxOptions {
    /// Folder of compiled modules; `None` compiles each time. It is created with the mode 0700.
    pub cache: Option<PathBuf>,
    /// Bytes of the native stack that a call may use.
    pub stack_bytes: usize,
    /// Ready instances that each kernel keeps between calls.
    pub idle_instances: usize,
    /// Traps in a row after which a kernel is quarantined; 0 for never.
    pub quarantine_after: u32,
    /// Refusal of outputs (`f32`, `f16`, `bf16`) with an infinity or NaN.
    pub refuse_non_finite: bool,
    /// Origin of memory for instances.
    pub allocation: Allocation,
}

/// Origin of the memory of instances.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allocation {
    /// Mapped for each instance.
    OnDemand,
    /// Slots that are mapped once, for all kernels of the sandbox.
    Pooling {
        /// Instances at a time, ready ones included.
        instances: u32,
    },
}

/// No cache, 512 KiB of stack, 8 ready instances, quarantine after 3 traps, any value of outputs.
impl Default for SandboxOptions {
    fn default() -> Self {
        Self {
            cache: None,
            stack_bytes: 512 << 10,
            idle_instances: 8,
            quarantine_after: 3,
            refuse_non_finite: false,
            allocation: Allocation::OnDemand,
        }
    }
}
