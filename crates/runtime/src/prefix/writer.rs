//! Background writer of prefix files: no request waits for the disk.
//!
//! A queued block is copied into memory outside of the KV budget, so that its pages are free at
//! once. The queue is bounded; [`WhenFull`] decides what happens to further blocks. A killed
//! process loses the queue.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use parking_lot::{Condvar, Mutex};
use ruvllm_kv_cache::KvStore;
use ruvllm_kv_cache::prefix::PrefixStore;
use ruvllm_kv_cache::prefix::store::{Missing, Stored};

use super::report::Reports;

/// Divisor of the KV budget: size of the queue.
const QUEUE_SHARE: usize = 8;

/// Maximum bytes of the queue for large budgets.
const MOST_QUEUE_BYTES: usize = 256 << 20;

/// Policy for a block that finds the queue full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WhenFull {
    /// Waits for room; the request has returned its text by then.
    Wait,
    /// Drops the blocks queued first. Children are queued before their parents, and least recently
    /// used prefixes before others.
    DropFirst,
}

/// Counters of the write queue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct WriterStatistics {
    /// Blocks queued so far.
    pub(super) queued_blocks: u64,
    /// Blocks dropped: the queue was full, the parent block could not be written, or the storage is
    /// left alone.
    pub(super) dropped_blocks: u64,
    /// Blocks in the queue, the one being written included.
    pub(super) waiting_blocks: usize,
    /// Bytes of these blocks.
    pub(super) waiting_bytes: usize,
}

/// Writer thread. Dropping it first writes the queued blocks.
pub(super) struct Writer {
    queue: Arc<WriteQueue>,
    thread: Option<JoinHandle<()>>,
}

/// Bounded queue of blocks to write.
pub(super) struct WriteQueue {
    store: Arc<PrefixStore>,
    reports: Arc<Reports>,
    when_full: WhenFull,
    /// Maximum bytes in the queue, the block being written included.
    limit_bytes: usize,
    /// Maximum bytes of a block.
    block_bytes: usize,
    state: Mutex<State>,
    /// Signalled when a block is queued or written, and on close.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Job>,
    is_writing: bool,
    /// Bytes in the queue, the block being written included.
    bytes: usize,
    /// No further blocks are accepted.
    is_closed: bool,
    queued_blocks: u64,
    dropped_blocks: u64,
}

/// A block to write.
struct Job {
    place: Missing,
    payload: Vec<u8>,
}

impl Writer {
    /// Starts the thread.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub(super) fn start(queue: WriteQueue) -> io::Result<Self> {
        let queue = Arc::new(queue);
        let shared = Arc::clone(&queue);
        let thread = thread::Builder::new().name("prefix-writer".into()).spawn(move || shared.work())?;
        Ok(Self { queue, thread: Some(thread) })
    }

    pub(super) fn queue(&self) -> &WriteQueue {
        &self.queue
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.queue.close();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was already reported by the panic hook.
            let _ = thread.join();
        }
    }
}

impl WriteQueue {
    /// An empty queue with room for an eighth of the KV budget, at most 256 MiB and at least two
    /// blocks.
    pub(super) fn new(
        store: Arc<PrefixStore>,
        reports: Arc<Reports>,
        when_full: WhenFull,
        kv: &KvStore,
    ) -> Self {
        let budget = kv.pool().capacity_pages().saturating_mul(kv.pool().page_bytes());
        let block_bytes = |formats: ruvllm_kv_cache::KvFormats| {
            formats.block_bytes(kv.shape(), kv.block_tokens()).unwrap_or_default()
        };
        let block_bytes = kv.policy().tiers().map(block_bytes).max().unwrap_or_default();
        let limit_bytes = (budget / QUEUE_SHARE).min(MOST_QUEUE_BYTES).max(block_bytes.saturating_mul(2));
        let (state, changed) = (Mutex::default(), Condvar::new());
        Self { store, reports, when_full, limit_bytes, block_bytes, state, changed }
    }

    /// Queues a block for writing.
    pub(super) fn push(&self, place: Missing, payload: Vec<u8>) {
        let bytes = payload.len();
        let mut state = self.state.lock();
        state.queued_blocks += 1;
        while !state.is_closed && state.bytes > 0 && state.bytes.saturating_add(bytes) > self.limit_bytes {
            match self.when_full {
                WhenFull::Wait => self.changed.wait(&mut state),
                WhenFull::DropFirst => {
                    // Only the block being written is left; the limit is at least two blocks.
                    let Some(first) = state.waiting.pop_front() else { break };
                    state.bytes -= first.payload.len();
                    state.dropped_blocks += 1;
                }
            }
        }
        if state.is_closed {
            state.dropped_blocks += 1;
            return;
        }
        state.bytes += bytes;
        state.waiting.push_back(Job { place, payload });
        self.changed.notify_all();
    }

