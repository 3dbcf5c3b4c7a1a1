//! Estimated size of the folder between two listings.

/// Bytes of the entries and of the writes that are in progress.
#[derive(Debug)]
pub(super) struct FolderSize {
    /// Bytes of all entries at the last listing, and of those written by this store since. Entries
    /// removed since still count.
    entry_bytes: u64,
    /// Bytes of writes in progress, which a listing does not show yet.
    reserved_bytes: u64,
    /// Bytes reserved since the last listing. Other processes may have written as much.
    unlisted_bytes: u64,
}

impl FolderSize {
    /// The size after a listing, with nothing being written.
    pub(super) fn listed(entry_bytes: u64) -> Self {
        Self { entry_bytes, reserved_bytes: 0, unlisted_bytes: 0 }
    }

    /// Takes over the result of a listing. Writes in progress stay reserved: one that is renamed
    /// just before counts twice until the next listing.
    pub(super) fn relist(&mut self, entry_bytes: u64) {
        (self.entry_bytes, self.unlisted_bytes) = (entry_bytes, 0);
    }

    /// Counts a write that begins.
    pub(super) fn reserve(&mut self, bytes: u64) {
        self.reserved_bytes = self.reserved_bytes.saturating_add(bytes);
        self.unlisted_bytes = self.unlisted_bytes.saturating_add(bytes);
    }

    /// Counts the end of a write of so many reserved bytes.
    pub(super) fn settle(&mut self, bytes: u64, is_written: bool) {
        self.reserved_bytes = self.reserved_bytes.saturating_sub(bytes);
        if is_written {
            self.entry_bytes = self.entry_bytes.saturating_add(bytes);
        }
    }

    /// Entries and writes in progress.
    pub(super) fn bytes(&self) -> u64 {
        self.entry_bytes.saturating_add(self.reserved_bytes)
    }

    pub(super) fn reserved_bytes(&self) -> u64 {
        self.reserved_bytes
    }

    pub(super) fn unlisted_bytes(&self) -> u64 {
        self.unlisted_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_keeps_the_writes_in_progress() {
        let mut size = FolderSize::listed(100);
        size.reserve(30);
        size.reserve(20);
        // Another writer lists the folder, where neither is seen.
        size.relist(0);
        assert_eq!((size.bytes(), size.reserved_bytes(), size.unlisted_bytes()), (50, 50, 0));
        size.settle(30, false);
        assert_eq!(size.bytes(), 20);
        size.settle(20, true);
        assert_eq!((size.bytes(), size.reserved_bytes()), (20, 0));
    }
}
