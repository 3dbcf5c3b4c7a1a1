//! Numbers of the blocks of a memory: free ones, and handles of the others.

use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex, PoisonError};

/// Free blocks of a memory.
#[derive(Debug)]
pub(super) struct FreeBlocks {
    free: Mutex<Vec<u32>>,
    /// Blocks that sequences hold.
    pub(super) in_use: AtomicUsize,
}

/// A block that is not free; dropping the last handle frees it.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) index: u32,
    /// Sequences that hold it.
    pub(super) sequences: AtomicUsize,
    pub(super) state: Arc<FreeBlocks>,
}

impl FreeBlocks {
    /// A block of each index below `blocks` is free.
    pub(super) fn new(blocks: u32) -> Arc<Self> {
        Arc::new(Self { free: Mutex::new((0..blocks).rev().collect()), in_use: AtomicUsize::new(0) })
    }

    /// Takes `n` free blocks.
    ///
    /// # Errors
    /// Number of blocks that are missing.
    pub(super) fn take(self: &Arc<Self>, n: usize) -> Result<Vec<Arc<Block>>, usize> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(kept) = free.len().checked_sub(n) else { return Err(n - free.len()) };
        let block =
            |index| Arc::new(Block { index, sequences: AtomicUsize::new(0), state: Arc::clone(self) });
        Ok(free.split_off(kept).into_iter().map(block).collect())
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.state.free.lock().unwrap_or_else(PoisonError::into_inner).push(self.index);
    }
}