    /// Number of blocks of any tier that fit into the queue now.
    pub(super) fn room(&self) -> usize {
        let bytes = self.state.lock().bytes;
        self.limit_bytes.saturating_sub(bytes) / self.block_bytes.max(1)
    }

    /// Waits until the queue is empty.
    pub(super) fn flush(&self) {
        let mut state = self.state.lock();
        while state.is_writing || !state.waiting.is_empty() {
            self.changed.wait(&mut state);
        }
    }

    pub(super) fn statistics(&self) -> WriterStatistics {
        let state = self.state.lock();
        WriterStatistics {
            queued_blocks: state.queued_blocks,
            dropped_blocks: state.dropped_blocks,
            waiting_blocks: state.waiting.len() + usize::from(state.is_writing),
            waiting_bytes: state.bytes,
        }
    }

    /// Closes the queue: the thread ends once it has written the waiting blocks.
    fn close(&self) {
        self.state.lock().is_closed = true;
        self.changed.notify_all();
    }

    /// Thread body: writes blocks until the queue is closed and empty.
    fn work(&self) {
        let _guard = EndOfWork(self);
        let mut lost = None;
        while let Some(Job { place, payload }) = self.next() {
            let bytes = payload.len();
            // Without its parent block it could not be found.
            let has_parent = lost != Some(place.parent());
            let written = has_parent.then(|| self.store.write(&place, &[&payload]));
            if let Some(Err(error)) = &written {
                self.reports.add_error(error);
            }
            // A pause was reported with the failure that it follows.
            let is_lost = matches!(written, None | Some(Ok(Stored::Paused)));
            if is_lost || matches!(written, Some(Err(_))) {
                lost = Some(place.id());
            }
            drop(payload);
            let mut state = self.state.lock();
            state.bytes -= bytes;
            state.is_writing = false;
            state.dropped_blocks += u64::from(is_lost);
            self.changed.notify_all();
        }
    }

    /// Waits for the next block to write; `None` once the queue is closed and empty.
    fn next(&self) -> Option<Job> {
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.waiting.pop_front() {
                state.is_writing = true;
                return Some(job);
            }
            if state.is_closed {
                return None;
            }
            self.changed.wait(&mut state);
        }
    }
}

/// Guard of the thread: releases all waiters when the thread ends, also by a panic.
struct EndOfWork<'a>(&'a WriteQueue);

