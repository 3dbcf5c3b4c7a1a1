//! Compute resources of a forward pass: the kernels of one instruction set and a pool of threads.

use ruvllm_kernels::{Kernels, ThreadPool};

/// Kernels and threads, given to every forward pass.
#[derive(Debug)]
pub struct Compute {
    /// The arithmetic of one instruction set.
    pub kernels: Kernels,
    /// The threads that share each operation; the calling thread is one of them.
    pub pool: ThreadPool,
}

impl Compute {
    /// Detects the instruction set (honouring `RUVLLM_ISA`) and starts `threads - 1` threads.
    ///
    /// # Errors
    /// If the instruction set asked for is not available or the threads cannot be started.
    pub fn new(threads: usize) -> ruvllm_kernels::Result<Self> {
        Ok(Self { kernels: Kernels::detect()?, pool: ThreadPool::new(threads)? })
    }
}
