//! Changes that a tuner may try.

use serde::{Deserialize, Serialize};

use super::settings::{Bounds, StepSettings};

/// One step of one setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Move {
    /// Four times as many hot tokens: quality is restored faster than it is spent.
    MoreHot,
    /// Half as many hot tokens.
    FewerHot,
    /// Four times as many warm tokens.
    MoreWarm,
    /// Half as many warm tokens.
    FewerWarm,
    /// A batch larger by half.
    LargerBatch,
    /// A batch smaller by a third.
    SmallerBatch,
    /// Twice the prefill chunk.
    LongerChunk,
    /// Half the prefill chunk.
    ShorterChunk,
    /// Twice as many drafted tokens, or two after none.
    LongerDraft,
    /// Half as many drafted tokens; none after one.
    ShorterDraft,
}

impl Move {
    /// All moves, in the order in which they are tried.
    pub(super) const ALL: [Self; 10] = [
        Self::LongerDraft,
        Self::ShorterDraft,
        Self::LargerBatch,
        Self::SmallerBatch,
        Self::FewerHot,
        Self::FewerWarm,
        Self::LongerChunk,
        Self::ShorterChunk,
        Self::MoreHot,
        Self::MoreWarm,
    ];

    pub(super) fn index(self) -> usize {
        Self::ALL.iter().position(|&other| other == self).unwrap_or(0)
    }

    /// True for settings that act on the very next step, so that steps with and without the change
    /// can alternate.
    pub(super) fn is_immediate(self) -> bool {
        matches!(self, Self::LongerChunk | Self::ShorterChunk | Self::LongerDraft | Self::ShorterDraft)
    }

    /// Settings after the move; absent where the bounds leave them as they were.
    pub(super) fn apply(self, from: StepSettings, bounds: &Bounds) -> Option<StepSettings> {
        let mut to = from;
        let (low, high) = (&bounds.low, &bounds.high);
        let double = |value: usize, least: usize| value.saturating_mul(2).max(least);
        match self {
            Self::MoreHot => to.hot_tokens = from.hot_tokens.saturating_mul(4).max(32).min(high.hot_tokens),
            Self::FewerHot => to.hot_tokens = (from.hot_tokens / 2).max(low.hot_tokens),
            Self::MoreWarm => {
                to.warm_tokens = from.warm_tokens.saturating_mul(4).max(32).min(high.warm_tokens);
            }
            Self::FewerWarm => to.warm_tokens = (from.warm_tokens / 2).max(low.warm_tokens),
            Self::LargerBatch => {
                let more = from.max_batch.div_ceil(2);
                to.max_batch = from.max_batch.saturating_add(more).min(high.max_batch);
            }
            Self::SmallerBatch => to.max_batch = (from.max_batch * 2 / 3).max(low.max_batch),
            Self::LongerChunk => to.prefill_chunk = double(from.prefill_chunk, 1).min(high.prefill_chunk),
            Self::ShorterChunk => to.prefill_chunk = (from.prefill_chunk / 2).max(low.prefill_chunk),
            Self::LongerDraft => to.draft_tokens = double(from.draft_tokens, 2).min(high.draft_tokens),
            Self::ShorterDraft => to.draft_tokens = (from.draft_tokens / 2).max(low.draft_tokens),
        }
        (to != from).then_some(to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moves_stay_within_bounds_and_reach_them() {
        let at = |n: usize| StepSettings {
            hot_tokens: 16 * n,
            warm_tokens: 16 * n,
            max_batch: n,
            prefill_chunk: n,
            draft_tokens: n - 1,
        };
        let bounds = Bounds { low: at(1), high: at(9) };
        for (index, step) in Move::ALL.into_iter().enumerate() {
            assert_eq!(step.index(), index);
            let mut settings = at(5);
            let mut count = 0;
            while let Some(next) = step.apply(settings, &bounds) {
                (settings, count) = (next, count + 1);
                assert!(count < 10, "{step:?} does not end");
            }
            let end = [at(1), at(9)].into_iter().find(|end| {
                end.hot_tokens == settings.hot_tokens
                    || end.warm_tokens == settings.warm_tokens
                    || end.max_batch == settings.max_batch
                    || end.prefill_chunk == settings.prefill_chunk
                    || end.draft_tokens == settings.draft_tokens
            });
            assert!(count > 0 && end.is_some(), "{step:?}: {settings:?}");
        }
    }
}
