//! Asynchronous readback of results while later launches run.

use std::sync::{Arc, OnceLock};

use crate::dispatch::Dispatch;
use crate::error::{Error, Result, expect_multiple};
use crate::gpu::Gpu;
use crate::memory::Buffer;

/// Host-visible memory for results of one size, reused from launch to launch.
#[derive(Debug)]
pub struct Readback {
    buffer: Buffer,
}

/// Pending result of [`Gpu::run_reading`].
#[derive(Debug)]
pub struct Reading {
    buffer: Buffer,
    submission: wgpu::SubmissionIndex,
    mapped: Arc<OnceLock<std::result::Result<(), wgpu::BufferAsyncError>>>,
}

/// Dispatches and the copy of their result, recorded to be run once.
///
/// Recording takes host time: of a whole pass some hundred microseconds, which a recording made in
/// advance spends beside the device.
#[derive(Debug)]
pub struct Recording {
    commands: wgpu::CommandBuffer,
    to: Buffer,
}

impl Recording {
    /// True if the result comes to this memory.
    pub fn is_for(&self, readback: &Readback) -> bool {
        self.to.is_same(&readback.buffer)
    }
}

/// Results in host memory.
impl Gpu {
    /// Allocates memory for results of `len` bytes, within the budget.
    ///
    /// # Errors
    /// See [`Gpu::zeroed`].
    pub fn readback(&self, len: u64) -> Result<Readback> {
        Ok(Readback { buffer: self.host_visible(len)? })
    }

    /// Runs dispatches in order, then copies the first bytes of `from`, as many as `to` has room
    /// for, in one submission, without waiting.
    ///
    /// More work can be submitted before the result is fetched with [`Gpu::finish`].
    ///
    /// # Errors
    /// [`Error::Shape`] if `to` is larger than `from`, [`Error::DeviceLost`], [`Error::Driver`].
    pub fn run_reading(&self, dispatches: &[&Dispatch], from: &Buffer, to: Readback) -> Result<Reading> {
        self.run_reading_at(dispatches, (from, 0), to)
    }

    /// As [`Gpu::run_reading`], with a copy of the bytes from a position on, a multiple of 4.
    ///
    /// # Errors
    /// As [`Gpu::run_reading`], and [`Error::Shape`] for another position.
    pub fn run_reading_at(
        &self,
        dispatches: &[&Dispatch],
        (from, first): (&Buffer, u64),
        to: Readback,
    ) -> Result<Reading> {
        let buffer = to.buffer;
        if first > 0 {
            expect_multiple("first byte to read back", 4, first)?;
        }
        if buffer.len().saturating_add(first) > from.len() {
            let expected = format!("at most {}", from.len().saturating_sub(first));
            return Err(Error::Shape { what: "bytes to read back", expected, found: buffer.len() });
        }
        let submission = self.submit(dispatches, Some((from, first, &buffer)))?;
        Ok(Self::reading(buffer, submission))
    }

    /// Records what [`Gpu::run_reading`] runs, to be run after `reading` with its memory.
    ///
    /// Operands are read when it runs. It keeps their memory, also beyond what the budget counts.
    ///
    /// # Errors
    /// [`Error::DeviceLost`], [`Error::Driver`].
    pub fn record_reading(
        &self,
        dispatches: &[&Dispatch],
        from: &Buffer,
        reading: &Reading,
    ) -> Result<Recording> {
        let to = reading.buffer.clone();
        Ok(Recording { commands: self.encode(dispatches, Some((from, 0, &to)))?, to })
    }

    /// Runs a recording: see [`Gpu::run_reading`].
    ///
    /// # Errors
    /// [`Error::Shape`] unless it was [recorded for](Recording::is_for) this memory,
    /// [`Error::DeviceLost`], [`Error::Driver`].
    pub fn run_recorded(&self, recording: Recording, to: Readback) -> Result<Reading> {
        if !recording.is_for(&to) {
            let expected = "memory of the recording".to_owned();
            return Err(Error::Shape { what: "bytes to read back", expected, found: to.buffer.len() });
        }
        let submission = self.submit_encoded(recording.commands)?;
        Ok(Self::reading(to.buffer, submission))
    }

    fn reading(buffer: Buffer, submission: wgpu::SubmissionIndex) -> Reading {
        let mapped = Arc::new(OnceLock::new());
        let result = Arc::clone(&mapped);
        buffer.raw().map_async(wgpu::MapMode::Read, .., move |r| {
            let _ = result.set(r);
        });
        Reading { buffer, submission, mapped }
    }

    /// Waits for a result's own launches; returns its values, and its memory for reuse.
    ///
    /// # Errors
    /// [`Error::Shape`] if the size is not a multiple of a value's, [`Error::DeviceLost`],
    /// [`Error::Driver`].
    pub fn finish<T: bytemuck::Pod>(&self, reading: Reading) -> Result<(Vec<T>, Readback)> {
        self.finish_with(reading, |values: &[T]| values.to_vec())
    }

    /// Waits for a result's own launches and lends its values to `read`; returns the value of
    /// `read`, and the memory for reuse.
    ///
    /// # Errors
    /// See [`Gpu::finish`].
    pub fn finish_with<T: bytemuck::Pod, R>(
        &self,
        reading: Reading,
        read: impl FnOnce(&[T]) -> R,
    ) -> Result<(R, Readback)> {
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
        let bytes = &view[..buffer.len() as usize];
        let result = match bytemuck::try_cast_slice(bytes) {
            Ok(values) => read(values),
            // Mapped memory that is aligned for less than a value.
            Err(_) => read(&bytemuck::pod_collect_to_vec::<u8, T>(bytes)),
        };
        drop(view);
        buffer.raw().unmap();
        Ok((result, Readback { buffer }))
    }
}
