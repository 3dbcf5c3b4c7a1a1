//! State of layers that keep one instead of keys and values: a step reads the present one and
//! writes the next, which takes its place when the step is committed.
//!
//! The state at the last block border where a step ended is kept as well: sequences can be cut back
//! to it, and stored prefixes end there.

use std::ops::Range;
use std::sync::Arc;

use super::{KvStep, Sequence};
use crate::error::{Error, Result};

/// State of one sequence; of no values in most models.
#[derive(Default)]
pub(super) struct State {
    pub(super) values: usize,
    /// Behind the tokens of the sequence; forks share it. Empty stands for zeros.
    pub(super) present: Arc<Vec<f32>>,
    /// Written by a step. Both buffers are as long as the state once a step began.
    pub(super) next: Vec<f32>,
    /// Behind the last block border where a step ended.
    border: Option<Border>,
    /// Buffer of a former border, for `next`; empty if there is none.
    pub(super) spare: Vec<f32>,
    pub(super) journal: Journal,
}

/// State behind whole blocks.
#[derive(Clone)]
struct Border {
    tokens: usize,
    values: Arc<Vec<f32>>,
}

/// Notes of the last step on its tokens, and the state before them.
#[derive(Default)]
pub(super) struct Journal {
    /// Notes of the step; empty if it keeps none.
    pub(super) notes: Vec<f32>,
    /// There once the step is committed.
    pub(super) former: Option<Former>,
}

/// State before a step.
pub(super) struct Former {
    pub(super) tokens: usize,
    pub(super) values: Arc<Vec<f32>>,
}

impl State {
    /// The state of a second sequence with the same tokens.
    pub(super) fn fork(&self) -> Self {
        Self {
            values: self.values,
            present: Arc::clone(&self.present),
            border: self.border.clone(),
            ..Self::default()
        }
    }

    /// The state before the first token.
    pub(super) fn clear(&mut self) {
        self.forget_journal();
        self.drop_border();
        match Arc::get_mut(&mut self.present) {
            Some(present) => present.fill(0.0),
            None => self.present = Arc::default(),
        }
    }

    /// Allocates both buffers.
    pub(super) fn prepare(&mut self) -> Result<()> {
        self.forget_journal();
        if self.present.is_empty() && self.values > 0 {
            self.present = Arc::new(zeros(self.values)?);
        }
        if self.next.len() < self.values {
            self.next = self.buffer()?;
        }
        Ok(())
    }

    /// The spare buffer, or a new one.
    pub(super) fn buffer(&mut self) -> Result<Vec<f32>> {
        let spare = std::mem::take(&mut self.spare);
        if spare.is_empty() { zeros(self.values) } else { Ok(spare) }
    }

    /// Replaces the present state, behind `before` tokens, by the one that a step has written,
    /// which is behind `tokens` tokens; `is_border` if these fill whole blocks.
    pub(super) fn advance(&mut self, [before, tokens]: [usize; 2], is_border: bool) {
        if self.values == 0 {
            return;
        }
        match Arc::get_mut(&mut self.present) {
            Some(present) if self.journal.notes.is_empty() => std::mem::swap(present, &mut self.next),
            _ => {
                let next = Arc::new(std::mem::take(&mut self.next));
                let values = std::mem::replace(&mut self.present, next);
                if !self.journal.notes.is_empty() {
                    self.journal.former = Some(Former { tokens: before, values });
                }
            }
        }
        if is_border {
            self.set_border(tokens);
        }
    }

    /// Keeps the present state, behind `tokens` tokens of whole blocks. Nothing is copied: the next
    /// step writes another buffer.
    fn set_border(&mut self, tokens: usize) {
        self.drop_border();
        self.border = Some(Border { tokens, values: Arc::clone(&self.present) });
    }

    /// Forgets the border; its buffer becomes the spare one if nobody shares it.
    fn drop_border(&mut self) {
        let Some(border) = self.border.take() else { return };
        if self.spare.is_empty()
            && let Ok(values) = Arc::try_unwrap(border.values)
        {
            self.spare = values;
        }
    }

    /// Tokens of the border; 0 without one.
    pub(super) fn border_tokens(&self) -> usize {
        self.border.as_ref().map_or(0, |border| border.tokens)
    }

    /// State of the border.
    pub(super) fn border_values(&self) -> Option<&[f32]> {
        self.border.as_ref().map(|border| border.values.as_slice())
    }

    /// The present state; empty for zeros.
    pub(super) fn present(&self) -> &[f32] {
        &self.present
    }

    /// Goes back to the border.
    pub(super) fn return_to_border(&mut self) {
        self.forget_journal();
        if let Some(border) = &self.border {
            self.present = Arc::clone(&border.values);
        }
    }

