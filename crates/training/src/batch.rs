//! Sequences of a batch, whose tokens are rows of the pass, one behind the other.

use std::ops::Range;

use ruvllm_models::ModelConfig;

use crate::error::{Error, Result};

/// A training sequence: tokens, and which of them are scored.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Sequence {
    /// Token ids, as the model reads them: with BOS where it wants one.
    pub tokens: Vec<u32>,
    /// True for tokens whose probability counts, such as those of an answer but not of its prompt;
    /// empty = all. The first token is never scored: nothing precedes it.
    pub mask: Vec<bool>,
}

impl Sequence {
    /// A sequence all of whose tokens are scored.
    pub fn new(tokens: impl Into<Vec<u32>>) -> Self {
        Self { tokens: tokens.into(), mask: Vec::new() }
    }

    /// A prompt that is not scored, and its answer, which is.
    pub fn with_prompt(prompt: &[u32], answer: &[u32]) -> Self {
        let mask = [vec![false; prompt.len()], vec![true; answer.len()]].concat();
        Self { tokens: [prompt, answer].concat(), mask }
    }

    /// Positions of scored tokens.
    fn scored(&self) -> impl Iterator<Item = usize> + '_ {
        (1..self.tokens.len()).filter(|&at| self.mask.is_empty() || self.mask[at])
    }

    /// Number of scored tokens.
    pub fn n_scored(&self) -> usize {
        self.scored().count()
    }

    /// Checks a sequence of a batch or data set, where it has `index`.
    pub(crate) fn check(&self, index: usize, config: &ModelConfig) -> Result<()> {
        let (tokens, most) = (self.tokens.len(), config.context_length);
        if tokens == 0 || tokens > most {
            return Err(Error::SequenceLength { index, tokens, most });
        }
        if !self.mask.is_empty() && self.mask.len() != tokens {
            return Err(Error::Length { what: "a mask", expected: tokens, found: self.mask.len() });
        }
        match self.tokens.iter().find(|&&token| token as usize >= config.vocab_size) {
            Some(&token) => Err(Error::Token { index, token, vocab_size: config.vocab_size }),
            None => Ok(()),
        }
    }
}

/// Rows of a batch.
#[derive(Debug, Default)]
pub(crate) struct Rows {
    sequences: Vec<Range<usize>>,
    /// Sequence of each row.
    of_row: Vec<u32>,
    tokens: Vec<u32>,
    /// Row before each scored token, and the token.
    scored: Vec<(usize, u32)>,
    /// Scored tokens of each sequence.
    scored_of: Vec<Range<usize>>,
}

impl Rows {
    pub(crate) fn new(sequences: &[&Sequence], config: &ModelConfig) -> Result<Self> {
        let mut rows = Self::default();
        for (index, sequence) in sequences.iter().enumerate() {
            sequence.check(index, config)?;
            let start = rows.tokens.len();
            rows.tokens.extend_from_slice(&sequence.tokens);
            rows.of_row.resize(rows.tokens.len(), index as u32);
            rows.sequences.push(start..rows.tokens.len());
            let first = rows.scored.len();
            rows.scored.extend(sequence.scored().map(|at| (start + at - 1, sequence.tokens[at])));
            rows.scored_of.push(first..rows.scored.len());
        }
        Ok(rows)
    }

    /// Number of rows.
    pub(crate) fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Length of the longest sequence.
    pub(crate) fn longest(&self) -> usize {
        self.sequences.iter().map(Range::len).max().unwrap_or(0)
    }

    /// Rows of each sequence.
    pub(crate) fn sequences(&self) -> &[Range<usize>] {
        &self.sequences
    }

    pub(crate) fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    pub(crate) fn scored(&self) -> &[(usize, u32)] {
        &self.scored
    }

    pub(crate) fn scored_of(&self) -> &[Range<usize>] {
        &self.scored_of
    }

    /// Rows of the sequence of a row, and the row's position in it.
    pub(crate) fn place(&self, row: usize) -> (&Range<usize>, usize) {
        let sequence = &self.sequences[self.of_row[row] as usize];
        (sequence, row - sequence.start)
    }
}
