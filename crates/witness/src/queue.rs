//! Bounded queue from the callers to the thread that writes.

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::line::Dropped;
use crate::time::Timestamp;

/// Limits of a queue and of the batches taken from it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) entries: usize,
    pub(crate) bytes: usize,
    pub(crate) batch_entries: usize,
    pub(crate) batch_bytes: usize,
    pub(crate) batch_time: Duration,
}

/// Element of the queue.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Item {
    /// Body of a line.
    Body(Vec<u8>),
    /// Entries that were dropped at this place.
    Dropped(Dropped),
}

/// Behaviour of a push into a full queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OnFull {
    Wait,
    Refuse,
    /// Counts the entry, as dropped at this time.
    Drop(Timestamp),
}

/// Reason for which an entry was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    Full,
    Closed,
}

/// Counters of a [`Writer`](crate::Writer).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// Entries in the queue.
    pub queued: usize,
    /// Entries taken since the writer was opened.
    pub accepted: u64,
    /// Entries in the log since the writer was opened.
    pub written: u64,
    /// Entries dropped because the queue was full.
    pub dropped: u64,
    /// Attempts to write that failed.
    pub write_errors: u64,
    /// The latest of their errors; `None` after an attempt that succeeded.
    pub last_error: Option<String>,
    /// Sequence number of the last line in the log.
    pub last_seq: u64,
}

#[derive(Default)]
struct State {
    items: VecDeque<Item>,
    bytes: usize,
    /// Dropped entries for which no item is in the queue yet.
    drops: Option<Dropped>,
    /// Arrival of the oldest item.
    oldest: Option<Instant>,
    /// True if somebody waits for all items to be written.
    is_urgent: bool,
    is_closed: bool,
    /// True if somebody found the queue full since the last batch.
    was_full: bool,
    /// Entries that are in the queue or were in it, and entries whose fate is known.
    entered: u64,
    settled: u64,
    /// Kind of the latest error, whose text is in the status.
    error: Option<io::ErrorKind>,
    status: Status,
}

pub(crate) struct Queue {
    limits: Limits,
    state: Mutex<State>,
    /// There may be something to do for the thread.
    work: Condvar,
    /// There may be room, or a batch was written, or an attempt failed.
    progress: Condvar,
}

/// Items of a batch, and the reason to look at them.
pub(crate) struct Batch {
    pub(crate) items: Vec<Item>,
    pub(crate) is_closed: bool,
    /// True if somebody found the queue full, and there is room now.
    pub(crate) has_made_room: bool,
}

impl Queue {
    pub(crate) fn new(limits: Limits) -> Self {
        Self { limits, state: Mutex::default(), work: Condvar::new(), progress: Condvar::new() }
    }

    /// Appends a body.
    pub(crate) fn push(&self, body: Vec<u8>, on_full: OnFull) -> Result<(), Refused> {
        let mut state = self.state.lock();
        while !state.is_closed && !self.has_room_for(&state, body.len()) {
            match on_full {
                OnFull::Drop(now) => {
                    state.drop_one(now);
                    return Err(Refused::Full);
                }
                OnFull::Refuse => {
                    self.found_full(&mut state);
                    return Err(Refused::Full);
                }
                OnFull::Wait => {
                    self.found_full(&mut state);
                    self.progress.wait(&mut state);
                }
            }
        }
        if state.is_closed {
            return Err(Refused::Closed);
        }
        state.enter_drops();
        state.bytes += body.len();
        state.enter(Item::Body(body));
        state.status.accepted += 1;
        if state.items.len() == 1 || self.is_batch(&state) {
            self.work.notify_one();
        }
        Ok(())
    }

