//! Reading the payloads of a chain of entries.

use std::{collections::VecDeque, io::Read, sync::atomic::Ordering::Relaxed};

use sha2::{Digest, Sha256};

use super::storage::OpenEntry;
use super::{Entry, Fault, PrefixError, PrefixStore};
use crate::Result;

/// Maximum bytes of entries that are read ahead.
const MOST_BYTES_AHEAD: u64 = 32 << 20;

/// Reader of the payloads of a chain, in order: see [`PrefixStore::reader`].
#[derive(Debug)]
pub struct ChainReader<'s> {
    store: &'s PrefixStore,
    /// Entries not opened yet.
    rest: &'s [Entry],
    opened: VecDeque<Opened<'s>>,
}

/// An entry, and the storage's answer.
type Opened<'s> = (&'s Entry, Result<Option<OpenEntry<'s>>, Fault>);

impl<'s> ChainReader<'s> {
    pub(super) fn new(store: &'s PrefixStore, chain: &'s [Entry]) -> Self {
        Self { store, rest: chain, opened: VecDeque::new() }
    }

    /// Reads the payload of the next entry into `buffers`, one after the other, and verifies it.
    ///
    /// # Errors
    /// [`PrefixError::Gone`], [`PrefixError::Unusable`], and [`PrefixError::BufferSize`] if the
    /// buffers together have another size than the payload. The content of the buffers is then
    /// undefined and must not be used.
    ///
    /// # Panics
    /// If all entries have been read.
    pub fn read(&mut self, buffers: &mut [&mut [u8]]) -> Result<()> {
        if self.opened.is_empty() {
            self.open_more();
        }
        let (entry, opened) = self.opened.pop_front().expect("an entry that has not been read yet");
        let (store, path) = (self.store, || self.store.storage.path_of(entry.name));
        let gone = || PrefixError::Gone { path: path() };
        let unusable = |fault| PrefixError::Unusable(store.discard(entry.name, fault));
        let OpenEntry { entry_bytes, mut content } = opened.map_err(unusable)?.ok_or_else(gone)?;
        let mut head =
            vec![0; store.format.header_bytes().min(usize::try_from(entry_bytes).unwrap_or(usize::MAX))];
        content.read_exact(&mut head).map_err(|error| unusable(Fault::Unreadable(error)))?;
        let header = store.format.verify_header(entry.name.id, &head, entry_bytes).map_err(unusable)?;
        let bytes = header.payload_bytes;
        let buffer_bytes = buffers.iter().map(|buffer| buffer.len() as u64).sum();
        if bytes != buffer_bytes {
            return Err(PrefixError::BufferSize { path: path(), bytes, buffer_bytes }.into());
        }
        let mut hash = Sha256::new();
        for buffer in buffers {
            content.read_exact(buffer).map_err(|error| unusable(Fault::Unreadable(error)))?;
            hash.update(&**buffer);
        }
        if hash.finalize()[..] != header.payload_sha256 {
            return Err(unusable(Fault::Checksum).into());
        }
        store.counters.loaded_blocks.fetch_add(1, Relaxed);
        store.counters.loaded_bytes.fetch_add(bytes, Relaxed);
        Ok(())
    }

    /// Opens the next entries, at least one.
    fn open_more(&mut self) {
        let header_bytes = self.store.format.header_bytes() as u64;
        let (most, mut bytes) = (self.store.storage.most_at_once(), 0_u64);
        let fits = |entry: &&Entry| {
            let is_first = bytes == 0;
            bytes = bytes.saturating_add(entry.payload_bytes.saturating_add(header_bytes));
            is_first || bytes <= MOST_BYTES_AHEAD
        };
        let n_entries = self.rest.iter().take(most).take_while(fits).count();
        let (next, rest) = self.rest.split_at(n_entries);
        self.rest = rest;
        let sizes: Vec<_> =
            next.iter().map(|entry| (entry.name, entry.payload_bytes.saturating_add(header_bytes))).collect();
        let opened = self.store.storage.open(&sizes);
        self.store.observe_reads(&opened);
        let missing = std::iter::repeat_with(|| Ok(None));
        self.opened.extend(next.iter().zip(opened.into_iter().chain(missing)));
    }
}
