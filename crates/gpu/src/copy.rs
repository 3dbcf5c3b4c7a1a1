//! Copies between buffers: as launches, and of KV blocks at once.

use crate::dispatch::{Dispatch, Work};
use crate::error::{Error, Result, expect_size};
use crate::gpu::Gpu;
use crate::kv::KvBlocks;
use crate::memory::Buffer;

impl Gpu {
    /// Prepares a copy of a buffer to another of its size, such as from memory of the host to
    /// memory of the device.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) for another size.
    pub fn copy(&self, from: &Buffer, to: &Buffer) -> Result<Dispatch> {
        expect_size("bytes to copy", from.len(), to.len())?;
        Ok(Dispatch { work: Work::Copy { from: from.clone(), to: to.clone() }, before: Vec::new() })
    }

    /// Copies keys and values of blocks in each layer, pairs of a source and a target, such as
    /// between memory of the device and of the host; ordered after earlier launches and before
    /// later ones.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) for blocks of another size and for numbers of blocks
    /// that are not there; [`Error::DeviceLost`](crate::Error::DeviceLost).
    pub fn copy_blocks(&self, layers: &[(&KvBlocks, &KvBlocks)], pairs: &[(u32, u32)]) -> Result<()> {
        let follows = |a: &(u32, u32), b: &(u32, u32)| (a.0 + 1, a.1 + 1) == *b;
        let mut encoder = self.encoder();
        for (from, to) in layers {
            let block = from.block_bytes();
            expect_size("bytes of a block to copy to", block, to.block_bytes())?;
            let values = from.values().zip(to.values());
            let planes: Vec<_> = [(from.keys(), to.keys())].into_iter().chain(values).collect();
            for run in pairs.chunk_by(follows) {
                let (first, n) = (run[0], run.len() as u64);
                for &(from, to) in &planes {
                    let (at, target) = (u64::from(first.0) * block, u64::from(first.1) * block);
                    let ends = [(from, at), (to, target)].map(|(buffer, at)| at + n * block <= buffer.len());
                    if ends != [true; 2] {
                        let expected = format!("numbers below {}", from.len().min(to.len()) / block);
                        let found = u64::from(first.0.max(first.1)) + n - 1;
                        return Err(Error::Shape { what: "blocks to copy", expected, found });
                    }
                    encoder.copy_buffer_to_buffer(from.raw(), at, to.raw(), target, n * block);
                }
            }
        }
        self.submit_encoded(encoder.finish()).map(|_| ())
    }
}
