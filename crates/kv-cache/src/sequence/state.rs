//! State of layers that keep one instead of keys and values: a step reads the present one and
//! writes the next, which takes its place when the step is committed.

use std::ops::Range;
use std::sync::Arc;

use super::{KvStep, Sequence};
use crate::error::{Error, Result};

/// State of one sequence; of no values in most models.
#[derive(Default)]
pub(super) struct State {
    values: usize,
    /// Behind the tokens of the sequence; forks share it. Empty stands for zeros.
    present: Arc<Vec<f32>>,
    /// Written by a step. Both buffers are as long as the state once a step began.
    next: Vec<f32>,
}

impl State {
    /// The state of a second sequence with the same tokens.
    pub(super) fn fork(&self) -> Self {
        Self { values: self.values, present: Arc::clone(&self.present), next: Vec::new() }
    }

    /// The state before the first token.
    pub(super) fn clear(&mut self) {
        match Arc::get_mut(&mut self.present) {
            Some(present) => present.fill(0.0),
            None => self.present = Arc::default(),
        }
    }

    /// Allocates both buffers.
    pub(super) fn prepare(&mut self) -> Result<()> {
        if self.present.is_empty() && self.values > 0 {
            self.present = Arc::new(zeros(self.values)?);
        }
        if self.next.len() < self.values {
            self.next = zeros(self.values)?;
        }
        Ok(())
    }

    /// Replaces the present state by the one that a step has written.
    pub(super) fn advance(&mut self) {
        if self.values == 0 {
            return;
        }
        match Arc::get_mut(&mut self.present) {
            Some(present) => std::mem::swap(present, &mut self.next),
            None => self.present = Arc::new(std::mem::take(&mut self.next)),
        }
    }

    /// Bytes of both buffers; a shared one counts in each of its sequences.
    pub(super) fn bytes(&self) -> usize {
        (self.present.len() + self.next.len()) * size_of::<f32>()
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
    /// [`truncate`](Self::truncate)d to 0 tokens alone, and takes no blocks of others.
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

    /// Checks that the tokens behind position `len` may be dropped, or others taken from blocks.
    pub(super) fn check_stateless(&self, len: usize) -> Result<()> {
        if self.state.values > 0 {
            return Err(Error::StateOfAll { len, tokens: self.len });
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
