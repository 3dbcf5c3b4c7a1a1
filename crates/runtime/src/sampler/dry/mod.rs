//! DRY ("don't repeat yourself"): penalty on tokens that would extend a repetition.
//!
//! A token that followed an earlier occurrence of the sequence's last `n` tokens is penalized by
//! `multiplier * base^(n - allowed_length)` for the longest such `n >= allowed_length`.
//!
//! # Source
//! p-e-w, text-generation-webui, pull request 5677 (2024): the penalty, its parameters and sequence
//! breakers. Matches of all positions: Z-algorithm over the reversed window (Gusfield, "Algorithms
//! on Strings, Trees and Sequences", 1997, section 1.4), in linear time.

mod breakers;

use ruvllm_text::TokenId;

pub use self::breakers::DryBreakers;
use super::params::SamplingParams;

/// Tokens of the DRY window and the matches of its last tokens; inactive if the penalty is off.
#[derive(Debug, Clone)]
pub(super) struct Dry {
    multiplier: f64,
    base: f64,
    allowed: usize,
    limit: usize,
    breakers: DryBreakers,
    /// The last tokens of the sequence, oldest first: all if `limit` is `usize::MAX`, else `limit`
    /// to `2 * limit` of them.
    tokens: Vec<TokenId>,
    /// Tokens after the last boundary of a sequence breaker.
    unbroken: usize,
    /// Last bytes of the text, for breakers of several tokens.
    tail: Vec<u8>,
    /// Z-values of the reversed window.
    matches: Vec<u32>,
    /// Longest match that each token would extend, `[vocab_size]`; 0 if below `allowed`. Empty when
    /// the penalty is off.
    longest: Vec<u32>,
    /// Tokens with a value in `longest`.
    found: Vec<TokenId>,
}

impl Dry {
    /// The window of a sequence without tokens; `idle` if the sampler does not apply the penalty.
    pub(super) fn new(params: &SamplingParams, vocab_size: usize, idle: bool) -> Self {
        let mut dry = Self {
            multiplier: f64::from(params.dry_multiplier),
            base: f64::from(params.dry_base),
            allowed: params.dry_allowed_length,
            limit: params.dry_penalty_last_n,
            breakers: params.dry_breakers.clone(),
            tokens: Vec::new(),
            unbroken: 0,
            tail: Vec::new(),
            matches: Vec::new(),
            longest: vec![0; if idle { 0 } else { vocab_size }],
            found: Vec::new(),
        };
        if !idle {
            dry.tail.reserve(dry.breakers.tail_bytes());
            dry.reserve(4096);
        }
        dry
    }

    fn is_idle(&self) -> bool {
        self.longest.is_empty()
    }

    /// Reserves memory for sequences of up to `tokens` tokens.
    pub(super) fn reserve(&mut self, tokens: usize) {
        if self.is_idle() {
            return;
        }
        let tokens = tokens.min(self.limit.saturating_mul(2));
        let reserve = |buffer: &mut Vec<u32>, len: usize| buffer.reserve(len.saturating_sub(buffer.len()));
        reserve(&mut self.tokens, tokens);
        reserve(&mut self.matches, tokens.min(self.limit));
        reserve(&mut self.found, tokens.min(self.limit).min(self.longest.len()));
    }

    /// Adds the next token of the sequence.
    pub(super) fn push(&mut self, token: TokenId) {
        if self.is_idle() {
            return;
        }
        if self.tokens.len() >= self.limit.saturating_mul(2) {
            self.tokens.drain(..self.tokens.len() - self.limit);
        }
        self.tokens.push(token);
        let broken = self.breakers.push(&mut self.tail, token);
        self.unbroken = if broken { 0 } else { self.unbroken + 1 };
    }

    /// Forgets the sequence.
    pub(super) fn clear(&mut self) {
        self.tokens.clear();
        self.tail.clear();
        self.unbroken = 0;
    }

    /// Finds the tokens to penalize: the longest match that each would extend, in time linear in
    /// the window.
    pub(super) fn find(&mut self) {
        let Self { allowed, limit, breakers, tokens, unbroken, matches, longest, found, .. } = self;
        for token in found.drain(..) {
            longest[token as usize] = 0;
        }
        let window = &tokens[tokens.len().saturating_sub(*limit)..];
        // A match ends at the last token, so it is within the tokens after the last boundary.
        let bound = (*unbroken).min(window.len());
        if bound < *allowed {
            return;
        }
        let reversed = |i: usize| window[window.len() - 1 - i];
        matches.clear();
        matches.resize(window.len(), 0);
        // The match that reaches furthest: it equals the beginning of the reversed window.
        let (mut start, mut end) = (0, 0);
        for k in 1..window.len() {
            let mut len = if k < end { (matches[k - start] as usize).min(end - k) } else { 0 };
            if k + len >= end {
                while k + len < window.len() && reversed(len) == reversed(k + len) {
                    len += 1;
                }
                (start, end) = (k, k + len);
            }
            matches[k] = len as u32;
            let len = len.min(bound);
            if len < *allowed {
                continue;
            }
            let next = reversed(k - 1);
            if let Some(longest) = longest.get_mut(next as usize)
                && !breakers.within(next)
            {
                if *longest == 0 {
                    found.push(next);
                }
                *longest = (*longest).max(len as u32);
            }
        }
    }

    /// Tokens to penalize after [`find`](Self::find), each once.
    pub(super) fn found(&self) -> &[TokenId] {
        &self.found
    }

    /// The value to subtract from a token's logit after [`find`](Self::find), at most `f32::MAX`;
    /// 0 if the token extends no repetition.
    pub(super) fn penalty(&self, token: TokenId) -> f32 {
        match self.longest.get(token as usize) {
            None | Some(0) => 0.0,
            Some(&len) => {
                let excess = i32::try_from(len as usize - self.allowed).unwrap_or(i32::MAX);
                (self.multiplier * self.base.powi(excess)).min(f64::from(f32::MAX)) as f32
            }
        }
    }
}
