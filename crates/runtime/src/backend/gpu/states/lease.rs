//! States of a sequence in slots of the pool.

use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use ruvllm_gpu::{Error, Result};

use crate::backend::gpu::free_blocks::Block;

/// Sequences that have begun, and spare slots that none has reserved.
#[derive(Debug)]
pub(super) struct Counts {
    pub(super) sequences: usize,
    pub(super) spare: usize,
    /// Spare slots, reserved ones too.
    pub(super) all_spare: usize,
}

/// Takes a free slot; `None` without one.
pub(in crate::backend::gpu) type TakeSlot<'t> = dyn Fn() -> Option<Arc<Block>> + 't;

/// States of a sequence, each in a slot that nobody writes as long as it is held.
///
/// These are the state before the next token, those behind the tokens of the last pass, which may
/// be dropped or computed again, and in draft models some before them.
#[derive(Debug)]
pub(in crate::backend::gpu) struct StateLease {
    counts: Arc<Mutex<Counts>>,
    /// Slots that it may hold in any case, at least two; each further one is a reserved spare one.
    own: usize,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    /// States by the number of tokens before them, ascending.
    states: Vec<(usize, Arc<Block>)>,
    /// Spare slots that it may hold.
    reserved: usize,
    /// Block borders of the prompt whose states are to be stored.
    planned: Vec<usize>,
    /// States at planned borders within the last pass.
    at_borders: Vec<(usize, Arc<Block>)>,
    /// Stored states of its tokens, as long as others keep them.
    stored: Vec<(usize, Weak<Block>)>,
}

/// Slots of a pass.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Step {
    /// Slot of the state before it; `None`: zeros.
    pub(super) from: Option<u32>,
    /// Slots of the states to keep, by the number of tokens before them.
    pub(super) kept: Vec<(usize, u32)>,
}

impl StateLease {
    pub(super) fn new(counts: Arc<Mutex<Counts>>, own: usize) -> Self {
        Self { counts, own, held: Mutex::default() }
    }

    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins the empty sequence with the stored state behind `tokens` tokens.
    pub(in crate::backend::gpu) fn begin(&self, tokens: usize, state: Arc<Block>) {
        let mut held = self.held();
        held.stored.push((tokens, Arc::downgrade(&state)));
        held.states.push((tokens, state));
    }

    /// Plans the borders of the prompt at which states are kept.
    pub(in crate::backend::gpu) fn plan(&self, borders: Vec<usize>) {
        self.held().planned = borders;
    }

    /// Slots of a pass of decode from position `start` on: the state behind each of `rows` tokens
    /// is kept.
    ///
    /// # Errors
    /// [`Error::Shape`] if the sequence has not the state before them, as after a failed pass, and
    /// for more tokens than there are slots ([`draft_room`](Self::draft_room)).
    pub(super) fn decode(&self, take: &TakeSlot<'_>, start: usize, rows: usize) -> Result<Step> {
        self.advance(&mut self.held(), take, start, start + 1..start + rows + 1)
    }

    /// Slots of a pass of a prompt: the state behind its last token is kept, and those at planned
    /// borders as far as there are slots.
    ///
    /// # Errors
    /// As [`decode`](Self::decode).
    pub(super) fn prefill(&self, take: &TakeSlot<'_>, positions: Range<usize>) -> Result<Step> {
        let held = &mut *self.held();
        held.at_borders.clear();
        let mut step = self.advance(held, take, positions.start, positions.end..positions.end + 1)?;
        for &border in
            held.planned.iter().filter(|&&border| positions.start < border && border <= positions.end)
        {
            let end =
                held.states.last().filter(|_| border == positions.end).map(|(_, state)| Arc::clone(state));
            let is_end = end.is_some();
            let Some(state) = end.or_else(take) else { continue };
            if !is_end {
                step.kept.push((border, state.index));
            }
            held.at_borders.push((border, state));
        }
        Ok(step)
    }

