//! Copies between buffers as launches.

use crate::dispatch::{Dispatch, Work};
use crate::error::{Result, expect_size};
use crate::gpu::Gpu;
use crate::memory::Buffer;

impl Gpu {
    /// Prepares a copy of a buffer to another of its size, such as from memory of the host to
    /// memory of the device.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) for another size.
    pub fn copy(&self, from: &Buffer, to: &Buffer) -> Result<Dispatch> {
        expect_size("bytes to copy", from.len(), to.len())?;
        Ok(Dispatch { work: Work::Copy { from: from.clone(), to: to.clone() }, before: None })
    }
}