    /// True if the queue would take a body of this size.
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        let mut state = self.state.lock();
        let has_room = state.is_closed || self.has_room_for(&state, bytes);
        if !has_room {
            self.found_full(&mut state);
        }
        has_room
    }

    /// Asks for a batch now, and for a call when there is room.
    fn found_full(&self, state: &mut State) {
        state.was_full = true;
        self.work.notify_one();
    }

    // One body fits an empty queue, whatever its size.
    fn has_room_for(&self, state: &State, bytes: usize) -> bool {
        state.items.is_empty()
            || (state.items.len() < self.limits.entries && state.bytes + bytes <= self.limits.bytes)
    }

    fn is_batch(&self, state: &State) -> bool {
        let Limits { entries, bytes, batch_entries, batch_bytes, .. } = self.limits;
        let is_full =
            state.items.len() >= batch_entries.min(entries) || state.bytes >= batch_bytes.min(bytes);
        is_full || state.was_full || state.is_urgent || state.is_closed
    }

    /// Waits for a batch: of its size, or of items that have waited long enough. Returns without
    /// items at `until`, and at the end.
    pub(crate) fn take(&self, until: Option<Instant>) -> Batch {
        let mut state = self.state.lock();
        loop {
            let due = state.oldest.map(|oldest| oldest + self.limits.batch_time);
            let is_due = due.is_some_and(|due| due <= Instant::now());
            if (!state.items.is_empty() && (is_due || self.is_batch(&state))) || state.is_closed {
                break;
            }
            if state.items.is_empty() && state.drops.is_some() {
                break;
            }
            match [due, until].into_iter().flatten().min() {
                Some(deadline) => {
                    let timed_out = self.work.wait_until(&mut state, deadline).timed_out();
                    if timed_out && until.is_some_and(|until| until <= Instant::now()) {
                        break;
                    }
                }
                None => self.work.wait(&mut state),
            }
        }
        self.take_from(&mut state)
    }

    fn take_from(&self, state: &mut State) -> Batch {
        if state.items.is_empty() {
            state.enter_drops();
        }
        let (mut items, mut bytes) = (Vec::new(), 0);
        while items.len() < self.limits.batch_entries && bytes < self.limits.batch_bytes {
            let Some(item) = state.items.pop_front() else { break };
            if let Item::Body(body) = &item {
                bytes += body.len();
            }
            items.push(item);
        }
        state.bytes -= bytes;
        if state.items.is_empty() {
            state.oldest = None;
        }
        let has_made_room = !items.is_empty() && std::mem::take(&mut state.was_full);
        self.progress.notify_all();
        Batch { items, is_closed: state.is_closed, has_made_room }
    }

    /// Notes that a batch is in the log. True if the attempt before it failed.
    pub(crate) fn written(&self, items: u64, entries: u64, last_seq: u64) -> bool {
        let mut state = self.state.lock();
        state.settled += items;
        state.status.written += entries;
        let had_failed = state.succeeded(last_seq);
        state.is_urgent &= state.settled < state.entered;
        self.progress.notify_all();
        had_failed
    }

    /// Notes that an attempt to write succeeded. True if the one before it failed.
    pub(crate) fn succeeded(&self, last_seq: u64) -> bool {
        self.state.lock().succeeded(last_seq)
    }

    /// Notes that an attempt to write failed, and ends the waiting of [`flush`](Self::flush). True
    /// if the one before it succeeded.
    pub(crate) fn failed(&self, error: &io::Error) -> bool {
        let mut state = self.state.lock();
        let is_first = state.error.is_none();
        state.status.write_errors += 1;
        state.status.last_error = Some(error.to_string());
        (state.error, state.is_urgent) = (Some(error.kind()), false);
        self.progress.notify_all();
        is_first
    }

    /// Waits before another attempt. True if the queue is closed.
    pub(crate) fn wait_to_retry(&self) -> bool {
        let mut state = self.state.lock();
        let deadline = Instant::now() + self.limits.batch_time;
        while !state.is_closed && !state.is_urgent {
            if self.work.wait_until(&mut state, deadline).timed_out() {
                break;
            }
        }
        state.is_closed
    }

    /// Waits until all items are in the log, or an attempt fails.
    ///
    /// # Errors
    /// The number of items that are not in the log, and the error of the attempt.
    pub(crate) fn flush(&self) -> Result<(), (u64, io::Error)> {
        let mut state = self.state.lock();
        state.enter_drops();
        let (target, errors) = (state.entered, state.status.write_errors);
        while state.settled < target {
            if state.status.write_errors > errors {
                return Err((target - state.settled, state.error()));
            }
            if !state.is_urgent {
                state.is_urgent = true;
                self.work.notify_all();
            }
            self.progress.wait(&mut state);
        }
        Ok(())
    }

    /// Refuses further entries; those in the queue are still written.
    pub(crate) fn close(&self) {
        self.state.lock().is_closed = true;
        self.work.notify_all();
        self.progress.notify_all();
    }

    /// Items that are not in the log, and the latest error if the last attempt failed.
    pub(crate) fn unwritten(&self) -> Result<(), (u64, io::Error)> {
        let state = self.state.lock();
        let items = state.entered - state.settled;
        if items == 0 && state.error.is_none() { Ok(()) } else { Err((items, state.error())) }
    }

    pub(crate) fn status(&self) -> Status {
        let state = self.state.lock();
        Status { queued: state.items.len(), ..state.status.clone() }
    }
}

