//! Position of one sequence in its constraint.

use std::fmt;

use llguidance::Matcher;
use llguidance::api::StopReason;
use ruvllm_text::TokenId;
use toktrie::SimpleVob;

use super::error::{ConstraintError, readable};

/// The ids that may come next.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenMask(SimpleVob);

impl TokenMask {
    /// Number of ids of the vocabulary.
    pub fn vocab_size(&self) -> usize {
        self.0.len()
    }

    /// True if an id may come next; false outside the vocabulary.
    pub fn allows(&self, id: TokenId) -> bool {
        (id as usize) < self.0.len() && self.0.is_allowed(id)
    }

    /// The allowed ids, ascending.
    pub fn ids(&self) -> impl Iterator<Item = TokenId> + '_ {
        let mut words = self.0.as_slice().iter().zip((0u32..).step_by(32));
        let (mut word, mut base) = (0u32, 0u32);
        std::iter::from_fn(move || {
            while word == 0 {
                let (&next, first) = words.next()?;
                (word, base) = (next, first);
            }
            let bit = word.trailing_zeros();
            word &= word - 1;
            Some(base + bit)
        })
    }

    /// Copies the logits of allowed ids to `out` and sets all others to `-inf`. Both have one value
    /// per id `[vocab_size]`; ids beyond the vocabulary are excluded.
    pub fn apply(&self, logits: &[f32], out: &mut Vec<f32>) {
        out.clear();
        out.resize(logits.len(), f32::NEG_INFINITY);
        for id in self.ids().map(|id| id as usize).take_while(|&id| id < logits.len()) {
            out[id] = logits[id];
        }
    }
}

/// The number of allowed ids.
impl fmt::Debug for TokenMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenMask").field("allowed", &self.0.num_set()).finish_non_exhaustive()
    }
}

/// Position of one sequence in its constraint: the ids that may come next.
///
/// Made by [`ConstraintCompiler::start`](super::ConstraintCompiler::start). Sampling from the mask
/// and accepting what was sampled gives an element of the language when
/// [`is_complete`](Self::is_complete) says so.
pub struct ConstraintState {
    matcher: Matcher,
    /// Mask at this position, once it is computed.
    mask: Option<TokenMask>,
}

impl fmt::Debug for ConstraintState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConstraintState").field("ended", &self.is_ended()).finish_non_exhaustive()
    }
}

impl ConstraintState {
    pub(super) fn new(matcher: Matcher) -> Self {
        Self { matcher, mask: None }
    }

    /// The ids that may come next. A token that ends generation is among them exactly where the
    /// output is complete. After the end, only such tokens are.
    ///
    /// # Errors
    /// [`ConstraintError::DeadEnd`] if the vocabulary has no token that fits;
    /// [`ConstraintError::Step`] if the step exceeds a limit.
    pub fn mask(&mut self) -> Result<&TokenMask, ConstraintError> {
        let mask = match self.mask.take() {
            Some(mask) => mask,
            None => {
                TokenMask(self.matcher.compute_mask_or_eos().map_err(|error| self.fault(&error.to_string()))?)
            }
        };
        Ok(self.mask.insert(mask))
    }

    /// Moves past a token of the output.
    ///
    /// # Errors
    /// [`ConstraintError::Step`] if the mask excludes the token, or the step exceeds a limit. The
    /// state cannot be used any more then.
    pub fn accept(&mut self, token: TokenId) -> Result<(), ConstraintError> {
        self.mask = None;
        self.matcher.consume_token(token).map_err(|error| self.fault(&error.to_string()))
    }

    /// Tokens that must come next whatever is sampled, in the tokenizer's own segmentation; often
    /// none. They can be appended without sampling, each with [`accept`](Self::accept).
    pub fn forced(&mut self) -> Vec<TokenId> {
        if self.is_ended() { Vec::new() } else { self.matcher.compute_ff_tokens() }
    }

    /// Number of `tokens` from the first on that may come next, one after the other; the position
    /// stays.
    ///
    /// # Errors
    /// [`ConstraintError::Step`] if a step exceeds a limit.
    pub fn accepted_prefix(&mut self, tokens: &[TokenId]) -> Result<usize, ConstraintError> {
        self.matcher.validate_tokens(tokens).map_err(|error| self.fault(&error.to_string()))
    }

    /// Goes back by `tokens` accepted tokens.
    ///
    /// # Errors
    /// [`ConstraintError::Step`] if fewer were accepted.
    pub fn rollback(&mut self, tokens: usize) -> Result<(), ConstraintError> {
        self.mask = None;
        self.matcher.rollback(tokens).map_err(|error| self.fault(&error.to_string()))
    }

    /// True if the output so far is an element of the language.
    ///
    /// # Errors
    /// [`ConstraintError::Step`] after a failed step.
    pub fn is_complete(&mut self) -> Result<bool, ConstraintError> {
        let ended_well = self.is_ended() && !self.matcher.is_error();
        Ok(ended_well || self.matcher.is_accepting().map_err(|error| self.fault(&error.to_string()))?)
    }

    /// True if the output is complete and nothing can follow, or a token has ended it.
    pub fn is_ended(&self) -> bool {
        self.matcher.is_stopped()
    }

    fn fault(&self, message: &str) -> ConstraintError {
        let reason = readable(message);
        if reason == StopReason::NoExtensionBias.to_string() {
            return ConstraintError::DeadEnd;
        }
        ConstraintError::Step { reason }
    }
}
