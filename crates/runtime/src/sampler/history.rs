//! Repetition, presence and frequency penalties over the recent tokens of a sequence.

use std::collections::VecDeque;

use ruvllm_text::TokenId;

use super::params::SamplingParams;

/// Tokens of the penalty window with their counts; inactive if every penalty is off.
#[derive(Debug, Clone)]
pub(super) struct History {
    repeat: f32,
    presence: f32,
    frequency: f32,
    limit: usize,
    /// The last `limit` tokens, oldest first; unused when the limit is `usize::MAX`.
    window: VecDeque<TokenId>,
    counts: Vec<u32>, // [vocab_size]; empty when every penalty is off
}

impl History {
    /// The window of a sequence without tokens; `idle` if the sampler applies no penalties.
    pub(super) fn new(params: &SamplingParams, vocab_size: usize, idle: bool) -> Self {
        let limit = params.repeat_last_n;
        // Reserves at most 4096 tokens; larger windows grow with use.
        let reserve = if idle || limit == usize::MAX { 0 } else { limit.min(4096) + 1 };
        Self {
            repeat: params.repeat_penalty,
            presence: params.presence_penalty,
            frequency: params.frequency_penalty,
            limit,
            window: VecDeque::with_capacity(reserve),
            counts: vec![0; if idle { 0 } else { vocab_size }],
        }
    }

    /// Adds the next token of the sequence; ids outside the vocabulary are ignored.
    pub(super) fn push(&mut self, token: TokenId) {
        let Some(count) = self.counts.get_mut(token as usize) else { return };
        *count = count.saturating_add(1);
        if self.limit == usize::MAX {
            return;
        }
        self.window.push_back(token);
        if self.window.len() > self.limit
            && let Some(oldest) = self.window.pop_front()
        {
            self.counts[oldest as usize] -= 1;
        }
    }

    /// Forgets the sequence.
    pub(super) fn clear(&mut self) {
        self.window.clear();
        self.counts.fill(0);
    }

    /// Applies the penalties to logits `[vocab_size]` of the tokens in the window.
    pub(super) fn penalize(&self, logits: &mut [f32]) {
        for (logit, &count) in logits.iter_mut().zip(&self.counts) {
            if count > 0 {
                *logit = self.penalized(*logit, count);
            }
        }
    }

    /// The logit of a token with the penalties.
    pub(super) fn penalize_token(&self, token: TokenId, logit: f32) -> f32 {
        match self.counts.get(token as usize) {
            None | Some(0) => logit,
            Some(&count) => self.penalized(logit, count),
        }
    }

    /// Penalties of a token that occurs `count` times in the window.
    ///
    /// Repetition: Keskar et al., "CTRL", arXiv 1909.05858, section 4.1, with the sign rule that
    /// every engine uses since (a negative logit is multiplied, else the penalty would reward).
    /// Presence and frequency: the formula in the `OpenAI` API reference.
    fn penalized(&self, logit: f32, count: u32) -> f32 {
        let scaled = if logit > 0.0 { logit / self.repeat } else { logit * self.repeat };
        scaled - count as f32 * self.frequency - self.presence
    }
}
