//! Counters of the step loop.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use super::history::{History, StepRecord};

/// Counts of the step loop since the engine was loaded, and its present load.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StepStatistics {
    /// Forward passes.
    pub steps: u64,
    /// Parts of these: sequences of each step, added up.
    pub parts: u64,
    /// Tokens computed in chunks: prompts, recomputation after preemption, and runs of tokens that
    /// a constraint forces.
    pub prefill_tokens: u64,
    /// Generated tokens that were computed.
    pub decode_tokens: u64,
    /// Drafted tokens that were verified.
    pub drafted_tokens: u64,
    /// Drafted tokens that became output; they count as decoded as well.
    pub accepted_tokens: u64,
    /// Masks of constraints that were computed, one for each token that is sampled under one.
    pub masks: u64,
    /// Time of these, added up over all threads.
    pub mask_time: Duration,
    /// Requests that yielded their memory and waited again.
    pub preemptions: u64,
    /// Requests that ended, with a result or an error.
    pub ended_requests: u64,
    /// Requests that wait now.
    pub waiting: u64,
    /// Requests that run now.
    pub running: u64,
    /// Requests that have a place among those that run and wait for their adapters.
    pub loading: u64,
}

/// The counters, written by the thread of the step loop.
#[derive(Debug, Default)]
pub(crate) struct StepCounters {
    steps: AtomicU64,
    parts: AtomicU64,
    prefill_tokens: AtomicU64,
    decode_tokens: AtomicU64,
    drafted_tokens: AtomicU64,
    accepted_tokens: AtomicU64,
    masks: AtomicU64,
    mask_nanoseconds: AtomicU64,
    preemptions: AtomicU64,
    ended_requests: AtomicU64,
    waiting: AtomicU64,
    running: AtomicU64,
    loading: AtomicU64,
    history: History,
}

impl StepCounters {
    /// Begins a step; [`end_step`](Self::end_step) gives its record.
    pub(super) fn begin_step(&self, parts: usize) -> StepRecord {
        self.parts.fetch_add(parts as u64, Relaxed);
        StepRecord {
            number: self.steps.fetch_add(1, Relaxed),
            duration: Duration::ZERO,
            sequences: parts,
            prefill_tokens: self.prefill_tokens.load(Relaxed) as usize,
            decode_tokens: self.decode_tokens.load(Relaxed) as usize,
        }
    }

    /// Records a step whose tokens have been counted since its begin; returns its record.
    pub(super) fn end_step(&self, begun: StepRecord, duration: Duration) -> StepRecord {
        let record = StepRecord {
            duration,
            prefill_tokens: self.prefill_tokens.load(Relaxed) as usize - begun.prefill_tokens,
            decode_tokens: self.decode_tokens.load(Relaxed) as usize - begun.decode_tokens,
            ..begun
        };
        self.history.push(record);
        record
    }

    /// The steps from a number on, as far as they are kept.
    pub(crate) fn steps_since(&self, number: u64) -> Vec<StepRecord> {
        self.history.since(number)
    }

    pub(super) fn count_masks(&self, masks: u64, time: Duration) {
        if masks > 0 {
            self.masks.fetch_add(masks, Relaxed);
            self.mask_nanoseconds.fetch_add(time.as_nanos() as u64, Relaxed);
        }
    }

    pub(super) fn count_tokens(&self, tokens: usize, is_prompt: bool) {
        let counter = if is_prompt { &self.prefill_tokens } else { &self.decode_tokens };
        counter.fetch_add(tokens as u64, Relaxed);
    }

    pub(super) fn count_draft(&self, drafted: usize, accepted: usize) {
        self.drafted_tokens.fetch_add(drafted as u64, Relaxed);
        self.accepted_tokens.fetch_add(accepted as u64, Relaxed);
    }

    pub(super) fn count_preemption(&self) {
        self.preemptions.fetch_add(1, Relaxed);
    }

    pub(super) fn count_end(&self) {
        self.ended_requests.fetch_add(1, Relaxed);
    }

    pub(super) fn set_load(&self, waiting: usize, running: usize, loading: usize) {
        self.waiting.store(waiting as u64, Relaxed);
        self.running.store(running as u64, Relaxed);
        self.loading.store(loading as u64, Relaxed);
    }

    pub(crate) fn read(&self) -> StepStatistics {
        let read = |counter: &AtomicU64| counter.load(Relaxed);
        StepStatistics {
            steps: read(&self.steps),
            parts: read(&self.parts),
            prefill_tokens: read(&self.prefill_tokens),
            decode_tokens: read(&self.decode_tokens),
            drafted_tokens: read(&self.drafted_tokens),
            accepted_tokens: read(&self.accepted_tokens),
            masks: read(&self.masks),
            mask_time: Duration::from_nanos(read(&self.mask_nanoseconds)),
            preemptions: read(&self.preemptions),
            ended_requests: read(&self.ended_requests),
            waiting: read(&self.waiting),
            running: read(&self.running),
            loading: read(&self.loading),
        }
    }
}
