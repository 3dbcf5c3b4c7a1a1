//! Cache of compiled constraints: least recently used first out, within a budget of bytes.

use std::collections::HashMap;
use std::sync::Arc;

/// SHA-256 of a constraint's source.
pub(super) type Key = [u8; 32];

/// Values by key within a budget of bytes.
pub(super) struct Cache<T> {
    entries: HashMap<Key, Entry<T>>,
    budget: usize,
    bytes: usize,
    /// Counts lookups; an entry's last one orders evictions.
    clock: u64,
}

struct Entry<T> {
    value: Arc<T>,
    bytes: usize,
    used: u64,
}

impl<T> Cache<T> {
    pub(super) fn new(budget: usize) -> Self {
        Self { entries: HashMap::new(), budget, bytes: 0, clock: 0 }
    }

    pub(super) fn get(&mut self, key: &Key) -> Option<Arc<T>> {
        self.clock += 1;
        let entry = self.entries.get_mut(key)?;
        entry.used = self.clock;
        Some(Arc::clone(&entry.value))
    }

    /// Adds a value of `bytes` and evicts others until the budget holds; a value larger than the
    /// budget is not kept.
    pub(super) fn insert(&mut self, key: Key, value: Arc<T>, bytes: usize) {
        if bytes > self.budget {
            return;
        }
        self.clock += 1;
        if let Some(old) = self.entries.insert(key, Entry { value, bytes, used: self.clock }) {
            self.bytes -= old.bytes;
        }
        self.bytes += bytes;
        while self.bytes > self.budget {
            let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.used).map(|(&key, _)| key);
            let Some(entry) = oldest.and_then(|key| self.entries.remove(&key)) else { break };
            self.bytes -= entry.bytes;
        }
    }

    /// Number of values.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn least_recently_used_entries_leave_first() {
        let mut cache = Cache::new(10);
        for (key, bytes) in [(1, 4), (2, 4)] {
            cache.insert([key; 32], Arc::new(key), bytes);
        }
        assert_eq!(cache.get(&[1; 32]).as_deref(), Some(&1));
        cache.insert([3; 32], Arc::new(3), 4);
        assert!(cache.get(&[2; 32]).is_none());
        assert!(cache.get(&[1; 32]).is_some() && cache.get(&[3; 32]).is_some());
        cache.insert([4; 32], Arc::new(4), 11);
        assert!(cache.get(&[4; 32]).is_none());
        cache.insert([3; 32], Arc::new(3), 6);
        assert_eq!((cache.len(), cache.bytes), (2, 10));
    }
}