    fn advance(
        &self,
        held: &mut Held,
        take: &TakeSlot<'_>,
        start: usize,
        ends: Range<usize>,
    ) -> Result<Step> {
        // States behind are of a pass in vain.
        held.states.retain(|&(at, _)| at <= start);
        let from = held.states.last().filter(|&&(at, _)| at == start).map(|(_, state)| state.index);
        if from.is_none() && start > 0 {
            let (expected, found) = (format!("one behind {start} tokens"), held.states.last());
            let found = found.map_or(0, |&(at, _)| at as u64);
            return Err(Error::Shape { what: "states of the sequence", expected, found });
        }
        let most = self.own.saturating_sub(ends.len()).max(1);
        held.drop_all_but(if start == 0 { 0 } else { most });
        let wanted = (held.states.len().max(1) + ends.len()).saturating_sub(self.own);
        self.reserve(held, wanted)?;
        let slots: Option<Vec<_>> = ends.clone().map(|_| take()).collect();
        let Some(slots) = slots else {
            return Err(Error::Shape {
                what: "free slots of states",
                expected: ends.len().to_string(),
                found: 0,
            });
        };
        let kept = ends.clone().zip(&slots).map(|(end, slot)| (end, slot.index)).collect();
        held.states.extend(ends.zip(slots));
        Ok(Step { from, kept })
    }

    /// Changes the number of spare slots that the sequence may hold.
    fn reserve(&self, held: &mut Held, wanted: usize) -> Result<()> {
        let mut counts = self.counts();
        let room = counts.spare + held.reserved;
        let Some(rest) = room.checked_sub(wanted) else {
            let expected = format!("at most {room}");
            return Err(Error::Shape { what: "tokens of a draft", expected, found: wanted as u64 });
        };
        (counts.spare, held.reserved) = (rest, wanted);
        Ok(())
    }

    /// Number of tokens of a draft behind `len` tokens and the next one, of at most `most`. Their
    /// slots are reserved until the next pass: a share of the spare ones that leaves as many to
    /// each other sequence.
    pub(in crate::backend::gpu) fn draft_room(&self, len: usize, most: usize) -> usize {
        let held = &mut *self.held();
        // States before that of the sequence's end were for tokens that may have been dropped.
        let behind = held.states.iter().filter(|&&(at, _)| at >= len).count();
        held.drop_all_but(behind.max(self.own - 1));
        let used = held.states.len().saturating_sub(self.own);
        let share = {
            let counts = self.counts();
            (counts.all_spare / counts.sequences.max(1)).min(counts.spare + held.reserved)
        };
        let own = self.own - 2;
        let wanted = most.saturating_sub(own).min(share).max(used);
        self.reserve(held, wanted).map_or(own, |()| own + wanted).min(most)
    }

    /// The most tokens, `len` at most, behind which the sequence has a state.
    pub(in crate::backend::gpu) fn floor(&self, len: usize) -> usize {
        let held = self.held();
        let states = held.states.iter().map(|(at, _)| *at);
        let stored = held.stored.iter().filter(|(_, state)| state.strong_count() > 0).map(|(at, _)| *at);
        states.chain(stored).filter(|&at| at <= len).max().unwrap_or(0)
    }

    /// Drops the tokens behind `len`, at which the sequence has a state unless it is 0; returns the
    /// number of tokens left, fewer if that state was evicted meanwhile.
    pub(in crate::backend::gpu) fn cut(&self, len: usize) -> usize {
        let held = &mut *self.held();
        held.planned.clear();
        held.at_borders.clear();
        held.states.retain(|&(at, _)| at <= len);
        held.stored.retain(|&(at, _)| at <= len);
        let kept = held.states.last().map_or(0, |&(at, _)| at);
        let stored = held.stored.iter().rev().find_map(|(at, state)| Some((*at, state.upgrade()?)));
        match stored.filter(|&(at, _)| at > kept) {
            Some(stored) => {
                let at = stored.0;
                held.states = vec![stored];
                at
            }
            None => kept,
        }
    }

    /// States at planned borders within the last pass, to be stored.
    pub(in crate::backend::gpu) fn take_at_borders(&self) -> Vec<(usize, Arc<Block>)> {
        std::mem::take(&mut self.held().at_borders)
    }

    /// Notes a state that was stored.
    pub(in crate::backend::gpu) fn note_stored(&self, tokens: usize, state: &Arc<Block>) {
        let held = &mut *self.held();
        held.stored.retain(|(at, state)| *at != tokens && state.strong_count() > 0);
        held.stored.push((tokens, Arc::downgrade(state)));
        held.stored.sort_unstable_by_key(|&(at, _)| at);
    }
}

impl Held {
    /// Drops all but the last `n` states.
    fn drop_all_but(&mut self, n: usize) {
        let surplus = self.states.len().saturating_sub(n);
        self.states.drain(..surplus);
    }
}

impl Drop for StateLease {
    fn drop(&mut self) {
        // Slots are free before another sequence can begin.
        let reserved = std::mem::take(&mut *self.held()).reserved;
        let mut counts = self.counts();
        counts.sequences -= 1;
        counts.spare += reserved;
    }
}
