//! Compute resources of a forward pass: the kernels of one instruction set, a pool of threads, and
//! kernels of others that replace some of the native ones.

use std::fmt::Debug;
use std::ops::Range;
use std::sync::Arc;

use ruvllm_kernels::rope::{RopeLayout, RopeTable};
use ruvllm_kernels::{Kernels, ThreadPool};

/// Kernels and threads, given to every forward pass.
#[derive(Debug)]
pub struct Compute {
    /// The arithmetic of one instruction set.
    pub kernels: Kernels,
    /// The threads that share each operation; the calling thread is one of them.
    pub pool: ThreadPool,
    /// Replacements of native kernels in decoders; `None` = all are native.
    pub row_kernels: Option<Arc<dyn RowKernels>>,
}

/// Replacements of native kernels that work on rows.
///
/// A function that returns false has not changed its output, and the native kernel computes it: for
/// operations that are not replaced, after failures, and where a call costs more than it is worth.
/// Calls come from all threads of the pool.
pub trait RowKernels: Debug + Send + Sync {
    /// Version, counters and quarantines, for metrics; `None` for kernels that count nothing.
    fn report(&self) -> Option<RowKernelReport> {
        None
    }

    /// Digest of the code that is in use: keys and values that were computed with other code are
    /// not reused. It may change between forward passes.
    fn digest(&self) -> [u8; 32];

    /// [`Kernels::rms_norm`]: `x` and `out` are `[rows, weight.len()]`.
    fn rms_norm(&self, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) -> bool;

    /// [`Kernels::silu_mul`]: `gate` becomes `silu(gate) * up`.
    fn silu_mul(&self, gate: &mut [f32], up: &[f32]) -> bool;

    /// [`Kernels::rope`] of the heads of one position: `x` is `[heads, head_dim]`, `cos` and `sin`
    /// have a value per pair of dimensions.
    fn rope(&self, layout: RopeLayout, cos: &[f32], sin: &[f32], x: &mut [f32], head_dim: usize) -> bool;
}

/// State of [`RowKernels`]. Counters never fall while the kernels live.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RowKernelReport {
    /// Name under which versions are installed.
    pub name: String,
    /// Version in use; `None` while all operations are native.
    pub version: Option<String>,
    /// Versions that came into use.
    pub swaps: u64,
    /// Versions that were refused.
    pub refused: u64,
    /// Versions that went out of use for an earlier one or for native kernels, by cause.
    pub rollbacks: Vec<(&'static str, u64)>,
    /// Counters by kernel, over all versions.
    pub kernels: Vec<RowKernelCounts>,
}

/// Counters of one kernel.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RowKernelCounts {
    /// Id.
    pub id: String,
    /// Calls, also those that failed.
    pub calls: u64,
    /// Calls that failed for any reason.
    pub failed: u64,
    /// Operations that native code computed after a failure or in quarantine.
    pub fallbacks: u64,
    /// Failures for which the kernel is at fault, by kind.
    pub traps: Vec<(&'static str, u64)>,
    /// True if calls are refused after traps.
    pub is_quarantined: bool,
}

impl Compute {
    /// Detects the instruction set (honouring `RUVLLM_ISA`) and starts `threads - 1` threads.
    ///
    /// # Errors
    /// If the instruction set asked for is not available or the threads cannot be started.
    pub fn new(threads: usize) -> ruvllm_kernels::Result<Self> {
        Ok(Self::with(Kernels::detect()?, ThreadPool::new(threads)?))
    }

    /// Native kernels on these threads.
    pub fn with(kernels: Kernels, pool: ThreadPool) -> Self {
        Self { kernels, pool, row_kernels: None }
    }

    /// RMS norm of rows.
    pub(crate) fn rms_norm(&self, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
        if !self.replaced(|kernels| kernels.rms_norm(x, weight, eps, out)) {
            self.kernels.rms_norm(x, weight, eps, out);
        }
    }

    /// SwiGLU, in `gate`.
    pub(crate) fn silu_mul(&self, gate: &mut [f32], up: &[f32]) {
        if !self.replaced(|kernels| kernels.silu_mul(gate, up)) {
            self.kernels.silu_mul(gate, up);
        }
    }

    /// Rotary embedding of the heads of one position.
    pub(crate) fn rope(
        &self,
        table: &RopeTable,
        layout: RopeLayout,
        position: usize,
        x: &mut [f32],
        head_dim: usize,
    ) {
        let is_done = self.replaced(|kernels| {
            let (cos, sin) = table.at(position);
            kernels.rope(layout, cos, sin, x, head_dim)
        });
        if !is_done {
            let positions: Range<usize> = position..position + 1;
            self.kernels.rope(table, layout, positions, x, x.len() / head_dim.max(1), head_dim);
        }
    }

    fn replaced(&self, call: impl FnOnce(&dyn RowKernels) -> bool) -> bool {
        self.row_kernels.as_deref().is_some_and(call)
    }
}