impl Drop for EndOfWork<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.dropped_blocks += state.waiting.len() as u64 + u64::from(state.is_writing);
        state.waiting.clear();
        (state.bytes, state.is_writing, state.is_closed) = (0, false, true);
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use ruvllm_kv_cache::KvShape;
    use ruvllm_kv_cache::prefix::{PrefixKey, Scope};
    use ruvllm_memory::{PagePool, PoolConfig};

    use super::*;

    const BLOCK: usize = 4;
    const PAYLOAD: usize = 1000;

    fn key() -> PrefixKey {
        let (kv_format, rope_scaling) = ("f16".into(), "none".into());
        PrefixKey { model: [1; 32], adapter: None, kv_format, rope_scaling, scope: Scope::Shared }
    }

    /// A queue with room for `blocks` blocks, without a writer thread.
    fn queue(folder: &Path, when_full: WhenFull, blocks: usize) -> WriteQueue {
        let store = Arc::new(PrefixStore::open(folder, BLOCK, 1 << 30).expect("a folder"));
        let (state, changed) = (Mutex::default(), Condvar::new());
        let reports = Arc::default();
        let (limit_bytes, block_bytes) = (blocks * PAYLOAD, PAYLOAD);
        WriteQueue { store, reports, when_full, limit_bytes, block_bytes, state, changed }
    }

    fn tokens(blocks: usize) -> Vec<u32> {
        (0..(blocks * BLOCK) as u32).collect()
    }

    fn missing(queue: &WriteQueue, blocks: usize) -> Vec<Missing> {
        queue.store.missing(&key(), &tokens(blocks), 0)
    }

    fn push(queue: &WriteQueue, place: Missing) {
        let payload = vec![place.index() as u8; PAYLOAD];
        queue.push(place, payload);
    }

    /// Indices of the blocks that are not stored.
    fn not_stored(queue: &WriteQueue, blocks: usize) -> Vec<usize> {
        missing(queue, blocks).iter().map(Missing::index).collect()
    }

    #[test]
    fn everything_is_written_before_the_writer_is_gone() {
        let folder = tempfile::tempdir().expect("a folder");
        let queue = queue(folder.path(), WhenFull::Wait, 3);
        let places = missing(&queue, 10);
        let writer = Writer::start(queue).expect("a thread");
        places.into_iter().for_each(|place| push(writer.queue(), place));
        writer.queue().flush();
        let statistics = WriterStatistics { queued_blocks: 10, ..Default::default() };
        assert_eq!(writer.queue().statistics(), statistics);
        let store = Arc::clone(&writer.queue.store);
        let more = store.missing(&key(), &tokens(13), 0);
        more.into_iter().for_each(|place| push(writer.queue(), place));
        drop(writer);
        let last = [tokens(13).as_slice(), &[0]].concat();
        let found = store.find(&key(), &last, 0);
        assert_eq!((found.chain.len(), found.warnings.len()), (13, 0));
        for (index, entry) in found.chain.iter().enumerate() {
            let mut payload = vec![0; PAYLOAD];
            store.load(entry, &mut [&mut payload]).expect("its payload");
            assert!(payload.iter().all(|&byte| byte == index as u8));
        }
    }

    #[test]
    fn a_full_queue_gives_up_the_ends_of_prefixes() {
        let folder = tempfile::tempdir().expect("a folder");
        let queue = queue(folder.path(), WhenFull::DropFirst, 3);
        for place in missing(&queue, 5).into_iter().rev() {
            push(&queue, place);
        }
        let expected = WriterStatistics {
            queued_blocks: 5,
            dropped_blocks: 2,
            waiting_blocks: 3,
            waiting_bytes: 3 * PAYLOAD,
        };
        assert_eq!((queue.statistics(), queue.room()), (expected, 0));
        queue.close();
        queue.work();
        assert_eq!(queue.room(), 3);
        assert_eq!(not_stored(&queue, 5), [3, 4]);
        let expected = WriterStatistics { waiting_blocks: 0, waiting_bytes: 0, ..expected };
        assert_eq!(queue.statistics(), expected);
    }

    #[test]
    fn whoever_may_not_lose_blocks_waits_for_room() {
        let folder = tempfile::tempdir().expect("a folder");
        let queue = queue(folder.path(), WhenFull::Wait, 2);
        thread::scope(|scope| {
            let pusher = scope.spawn(|| {
                missing(&queue, 5).into_iter().for_each(|place| push(&queue, place));
                queue.close();
            });
            while queue.statistics().queued_blocks < 3 {
                thread::yield_now();
            }
            assert_eq!((queue.statistics().waiting_blocks, pusher.is_finished()), (2, false));
            queue.work();
            // The thread sanitizer sees a join, but not the end of a scope.
            pusher.join().expect("it ends");
        });
        assert_eq!((queue.statistics().dropped_blocks, not_stored(&queue, 5).len()), (0, 0));
    }

    #[test]
    fn a_block_that_cannot_be_written_is_said_once_for_all_that_follow_it() {
        let parent = tempfile::tempdir().expect("a folder");
        let folder = parent.path().join("prefixes");
        let queue = queue(&folder, WhenFull::Wait, 100);
        missing(&queue, 5).into_iter().for_each(|place| push(&queue, place));
        std::fs::remove_dir(&folder).expect("an empty folder");
        queue.close();
        queue.work();
        let warnings = queue.reports.take();
        assert_eq!((warnings.len(), queue.statistics().dropped_blocks), (1, 4), "{warnings:?}");
        assert!(warnings[0].starts_with("cannot write "), "{warnings:?}");
        // Blocks pushed after the end are dropped, and `flush` does not wait for them.
        push(&queue, missing(&queue, 1).remove(0));
        assert_eq!((queue.statistics().dropped_blocks, queue.statistics().waiting_blocks), (5, 0));
        queue.flush();
    }

    #[test]
    fn the_room_follows_from_the_budget() {
        let folder = tempfile::tempdir().expect("a folder");
        let limit = |budget: usize, policy: &str| {
            let pool = PagePool::new(PoolConfig::new(budget)).expect("a pool");
            // 1 MiB per block of 32 tokens in F16.
            let shape = KvShape::new(8, 8, 128);
            let kv = KvStore::new(shape, &policy.parse().expect("a policy"), &pool).expect("a store");
            let store = Arc::new(PrefixStore::open(folder.path(), 32, 1 << 30).expect("a folder"));
            WriteQueue::new(store, Arc::default(), WhenFull::Wait, &kv).limit_bytes
        };
        assert_eq!(limit(64 << 20, "f16"), 8 << 20);
        assert_eq!(limit(8 << 20, "f16"), 2 << 20);
        assert_eq!(limit(8 << 20, "f32"), 4 << 20);
        assert_eq!(limit(8 << 30, "f16"), 256 << 20);
    }
}
