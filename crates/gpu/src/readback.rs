//! Results on their way back to the host, while later launches run.

use std::sync::{Arc, OnceLock};

use crate::dispatch::Dispatch;
use crate::error::{Error, Result, expect_size};
use crate::gpu::Gpu;
use crate::memory::Buffer;

/// Host-visible memory for results of one size, reused from launch to launch.
#[derive(Debug)]
pub struct Readback {
    buffer: Buffer,
}

/// A result that was asked for with [`Gpu::run_reading`] and has not been fetched yet.
#[derive(Debug)]
pub struct Reading {
    buffer: Buffer,
    submission: wgpu::SubmissionIndex,
    mapped: Arc<OnceLock<std::result::Result<(), wgpu::BufferAsyncError>>>,
}

/// Results in host memory.
impl Gpu {
    /// Memory for results of `len` bytes; counts for the budget.
    ///
    /// # Errors
    /// As [`Gpu::zeroed`].
    pub fn readback(&self, len: u64) -> Result<Readback> {
        Ok(Readback { buffer: self.host_visible(len)? })
    }

    /// Runs dispatches in order, then copies `from` to `to`, in one submission; returns before they
    /// end. More can be run before the result is fetched with [`Gpu::finish`].
    ///
    /// # Errors
    /// [`Error::Shape`] when the sizes differ, [`Error::DeviceLost`], [`Error::Driver`].
    pub fn run_reading(&self, dispatches: &[&Dispatch], from: &Buffer, to: Readback) -> Result<Reading> {
        let buffer = to.buffer;
        expect_size("bytes to read back", buffer.len(), from.len())?;
        let submission = self.submit(dispatches, Some((from, &buffer)))?;
        let mapped = Arc::new(OnceLock::new());
        let result = Arc::clone(&mapped);
        buffer.raw().map_async(wgpu::MapMode::Read, .., move |r| {
            let _ = result.set(r);
        });
        Ok(Reading { buffer, submission, mapped })
    }

    /// The values of a result, as soon as its own launches have ended, and its memory for the next
    /// one.
    ///
    /// # Errors
    /// [`Error::Shape`] when the size is no multiple of a value's, [`Error::DeviceLost`],
    /// [`Error::Driver`].
    pub fn finish<T: bytemuck::Pod>(&self, reading: Reading) -> Result<(Vec<T>, Readback)> {
        let Reading { buffer, submission, mapped } = reading;
        if !buffer.len().is_multiple_of(size_of::<T>() as u64) {
            let expected = format!("a multiple of {} bytes", size_of::<T>());
            return Err(Error::Shape { what: "read back", expected, found: buffer.len() });
        }
        self.wait_for(Some(submission))?;
        match mapped.get() {
            Some(Ok(())) => (),
            Some(Err(e)) => return Err(Error::Driver(e.to_string())),
            None => return Err(Error::Driver("a buffer was not mapped".to_owned())),
        }
        let view = buffer.raw().get_mapped_range(..).map_err(|e| Error::Driver(e.to_string()))?;
        let values = bytemuck::pod_collect_to_vec(&view[..buffer.len() as usize]);
        drop(view);
        buffer.raw().unmap();
        Ok((values, Readback { buffer }))
    }
}
