//! Sequences of a backend that are decoded together.

use ruvllm_text::TokenId;

use super::sequence::BackendSession;
use crate::error::Result;

/// Takes logits: indexes of the tokens, and a row `[vocab_size]` for each, in this order.
pub type OnLogits<'l> = dyn FnMut(&[usize], &[f32]) + 'l;

/// Sequences of a backend whose next tokens can be computed together.
///
/// [`InferenceBackend::batch`](crate::InferenceBackend::batch) makes one. By default a sequence is
/// computed after the other; a GPU computes a pass with a row for each.
pub trait BackendBatch {
    /// Begins an empty sequence of at most `capacity` tokens; returns its number.
    ///
    /// # Errors
    /// As [`InferenceBackend::session`](crate::InferenceBackend::session).
    fn begin(&mut self, capacity: usize) -> Result<usize>;

    /// The sequence with a number; `None` after [`end`](Self::end).
    fn sequence(&mut self, number: usize) -> Option<&mut dyn BackendSession>;

    /// Releases a sequence, if there is one. Its number may be given to another.
    fn end(&mut self, number: usize);

    /// Appends a token to each of these sequences, all different, as a decode step; passes the
    /// logits to `on_logits`, once for each pass.
    ///
    /// # Errors
    /// See [`BackendSession::forward`]. Sequences without a new token are as they were, and
    /// their logits were not passed.
    fn decode(&mut self, tokens: &[(usize, TokenId)], on_logits: &mut OnLogits<'_>) -> Result<()>;
}

/// Values by number; numbers are reused.
#[derive(Debug)]
pub(crate) struct Numbered<T>(Vec<Option<T>>);

impl<T> Default for Numbered<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> Numbered<T> {
    pub(crate) fn insert(&mut self, value: T) -> usize {
        match self.0.iter().position(Option::is_none) {
            Some(free) => {
                self.0[free] = Some(value);
                free
            }
            None => {
                self.0.push(Some(value));
                self.0.len() - 1
            }
        }
    }

    #[cfg_attr(not(feature = "gpu"), allow(dead_code, reason = "only devices read their sequences"))]
    pub(crate) fn get(&self, number: usize) -> Option<&T> {
        self.0.get(number)?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, number: usize) -> Option<&mut T> {
        self.0.get_mut(number)?.as_mut()
    }

    pub(crate) fn remove(&mut self, number: usize) {
        if let Some(value) = self.0.get_mut(number) {
            *value = None;
        }
    }
}

/// Makes a sequence of a backend for so many tokens.
pub(crate) type Open<'b> = Box<dyn Fn(usize) -> Result<Box<dyn BackendSession + 'b>> + 'b>;

/// Sequences that are computed one after the other.
pub(crate) struct OneByOne<'b> {
    open: Open<'b>,
    sequences: Numbered<Box<dyn BackendSession + 'b>>,
}

impl<'b> OneByOne<'b> {
    pub(crate) fn new(open: Open<'b>) -> Self {
        Self { open, sequences: Numbered::default() }
    }
}

impl BackendBatch for OneByOne<'_> {
    fn begin(&mut self, capacity: usize) -> Result<usize> {
        Ok(self.sequences.insert((self.open)(capacity)?))
    }

    fn sequence(&mut self, number: usize) -> Option<&mut dyn BackendSession> {
        match self.sequences.get_mut(number) {
            Some(sequence) => Some(&mut **sequence),
            None => None,
        }
    }

    fn end(&mut self, number: usize) {
        self.sequences.remove(number);
    }

    fn decode(&mut self, tokens: &[(usize, TokenId)], on_logits: &mut OnLogits<'_>) -> Result<()> {
        for (index, &(number, token)) in tokens.iter().enumerate() {
            if let Some(sequence) = self.sequences.get_mut(number) {
                on_logits(&[index], sequence.forward(&[token])?);
            }
        }
        Ok(())
    }
}