    /// Takes a state from elsewhere, behind `tokens` tokens: `fill` writes it.
    ///
    /// # Errors
    /// [`Error::StateMemory`]; the present state is as it was then.
    pub(super) fn replace(
        &mut self,
        tokens: usize,
        is_border: bool,
        fill: impl FnOnce(&mut [f32]),
    ) -> Result<()> {
        self.forget_journal();
        match Arc::get_mut(&mut self.present).filter(|present| present.len() == self.values) {
            Some(present) => fill(present),
            None => {
                let mut values = self.buffer()?;
                fill(&mut values);
                self.present = Arc::new(values);
            }
        }
        self.ends_at(tokens, is_border);
        Ok(())
    }

    /// Notes that the present state is behind `tokens` tokens, `is_border` if these fill whole
    /// blocks, and forgets a border behind them.
    pub(super) fn ends_at(&mut self, tokens: usize, is_border: bool) {
        if is_border {
            self.set_border(tokens);
        } else if self.border_tokens() > tokens {
            self.drop_border();
        }
    }

    /// Bytes of all buffers; a shared one counts in each of its sequences.
    pub(super) fn bytes(&self) -> usize {
        let border = self.border.as_ref().filter(|border| !Arc::ptr_eq(&border.values, &self.present));
        let border = border.map_or(0, |border| border.values.len());
        let is_border =
            |values| self.border.as_ref().is_some_and(|border| Arc::ptr_eq(&border.values, values));
        let former = self.journal.former.as_ref().filter(|former| !is_border(&former.values));
        let former = former.map_or(0, |former| former.values.len());
        let buffers = [self.present.len(), self.next.len(), self.spare.len(), border, former];
        (buffers.iter().sum::<usize>() + self.journal.notes.len()) * size_of::<f32>()
    }
}

fn zeros(values: usize) -> Result<Vec<f32>> {
    let mut zeros = Vec::new();
    zeros
        .try_reserve_exact(values)
        .map_err(|_| Error::StateMemory { bytes: values.saturating_mul(size_of::<f32>()) })?;
    zeros.resize(values, 0.0);
    Ok(zeros)
}

impl Sequence {
    /// The sequence of a model some of whose layers keep a state, of `values` f32 values together,
    /// instead of keys and values. The state before the first token is zeros.
    ///
    /// A state is what all tokens left in it: such a sequence can be forked, but
    /// [`truncate`](Self::truncate)d to 0 tokens, to its [`border`](Self::border) or to a
    /// [`snapshot`](Self::snapshot) alone, [`rewind`](Self::rewind) within its last step, and takes
    /// blocks of others only with a snapshot.
    ///
    /// # Panics
    /// If the sequence has tokens.
    #[must_use]
    pub fn with_state(mut self, values: usize) -> Self {
        assert!(self.is_empty(), "a state for {} tokens that have left nothing in it", self.len());
        self.state = State { values, ..State::default() };
        self
    }

    /// Values of the state; 0 in most models.
    pub fn state_values(&self) -> usize {
        self.state.values
    }

    /// Tokens before the last block border where a step ended, whose state is kept; 0 without one.
    pub fn border(&self) -> usize {
        self.state.border_tokens()
    }

    /// The most tokens, at most `len`, that the sequence can be [`truncate`](Self::truncate)d to.
    pub fn truncatable(&self, len: usize) -> usize {
        match () {
            () if len >= self.len => self.len,
            () if len < self.released() => 0,
            () if self.state.values == 0 => len,
            () if self.border() <= len => self.border(),
            () => 0,
        }
    }

    /// Checks that the tokens behind position `len` may be dropped, or others taken from blocks.
    pub(super) fn check_stateless(&self, len: usize) -> Result<()> {
        if self.state.values > 0 {
            return Err(Error::StateOfAll { len, tokens: self.len, border: self.border() });
        }
        Ok(())
    }
}

impl KvStep<'_> {
    /// Some values of the state before the step's tokens.
    ///
    /// # Panics
    /// If the range is beyond the [`state_values`](Sequence::state_values).
    pub fn state_before(&self, range: Range<usize>) -> &[f32] {
        &self.sequence.state.present[range]
    }

    /// Some values of the state before the step's tokens, and memory for those behind them, all of
    /// which must be written before the [`commit`](Self::commit).
    ///
    /// # Panics
    /// If the range is beyond the [`state_values`](Sequence::state_values).
    pub fn state(&mut self, range: Range<usize>) -> (&[f32], &mut [f32]) {
        let State { present, next, .. } = &mut self.sequence.state;
        (&present[range.clone()], &mut next[range])
    }
}
