//! Rejected drafts of sequences with a state: the state goes back to the one before the step, and
//! forward again over the tokens that stay, by what the step noted of each.

use std::sync::Arc;

use super::state::{Former, State};
use super::{KvStep, Sequence};
use crate::error::{Error, Result};

/// A state to compute again, for [`Sequence::rewind`].
#[derive(Debug)]
pub struct Replay<'a> {
    /// State before the step, [`state_values`](Sequence::state_values) values.
    pub before: &'a [f32],
    /// Notes of all tokens of the step.
    pub journal: &'a [f32],
    /// Tokens of the step that stay, at least one.
    pub tokens: usize,
    /// State behind these; every value is to be written.
    pub after: &'a mut [f32],
}

impl State {
    /// Forgets the journal; the buffer of the former state becomes that of the next step.
    pub(super) fn forget_journal(&mut self) {
        self.journal.notes.clear();
        let Some(former) = self.journal.former.take() else { return };
        let Ok(values) = Arc::try_unwrap(former.values) else { return };
        match (self.next.is_empty(), self.spare.is_empty()) {
            (true, _) => self.next = values,
            (false, true) => self.spare = values,
            (false, false) => {}
        }
    }

    /// Goes back to the state before the last step and from there over its first `tokens` tokens.
    fn rewind(&mut self, tokens: usize, replay: impl FnOnce(Replay<'_>)) -> Result<()> {
        if tokens > 0 && Arc::get_mut(&mut self.present).is_none() {
            self.present = Arc::new(self.buffer()?);
        }
        let Some(Former { values: before, .. }) = &mut self.journal.former else { return Ok(()) };
        if tokens == 0 {
            std::mem::swap(&mut self.present, before);
        } else {
            let after = Arc::get_mut(&mut self.present).expect("a buffer that nobody shares");
            replay(Replay { before, journal: &self.journal.notes, tokens, after });
        }
        self.forget_journal();
        Ok(())
    }
}

impl Sequence {
    /// Tokens of the last step if it kept a journal: [`rewind`](Self::rewind) can drop some of them
    /// or all.
    pub fn rewindable(&self) -> usize {
        self.state.journal.former.as_ref().map_or(0, |former| self.len - former.tokens)
    }

    /// Drops the tokens from position `len` on as [`truncate`](Self::truncate) does, also if layers
    /// keep a state and the last step appended these tokens and kept a
    /// [journal](KvStep::keep_journal): `replay` then computes the state behind those that stay. A
    /// state at a block border within the dropped tokens is forgotten.
    ///
    /// # Errors
    /// As `truncate`, and [`Error::StateMemory`]. Nothing has changed then.
    pub fn rewind(&mut self, len: usize, replay: impl FnOnce(Replay<'_>)) -> Result<()> {
        let first = self.len - self.rewindable();
        if len == 0 || !(first..self.len).contains(&len) {
            return self.truncate(len);
        }
        self.check_released(len)?;
        self.state.rewind(len - first, replay)?;
        self.state.ends_at(len, len.is_multiple_of(self.store.block_tokens()));
        self.cut(len);
        Ok(())
    }
}

impl KvStep<'_> {
    /// Keeps a journal of `values` values for all tokens of the step together, from which
    /// [`Sequence::rewind`] can compute states behind some of them, until another step begins.
    /// Without effect for sequences without a state.
    ///
    /// # Errors
    /// [`Error::StateMemory`]: there is no journal then.
    pub fn keep_journal(&mut self, values: usize) -> Result<()> {
        let State { values: state, journal, .. } = &mut self.sequence.state;
        journal.notes.clear();
        if *state > 0 {
            journal
                .notes
                .try_reserve_exact(values)
                .map_err(|_| Error::StateMemory { bytes: values.saturating_mul(size_of::<f32>()) })?;
            journal.notes.resize(values, 0.0);
        }
        Ok(())
    }

    /// The journal, whose layout is the model's; empty if the step keeps none.
    pub fn journal(&mut self) -> &mut [f32] {
        &mut self.sequence.state.journal.notes
    }
}