impl State {
    fn enter(&mut self, item: Item) {
        self.items.push_back(item);
        self.entered += 1;
        self.oldest.get_or_insert_with(Instant::now);
    }

    /// Gives dropped entries their place in the queue.
    fn enter_drops(&mut self) {
        if let Some(drops) = self.drops.take() {
            self.enter(Item::Dropped(drops));
        }
    }

    fn drop_one(&mut self, now: Timestamp) {
        self.status.dropped += 1;
        let drops = self.drops.get_or_insert(Dropped { count: 0, first: now, last: now });
        (drops.count, drops.last) = (drops.count + 1, now);
    }

    fn error(&self) -> io::Error {
        let text = self.status.last_error.clone().unwrap_or_default();
        io::Error::new(self.error.unwrap_or(io::ErrorKind::Other), text)
    }

    fn succeeded(&mut self, last_seq: u64) -> bool {
        self.status.last_seq = last_seq;
        self.status.last_error = None;
        self.error.take().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_stand_between_the_entries_before_and_behind_them() {
        let limits = Limits {
            entries: 2,
            bytes: 1000,
            batch_entries: 1,
            batch_bytes: 1000,
            batch_time: Duration::from_secs(3600),
        };
        let (queue, now) = (Queue::new(limits), "2026-11-24".parse().unwrap());
        let push = |n: u8| queue.push(vec![n], OnFull::Drop(now));
        let take = || queue.take(None).items;
        assert_eq!(
            [push(1), push(2), push(3), push(4)],
            [Ok(()), Ok(()), Err(Refused::Full), Err(Refused::Full)]
        );
        assert_eq!(take(), [Item::Body(vec![1])]);
        assert_eq!(push(5), Ok(()));
        assert_eq!(take(), [Item::Body(vec![2])]);
        assert_eq!(take(), [Item::Dropped(Dropped { count: 2, first: now, last: now })]);
        assert_eq!(take(), [Item::Body(vec![5])]);
    }

    #[test]
    fn queues_are_bounded_in_bytes_too() {
        let limits = Limits {
            entries: 100,
            bytes: 10,
            batch_entries: 100,
            batch_bytes: 1000,
            batch_time: Duration::from_secs(3600),
        };
        let queue = Queue::new(limits);
        let push = |n| queue.push(vec![0; n], OnFull::Refuse);
        assert_eq!([push(6), push(4), push(1)], [Ok(()), Ok(()), Err(Refused::Full)]);
        let batch = queue.take(None);
        assert!(batch.items.len() == 2 && batch.has_made_room);
        // One larger than the queue passes alone.
        assert_eq!([push(11), push(1)], [Ok(()), Err(Refused::Full)]);
    }
}
