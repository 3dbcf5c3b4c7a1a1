//! Room for the next step, and the work between two steps: a sequence on the page pool's pressure
//! ladder.
//!
//! The pool decides what yields, in which order and at which watermark; a sequence carries out its
//! own rungs: lower precision of older and hot tokens, a shorter pass, dropping the oldest tokens.

use std::ops::RangeInclusive;

use ruvllm_kernels::{Kernels, ThreadPool};
use ruvllm_memory::{Claim, PressurePolicy, Rung};

use super::Sequence;
use crate::error::{Error, Result};

/// A sequence that asks for room.
struct RoomClaim<'a> {
    sequence: &'a mut Sequence,
    kernels: &'a Kernels,
    threads: &'a ThreadPool,
    /// Tokens of the shortest pass.
    least: usize,
    /// Tokens asked for at present.
    tokens: usize,
}

impl Sequence {
    /// Work between two steps: yields memory beyond the pool's watermarks by `policy`, and moves
    /// blocks to the tiers of their age.
    pub fn settle(&mut self, kernels: &Kernels, threads: &ThreadPool, policy: PressurePolicy) {
        let store = self.store.clone();
        let mut claim = RoomClaim { sequence: self, kernels, threads, least: 0, tokens: 0 };
        store.pool().relieve(store.tenant(), policy, &mut claim);
        // Where there is too little memory for all at once, the first blocks make room.
        while self.migrate(kernels, threads, usize::MAX).should_retry() {}
    }

    /// Makes room for a step within `tokens` tokens, for which memory yields by `policy`. Returns
    /// the number of tokens: the end of the range, halved as often as the ladder asks for.
    ///
    /// # Errors
    /// [`Error::Full`]; [`Error::Memory`], [`Error::BudgetReached`] and [`Error::QuotaReached`]
    /// once nothing is left to yield.
    pub fn make_room(
        &mut self,
        kernels: &Kernels,
        threads: &ThreadPool,
        tokens: RangeInclusive<usize>,
        policy: PressurePolicy,
    ) -> Result<usize> {
        let (least, most) = tokens.into_inner();
        self.check_room(most)?;
        let store = self.store.clone();
        let mut claim = RoomClaim { sequence: self, kernels, threads, least, tokens: most };
        store.pool().make_room(store.tenant(), policy, &mut claim)?;
        Ok(claim.tokens)
    }

    /// Moves as few hot tokens as possible to the lowest tier, never the last block.
    fn shrink_some(&mut self, kernels: &Kernels, threads: &ThreadPool) -> bool {
        let block_tokens = self.store.block_tokens();
        let mut hot_tokens = self.len;
        while hot_tokens > block_tokens {
            hot_tokens = (hot_tokens / 2).max(block_tokens);
            if self.shrink(kernels, threads, hot_tokens).blocks > 0 {
                return true;
            }
        }
        false
    }
}

impl Claim for RoomClaim<'_> {
    type Error = Error;

    fn take(&mut self) -> Result<()> {
        self.sequence.step(self.kernels, self.tokens).map(drop)
    }

    fn short_tenant<'a>(&self, error: &'a Error) -> Option<&'a str> {
        error.short_tenant()
    }

    fn yield_own(&mut self, rung: Rung) -> bool {
        let Self { sequence, kernels, threads, least, tokens } = self;
        match rung {
            Rung::Precision => sequence.lower_due(kernels, threads).blocks > 0,
            Rung::Adapter | Rung::Prefix => false,
            Rung::Pass => {
                let shorter = (*tokens / 2).max(*least);
                std::mem::replace(tokens, shorter) > shorter
            }
            Rung::Hot => sequence.shrink_some(kernels, threads),
            Rung::Oldest => sequence.drop_oldest(),
        }
    }

    fn kept_pages(&self) -> usize {
        self.sequence.store.kept_pages()
    }
}
