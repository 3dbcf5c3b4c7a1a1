//! Sequences that wait: their own blocks go to a file, so that the memory serves those that run.

use std::fs::{File, OpenOptions};
use std::io::{BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::Sequence;
use crate::block::Block;
use crate::error::{Error, Result};
use crate::storage::Storage;

/// A sequence whose own blocks are in a file. Shared ones stay in memory: it is not the sequence's to give.
///
/// Dropping it deletes the file.
#[derive(Debug)]
pub struct ParkedSequence {
    /// What stayed: everything before the blocks in the file.
    rest: Sequence,
    len: usize,
    /// Tiers of the blocks in the file, in order; the last may be partial.
    tiers: Vec<usize>,
    bytes: usize,
    file: SpillFile,
}

/// A file that exists as long as this.
#[derive(Debug)]
struct SpillFile(PathBuf);

impl Drop for SpillFile {
    fn drop(&mut self) {
        // Nobody is left who could do anything about a file that cannot be deleted.
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Sequence {
    /// Writes the blocks that nobody shares to a new file at `path` and gives their memory back. Their order is kept: a
    /// block that lies before a shared one stays in memory.
    ///
    /// # Errors
    /// [`Error::Spill`] if the file exists or cannot be written, with the sequence as it was.
    #[allow(clippy::result_large_err)] // an error gives the sequence back, which is what makes it large
    pub fn park(mut self, path: &Path) -> Result<ParkedSequence, (Self, Error)> {
        self.unpin();
        match self.write_own(path) {
            Ok((tiers, bytes, file)) => {
                let len = self.len;
                self.tail.clear();
                self.blocks.truncate(self.blocks.len() - own_blocks(&self.blocks));
                self.len = len.min(self.sealed() * self.store.block_tokens());
                Ok(ParkedSequence { rest: self, len, tiers, bytes, file })
            }
            Err(source) => {
                let error = Error::Spill { path: path.to_owned(), source };
                Err((self, error))
            }
        }
    }

    /// Writes the blocks that only this sequence has, and the partial storage of the tail.
    fn write_own(&self, path: &Path) -> std::io::Result<(Vec<usize>, usize, SpillFile)> {
        let new = OpenOptions::new().write(true).create_new(true).open(path)?;
        let file = SpillFile(path.to_owned());
        let mut writer = BufWriter::new(new);
        let (mut tiers, mut bytes) = (Vec::new(), 0);
        let mut write = |storage: &Storage| {
            for layer in 0..self.store.shape().n_layers {
                writer.write_all(storage.layer(layer))?;
                bytes += storage.layer(layer).len();
            }
            tiers.push(storage.tier());
            Ok::<(), std::io::Error>(())
        };
        for block in &self.blocks[self.blocks.len() - own_blocks(&self.blocks)..] {
            write(&block.storage())?;
        }
        let partial = self.len.div_ceil(self.store.block_tokens()).saturating_sub(self.sealed());
        for storage in &self.tail[..partial] {
            write(storage)?;
        }
        writer.flush()?;
        Ok((tiers, bytes, file))
    }
}

/// How many blocks at the end nobody shares.
fn own_blocks(blocks: &[Block]) -> usize {
    blocks.iter().rev().take_while(|block| block.is_own()).count()
}

impl ParkedSequence {
    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it holds no tokens.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes in the file.
    pub fn file_bytes(&self) -> usize {
        self.bytes
    }

    /// Reads the blocks back, in the formats that they had.
    ///
    /// # Errors
    /// [`Error::Memory`] and [`Error::BudgetReached`] without room, [`Error::Spill`] if the file cannot be read; with the
    /// parked sequence, which may be tried again.
    #[allow(clippy::result_large_err)] // as `park`
    pub fn resume(self) -> Result<Sequence, (Self, Error)> {
        match self.read_own() {
            Ok(blocks) => {
                let Self { mut rest, len, .. } = self;
                rest.blocks.extend(blocks);
                rest.len = len;
                Ok(rest)
            }
            Err(error) => Err((self, error)),
        }
    }

    fn read_own(&self) -> Result<Vec<Block>> {
        let spill = |source| Error::Spill { path: self.file.0.clone(), source };
        let mut reader = BufReader::new(File::open(&self.file.0).map_err(spill)?);
        let store = &self.rest.store;
        let read = |&tier: &usize| {
            let mut storage = store.allocate(tier)?;
            for bytes in storage.layers_mut() {
                reader.read_exact(bytes).map_err(spill)?;
            }
            Ok(Block::new(store.clone(), Arc::new(storage)))
        };
        self.tiers.iter().map(read).collect()
    }
}
