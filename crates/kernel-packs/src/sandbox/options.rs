//! Settings of a sandbox.

use std::path::PathBuf;

use crate::host::EngineKind;
use crate::limits::{MAX_EPOCH_TICKS, MAX_MEMORY_PAGES};
use crate::manifest::ResourceLimits;

/// Settings of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxOptions {
    /// Engine that runs the kernels; the features of the crate say which ones a program has.
    pub engine: EngineKind,
    /// Folder of compiled modules; `None` compiles each time. It is created with the mode 0700.
    /// An interpreter has none.
    pub cache: Option<PathBuf>,
    /// Bytes of stack that a call may use: of the native one with a compiler, of the interpreter's
    /// own otherwise.
    pub stack_bytes: usize,
    /// Most pages of memory (64 KiB) of an instance, whatever its manifest allows.
    pub memory_pages: u32,
    /// Most ticks (10 ms) of a call, whatever its manifest allows.
    pub epoch_ticks: u32,
    /// Ready instances that each kernel keeps between calls.
    pub idle_instances: usize,
    /// Traps in a row after which a kernel is quarantined; 0 for never.
    pub quarantine_after: u32,
    /// Refusal of outputs (`f32`, `f16`, `bf16`) with an infinity or NaN.
    pub refuse_non_finite: bool,
    /// Origin of memory for instances; an interpreter takes it from the heap.
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

/// Engine that a program with both runs kernels on.
const DEFAULT_ENGINE: EngineKind =
    if cfg!(feature = "wasmtime") { EngineKind::Wasmtime } else { EngineKind::Wasmi };

impl SandboxOptions {
    /// Settings of a small device: an interpreter, 32 KiB of stack, 128 KiB of memory per instance,
    /// 100 ms per call, one ready instance per kernel.
    pub fn embedded() -> Self {
        Self {
            engine: EngineKind::Wasmi,
            stack_bytes: 32 << 10,
            memory_pages: 2,
            epoch_ticks: 10,
            idle_instances: 1,
            ..Self::default()
        }
    }

    /// Limits of a manifest, lowered to those of the sandbox.
    pub(super) fn limits(&self, mut limits: ResourceLimits) -> ResourceLimits {
        limits.memory_pages = limits.memory_pages.min(self.memory_pages);
        limits.epoch_ticks = limits.epoch_ticks.min(self.epoch_ticks);
        limits
    }
}

/// Wasmtime where the program has it, no cache, 512 KiB of stack, limits of manifests, 8 ready
/// instances, quarantine after 3 traps, any value of outputs.
impl Default for SandboxOptions {
    fn default() -> Self {
        Self {
            engine: DEFAULT_ENGINE,
            cache: None,
            stack_bytes: 512 << 10,
            memory_pages: MAX_MEMORY_PAGES,
            epoch_ticks: MAX_EPOCH_TICKS,
            idle_instances: 8,
            quarantine_after: 3,
            refuse_non_finite: false,
            allocation: Allocation::OnDemand,
        }
    }
}
