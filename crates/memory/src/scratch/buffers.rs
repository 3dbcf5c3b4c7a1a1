//! Buffers of five sizes.

use crate::{Error, PagePool, Request, Result, Slab, SlabBlock};

/// Bytes of the buffers that a [`BufferPool`] has.
pub const BUFFER_CLASSES: [usize; 5] = [1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10];

/// Buffers of 1, 4, 16, 64 and 256 KiB that come and go one by one. Clones are handles of the same pool.
///
/// A buffer that is dropped waits for the next request of its size, so that a step that was run before takes no memory
/// from the system.
///
/// ```
/// use ruvllm_memory::{BufferPool, Content, PagePool, PoolConfig, Request};
///
/// let pool = PagePool::new(PoolConfig::new(64 << 20))?;
/// let buffers = BufferPool::new(&pool, &Request::new(Content::Temporary))?;
/// let mut buffer = buffers.take(5000)?;
/// assert_eq!(buffer.bytes_mut().len(), 16 << 10);
/// # Ok::<(), ruvllm_memory::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct BufferPool {
    classes: [Slab; BUFFER_CLASSES.len()],
}

impl BufferPool {
    /// Takes no memory yet.
    ///
    /// # Errors
    /// [`Error::BlockBytes`] if the pool is smaller than the largest buffer.
    pub fn new(pool: &PagePool, request: &Request) -> Result<Self> {
        let [a, b, c, d, e] = BUFFER_CLASSES.map(|bytes| Slab::new(pool, bytes, request.clone()));
        Ok(Self { classes: [a?, b?, c?, d?, e?] })
    }

    /// A buffer of the smallest size that has `bytes`, with whatever was left in it.
    ///
    /// # Errors
    /// [`Error::BufferTooLarge`]; those of [`PagePool::allocate`] when a page is needed.
    pub fn take(&self, bytes: usize) -> Result<SlabBlock> {
        let class = self.classes.iter().find(|slab| slab.block_bytes() >= bytes);
        let largest_bytes = BUFFER_CLASSES[BUFFER_CLASSES.len() - 1];
        class.ok_or(Error::BufferTooLarge { wanted_bytes: bytes, largest_bytes })?.allocate()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PoolConfig;

    #[test]
    fn the_smallest_buffer_that_fits_is_given() {
        let pool = PagePool::new(PoolConfig::new(32 << 20)).unwrap();
        let buffers = BufferPool::new(&pool, &Request::default()).unwrap();
        for (wanted, given) in
            [(0, 1 << 10), (1 << 10, 1 << 10), (1025, 4 << 10), (16 << 10, 16 << 10), (200_000, 256 << 10)]
        {
            assert_eq!(buffers.take(wanted).unwrap().bytes().len(), given, "{wanted}");
        }
        let error = buffers.take((256 << 10) + 1).unwrap_err();
        assert!(matches!(error, Error::BufferTooLarge { wanted_bytes: 262_145, largest_bytes: 262_144 }));
    }
}
