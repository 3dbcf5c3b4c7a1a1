//! Record of launches with all their data, to repeat them elsewhere: in a browser, on another
//! driver.

use std::sync::PoisonError;

use crate::dispatch::{Dispatch, Launch, Work};
use crate::error::Result;
use crate::gpu::Gpu;
use crate::memory::Buffer;
use crate::trace::{Traced, TracedBuffer};

impl Gpu {
    /// Begins to record what [`Gpu::run`] runs, launch by launch. Runs take much longer, and copies
    /// between buffers are not recorded.
    pub fn begin_trace(&self) {
        *self.trace.lock().unwrap_or_else(PoisonError::into_inner) = Some(Vec::new());
    }

    /// Ends the record and returns it.
    pub fn end_trace(&self) -> Vec<Traced> {
        self.trace.lock().unwrap_or_else(PoisonError::into_inner).take().unwrap_or_default()
    }

    pub(crate) fn is_traced(&self) -> bool {
        self.trace.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    pub(crate) fn run_traced(&self, dispatches: &[&Dispatch]) -> Result<()> {
        for work in dispatches.iter().flat_map(|dispatch| dispatch.works()) {
            let traced = self.run_work(work)?;
            let mut trace = self.trace.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(trace) = trace.as_mut() {
                trace.extend(traced);
            }
        }
        Ok(())
    }

    /// Runs one launch, with the content of its buffers before and behind it.
    fn run_work(&self, work: &Work) -> Result<Option<Traced>> {
        let Work::Kernel(Launch { slot, groups, buffers, .. }) = work else {
            self.submit_work(work)?;
            return Ok(None);
        };
        // Kernels see the bytes that a buffer is filled up with.
        let read = |buffer: &Buffer| {
            let mut bytes = self.download::<u8>(buffer)?;
            bytes.resize(Buffer::padded(buffer.len()) as usize, 0);
            Ok(bytes)
        };
        let before = buffers.iter().map(read).collect::<Result<Vec<_>>>()?;
        self.submit_work(work)?;
        let (name, source) = (slot.kernel().name(), slot.kernel().source(self.target()));
        let mut traced = Vec::new();
        for ((binding, buffer), before) in buffers.iter().enumerate().zip(before) {
            let is_written = source.contains(&format!("@binding({binding}) var<storage, read_write>"));
            let after = is_written.then(|| read(buffer)).transpose()?;
            traced.push(TracedBuffer { before, after });
        }
        Ok(Some(Traced { name, source, groups: *groups, buffers: traced }))
    }

    fn submit_work(&self, work: &Work) -> Result<()> {
        let mut encoder = self.encoder();
        self.record(&mut encoder, &[work], None)?;
        self.submit_encoded(encoder.finish()).map(|_| ())
    }
}
